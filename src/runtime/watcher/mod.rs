//! The thread `kvconn-watcher`: it dials, reads all monitors, keeps timers, and closes the sockets of ended
//! connections.
//!
//! It owns every monitor. libzmq's threads report events to one inbox, which wakes it. The watcher runs none of the
//! caller's code. It waits only in its epoll, and holds the locks that it takes only for moments.

mod dials;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pacing::Pacing;
use super::resolve::Resolver;
use crate::budget::descriptors::DescriptorBudget;
use crate::connection::dial::{Dial, Verdict, Way};
use crate::connection::registry::Registry;
use crate::connection::socket::{Monitor, MonitorEvent, PushSocket, is_self_connected};
use crate::connection::socket_watcher::SocketWatcher;
use crate::connection::{Connection, End, SETTLE, Transition};
use crate::error::{Error, Result, Status};
use crate::ids::{AttemptId, ConnId};
use crate::libzmq::{Context, Inbox};
use crate::log::{self, Level};
use crate::options::Key;
use crate::sys::epoll::Epoll;
use crate::sys::lock::Mutex;
use crate::sys::thread::spawn_quiet;
use crate::sys::wake::EventFd;

/// How many commands are processed before the monitors are read again. Closing thousands of sockets must not delay the
/// report of a loss.
const COMMANDS_AT_ONCE: usize = 64;

/// What the watcher works with.
type WatcherParts = (Arc<Context>, Arc<DescriptorBudget>, Arc<Registry>, Arc<Resolver>);

/// How long libzmq has to report the errno of a connection that the kernel has reported as dead.
const ERRNO_TAKEN: Duration = Duration::from_millis(5);

/// Looks at the progress of connections begin at multiples of this, so that many connections are looked at in one wake-up:
/// there are at most 200 of these in a second.
const GRID: Duration = Duration::from_millis(5);
/// The same for looks that are not urgent.
const COARSE_GRID: Duration = Duration::from_millis(100);

/// The watcher's handle. Other threads give it commands.
pub(crate) struct Watcher {
    /// Leaf lock.
    commands: Arc<Mutex<Commands>>,
    wake: Arc<EventFd>,
    inbox: Arc<Inbox>,
}

/// The result of a look-up: addresses as libzmq takes them, or errno and text.
type ResolvedRoutes = std::result::Result<Vec<Way>, (i32, String)>;

enum Command {
    /// A new connection: watch its dial attempt and dial.
    Watch { attempt: AttemptId, monitor: Monitor, conn: Arc<Connection> },
    /// The look-up of its name has ended.
    Resolved { attempt: AttemptId, found: ResolvedRoutes },
    /// A caller waits for this dial attempt.
    Hurry { attempt: AttemptId },
    /// The dial attempt is not used any more: close its socket.
    Close { attempt: AttemptId, push: PushSocket },
    /// A dial attempt that was made and never watched: close its socket.
    Discard { attempt: AttemptId, push: PushSocket, monitor: Monitor },
    /// Something is in flight: check its progress at this time.
    CheckStall { conn: ConnId, at: Instant },
}

/// What other threads ask the watcher for.
struct Commands {
    queue: VecDeque<Command>,
    /// The watcher was woken for them, and has not looked since.
    woken: bool,
    /// When the watcher looks at the latest, without being woken.
    looks_by: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Dial(AttemptId),
    HangUp(AttemptId),
    Idle(ConnId),
}

/// Why the watcher looks at a connection.
#[derive(Clone, Copy)]
enum Look {
    /// Whether what is in flight makes progress.
    Stall,
    /// Whether it has been idle for long enough to be treated as idle.
    Settle,
}

