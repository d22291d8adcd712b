//! What was accepted and is not acknowledged yet: sequences, bytes, and zero-copy buffers in flight.

pub(crate) mod account;
pub mod buffers;
pub(crate) mod ledger;
pub(crate) mod release_tracker;
pub mod tcp_info;
