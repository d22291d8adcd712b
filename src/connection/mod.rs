//! One connection: one life of one PUSH socket to one endpoint.

pub(crate) mod dial;
pub(crate) mod gate;
pub(crate) mod socket;
pub(crate) mod state;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::clock::Coarse;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result, Status};
use crate::events::{Event, EventKind, Events};
use crate::ids::{ConnId, LineId};
use crate::manager::{Manager, Timeout};
use crate::message::Message;
use crate::options::{Key, Values};
use crate::wake::{EventFd, wait_readable};
use crate::watcher::Watcher;

use gate::{Access, Attempt, Bell, Channel, Gate, Patience};
use socket::{PushSocket, Sent};
pub use state::{Ending, Happening, State};

/// One connection. Kept after its end, without its socket, for as long as the ending is remembered.
pub struct Connection {
    id: ConnId,
    endpoint: Endpoint,
    manager: Arc<Manager>,
    values: Arc<Values>,
    dialled: Instant,
    /// A hint that spares copying a message for a connection that has ended; the truth is behind the gate.
    over: AtomicBool,
    /// Lines that libzmq has not given up yet.
    lines: AtomicUsize,
    gate: Gate<Life>,
}

/// What a connection's lock guards.
pub(crate) struct Life {
    conn: ConnId,
    endpoint: Endpoint,
    state: State,
    ready_at: Option<Instant>,
    end: Option<End>,
    /// The present line; gone once the connection has ended and nobody polls.
    socket: Option<(LineId, PushSocket)>,
    accepted: u64,
    /// The last message accepted, or the last time the queue was seen writable again.
    progress: Coarse,
    /// The queue was full at the last attempt.
    full: bool,
    /// The pipe died within a message: nothing must be handed over any more.
    dead: bool,
    /// STALLED was raised, RECOVERED not yet.
    stalled: bool,
    stall_time: Duration,
    /// Wakes a polling head; made when the first thread polls.
    wake: Option<Arc<EventFd>>,
    events: Arc<Events>,
    watcher: &'static Watcher,
}

/// How a connection ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) happening: Happening,
    pub(crate) os_errno: i32,
    pub(crate) message: String,
    /// How long what is accepted may still go out.
    pub(crate) linger: Duration,
    pub(crate) at: Instant,
}

impl End {
    pub(crate) fn new(happening: Happening, message: impl Into<String>) -> End {
        End { happening, os_errno: 0, message: message.into(), linger: Duration::ZERO, at: Instant::now() }
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

/// The three states a caller sees. Numbers are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ConnectionState {
    /// Being dialled.
    Connecting = 1,
    /// The ZMTP handshake has succeeded.
    Ready = 2,
    /// Over.
    Ended = 3,
}

/// What there is to know of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// The connection.
    pub conn: ConnId,
    /// Its endpoint, canonical.
    pub endpoint: Endpoint,
    /// Where it is in its life.
    pub state: ConnectionState,
    /// OK while it lives, else why it ended.
    pub status: Status,
    /// errno behind the end, or 0.
    pub os_errno: i32,
    /// Messages accepted.
    pub accepted: u64,
    /// Threads waiting in a send.
    pub waiting: u32,
    /// Full, and without progress for `stall_ms`.
    pub stalled: bool,
    /// Since it was dialled.
    pub age: Duration,
    /// How long it was or is READY; zero when it never was.
    pub ready_for: Duration,
    /// Times the gate's safety net caught a lost wake-up. Must be 0.
    pub rescues: u64,
    /// Why it ended, empty while it lives.
    pub message: String,
}

impl Connection {
    pub(crate) fn new(
        endpoint: Endpoint,
        manager: Arc<Manager>,
        values: Arc<Values>,
        (line, push): (LineId, PushSocket),
        watcher: &'static Watcher,
    ) -> Arc<Connection> {
        let id = ConnId::fresh();
        let life = Life {
            conn: id,
            endpoint: endpoint.clone(),
            state: State::Connecting,
            ready_at: None,
            end: None,
            socket: Some((line, push)),
            accepted: 0,
            progress: Coarse::now(),
            full: false,
            dead: false,
            stalled: false,
            stall_time: values.ms(Key::StallMs),
            wake: None,
            events: manager.events().clone(),
            watcher,
        };
        Arc::new(Connection {
            id,
            endpoint,
            manager,
            values,
            dialled: Instant::now(),
            over: AtomicBool::new(false),
            lines: AtomicUsize::new(1),
            gate: Gate::new(life),
        })
    }

