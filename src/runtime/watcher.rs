//! The one background thread: it dials, hears every monitor, keeps the time, and closes what has ended.
//!
//! It owns every monitor and reads it to the end whenever it speaks: a monitor that nobody reads stops libzmq's I/O
//! thread, and with it every connection of the process. It runs no code of the caller's, and waits for nothing but
//! its epoll: the locks it takes are held for moments only.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::resolve::{ResolveError, Resolver};
use crate::budget::descriptors::DescriptorBudget;
use crate::connection::dial::{Dial, DialFailure, Verdict, Way};
use crate::connection::owner::SocketWatcher;
use crate::connection::registry::Registry;
use crate::connection::socket::{Monitor, MonitorEvent, PushSocket, is_self_connected, open_attempt};
use crate::connection::{Connection, End, Transition};
use crate::error::{Error, Result, Status};
use crate::ids::{AttemptId, ConnId};
use crate::libzmq::Context;
use crate::log::{self, Level};
use crate::net::endpoint::Target;
use crate::net::route::Route;
use crate::options::Key;
use crate::sys::descriptor;
use crate::sys::epoll::Epoll;
use crate::sys::lock::Mutex;
use crate::sys::thread::spawn_quiet;
use crate::sys::wake::EventFd;

/// How many commands are worked off before the monitors are looked at again: closing thousands of sockets must not
/// keep a loss from being seen.
const COMMANDS_AT_ONCE: usize = 64;

/// How often a dial attempt is looked at whose monitor cannot be watched.
const UNWATCHED: Duration = Duration::from_millis(10);

/// What the watcher works with.
type WatcherParts = (Arc<Context>, Arc<DescriptorBudget>, Arc<Registry>, Arc<Resolver>);

/// The watcher's handle: what other threads ask it to do.
pub(crate) struct Watcher {
    /// Leaf lock.
    commands: Arc<Mutex<VecDeque<Command>>>,
    wake: Arc<EventFd>,
}

/// A look-up's outcome: addresses as libzmq takes them, or errno and text.
type ResolvedRoutes = std::result::Result<Vec<Way>, (i32, String)>;

enum Command {
    /// A new connection: watch its line and dial.
    Watch { attempt: AttemptId, monitor: Monitor, conn: Arc<Connection> },
    /// Its name has been looked up.
    Resolved { attempt: AttemptId, found: ResolvedRoutes },
    /// The line is not used any more: close it.
    Close { attempt: AttemptId, push: PushSocket },
    /// A line that was made and never watched.
    Discard { attempt: AttemptId, push: PushSocket, monitor: Monitor },
    /// A queue has become full.
    CheckStall { conn: ConnId, at: Instant },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Dial(AttemptId),
    Watch(AttemptId),
    Stall(ConnId),
    Idle(ConnId),
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
        let commands = Arc::new(Mutex::new(VecDeque::new()));
        let mut watch = Watch {
            context,
            descriptors,
            registry,
            resolver,
            epoll,
            wake: wake.clone(),
            commands: commands.clone(),
            attempts: HashMap::new(),
            timers: BinaryHeap::new(),
        };
        spawn_quiet("kvconn-watcher", move || watch.run()).map_err(|e| failed("a thread", e))?;
        Ok(Watcher { commands, wake })
    }

    fn ask(&self, command: Command) {
        ask(&self.commands, &self.wake, command);
    }

    /// Watches a new connection's first line, and dials it.
    pub(crate) fn watch(&self, attempt: AttemptId, monitor: Monitor, conn: Arc<Connection>) {
        self.ask(Command::Watch { attempt, monitor, conn });
    }

    /// Closes a line that was never watched.
    pub(crate) fn discard(&self, attempt: AttemptId, push: PushSocket, monitor: Monitor) {
        self.ask(Command::Discard { attempt, push, monitor });
    }
}

impl SocketWatcher for Watcher {
    fn close(&self, attempt: AttemptId, push: PushSocket) {
        self.ask(Command::Close { attempt, push });
    }

    fn check_stall(&self, conn: ConnId, within: Duration) {
        self.ask(Command::CheckStall { conn, at: Instant::now() + within });
    }
}

fn ask(commands: &Mutex<VecDeque<Command>>, wake: &EventFd, command: Command) {
    let mut commands = commands.lock();
    commands.push_back(command);
    // Rung under the lock, and only for the first: the watcher clears it before it looks.
    if commands.len() == 1 || wake.owes_wake() {
        wake.wake();
    }
}

