//! Events of a manager, in order: a bounded queue with a level-triggered descriptor.
//!
//! Reading it is optional. When it is full, the newest events are dropped, and an OVERFLOW takes their place in the
//! order: an event read before it happened before the loss, an event read after it happened after the loss.
//!
//! Each connection has a place of its own for its ending, beside the others, so READY and STALLED do not crowd it out.
//! Only a connection that begins while `bound` endings are unread has none: nobody reads then, and memory is bounded.

#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
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

/// The longest text kept with an event, in bytes. C sees no more of it, and it bounds the queue's memory.
const MAX_MESSAGE: usize = 255;

/// The kinds of events. Numbers are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum EventKind {
    /// No event came in time.
    None = 0,
    /// The ZMTP handshake of a connection has succeeded.
    Ready = 1,
    /// Ending: the dial failed.
    ConnectFailed = 2,
    /// Ending: the peer of a READY connection is gone.
    PeerLost = 3,
    /// Ending: this process ended the connection.
    Disconnected = 4,
    /// Ending: an idle connection was closed, with everything acknowledged.
    Evicted = 5,
    /// Messages are in flight, and made no progress for `stall_ms`. There may still be room.
    Stalled = 6,
    /// A stalled connection makes progress again.
    Recovered = 7,
    /// With a connection: ending, its node failed. Without: the node failed.
    NodeFailed = 8,
    /// Some events did not fit into the queue at this place; `count` says how many.
    Overflow = 9,
}

impl EventKind {
    /// Whether it is the last event of a connection, if it is about one.
    fn ends_connection(self) -> bool {
        self == EventKind::ConnectFailed || self.is_ending()
    }

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

    /// Whether it ends a connection that was READY, if it is about one.
    fn is_ending(self) -> bool {
        use EventKind::{Disconnected, Evicted, NodeFailed, PeerLost};
        matches!(self, PeerLost | Disconnected | Evicted | NodeFailed)
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
    /// The outcome of what the connection accepted, if it is about one. Final in ending events.
    pub delivery: Option<Delivery>,
    /// Wall-clock time of the event.
    pub at: SystemTime,
    /// One line of text for operators.
    pub message: String,
}

impl Event {
    /// An event at this moment, with the status that its kind implies.
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

    /// Its level in the log.
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
        match (&self.delivery, self.kind) {
            (Some(delivery), _) if self.kind.is_ending() => write!(f, "; {delivery}"),
            (None, EventKind::NodeFailed) if self.node != NodeId::NONE => write!(f, "; {} requests failed", self.count),
            _ => Ok(()),
        }
    }
}

/// How many losses of each kind are remembered.
const REMEMBERED_LOSSES: usize = 16;

/// The last losses, whether somebody has read their events or not; newest last.
#[derive(Clone, Default)]
pub(crate) struct Losses {
    /// Connections whose peer was lost, or which their node's failure ended.
    connections: VecDeque<Event>,
    /// Nodes that failed.
    nodes: VecDeque<Event>,
}

impl Losses {
    fn remember(&mut self, event: &Event) {
        let losses = match (event.kind, event.conn) {
            (EventKind::NodeFailed, ConnId::NONE) => &mut self.nodes,
            (EventKind::NodeFailed | EventKind::PeerLost, _) => &mut self.connections,
            _ => return,
        };
        if losses.len() == REMEMBERED_LOSSES {
            losses.pop_front();
        }
        losses.push_back(event.clone());
    }

    /// Newest first, those of nodes before those of connections.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.nodes.iter().rev().chain(self.connections.iter().rev())
    }
}

/// The events of one manager.
///
/// Its lock is a leaf: it may be taken under any other lock, and no lock is taken under it.
pub struct Events {
    queue: Mutex<Queue>,
    more: Condvar,
}

struct Queue {
    /// Each event, with the events lost right before it.
    events: VecDeque<Queued>,
    /// How many of them are endings that have a place of their own.
    endings: usize,
    /// Live connections without such a place.
    without_place: HashSet<ConnId>,
    /// The events lost after the last of `events`.
    loss: Loss,
    /// How many of these losses are not empty. Each becomes an OVERFLOW.
    overflows: usize,
    bound: usize,
    dropped: u64,
    /// STALLED events ever pushed, lost ones included.
    stalls: u64,
    closed: bool,
    losses: Losses,
    /// Threads that wait for an event.
    waiting: usize,
    /// Made when it is first asked for. Readable while an event waits.
    fd: Option<EventFd>,
}

struct Queued {
    /// The events lost right before it.
    loss: Loss,
    event: Event,
    /// It is an ending that has a place of its own.
    has_place: bool,
}

/// Events that did not fit at one place of the queue.
#[derive(Default)]
struct Loss {
    count: u64,
    /// When the first of them was lost.
    since: Option<SystemTime>,
}

