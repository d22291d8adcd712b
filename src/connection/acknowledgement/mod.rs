//! What was accepted and is not acknowledged yet: sequences, bytes, and the buffers of messages that were not copied.

pub(crate) mod account;
pub mod buffers;
pub(crate) mod ledger;
pub(crate) mod release_tracker;
pub mod tcp_info;
