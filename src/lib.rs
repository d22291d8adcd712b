//! kvconn owns the outbound ZeroMQ connections of disaggregated LLM inference engines.
//!
//! The library is used through its C header, `include/kvconn.h`. The folders are layers: a file names only what stands
//! below it. `docs/architecture.md` shows the layers, and the path of a message and of a failure through them.

#![warn(missing_docs)]

pub mod capi;

pub mod observe;

pub mod process;

pub mod manager;

pub mod runtime;

pub mod connection;

pub mod events;

mod budget;
mod libzmq;
pub mod log;
pub mod net;
pub mod options;

pub mod delivery;
pub mod error;
pub mod ids;
mod sys;
pub mod timeout;

// The C boundary turns a panic into KVCONN_INTERNAL. Without unwinding it would end the host process instead.
#[cfg(panic = "abort")]
compile_error!("kvconn needs panic = \"unwind\": a panic must not end the host process");

/// For the fuzz targets, which are no part of the crate.
#[cfg(fuzzing)]
pub use connection::dial::model::monitor_events;

// Builds and links libzmq.
use zmq as _;
