//! The libzmq context. It is terminated only when a start fails half-way.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::NonNull;

use super::{Socket, check, last_error, retry};

/// A libzmq context: its I/O threads and its sockets.
pub(crate) struct Context(NonNull<c_void>);

// SAFETY: libzmq documents contexts as thread safe.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// A context with no thread yet: the first socket makes them.
    pub(crate) fn new(io_threads: i32, max_sockets: i32) -> io::Result<Context> {
        // SAFETY: takes nothing.
        let raw = NonNull::new(unsafe { zmq_sys::zmq_ctx_new() }).ok_or_else(last_error)?;
        let context = Context(raw);
        for (option, value) in [(zmq_sys::ZMQ_IO_THREADS, io_threads), (zmq_sys::ZMQ_MAX_SOCKETS, max_sockets)] {
            // SAFETY: the context is live.
            if let Err(e) = check(unsafe { zmq_sys::zmq_ctx_set(raw.as_ptr(), option as c_int, value) }) {
                context.terminate();
                return Err(e);
            }
        }
        Ok(context)
    }

    /// Ends its threads and gives everything back. All of its sockets must be closed: `zmq_ctx_term` waits for them
    /// without a bound.
    pub(crate) fn terminate(self) {
        // SAFETY: the context is live, and not used after this. EINTR: it is called again, as libzmq asks.
        let _ = retry(|| check(unsafe { zmq_sys::zmq_ctx_term(self.0.as_ptr()) }));
    }

    /// A new socket. The first one of a context starts libzmq's threads.
    pub(crate) fn socket(&self, kind: u32) -> io::Result<Socket> {
        // SAFETY: the context is live as long as `self`.
        let make = || NonNull::new(unsafe { zmq_sys::zmq_socket(self.0.as_ptr(), kind as c_int) });
        let raw = retry(|| make().ok_or_else(last_error))?;
        // SAFETY: a new socket that nothing else refers to.
        Ok(unsafe { Socket::new(raw) })
    }
}
