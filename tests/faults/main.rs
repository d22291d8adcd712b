//! What a network, a kernel or a limit does to connections, and what kvconn makes of it.

#[path = "../common/mod.rs"]
mod common;

mod copies;
mod dials;
mod long_messages;
mod names;
mod refusing_kernel;
mod signals;
