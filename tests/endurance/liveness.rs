//! How a peer that does not answer is found out, and how one that is only slow or stopped is not. docs/liveness.md has
//! the bounds.

mod dropped_packets;
mod gone;
mod held_back;
mod slow_link;
mod stopped;
mod vanished;
