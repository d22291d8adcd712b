//! A libzmq socket: the safe binding's, and the calls that it cannot make.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use zmq_sys::zmq_msg_t;

use super::monitor::{EventReader, drop_hint, report};
use super::{Frame, Inbox, check, io_error, last_error, retry};

/// Draft option of libzmq 4.3.5: how many bytes the encoder gathers for one write to the kernel.
const ZMQ_OUT_BATCH_SIZE: u32 = 102;

unsafe extern "C" {
    /// `patches/0030-monitor-by-calls.patch` of the bundled libzmq.
    fn zmq_socket_monitor_call(
        socket: *mut c_void,
        function: unsafe extern "C" fn(*mut c_void, u64, u64),
        hint: *mut c_void,
        events: c_int,
    ) -> c_int;

    /// `patches/0041-frames-in-one-call.patch`.
    fn zmq_msgs_send(frames: *mut zmq_msg_t, count: usize, socket: *mut c_void, more: c_int) -> usize;
}

/// One libzmq socket; closed when dropped, lingering as its option says.
///
/// It may move between threads, but two threads must never use one at the same time: it is not `Sync`.
pub(crate) struct Socket(NonNull<c_void>);

// SAFETY: libzmq allows a socket to move between threads with a full memory barrier, which whatever moves it
// (a lock, a channel) gives.
unsafe impl Send for Socket {}

impl Socket {
    /// Takes over a socket.
    ///
    /// # Safety
    /// It is a live socket that nothing else refers to.
    pub(super) unsafe fn new(raw: NonNull<c_void>) -> Socket {
        Socket(raw)
    }

    /// The safe binding's view, for its options.
    pub(crate) fn zmq(&self) -> impl Deref<Target = zmq::Socket> {
        // SAFETY: `from_raw` asks for a pointer of `into_raw`, which is what zmq_socket returned. The view does not close
        // the socket.
        ManuallyDrop::new(unsafe { zmq::Socket::from_raw(self.0.as_ptr()) })
    }

    fn set_raw(&self, option: u32, value: &[u8]) -> io::Result<()> {
        // SAFETY: value and length describe the same live memory; `self` is a live socket.
        let set =
            || unsafe { zmq_sys::zmq_setsockopt(self.0.as_ptr(), option as c_int, value.as_ptr().cast(), value.len()) };
        retry(|| check(set()))
    }

    /// Sets for how long data may stay unacknowledged by the peer's kernel, in milliseconds.
    pub(crate) fn set_tcp_maxrt(&self, ms: i32) -> io::Result<()> {
        self.set_raw(zmq_sys::ZMQ_TCP_MAXRT, &ms.to_ne_bytes())
    }

    /// Sets the network interface that it dials through.
    pub(crate) fn set_bind_to_device(&self, interface: &str) -> io::Result<()> {
        self.set_raw(zmq_sys::ZMQ_BINDTODEVICE, interface.as_bytes())
    }

    /// Sets how many bytes it gathers for one write.
    pub(crate) fn set_out_batch(&self, bytes: i32) -> io::Result<()> {
        self.set_raw(ZMQ_OUT_BATCH_SIZE, &bytes.to_ne_bytes())
    }

    /// The descriptor that turns readable when a command waits for the socket (edge-like: read the events then).
    pub(crate) fn fd(&self) -> io::Result<RawFd> {
        retry(|| self.zmq().get_fd().map_err(io_error))
    }

    /// Processes waiting commands and tells whether a message would be accepted now.
    pub(crate) fn writable(&self) -> bool {
        let events = retry(|| self.zmq().get_events().map_err(io_error));
        events.is_ok_and(|events| events.contains(zmq::POLLOUT))
    }

    /// Starts to connect; the outcome comes through the monitor.
    pub(crate) fn connect(&self, address: &CStr) -> io::Result<()> {
        // SAFETY: both live for the call.
        retry(|| check(unsafe { zmq_sys::zmq_connect(self.0.as_ptr(), address.as_ptr()) }))
    }

    /// Has its events (a mask) reported. The inbox gives `name` when there are some.
    pub(crate) fn monitor(&self, inbox: &Arc<Inbox>, name: u64, events: u32) -> io::Result<EventReader> {
        let monitor = EventReader::new(inbox, name);
        let hint = monitor.hint();
        // SAFETY: the socket is live. libzmq calls as `report` requires: see the patch.
        let set = check(unsafe { zmq_socket_monitor_call(self.0.as_ptr(), report, hint, events as c_int) });
        if let Err(e) = set {
            // SAFETY: libzmq did not take it.
            unsafe { drop_hint(hint) };
            return Err(e);
        }
        Ok(monitor)
    }

    /// One attempt to hand over frames of a message, without waiting; `more` say whether others follow. Returns how many
    /// libzmq has not taken, and why. Those are as they were.
    #[inline(always)]
    pub(crate) fn send(&self, frames: &mut [Frame], more: bool) -> Result<(), (usize, io::Error)> {
        loop {
            // SAFETY: both live for the call, and a frame is a zmq_msg_t. libzmq takes the content of a frame and leaves an
            // empty message.
            let taken =
                unsafe { zmq_msgs_send(frames.as_mut_ptr().cast(), frames.len(), self.0.as_ptr(), c_int::from(more)) };
            if taken == frames.len() {
                return Ok(());
            }
            let e = last_error();
            // It may say so before it has looked at the first frame: see `retry`.
            if taken > 0 || e.kind() != io::ErrorKind::Interrupted {
                return Err((frames.len() - taken, e));
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: as in `zmq`. It refers to no context: dropping it closes the socket and terminates nothing.
        drop(unsafe { zmq::Socket::from_raw(self.0.as_ptr()) });
    }
}
