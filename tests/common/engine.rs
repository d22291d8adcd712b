//! The engine's side of a test: a manager of its own, driven through the core's API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvconn::connection::message::Message;
use kvconn::connection::{Connection, ConnectionInfo, ConnectionState};
use kvconn::error::{Error, Result, Status};
use kvconn::events::{Event, EventKind};
use kvconn::ids::{ConnId, ManagerId, NodeId};
use kvconn::manager::Manager;
use kvconn::net::endpoint::Endpoint;
use kvconn::options::Options;
use kvconn::process::Process;
use kvconn::timeout::Timeout;

use super::load::Stopwatch;
use super::{Peer, PeerOptions, ms, wait_until};

/// How long a connection to a healthy peer on this machine may take to be READY, on a loaded machine.
pub const READY_LIMIT: Duration = Duration::from_secs(10);

/// A manager of its own; dropping it destroys the manager and everything in it. `Deref`s to the manager.
pub struct Engine {
    manager: Arc<Manager>,
}

impl std::ops::Deref for Engine {
    type Target = Arc<Manager>;

    fn deref(&self) -> &Arc<Manager> {
        &self.manager
    }
}

impl Engine {
    /// A manager with the defaults.
    #[track_caller]
    pub fn new() -> Engine {
        Engine::with(&[])
    }

    /// A manager with these options, of managers or of connections.
    #[track_caller]
    pub fn with(settings: &[(&str, &str)]) -> Engine {
        let process = Process::current().expect("a process");
        let id = process.create_manager(Some(&options(settings))).expect("a manager");
        Engine { manager: process.manager(id).expect("the manager just made") }
    }

    pub fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    pub fn id(&self) -> ManagerId {
        self.manager.id()
    }

    /// Connects and waits until it is READY.
    #[track_caller]
    pub fn ready(&self, endpoint: &str) -> Arc<Connection> {
        self.try_ready(endpoint, &[]).unwrap_or_else(|error| panic!("connecting {endpoint}: {error:?}"))
    }

    /// The same with options.
    #[track_caller]
    pub fn ready_with(&self, endpoint: &str, settings: &[(&str, &str)]) -> Arc<Connection> {
        self.try_ready(endpoint, settings).unwrap_or_else(|error| panic!("connecting {endpoint}: {error:?}"))
    }

    fn try_ready(&self, endpoint: &str, settings: &[(&str, &str)]) -> Result<Arc<Connection>> {
        let options = (!settings.is_empty()).then(|| options(settings));
        self.manager.connect(endpoint, options.as_ref(), after(READY_LIMIT)).map(connection)
    }

    /// `kvconn_connect` without options, as it is.
    pub fn connect(&self, endpoint: &str, wait: Duration) -> Result<ConnId> {
        self.manager.connect(endpoint, None, after(wait))
    }

    /// The same with options.
    pub fn connect_with(&self, endpoint: &str, settings: &[(&str, &str)], wait: Duration) -> Result<ConnId> {
        self.manager.connect(endpoint, Some(&options(settings)), after(wait))
    }

    /// Dials without waiting for READY. It waits for sockets that are still being closed, which a busy machine makes late.
    #[track_caller]
    pub fn lazy(&self, endpoint: &str) -> Arc<Connection> {
        let begun = Instant::now();
        loop {
            match self.connect(endpoint, Duration::ZERO) {
                Ok(id) => return connection(id),
                Err(error) if error.status == Status::Timeout && begun.elapsed() < ms(10_000) => {}
                Err(error) => panic!("connecting {endpoint}: {error:?}"),
            }
        }
    }

    /// Sends on this connection; the sequence.
    pub fn send(&self, conn: &Arc<Connection>, frames: &[&[u8]], timeout: Duration) -> Result<u64> {
        send(conn, frames, timeout)
    }

    /// `kvconn_send_to`.
    pub fn send_to(&self, endpoint: &str, frames: &[&[u8]], timeout: Duration) -> Result<(ConnId, u64)> {
        self.manager.send_to(endpoint, &mut || message(frames), after(timeout))
    }

