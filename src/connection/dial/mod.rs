//! One dial: every address of an endpoint, in order, until one shakes hands or the time is over. It is told what
//! happens and says what to do.
//!
//! The addresses share `connect_timeout_ms`, for TCP and for the handshake, so that no address uses up the time of
//! another: also one that accepts and says nothing. The last address has `handshake_timeout_ms` for its handshake.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod addresses;
mod handshake;
#[cfg(any(test, fuzzing))]
pub mod model;

use super::socket::MonitorEvent;
use crate::net::route::RouteError;
use crate::options::{Key, Values};
use addresses::AddressFailure;
pub(crate) use addresses::AddressHistory;
use handshake::{HandshakeBytes, why, why_silent};

/// Why a dial, or its last address, failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DialFailure {
    /// errno of the system call that failed, or what stands for it. Never 0.
    pub(crate) os_errno: i32,
    /// One line.
    pub(crate) message: String,
}

impl From<RouteError> for DialFailure {
    fn from(error: RouteError) -> DialFailure {
        DialFailure { os_errno: error.os_errno, message: error.message }
    }
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
    Connecting,
    /// Waiting for the ZMTP handshake.
    Handshaking,
}

/// The dial's progress.
pub(crate) struct Dial {
    addresses: VecDeque<CString>,
    history: Arc<AddressHistory>,
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
    received: Option<HandshakeBytes>,
    phase: Phase,
    /// When the time for resolving and connecting is over.
    connect_by: Instant,
    handshake_time: Duration,
    /// When the present phase is over.
    due: Instant,
}

