//! Messages: whole, in order, counted, on one life and no other.

mod frames;
mod lives;
mod order;
mod signals;
