//! What happened, in order, for whoever wants to know: a bounded queue with a level-triggered descriptor.
//!
//! Nobody has to read it. When it is full, the newest events are dropped, and an OVERFLOW stands where they would
//! have stood: what is read before it happened before the loss, what is read after it happened after.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use std::{fmt, io};

use crate::delivery::Delivery;
use crate::error::Status;
use crate::ids::{ConnId, NodeId};
use crate::log::{self, Level};
use crate::net::endpoint::Endpoint;
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::wake::EventFd;

/// The longest text that is kept with an event, in bytes: what C sees of it, and what bounds the queue's memory.
const MAX_MESSAGE: usize = 255;

/// The kinds of events. Numbers are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum EventKind {
    /// Nothing happened within the time given.
    None = 0,
    /// The ZMTP handshake of a connection has succeeded.
    Ready = 1,
    /// Ending: the dial failed.
    ConnectFailed = 2,
    /// Ending: a READY connection's peer is gone.
    PeerLost = 3,
    /// Ending: this process ended the connection.
    Disconnected = 4,
    /// Ending: the connection was idle, with everything acknowledged, and was closed to save its descriptors.
    Evicted = 5,
    /// Nothing of what is on the way to the peer has been acknowledged for `stall_ms`; there may still be room. (Where nobody can
    /// tell: libzmq has let go of nothing that it holds.)
    Stalled = 6,
    /// A stalled connection makes progress again.
    Recovered = 7,
    /// With a connection: ending, its node failed. Without: the life of the node is over.
    NodeFailed = 8,
    /// Some events did not fit in the queue at this place; `count` says how many.
    Overflow = 9,
}

impl EventKind {
    /// Its name, as in the header's constants.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::None => "NONE",
            EventKind::Ready => "READY",
            EventKind::ConnectFailed => "CONNECT_FAILED",
            EventKind::PeerLost => "PEER_LOST",
            EventKind::Disconnected => "DISCONNECTED",
            EventKind::Evicted => "EVICTED",
            EventKind::Stalled => "STALLED",
            EventKind::Recovered => "RECOVERED",
            EventKind::NodeFailed => "NODE_FAILED",
            EventKind::Overflow => "OVERFLOW",
        }
    }
}

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The status that calls on the connection get from now on; OK for READY and RECOVERED.
    pub status: Status,
    /// errno behind it, or 0.
    pub os_errno: i32,
    /// The connection, or NONE.
    pub conn: ConnId,
    /// The node, or NONE.
    pub node: NodeId,
    /// The endpoint, if it is about one.
    pub endpoint: Option<Endpoint>,
    /// The node's name, if it is about one.
    pub node_name: Option<Arc<str>>,
    /// Ending events: messages accepted. OVERFLOW: events lost. NODE_FAILED of a node: requests failed.
    pub count: u64,
    /// What became of what the connection accepted, if it is about one. Final in ending events.
    pub delivery: Option<Delivery>,
    /// Wall-clock time of the event.
    pub at: SystemTime,
    /// One line for a person.
    pub message: String,
}

impl Event {
    /// An event of this moment, about nothing yet, with the status that its kind implies.
    pub fn new(kind: EventKind, message: impl Into<String>) -> Event {
        let status = match kind {
            EventKind::ConnectFailed => Status::ConnectFailed,
            EventKind::PeerLost => Status::PeerLost,
            EventKind::Disconnected => Status::Disconnected,
            EventKind::Evicted => Status::Evicted,
            EventKind::Stalled => Status::Stalled,
            EventKind::NodeFailed => Status::NodeFailed,
            EventKind::None | EventKind::Ready | EventKind::Recovered | EventKind::Overflow => Status::Ok,
        };
        Event {
            kind,
            status,
            os_errno: 0,
            conn: ConnId::NONE,
            node: NodeId::NONE,
            endpoint: None,
            node_name: None,
            count: 0,
            delivery: None,
            at: SystemTime::now(),
            message: message.into(),
        }
    }

    /// How important it is to an operator.
    fn level(&self) -> Level {
        match self.kind {
            EventKind::None
            | EventKind::Ready
            | EventKind::Recovered
            | EventKind::Disconnected
            | EventKind::Evicted => Level::Info,
            EventKind::ConnectFailed
            | EventKind::PeerLost
            | EventKind::Stalled
            | EventKind::NodeFailed
            | EventKind::Overflow => Level::Warn,
        }
    }

    /// The same event, with this status.
    pub fn status(mut self, status: Status) -> Event {
        self.status = status;
        self
    }

    /// The same event, with the operating system's errno.
    pub fn errno(mut self, os_errno: i32) -> Event {
        self.os_errno = os_errno;
        self
    }

    /// The same event, about this connection to this endpoint.
    pub fn conn(mut self, conn: ConnId, endpoint: &Endpoint) -> Event {
        self.conn = conn;
        self.endpoint = Some(endpoint.clone());
        self
    }

    /// The same event, about this node.
    pub fn node(mut self, node: NodeId, name: &Arc<str>) -> Event {
        self.node = node;
        self.node_name = Some(name.clone());
        self
    }

    /// The same event, with these counts of its connection.
    pub fn delivery(mut self, delivery: Delivery) -> Event {
        self.delivery = Some(delivery);
        self
    }

    /// The same event, with this count.
    pub fn count(mut self, count: u64) -> Event {
        self.count = count;
        self
    }
}

