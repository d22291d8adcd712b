//! What a connection's lock guards: its state, its socket, its counts.

pub(super) mod progress;
mod sending;

use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::acknowledgement::account::Account;
use super::acknowledgement::buffers::BuffersInFlight;
use super::acknowledgement::ledger::Mechanism;
use super::end::{End, Finished};
use super::socket::PushSocket;
use super::socket_watcher::SocketWatcher;
use super::state::{EndReason, State, Transition};
use super::timeouts::{PeerTimeouts, longest_unanswered};
use crate::budget::bytes::Reservation;
use crate::connection::acknowledgement::tcp_info;
use crate::delivery::{Delivery, EndedBy};
use crate::error::{Error, Status};
use crate::events::{Event, EventKind, Events};
use crate::ids::{AttemptId, ConnId};
use crate::net::endpoint::Endpoint;
use crate::options::{Key, Values};
use crate::sys::clock::Coarse;
use crate::sys::wake::EventFd;

/// What a connection's lock guards. What every message needs comes first, and is close together.
#[repr(C)]
pub(crate) struct ConnectionInner {
    conn: ConnId,
    pub(super) state: State,
    /// A caller waits, or has waited, for its dial.
    hurried: bool,
    /// The pipe died within a message: nothing may be handed to libzmq any more.
    dead: bool,
    /// A sender has the socket, and hands over a long message without the lock.
    handing_over: bool,
    /// The queue was full when a message was last tried.
    full: bool,
    /// The last message tried did not fit into the budget. No descriptor becomes readable when it does.
    over_budget: bool,
    /// The watcher checks its progress, because something is in flight.
    progress_watched: bool,
    /// The kernel's patience is that for messages in flight. It stays so while messages follow each other closely.
    is_patience_in_flight: bool,
    /// The watcher looks again whether the kernel's patience can be that of an idle connection.
    settles: bool,
    /// STALLED was raised, and RECOVERED was not yet.
    pub(super) stalled: bool,
    /// Set when it drains: accepted messages are still sent, new ones are refused.
    draining: Option<Draining>,
    /// The present dial attempt. `None` once the connection has ended and no thread uses it, and while a long message
    /// is handed over.
    socket: Option<(AttemptId, PushSocket)>,
    account: Account,
    endpoint: Endpoint,
    /// When its dial began.
    dialled: Instant,
    pub(super) ready_at: Option<Instant>,
    pub(super) end: Option<End>,
    /// Whether it has ended, for the sender of a long message.
    ended: Arc<AtomicBool>,
    /// The final counts, once it has ended.
    delivery: Delivery,
    /// Zero-copy buffers in flight.
    in_flight: Arc<BuffersInFlight>,
    /// When a byte was last acknowledged or, where acknowledgements are unknown, freed by libzmq.
    progress: Coarse,
    /// The longest timeout of a send that ran out since then, and when it did.
    ran_out: Option<(Duration, Instant)>,
    stall_time: Duration,
    timeouts: PeerTimeouts,
    /// Wakes the polling head. Made when a thread first polls.
    wake: Option<Arc<EventFd>>,
    events: Arc<Events>,
    watcher: Arc<dyn SocketWatcher>,
}

/// Why a connection refuses messages while it sends those that it has accepted.
#[derive(Clone, Copy)]
pub(crate) enum Draining {
    /// `kvconn_disconnect_all` waits for them.
    Disconnecting,
    /// `kvconn_shutdown` waits for them.
    ShuttingDown,
}

impl Draining {
    /// What a send is told.
    fn status(self) -> (Status, &'static str) {
        match self {
            Draining::Disconnecting => (Status::Disconnected, "being flushed by kvconn_disconnect_all"),
            Draining::ShuttingDown => (Status::Shutdown, "kvconn_shutdown was called"),
        }
    }
}

/// The text when a send finds the pipe dead before the watcher reports it.
pub(super) const DEAD_PIPE: &str = "the peer is gone: its pipe died within a message";

/// What a READY connection's end by its peer means. `None` where the kernel does not tell.
fn how_the_peer_left(ended_by: EndedBy) -> Option<&'static str> {
    match ended_by {
        EndedBy::Fin => Some("the peer is gone: it closed the connection, exited or was killed (FIN)"),
        EndedBy::Reset => Some("the peer is gone: it reset the connection, exited or was killed (RESET)"),
        EndedBy::Timeout => Some("the peer is gone: no answer from its host (TIMEOUT)"),
        EndedBy::Local | EndedBy::Unknown => None,
    }
}

impl ConnectionInner {
    /// The bytes at its beginning that every message needs.
    pub(super) const EVERY_MESSAGE: usize = offset_of!(ConnectionInner, account) + Account::EVERY_MESSAGE;

