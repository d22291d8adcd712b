//! What field reports brought: the smallest input that failed, and its kind.

#[path = "../common/mod.rs"]
mod common;

mod dump;
mod log;
mod losses;
