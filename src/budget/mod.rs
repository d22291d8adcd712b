//! What all connections of the process share and may use up: descriptors and queued bytes.

pub(crate) mod bytes;
pub(crate) mod descriptors;