    /// Its id.
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Its endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    pub(crate) fn values(&self) -> &Arc<Values> {
        &self.values
    }

    /// Sends one whole message on this life, or fails without its being accepted. Waits for READY and for room, up
    /// to the timeout. `message` is asked for once, when it is clear that it can be tried.
    pub fn send(self: &Arc<Self>, message: &mut dyn FnMut() -> Result<Message>, timeout: Timeout) -> Result<u64> {
        if self.over.load(Ordering::Relaxed)
            && let Some(error) = self.gate.lock().refusal()
        {
            return Err(error);
        }
        let mut message = message()?;
        let timeout = timeout.or(self.manager.send_timeout());
        let mut deadline = None;
        let result = self.gate.pass(&mut message, |life| {
            // Only who must wait asks for the time.
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + timeout);
            life.patience(timeout, deadline)
        });
        if matches!(&result, Err(error) if error.status == Status::PeerLost) {
            // It may be this very send that found the pipe dead; otherwise this changes nothing.
            self.manager.end(self, End::new(Happening::PeerGone, DEAD_PIPE));
        }
        result
    }

    /// Waits until it is READY; the error says why it never will be, or that the time is over.
    pub(crate) fn wait_ready(&self, deadline: Instant) -> Result<()> {
        let found = self.gate.wait_for(deadline, |life| match life.state {
            State::Connecting => None,
            State::Ready => Some(Ok(())),
            State::Ended(_) => Some(life.refusal().map_or(Ok(()), Err)),
        });
        found.unwrap_or_else(|| {
            Err(Error::new(Status::Timeout, "not READY within the time given; the dial goes on")
                .about(self.id)
                .at(&self.endpoint))
        })
    }

    /// Whether it is READY now.
    pub(crate) fn is_ready(&self) -> bool {
        self.gate.lock().state == State::Ready
    }

    /// Ends this life; a current successor at the same endpoint is not touched. Nothing is fenced. Ending what has
    /// ended is no error.
    pub fn disconnect(self: &Arc<Self>) -> Result<()> {
        self.manager.end(self, End::new(Happening::Disconnect, "disconnected by kvconn_disconnect"));
        Ok(())
    }

    /// What there is to know of it.
    pub fn info(&self) -> ConnectionInfo {
        self.info_of(&self.gate.lock())
    }

    /// The same without waiting for a lock; `None` when it is held.
    pub(crate) fn try_info(&self) -> Option<ConnectionInfo> {
        Some(self.info_of(&self.gate.try_lock()?))
    }

    fn info_of(&self, life: &Access<'_, Life>) -> ConnectionInfo {
        let (state, status) = match life.state {
            State::Connecting => (ConnectionState::Connecting, Status::Ok),
            State::Ready => (ConnectionState::Ready, Status::Ok),
            State::Ended(ending) => (ConnectionState::Ended, ending.status()),
        };
        let until = life.end.as_ref().map_or_else(Instant::now, |end| end.at);
        ConnectionInfo {
            conn: self.id,
            endpoint: self.endpoint.clone(),
            state,
            status,
            os_errno: life.end.as_ref().map_or(0, |end| end.os_errno),
            accepted: life.accepted,
            waiting: u32::try_from(life.waiting()).unwrap_or(u32::MAX),
            stalled: life.stalled,
            age: self.dialled.elapsed(),
            ready_for: life.ready_at.map_or(Duration::ZERO, |at| until.saturating_duration_since(at)),
            rescues: life.rescues(),
            message: life.end.as_ref().map_or_else(String::new, |end| end.message.clone()),
        }
    }

    /// A further line is in use.
    pub(crate) fn line_made(&self) {
        self.lines.fetch_add(1, Ordering::AcqRel);
    }

    /// libzmq has given one up.
    pub(crate) fn line_gone(&self) {
        if self.lines.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.manager.connection_gone();
        }
    }

    /// Whether libzmq has given up all it had for this connection.
    pub(crate) fn is_gone(&self) -> bool {
        self.lines.load(Ordering::Acquire) == 0
    }

    /// Its lock. See [`gate::Gate`] for the order of locks.
    pub(crate) fn lock(&self) -> Access<'_, Life> {
        self.gate.lock()
    }

    /// Marks the locked life as ended; `None` when it had ended before.
    pub(crate) fn finish(&self, life: &mut Access<'_, Life>, end: End) -> Option<Finished> {
        let finished = life.finish(end)?;
        self.over.store(true, Ordering::Relaxed);
        Some(finished)
    }
}

