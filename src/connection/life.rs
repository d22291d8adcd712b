//! What a connection's lock guards: its state, its socket, its counts.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::gate::{Attempt, Bell, Channel, Patience};
use super::socket::{PushSocket, Sent};
use super::state::{Ending, Happening, State};
use crate::clock::Coarse;
use crate::endpoint::Endpoint;
use crate::error::{Error, Status};
use crate::events::{Event, EventKind, Events};
use crate::ids::{ConnId, LineId};
use crate::message::Message;
use crate::options::{Key, Values};
use crate::wake::{EventFd, wait_readable};
use crate::watcher::Watcher;

/// What a connection's lock guards.
pub(crate) struct Life {
    conn: ConnId,
    endpoint: Endpoint,
    pub(super) state: State,
    pub(super) ready_at: Option<Instant>,
    pub(super) end: Option<End>,
    /// The present line; gone once the connection has ended and nobody polls.
    socket: Option<(LineId, PushSocket)>,
    pub(super) accepted: u64,
    /// The last message accepted, or the last time the queue was seen writable again.
    progress: Coarse,
    /// The queue was full at the last attempt.
    full: bool,
    /// The pipe died within a message: nothing must be handed over any more.
    dead: bool,
    /// STALLED was raised, RECOVERED not yet.
    pub(super) stalled: bool,
    /// The watcher is going to look whether the queue is still full.
    looked_at: bool,
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

/// What an ending leaves for the cache to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) ending: Ending,
    pub(crate) accepted: u64,
    /// How long it was READY, when it was.
    pub(crate) ready_for: Option<Duration>,
}

/// What is said when the pipe dies under a send, before the watcher hears of it.
pub(super) const DEAD_PIPE: &str = "the peer is gone: its pipe died within a message";

impl Life {
    pub(super) fn new(
        conn: ConnId,
        endpoint: Endpoint,
        values: &Values,
        line: (LineId, PushSocket),
        events: Arc<Events>,
        watcher: &'static Watcher,
    ) -> Life {
        Life {
            conn,
            endpoint,
            state: State::Connecting,
            ready_at: None,
            end: None,
            socket: Some(line),
            accepted: 0,
            progress: Coarse::now(),
            full: false,
            dead: false,
            stalled: false,
            looked_at: false,
            stall_time: values.ms(Key::StallMs),
            wake: None,
            events,
            watcher,
        }
    }

    /// The handshake has succeeded; false when it does not matter any more.
    pub(crate) fn ready(&mut self) -> bool {
        let next = self.state.after(Happening::HandshakeDone);
        if next == self.state {
            return false;
        }
        self.state = next;
        self.ready_at = Some(Instant::now());
        self.progress = Coarse::now();
        self.raise(EventKind::Ready, String::new());
        true
    }

    /// Marks the end; `None` when it had ended before.
    pub(super) fn finish(&mut self, end: End) -> Option<Finished> {
        let State::Ended(ending) = self.state.after(end.happening) else { return None };
        if matches!(self.state, State::Ended(_)) {
            return None;
        }
        self.state = State::Ended(ending);
        let event = Event::new(ending.event(), end.message.clone()).status(ending.status()).errno(end.os_errno);
        self.events.push(event.conn(self.conn, &self.endpoint).count(self.accepted));
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
        let again = self.look_for_stall();
        self.looked_at = again.is_some();
        again
    }

    fn look_for_stall(&mut self) -> Option<Duration> {
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
            self.raise(EventKind::Stalled, text);
        }
        Some(LOOK_AGAIN)
    }

    /// The queue was full and is not any more.
    fn moves_again(&mut self) {
        self.full = false;
        self.progress = Coarse::now();
        if std::mem::take(&mut self.stalled) {
            self.raise(EventKind::Recovered, String::new());
        }
    }

    fn raise(&self, kind: EventKind, message: String) {
        self.events.push(Event::new(kind, message).conn(self.conn, &self.endpoint));
    }

    /// How long a sender that did not get through goes on. Its patience is counted from the connection's last
    /// progress, and it is its own: a short deadline beside it changes nothing.
    pub(super) fn patience(&self, timeout: Duration, deadline: Instant) -> Patience<Error> {
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
                self.full = true;
                // At most one look is due, however often the queue turns full and not full.
                if !std::mem::replace(&mut self.looked_at, true) {
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
