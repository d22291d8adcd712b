//! Buffers that are lent, not copied: each is given back once, when libzmq has let it go and its message's outcome is known.

mod lending;
mod release;
mod returns;
