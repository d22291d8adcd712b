//! What one attempt to reach one address is made of: a PUSH socket, and the monitor that tells what happens to it.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::{ManuallyDrop, size_of};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::time::Duration;

use crate::budget::{Budget, Lease};
use crate::error::{Error, Result, Status};
use crate::ids::LineId;
use crate::libzmq::{self, Context, Socket};
use crate::message::Message;
use crate::options::{Key, Values};

/// What a line costs: the mailboxes of the PUSH socket, of its monitor and of the monitor's reader, TCP's own, and
/// ours of the same TCP connection, if we keep account of it.
fn descriptors(values: &Values) -> usize {
    4 + usize::from(values.acknowledgement())
}

/// The encoder's batch: 1.4 to 1.7 times the throughput of small messages against libzmq's 8 KiB; more gains nothing.
const OUT_BATCH: i32 = 64 * 1024;
/// A PUSH socket receives nothing; what a hostile peer sends is bounded by these. The handshake needs some bytes.
const RECEIVE_HWM: i32 = 4;
const RECEIVE_MAX: i64 = 4096;

/// The monitor's events. With MONITOR_STOPPED the reader learns when libzmq has really given up the socket; it is
/// sent by libzmq's reaper, which would hang if the reader were full or closed: the reader has no limit and is
/// closed only after it.
const EVENTS: u32 = zmq_sys::ZMQ_EVENT_CONNECTED
    | zmq_sys::ZMQ_EVENT_CLOSED
    | zmq_sys::ZMQ_EVENT_DISCONNECTED
    | zmq_sys::ZMQ_EVENT_HANDSHAKE_SUCCEEDED
    | zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_AUTH
    | zmq_sys::ZMQ_EVENT_MONITOR_STOPPED;

/// The sending half of a line, guarded by its connection's lock.
pub(crate) struct PushSocket {
    socket: Socket,
    fd: RawFd,
}

/// The watching half of a line, owned by the watcher. Must outlive the PUSH socket.
pub(crate) struct Monitor {
    reader: Socket,
    fd: RawFd,
    /// Given back when the monitor goes, which is after the socket has gone.
    _lease: Lease,
}

/// What a monitor saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// TCP (or the pipe of ipc) is connected, on this descriptor number; libzmq may have closed it since.
    Connected(RawFd),
    /// The ZMTP handshake has succeeded.
    Ready,
    /// The handshake failed, for a reason of the system's: errno.
    HandshakeFailed(i32),
    /// The handshake failed: the other side speaks something else, or is not a PULL socket; libzmq's number of what.
    WrongPeer(u32),
    /// The handshake failed: the other side does not let us in; ZAP's status code.
    NotAuthorised(i32),
    /// The attempt to connect failed, with this errno.
    Closed(i32),
    /// The connection ended, with this errno; EPIPE: the peer closed it.
    Disconnected(i32),
    /// libzmq has given up the socket and its descriptors.
    Reaped,
}

/// What handing over a message came to.
pub(crate) enum Sent {
    /// Accepted whole.
    Accepted,
    /// No room for the first frame; nothing was taken.
    Full,
    /// No memory to queue the first frame; nothing was taken.
    NoMemory,
    /// The pipe died in the middle; the socket must not be used again.
    Broken,
}

