//! What belongs to the process: managers, events, metrics, the bundled libzmq, fork and the end.

#[path = "../common/mod.rs"]
mod common;

#[cfg(target_os = "linux")]
mod bundled_libzmq;
mod events;
mod fork;
mod managers;
mod metrics;
mod stall_events;
