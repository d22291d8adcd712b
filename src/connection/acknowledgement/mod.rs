//! What was accepted and is not acknowledged yet: sequences, bytes, and the buffers of messages that were not copied.

pub(crate) mod account;
pub(crate) mod held;
pub(crate) mod ledger;
pub mod loans;
pub mod tcp_info;