    /// Opens a node (a new life when it has none) and registers these endpoints.
    #[track_caller]
    pub fn node(&self, name: &str, endpoints: &[&str]) -> NodeId {
        let (node, _) = self.manager.node_open(name).unwrap_or_else(|error| panic!("opening {name}: {error:?}"));
        let added = self.manager.node_add_endpoints(node, endpoints, None);
        added.unwrap_or_else(|error| panic!("registering {endpoints:?} with {name}: {error:?}"));
        node
    }

    /// The events that wait, all of them.
    pub fn events(&self) -> Vec<Event> {
        let next = || self.manager.next_event(after(Duration::ZERO)).expect("an event or none");
        std::iter::from_fn(|| Some(next()).filter(|event| event.kind != EventKind::None)).collect()
    }

    /// Those of this kind among the events that wait; the others are gone too.
    pub fn events_of(&self, kind: EventKind) -> Vec<Event> {
        self.events().into_iter().filter(|event| event.kind == kind).collect()
    }

    /// Reads events until one of this kind comes; panics with what came instead after `deadline`.
    #[track_caller]
    pub fn expect_event(&self, kind: EventKind, deadline: Duration) -> Event {
        let begun = Instant::now();
        let mut others = Vec::new();
        loop {
            let left = deadline.saturating_sub(begun.elapsed());
            let event = self.manager.next_event(after(left)).expect("an event or none");
            if event.kind == kind {
                return event;
            }
            let over = event.kind == EventKind::None && begun.elapsed() >= deadline;
            assert!(!over, "waited {deadline:?} in vain for an event {kind:?}; there were {others:?}");
            if event.kind != EventKind::None {
                others.push((event.kind, event.conn));
            }
        }
    }

    /// Sends small messages without waiting until the queue is full; how many went. The peer must have been stopped.
    #[track_caller]
    pub fn fill(&self, conn: &Arc<Connection>, frame: &[u8]) -> u64 {
        let begun = Instant::now();
        let mut accepted = 0;
        // The kernel takes a little more after its probes of the closed window, 35 and 200 ms later; then no more for a
        // long time. So full is when nothing fits for 300 ms, in which libzmq's thread has had a processor.
        let mut full_since = None;
        loop {
            assert!(begun.elapsed() < Duration::from_secs(20), "{accepted} messages and the queue is not full");
            match send(conn, &[frame], Duration::ZERO) {
                Ok(_) => {
                    accepted += 1;
                    full_since = None;
                }
                Err(error) => {
                    assert_eq!(error.status, Status::Timeout, "filling the queue: {error:?}");
                    let since = full_since.get_or_insert_with(Stopwatch::start);
                    if since.elapsed() > ms(300) + since.excused().min(ms(1000)) {
                        return accepted;
                    }
                    std::thread::sleep(ms(1));
                }
            }
        }
    }
}

impl Default for Engine {
    fn default() -> Engine {
        Engine::new()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Ok(process) = Process::current() {
            // TIMEOUT harms nothing.
            process.destroy_manager(self.manager.id(), after(Duration::from_secs(2))).ok();
        }
    }
}

/// Options from their names and values.
#[track_caller]
pub fn options(settings: &[(&str, &str)]) -> Options {
    let mut options = Options::default();
    for (name, value) in settings {
        options.set(name, value).unwrap_or_else(|error| panic!("option {name}={value}: {error:?}"));
    }
    options
}

/// An endpoint's canonical text, which reports and events have.
#[track_caller]
pub fn canonical(endpoint: &str) -> String {
    Endpoint::parse(endpoint).unwrap_or_else(|error| panic!("{endpoint}: {error}")).to_string()
}

/// A caller's timeout.
pub fn after(time: Duration) -> Timeout {
    Timeout::After(time)
}

/// A connection by its id; it is live, or its end is remembered.
#[track_caller]
pub fn connection(id: ConnId) -> Arc<Connection> {
    let found = Process::current().and_then(|process| process.connection(id));
    found.unwrap_or_else(|error| panic!("connection {id}: {error:?}"))
}

/// The frames as a message, copied.
pub fn message(frames: &[&[u8]]) -> Result<Message> {
    Message::from_frames(frames.iter().copied())
}

/// Sends on this connection; the sequence.
pub fn send(conn: &Arc<Connection>, frames: &[&[u8]], timeout: Duration) -> Result<u64> {
    conn.send_frames(frames, after(timeout))
}

/// The status of a result: OK, or its error's.
pub fn status_of<T>(result: &Result<T>) -> Status {
    result.as_ref().err().map_or(Status::Ok, |error| error.status)
}

