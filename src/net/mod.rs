//! Where a peer listens, and how the network is asked to reach it.

pub mod endpoint;
pub(crate) mod route;
