//! What all managers share: libzmq's context, the background threads, the budgets.

pub(crate) mod context;
pub mod release;
pub mod resolve;
pub(crate) mod watcher;
