//! The socket of one dial attempt: a PUSH socket, and the monitor that reports its events.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::budget::descriptors::{DescriptorBudget, Lease};
use crate::connection::message::Message;
use crate::error::{Error, Result, Status};
use crate::ids::AttemptId;
use crate::libzmq::{self, Context, Frame, Inbox, Socket, io_error};
use crate::options::{Key, Values};

/// The descriptors of one dial attempt: the mailbox of the PUSH socket, TCP's own, and with acknowledgement our own for
/// the same TCP connection.
fn descriptors(values: &Values) -> usize {
    2 + usize::from(values.acknowledgement())
}

/// The encoder's batch size. Gives 1.4 to 1.7 times the throughput of small messages with libzmq's 8 KiB. More gains
/// nothing.
const OUT_BATCH: i32 = 64 * 1024;
/// A PUSH socket receives nothing. These limit what a hostile peer can send. The handshake needs some bytes.
const RECEIVE_HWM: i32 = 4;
const RECEIVE_MAX: i64 = 4096;

/// The monitor's events. MONITOR_STOPPED comes without being asked for: libzmq has really closed the socket.
const EVENTS: u32 = zmq_sys::ZMQ_EVENT_CONNECT_DELAYED
    | zmq_sys::ZMQ_EVENT_CONNECTED
    | zmq_sys::ZMQ_EVENT_CLOSED
    | zmq_sys::ZMQ_EVENT_DISCONNECTED
    | zmq_sys::ZMQ_EVENT_HANDSHAKE_SUCCEEDED
    | zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_AUTH
    | OPTION_REFUSED;

/// `ZMQ_EVENT_OPTION_REFUSED`, which the bundled libzmq has by a correction of ours and zmq-sys does not know.
const OPTION_REFUSED: u32 = 0x8000;

/// Some of the options that libzmq sets on a connected TCP socket: bits `ZMQ_OPTION_REFUSED_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpOptions(i32);

impl fmt::Display for TcpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(1, "TCP_NODELAY"), (2, "TCP keepalive"), (4, "TCP_USER_TIMEOUT")];
        let set: Vec<_> = names.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| *name).collect();
        f.write_str(&set.join(", "))
    }
}

/// The sending half of a dial attempt, guarded by its connection's lock.
pub(crate) struct PushSocket {
    socket: Socket,
}

/// The monitor of a dial attempt, owned by the watcher.
pub(crate) struct Monitor {
    events: libzmq::EventReader,
    /// Returned when the monitor is dropped, which is after libzmq has closed the socket.
    _lease: Lease,
}

/// An event of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MonitorEvent {
    /// libzmq waits for the answer to its connect.
    TakenUp,
    /// TCP (or the stream of ipc) is connected, on this descriptor number. libzmq may have closed it since.
    Connected(RawFd),
    /// The ZMTP handshake has succeeded.
    Ready,
    /// The handshake failed with this errno.
    HandshakeFailed(i32),
    /// The handshake failed: the peer speaks another protocol, or is not a PULL socket. Holds libzmq's error number.
    WrongPeer(u32),
    /// The handshake failed: the peer refused us. Holds ZAP's status code.
    NotAuthorised(i32),
    /// The connect failed, with this errno.
    Closed(i32),
    /// The connection ended, with this errno. EPIPE: the peer closed it.
    Disconnected(i32),
    /// The kernel refuses options of the connected TCP socket, with this errno. The connection goes on without them.
    OptionRefused { options: TcpOptions, os_errno: i32 },
    /// libzmq has closed the socket and its descriptors.
    Reaped,
}

/// The result of handing over a message.
pub(crate) enum Sent {
    /// All of it was taken.
    Accepted,
    /// No room for the first frame; nothing was taken.
    Full,
    /// No memory to queue the first frame; nothing was taken.
    NoMemory,
    /// The pipe died within the message. The socket must not be used again.
    Broken,
}

