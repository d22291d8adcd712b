//! Connecting, and how connections end.

mod common;

#[path = "connect/connect.rs"]
mod connect;
#[path = "connect/endings.rs"]
mod endings;
#[path = "connect/endpoints.rs"]
mod endpoints;
#[path = "connect/lost_peers.rs"]
mod lost_peers;
#[path = "connect/retry.rs"]
mod retry;
