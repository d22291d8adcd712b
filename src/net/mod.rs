//! Where a peer listens, and by which route it is dialled.

pub mod endpoint;
pub(crate) mod route;
