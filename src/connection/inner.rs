//! What a connection's lock guards: its state, its socket, its counts.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::acknowledgement::account::{Account, Room};
use super::acknowledgement::buffers::BuffersInFlight;
use super::acknowledgement::ledger::Mechanism;
use super::gate::wait_source::SocketWaitSource;
use super::gate::{Channel, Patience, Tried};
use super::handover::Handover;
use super::owner::SocketWatcher;
use super::socket::{PushSocket, Sent};
use super::state::{EndReason, State, Transition};
use super::timeouts::PeerTimeouts;
use crate::budget::bytes::Reservation;
use crate::connection::acknowledgement::tcp_info;
use crate::connection::message::Message;
use crate::delivery::{Delivery, EndedBy};
use crate::error::{Error, Status};
use crate::events::{Event, EventKind, Events};
use crate::ids::{AttemptId, ConnId};
use crate::net::endpoint::Endpoint;
use crate::options::{Key, Values};
use crate::sys::clock::Coarse;
use crate::sys::wake::EventFd;

/// What a connection's lock guards.
pub(crate) struct ConnectionInner {
    conn: ConnId,
    endpoint: Endpoint,
    /// When its dial began.
    dialled: Instant,
    pub(super) state: State,
    pub(super) ready_at: Option<Instant>,
    pub(super) end: Option<End>,
    /// The present line; gone once the connection has ended and nobody uses it, and while a long message is handed over.
    socket: Option<(AttemptId, PushSocket)>,
    /// A sender has the socket, and hands over a long message without the lock.
    handing_over: bool,
    /// Whether it has ended, for that sender.
    ended: Arc<AtomicBool>,
    account: Account,
    /// The final counts, once it has ended.
    delivery: Delivery,
    /// The queue was full at the last attempt.
    full: bool,
    /// The last message that was tried did not fit into the budget. No descriptor tells when it does.
    over_budget: bool,
    /// Buffers that messages have lent.
    in_flight: Arc<BuffersInFlight>,
    /// The last time a byte was acknowledged or, where nobody can tell, let go by libzmq.
    progress: Coarse,
    /// The pipe died within a message: nothing must be handed over any more.
    dead: bool,
    /// What was accepted goes out, and nothing more is.
    draining: Option<(Status, &'static str)>,
    /// STALLED was raised, RECOVERED not yet.
    pub(super) stalled: bool,
    stall_time: Duration,
    /// The watcher looks whether it moves, because something is on the way.
    looked_after: bool,
    timeouts: PeerTimeouts,
    /// Wakes a polling head; made when the first thread polls.
    wake: Option<Arc<EventFd>>,
    events: Arc<Events>,
    watcher: Arc<dyn SocketWatcher>,
}

/// How a connection ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) transition: Transition,
    pub(crate) os_errno: i32,
    pub(crate) message: String,
    /// How long what is accepted may still go out.
    pub(crate) linger: Duration,
    pub(crate) at: Instant,
}

impl End {
    pub(crate) fn new(transition: Transition, message: impl Into<String>) -> End {
        End { transition, os_errno: 0, message: message.into(), linger: Duration::ZERO, at: Instant::now() }
    }

    pub(crate) fn errno(mut self, os_errno: i32) -> End {
        self.os_errno = os_errno;
        self
    }

    pub(crate) fn linger(mut self, time: Duration) -> End {
        self.linger = time;
        self
    }
}

/// What an ending leaves for the cache to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) ending: EndReason,
    pub(crate) delivery: Delivery,
    pub(crate) os_errno: i32,
    /// How long it was READY, when it was.
    pub(crate) ready_for: Option<Duration>,
}

type TriedMessage = Tried<u64, Error, Handover>;

/// What is said when the pipe dies under a send, before the watcher hears of it.
pub(super) const DEAD_PIPE: &str = "the peer is gone: its pipe died within a message";

