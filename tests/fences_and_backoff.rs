//! What must not be dialled, and how often what may be dialled is dialled.

mod common;

#[path = "fences_and_backoff/backoff.rs"]
mod backoff;
#[path = "fences_and_backoff/fence_and_dial.rs"]
mod fence_and_dial;
#[path = "fences_and_backoff/fences.rs"]
mod fences;
#[path = "fences_and_backoff/given_up.rs"]
mod given_up;
#[path = "fences_and_backoff/stress.rs"]
mod stress;
