//! How a peer that does not answer is found out, and how one that is only slow or stopped is not. docs/liveness.md has
//! the bounds.

mod common;

#[path = "liveness/gone.rs"]
mod gone;
#[path = "liveness/held_back.rs"]
mod held_back;
#[path = "liveness/silence.rs"]
mod silence;
#[path = "liveness/slow_link.rs"]
mod slow_link;
#[path = "liveness/stopped.rs"]
mod stopped;
#[path = "liveness/vanished.rs"]
mod vanished;
