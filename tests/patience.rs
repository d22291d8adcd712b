//! How long a send waits for a peer that does not read: its own deadline at the most, and not at all for a peer that
//! has not moved for that long.

mod common;

#[path = "patience/deadlines.rs"]
mod deadlines;
#[path = "patience/stalls.rs"]
mod stalls;
#[path = "patience/statuses.rs"]
mod statuses;
