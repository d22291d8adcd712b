//! Metrics: every number moves as it should, none goes back, and a scrape holds nobody up.

mod common;

#[path = "metrics/counts.rs"]
mod counts;
#[path = "metrics/endpoints.rs"]
mod endpoints;
#[path = "metrics/process.rs"]
mod process;
#[path = "metrics/races.rs"]
mod races;
#[path = "metrics/text.rs"]
mod text;
