//! A manager: one independent set of endpoints, nodes, fences, events and settings, behind one global lock.
//!
//! The lock is held to look up and to change maps, never while a socket is used or closed, and never during a wait.
//! Lock order: this lock, then connections' locks, then leaf locks (events, the tables of ids, the watcher's commands).

pub mod cache;
mod connect;
pub(crate) mod counts;
mod flight;
mod node_calls;
mod node_connect;
pub mod nodes;

use std::collections::VecDeque;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::connection::acknowledgement::release_tracker::ReleaseQueue;
use crate::connection::gate::Wakeups;
use crate::connection::owner::Owner;
use crate::connection::{Aftermath, Connection, Draining, End, EndReason, Finished, Transition};
use crate::delivery::Delivery;
use crate::error::{Error, Result, Status};
use crate::events::{Event, EventKind, Events};
use crate::ids::ManagerId;
use crate::manager::cache::{Cache, Fence};
use crate::manager::counts::{Counts, Past};
use crate::manager::flight::Flights;
use crate::manager::nodes::{Nodes, Remains};
use crate::net::endpoint::Endpoint;
use crate::options::{Key, Options, Reach, Source, Values};
use crate::runtime::Runtime;
use crate::sys::lock::{Condvar, Mutex, MutexGuard};
use crate::timeout::Timeout;

/// How many endings stay readable by id.
const REMEMBERED_ENDINGS: usize = 4096;

/// One independent set of endpoints.
pub struct Manager {
    id: ManagerId,
    sets: Mutex<Sets>,
    /// Signalled when a fence is set or the manager closes, for threads that wait between two dials. Used with `sets`.
    fenced: Condvar,
    /// Signalled when the sockets of an endpoint were made (see `flight.rs`). Goes with `sets`.
    landed: Condvar,
    /// Signalled when a failure report is left to be taken, and when the manager closes. Goes with `sets`.
    reported: Condvar,
    /// Signalled when a connection is READY or ends, a fence is set, or a node ends. Leaf lock.
    settled: (Mutex<node_connect::Settled>, Condvar),
    /// Signalled when libzmq has closed the last socket of a connection. Leaf lock.
    closed_signal: (Mutex<()>, Condvar),
    events: Arc<Events>,
    runtime: Arc<Runtime>,
    send_timeout_ms: AtomicU64,
    counts: Counts,
}

/// What the global lock guards.
pub(crate) struct Sets {
    pub(crate) values: Values,
    pub(crate) cache: Cache,
    pub(crate) nodes: Nodes,
    flights: Flights,
    /// Ended connections whose endings are remembered, oldest first.
    endings: VecDeque<Arc<Connection>>,
    pub(crate) past: Past,
    /// Set when no connection may be made any more: the status of later calls.
    closed: Option<Status>,
}

impl Manager {
    pub(crate) fn new(id: ManagerId, values: Values, runtime: Arc<Runtime>) -> Arc<Manager> {
        Arc::new(Manager {
            id,
            runtime,
            events: Arc::new(Events::new(values.count(Key::MaxEvents))),
            send_timeout_ms: AtomicU64::new(values.get(Key::SendTimeoutMs).unsigned_abs()),
            sets: Mutex::new(Sets {
                values,
                cache: Cache::default(),
                nodes: Nodes::new(),
                flights: Flights::default(),
                endings: VecDeque::new(),
                past: Past::default(),
                closed: None,
            }),
            fenced: Condvar::new(),
            landed: Condvar::new(),
            reported: Condvar::new(),
            settled: (Mutex::new(node_connect::Settled::default()), Condvar::new()),
            counts: Counts::default(),
            closed_signal: (Mutex::new(()), Condvar::new()),
        })
    }

    /// Its id.
    pub fn id(&self) -> ManagerId {
        self.id
    }

    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// What is counted without the global lock.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The configured `send_timeout_ms`.
    pub(crate) fn send_timeout(&self) -> Duration {
        Duration::from_millis(self.send_timeout_ms.load(Ordering::Relaxed))
    }

