//! What a connection's lock guards: its state, its socket, its counts.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::acknowledgement::account::{Account, Room};
use super::acknowledgement::buffers::BuffersInFlight;
use super::acknowledgement::ledger::Mechanism;
use super::end::{End, Finished};
use super::gate::wait_source::SocketWaitSource;
use super::gate::{Channel, Patience, Tried};
use super::handover::Handover;
use super::owner::SocketWatcher;
use super::socket::{PushSocket, Sent};
use super::state::{EndReason, State, Transition};
use super::timeouts::PeerTimeouts;
use crate::budget::bytes::Reservation;
use crate::connection::acknowledgement::tcp_info;
use crate::connection::message::{Message, ShortMessage};
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
    /// STALLED was raised, and RECOVERED was not yet.
    pub(super) stalled: bool,
    /// Set when it drains: accepted messages are still sent, new ones are refused with this status and text.
    draining: Option<(Status, &'static str)>,
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

type TriedMessage = Tried<u64, Error, Handover>;

/// The text when a send finds the pipe dead before the watcher reports it.
pub(super) const DEAD_PIPE: &str = "the peer is gone: its pipe died within a message";

/// The text when a send without room finds that the peer is gone, before the watcher reports it.
const NO_PEER: &str = "the peer is gone";

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
        let (in_flight, unanswered) = (self.progress_watched, self.progress.elapsed());
        let update = self.account.refresh();
        if update.progress {
            self.note_progress();
        }
        let ended_by = match (ending, update.info, self.account.tcp()) {
            (EndReason::ConnectFailed | EndReason::PeerLost, Some(info), Some(tcp)) => {
                let silent = if in_flight { unanswered } else { info.silent };
                let out_of_time = self.timeouts.can_be_over(in_flight, silent, info.round_trip);
                if pending == 0 {
                    pending = tcp_info::take_error(tcp);
                }
                info.ended_by(pending, out_of_time)
            }
            (EndReason::ConnectFailed | EndReason::PeerLost, ..) => EndedBy::Unknown,
            _ => EndedBy::Local,
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
    pub(crate) fn end_message(&self) -> String {
        self.end.as_ref().map_or_else(String::new, |end| end.message.clone())
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

    /// Why `bytes` more do not fit into the budgets. `None` if they fit.
    fn over_budget(&mut self, bytes: u64) -> Option<TriedMessage> {
        let (room, progress) = self.account.room(bytes);
        if progress {
            self.note_progress();
        }
        self.over_budget = matches!(room, Room::Full);
        match room {
            Room::Yes => None,
            Room::Full => {
                self.watch_progress(self.check_interval());
                Some(Tried::Full)
            }
            Room::Spent { taken, limit } => {
                let text = format!("max_total_queued_bytes is {limit}, {taken} are queued, {bytes} more do not fit");
                Some(Tried::Refused(self.error(Status::Limit, 0, &text)))
            }
        }
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
    pub(super) fn drain(&mut self, status: Status, text: &'static str) {
        self.draining = Some((status, text));
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

    /// Checks the progress of what is in flight, and raises STALLED or RECOVERED when due. Returns the time until the
    /// next check; `None` when nothing is in flight.
    pub(crate) fn check_stall(&mut self) -> Option<Duration> {
        if self.state != State::Ready {
            return None;
        }
        if self.account.refresh_at_rest().progress {
            self.note_progress();
        }
        let in_flight =
            self.handing_over || self.queued() > 0 || self.full && !self.socket().is_some_and(PushSocket::writable);
        if !in_flight {
            self.progress_watched = false;
            self.account.give_back();
            if let Some(tcp) = self.account.tcp() {
                self.timeouts.while_idle(tcp);
            }
            self.note_progress();
            return None;
        }
        let idle = self.progress.elapsed();
        if idle >= self.stall_time && !self.stalled {
            self.stalled = true;
            let text = format!("nothing in flight has made progress for {} ms", idle.as_millis());
            self.raise(Event::new(EventKind::Stalled, text));
        }
        let due = self.stall_time.saturating_sub(idle);
        Some(if due.is_zero() {
            // The longer it has stalled, the less often: RECOVERED is late by a tenth of the stall at most.
            self.check_interval().max((idle / 10).min(Duration::from_secs(1)))
        } else {
            due.clamp(Duration::from_millis(1), self.check_interval())
        })
    }

    /// How long it has been idle: READY, nothing to do, and every accepted message acknowledged. `None` if it is not
    /// idle.
    pub(crate) fn idle(&self) -> Option<Duration> {
        let known = self.account.acknowledged().is_some();
        let idle =
            self.state == State::Ready && known && !self.progress_watched && !self.dead && self.draining.is_none();
        let idle = idle && !self.handing_over;
        idle.then(|| self.progress.elapsed())
    }

    /// How soon the kernel is asked again whether the budget has room. The kernel has no notification for it. The
    /// longer there was no progress, the less often it is asked.
    fn budget_recheck_interval(&self) -> Duration {
        (self.progress.elapsed() / 16).clamp(Duration::from_millis(2), Duration::from_millis(50))
    }

    /// Returns the bytes of the process's budget that it does not need.
    pub(crate) fn give_back(&mut self) {
        self.refresh();
        self.account.give_back();
    }

    /// How often progress is checked while something is in flight. Progress and STALLED are seen at most one check
    /// late.
    fn check_interval(&self) -> Duration {
        (self.stall_time / 10).clamp(Duration::from_millis(5), Duration::from_millis(100))
    }

    /// How long nothing has moved.
    pub(super) fn without_progress(&self) -> Duration {
        self.progress.elapsed()
    }

    /// It has made progress.
    fn note_progress(&mut self) {
        self.full = false;
        self.ran_out = None;
        self.progress = Coarse::now();
        if std::mem::take(&mut self.stalled) {
            self.raise(Event::new(EventKind::Recovered, ""));
        }
    }

    /// A message was accepted.
    fn accept(&mut self, message: &mut Message) -> u64 {
        if self.account.accept(message) {
            self.refresh();
        }
        self.note_accepted();
        self.account.accepted()
    }

    #[inline(always)]
    fn note_accepted(&mut self) {
        self.full = false;
        if !self.progress_watched {
            self.begin_progress();
        }
    }

    /// Nothing was in flight before: patience counts from here.
    #[cold]
    #[inline(never)]
    fn begin_progress(&mut self) {
        self.progress = Coarse::now();
        self.watch_progress(self.check_interval());
    }

    #[cold]
    #[inline(never)]
    fn trim_ledger(&mut self) {
        self.refresh();
    }

    fn watch_progress(&mut self, within: Duration) {
        if !std::mem::replace(&mut self.progress_watched, true) {
            if let Some(tcp) = self.account.tcp() {
                self.timeouts.while_in_flight(tcp);
            }
            self.watcher.check_stall(self.conn, within);
        }
    }

    fn raise(&self, event: Event) {
        self.events.push(event.conn(self.conn, &self.endpoint).delivery(self.known_delivery()));
    }

    /// Whether a send with at least this timeout had run out when this one began, without progress since then. A send
    /// that waited by then goes on: it has a deadline of its own. In whole milliseconds, because kvconn_send_to takes
    /// from its timeout what finding the connection took.
    fn has_waited_in_vain(&self, timeout: Duration, begun: Instant) -> bool {
        self.ran_out
            .is_some_and(|(longest, at)| begun >= at && timeout.as_millis() <= longest.as_nanos().div_ceil(1_000_000))
    }

    /// How long a sender goes on that began at `begun` and found no room. A pipe that has just died has no room either:
    /// the kernel is asked before a sender gives up.
    pub(super) fn patience(&mut self, timeout: Duration, begun: Instant) -> Patience<Error> {
        let patience = self.patience_for_room(timeout, begun);
        let is_over = || self.account.tcp().is_some_and(|tcp| tcp_info::read(tcp).is_ok_and(|info| info.is_over()));
        match patience {
            Patience::Over(_) if self.state == State::Ready && is_over() => {
                Patience::Over(self.error(Status::PeerLost, 0, NO_PEER))
            }
            patience => patience,
        }
    }

    /// The same for a peer that is there. The patience counts from the connection's last progress. It is the sender's
    /// own: a shorter deadline of another thread does not change it.
    fn patience_for_room(&mut self, timeout: Duration, begun: Instant) -> Patience<Error> {
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
                self.hurry();
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
            self.refresh();
        }
        let idle = self.progress.elapsed();
        if idle >= timeout && !timeout.is_zero() {
            let text = format!("full, and no progress for {} ms; not accepted", idle.as_millis());
            return over(Status::Stalled, text);
        }
        if now >= deadline {
            if self.ran_out.is_none_or(|(longest, _)| longest < timeout) {
                self.ran_out = Some((timeout, now));
            }
            // Without a descriptor of ours nothing tells the two apart.
            let or = if self.account.tcp().is_none() { " (full, or the peer has just gone)" } else { "" };
            return over(Status::Timeout, format!("no room within {} ms{or}; not accepted", timeout.as_millis()));
        }
        if self.has_waited_in_vain(timeout, begun) {
            self.refresh();
            if let Some((longest, at)) = self.ran_out {
                let (longest, ago) = (longest.as_millis(), at.elapsed().as_millis());
                let text =
                    format!("no room within the {longest} ms of a send before, and no progress in {ago} ms since");
                return over(Status::Timeout, format!("{text}; not waited again, not accepted"));
            }
        }
        Patience::Until(deadline.min(now + (timeout - idle)))
    }
}

impl Channel for ConnectionInner {
    type Item = Message;
    type Short = ShortMessage;
    type Output = u64;
    type Refusal = Error;
    type WaitSource = SocketWaitSource;
    type Handover = Handover;

    #[inline(always)]
    fn attempt_short(&mut self, message: &mut ShortMessage) -> Option<u64> {
        let open = self.state == State::Ready && !self.dead && !self.handing_over && self.draining.is_none();
        let (_, push) = self.socket.as_ref().filter(|_| open)?;
        let bytes = self.account.room_for_short(message.wire())?;
        match push.send(message.frames_mut()) {
            Sent::Accepted => message.taken(),
            // `attempt` refuses it: some of its frames are gone.
            Sent::Broken => {
                self.dead = true;
                return None;
            }
            Sent::Full | Sent::NoMemory => return None,
        }
        self.over_budget = false;
        if self.account.accept_short(bytes) {
            self.trim_ledger();
        }
        self.note_accepted();
        Some(self.account.accepted())
    }

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
            let text = format!("no memory to track a message: {e}");
            return Tried::Refused(self.error(Status::Limit, libc::ENOMEM, &text));
        }
        let Some((_, push)) = &self.socket else { return Tried::NotYet };
        let is_long = Handover::is_for(message);
        let frames = message.frames_mut();
        let sent = if is_long { push.send_frames(frames, 0..1) } else { push.send(frames) };
        match sent {
            Sent::Accepted if is_long => self.begin_handover(message),
            Sent::Accepted => Tried::Passed(self.accept(message)),
            Sent::Full => {
                self.full = true;
                // The message was not accepted: return what was reserved for it.
                self.account.give_back();
                self.watch_progress(self.check_interval());
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
                // From here on `dead` refuses messages, because libzmq would silently drop their frames. The sender
                // reports the end.
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
            // If no descriptor is left for an eventfd, the head looks again every few milliseconds instead.
            self.wake = EventFd::new().ok().map(Arc::new);
        }
        let wake = self.wake.clone().filter(|_| !has_waker);
        if self.over_budget {
            // libzmq's descriptor says nothing about the budget, and its present signal has not been consumed.
            return SocketWaitSource { socket: -1, wake, look_again: Some(self.budget_recheck_interval()) };
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
