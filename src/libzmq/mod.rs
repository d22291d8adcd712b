//! libzmq, made safe: no other folder calls its C functions.
//!
//! The `zmq` crate's safe types do what they can do: [`zmq::Socket`] for options and closing, [`zmq::version`] and
//! [`zmq::has`]. The raw functions of `zmq-sys` are used where the crate lacks something or gets it wrong:
//!
//! * [`zmq::Context`] cannot set `ZMQ_MAX_SOCKETS`, does not notice when no context could be made, and its drop waits
//!   in `zmq_ctx_term`, without a bound, for sockets that still linger.
//! * [`zmq::Error`] panics on an errno that it does not list, such as ENFILE and ENOSPC. Making a socket and its
//!   monitor can meet any errno of the system's. Connecting and sending run on threads that a panic must not reach.
//! * `zmq::Socket::send` takes the message and drops it on EAGAIN. kvconn keeps it and tries again.
//! * `zmq::Message` panics when memory runs out, has no free callback and no `zmq_msg_copy`.
//! * `zmq::z85_decode` says that every text is a key, and leaks its copy of it. `zmq_curve_public` is in neither crate.
//! * `zmq_socket_monitor_call`, `zmq_msg_init_external` and `zmq_msgs_send` are corrections of ours
//!   (`bundled/zeromq-src/patches`), so they are in neither crate.
//! * `ZMQ_TCP_MAXRT`, `ZMQ_BINDTODEVICE` and the draft option `ZMQ_OUT_BATCH_SIZE` have no setter.

mod block;
mod context;
mod curve;
mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod model;
mod monitor;
mod pool;
mod socket;

use std::ffi::{CStr, c_int};
use std::io;

pub(crate) use block::Block;
pub(crate) use context::Context;
pub(crate) use curve::{curve_public_key, is_curve_key};
pub(crate) use frame::{Frame, FreeCallback};
pub(crate) use monitor::{EventReader, Inbox};
pub(crate) use socket::Socket;

#[cold]
#[inline(never)]
fn last_error() -> io::Error {
    // SAFETY: reads a thread-local number.
    io::Error::from_raw_os_error(unsafe { zmq_sys::zmq_errno() })
}

#[inline(always)]
fn check(rc: c_int) -> io::Result<()> {
    if rc == -1 { Err(last_error()) } else { Ok(()) }
}

/// Makes a call again for as long as a signal interrupts it. Any call that reads a socket's commands may say EINTR,
/// also one that does not wait, and then it has done nothing.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// An error of the safe binding's, with its errno: its own conversion drops that.
pub(crate) fn io_error(e: zmq::Error) -> io::Error {
    io::Error::from_raw_os_error(e.to_raw())
}

/// libzmq's text for an errno, which may be one of its own.
pub(crate) fn error_text(e: &io::Error) -> String {
    let number = e.raw_os_error().unwrap_or(0);
    // SAFETY: zmq_strerror returns a static, NUL-terminated text for every number.
    unsafe { CStr::from_ptr(zmq_sys::zmq_strerror(number)) }.to_string_lossy().into_owned()
}