impl Watcher {
    /// Starts the thread.
    pub(crate) fn start((context, descriptors, registry, resolver): WatcherParts) -> Result<Watcher> {
        let failed = |what: &str, e: io::Error| {
            let status = match e.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOMEM | libc::ENOSPC) => Status::Limit,
                _ => Status::Internal,
            };
            Error::new(status, format!("the watcher cannot have {what}: {e}")).errno(e.raw_os_error().unwrap_or(0))
        };
        let wake = Arc::new(EventFd::new().map_err(|e| failed("an eventfd", e))?);
        let epoll = Epoll::new().map_err(|e| failed("an epoll descriptor", e))?;
        epoll.add(wake.as_raw_fd(), WAKE).map_err(|e| failed("its eventfd watched", e))?;
        let commands = Commands { queue: VecDeque::new(), woken: false, looks_by: None };
        let commands = Arc::new(Mutex::new(commands));
        let inbox = Arc::new(Inbox::new(wake.clone()));
        let mut watch = Watch {
            context,
            descriptors,
            registry,
            resolver,
            epoll,
            wake: wake.clone(),
            inbox: inbox.clone(),
            commands: commands.clone(),
            attempts: HashMap::new(),
            pacing: Pacing::default(),
            grid: Instant::now(),
            timers: BinaryHeap::new(),
            looks: BTreeMap::new(),
        };
        spawn_quiet("kvconn-watcher", move || watch.run()).map_err(|e| failed("a thread", e))?;
        Ok(Watcher { commands, wake, inbox })
    }

    fn queue(&self, command: Command) {
        queue(&self.commands, &self.wake, [command]);
    }

    /// Where libzmq reports the events of dial attempts.
    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Watches the first dial attempt of a new connection, and dials.
    pub(crate) fn watch(&self, attempt: AttemptId, monitor: Monitor, conn: Arc<Connection>) {
        self.queue(Command::Watch { attempt, monitor, conn });
    }

    /// Closes the socket of a dial attempt that was never watched.
    pub(crate) fn discard(&self, attempt: AttemptId, push: PushSocket, monitor: Monitor) {
        self.queue(Command::Discard { attempt, push, monitor });
    }
}

impl SocketWatcher for Watcher {
    fn close(&self, sockets: Vec<(AttemptId, PushSocket)>) {
        let close = sockets.into_iter().map(|(attempt, push)| Command::Close { attempt, push });
        queue(&self.commands, &self.wake, close);
    }

    fn hurry(&self, attempt: AttemptId) {
        self.queue(Command::Hurry { attempt });
    }

    fn check_stall(&self, conn: ConnId, within: Duration) {
        self.queue(Command::CheckStall { conn, at: Instant::now() + within });
    }
}

fn queue(commands: &Mutex<Commands>, wake: &EventFd, more: impl IntoIterator<Item = Command>) {
    let mut commands = commands.lock();
    let mut can_wait = true;
    for command in more {
        // A look that is due later than the watcher's next one does not wake it.
        let looks_by = commands.looks_by;
        can_wait &= matches!(&command, Command::CheckStall { at, .. } if looks_by.is_some_and(|by| by <= *at));
        commands.queue.push_back(command);
    }
    // Woken under the lock, and once: the watcher clears the eventfd before it takes commands.
    if !can_wait && !commands.woken || wake.owes_wake() {
        commands.woken = true;
        wake.wake();
    }
}

/// A watched dial attempt.
struct DialAttempt {
    monitor: Monitor,
    /// Its connection. `None` for an attempt that was never used.
    conn: Option<Arc<Connection>>,
    /// Set while it is being dialled.
    dial: Option<Dial>,
    /// The number of its TCP descriptor, from CONNECTED. Valid only until its end is reported.
    tcp: Option<RawFd>,
    /// Its socket is closed, and libzmq has not reported yet that it is done with it.
    closing: bool,
}

/// The thread's own state.
struct Watch {
    context: Arc<Context>,
    descriptors: Arc<DescriptorBudget>,
    registry: Arc<Registry>,
    resolver: Arc<Resolver>,
    epoll: Epoll,
    wake: Arc<EventFd>,
    inbox: Arc<Inbox>,
    commands: Arc<Mutex<Commands>>,
    attempts: HashMap<AttemptId, DialAttempt>,
    pacing: Pacing,
    /// A point of the grid.
    grid: Instant,
    timers: BinaryHeap<Reverse<(Instant, Timer)>>,
    /// The looks at connections, at points of the grid. Most timers are looks, so each must cost little.
    looks: BTreeMap<Instant, Vec<(ConnId, Look)>>,
}

/// The epoll token of the eventfd. The others are ids of dial attempts, which begin at 1: their TCP descriptors.
const WAKE: u64 = 0;