    /// The global lock, if it is free. For describe and dump.
    pub(crate) fn try_sets(&self) -> Option<MutexGuard<'_, Sets>> {
        self.sets.try_lock()
    }

    pub(crate) fn sets(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock()
    }

    /// The lock, if the manager still takes changes.
    fn open_sets(&self) -> Result<MutexGuard<'_, Sets>> {
        let sets = self.sets.lock();
        self.check_open(&sets).map(|()| sets)
    }

    fn check_open(&self, sets: &Sets) -> Result<()> {
        match sets.closed {
            None => Ok(()),
            Some(Status::Shutdown) => Err(Error::shut()),
            Some(status) => Err(Error::new(status, format!("manager {} was destroyed", self.id))),
        }
    }

    /// Changes settings: all of them, or none. Live connections keep the settings that they were made with.
    pub fn configure(&self, options: &Options) -> Result<()> {
        if self.id == ManagerId::NONE {
            options.only(&[Reach::Process, Reach::Manager, Reach::Connection], "kvconn_configure")?;
        } else {
            options.only(&[Reach::Manager, Reach::Connection], "kvconn_configure of a manager other than 0")?;
        }
        let mut sets = self.open_sets()?;
        let values = sets.values.with(options)?.sourced(options, Source::Configure);
        self.runtime.configure(options)?;
        self.send_timeout_ms.store(values.get(Key::SendTimeoutMs).unsigned_abs(), Ordering::Relaxed);
        self.events.set_bound(values.count(Key::MaxEvents));
        sets.cache.trim(&values);
        sets.values = values;
        Ok(())
    }

    /// The event descriptor. It is readable while an event waits. It belongs to the manager.
    pub fn event_fd(&self) -> Result<RawFd> {
        self.events.fd().map_err(|e| {
            Error::limit(format!("no descriptor for events: {e}; raise RLIMIT_NOFILE"))
                .errno(e.raw_os_error().unwrap_or(0))
        })
    }

    /// The oldest waiting event, or the next one within the timeout. Kind NONE if there is none, and if the manager was
    /// destroyed in the meantime. SHUTDOWN.
    pub fn next_event(&self, timeout: Timeout) -> Result<Event> {
        let deadline = Instant::now() + timeout.or(self.send_timeout());
        match self.events.next(deadline) {
            Some(event) => Ok(event),
            None if self.events.is_closed() => match self.open_sets() {
                Err(e) if e.status == Status::Shutdown => Err(e),
                _ => Ok(Event::new(EventKind::None, "")),
            },
            None => Ok(Event::new(EventKind::None, "")),
        }
    }

    /// The handshake of a connection has succeeded.
    fn mark_ready(&self, conn: &Arc<Connection>, tcp: Option<OwnedFd>) {
        let mut sets = self.sets.lock();
        let mut inner = conn.lock();
        if inner.ready(tcp) {
            inner.wake_head();
            drop(inner);
            sets.nodes.endpoint_ready(conn.endpoint());
            self.note_settled();
        }
    }

    /// Ends one connection, if it has not ended.
    fn end_one(&self, conn: &Arc<Connection>, end: End) {
        let mut after = Aftermath::default();
        let mut sets = self.sets.lock();
        let lost = self.end_locked(&mut sets, conn, end, &mut after);
        if lost {
            let policy = sets.values.node_loss();
            for node in sets.nodes.endpoint_lost(conn.endpoint(), policy) {
                let reason = format!("node_loss: {} was lost", conn.endpoint());
                if let Ok(failure) = self.fail_node(&mut sets, node, &reason, &mut after) {
                    self.leave(&mut sets, failure);
                }
            }
        }
        drop(sets);
        after.run();
    }

    /// The same under the global lock. Returns true if the connection was READY and its peer is lost.
    fn end_locked(&self, sets: &mut Sets, conn: &Arc<Connection>, end: End, after: &mut Aftermath) -> bool {
        self.end_together(sets, std::slice::from_ref(conn), end, after)
            .first()
            .is_some_and(|(_, finished)| finished.ending == EndReason::PeerLost)
    }

    /// Ends several connections in one step. All of their locks are held when the first is marked, so no call finds one
    /// ended and another not. Returns those that had not ended before.
    fn end_together(
        &self,
        sets: &mut Sets,
        conns: &[Arc<Connection>],
        end: End,
        after: &mut Aftermath,
    ) -> Vec<(Arc<Connection>, Finished)> {
        let mut conns: Vec<_> = conns.iter().collect();
        conns.sort_by_key(|conn| conn.id()); // the order of locks
        let locked: Vec<_> = conns.iter().map(|conn| conn.lock()).collect();
        let mut marked = Vec::with_capacity(locked.len());
        for (conn, mut inner) in conns.into_iter().zip(locked) {
            if let Some(finished) = conn.finish(&mut inner, end.clone()) {
                marked.push((conn.clone(), finished, inner));
            }
        }
        let mut ended = Vec::with_capacity(marked.len());
        for (conn, finished, inner) in marked {
            let Delivery { accepted, acknowledged, .. } = finished.delivery;
            sets.past.ended(finished.ending.status(), accepted, acknowledged, inner.rescues());
            sets.cache.ended(&conn, finished, &sets.values, inner.end_text());
            after.close(inner);
            if !matches!(finished.ending, EndReason::ConnectFailed | EndReason::PeerLost) {
                sets.nodes.endpoint_closed_locally(conn.endpoint());
            }
            sets.endings.push_back(conn.clone());
            ended.push((conn, finished));
        }
        if !ended.is_empty() {
            self.note_settled();
        }
        sets.cache.trim(&sets.values);
        while sets.endings.len() > REMEMBERED_ENDINGS {
            // A thread that waits for its zero-copy buffers must still find it.
            if let Some(oldest) = sets.endings.pop_front()
                && oldest.forget()
            {
                self.runtime.registry().remove(oldest.id());
            }
        }
        ended
    }

    /// Fences every endpoint and forgets the nodes. Waits until the peers' kernels have acknowledged everything
    /// accepted, at most for `flush`. Then ends all connections. TIMEOUT: something was not acknowledged in time and is
    /// dropped. The ending events have the counts.
    pub fn disconnect_all(&self, flush: Timeout) -> Result<()> {
        let flush = flush.or(self.send_timeout());
        let deadline = Instant::now() + flush;
        let conns = self.drain(self.open_sets()?, Draining::Disconnecting);
        let text = "disconnected by kvconn_disconnect_all";
        let closed = self.close_drained(&conns, Transition::Disconnect, text, deadline);
        // A caller that does not wait did not ask for delivery, so unsent messages are no error.
        if flush.is_zero() { Ok(()) } else { closed }
    }

    /// `kvconn_shutdown`, first half: from now on nothing is accepted.
    pub(crate) fn begin_shutdown(&self) -> Vec<Arc<Connection>> {
        let mut sets = self.sets.lock();
        sets.closed = Some(Status::Shutdown);
        self.reported.notify_all();
        let conns = self.drain(sets, Draining::ShuttingDown);
        self.events.close();
        conns
    }

    /// `kvconn_shutdown`, second half.
    pub(crate) fn finish_shutdown(&self, conns: &[Arc<Connection>], deadline: Instant) -> Result<()> {
        let closed = self.close_drained(conns, Transition::Shutdown, "kvconn_shutdown was called", deadline);
        // A connection that ended before may still have zero-copy buffers: its peer was lost just now.
        let earlier: Vec<_> = self.sets.lock().endings.iter().cloned().collect();
        closed.and(self.wait_released_all(&earlier, deadline))
    }

    /// Fences every endpoint, forgets the nodes, and stops the connections from accepting messages.
    fn drain(&self, mut sets: MutexGuard<'_, Sets>, why: Draining) -> Vec<Arc<Connection>> {
        let conns: Vec<_> = sets.cache.iter().filter_map(|(_, entry)| entry.current().cloned()).collect();
        let woken: Vec<_> = conns.iter().map(|conn| conn.drain(why)).collect();
        let remains = self.forget(&mut sets);
        drop(sets);
        drop(remains);
        woken.into_iter().for_each(Wakeups::wake);
        conns
    }

    /// Forgets the nodes and fences every known endpoint. None may be dialled until the caller asks for it.
    fn forget(&self, sets: &mut Sets) -> Remains {
        let (owned, remains) = sets.nodes.forget_all();
        for endpoint in &owned {
            sets.cache.disowned(endpoint);
        }
        let endpoints: Vec<_> = sets.cache.iter().map(|(endpoint, _)| endpoint.clone()).collect();
        self.fence(sets, &endpoints, "kvconn_disconnect_all");
        remains
    }

    fn close_drained(
        &self,
        conns: &[Arc<Connection>],
        transition: Transition,
        text: &'static str,
        deadline: Instant,
    ) -> Result<()> {
        let left = || Timeout::After(deadline.saturating_duration_since(Instant::now()));
        let timed_out = |conn: &&Arc<Connection>| conn.flush(0, left()).0.is_err_and(|e| e.status == Status::Timeout);
        let unflushed: Vec<_> = conns.iter().filter(timed_out).collect();
        // Where acknowledgements are unknown, libzmq gets the rest of the time to send.
        let end = End::new(transition, text).linger(deadline.saturating_duration_since(Instant::now()));
        let mut after = Aftermath::default();
        let mut sets = self.sets.lock();
        self.end_together(&mut sets, conns, end, &mut after);
        drop(sets);
        after.run();
        // Acknowledged messages are delivered, even if libzmq does not close its socket in time.
        let closed = self.wait_closed(conns, deadline);
        drop(closed);
        let released = self.wait_released_all(conns, deadline);
        let unknown: Vec<_> = conns.iter().filter(|conn| conn.info().acknowledged.is_none()).cloned().collect();
        let sent = self.wait_sent(&unknown, deadline);
        late(&unflushed, "had messages that were not acknowledged in time")?;
        sent.and(released)
    }

    /// `kvconn_manager_destroy`: ends all connections and forgets everything.
    pub(crate) fn destroy(&self, deadline: Instant) -> Result<()> {
        let mut sets = self.sets.lock();
        sets.closed = Some(Status::Stale);
        self.reported.notify_all();
        let end = End::new(Transition::Disconnect, "disconnected by kvconn_manager_destroy");
        let conns: Vec<_> = sets.cache.iter().filter_map(|(_, entry)| entry.current().cloned()).collect();
        let mut after = Aftermath::default();
        self.end_together(&mut sets, &conns, end, &mut after);
        let remains = self.forget(&mut sets);
        let mut endings = std::mem::take(&mut sets.endings);
        drop(sets);
        drop(remains);
        after.run();
        self.events.close();
        let endings = endings.make_contiguous();
        let closed = self.wait_closed(endings, deadline);
        let released = self.wait_released_all(endings, deadline);
        // A thread that waits for the zero-copy buffers of a connection must find it until they are released.
        for ended in endings.iter().filter(|ended| ended.forget()) {
            self.runtime.registry().remove(ended.id());
        }
        closed.and(released)
    }

    /// Waits until the zero-copy buffers of these ended connections are released. Does not wait on the thread that
    /// releases them.
    fn wait_released_all(&self, conns: &[Arc<Connection>], deadline: Instant) -> Result<()> {
        let left = || Timeout::After(deadline.saturating_duration_since(Instant::now()));
        let out = |conn: &&Arc<Connection>| conn.wait_released(0, left()).is_err_and(|e| e.status == Status::Timeout);
        late(&conns.iter().filter(out).collect::<Vec<_>>(), "had zero-copy buffers that are not released yet")
    }

    fn fence(&self, sets: &mut Sets, endpoints: &[Endpoint], by: &'static str) {
        for endpoint in endpoints {
            sets.cache.fence(endpoint, Fence::Disconnected { by, at: Instant::now() });
        }
        sets.cache.trim(&sets.values);
        self.wake_fenced();
    }

    /// Wakes the threads that wait for a dial under the global lock: a fence was set, or the manager was closed.
    fn wake_fenced(&self) {
        self.fenced.notify_all();
        self.landed.notify_all();
        self.note_settled();
    }

    /// libzmq has closed the last socket of a connection.
    fn pulse_closed(&self) {
        let _pulse = self.closed_signal.0.lock();
        self.closed_signal.1.notify_all();
    }

    fn wait_closed(&self, conns: &[Arc<Connection>], deadline: Instant) -> Result<()> {
        let mut pulse = self.closed_signal.0.lock();
        loop {
            let left = conns.iter().filter(|conn| conn.gone().is_none()).count();
            if left == 0 {
                return Ok(());
            }
            if self.closed_signal.1.wait_until(&mut pulse, deadline).timed_out() {
                let left = conns.iter().filter(|conn| conn.gone().is_none()).count();
                return match left {
                    0 => Ok(()),
                    _ => Err(Error::new(Status::Timeout, format!("{left} connections are still being closed"))),
                };
            }
        }
    }

    /// The same for connections whose libzmq socket may send until the deadline. libzmq does not report whether it did.
    /// If it closed the socket before the deadline, everything was sent or the peer is gone. Otherwise the rest was
    /// dropped.
    fn wait_sent(&self, conns: &[Arc<Connection>], deadline: Instant) -> Result<()> {
        /// libzmq counts whole milliseconds.
        const EARLY: Duration = Duration::from_millis(2);
        self.wait_closed(conns, deadline)?;
        let unsent: Vec<_> = conns.iter().filter(|conn| conn.gone().is_none_or(|at| at + EARLY >= deadline)).collect();
        late(&unsent, "could not send everything in time")
    }
}