/// One line under watch.
struct DialAttempt {
    monitor: Monitor,
    /// Whose it is; none for a line that was never used.
    conn: Option<Arc<Connection>>,
    /// While it is being dialled.
    dial: Option<Dial>,
    /// The number of its descriptor, as CONNECTED named it. Only good for as long as nobody heard of its end.
    tcp: Option<RawFd>,
    /// Its socket is closed; waiting for libzmq to give it up.
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
    commands: Arc<Mutex<VecDeque<Command>>>,
    attempts: HashMap<AttemptId, DialAttempt>,
    timers: BinaryHeap<Reverse<(Instant, Timer)>>,
}

/// The epoll token of the eventfd; lines count from 1.
const WAKE: u64 = 0;
/// Marks the token of a line's TCP descriptor, beside that of its monitor.
const TCP: u64 = 1 << 63;

impl Watch {
    fn run(&mut self) {
        let mut ready = Vec::new();
        loop {
            self.epoll.wait(self.next_timer(), &mut ready);
            for token in &ready {
                match *token {
                    WAKE => {}
                    attempt if attempt & TCP != 0 => self.hang_up(AttemptId(attempt & !TCP)),
                    attempt => self.hear(AttemptId(attempt)),
                }
            }
            self.work_off_commands();
            self.work_off_timers();
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    fn work_off_commands(&mut self) {
        self.wake.clear();
        for _ in 0..COMMANDS_AT_ONCE {
            let Some(command) = self.commands.lock().pop_front() else { return };
            match command {
                Command::Watch { attempt, monitor, conn } => self.begin(attempt, monitor, conn),
                Command::Resolved { attempt, found } => self.resolved(attempt, found),
                Command::Close { attempt, push } => self.close(attempt, push),
                Command::Discard { attempt, push, monitor } => {
                    self.insert(attempt, monitor, None, None);
                    self.close(attempt, push);
                }
                Command::CheckStall { conn, at } => self.timers.push(Reverse((at, Timer::Stall(conn)))),
            }
        }
        // More may be waiting, and nobody rings for them again.
        self.wake.wake();
    }

    fn work_off_timers(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            if at > now {
                return;
            }
            self.timers.pop();
            match timer {
                Timer::Dial(attempt) => {
                    // Behind with its work, it may have the dial's success before it, unread.
                    self.hear(attempt);
                    self.dial_time(attempt, now);
                }
                Timer::Watch(attempt) => self.watch_again(attempt, now),
                Timer::Stall(conn) => self.check_stall(conn, now),
                Timer::Idle(conn) => self.check_idle(conn, now),
            }
        }
    }

    /// Looks at a dial attempt that cannot be watched, until it can.
    fn watch_again(&mut self, id: AttemptId, now: Instant) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        if self.epoll.add(attempt.monitor.fd(), id.0).is_err() {
            self.timers.push(Reverse((now + UNWATCHED, Timer::Watch(id))));
        }
        self.hear(id);
    }

    fn check_stall(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.registry.find(id) else { return };
        let mut inner = conn.lock();
        let again = inner.check_stall();
        // It looked at the socket, and may have eaten the edge that the waiting head needs.
        inner.touched();
        drop(inner);
        if let Some(time) = again {
            self.timers.push(Reverse((now + time, Timer::Stall(id))));
        }
    }

    fn check_idle(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.registry.find(id) else { return };
        let limit = conn.values().ms(Key::IdleTimeoutMs);
        if let Some(time) = conn.owner().evict_after(&conn, limit) {
            self.timers.push(Reverse((now + time, Timer::Idle(id))));
        }
    }

    fn insert(&mut self, attempt: AttemptId, monitor: Monitor, conn: Option<Arc<Connection>>, dial: Option<Dial>) {
        if let Err(e) = self.epoll.add(monitor.fd(), attempt.0) {
            // The user's watches are used up (fs.epoll.max_user_watches), or memory is short.
            log::log(Level::Error, || format!("dial attempt {attempt} cannot be watched: {e}"));
            self.timers.push(Reverse((Instant::now() + UNWATCHED, Timer::Watch(attempt))));
        }
        self.attempts.insert(attempt, DialAttempt { monitor, conn, dial, tcp: None, closing: false });
    }

