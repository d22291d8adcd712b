//! What must not be dialled, and how often what may be dialled is dialled.

mod backoff;
mod fence_and_dial;
mod fences;
mod given_up;
mod stress;
