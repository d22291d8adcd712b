//! What field reports brought: what a network, a kernel, a limit or a host does, and what kvconn makes of it.

#[path = "../common/mod.rs"]
mod common;

mod dials;
mod dump;
mod log;
mod losses;
mod names;
mod refusing_kernel;