/// What an ending leaves for the cache to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) ending: Ending,
    pub(crate) accepted: u64,
    /// How long it was READY, when it was.
    pub(crate) ready_for: Option<Duration>,
}

const DEAD_PIPE: &str = "the peer is gone: its pipe died within a message";

impl Life {
    /// The handshake has succeeded; false when it does not matter any more.
    pub(crate) fn ready(&mut self) -> bool {
        let next = self.state.after(Happening::HandshakeDone);
        if next == self.state {
            return false;
        }
        self.state = next;
        self.ready_at = Some(Instant::now());
        self.progress = Coarse::now();
        self.raise(EventKind::Ready, Status::Ok, 0, String::new());
        true
    }

    fn finish(&mut self, end: End) -> Option<Finished> {
        let State::Ended(ending) = self.state.after(end.happening) else { return None };
        if matches!(self.state, State::Ended(_)) {
            return None;
        }
        self.state = State::Ended(ending);
        self.raise(ending.event(), ending.status(), end.os_errno, end.message.clone());
        let ready_for = self.ready_at.map(|at| end.at.saturating_duration_since(at));
        self.end = Some(end);
        Some(Finished { ending, accepted: self.accepted, ready_for })
    }

    /// Whether the present line is this one.
    pub(crate) fn has_line(&self, line: LineId) -> bool {
        self.socket.as_ref().is_some_and(|(present, _)| *present == line)
    }

    /// The socket of the present line.
    pub(crate) fn socket(&self) -> Option<&PushSocket> {
        self.socket.as_ref().map(|(_, push)| push)
    }

    /// Another line takes the place of the present one, which is returned; the new one when the life is over.
    pub(crate) fn replace_line(
        &mut self,
        line: LineId,
        push: PushSocket,
    ) -> std::result::Result<(LineId, PushSocket), PushSocket> {
        match self.socket.take() {
            Some(old) => {
                self.socket = Some((line, push));
                Ok(old)
            }
            None => Err(push),
        }
    }

    /// Looks whether a full queue still is, raising STALLED when that is due; how long until the next look.
    pub(crate) fn check_stall(&mut self) -> Option<Duration> {
        /// How often a full queue is looked at: the time until RECOVERED is known when nobody sends.
        const LOOK_AGAIN: Duration = Duration::from_millis(100);
        if !self.full || self.state != State::Ready {
            return None;
        }
        if self.socket().is_some_and(PushSocket::writable) {
            self.moves_again();
            return None;
        }
        let idle = self.progress.elapsed();
        if idle < self.stall_time {
            return Some((self.stall_time - idle).max(Duration::from_millis(1)));
        }
        if !self.stalled {
            self.stalled = true;
            let text = format!("the queue is full and nothing has moved for {} ms", idle.as_millis());
            self.raise(EventKind::Stalled, Status::Stalled, 0, text);
        }
        Some(LOOK_AGAIN)
    }

    /// The queue was full and is not any more.
    fn moves_again(&mut self) {
        self.full = false;
        self.progress = Coarse::now();
        if std::mem::take(&mut self.stalled) {
            self.raise(EventKind::Recovered, Status::Ok, 0, String::new());
        }
    }

