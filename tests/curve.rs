//! CURVE: who asks for it gets it or nothing, and no key is ever shown.

mod common;

#[path = "curve/admission.rs"]
mod admission;
#[path = "curve/keys.rs"]
mod keys;
#[path = "curve/recorder.rs"]
mod recorder;
#[path = "curve/redial.rs"]
mod redial;
#[path = "curve/required.rs"]
mod required;
#[path = "curve/rogue.rs"]
mod rogue;
#[path = "curve/round_trip.rs"]
mod round_trip;
#[path = "curve/secrets.rs"]
mod secrets;
#[path = "curve/wrong_peer.rs"]
mod wrong_peer;
