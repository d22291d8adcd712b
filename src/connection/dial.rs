//! One dial: every address of an endpoint, in order, until one shakes hands or the time is over. It is told what
//! happens and says what to do.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::io;
use std::time::{Duration, Instant};

use super::handshake::{Heard, why, why_silent};
use super::socket::Seen;
use crate::options::{Key, Values};

/// Why a dial, or its last address, failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DialFailure {
    /// errno, as near as it can be told: libzmq gives none for a failed connect.
    pub(crate) os_errno: i32,
    /// One line.
    pub(crate) message: String,
}

/// An address as libzmq takes it, or why it cannot be dialled.
pub(crate) type Way = Result<CString, DialFailure>;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on waiting, until [`Dial::due`] at the latest.
    Wait,
    /// This address failed; try [`Dial::next_address`] on a fresh socket.
    TryNext,
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
    /// The first address that cannot be dialled as the options ask.
    passed_over: Option<DialFailure>,
    /// An address has been dialled.
    tried: bool,
    /// CURVE is asked for.
    curve: bool,
    /// It may have a descriptor of its own.
    listens: bool,
    /// The address being dialled.
    address: Option<CString>,
    /// How much came from there, once it is connected.
    heard: Option<Heard>,
    phase: Phase,
    /// When the time for resolving and connecting is over.
    connect_by: Instant,
    handshake_time: Duration,
    /// When the present phase is over.
    due: Instant,
}

impl Dial {
    /// A dial that waits for its addresses.
    pub(crate) fn new(now: Instant, values: &Values) -> Dial {
        let connect_by = now + values.ms(Key::ConnectTimeoutMs);
        Dial {
            addresses: VecDeque::new(),
            passed_over: None,
            tried: false,
            curve: values.is_curve(),
            listens: values.acknowledgement(),
            address: None,
            heard: None,
            phase: Phase::Resolving,
            connect_by,
            handshake_time: values.ms(Key::HandshakeTimeoutMs),
            due: connect_by,
        }
    }

    /// When [`Dial::on_time`] must be asked at the latest.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Gives it the addresses. Those that cannot be dialled are passed over.
    pub(crate) fn addresses(&mut self, ways: impl IntoIterator<Item = Way>) {
        for way in ways {
            match way {
                Ok(address) => self.addresses.push_back(address),
                Err(failure) => drop(self.passed_over.get_or_insert(failure)),
            }
        }
    }

    /// The next address, to be dialled on a fresh socket. What time is left is shared among the addresses left, so
    /// that a silent first one does not starve the others.
    pub(crate) fn next_address(&mut self, now: Instant) -> Option<CString> {
        let left = u32::try_from(self.addresses.len()).unwrap_or(u32::MAX);
        let address = self.addresses.pop_front()?;
        self.tried = true;
        self.address = Some(address.clone());
        self.heard = None;
        self.phase = Phase::Connecting { since: now };
        self.due = now + self.connect_by.saturating_duration_since(now) / left;
        Some(address)
    }

    /// What an event of the present socket means.
    pub(crate) fn on_seen(&mut self, seen: Seen, now: Instant) -> Verdict {
        match seen {
            Seen::Connected(fd) => {
                let address = self.address.as_deref().filter(|_| self.listens);
                self.heard = address.and_then(|address| Heard::new(fd, address));
                self.phase = Phase::Handshaking;
                self.due = now + self.handshake_time;
                Verdict::Wait
            }
            Seen::Closed(errno) if errno != 0 && errno != libc::ECONNREFUSED => {
                self.failed(now, errno, &io::Error::from_raw_os_error(errno).to_string())
            }
            Seen::Closed(_) => {
                // libzmq does not say why. The file of a Unix socket does.
                if let Some(failure) = self.address.as_deref().and_then(why_no_file) {
                    return self.failed(now, failure.os_errno, &failure.message);
                }
                // A refusal comes back in one round trip; what is unreachable is known
                // after the kernel has asked for its address for a second or more.
                let quick = matches!(self.phase, Phase::Connecting { since } if now < since + Duration::from_secs(1));
                if quick {
                    self.failed(now, libc::ECONNREFUSED, "connection refused or no route")
                } else {
                    self.failed(now, libc::EHOSTUNREACH, "host unreachable, or it did not answer in time")
                }
            }
            Seen::HandshakeFailed(_) | Seen::Disconnected(_) | Seen::WrongPeer(_) | Seen::NotAuthorised(_) => {
                let failure = why(seen, self.curve, self.heard_bytes());
                self.failed(now, failure.os_errno, &failure.message)
            }
            Seen::Ready | Seen::Reaped => Verdict::Wait,
        }
    }