/// One line of the log.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if self.conn != ConnId::NONE {
            write!(f, ", connection {}", self.conn)?;
        }
        if let Some(endpoint) = &self.endpoint {
            write!(f, " to {endpoint}")?;
        }
        if let Some(name) = &self.node_name {
            write!(f, ", node {name:?} (life {})", self.node)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

/// The events of one manager.
///
/// Its lock is a leaf: it is taken under any other, and none is taken under it.
pub struct Events {
    queue: Mutex<Queue>,
    more: Condvar,
}

struct Queue {
    /// Each with what was lost right before it.
    events: VecDeque<(Loss, Event)>,
    /// What was lost after the last of `events`.
    loss: Loss,
    /// How many of all these losses are not empty: each will be an OVERFLOW.
    overflows: usize,
    bound: usize,
    dropped: u64,
    /// STALLED events ever pushed, lost ones included.
    stalls: u64,
    closed: bool,
    /// Made when it is first asked for. Rung when the first item comes, cleared when the last goes.
    fd: Option<EventFd>,
}

/// Events that did not fit at one place of the queue.
#[derive(Default)]
struct Loss {
    count: u64,
    /// When the first was lost.
    since: Option<SystemTime>,
}

impl Events {
    /// No events; `bound` of them can wait, apart from OVERFLOWs.
    pub fn new(bound: usize) -> Events {
        let queue = Queue {
            events: VecDeque::new(),
            loss: Loss::default(),
            overflows: 0,
            bound,
            dropped: 0,
            stalls: 0,
            closed: false,
            fd: None,
        };
        Events { queue: Mutex::new(queue), more: Condvar::new() }
    }

    /// From now on `bound` events can wait. Those that wait already stay, also when they are more.
    pub fn set_bound(&self, bound: usize) {
        self.queue.lock().bound = bound;
    }

    /// Logs an event, and queues it or counts it as lost. Never waits for a reader.
    pub fn push(&self, mut event: Event) {
        log::log(event.level(), || event.to_string());
        if event.message.len() > MAX_MESSAGE {
            event.message.truncate(event.message.floor_char_boundary(MAX_MESSAGE));
            event.message.shrink_to_fit();
        }
        if self.queue.lock().push(event) {
            self.more.notify_one();
        }
    }

    /// The next event. Waits for one until the deadline, not at all when that has passed. Several threads may wait;
    /// each event goes to one of them.
    pub fn next(&self, deadline: Instant) -> Option<Event> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(event) = queue.pop() {
                return Some(event);
            }
            if queue.closed || self.more.wait_until(&mut queue, deadline).timed_out() {
                // An event may have come between the end of the time and the lock, with this thread woken for it.
                return queue.pop();
            }
        }
    }

    /// A descriptor that is readable exactly while an event waits. It is for poll and the like: who reads it or
    /// writes to it spoils it. It is closed with the queue.
    ///
    /// # Errors
    ///
    /// The system's, if no descriptor could be made.
    pub fn fd(&self) -> io::Result<RawFd> {
        let mut queue = self.queue.lock();
        if let Some(fd) = &queue.fd {
            return Ok(fd.as_raw_fd());
        }
        let fd = EventFd::new()?;
        if queue.len() > 0 {
            fd.wake();
        }
        Ok(queue.fd.insert(fd).as_raw_fd())
    }

    /// Nobody waits here any more, now or later: [`next`](Events::next) returns what is queued, then nothing at once.
    pub fn close(&self) {
        self.queue.lock().closed = true;
        self.more.notify_all();
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.queue.lock().closed
    }

    /// How many events wait, OVERFLOWs included.
    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many events wait, OVERFLOWs included, and how many were lost since the beginning.
    pub fn counts(&self) -> (usize, u64) {
        let queue = self.queue.lock();
        (queue.len(), queue.dropped)
    }

    /// The same without waiting for the lock.
    pub fn try_counts(&self) -> Option<(usize, u64)> {
        let queue = self.queue.try_lock()?;
        Some((queue.len(), queue.dropped))
    }

    /// How many STALLED there were since the beginning, lost ones included.
    pub fn stalls(&self) -> u64 {
        self.queue.lock().stalls
    }

    /// How many events were lost since the beginning.
    pub fn dropped_total(&self) -> u64 {
        self.queue.lock().dropped
    }
}

impl Queue {
    fn len(&self) -> usize {
        self.events.len() + self.overflows
    }

    /// Whether there is one more item to read than before.
    fn push(&mut self, event: Event) -> bool {
        let before = self.len();
        self.stalls += u64::from(event.kind == EventKind::Stalled);
        if self.events.len() < self.bound {
            let loss = std::mem::take(&mut self.loss);
            self.events.push_back((loss, event));
        } else {
            self.dropped += 1;
            self.loss.count += 1;
            if self.loss.since.is_none() {
                self.loss.since = Some(event.at);
                self.overflows += 1;
            }
        }
        // The system is asked only when the queue was empty.
        if let (0, Some(fd)) = (before, &self.fd) {
            fd.wake();
        }
        self.len() > before
    }

    fn pop(&mut self) -> Option<Event> {
        let loss = self.events.front_mut().map_or(&mut self.loss, |(loss, _)| loss);
        let event = match std::mem::take(loss) {
            Loss { count, since: Some(since) } => {
                self.overflows -= 1;
                let text = format!("{count} events were lost here: the queue was full (option max_events)");
                Event { at: since, ..Event::new(EventKind::Overflow, text).count(count) }
            }
            _ => self.events.pop_front()?.1,
        };
        if let (0, Some(fd)) = (self.len(), &self.fd) {
            fd.clear();
        }
        Some(event)
    }
}
