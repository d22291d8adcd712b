//! What field reports brought: the smallest input that failed, and its kind.

#[path = "../common/mod.rs"]
mod common;

mod dials;
mod dump;
mod log;
mod losses;
mod names;
mod refusing_kernel;
