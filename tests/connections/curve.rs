//! CURVE: a caller that asks for it gets it or nothing, and no key is ever shown.

mod admission;
mod keys;
mod recorder;
mod redial;
mod required;
mod rogue;
mod round_trip;
mod secrets;
mod wrong_peer;
