//! Messages: whole, in order, counted, on one life and no other.

mod common;

#[path = "send/frames.rs"]
mod frames;
#[path = "send/lives.rs"]
mod lives;
#[path = "send/order.rs"]
mod order;
#[path = "send/signals.rs"]
mod signals;
#[path = "send/tagged.rs"]
mod tagged;
