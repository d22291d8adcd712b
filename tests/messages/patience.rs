//! How long a send waits for a peer that does not read: its own deadline at the most, and not at all for a peer that
//! has not moved for that long.

mod deadlines;
mod stalls;
mod statuses;