/// Makes both halves. Nothing is dialled yet. Only this step can run out of a resource, so a failure leaves nothing
/// behind. `inbox` gives the id when there are events.
pub(crate) fn open_attempt(
    (context, inbox): (&Context, &Arc<Inbox>),
    budget: &Arc<DescriptorBudget>,
    values: &Values,
) -> Result<(AttemptId, PushSocket, Monitor)> {
    let lease = budget.lease(descriptors(values))?;
    let id = AttemptId::fresh();
    let make = || -> io::Result<(PushSocket, Monitor)> {
        let socket = context.socket(zmq_sys::ZMQ_PUSH)?;
        set_options(&socket, values)?;
        let events = socket.monitor(inbox, id.0, EVENTS)?;
        Ok((PushSocket { socket }, Monitor { events, _lease: lease }))
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
    budget.keep_table_ahead(push.fd());
    Ok((id, push, monitor))
}

fn set_options(socket: &Socket, values: &Values) -> io::Result<()> {
    if let Some(interface) = values.interface() {
        socket.set_bind_to_device(interface)?;
    }
    socket.set_tcp_maxrt(int(values, Key::UserTimeoutMs))?;
    socket.set_out_batch(OUT_BATCH)?;
    // An error leaves no socket: a caller that asks for CURVE never gets a plain connection.
    set_common_options(&socket.zmq(), values).map_err(io_error)
}

fn set_common_options(socket: &zmq::Socket, values: &Values) -> zmq::Result<()> {
    // kvconn keeps the dial's time itself, and libzmq's limits are later. At the same moment it would be chance which
    // of them reports first, and libzmq does not distinguish a timeout from a refusal.
    let later = |key| int(values, key).saturating_add(1000);
    // Nothing is queued before the peer is there. libzmq does not redial.
    socket.set_immediate(true)?;
    socket.set_reconnect_ivl(-1)?;
    socket.set_linger(0)?;
    socket.set_sndhwm(int(values, Key::SendHwm))?;
    socket.set_rcvhwm(RECEIVE_HWM)?;
    socket.set_maxmsgsize(RECEIVE_MAX)?;
    socket.set_ipv6(true)?;
    socket.set_connect_timeout(later(Key::ConnectTimeoutMs))?;
    socket.set_handshake_ivl(later(Key::HandshakeTimeoutMs))?;
    if values.get(Key::KeepaliveIdleS) > 0 {
        socket.set_tcp_keepalive(1)?;
        socket.set_tcp_keepalive_idle(int(values, Key::KeepaliveIdleS))?;
        socket.set_tcp_keepalive_intvl(int(values, Key::KeepaliveIntervalS))?;
        socket.set_tcp_keepalive_cnt(int(values, Key::KeepaliveCount))?;
    }
    if let Some(server) = values.key(Key::CurveServerKey) {
        let public = values.key(Key::CurvePublicKey).ok_or(zmq::Error::EINVAL)?;
        let secret = values.key(Key::CurveSecretKey).ok_or(zmq::Error::EINVAL)?;
        // In Z85, which libzmq tells from 32 bytes by the length.
        socket.set_curve_serverkey(server.text().as_bytes())?;
        socket.set_curve_publickey(public.text().as_bytes())?;
        socket.set_curve_secretkey(secret.text().as_bytes())?;
    }
    Ok(())
}

fn int(values: &Values, key: Key) -> i32 {
    i32::try_from(values.get(key)).unwrap_or(i32::MAX)
}

impl PushSocket {
    /// Dials. Once for each socket.
    pub(crate) fn dial(&self, address: &CStr) -> io::Result<()> {
        self.socket.connect(address)
    }

    /// The descriptor that signals a change. -1, which poll ignores, if libzmq does not tell: it does for every live
    /// socket.
    pub(crate) fn fd(&self) -> RawFd {
        self.socket.fd().unwrap_or(-1)
    }

    /// Processes libzmq's commands and returns whether there is room.
    pub(crate) fn writable(&self) -> bool {
        self.socket.writable()
    }

    /// How long queued messages may still be sent after the socket is dropped.
    pub(crate) fn linger(&self, time: Duration) {
        let ms = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        // Fails only for values below -1.
        let _ = self.socket.zmq().set_linger(ms);
    }

    /// Hands over all frames of a message, or none.
    #[inline(always)]
    pub(crate) fn send(&self, frames: &mut [Frame]) -> Sent {
        self.send_frames(frames, 0..frames.len())
    }

    /// Hands over the last frame of a message whose others were taken. Returns whether it was accepted.
    pub(crate) fn send_last_frame(&self, message: &mut Message) -> bool {
        let last = message.frames().len() - 1;
        matches!(self.send_frames(message.frames_mut(), last..last + 1), Sent::Accepted)
    }

    /// Hands over some of a message's frames, after those before them. libzmq keeps the frames to itself until it has
    /// the last one: then the message is accepted.
    #[inline(always)]
    pub(crate) fn send_frames(&self, frames: &mut [Frame], places: Range<usize>) -> Sent {
        let (mut begin, end, more) = (places.start, places.end, places.end < frames.len());
        while let Err((left, e)) = self.socket.send(&mut frames[begin..end], more) {
            begin = end - left;
            if let Some(sent) = self.not_sent(&e, begin) {
                return sent;
            }
        }
        Sent::Accepted
    }

    /// What the error means for the message. `None`: it must be tried again.
    #[cold]
    #[inline(never)]
    fn not_sent(&self, error: &io::Error, place: usize) -> Option<Sent> {
        match error.raw_os_error() {
            // There may be room since libzmq has looked.
            Some(libc::EAGAIN) if place == 0 => (!self.socket.writable()).then_some(Sent::Full),
            Some(libc::ENOMEM) if place == 0 => Some(Sent::NoMemory),
            // Within a message there is always room, unless the pipe is dead. libzmq would now silently drop the frames
            // of the next message.
            _ => Some(Sent::Broken),
        }
    }
}

impl Monitor {
    /// The next event. `None` if there is none now.
    pub(crate) fn next(&self) -> Option<MonitorEvent> {
        std::iter::from_fn(|| self.events.next()).find_map(|(number, value)| event(number, value))
    }
}

/// What libzmq's numbers mean. `None`: nothing that a dial attempt asks for.
pub(super) fn event(number: u32, value: i32) -> Option<MonitorEvent> {
    Some(match number {
        zmq_sys::ZMQ_EVENT_CONNECT_DELAYED => MonitorEvent::TakenUp,
        zmq_sys::ZMQ_EVENT_CONNECTED => MonitorEvent::Connected(value),
        zmq_sys::ZMQ_EVENT_HANDSHAKE_SUCCEEDED => MonitorEvent::Ready,
        zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL => MonitorEvent::HandshakeFailed(value),
        zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL => MonitorEvent::WrongPeer(value.cast_unsigned()),
        zmq_sys::ZMQ_EVENT_HANDSHAKE_FAILED_AUTH => MonitorEvent::NotAuthorised(value),
        zmq_sys::ZMQ_EVENT_CLOSED => MonitorEvent::Closed(value),
        zmq_sys::ZMQ_EVENT_DISCONNECTED => MonitorEvent::Disconnected(value),
        OPTION_REFUSED => MonitorEvent::OptionRefused { options: TcpOptions(value >> 16), os_errno: value & 0xffff },
        zmq_sys::ZMQ_EVENT_MONITOR_STOPPED => MonitorEvent::Reaped,
        _ => return None,
    })
}

/// Whether this descriptor is a TCP connection to itself. Read-only: if the number means another file by now, the
/// answer is no.
pub(crate) fn is_self_connected(fd: RawFd) -> bool {
    if fd == -1 {
        return false; // what libzmq writes for no descriptor; the standard library panics
    }
    // SAFETY: it is not -1, and never closed by us (ManuallyDrop). getsockname and getpeername fail if it is not a socket.
    let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
    debug_assert_eq!(stream.as_raw_fd(), fd);
    let ends: (io::Result<SocketAddr>, io::Result<SocketAddr>) = (stream.local_addr(), stream.peer_addr());
    matches!(ends, (Ok(local), Ok(peer)) if local == peer)
}
