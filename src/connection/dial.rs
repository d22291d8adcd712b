//! One dial: every address of an endpoint, in order, until one shakes hands or the time is over. Pure: it is told
//! what happens and says what to do.

use std::collections::VecDeque;
use std::ffi::CString;
use std::time::{Duration, Instant};

use super::socket::Seen;

/// Why a dial, or its last address, failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DialFailure {
    /// errno, as near as it can be told: libzmq gives none for a failed connect.
    pub(crate) os_errno: i32,
    /// One line.
    pub(crate) message: String,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on waiting, until [`Dial::due`] at the latest.
    Wait,
    /// This address failed; try [`Dial::next_address`] on a fresh socket.
    TryNext,
    /// The handshake has succeeded.
    Ready,
    /// No address is left, or no time.
    Failed(DialFailure),
}

enum Phase {
    /// Waiting for addresses.
    Resolving,
    /// Waiting for TCP.
    Connecting { since: Instant },
    /// Waiting for the ZMTP handshake.
    Handshaking,
}

/// The dial's progress.
pub(crate) struct Dial {
    addresses: VecDeque<CString>,
    phase: Phase,
    /// When the time for resolving and connecting is over.
    connect_by: Instant,
    handshake_time: Duration,
    /// When the present phase is over.
    due: Instant,
}

impl Dial {
    /// A dial that waits for its addresses.
    pub(crate) fn new(now: Instant, connect_time: Duration, handshake_time: Duration) -> Dial {
        let connect_by = now + connect_time;
        Dial { addresses: VecDeque::new(), phase: Phase::Resolving, connect_by, handshake_time, due: connect_by }
    }

    /// When [`Dial::on_time`] must be asked at the latest.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Gives it the addresses, as libzmq takes them.
    pub(crate) fn addresses(&mut self, addresses: impl IntoIterator<Item = CString>) {
        self.addresses.extend(addresses);
    }

    /// The next address, to be dialled on a fresh socket. What time is left is shared among the addresses left, so
    /// that a silent first one does not starve the others.
    pub(crate) fn next_address(&mut self, now: Instant) -> Option<CString> {
        let left = u32::try_from(self.addresses.len()).unwrap_or(u32::MAX);
        let address = self.addresses.pop_front()?;
        self.phase = Phase::Connecting { since: now };
        self.due = now + self.connect_by.saturating_duration_since(now) / left;
        Some(address)
    }

    /// What an event of the present socket means.
    pub(crate) fn on_seen(&mut self, seen: Seen, now: Instant) -> Verdict {
        match seen {
            Seen::Connected(_) => {
                self.phase = Phase::Handshaking;
                self.due = now + self.handshake_time;
                Verdict::Wait
            }
            Seen::Ready => Verdict::Ready,
            Seen::Closed => {
                // libzmq does not say why. A refusal comes back in one round trip; what is unreachable is known
                // after the kernel has asked for its address for a second or more.
                let quick = matches!(self.phase, Phase::Connecting { since } if now < since + Duration::from_secs(1));
                if quick {
                    self.failed(now, libc::ECONNREFUSED, "connection refused or no route")
                } else {
                    self.failed(now, libc::EHOSTUNREACH, "host unreachable, or it did not answer in time")
                }
            }
            Seen::HandshakeFailed(errno) => {
                self.failed(now, errno, "the ZMTP handshake failed: the peer closed or stayed silent")
            }
            Seen::WrongPeer => {
                self.failed(now, libc::EPROTO, "wrong peer: what listens there is not a ZeroMQ PULL socket")
            }
            Seen::NotAuthorised => self.failed(now, libc::EACCES, "the peer refused our credentials"),
            Seen::Disconnected => {
                self.failed(now, libc::ECONNRESET, "the peer closed the connection during the ZMTP handshake")
            }
            Seen::Reaped => Verdict::Wait,
        }
    }

    /// What the passing of time means.
    pub(crate) fn on_time(&mut self, now: Instant) -> Verdict {
        if now < self.due {
            return Verdict::Wait;
        }
        let what = match self.phase {
            Phase::Resolving => "the name was not resolved within connect_timeout_ms",
            Phase::Connecting { .. } => "no answer within connect_timeout_ms",
            Phase::Handshaking => {
                "no ZMTP handshake within handshake_timeout_ms: the peer is stuck, or is not a ZeroMQ PULL socket"
            }
        };
        self.failed(now, libc::ETIMEDOUT, what)
    }

    /// This address, or the look-up, failed.
    pub(crate) fn failed(&mut self, now: Instant, os_errno: i32, message: &str) -> Verdict {
        if !self.addresses.is_empty() && now < self.connect_by {
            return Verdict::TryNext;
        }
        Verdict::Failed(DialFailure { os_errno, message: message.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn dial(addresses: &[&str]) -> (Dial, Instant) {
        let now = Instant::now();
        let mut dial = Dial::new(now, 4 * SECOND, SECOND);
        dial.addresses(addresses.iter().map(|a| CString::new(*a).unwrap()));
        (dial, now)
    }

    #[test]
    fn the_second_address_gets_its_turn_and_the_time_that_is_left() {
        let (mut dial, now) = dial(&["a", "b"]);
        assert_eq!(dial.next_address(now).unwrap().to_str(), Ok("a"));
        assert_eq!(dial.due(), now + 2 * SECOND);
        assert_eq!(dial.on_time(now + 2 * SECOND), Verdict::TryNext);
        assert_eq!(dial.next_address(now + 2 * SECOND).unwrap().to_str(), Ok("b"));
        assert_eq!(dial.due(), now + 4 * SECOND);
        assert!(matches!(dial.on_seen(Seen::Closed, now + 3 * SECOND), Verdict::Failed(_)));
    }

    #[test]
    fn the_handshake_has_a_time_of_its_own() {
        let (mut dial, now) = dial(&["a"]);
        dial.next_address(now);
        assert_eq!(dial.on_seen(Seen::Connected(5), now + 3 * SECOND), Verdict::Wait);
        assert_eq!(dial.due(), now + 4 * SECOND);
        let Verdict::Failed(failure) = dial.on_time(dial.due()) else { panic!("still going") };
        assert_eq!(failure.os_errno, libc::ETIMEDOUT);
        assert!(failure.message.contains("handshake"));
    }

    #[test]
    fn no_address_is_tried_when_the_time_is_over() {
        let (mut dial, now) = dial(&["a", "b"]);
        dial.next_address(now);
        assert!(matches!(dial.on_seen(Seen::Closed, now + 5 * SECOND), Verdict::Failed(_)));
    }

    #[test]
    fn a_name_that_does_not_resolve_in_time_fails() {
        let (mut dial, now) = dial(&[]);
        assert_eq!(dial.on_time(now + SECOND), Verdict::Wait);
        assert!(matches!(dial.on_time(now + 4 * SECOND), Verdict::Failed(_)));
    }
}
