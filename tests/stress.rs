//! Many threads at once, for a while.

mod common;

#[path = "stress/everything.rs"]
mod everything;
#[path = "stress/failures.rs"]
mod failures;
#[path = "stress/gate.rs"]
mod gate;