impl Events {
    /// An empty queue. `bound` events can wait, besides OVERFLOWs and the endings that have a place of their own.
    pub fn new(bound: usize) -> Events {
        let queue = Queue {
            events: VecDeque::new(),
            endings: 0,
            without_place: HashSet::new(),
            loss: Loss::default(),
            overflows: 0,
            bound,
            dropped: 0,
            stalls: 0,
            closed: false,
            losses: Losses::default(),
            waiting: 0,
            fd: None,
        };
        Events { queue: Mutex::new(queue), more: Condvar::new() }
    }

    /// From now on `bound` events can wait. Waiting events stay, even if they are more.
    pub fn set_bound(&self, bound: usize) {
        self.queue.lock().bound = bound;
    }

    /// A connection begins. Its ending gets a place of its own, unless as many endings as the bound are unread.
    pub(crate) fn expect_ending(&self, conn: ConnId) {
        let mut queue = self.queue.lock();
        if queue.endings >= queue.bound {
            queue.without_place.insert(conn);
        }
    }

    /// Logs an event and queues it, or counts it as lost. Never waits for a reader.
    pub fn push(&self, mut event: Event) {
        log::log(event.level(), || event.to_string());
        if event.message.len() > MAX_MESSAGE {
            event.message.truncate(event.message.floor_char_boundary(MAX_MESSAGE));
            event.message.shrink_to_fit();
        }
        let mut queue = self.queue.lock();
        queue.losses.remember(&event);
        if queue.push(event) && queue.waiting > 0 {
            self.more.notify_one();
        }
    }

    /// The next event. Waits for one until the deadline. Does not wait if the deadline has passed. Several threads may
    /// wait; each event goes to one of them.
    pub fn next(&self, deadline: Instant) -> Option<Event> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(event) = queue.pop() {
                return Some(event);
            }
            if queue.closed {
                return None;
            }
            queue.waiting += 1;
            let waited = self.more.wait_until(&mut queue, deadline);
            queue.waiting -= 1;
            if waited.timed_out() {
                // An event may have come after the timeout and before the lock, and this thread may have been woken for
                // it.
                return queue.pop();
            }
        }
    }

    /// A descriptor that is readable exactly while an event waits. It is for poll and similar calls. The caller must
    /// not read it or write to it. It is closed with the queue.
    ///
    /// # Errors
    ///
    /// The system's error, if no descriptor could be made.
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

    /// Ends all waits, present and future: [`next`](Events::next) returns the queued events, then nothing at once.
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

    /// How many events wait, OVERFLOWs included, and how many were lost since the queue was made.
    pub fn counts(&self) -> (usize, u64) {
        let queue = self.queue.lock();
        (queue.len(), queue.dropped)
    }

    /// The same without waiting for the lock.
    pub fn try_counts(&self) -> Option<(usize, u64)> {
        let queue = self.queue.try_lock()?;
        Some((queue.len(), queue.dropped))
    }

    /// The last losses.
    pub(crate) fn losses(&self) -> Losses {
        self.queue.lock().losses.clone()
    }

    /// The same without waiting for the lock.
    pub(crate) fn try_losses(&self) -> Option<Losses> {
        Some(self.queue.try_lock()?.losses.clone())
    }

    /// How many STALLED events there were since the queue was made, lost ones included.
    pub fn stalls(&self) -> u64 {
        self.queue.lock().stalls
    }

    /// How many events were lost since the queue was made.
    pub fn dropped_total(&self) -> u64 {
        self.queue.lock().dropped
    }
}

impl Queue {
    fn len(&self) -> usize {
        self.events.len() + self.overflows
    }

    /// Returns whether there is one more event to read than before.
    fn push(&mut self, event: Event) -> bool {
        let before = self.len();
        self.stalls += u64::from(event.kind == EventKind::Stalled);
        let is_ending = event.conn != ConnId::NONE && event.kind.ends_connection();
        let has_place = is_ending && !self.without_place.remove(&event.conn);
        if has_place || self.events.len() - self.endings < self.bound {
            let loss = std::mem::take(&mut self.loss);
            self.endings += usize::from(has_place);
            self.events.push_back(Queued { loss, event, has_place });
        } else {
            self.dropped += 1;
            self.loss.count += 1;
            if self.loss.since.is_none() {
                self.loss.since = Some(event.at);
                self.overflows += 1;
            }
        }
        // The system call is needed only if the queue was empty.
        if let (0, Some(fd)) = (before, &self.fd) {
            fd.wake();
        }
        self.len() > before
    }

    fn pop(&mut self) -> Option<Event> {
        let loss = self.events.front_mut().map_or(&mut self.loss, |first| &mut first.loss);
        let event = match std::mem::take(loss) {
            Loss { count, since: Some(since) } => {
                self.overflows -= 1;
                let text = format!("{count} events were lost here: the queue was full (option max_events)");
                Event { at: since, ..Event::new(EventKind::Overflow, text).count(count) }
            }
            _ => {
                let first = self.events.pop_front()?;
                self.endings -= usize::from(first.has_place);
                first.event
            }
        };
        if let (0, Some(fd)) = (self.len(), &self.fd) {
            fd.clear();
        }
        Some(event)
    }
}