    /// A new connection.
    fn begin(&mut self, attempt: AttemptId, monitor: Monitor, conn: Arc<Connection>) {
        let now = Instant::now();
        let values = conn.values();
        let mut dial = Dial::new(now, values, conn.addresses().clone());
        let route = Route::new(values.source_address(), values.interface().cloned());
        dial.addresses(match conn.endpoint().target() {
            Target::Address(address) => Some(route.to(*address).map_err(DialFailure::from)),
            Target::Ipc { path } => Some(Ok(c_text(format!("ipc://{path}")))),
            Target::Name { .. } => None,
        });
        let due = dial.due();
        self.insert(attempt, monitor, Some(conn.clone()), Some(dial));
        match conn.endpoint().target() {
            Target::Name { host, port } => {
                self.timers.push(Reverse((due, Timer::Dial(attempt))));
                self.look_up(attempt, host, *port, route);
            }
            _ => self.dial_next(attempt),
        }
    }

    fn look_up(&mut self, attempt: AttemptId, host: &str, port: u16, route: Route) {
        let (commands, wake) = (self.commands.clone(), self.wake.clone());
        let done = move |found: std::result::Result<Vec<_>, ResolveError>| {
            let found = match found {
                Ok(addresses) => Ok(addresses.into_iter().map(|to| route.to(to).map_err(DialFailure::from)).collect()),
                Err(e) => Err((e.os_errno, e.to_string())),
            };
            ask(&commands, &wake, Command::Resolved { attempt, found });
        };
        if let Err(e) = self.resolver.resolve(host, port, Box::new(done)) {
            let text = format!("no thread to look the name up: {e}");
            self.resolved(attempt, Err((e.raw_os_error().unwrap_or(0), text)));
        }
    }

    fn resolved(&mut self, attempt: AttemptId, found: ResolvedRoutes) {
        let Some(dial) = self.attempts.get_mut(&attempt).and_then(|attempt| attempt.dial.as_mut()) else { return };
        match found {
            Ok(addresses) => {
                dial.addresses(addresses);
                self.dial_next(attempt);
            }
            Err((os_errno, text)) => {
                let verdict = dial.failed(Instant::now(), os_errno, &text);
                self.follow(attempt, verdict);
            }
        }
    }

    /// Dials the next address on this line, which is fresh.
    fn dial_next(&mut self, id: AttemptId) {
        let now = Instant::now();
        let Some(DialAttempt { conn: Some(conn), dial: Some(dial), .. }) = self.attempts.get_mut(&id) else { return };
        let Some(address) = dial.next_address(now) else {
            let verdict = dial.failed(now, libc::EADDRNOTAVAIL, "the name has no address");
            return self.follow(id, verdict);
        };
        let inner = conn.lock();
        if !inner.has_attempt(id) {
            return; // ended meanwhile; the command to close is on its way
        }
        let dialled = inner.socket().map_or(Ok(()), |push| push.dial(&address));
        drop(inner);
        log::log(Level::Debug, || format!("connection {} dials {}", conn.id(), address.to_string_lossy()));
        match dialled {
            Ok(()) => self.timers.push(Reverse((dial.due(), Timer::Dial(id)))),
            Err(e) => {
                let text = format!("libzmq does not dial {}: {e}", address.to_string_lossy());
                let verdict = dial.failed(now, e.raw_os_error().unwrap_or(0), &text);
                self.follow(id, verdict);
            }
        }
    }

    fn dial_time(&mut self, attempt: AttemptId, now: Instant) {
        let Some(DialAttempt { conn: Some(conn), dial: Some(dial), .. }) = self.attempts.get_mut(&attempt) else {
            return;
        };
        let verdict = dial.on_time(now, || match conn.endpoint().target() {
            Target::Name { host, .. } => self.resolver.waits_behind(host),
            _ => None,
        });
        if verdict == Verdict::Wait {
            // The phase has changed since the timer was set.
            self.timers.push(Reverse((dial.due(), Timer::Dial(attempt))));
        }
        self.follow(attempt, verdict);
    }

    /// Reads a monitor to its end, then acts on what it said.
    fn hear(&mut self, id: AttemptId) {
        let mut heard = VecDeque::new();
        self.read_monitor(id, &mut heard);
        while let Some(event) = heard.pop_front() {
            if event == MonitorEvent::Ready {
                let tcp = self.own_descriptor(id);
                // libzmq says DISCONNECTED before it closes the descriptor: not said after we took ours, it is the
                // same connection, and not whoever got the number next.
                self.read_monitor(id, &mut heard);
                let gone =
                    heard.iter().any(|event| matches!(event, MonitorEvent::Disconnected(_) | MonitorEvent::Closed(_)));
                self.shaken_hands(id, tcp.filter(|_| !gone));
            } else {
                self.act(id, event);
            }
        }
    }

