//! What field reports brought: the smallest input that failed, and its kind.

#[path = "../common/mod.rs"]
mod common;

mod copies;
mod dials;
mod dump;
mod errno_sweep;
mod icmp;
mod log;
mod long_messages;
mod losses;
mod memory;
mod names;
mod programs;
mod refusing_kernel;
mod scenarios;
mod signals;
