//! Budgets that all connections of the process share: descriptors and queued bytes.

pub(crate) mod bytes;
pub(crate) mod descriptors;
