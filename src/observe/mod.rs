//! Texts about the present state. They read everything, and nothing calls them.

pub mod describe;
pub mod metrics;
