//! Connecting, and how connections end.

mod calls;
mod endings;
mod endpoints;
mod lost_peers;
mod retry;
