//! Peers and networks that mean harm, for a few seconds every day and for longer with `make check-deep`.

#[path = "../common/mod.rs"]
mod common;

mod chaos;
mod hostile;
mod packets;
mod wire;
