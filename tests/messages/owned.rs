//! Zero-copy buffers: each is released once, when libzmq has freed it and the outcome of its message is known.

mod buffers;
mod release;
mod returns;