impl ConnectionInner {
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
            dead: false,
            draining: None,
            stalled: false,
            stall_time: values.ms(Key::StallMs),
            looked_after: false,
            timeouts: PeerTimeouts::new(values),
            wake: None,
            events,
            watcher,
        }
    }

    /// The handshake has succeeded; false when it does not matter any more. `tcp` is a descriptor of ours for its TCP
    /// connection, if it has one.
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

    /// Marks the end; `None` when it had ended before.
    pub(super) fn finish(&mut self, mut end: End) -> Option<Finished> {
        let State::Ended(ending) = self.state.after(end.transition) else { return None };
        if matches!(self.state, State::Ended(_)) || ending == EndReason::Evicted && self.idle().is_none() {
            return None;
        }
        let pending = self.last_look(ending);
        if end.os_errno == 0 && ending == EndReason::PeerLost {
            end.os_errno = match (pending, self.delivery.ended_by) {
                (0, EndedBy::Fin) => libc::EPIPE,
                (0, EndedBy::Timeout) => libc::ETIMEDOUT,
                (0, _) => libc::ECONNRESET,
                (os_errno, _) => os_errno,
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

    /// Takes the counts at the end. Returns the socket's pending error, 0 if there is none or libzmq has taken it.
    fn last_look(&mut self, ending: EndReason) -> i32 {
        let mut pending = 0;
        let (in_flight, unanswered) = (self.looked_after, self.progress.elapsed());
        let look = self.account.look();
        if look.moved {
            self.moves();
        }
        let ended_by = match (ending, look.info, self.account.tcp()) {
            (EndReason::ConnectFailed | EndReason::PeerLost, Some(info), Some(tcp)) => {
                let silent = if in_flight { unanswered } else { info.silent };
                let out_of_time = self.timeouts.can_be_over(in_flight, silent, info.round_trip);
                pending = tcp_info::take_error(tcp);
                info.ended_by(pending, out_of_time)
            }
            (EndReason::ConnectFailed | EndReason::PeerLost, ..) => EndedBy::Unknown,
            _ => EndedBy::Local,
        };
        let (accepted, acknowledged) = (self.account.accepted(), self.account.acknowledged());
        self.delivery = Delivery { accepted, acknowledged, ended_by };
        pending
    }

    /// Looks how far it has come. What has ended does not move any more.
    fn look(&mut self) {
        if !matches!(self.state, State::Ended(_)) && self.account.look().moved {
            self.moves();
        }
    }

    /// Bytes on the wire that are on the way.
    pub(super) fn queued(&self) -> u64 {
        self.account.queued()
    }

    /// What a message of zero-copy buffers needs.
    pub(super) fn tracking(&self) -> (Arc<BuffersInFlight>, Arc<AtomicU64>, Mechanism) {
        let (mechanism, freed) = self.account.tracking();
        (self.in_flight.clone(), freed, mechanism)
    }

    /// What refuses so many bytes more, if anything does.
    fn over_budget(&mut self, bytes: u64) -> Option<TriedMessage> {
        let (room, moved) = self.account.room(bytes);
        if moved {
            self.moves();
        }
        self.over_budget = matches!(room, Room::Full);
        match room {
            Room::Yes => None,
            Room::Full => {
                self.look_after(self.look_every());
                Some(Tried::Full)
            }
            Room::Spent { taken, limit } => {
                let text = format!("max_total_queued_bytes is {limit}, {taken} are queued, {bytes} more do not fit");
                Some(Tried::Refused(self.error(Status::Limit, 0, &text)))
            }
        }
    }

    /// The counts, after another look.
    pub(crate) fn delivery(&mut self) -> Delivery {
        self.look();
        self.known_delivery()
    }

    /// The counts as far as they are known.
    pub(super) fn known_delivery(&self) -> Delivery {
        if matches!(self.state, State::Ended(_)) {
            return self.delivery;
        }
        let (accepted, acknowledged) = (self.account.accepted(), self.account.acknowledged());
        Delivery { accepted, acknowledged, ended_by: EndedBy::Unknown }
    }

    /// From now on nothing is accepted; what was goes out.
    pub(super) fn drain(&mut self, status: Status, text: &'static str) {
        self.draining = Some((status, text));
    }

    /// Whether the present line is this one.
    pub(crate) fn has_attempt(&self, attempt: AttemptId) -> bool {
        self.socket.as_ref().is_some_and(|(present, _)| *present == attempt)
    }

    /// The socket of the present line.
    pub(crate) fn socket(&self) -> Option<&PushSocket> {
        self.socket.as_ref().map(|(_, push)| push)
    }

    /// Another line takes the place of the present one, which is returned; the new one when the life is over.
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

    /// Looks whether what is on the way moves, raising STALLED or RECOVERED when that is due; how long until the next
    /// look, `None` when nothing is on the way.
    pub(crate) fn check_stall(&mut self) -> Option<Duration> {
        if self.state != State::Ready {
            return None;
        }
        if self.account.look_at_rest().moved {
            self.moves();
        }
        let on_the_way =
            self.handing_over || self.queued() > 0 || self.full && !self.socket().is_some_and(PushSocket::writable);
        if !on_the_way {
            self.looked_after = false;
            self.account.give_back();
            if let Some(tcp) = self.account.tcp() {
                self.timeouts.while_idle(tcp);
            }
            self.moves();
            return None;
        }
        let idle = self.progress.elapsed();
        if idle >= self.stall_time && !self.stalled {
            self.stalled = true;
            let text = format!("nothing of what is on the way has moved for {} ms", idle.as_millis());
            self.raise(Event::new(EventKind::Stalled, text));
        }
        let due = self.stall_time.saturating_sub(idle);
        Some(if due.is_zero() { self.look_every() } else { due.clamp(Duration::from_millis(1), self.look_every()) })
    }

    /// How long it has been READY with nothing to do and all that was accepted acknowledged; `None` when that is not so.
    pub(crate) fn idle(&self) -> Option<Duration> {
        let told = self.account.acknowledged().is_some();
        let idle = self.state == State::Ready && told && !self.looked_after && !self.dead && self.draining.is_none();
        let idle = idle && !self.handing_over;
        idle.then(|| self.progress.elapsed())
    }

    /// How soon the kernel is asked again whether the budget has room, for it cannot be asked to tell: the less often, the longer
    /// nothing has moved.
    fn look_at_budget(&self) -> Duration {
        (self.progress.elapsed() / 16).clamp(Duration::from_millis(2), Duration::from_millis(50))
    }

    /// Gives back what it does not need of the process's budget.
    pub(crate) fn give_back(&mut self) {
        self.look();
        self.account.give_back();
    }

    /// How often what is on the way is looked at. Progress is known one look late at the most, and so is STALLED.
    fn look_every(&self) -> Duration {
        (self.stall_time / 10).clamp(Duration::from_millis(5), Duration::from_millis(100))
    }

    /// It makes progress.
    fn moves(&mut self) {
        self.full = false;
        self.progress = Coarse::now();
        if std::mem::take(&mut self.stalled) {
            self.raise(Event::new(EventKind::Recovered, ""));
        }
    }

    /// A message was accepted.
    fn accept(&mut self, message: &mut Message) -> u64 {
        if self.account.accept(message) {
            self.look();
        }
        self.full = false;
        if !self.looked_after {
            // Nothing was on the way: patience counts from here.
            self.progress = Coarse::now();
            self.look_after(self.look_every());
        }
        self.account.accepted()
    }

    fn look_after(&mut self, within: Duration) {
        if !std::mem::replace(&mut self.looked_after, true) {
            if let Some(tcp) = self.account.tcp() {
                self.timeouts.while_in_flight(tcp);
            }
            self.watcher.check_stall(self.conn, within);
        }
    }

    fn raise(&self, event: Event) {
        self.events.push(event.conn(self.conn, &self.endpoint).delivery(self.known_delivery()));
    }

    /// How long a sender that began then and did not get through goes on. Its patience is counted from the connection's
    /// last progress, and it is its own: a short deadline beside it changes nothing.
    pub(super) fn patience(&mut self, timeout: Duration, begun: Instant) -> Patience<Error> {
        let (now, deadline) = (Instant::now(), begun + timeout);
        let (conn, endpoint) = (self.conn, self.endpoint.clone());
        let over = |status, text: String| Patience::Over(Error::new(status, text).about(conn).at(endpoint));
        if self.state == State::Connecting {
            // A dial without an answer is no progress.
            let connecting = begun.saturating_duration_since(self.dialled);
            if connecting >= timeout && !timeout.is_zero() {
                let text = format!("connecting for {} ms without an answer; not accepted", connecting.as_millis());
                return over(Status::Stalled, text);
            }
            if now < deadline {
                return Patience::Until(deadline);
            }
            return over(Status::Timeout, format!("not READY within {} ms; not accepted", timeout.as_millis()));
        }
        if self.handing_over {
            // Not full: another thread hands over a long message, and does not wait.
            if now < deadline {
                return Patience::Until(deadline);
            }
            let text = format!("busy with another thread's long message for {} ms", timeout.as_millis());
            return over(Status::Timeout, format!("{text}; not accepted"));
        }
        if self.progress.elapsed() >= timeout {
            self.look();
        }
        let idle = self.progress.elapsed();
        if idle >= timeout && !timeout.is_zero() {
            let text = format!("full, and nothing has moved for {} ms; not accepted", idle.as_millis());
            return over(Status::Stalled, text);
        }
        if now >= deadline {
            return over(Status::Timeout, format!("no room within {} ms; not accepted", timeout.as_millis()));
        }
        Patience::Until(deadline.min(now + (timeout - idle)))
    }
}

impl Channel for ConnectionInner {
    type Item = Message;
    type Done = u64;
    type Refusal = Error;
    type WaitSource = SocketWaitSource;
    type Handover = Handover;

    fn attempt(&mut self, message: &mut Message) -> TriedMessage {
        if let Some(why) = self.refusal() {
            return Tried::Refused(why);
        }
        if self.state == State::Connecting || self.handing_over {
            return Tried::NotYet;
        }
        if let Some(no) = self.over_budget(self.account.wire_bytes(message)) {
            return no;
        }
        if let Err(e) = self.account.track(message) {
            let text = format!("no memory for the account of a message: {e}");
            return Tried::Refused(self.error(Status::Limit, libc::ENOMEM, &text));
        }
        let Some((_, push)) = &self.socket else { return Tried::NotYet };
        let is_long = Handover::is_for(message);
        let sent = if is_long { push.send_frames(message, 0..1) } else { push.send(message) };
        match sent {
            Sent::Accepted if is_long => self.begin_handover(message),
            Sent::Accepted => Tried::Done(self.accept(message)),
            Sent::Full => {
                self.full = true;
                // What it would have taken of the budget is not taken.
                self.account.give_back();
                self.look_after(self.look_every());
                Tried::Full
            }
            Sent::NoMemory => {
                self.account.give_back();
                Tried::Refused(self.error(
                    Status::Limit,
                    libc::ENOMEM,
                    "no memory to queue one more message; not accepted",
                ))
            }
            Sent::Broken => {
                // From here on the state refuses what libzmq would swallow; the sender reports the end.
                self.dead = true;
                Tried::Refused(self.error(Status::PeerLost, 0, DEAD_PIPE))
            }
        }
    }

    fn hand_over(handover: &mut Handover, message: &mut Message) {
        handover.run(message);
    }

    fn complete(&mut self, handover: Handover, message: &mut Message) -> Result<u64, Error> {
        let (socket, ended) = (handover.socket, self.end.is_some());
        self.handing_over = false;
        self.account.end_handover();
        // What ended meanwhile drops the unfinished message with the socket. What only accepts nothing new accepts this
        // one: it was begun before.
        let is_sent = !ended && !handover.is_broken && socket.1.send_last_frame(message);
        self.socket = Some(socket);
        if is_sent {
            return Ok(self.accept(message));
        }
        self.dead = true;
        Err(self.refusal().unwrap_or_else(|| self.error(Status::PeerLost, 0, DEAD_PIPE)))
    }

    fn refusal(&self) -> Option<Error> {
        match (&self.state, &self.end) {
            (State::Ended(ending), Some(end)) => Some(self.error(ending.status(), end.os_errno, &end.message)),
            (State::Ready, _) if self.dead => Some(self.error(Status::PeerLost, 0, DEAD_PIPE)),
            _ => self.draining.map(|(status, text)| self.error(status, 0, text)),
        }
    }

    fn source(&mut self, has_waker: bool) -> SocketWaitSource {
        const NO_WAKE: Duration = Duration::from_millis(5);
        if self.wake.is_none() && !has_waker {
            // Without a descriptor left for it, the head looks again every few milliseconds instead.
            self.wake = EventFd::new().ok().map(Arc::new);
        }
        let wake = self.wake.clone().filter(|_| !has_waker);
        if self.over_budget {
            // libzmq's descriptor tells nothing of the budget, and nobody has worked off what it tells now.
            return SocketWaitSource { socket: -1, wake, look_again: Some(self.look_at_budget()) };
        }
        let look_again = if wake.is_none() && !has_waker { Some(NO_WAKE) } else { None };
        SocketWaitSource { socket: self.socket().map_or(-1, PushSocket::fd), wake, look_again }
    }

    fn release(&mut self) {
        if self.end.is_none() && !self.dead {
            return; // only draining
        }
        self.wake = None;
        if let Some((attempt, push)) = self.socket.take() {
            push.linger(self.end.as_ref().map_or(Duration::ZERO, |end| end.linger));
            self.watcher.close(attempt, push);
        }
    }
}

impl ConnectionInner {
    /// The first frame of a long message is taken: the sender takes the socket, and goes on without the lock.
    fn begin_handover(&mut self, message: &Message) -> TriedMessage {
        let Some(socket) = self.socket.take() else { return Tried::NotYet };
        self.handing_over = true;
        self.account.begin_handover(message);
        Tried::Begun(Handover::new(socket, self.ended.clone()))
    }

    fn error(&self, status: Status, os_errno: i32, text: &str) -> Error {
        Error::new(status, text).errno(os_errno).about(self.conn).at(&self.endpoint)
    }
}