    pub(super) fn new(
        conn: ConnId,
        endpoint: Endpoint,
        values: &Values,
        attempt: (AttemptId, PushSocket),
        events: Arc<Events>,
        (watcher, reservation): (Arc<dyn SocketWatcher>, Reservation),
    ) -> ConnectionInner {
        ConnectionInner {
            conn,
            endpoint,
            dialled: Instant::now(),
            state: State::Connecting,
            ready_at: None,
            end: None,
            socket: Some(attempt),
            handing_over: false,
            ended: Arc::default(),
            account: Account::new(values, reservation),
            delivery: Delivery { accepted: 0, acknowledged: Some(0), ended_by: EndedBy::Unknown },
            full: false,
            over_budget: false,
            in_flight: BuffersInFlight::new(),
            progress: Coarse::now(),
            ran_out: None,
            hurried: false,
            dead: false,
            draining: None,
            stalled: false,
            stall_time: values.ms(Key::StallMs),
            progress_watched: false,
            is_patience_in_flight: false,
            settles: false,
            timeouts: PeerTimeouts::new(values),
            wake: None,
            events,
            watcher,
        }
    }

    /// The handshake has succeeded. Returns false if the connection has ended already. `tcp` is our descriptor for its
    /// TCP connection, if it has one.
    pub(crate) fn ready(&mut self, tcp: Option<OwnedFd>) -> bool {
        let next = self.state.after(Transition::HandshakeDone);
        if next == self.state {
            return false;
        }
        self.state = next;
        self.ready_at = Some(Instant::now());
        self.progress = Coarse::now();
        self.account.begin(tcp);
        if let Some(tcp) = self.account.tcp() {
            self.timeouts.while_idle(tcp);
        }
        self.raise(Event::new(EventKind::Ready, ""));
        true
    }

    /// Marks the end. `None` if it had ended before, or if it was to be evicted and is not idle.
    pub(super) fn finish(&mut self, mut end: End) -> Option<Finished> {
        let State::Ended(ending) = self.state.after(end.transition) else { return None };
        if matches!(self.state, State::Ended(_)) || ending == EndReason::Evicted && self.idle().is_none() {
            return None;
        }
        let pending = self.take_final_delivery(ending, end.os_errno);
        if end.os_errno == 0 && ending == EndReason::PeerLost {
            end.os_errno = match (pending, self.delivery.ended_by) {
                (0, EndedBy::Fin) => libc::EPIPE,
                (0, EndedBy::Timeout) => libc::ETIMEDOUT,
                (0, _) => libc::ECONNRESET,
                (os_errno, _) => os_errno,
            };
        }
        if ending == EndReason::PeerLost
            && let Some(how) = how_the_peer_left(self.delivery.ended_by)
        {
            let within = if end.message == DEAD_PIPE { "; its pipe died within a message" } else { "" };
            end.message = match end.os_errno {
                libc::EPIPE | libc::ECONNRESET | libc::ETIMEDOUT => format!("{how}{within}"),
                os_errno => format!("{how}: {}{within}", std::io::Error::from_raw_os_error(os_errno)),
            };
        }
        self.state = State::Ended(ending);
        self.ended.store(true, Ordering::Relaxed);
        self.account.close();
        self.in_flight.ended(self.delivery);
        let event = Event::new(ending.event(), end.message.clone()).status(ending.status()).errno(end.os_errno);
        self.raise(event.count(self.delivery.accepted));
        let ready_for = self.ready_at.map(|at| end.at.saturating_duration_since(at));
        let os_errno = end.os_errno;
        self.end = Some(end);
        Some(Finished { ending, delivery: self.delivery, os_errno, ready_for })
    }

    /// The errno of a connection that the kernel reports as hung up, 0 if the peer has closed it. `None`: libzmq has
    /// taken the errno, and its monitor is about to report it.
    pub(crate) fn hang_up(&self) -> Option<i32> {
        let Some(tcp) = self.account.tcp() else { return Some(0) };
        let pending = tcp_info::take_error(tcp);
        let dead = || tcp_info::read(tcp).is_ok_and(|info| info.is_closed());
        if pending == 0 && dead() { None } else { Some(pending) }
    }

