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

use crate::connection::dial::{Dial, Verdict, Way};
use crate::connection::socket::{Monitor, PushSocket, Seen, is_self_connected, open_line};
use crate::connection::{Connection, End, Happening};
use crate::descriptor;
use crate::endpoint::Target;
use crate::epoll::Epoll;
use crate::error::{Error, Result, Status};
use crate::ids::{ConnId, LineId};
use crate::lock::Mutex;
use crate::log::{self, Level};
use crate::options::Key;
use crate::process::Process;
use crate::route::Route;
use crate::thread::spawn_quiet;
use crate::wake::EventFd;

/// How many commands are worked off before the monitors are looked at again: closing thousands of sockets must not
/// keep a loss from being seen.
const COMMANDS_AT_ONCE: usize = 64;

/// How often a line is looked at whose monitor cannot be watched.
const UNWATCHED: Duration = Duration::from_millis(10);

/// The watcher's door: what other threads ask it to do.
pub(crate) struct Watcher {
    /// Leaf lock.
    commands: Arc<Mutex<VecDeque<Command>>>,
    wake: Arc<EventFd>,
}

/// A look-up's outcome: addresses as libzmq takes them, or errno and text.
type Resolved = std::result::Result<Vec<Way>, (i32, String)>;

enum Command {
    /// A new connection: watch its line and dial.
    Watch { line: LineId, monitor: Monitor, conn: Arc<Connection> },
    /// Its name has been looked up.
    Resolved { line: LineId, found: Resolved },
    /// The line is not used any more: close it.
    Close { line: LineId, push: PushSocket },
    /// A line that was made and never watched.
    Discard { line: LineId, push: PushSocket, monitor: Monitor },
    /// A queue has become full.
    CheckStall { conn: ConnId, at: Instant },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Dial(LineId),
    Watch(LineId),
    Stall(ConnId),
    Idle(ConnId),
}

impl Watcher {
    /// Starts the thread.
    pub(crate) fn start(process: &'static Process) -> Result<Watcher> {
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
            process,
            epoll,
            wake: wake.clone(),
            commands: commands.clone(),
            lines: HashMap::new(),
            timers: BinaryHeap::new(),
        };
        spawn_quiet("kvconn-watcher", move || watch.run()).map_err(|e| failed("a thread", e))?;
        Ok(Watcher { commands, wake })
    }

    fn ask(&self, command: Command) {
        ask(&self.commands, &self.wake, command);
    }

    /// Watches a new connection's first line, and dials it.
    pub(crate) fn watch(&self, line: LineId, monitor: Monitor, conn: Arc<Connection>) {
        self.ask(Command::Watch { line, monitor, conn });
    }

    /// Closes a line that was watched.
    pub(crate) fn close(&self, line: LineId, push: PushSocket) {
        self.ask(Command::Close { line, push });
    }

    /// Closes a line that was never watched.
    pub(crate) fn discard(&self, line: LineId, push: PushSocket, monitor: Monitor) {
        self.ask(Command::Discard { line, push, monitor });
    }

    /// Looks then whether a full queue has stalled.
    pub(crate) fn check_stall(&self, conn: ConnId, at: Instant) {
        self.ask(Command::CheckStall { conn, at });
    }
}

fn ask(commands: &Mutex<VecDeque<Command>>, wake: &EventFd, command: Command) {
    let mut commands = commands.lock();
    commands.push_back(command);
    // Rung under the lock, and only for the first: the watcher clears it before it looks.
    if commands.len() == 1 || wake.owes_ring() {
        wake.ring();
    }
}

