//! Buffers that are lent, not copied: each is given back once, when libzmq has let it go and its message's outcome is known.

mod common;

#[path = "owned/lending.rs"]
mod lending;
#[path = "owned/release.rs"]
mod release;
#[path = "owned/returns.rs"]
mod returns;