impl Dial {
    /// A dial that waits for its addresses.
    pub(crate) fn new(now: Instant, values: &Values, history: Arc<AddressHistory>) -> Dial {
        let connect_by = now + values.ms(Key::ConnectTimeoutMs);
        Dial {
            addresses: VecDeque::new(),
            history,
            passed_over: None,
            tried: false,
            curve: values.is_curve(),
            listens: values.acknowledgement(),
            address: None,
            received: None,
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
        let mut usable = Vec::new();
        for way in ways {
            match way {
                Ok(address) => usable.push(address),
                Err(failure) => drop(self.passed_over.get_or_insert(failure)),
            }
        }
        self.addresses = self.history.in_order(usable);
    }

    /// It has waited for its turn since its addresses were known. That time is not its own.
    pub(crate) fn waited(&mut self, time: Duration) {
        self.connect_by += time;
    }

    /// The next address, to be dialled on a fresh socket. What time is left is shared among the addresses left.
    pub(crate) fn next_address(&mut self, now: Instant) -> Option<CString> {
        let left = u32::try_from(self.addresses.len()).unwrap_or(u32::MAX);
        let address = self.addresses.pop_front()?;
        self.tried = true;
        self.address = Some(address.clone());
        self.received = None;
        self.phase = Phase::Connecting;
        self.due = now + self.connect_by.saturating_duration_since(now) / left;
        Some(address)
    }

    /// What an event of the present socket means.
    pub(crate) fn on_seen(&mut self, event: MonitorEvent, now: Instant) -> Verdict {
        match event {
            MonitorEvent::Connected(fd) => {
                let address = self.address.as_deref().filter(|_| self.listens);
                self.received = address.and_then(|address| HandshakeBytes::new(fd, address));
                self.phase = Phase::Handshaking;
                let handshake_by = now + self.handshake_time;
                // The others need what is left of the time.
                self.due = if self.addresses.is_empty() { handshake_by } else { handshake_by.min(self.due) };
                Verdict::Wait
            }
            MonitorEvent::Closed(os_errno) => self.failed(now, os_errno, &errno_text(os_errno)),
            MonitorEvent::HandshakeFailed(_)
            | MonitorEvent::Disconnected(_)
            | MonitorEvent::WrongPeer(_)
            | MonitorEvent::NotAuthorised(_) => {
                let failure = why(event, self.curve, self.heard_bytes());
                self.failed(now, failure.os_errno, &failure.message)
            }
            MonitorEvent::TakenUp | MonitorEvent::Ready | MonitorEvent::OptionRefused { .. } | MonitorEvent::Reaped => {
                Verdict::Wait
            }
        }
    }

    fn heard_bytes(&self) -> Option<u64> {
        self.received.as_ref().and_then(HandshakeBytes::bytes)
    }

    /// What the passing of time means. `waits_behind` says how many look-ups keep the name waiting for a resolver
    /// thread, if any do.
    pub(crate) fn on_time(&mut self, now: Instant, waits_behind: impl FnOnce() -> Option<usize>) -> Verdict {
        if now < self.due {
            return Verdict::Wait;
        }
        let what = match self.phase {
            Phase::Resolving => match waits_behind() {
                None => "the name was not resolved within connect_timeout_ms".to_owned(),
                Some(others) => format!(
                    "the name waited for a resolver thread until connect_timeout_ms was over: {others} other look-ups \
                     have no answer"
                ),
            },
            Phase::Connecting => "no answer within connect_timeout_ms".to_owned(),
            Phase::Handshaking => why_silent(self.curve, self.heard_bytes()).to_owned(),
        };
        self.address_failed(AddressFailure::Slow);
        self.next_or(now, libc::ETIMEDOUT, &what)
    }

    /// The handshake with the present address has succeeded.
    pub(crate) fn succeeded(self) {
        if let Some(address) = &self.address {
            self.history.succeeded(address);
        }
    }

    /// This address, or the look-up, failed.
    pub(crate) fn failed(&mut self, now: Instant, os_errno: i32, message: &str) -> Verdict {
        self.address_failed(AddressFailure::Quick);
        self.next_or(now, os_errno, message)
    }

    fn address_failed(&self, how: AddressFailure) {
        if let Some(address) = &self.address {
            self.history.failed(address, how);
        }
    }

    fn next_or(&mut self, now: Instant, os_errno: i32, message: &str) -> Verdict {
        if !self.addresses.is_empty() && now < self.connect_by {
            return Verdict::TryNext;
        }
        // A failure without an errno is not known to happen.
        let os_errno = if os_errno == 0 { libc::ECONNABORTED } else { os_errno };
        Verdict::Failed(match self.passed_over.take() {
            None => DialFailure { os_errno, message: message.to_owned() },
            Some(failure) if !self.tried => failure,
            Some(other) => DialFailure { os_errno, message: format!("{message}; {}", other.message) },
        })
    }
}

/// The system's text for an errno, which libzmq replaces by its own for some.
fn errno_text(os_errno: i32) -> String {
    let mut text = io::Error::from_raw_os_error(os_errno).to_string();
    if let Some(end) = text.find(" (os error") {
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn dial(addresses: &[&str]) -> (Dial, Instant) {
        let now = Instant::now();
        let values = [("KVCONN_CONNECT_TIMEOUT_MS", "4000"), ("KVCONN_HANDSHAKE_TIMEOUT_MS", "1000")];
        let find = |name: &str| values.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let mut dial = Dial::new(now, &Values::from_environment(find).unwrap(), Arc::default());
        dial.addresses(addresses.iter().map(|a| Ok(CString::new(*a).unwrap())));
        (dial, now)
    }

    /// Found by the fuzz target `monitor`.
    #[test]
    fn connected_without_a_descriptor_is_no_panic() {
        model::monitor_events(&[3, 1, 255, 255, 255, 255, 255, 255, 255, 255, 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// The rules are those of the model.
        #[test]
        fn any_events_are_read_in_order_and_leave_no_dial_astray(script in proptest::collection::vec(any::<u8>(), 0..400)) {
            model::monitor_events(&script);
        }
    }

    #[test]
    fn the_second_address_gets_its_turn_and_the_time_that_is_left() {
        let (mut dial, now) = dial(&["a", "b"]);
        assert_eq!(dial.next_address(now).unwrap().to_str(), Ok("a"));
        assert_eq!(dial.due(), now + 2 * SECOND);
        assert_eq!(dial.on_time(now + 2 * SECOND, || None), Verdict::TryNext);
        assert_eq!(dial.next_address(now + 2 * SECOND).unwrap().to_str(), Ok("b"));
        assert_eq!(dial.due(), now + 4 * SECOND);
        assert!(matches!(dial.on_seen(MonitorEvent::Closed(libc::ECONNREFUSED), now + 3 * SECOND), Verdict::Failed(_)));
    }

    #[test]
    fn the_handshake_has_a_time_of_its_own() {
        let (mut dial, now) = dial(&["a"]);
        dial.next_address(now);
        assert_eq!(dial.on_seen(MonitorEvent::Connected(5), now + 3 * SECOND), Verdict::Wait);
        assert_eq!(dial.due(), now + 4 * SECOND);
        let Verdict::Failed(failure) = dial.on_time(dial.due(), || None) else { panic!("still going") };
        assert_eq!(failure.os_errno, libc::ETIMEDOUT);
        assert!(failure.message.contains("handshake"));
    }

    #[test]
    fn no_address_is_tried_when_the_time_is_over() {
        let (mut dial, now) = dial(&["a", "b"]);
        dial.next_address(now);
        assert!(matches!(dial.on_seen(MonitorEvent::Closed(libc::ECONNREFUSED), now + 5 * SECOND), Verdict::Failed(_)));
    }

    #[test]
    fn a_name_that_does_not_resolve_in_time_fails_and_says_whether_it_had_a_thread() {
        for (waits_behind, says) in [(None, "was not resolved"), (Some(64), "64 other look-ups")] {
            let (mut dial, now) = dial(&[]);
            assert_eq!(dial.on_time(now + SECOND, || waits_behind), Verdict::Wait);
            let Verdict::Failed(failure) = dial.on_time(now + 4 * SECOND, || waits_behind) else {
                panic!("still going")
            };
            assert_eq!(failure.os_errno, libc::ETIMEDOUT);
            assert!(failure.message.contains(says), "{}", failure.message);
        }
    }

    #[test]
    fn a_first_address_that_only_accepts_uses_up_its_share_and_no_more() {
        let (mut dial, now) = dial(&["a", "b"]);
        dial.next_address(now);
        dial.on_seen(MonitorEvent::Connected(-1), now + SECOND * 3 / 2);
        assert_eq!(dial.due(), now + 2 * SECOND, "its share ends before its handshake's time");
        assert_eq!(dial.on_time(now + 2 * SECOND, || None), Verdict::TryNext);
        dial.next_address(now + 2 * SECOND);
        dial.on_seen(MonitorEvent::Connected(-1), now + 4 * SECOND);
        assert_eq!(dial.due(), now + 5 * SECOND, "the last address has the whole time for its handshake");
        let history = dial.history.clone();
        dial.succeeded();
        let order = history.in_order([c"a", c"b"].map(CString::from));
        assert_eq!(order, [c"b", c"a"].map(CString::from));
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