    /// Takes the final counts: asks the kernel for the last time. Returns the errno that is known already, or else the
    /// socket's pending error; 0 if there is none, or libzmq has taken it.
    fn take_final_delivery(&mut self, ending: EndReason, known: i32) -> i32 {
        let mut pending = known;
        let by_peer = matches!(ending, EndReason::ConnectFailed | EndReason::PeerLost);
        if !by_peer && self.account.is_settled() {
            // The kernel has nothing to add. Not asking it saves most of the time of ending an idle connection.
            let (accepted, acknowledged) = (self.account.accepted(), self.account.acknowledged());
            self.delivery = Delivery { accepted, acknowledged, ended_by: EndedBy::Local };
            return pending;
        }
        let (in_flight, unanswered) = (self.progress_watched, self.progress.elapsed());
        let update = self.account.refresh();
        if update.progress {
            self.note_progress();
        }
        let ended_by = match (by_peer, update.info, self.account.tcp()) {
            (true, Some(info), Some(tcp)) => {
                let silent = if in_flight && !update.progress {
                    longest_unanswered(unanswered, info.silent, self.first_check())
                } else {
                    info.silent
                };
                let out_of_time = self.timeouts.can_be_over(in_flight, silent, info.round_trip);
                if pending == 0 {
                    pending = tcp_info::take_error(tcp);
                }
                info.ended_by(pending, out_of_time)
            }
            (true, ..) => EndedBy::Unknown,
            (false, ..) => EndedBy::Local,
        };
        let (accepted, acknowledged) = (self.account.accepted(), self.account.acknowledged());
        self.delivery = Delivery { accepted, acknowledged, ended_by };
        pending
    }

    /// Updates what is known about its progress. An ended connection makes none.
    fn refresh(&mut self) {
        if !matches!(self.state, State::Ended(_)) && self.account.refresh().progress {
            self.note_progress();
        }
    }

    /// Why it ended. Empty while it lives.
    pub(crate) fn end_text(&self) -> &str {
        self.end.as_ref().map_or("", |end| &end.message)
    }

    /// Bytes on the wire that are in flight.
    pub(super) fn queued(&self) -> u64 {
        self.account.queued()
    }

    /// Whether this is the connection with this id.
    #[inline(always)]
    pub(crate) fn is(&self, conn: ConnId) -> bool {
        self.conn == conn
    }

    /// What a zero-copy message needs.
    pub(super) fn tracking(&self) -> (Arc<BuffersInFlight>, Arc<AtomicU64>, Mechanism) {
        let (mechanism, freed) = self.account.tracking();
        (self.in_flight.clone(), freed, mechanism)
    }

    /// The counts, after an update.
    pub(crate) fn delivery(&mut self) -> Delivery {
        self.refresh();
        self.known_delivery()
    }

    /// The counts as of the last update.
    pub(super) fn known_delivery(&self) -> Delivery {
        if matches!(self.state, State::Ended(_)) {
            return self.delivery;
        }
        let (accepted, acknowledged) = (self.account.accepted(), self.account.acknowledged());
        Delivery { accepted, acknowledged, ended_by: EndedBy::Unknown }
    }

    /// From now on nothing is accepted. Accepted messages are still sent.
    pub(super) fn drain(&mut self, why: Draining) {
        self.draining = Some(why);
    }

    /// Whether this is the present dial attempt.
    pub(crate) fn has_attempt(&self, attempt: AttemptId) -> bool {
        self.socket.as_ref().is_some_and(|(present, _)| *present == attempt)
    }

    /// The socket of the present dial attempt.
    pub(crate) fn socket(&self) -> Option<&PushSocket> {
        self.socket.as_ref().map(|(_, push)| push)
    }

    /// Replaces the present dial attempt and returns it. Returns the new socket as an error if the connection has
    /// ended.
    pub(crate) fn replace_attempt(
        &mut self,
        attempt: AttemptId,
        push: PushSocket,
    ) -> std::result::Result<(AttemptId, PushSocket), PushSocket> {
        match self.socket.take() {
            Some(old) => {
                self.socket = Some((attempt, push));
                Ok(old)
            }
            None => Err(push),
        }
    }

    /// A caller waits for its dial.
    pub(super) fn hurry(&mut self) {
        if self.state == State::Connecting
            && !std::mem::replace(&mut self.hurried, true)
            && let Some((attempt, _)) = &self.socket
        {
            self.watcher.hurry(*attempt);
        }
    }

    /// Whether a caller waits, or has waited, for its dial.
    pub(crate) fn is_hurried(&self) -> bool {
        self.hurried
    }

    /// Returns the bytes of the process's budget that it does not need.
    pub(crate) fn give_back(&mut self) {
        self.refresh();
        self.account.give_back();
    }

    fn raise(&self, event: Event) {
        self.events.push(event.conn(self.conn, &self.endpoint).delivery(self.known_delivery()));
    }

    fn error(&self, status: Status, os_errno: i32, text: &str) -> Error {
        Error::new(status, text).errno(os_errno).about(self.conn).at(&self.endpoint)
    }
}