    fn read_monitor(&self, id: AttemptId, heard: &mut VecDeque<MonitorEvent>) {
        if let Some(attempt) = self.attempts.get(&id) {
            heard.extend(std::iter::from_fn(|| attempt.monitor.next()));
        }
    }

    /// A descriptor of our own for the line's TCP connection.
    fn own_descriptor(&self, id: AttemptId) -> Option<OwnedFd> {
        let attempt = self.attempts.get(&id)?;
        let fd = attempt.tcp.filter(|_| attempt.conn.as_ref().is_some_and(|conn| conn.values().acknowledgement()))?;
        // The number may mean something else by now, which the caller finds out.
        descriptor::duplicate(fd).ok()
    }

    fn shaken_hands(&mut self, id: AttemptId, tcp: Option<OwnedFd>) {
        let Some(DialAttempt { conn: Some(conn), dial, closing: false, .. }) = self.attempts.get_mut(&id) else {
            return;
        };
        let Some(dial) = dial.take() else { return };
        dial.succeeded();
        // The kernel's word of the peer's end, for the peer that our libzmq has stopped reading (it sends where it
        // should only receive) and that then leaves: no monitor tells of that.
        if let Some(tcp) = &tcp
            && let Err(e) = self.epoll.add_hang_up(tcp.as_raw_fd(), id.0 | TCP)
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

    /// The kernel says that the peer has closed, or that the connection is dead.
    fn hang_up(&mut self, id: AttemptId) {
        if let Some(DialAttempt { conn: Some(conn), dial: None, closing: false, .. }) = self.attempts.get(&id) {
            let conn = conn.clone();
            conn.owner().end(&conn, End::new(Transition::PeerGone, PEER_GONE));
        }
    }

    fn act(&mut self, id: AttemptId, event: MonitorEvent) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if event == MonitorEvent::Reaped {
            if let Some(attempt) = self.attempts.remove(&id) {
                // Closing the monitor's reader takes its descriptor out of the epoll.
                drop(attempt.monitor);
                if let Some(conn) = attempt.conn {
                    conn.attempt_gone();
                }
            }
            return;
        }
        if attempt.closing {
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
                let verdict = dial.failed(now, libc::ECONNREFUSED, "nobody listens there: TCP connected to itself");
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

    /// Does what a dial says.
    fn follow(&mut self, id: AttemptId, verdict: Verdict) {
        let Some(DialAttempt { conn: Some(conn), dial, .. }) = self.attempts.get_mut(&id) else { return };
        let conn = conn.clone();
        match verdict {
            Verdict::Wait => {}
            Verdict::Failed(failure) => {
                *dial = None;
                let end = End::new(Transition::DialFailed, failure.message).errno(failure.os_errno);
                conn.owner().end(&conn, end);
            }
            Verdict::TryNext => {
                if let Some(dial) = dial.take() {
                    self.move_on(&conn, dial);
                }
            }
        }
    }

    /// Goes on to the next address, on a fresh line: libzmq sockets are connected once.
    fn move_on(&mut self, conn: &Arc<Connection>, dial: Dial) {
        let made = open_attempt(&self.context, &self.descriptors, conn.values());
        let (id, push, monitor) = match made {
            Ok(attempt) => attempt,
            Err(e) => {
                let end = End::new(Transition::DialFailed, e.message).errno(e.os_errno);
                conn.owner().end(conn, end);
                return;
            }
        };
        conn.attempt_made();
        self.insert(id, monitor, Some(conn.clone()), Some(dial));
        match conn.lock().replace_attempt(id, push) {
            Ok((old, push)) => self.close(old, push),
            Err(push) => return self.close(id, push), // ended meanwhile
        }
        self.dial_next(id);
    }

    fn close(&mut self, id: AttemptId, push: PushSocket) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.closing = true;
            attempt.dial = None;
        }
        // The socket first, its monitor when libzmq has given it up.
        drop(push);
    }
}

const PEER_GONE: &str = "the peer is gone: it closed the connection, died, or stopped answering";

/// The end of a READY connection, by the errno that libzmq names.
fn peer_gone(errno: i32) -> End {
    match errno {
        // The peer closed it, which is no error of the system's.
        0 | libc::EPIPE => End::new(Transition::PeerGone, PEER_GONE),
        _ => {
            let text = format!("{PEER_GONE}: {}", io::Error::from_raw_os_error(errno));
            End::new(Transition::PeerGone, text).errno(errno)
        }
    }
}

/// As a C text. The texts come from parsed endpoints and have no NUL.
fn c_text(text: String) -> CString {
    CString::new(text).unwrap_or_default()
}
