//! Nodes: their lives, their endpoints and requests, and their failure.

#[path = "../common/mod.rs"]
mod common;

mod failure_races;
mod failures;
mod lives;
mod node_loss;
mod ranks;
mod registration;
mod taking_reports;