impl Watch {
    fn run(&mut self) {
        let (mut ready, mut reported) = (Vec::new(), Vec::new());
        loop {
            let next = self.next_timer();
            let mut commands = self.commands.lock();
            commands.looks_by = next;
            // What came after the last look may rely on that look's time.
            let next = if commands.queue.is_empty() { next } else { Some(Instant::now()) };
            drop(commands);
            self.epoll.wait(next, &mut ready);
            // Cleared first: what comes from here on wakes again.
            self.wake.clear();
            self.inbox.take(&mut reported);
            for attempt in reported.drain(..) {
                self.handle_events(AttemptId(attempt));
            }
            for attempt in ready.iter().filter(|token| **token != WAKE) {
                self.hang_up(AttemptId(*attempt));
            }
            self.process_commands();
            self.process_timers();
            self.process_looks();
            while let Some((attempt, since)) = self.pacing.next() {
                self.dial(attempt, since);
            }
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let look = self.looks.keys().next().copied();
        timer.into_iter().chain(look).min()
    }

    fn process_commands(&mut self) {
        let mut commands = self.commands.lock();
        commands.woken = false;
        let some = commands.queue.len().min(COMMANDS_AT_ONCE);
        let taken: Vec<_> = commands.queue.drain(..some).collect();
        drop(commands);
        for command in taken {
            match command {
                Command::Watch { attempt, monitor, conn } => self.begin(attempt, monitor, conn),
                Command::Resolved { attempt, found } => self.resolved(attempt, found),
                Command::Hurry { attempt } => self.pacing.hurry(attempt),
                Command::Close { attempt, push } => self.close(attempt, push),
                Command::Discard { attempt, push, monitor } => {
                    self.insert(attempt, monitor, None, None);
                    self.close(attempt, push);
                }
                Command::CheckStall { conn, at } => self.look(conn, Look::Stall, at),
            }
        }
    }

    fn process_timers(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            if at > now {
                return;
            }
            self.timers.pop();
            match timer {
                Timer::Dial(attempt) => {
                    // If the watcher is late, the monitor may already have the dial's success, unread.
                    self.handle_events(attempt);
                    self.dial_due(attempt, now);
                }
                Timer::HangUp(attempt) => self.end_without_errno(attempt),
                Timer::Idle(conn) => self.check_idle(conn, now),
            }
        }
    }

    fn process_looks(&mut self) {
        let now = Instant::now();
        while let Some(due) = self.looks.first_entry().filter(|first| *first.key() <= now) {
            for (conn, look) in due.remove() {
                match look {
                    Look::Stall => self.check_stall(conn, now),
                    Look::Settle => self.settle(conn, now),
                }
            }
        }
    }

    fn check_stall(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.registry.find(id) else { return };
        let mut inner = conn.lock();
        let again = inner.check_stall();
        // check_stall touched the socket, so it may have consumed the edge that the polling head needs.
        inner.touched();
        let settles = again.is_none() && inner.begins_to_settle();
        drop(inner);
        if let Some(time) = again {
            self.look(id, Look::Stall, now + time);
        } else if settles {
            self.look(id, Look::Settle, now + SETTLE);
        }
    }

    fn settle(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.registry.find(id) else { return };
        if conn.lock().settle() {
            self.look(id, Look::Settle, now + SETTLE);
        }
    }

    /// Looks at the connection then, or at the next point of the grid.
    fn look(&mut self, conn: ConnId, look: Look, at: Instant) {
        let grid = match look {
            Look::Stall => GRID.as_nanos(),
            Look::Settle => COARSE_GRID.as_nanos(),
        };
        let points = at.saturating_duration_since(self.grid).as_nanos().div_ceil(grid);
        let at = self.grid + Duration::from_nanos(u64::try_from(points * grid).unwrap_or(u64::MAX));
        self.looks.entry(at).or_default().push((conn, look));
    }

    fn check_idle(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.registry.find(id) else { return };
        let limit = conn.values().ms(Key::IdleTimeoutMs);
        if let Some(time) = conn.owner().evict_after(&conn, limit) {
            self.timers.push(Reverse((now + time, Timer::Idle(id))));
        }
    }

    fn insert(&mut self, attempt: AttemptId, monitor: Monitor, conn: Option<Arc<Connection>>, dial: Option<Dial>) {
        self.attempts.insert(attempt, DialAttempt { monitor, conn, dial, tcp: None, closing: false });
    }

    /// Reads a monitor to its end, then handles its events.
    fn handle_events(&mut self, id: AttemptId) {
        let mut events = VecDeque::new();
        self.read_monitor(id, &mut events);
        if !events.is_empty() {
            self.pacing.over(id);
        }
        while let Some(event) = events.pop_front() {
            if event == MonitorEvent::Ready {
                let tcp = match self.own_descriptor(id) {
                    Ok(tcp) => tcp,
                    Err(e) => {
                        self.fail_without_descriptor(id, &e);
                        continue;
                    }
                };
                // libzmq reports DISCONNECTED before it closes the descriptor. So if it is not reported after we
                // duplicated the descriptor, ours is the same connection, and not a later user of the number.
                self.read_monitor(id, &mut events);
                let ends = |event: &_| matches!(event, MonitorEvent::Disconnected(_) | MonitorEvent::Closed(_));
                let gone = events.iter().any(ends);
                self.handshake_done(id, tcp.filter(|_| !gone));
            } else {
                self.handle_event(id, event);
            }
        }
    }

