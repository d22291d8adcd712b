//! Connections: dialling, what must not be dialled, who answers, limits, CURVE.

#[path = "../common/mod.rs"]
mod common;

mod close_under_load;
mod connect;
mod curve;
mod fences_and_backoff;
mod limits;
mod source;
mod wrong_peers;
