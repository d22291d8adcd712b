//! What a network, a kernel or a limit does to connections, and what kvconn makes of it.

#[path = "../common/mod.rs"]
mod common;

mod dials;
mod errno_sweep;
mod icmp;
mod names;
mod programs;
mod refusing_kernel;
mod scenarios;