/// TIMEOUT if there are such connections: how many, and the first of them.
fn late(conns: &[&Arc<Connection>], what: &str) -> Result<()> {
    let Some(first) = conns.first() else { return Ok(()) };
    let (count, s) = (conns.len(), if conns.len() == 1 { "" } else { "s" });
    let which = if count == 1 { "to" } else { "the first to" };
    let text = format!("{count} connection{s} {what} ({which} {})", first.endpoint());
    Err(Error::new(Status::Timeout, text).about(first.id()).at(first.endpoint()))
}

impl Owner for Manager {
    fn send_timeout(&self) -> Duration {
        Manager::send_timeout(self)
    }

    fn count_refused(&self, status: Status) {
        self.counts.sends_refused.add(status);
    }

    fn count_wait(&self, time: Duration) {
        self.counts.waits.add(time);
    }

    fn reclaim_bytes(&self) -> bool {
        self.runtime.reclaim_bytes()
    }

    fn release_queue(&self) -> Result<Arc<ReleaseQueue>> {
        self.runtime.release_queue()
    }

    fn ready(&self, conn: &Arc<Connection>, tcp: Option<OwnedFd>) {
        self.mark_ready(conn, tcp);
    }

    fn end(&self, conn: &Arc<Connection>, end: End) {
        self.end_one(conn, end);
    }

    fn evict_after(&self, conn: &Arc<Connection>, limit: Duration) -> Option<Duration> {
        self.evict_idle(conn, limit)
    }

    fn sockets_closed(&self) {
        self.pulse_closed();
    }
}
