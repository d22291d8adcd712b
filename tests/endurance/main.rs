//! Longer runs: peers that are slow, stopped, silent or gone, and many threads at once for a while.

#[path = "../common/mod.rs"]
mod common;

mod liveness;
mod stress;
