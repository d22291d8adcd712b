//! Many threads at once, for a while.

mod everything;
mod failures;
mod gate;
