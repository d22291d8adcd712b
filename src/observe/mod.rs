//! Texts about what is there: they read everything, and nothing calls them.

pub mod describe;
pub mod metrics;
