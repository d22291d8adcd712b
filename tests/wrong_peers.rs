//! What answers at an endpoint is no PULL socket, or nothing answers at all.

mod common;

#[path = "wrong_peers/names.rs"]
mod names;
#[path = "wrong_peers/nobody.rs"]
mod nobody;
#[path = "wrong_peers/other_services.rs"]
mod other_services;
#[path = "wrong_peers/self_connect.rs"]
mod self_connect;
#[path = "wrong_peers/stream.rs"]
mod stream;