/// Makes both halves; nothing is dialled yet. The only step that can run out of anything, so that a failure leaves
/// nothing behind.
pub(crate) fn open_line(
    context: &Context,
    budget: &'static Budget,
    values: &Values,
) -> Result<(LineId, PushSocket, Monitor)> {
    let lease = budget.lease(descriptors(values))?;
    let id = LineId::fresh();
    let make = || -> io::Result<(PushSocket, Monitor)> {
        let socket = context.socket(zmq_sys::ZMQ_PUSH)?;
        set_options(&socket, values)?;
        let fd = socket.fd()?;
        let reader = context.socket(zmq_sys::ZMQ_PAIR)?;
        reader.set_int(zmq_sys::ZMQ_LINGER, 0)?;
        // Without limit: a full reader would stop libzmq's I/O thread, and with it every connection.
        reader.set_int(zmq_sys::ZMQ_RCVHWM, 0)?;
        let address = CString::new(format!("inproc://kvconn-{id}")).unwrap_or_default();
        let reader_fd = reader.fd()?;
        // The monitor first: libzmq never gives up a socket that is connected to an address which nobody binds.
        socket.monitor(&address, EVENTS)?;
        reader.connect(&address)?;
        // libzmq signals only a reader that has once found nothing.
        while reader.receive()?.is_some() {}
        Ok((PushSocket { socket, fd }, Monitor { reader, fd: reader_fd, _lease: lease }))
    };
    let (push, monitor) = make().map_err(|e| {
        let text = libzmq::error_text(&e);
        let errno = e.raw_os_error().unwrap_or(0);
        match errno {
            libc::EMFILE | libc::ENFILE => Error::limit(format!(
                "libzmq has no descriptor or socket left: {text}; raise RLIMIT_NOFILE (ulimit -n)"
            )),
            libc::ENOMEM => Error::limit(format!("libzmq has no memory left: {text}")),
            _ => Error::new(Status::Internal, format!("libzmq cannot make a socket: {text}")),
        }
        .errno(errno)
    })?;
    Ok((id, push, monitor))
}

fn set_options(socket: &Socket, values: &Values) -> io::Result<()> {
    let int = |key| i32::try_from(values.get(key)).unwrap_or(i32::MAX);
    // The dial keeps its own time. libzmq's ends later: at the same moment it would be chance who tells, and libzmq
    // does not tell a timeout from a refusal.
    let later = |key| int(key).saturating_add(1000);
    let options = [
        // Nothing is queued before the peer is there, nothing is dialled behind our back.
        (zmq_sys::ZMQ_IMMEDIATE, 1),
        (zmq_sys::ZMQ_RECONNECT_IVL, -1),
        (zmq_sys::ZMQ_LINGER, 0),
        (zmq_sys::ZMQ_SNDHWM, int(Key::SendHwm)),
        (zmq_sys::ZMQ_RCVHWM, RECEIVE_HWM),
        (zmq_sys::ZMQ_IPV6, 1),
        (zmq_sys::ZMQ_CONNECT_TIMEOUT, later(Key::ConnectTimeoutMs)),
        (zmq_sys::ZMQ_HANDSHAKE_IVL, later(Key::HandshakeTimeoutMs)),
        (zmq_sys::ZMQ_TCP_MAXRT, int(Key::UserTimeoutMs)),
    ];
    for (option, value) in options {
        socket.set_int(option, value)?;
    }
    if values.get(Key::KeepaliveIdleS) > 0 {
        socket.set_int(zmq_sys::ZMQ_TCP_KEEPALIVE, 1)?;
        socket.set_int(zmq_sys::ZMQ_TCP_KEEPALIVE_IDLE, int(Key::KeepaliveIdleS))?;
        socket.set_int(zmq_sys::ZMQ_TCP_KEEPALIVE_INTVL, int(Key::KeepaliveIntervalS))?;
        socket.set_int(zmq_sys::ZMQ_TCP_KEEPALIVE_CNT, int(Key::KeepaliveCount))?;
    }
    if let Some(server) = values.key(Key::CurveServerKey) {
        // An error leaves no socket: whoever asks for CURVE never gets a plain one.
        let missing = || io::Error::from_raw_os_error(libc::EINVAL);
        let public = values.key(Key::CurvePublicKey).ok_or_else(missing)?;
        let secret = values.key(Key::CurveSecretKey).ok_or_else(missing)?;
        socket.set_text(zmq_sys::ZMQ_CURVE_SERVERKEY, server.text())?;
        socket.set_text(zmq_sys::ZMQ_CURVE_PUBLICKEY, public.text())?;
        socket.set_text(zmq_sys::ZMQ_CURVE_SECRETKEY, secret.text())?;
    }
    if let Some(interface) = values.interface() {
        socket.set_text(zmq_sys::ZMQ_BINDTODEVICE, interface)?;
    }
    socket.set_out_batch(OUT_BATCH)?;
    socket.set_max_received(RECEIVE_MAX)
}

