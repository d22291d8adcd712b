//! Managers: independent of each other, destroyed, emptied, described; the end of the process's own, and fork.

mod common;

#[path = "managers/describe.rs"]
mod describe;
#[path = "managers/destroy.rs"]
mod destroy;
#[path = "managers/disconnect_all.rs"]
mod disconnect_all;
#[path = "managers/fork.rs"]
mod fork;
#[path = "managers/independence.rs"]
mod independence;
#[path = "managers/shutdown.rs"]
mod shutdown;