    fn read_monitor(&self, id: AttemptId, events: &mut VecDeque<MonitorEvent>) {
        if let Some(attempt) = self.attempts.get(&id) {
            events.extend(std::iter::from_fn(|| attempt.monitor.next()));
        }
    }

    fn handshake_done(&mut self, id: AttemptId, tcp: Option<OwnedFd>) {
        let Some(DialAttempt { conn: Some(conn), dial, closing: false, .. }) = self.attempts.get_mut(&id) else {
            return;
        };
        let Some(dial) = dial.take() else { return };
        dial.succeeded();
        // Reports the end of a peer that libzmq has stopped reading. (Such a peer sends on a socket on which it may
        // only receive.) If such a peer leaves, no monitor reports it.
        if let Some(tcp) = &tcp
            && let Err(e) = self.epoll.add_hang_up(tcp.as_raw_fd(), id.0)
        {
            log::log(Level::Error, || format!("dial attempt {id}: its descriptor cannot be watched: {e}"));
        }
        let conn = conn.clone();
        conn.owner().ready(&conn, tcp);
        let idle = conn.values().ms(Key::IdleTimeoutMs);
        if !idle.is_zero() {
            self.timers.push(Reverse((Instant::now() + idle, Timer::Idle(conn.id()))));
        }
    }

    /// The kernel reports that the peer has closed, or that the connection is dead.
    fn hang_up(&mut self, id: AttemptId) {
        if let Some(DialAttempt { conn: Some(conn), dial: None, closing: false, .. }) = self.attempts.get(&id) {
            let conn = conn.clone();
            let pending = conn.lock().hang_up();
            match pending {
                Some(errno) => conn.owner().end(&conn, peer_gone(errno)),
                None => self.timers.push(Reverse((Instant::now() + ERRNO_TAKEN, Timer::HangUp(id)))),
            }
        }
    }

    /// Ends a connection whose errno libzmq has taken, and has not reported.
    fn end_without_errno(&mut self, id: AttemptId) {
        self.handle_events(id);
        if let Some(DialAttempt { conn: Some(conn), dial: None, closing: false, .. }) = self.attempts.get(&id) {
            let conn = conn.clone();
            conn.owner().end(&conn, peer_gone(0));
        }
    }

    fn handle_event(&mut self, id: AttemptId, event: MonitorEvent) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if event == MonitorEvent::Reaped {
            if let Some(attempt) = self.attempts.remove(&id) {
                // Gives the descriptors back, before anybody who waits for that is woken.
                drop(attempt.monitor);
                if let Some(conn) = attempt.conn {
                    conn.attempt_closed();
                }
            }
            return;
        }
        if attempt.closing || event == MonitorEvent::TakenUp {
            return;
        }
        let Some(conn) = attempt.conn.clone() else { return };
        let now = Instant::now();
        if let MonitorEvent::OptionRefused { options, os_errno } = event {
            let why = io::Error::from_raw_os_error(os_errno);
            let text = || format!("connection {} to {} goes on without {options}: {why}", conn.id(), conn.endpoint());
            log::log(Level::Warn, text);
        }
        match (&mut attempt.dial, event) {
            (Some(dial), MonitorEvent::Connected(fd)) if is_self_connected(fd) => {
                let verdict = dial.failed(now, libc::ECONNREFUSED, "no listener there: TCP connected to itself");
                self.follow(id, verdict);
            }
            (Some(dial), event) => {
                if let MonitorEvent::Connected(fd) = event {
                    attempt.tcp = Some(fd);
                }
                let verdict = dial.on_seen(event, now);
                if verdict == Verdict::Wait {
                    self.timers.push(Reverse((dial.due(), Timer::Dial(id))));
                }
                self.follow(id, verdict);
            }
            (None, MonitorEvent::Disconnected(errno) | MonitorEvent::Closed(errno)) => {
                conn.owner().end(&conn, peer_gone(errno));
            }
            (None, _) => {}
        }
    }

    fn close(&mut self, id: AttemptId, push: PushSocket) {
        self.pacing.over(id);
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.closing = true;
            attempt.dial = None;
        }
        // Its monitor is dropped when libzmq reports that the socket is closed.
        drop(push);
    }
}

const PEER_GONE: &str = "the peer is gone: it closed the connection, died, or stopped answering";

/// The end of a READY connection, by the errno that libzmq reports.
fn peer_gone(errno: i32) -> End {
    match errno {
        // The peer closed it: no error of the system.
        0 | libc::EPIPE => End::new(Transition::PeerGone, PEER_GONE),
        _ => {
            let text = format!("{PEER_GONE}: {}", io::Error::from_raw_os_error(errno));
            End::new(Transition::PeerGone, text).errno(errno)
        }
    }
}