    fn raise(&self, kind: EventKind, status: Status, os_errno: i32, message: String) {
        self.events.push(Event {
            status,
            os_errno,
            conn: self.conn,
            endpoint: Some(self.endpoint.clone()),
            count: self.accepted,
            ..Event::new(kind, message)
        });
    }

    /// How long a sender that did not get through goes on. Its patience is counted from the connection's last
    /// progress, and it is its own: a short deadline beside it changes nothing.
    fn patience(&self, timeout: Duration, deadline: Instant) -> Patience<Error> {
        let now = Instant::now();
        let over = |status, text: String| Patience::Over(Error::new(status, text).about(self.conn).at(&self.endpoint));
        if self.state == State::Connecting {
            if now < deadline {
                return Patience::Until(deadline);
            }
            return over(Status::Timeout, format!("not READY within {} ms; not accepted", timeout.as_millis()));
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

impl Channel for Life {
    type Item = Message;
    type Done = u64;
    type Refusal = Error;
    type Bell = SocketBell;

    fn attempt(&mut self, message: &mut Message) -> Attempt<u64, Error> {
        if self.state == State::Connecting {
            return Attempt::NotYet;
        }
        if let Some(why) = self.refusal() {
            return Attempt::Refused(why);
        }
        let Some((_, push)) = &self.socket else { return Attempt::NotYet };
        match push.send(message) {
            Sent::Accepted => {
                self.accepted += 1;
                if self.full {
                    self.moves_again();
                } else {
                    self.progress = Coarse::now();
                }
                Attempt::Done(self.accepted)
            }
            Sent::Full => {
                if !std::mem::replace(&mut self.full, true) {
                    let due = self.stall_time.saturating_sub(self.progress.elapsed());
                    self.watcher.check_stall(self.conn, Instant::now() + due);
                }
                Attempt::Full
            }
            Sent::Broken => {
                // From here on the state refuses what libzmq would swallow; the sender reports the end.
                self.dead = true;
                Attempt::Refused(self.error(Status::PeerLost, 0, DEAD_PIPE))
            }
        }
    }

    fn refusal(&self) -> Option<Error> {
        match (&self.state, &self.end) {
            (State::Ended(ending), Some(end)) => Some(self.error(ending.status(), end.os_errno, &end.message)),
            (State::Ready, _) if self.dead => Some(self.error(Status::PeerLost, 0, DEAD_PIPE)),
            _ => None,
        }
    }

    fn bell(&mut self) -> SocketBell {
        if self.wake.is_none() {
            // Without a descriptor left for it, the head looks again every few milliseconds instead.
            self.wake = EventFd::new().ok().map(Arc::new);
        }
        SocketBell { socket: self.socket().map_or(-1, PushSocket::fd), wake: self.wake.clone() }
    }

    fn release(&mut self) {
        self.wake = None;
        if let Some((line, push)) = self.socket.take() {
            push.linger(self.end.as_ref().map_or(Duration::ZERO, |end| end.linger));
            self.watcher.close(line, push);
        }
    }
}

impl Life {
    fn error(&self, status: Status, os_errno: i32, text: &str) -> Error {
        Error::new(status, text).errno(os_errno).about(self.conn).at(&self.endpoint)
    }
}

/// What a polling head waits on.
pub(crate) struct SocketBell {
    socket: RawFd,
    wake: Option<Arc<EventFd>>,
}

impl Bell for SocketBell {
    fn wait(&self, until: Instant) -> bool {
        match &self.wake {
            Some(wake) => wait_readable(&[self.socket, wake.as_raw_fd()], until),
            None => {
                let slice = Instant::now() + Duration::from_millis(5);
                wait_readable(&[self.socket], until.min(slice)) || slice < until
            }
        }
    }

    fn kick(&self) {
        if let Some(wake) = &self.wake {
            wake.ring();
        }
    }

    fn clear(&self) {
        if let Some(wake) = &self.wake {
            wake.clear();
        }
    }
}