/// The error of a result that must be one, with this status.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T>, status: Status) -> Error {
    let error = result.expect_err("a call that must fail");
    assert_eq!(error.status, status, "{error:?}");
    error
}

/// Waits until the connection is over; how it is then.
#[track_caller]
pub fn wait_ended(conn: &Arc<Connection>, deadline: Duration) -> ConnectionInfo {
    let what = format!("connection {} to {} is over", conn.id(), conn.endpoint());
    wait_until(&what, deadline, || conn.info().state == ConnectionState::Ended);
    conn.info()
}

/// Waits until that many threads wait in a send on the connection.
#[track_caller]
pub fn wait_waiting(conn: &Arc<Connection>, threads: u32, deadline: Duration) {
    let what = format!("{threads} threads wait in a send to {}", conn.endpoint());
    wait_until(&what, deadline, || conn.info().waiting >= threads);
}

/// An address of loopback that no other test has, be it in this process or in another: its ports stay free while a peer
/// restarts. (Of 2^23 addresses, each call takes another; that two running tests get the same is as good as excluded.)
pub fn own_address() -> String {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // An odd factor spreads the calls of one process among the numbers of other processes.
    let call = CALLS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9);
    let [_, a, b, c] = (std::process::id().wrapping_add(call) % (1 << 23)).to_be_bytes();
    format!("127.{}.{b}.{c}", 64 + a)
}

/// A frame that fills the queue to a stopped `narrow_peer` after a few.
pub const LARGE: &[u8] = &[b'x'; 64 * 1024];

/// A peer whose kernel and libzmq hold little, so that the queue to it fills soon once it is stopped.
#[track_caller]
pub fn narrow_peer(endpoints: usize) -> Peer {
    Peer::with(PeerOptions { endpoints, rcvbuf: 4096, rcvhwm: 1, log: false, ..PeerOptions::default() })
}

/// Sets a flag when it is dropped, also by a failed assertion: the threads of a scope that look at it end.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads in a call that waits; each notes when it returned.
pub struct Waiting<T> {
    threads: Vec<JoinHandle<(T, Instant)>>,
    watch: Stopwatch,
}

impl<T: Send + 'static> Waiting<T> {
    /// Starts one thread.
    pub fn one(call: impl FnOnce() -> T + Send + 'static) -> Waiting<T> {
        Waiting { watch: Stopwatch::start(), threads: vec![std::thread::spawn(|| (call(), Instant::now()))] }
    }

    /// These and those.
    pub fn and(mut self, others: Waiting<T>) -> Waiting<T> {
        self.add(others);
        self
    }

    /// Those as well.
    pub fn add(&mut self, others: Waiting<T>) {
        self.threads.extend(others.threads);
    }

    /// What the calls returned, all of them at the latest `limit` after `since`; the machine's load is excused.
    #[track_caller]
    pub fn return_within(self, limit: Duration, since: Instant) -> Vec<T> {
        let ended = self.threads.into_iter().map(|thread| thread.join().expect("a thread that waited"));
        let ended: Vec<_> = ended.collect();
        let last = ended.iter().map(|(_, at)| at.saturating_duration_since(since)).max().unwrap_or_default();
        let excused = self.watch.excused();
        let text = "after what should have ended it; allowed are";
        assert!(last <= limit + excused, "a call returned {last:?} {text} {limit:?} and {excused:?} for the load");
        ended.into_iter().map(|(result, _)| result).collect()
    }
}

/// That many threads in a send that waits for room, for half a minute; returns when they wait.
#[track_caller]
pub fn waiting_senders(conn: &Arc<Connection>, count: u32) -> Waiting<Result<u64>> {
    let send = |conn: Arc<Connection>| Waiting::one(move || send(&conn, &[LARGE], Duration::from_secs(30)));
    let senders = (1..count).map(|_| send(conn.clone())).fold(send(conn.clone()), Waiting::and);
    wait_waiting(conn, count, Duration::from_secs(10));
    senders
}

/// The text of the only frame of a message.
#[track_caller]
pub fn text(message: &[Vec<u8>]) -> String {
    assert_eq!(message.len(), 1, "a message of one frame");
    String::from_utf8_lossy(&message[0]).into_owned()
}
