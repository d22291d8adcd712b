//! kvconn owns the outbound ZeroMQ connections of disaggregated LLM inference engines.
//!
//! The library is used through its C header, `include/kvconn.h`. This crate has two layers: the core, which knows
//! no C types, and [`capi`], which knows nothing else. `docs/architecture.md` shows how a message and a failure go
//! through the core.

#![warn(missing_docs)]

mod budget;
mod byte_budget;
mod cache;
pub mod capi;
mod clock;
pub mod connection;
mod context;
pub mod describe;
pub mod endpoint;
mod epoll;
pub mod error;
pub mod events;
mod fork;
pub mod ids;
mod libzmq;
mod lock;
pub mod log;
pub mod manager;
pub mod message;
pub mod metrics;
pub mod nodes;
pub mod options;
pub mod process;
mod registry;
pub mod release;
pub mod resolve;
mod route;
mod sync;
pub mod tcp_info;
mod thread;
mod wake;
mod watcher;

// The C boundary turns a panic into KVCONN_INTERNAL. Without unwinding it would end the host process instead.
#[cfg(panic = "abort")]
compile_error!("kvconn needs panic = \"unwind\": a panic must not end the host process");

// Builds and links libzmq.
use zmq as _;
