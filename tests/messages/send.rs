//! Messages: whole, in order, counted, on one life and no other.

mod c_calls;
mod frames;
mod lives;
mod order;
mod signals;