    fn heard_bytes(&self) -> Option<u64> {
        self.heard.as_ref().and_then(Heard::bytes)
    }

    /// What the passing of time means.
    pub(crate) fn on_time(&mut self, now: Instant) -> Verdict {
        if now < self.due {
            return Verdict::Wait;
        }
        let what = match self.phase {
            Phase::Resolving => "the name was not resolved within connect_timeout_ms",
            Phase::Connecting { .. } => "no answer within connect_timeout_ms",
            Phase::Handshaking => why_silent(self.curve, self.heard_bytes()),
        };
        self.failed(now, libc::ETIMEDOUT, what)
    }

    /// This address, or the look-up, failed.
    pub(crate) fn failed(&mut self, now: Instant, os_errno: i32, message: &str) -> Verdict {
        if !self.addresses.is_empty() && now < self.connect_by {
            return Verdict::TryNext;
        }
        Verdict::Failed(match self.passed_over.take() {
            None => DialFailure { os_errno, message: message.to_owned() },
            Some(failure) if !self.tried => failure,
            Some(other) => DialFailure { os_errno, message: format!("{message}; {}", other.message) },
        })
    }
}

/// Why a Unix socket cannot be connected, when it is its file.
fn why_no_file(address: &CStr) -> Option<DialFailure> {
    let path = address.to_bytes().strip_prefix(b"ipc://").filter(|path| !path.starts_with(b"@"))?;
    let path = CString::new(path).ok()?;
    // SAFETY: the path ends with NUL.
    if unsafe { libc::access(path.as_ptr(), libc::W_OK) } == 0 {
        return None;
    }
    let error = io::Error::last_os_error();
    Some(DialFailure {
        os_errno: error.raw_os_error()?,
        message: format!("no socket that can be used at this path: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn dial(addresses: &[&str]) -> (Dial, Instant) {
        let now = Instant::now();
        let values = [("KVCONN_CONNECT_TIMEOUT_MS", "4000"), ("KVCONN_HANDSHAKE_TIMEOUT_MS", "1000")];
        let find = |name: &str| values.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let mut dial = Dial::new(now, &Values::from_environment(find).unwrap());
        dial.addresses(addresses.iter().map(|a| Ok(CString::new(*a).unwrap())));
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
        assert!(matches!(dial.on_seen(Seen::Closed(0), now + 3 * SECOND), Verdict::Failed(_)));
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
        assert!(matches!(dial.on_seen(Seen::Closed(0), now + 5 * SECOND), Verdict::Failed(_)));
    }

    #[test]
    fn a_name_that_does_not_resolve_in_time_fails() {
        let (mut dial, now) = dial(&[]);
        assert_eq!(dial.on_time(now + SECOND), Verdict::Wait);
        assert!(matches!(dial.on_time(now + 4 * SECOND), Verdict::Failed(_)));
    }

    #[test]
    fn an_address_that_cannot_be_dialled_is_passed_over_and_named_at_the_end() {
        let misfit = || Err(DialFailure { os_errno: libc::EAFNOSUPPORT, message: "no fit".into() });
        let (mut one, now) = dial(&[]);
        one.addresses([misfit(), Ok(c"a".into())]);
        assert_eq!(one.next_address(now).unwrap().to_str(), Ok("a"));
        let Verdict::Failed(failure) = one.failed(now, libc::ECONNREFUSED, "refused") else { panic!("still going") };
        assert_eq!((failure.os_errno, &*failure.message), (libc::ECONNREFUSED, "refused; no fit"));
        // None fits: that is all there is to say.
        let (mut none, now) = dial(&[]);
        none.addresses([misfit()]);
        assert!(none.next_address(now).is_none());
        let Verdict::Failed(failure) = none.failed(now, 0, "no address") else { panic!("still going") };
        assert_eq!((failure.os_errno, &*failure.message), (libc::EAFNOSUPPORT, "no fit"));
    }
}
