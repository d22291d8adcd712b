//! Messages: sending, waiting, order, batches, zero-copy buffers, and the count of what was acknowledged.

#[path = "../common/mod.rs"]
mod common;

mod batch;
mod ledger;
mod ledger_property;
mod owned;
mod patience;
mod pings;
mod released;
mod send;
mod tagged;