impl PushSocket {
    /// Dials; once for each socket.
    pub(crate) fn dial(&self, address: &CStr) -> io::Result<()> {
        self.socket.connect(address)
    }

    /// The descriptor that tells that something changed.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    /// Works off libzmq's commands and tells whether there is room.
    pub(crate) fn writable(&self) -> bool {
        self.socket.writable()
    }

    /// How long what is queued may still be sent after the socket is dropped.
    pub(crate) fn linger(&self, time: Duration) {
        let ms = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        // Fails only for values below -1.
        let _ = self.socket.set_int(zmq_sys::ZMQ_LINGER, ms);
    }

    /// Hands a message over whole, or not at all.
    pub(crate) fn send(&self, message: &mut Message) -> Sent {
        let frames = message.frames_mut();
        let last = frames.len() - 1;
        for (place, frame) in frames.iter_mut().enumerate() {
            while let Err(e) = self.socket.send(frame, place < last) {
                match e.raw_os_error() {
                    // A signal between two frames: the same frame again, for the message is half handed over.
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) if place == 0 => {
                        // libzmq may not have looked at its commands for a millisecond; this makes it look.
                        if !self.socket.writable() {
                            return Sent::Full;
                        }
                    }
                    Some(libc::ENOMEM) if place == 0 => return Sent::NoMemory,
                    // In the middle of a message there is always room, unless the pipe is dead. libzmq would now
                    // swallow the frames of the next message.
                    _ => return Sent::Broken,
                }
            }
        }
        Sent::Accepted
    }
}

impl Monitor {
    /// The descriptor to wait on; read to the end whenever it turns readable.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    /// The next event, `None` when there is none for now.
    pub(crate) fn next(&self) -> Option<Seen> {
        loop {
            // An error here could only be ETERM, after shutdown.
            let event = self.reader.receive().ok()??;
            let mut frame_more = event.more();
            while frame_more {
                frame_more = self.reader.receive().ok()??.more();
            }
            if let Some(seen) = parse(event.bytes()) {
                return Some(seen);
            }
        }
    }
}

/// Reads the first frame of a monitor's event: its number in 2 bytes and its value in 4.
fn parse(bytes: &[u8]) -> Option<Seen> {
    let (number, value) = bytes.split_at_checked(2)?;
    let number = u32::from(u16::from_ne_bytes(number.try_into().ok()?));
    let value = u32::from_ne_bytes(value.try_into().ok()?).cast_signed();
    Some(match number {
        zmq_sys::ZMQ_EVENT_CONNECTED => Seen::Connected(value),
        zmq_sys::ZMQ_EVENT_HANDSHAKE_SUCCEEDED => Seen::Ready,
        zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL => Seen::HandshakeFailed(value),
        zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL => Seen::WrongPeer(value.cast_unsigned()),
        zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_AUTH => Seen::NotAuthorised(value),
        zmq_sys::ZMQ_EVENT_CLOSED => Seen::Closed(value),
        zmq_sys::ZMQ_EVENT_DISCONNECTED => Seen::Disconnected(value),
        zmq_sys::ZMQ_EVENT_MONITOR_STOPPED => Seen::Reaped,
        _ => return None,
    })
}

/// Whether that descriptor is a TCP connection with itself. Only looks; the number may mean something else by now,
/// and then the answer is no.
pub(crate) fn is_self_connected(fd: RawFd) -> bool {
    // SAFETY: never closed by us (ManuallyDrop); getsockname and getpeername fail on whatever is no socket.
    let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
    debug_assert_eq!(stream.as_raw_fd(), fd);
    let ends: (io::Result<SocketAddr>, io::Result<SocketAddr>) = (stream.local_addr(), stream.peer_addr());
    matches!(ends, (Ok(local), Ok(peer)) if local == peer)
}

const _: () = assert!(size_of::<RawFd>() == 4, "a monitor's value carries a descriptor in 4 bytes");