/// One line under watch.
struct Line {
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
    process: &'static Process,
    epoll: Epoll,
    wake: Arc<EventFd>,
    commands: Arc<Mutex<VecDeque<Command>>>,
    lines: HashMap<LineId, Line>,
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
                    line if line & TCP != 0 => self.hang_up(LineId(line & !TCP)),
                    line => self.hear(LineId(line)),
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
                Command::Watch { line, monitor, conn } => self.begin(line, monitor, conn),
                Command::Resolved { line, found } => self.resolved(line, found),
                Command::Close { line, push } => self.close(line, push),
                Command::Discard { line, push, monitor } => {
                    self.insert(line, monitor, None, None);
                    self.close(line, push);
                }
                Command::CheckStall { conn, at } => self.timers.push(Reverse((at, Timer::Stall(conn)))),
            }
        }
        // More may be waiting, and nobody rings for them again.
        self.wake.ring();
    }

    fn work_off_timers(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            if at > now {
                return;
            }
            self.timers.pop();
            match timer {
                Timer::Dial(line) => {
                    // Behind with its work, it may have the dial's success before it, unread.
                    self.hear(line);
                    self.dial_time(line, now);
                }
                Timer::Watch(line) => self.watch_again(line, now),
                Timer::Stall(conn) => self.check_stall(conn, now),
                Timer::Idle(conn) => self.check_idle(conn, now),
            }
        }
    }

    /// Looks at a line that cannot be watched, until it can.
    fn watch_again(&mut self, id: LineId, now: Instant) {
        let Some(line) = self.lines.get(&id) else { return };
        if self.epoll.add(line.monitor.fd(), id.0).is_err() {
            self.timers.push(Reverse((now + UNWATCHED, Timer::Watch(id))));
        }
        self.hear(id);
    }

    fn check_stall(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.process.registry().find(id) else { return };
        let mut life = conn.lock();
        let again = life.check_stall();
        // It looked at the socket, and may have eaten the edge that the waiting head needs.
        life.touched();
        drop(life);
        if let Some(time) = again {
            self.timers.push(Reverse((now + time, Timer::Stall(id))));
        }
    }

    fn check_idle(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.process.registry().find(id) else { return };
        let limit = conn.values().ms(Key::IdleTimeoutMs);
        if let Some(time) = conn.manager().evict_after(&conn, limit) {
            self.timers.push(Reverse((now + time, Timer::Idle(id))));
        }
    }

    fn insert(&mut self, line: LineId, monitor: Monitor, conn: Option<Arc<Connection>>, dial: Option<Dial>) {
        if let Err(e) = self.epoll.add(monitor.fd(), line.0) {
            // The user's watches are used up (fs.epoll.max_user_watches), or memory is short.
            log::log(Level::Error, || format!("line {line} cannot be watched: {e}"));
            self.timers.push(Reverse((Instant::now() + UNWATCHED, Timer::Watch(line))));
        }
        self.lines.insert(line, Line { monitor, conn, dial, tcp: None, closing: false });
    }

    /// A new connection.
    fn begin(&mut self, line: LineId, monitor: Monitor, conn: Arc<Connection>) {
        let now = Instant::now();
        let values = conn.values();
        let mut dial = Dial::new(now, values);
        let route = Route::new(values);
        dial.addresses(match conn.endpoint().target() {
            Target::Address(address) => Some(route.to(*address)),
            Target::Ipc { path } => Some(Ok(c_text(format!("ipc://{path}")))),
            Target::Name { .. } => None,
        });
        let due = dial.due();
        self.insert(line, monitor, Some(conn.clone()), Some(dial));
        match conn.endpoint().target() {
            Target::Name { host, port } => {
                self.timers.push(Reverse((due, Timer::Dial(line))));
                self.look_up(line, host, *port, route);
            }
            _ => self.dial_next(line),
        }
    }

    fn look_up(&mut self, line: LineId, host: &str, port: u16, route: Route) {
        let (commands, wake) = (self.commands.clone(), self.wake.clone());
        let done = move |found: std::result::Result<Vec<_>, crate::resolve::ResolveError>| {
            let found = match found {
                Ok(addresses) => Ok(addresses.into_iter().map(|address| route.to(address)).collect()),
                Err(e) => Err((e.os_errno, e.to_string())),
            };
            ask(&commands, &wake, Command::Resolved { line, found });
        };
        if let Err(e) = self.process.resolver().resolve(host, port, Box::new(done)) {
            let text = format!("no thread to look the name up: {e}");
            self.resolved(line, Err((e.raw_os_error().unwrap_or(0), text)));
        }
    }

    fn resolved(&mut self, line: LineId, found: Resolved) {
        let Some(dial) = self.lines.get_mut(&line).and_then(|line| line.dial.as_mut()) else { return };
        match found {
            Ok(addresses) => {
                dial.addresses(addresses);
                self.dial_next(line);
            }
            Err((os_errno, text)) => {
                let verdict = dial.failed(Instant::now(), os_errno, &text);
                self.follow(line, verdict);
            }
        }
    }

    /// Dials the next address on this line, which is fresh.
    fn dial_next(&mut self, id: LineId) {
        let now = Instant::now();
        let Some(Line { conn: Some(conn), dial: Some(dial), .. }) = self.lines.get_mut(&id) else { return };
        let Some(address) = dial.next_address(now) else {
            let verdict = dial.failed(now, 0, "the name has no address");
            return self.follow(id, verdict);
        };
        let life = conn.lock();
        if !life.has_line(id) {
            return; // ended meanwhile; the command to close is on its way
        }
        let dialled = life.socket().map_or(Ok(()), |push| push.dial(&address));
        drop(life);
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

    fn dial_time(&mut self, line: LineId, now: Instant) {
        let Some(dial) = self.lines.get_mut(&line).and_then(|line| line.dial.as_mut()) else { return };
        let verdict = dial.on_time(now);
        if verdict == Verdict::Wait {
            // The phase has changed since the timer was set.
            self.timers.push(Reverse((dial.due(), Timer::Dial(line))));
        }
        self.follow(line, verdict);
    }

    /// Reads a monitor to its end, then acts on what it said.
    fn hear(&mut self, id: LineId) {
        let mut heard = VecDeque::new();
        self.read_monitor(id, &mut heard);
        while let Some(seen) = heard.pop_front() {
            if seen == Seen::Ready {
                let tcp = self.own_descriptor(id);
                // libzmq says DISCONNECTED before it closes the descriptor: not said after we took ours, it is the
                // same connection, and not whoever got the number next.
                self.read_monitor(id, &mut heard);
                let gone = heard.iter().any(|seen| matches!(seen, Seen::Disconnected(_) | Seen::Closed(_)));
                self.shaken_hands(id, tcp.filter(|_| !gone));
            } else {
                self.act(id, seen);
            }
        }
    }

    fn read_monitor(&self, id: LineId, heard: &mut VecDeque<Seen>) {
        if let Some(line) = self.lines.get(&id) {
            heard.extend(std::iter::from_fn(|| line.monitor.next()));
        }
    }

    /// A descriptor of our own for the line's TCP connection.
    fn own_descriptor(&self, id: LineId) -> Option<OwnedFd> {
        let line = self.lines.get(&id)?;
        let fd = line.tcp.filter(|_| line.conn.as_ref().is_some_and(|conn| conn.values().acknowledgement()))?;
        // The number may mean something else by now, which the caller finds out.
        descriptor::duplicate(fd).ok()
    }

    fn shaken_hands(&mut self, id: LineId, tcp: Option<OwnedFd>) {
        let Some(Line { conn: Some(conn), dial, closing: false, .. }) = self.lines.get_mut(&id) else { return };
        if dial.take().is_none() {
            return;
        }
        // The kernel's word of the peer's end, for the peer that our libzmq has stopped reading (it sends where it
        // should only receive) and that then leaves: no monitor tells of that.
        if let Some(tcp) = &tcp
            && let Err(e) = self.epoll.add_hang_up(tcp.as_raw_fd(), id.0 | TCP)
        {
            log::log(Level::Error, || format!("line {id}: its descriptor cannot be watched: {e}"));
        }
        let conn = conn.clone();
        conn.manager().ready(&conn, tcp);
        let idle = conn.values().ms(Key::IdleTimeoutMs);
        if !idle.is_zero() {
            self.timers.push(Reverse((Instant::now() + idle, Timer::Idle(conn.id()))));
        }
    }

    /// The kernel says that the peer has closed, or that the connection is dead.
    fn hang_up(&mut self, id: LineId) {
        if let Some(Line { conn: Some(conn), dial: None, closing: false, .. }) = self.lines.get(&id) {
            let conn = conn.clone();
            conn.manager().end(&conn, End::new(Happening::PeerGone, PEER_GONE));
        }
    }

    fn act(&mut self, id: LineId, seen: Seen) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        if seen == Seen::Reaped {
            if let Some(line) = self.lines.remove(&id) {
                // Closing the monitor's reader takes its descriptor out of the epoll.
                drop(line.monitor);
                if let Some(conn) = line.conn {
                    conn.line_gone();
                }
            }
            return;
        }
        if line.closing {
            return;
        }
        let Some(conn) = line.conn.clone() else { return };
        let now = Instant::now();
        match (&mut line.dial, seen) {
            (Some(dial), Seen::Connected(fd)) if is_self_connected(fd) => {
                let verdict = dial.failed(now, libc::ECONNREFUSED, "nobody listens there: TCP connected to itself");
                self.follow(id, verdict);
            }
            (Some(dial), seen) => {
                if let Seen::Connected(fd) = seen {
                    line.tcp = Some(fd);
                }
                let verdict = dial.on_seen(seen, now);
                if verdict == Verdict::Wait {
                    self.timers.push(Reverse((dial.due(), Timer::Dial(id))));
                }
                self.follow(id, verdict);
            }
            (None, Seen::Disconnected(errno) | Seen::Closed(errno)) => conn.manager().end(&conn, peer_gone(errno)),
            (None, _) => {}
        }
    }

    /// Does what a dial says.
    fn follow(&mut self, id: LineId, verdict: Verdict) {
        let Some(Line { conn: Some(conn), dial, .. }) = self.lines.get_mut(&id) else { return };
        let conn = conn.clone();
        match verdict {
            Verdict::Wait => {}
            Verdict::Failed(failure) => {
                *dial = None;
                let end = End::new(Happening::DialFailed, failure.message).errno(failure.os_errno);
                conn.manager().end(&conn, end);
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
        let made =
            self.process.engine().and_then(|engine| open_line(&engine.context, self.process.budget(), conn.values()));
        let (id, push, monitor) = match made {
            Ok(line) => line,
            Err(e) => {
                let end = End::new(Happening::DialFailed, e.message).errno(e.os_errno);
                conn.manager().end(conn, end);
                return;
            }
        };
        conn.line_made();
        self.insert(id, monitor, Some(conn.clone()), Some(dial));
        match conn.lock().replace_line(id, push) {
            Ok((old, push)) => self.close(old, push),
            Err(push) => return self.close(id, push), // ended meanwhile
        }
        self.dial_next(id);
    }

    fn close(&mut self, id: LineId, push: PushSocket) {
        if let Some(line) = self.lines.get_mut(&id) {
            line.closing = true;
            line.dial = None;
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
        0 | libc::EPIPE => End::new(Happening::PeerGone, PEER_GONE),
        _ => {
            let text = format!("{PEER_GONE}: {}", io::Error::from_raw_os_error(errno));
            End::new(Happening::PeerGone, text).errno(errno)
        }
    }
}

/// As a C text. The texts come from parsed endpoints and have no NUL.
fn c_text(text: String) -> CString {
    CString::new(text).unwrap_or_default()
}
