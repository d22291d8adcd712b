//! Why a handshake failed, as far as anybody can tell.
//!
//! Both sides close at once when they find that they do not fit. libzmq tells why when it is ours that finds it; when
//! the peer is quicker, which is the rule, it only tells that the connection is gone. But how far the peer got before
//! it closed gives it away: it says its greeting when it has read ours, its WELCOME when it holds the key that our
//! HELLO was made for, and so on.

use std::ffi::CStr;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use super::{DialFailure, errno_text};
use crate::connection::acknowledgement::tcp_info;
use crate::connection::socket::MonitorEvent;
use crate::sys::descriptor;

const MECHANISM_MISMATCH: u32 = zmq_sys::ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH;
const CRYPTOGRAPHIC: u32 = zmq_sys::ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC;

/// A ZMTP 3 greeting names the mechanism.
const GREETING: u64 = 64;
/// The WELCOME of CURVE, a command with two bytes of framing, follows.
const WELCOME: u64 = GREETING + 2 + 168;
/// What every version of the greeting begins with.
const SIGNATURE: u64 = 10;

/// Says why, after this event of a connection that asked for CURVE or did not, and on which the peer had said that many
/// bytes (its FIN may count as one more).
pub(in crate::connection) fn why(event: MonitorEvent, curve: bool, received: Option<u64>) -> DialFailure {
    let failure = |os_errno, message: &str| DialFailure { os_errno, message: message.to_owned() };
    match (event, curve, received) {
        (MonitorEvent::NotAuthorised(code), _, _) => {
            failure(libc::EACCES, &format!("the peer does not let this client in (ZAP status {code})"))
        }
        (MonitorEvent::WrongPeer(MECHANISM_MISMATCH), true, _) => failure(libc::EACCES, NO_CURVE),
        (MonitorEvent::WrongPeer(MECHANISM_MISMATCH), false, _) => failure(libc::EACCES, WANTS_CURVE),
        (MonitorEvent::WrongPeer(CRYPTOGRAPHIC), _, _) => failure(libc::EACCES, OTHER_KEY),
        // Said without a reason, it was our libzmq that closed, because it could make no sense of what came.
        (MonitorEvent::WrongPeer(_) | MonitorEvent::Disconnected(_), _, _) => {
            failure(libc::EPROTO, "wrong peer: what listens there is not a ZeroMQ PULL socket of ZMTP 3")
        }
        // The system ended it, not the peer: the network, a firewall, a limit. EPIPE is the peer's FIN.
        (MonitorEvent::HandshakeFailed(os_errno), _, _)
            if !matches!(os_errno, 0 | libc::EPIPE | libc::ECONNRESET | libc::EAGAIN | libc::EINTR) =>
        {
            failure(os_errno, &format!("{} in the ZMTP handshake", errno_text(os_errno)))
        }
        (_, true, Some(WELCOME..)) => failure(
            libc::EPROTO,
            "the peer has the right key, and closed the connection in the CURVE handshake: it is no PULL socket, or \
             does not let this client in",
        ),
        (_, true, Some(GREETING..)) => failure(libc::EACCES, OTHER_KEY),
        (_, true, Some(SIGNATURE..)) => failure(libc::EACCES, NO_CURVE),
        (_, false, Some(GREETING..)) => {
            failure(libc::EPROTO, "wrong peer: it closed the connection in the ZMTP handshake, and is no PULL socket")
        }
        (_, false, Some(SIGNATURE..)) => failure(libc::EACCES, WANTS_CURVE),
        (_, _, Some(_)) => failure(
            libc::ECONNRESET,
            "the peer closed the connection without a ZMTP handshake: it is stopping, or is no ZeroMQ socket",
        ),
        (_, true, None) => failure(
            libc::EACCES,
            "the peer closed the connection in the CURVE handshake: it has another key than curve_server_key, does not \
             speak CURVE, does not let this client in, or is stopping",
        ),
        (_, false, None) => failure(
            libc::ECONNRESET,
            "the peer closed the connection in the ZMTP handshake: it is stopping, is no ZeroMQ PULL socket, or asks for \
             CURVE",
        ),
    }
}

/// What to say when the time is over, and the peer has said that many bytes.
pub(in crate::connection) fn why_silent(curve: bool, received: Option<u64>) -> &'static str {
    match (curve, received) {
        (true, Some(WELCOME..)) => {
            "no CURVE handshake within handshake_timeout_ms: the peer has the right key, and is stuck or does not let this \
             client in"
        }
        (true, Some(GREETING..)) => {
            "no CURVE handshake within handshake_timeout_ms: the peer has said nothing to our HELLO, and is stuck"
        }
        _ => "no ZMTP handshake within handshake_timeout_ms: the peer is stuck, or is not a ZeroMQ PULL socket",
    }
}

