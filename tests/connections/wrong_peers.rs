//! What answers at an endpoint is no PULL socket, or nothing answers at all.

mod names;
mod no_answer;
mod other_services;
mod self_connect;
mod stream;