const NO_CURVE: &str = "curve_server_key is given, and the peer does not speak CURVE; nothing was sent plain";
const WANTS_CURVE: &str = "the peer asks for CURVE (or another mechanism), and no curve_server_key is given";
const OTHER_KEY: &str = "the CURVE handshake failed: the peer has another key than curve_server_key";

/// A descriptor of our own for a connection that libzmq may close at any moment.
pub(in crate::connection) struct HandshakeBytes(OwnedFd);

impl HandshakeBytes {
    /// The connection behind that descriptor number, if it leads to where `dialled` says: the number may mean something
    /// else by now.
    pub(in crate::connection) fn new(fd: RawFd, dialled: &CStr) -> Option<HandshakeBytes> {
        let stream = TcpStream::from(descriptor::duplicate(fd).ok()?);
        let mut peer = stream.peer_addr().ok()?;
        peer.set_ip(peer.ip().to_canonical());
        dialled.to_str().ok()?.ends_with(&peer.to_string()).then(|| HandshakeBytes(stream.into()))
    }

    /// How many bytes have come.
    pub(in crate::connection) fn bytes(&self) -> Option<u64> {
        tcp_info::read(self.0.as_fd()).ok().map(|info| info.counters.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    /// What was found out by experiment, with libzmq 4.3.5 on both sides.
    #[test]
    fn how_far_the_peer_got_tells_why_it_closed() {
        let closed = MonitorEvent::HandshakeFailed(libc::EPIPE);
        for (event, curve, received, os_errno, text) in [
            (closed, true, Some(12), libc::EACCES, NO_CURVE),
            (closed, true, Some(65), libc::EACCES, OTHER_KEY),
            (closed, true, Some(235), libc::EPROTO, "no PULL socket"),
            (closed, true, None, libc::EACCES, "another key"),
            (closed, false, Some(12), libc::EACCES, WANTS_CURVE),
            (closed, false, Some(65), libc::EPROTO, "no PULL socket"),
            (closed, false, Some(91), libc::EPROTO, "no PULL socket"),
            (closed, false, Some(1), libc::ECONNRESET, "without a ZMTP handshake"),
            (closed, true, Some(0), libc::ECONNRESET, "without a ZMTP handshake"),
            (closed, false, None, libc::ECONNRESET, "or asks for CURVE"),
            (MonitorEvent::HandshakeFailed(libc::EHOSTUNREACH), true, Some(65), libc::EHOSTUNREACH, "No route to host"),
            (MonitorEvent::WrongPeer(MECHANISM_MISMATCH), true, None, libc::EACCES, NO_CURVE),
            (MonitorEvent::WrongPeer(MECHANISM_MISMATCH), false, Some(65), libc::EACCES, WANTS_CURVE),
            (MonitorEvent::WrongPeer(CRYPTOGRAPHIC), true, Some(64), libc::EACCES, OTHER_KEY),
            (MonitorEvent::WrongPeer(0), false, Some(91), libc::EPROTO, "wrong peer"),
            (MonitorEvent::Disconnected(libc::EPROTO), true, Some(14), libc::EPROTO, "wrong peer"),
            (MonitorEvent::NotAuthorised(400), true, Some(300), libc::EACCES, "400"),
        ] {
            let failure = why(event, curve, received);
            assert_eq!(failure.os_errno, os_errno, "{event:?} {curve} {received:?}: {}", failure.message);
            assert!(failure.message.contains(text), "{event:?} {curve} {received:?}: {}", failure.message);
            assert!(failure.message.len() < 190, "too long behind what BACKOFF says: {}", failure.message);
        }
        for (curve, received, text) in [
            (true, Some(234), "does not let this client in"),
            (true, Some(64), "our HELLO"),
            (true, None, "not a ZeroMQ PULL socket"),
            (false, Some(234), "not a ZeroMQ PULL socket"),
        ] {
            assert!(why_silent(curve, received).contains(text), "{curve} {received:?}");
        }
    }

    #[test]
    fn only_the_connection_that_was_dialled_is_listened_to() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let stream = TcpStream::connect(to).unwrap();
        let received = |fd, dialled: String| HandshakeBytes::new(fd, &std::ffi::CString::new(dialled).unwrap());
        assert_eq!(received(stream.as_raw_fd(), format!("tcp://0.0.0.0:0;{to}")).unwrap().bytes(), Some(0));
        assert!(received(stream.as_raw_fd(), "tcp://127.0.0.1:1".into()).is_none());
        assert!(received(listener.as_raw_fd(), format!("tcp://{to}")).is_none());
        assert!(received(-1, format!("tcp://{to}")).is_none());
    }
}
