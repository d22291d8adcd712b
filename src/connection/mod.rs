//! One connection: one life of one PUSH socket to one endpoint.

pub mod acknowledgement;
pub mod batch;
pub(crate) mod dial;
pub(crate) mod gate;
mod handover;
mod inner;
pub mod message;
pub(crate) mod owner;
pub(crate) mod registry;
pub(crate) mod socket;
pub(crate) mod state;
mod timeouts;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::budget::bytes::Reservation;
use crate::connection::message::Message;
use crate::delivery::{EndedBy, Release};
use crate::error::{Error, Result, Status};
use crate::events::Events;
use crate::ids::{AttemptId, ConnId};
use crate::net::endpoint::Endpoint;
use crate::options::Values;
use crate::timeout::Timeout;

use acknowledgement::buffers::{self, ZeroCopyBuffers};
use dial::AddressHistory;
use gate::{Access, Channel, Gate, Patience, Wakeups};
use inner::{ConnectionInner, DEAD_PIPE};
pub(crate) use inner::{End, Finished};
use owner::{Owner, SocketWatcher};
use socket::PushSocket;
pub use state::{EndReason, State, Transition};

/// One connection. Kept after its end, without its socket, for as long as the ending is remembered.
pub struct Connection {
    id: ConnId,
    endpoint: Endpoint,
    owner: Arc<dyn Owner>,
    values: Arc<Values>,
    dialled: Instant,
    /// What its endpoint's dials have taught about the addresses of its name.
    addresses: Arc<AddressHistory>,
    /// A hint that spares copying a message for a connection that has ended; the truth is behind the gate.
    over: AtomicBool,
    /// Lines that libzmq has not given up yet.
    attempts: AtomicUsize,
    /// When it gave up the last.
    gone: OnceLock<Instant>,
    gate: Gate<ConnectionInner>,
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
    /// The last message accepted.
    pub accepted: u64,
    /// The last message that the peer's kernel has acknowledged; `None`: nobody can tell.
    pub acknowledged: Option<u64>,
    /// Every buffer that was lent with a message up to this one is the caller's again.
    pub released: u64,
    /// Bytes on the wire that are on the way: what counts against the budget.
    pub queued_bytes: u64,
    /// How it ended.
    pub ended_by: EndedBy,
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
        (owner, events): (Arc<dyn Owner>, Arc<Events>),
        values: Arc<Values>,
        attempt: (AttemptId, PushSocket),
        addresses: Arc<AddressHistory>,
        (watcher, reservation): (Arc<dyn SocketWatcher>, Reservation),
    ) -> Arc<Connection> {
        let id = ConnId::fresh();
        let inner = ConnectionInner::new(id, endpoint.clone(), &values, attempt, events, (watcher, reservation));
        Arc::new(Connection {
            id,
            endpoint,
            owner,
            values,
            dialled: Instant::now(),
            addresses,
            over: AtomicBool::new(false),
            attempts: AtomicUsize::new(1),
            gone: OnceLock::new(),
            gate: Gate::new(inner),
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

    pub(crate) fn owner(&self) -> &Arc<dyn Owner> {
        &self.owner
    }

    pub(crate) fn values(&self) -> &Arc<Values> {
        &self.values
    }

    /// What its endpoint's dials have taught about the addresses of its name.
    pub(crate) fn addresses(&self) -> &Arc<AddressHistory> {
        &self.addresses
    }

    /// When its dial began.
    pub(crate) fn dialled(&self) -> Instant {
        self.dialled
    }

    /// Sends one whole message on this life, or fails without its being accepted. Waits for READY and for room, up
    /// to the timeout. `message` is asked for once, when it is clear that it can be tried.
    pub fn send(self: &Arc<Self>, message: &mut dyn FnMut() -> Result<Message>, timeout: Timeout) -> Result<u64> {
        self.counted(self.offer(message, timeout))
    }

    /// The same result of a send, once it is counted.
    pub(crate) fn counted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|e| self.owner.count_refused(e.status))
    }

    /// A send that is not counted when it is refused.
    pub(crate) fn offer(
        self: &Arc<Self>,
        message: &mut dyn FnMut() -> Result<Message>,
        timeout: Timeout,
    ) -> Result<u64> {
        self.check_lives()?;
        self.pass(&mut message()?, timeout)
    }

    /// The same with frames that are not copied. On success `release` is called once, on the thread kvconn-release, when they are
    /// the caller's again, which may be before this returns; an error means that they are, and that it will not be called.
    ///
    /// # Safety
    /// The frames can be read and do not change until they are the caller's again.
    pub unsafe fn send_owned(
        self: &Arc<Self>,
        frames: &[*const [u8]],
        release: Option<Release>,
        timeout: Timeout,
    ) -> Result<u64> {
        // SAFETY: the same contract.
        self.counted(unsafe { self.send_zero_copy(frames, release, timeout) })
    }

    /// # Safety
    /// As for [`send_owned`](Self::send_owned).
    unsafe fn send_zero_copy(
        self: &Arc<Self>,
        frames: &[*const [u8]],
        release: Option<Release>,
        timeout: Timeout,
    ) -> Result<u64> {
        self.check_lives()?;
        let queue = self.owner.release_queue()?;
        let (in_flight, freed, mechanism) = self.gate.lock().tracking();
        let buffers = ZeroCopyBuffers::new(self.id, in_flight, release);
        // SAFETY: the same contract; on an error the frames are waited for below.
        let mut message = unsafe { Message::zero_copy(frames, buffers, mechanism, &freed, queue) }?;
        let tracker = message.tracker().cloned();
        let sent = self.pass(&mut message, timeout);
        drop(message);
        if sent.is_err() && !tracker.is_none_or(|tracker| tracker.wait_freed()) {
            let text = "libzmq still holds the buffers of the rejected message; do not free or modify them";
            return Err(Error::new(Status::Internal, text).about(self.id).at(&self.endpoint));
        }
        sent
    }

    /// An error when it has ended, without its lock while it lives.
    fn check_lives(&self) -> Result<()> {
        match self.over.load(Ordering::Relaxed) {
            true => self.gate.lock().refusal().map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    fn pass(self: &Arc<Self>, message: &mut Message, timeout: Timeout) -> Result<u64> {
        let timeout = timeout.or(self.owner.send_timeout());
        let (mut begun, mut waits) = (None, false);
        let mut pass = |message: &mut Message| {
            self.gate.pass(message, |inner| {
                // Only who must wait asks for the time.
                let begun = *begun.get_or_insert_with(Instant::now);
                let patience = inner.patience(timeout, begun);
                waits |= matches!(patience, Patience::Until(_));
                patience
            })
        };
        let mut result = pass(message);
        if self.bytes_reclaimed(&result) {
            result = pass(message);
        }
        if let (Some(begun), true) = (begun, waits) {
            self.owner.count_wait(begun.elapsed());
        }
        self.noticing_loss(result)
    }

    /// The same result of a send, after the end that it may tell of.
    fn noticing_loss(self: &Arc<Self>, result: Result<u64>) -> Result<u64> {
        if matches!(&result, Err(error) if error.status == Status::PeerLost) {
            // It may be this very send that found the pipe dead; otherwise this changes nothing.
            self.owner.end(self, End::new(Transition::PeerGone, DEAD_PIPE));
        }
        result
    }

    /// Waits until the buffers of every message up to `sequence` (0: all accepted by now) are the caller's again. TIMEOUT;
    /// WOULD_DEADLOCK on the thread that gives them back; INVALID for a message that was not accepted yet.
    pub fn wait_released(&self, sequence: u64, timeout: Timeout) -> Result<()> {
        let error = |status, text: String| Err(Error::new(status, text).about(self.id).at(&self.endpoint));
        let (accepted, (in_flight, ..)) = {
            let inner = self.gate.lock();
            (inner.known_delivery().accepted, inner.tracking())
        };
        if sequence > accepted {
            return error(Status::Invalid, format!("message {sequence} was not accepted yet; the last is {accepted}"));
        }
        let target = if sequence == 0 { accepted } else { sequence };
        let now = Instant::now();
        if buffers::is_release_thread() {
            return match in_flight.wait_released(target, now) {
                true => Ok(()),
                false => error(
                    Status::WouldDeadlock,
                    format!("the buffers of message {target} are given back by this very thread, after this call"),
                ),
            };
        }
        match in_flight.wait_released(target, now + timeout.or(self.owner.send_timeout())) {
            true => Ok(()),
            false => {
                let first = in_flight.first().unwrap_or(target);
                error(
                    Status::Timeout,
                    format!("the buffers of message {first} were not given back within the time given"),
                )
            }
        }
    }

    /// Gives back what it does not need of the process's budget of bytes, unless somebody uses it at this moment.
    pub(crate) fn try_give_back(&self) {
        if let Some(mut inner) = self.gate.try_lock() {
            inner.give_back();
        }
    }

    /// It is to be forgotten; false while buffers are lent: whoever gives back the last one forgets it.
    pub(crate) fn forget(&self) -> bool {
        self.gate.lock().tracking().0.forget()
    }

    /// Waits until it is READY; the error says why it never will be, or that the time is over.
    pub(crate) fn wait_ready(&self, deadline: Instant) -> Result<()> {
        let found = self.gate.wait_for(deadline, |inner| match inner.state {
            State::Connecting => inner.refusal().map(Err),
            State::Ready => Some(Ok(())),
            State::Ended(_) => Some(inner.refusal().map_or(Ok(()), Err)),
        });
        found.unwrap_or_else(|| {
            Err(Error::new(Status::Timeout, "not READY within the time given; the dial goes on")
                .about(self.id)
                .at(&self.endpoint))
        })
    }

    /// Waits until the peer's kernel has acknowledged every message up to `sequence` (0: all accepted by now), and tells
    /// what it has acknowledged in any case. TIMEOUT; UNSUPPORTED where nobody can tell; or why the connection ended.
    pub fn flush(&self, sequence: u64, timeout: Timeout) -> (Result<()>, u64) {
        /// How long to wait before the kernel is asked again: at first, and at most. It cannot be asked to tell.
        const FIRST: Duration = Duration::from_micros(100);
        const MOST: Duration = Duration::from_millis(5);
        let deadline = Instant::now() + timeout.or(self.owner.send_timeout());
        let target = match sequence {
            0 => self.gate.lock().known_delivery().accepted,
            sequence => sequence,
        };
        let mut step = FIRST;
        loop {
            if let Some(flushed) = self.flushed(target, Instant::now() >= deadline) {
                return flushed;
            }
            self.gate.wait_for(deadline.min(Instant::now() + step), |inner| inner.end.as_ref().map(|_| ()));
            step = (step * 2).min(MOST);
        }
    }

    /// Accepts nothing more; returns who must be told after the locks are given back.
    pub(crate) fn drain(&self, status: Status, text: &'static str) -> Wakeups {
        let mut inner = self.gate.lock();
        inner.drain(status, text);
        inner.refuse()
    }

    /// One look of a flush; `None` when it must go on.
    fn flushed(&self, target: u64, last: bool) -> Option<(Result<()>, u64)> {
        let mut inner = self.gate.lock();
        let delivery = inner.delivery();
        let error = |status, text: String| Err(Error::new(status, text).about(self.id).at(&self.endpoint));
        if target > delivery.accepted {
            let text = format!("message {target} was not accepted yet; the last is {}", delivery.accepted);
            return Some((error(Status::Invalid, text), delivery.acknowledged.unwrap_or(0)));
        }
        let Some(acknowledged) = delivery.acknowledged else {
            let text = "nobody can tell what the peer has: the endpoint is ipc, acknowledgement is off, or the kernel is too old";
            return Some((error(Status::Unsupported, text.into()), 0));
        };
        if acknowledged >= target {
            return Some((Ok(()), acknowledged));
        }
        if inner.end.is_some() {
            return inner.refusal().map(|ended| (Err(ended), acknowledged));
        }
        last.then(|| {
            let text = format!("acknowledged up to {acknowledged} of {target} within the time given");
            (error(Status::Timeout, text), acknowledged)
        })
    }

    /// Whether it is READY now.
    pub(crate) fn is_ready(&self) -> bool {
        self.gate.lock().state == State::Ready
    }

    /// How long it has been idle, if it is; `None` also when somebody uses it at this moment.
    pub fn try_idle(&self) -> Option<Duration> {
        self.gate.try_lock()?.idle()
    }

    /// Ends this life; a current successor at the same endpoint is not touched. Nothing is fenced. Ending what has
    /// ended is no error.
    pub fn disconnect(self: &Arc<Self>) -> Result<()> {
        self.owner.end(self, End::new(Transition::Disconnect, "disconnected by kvconn_disconnect"));
        Ok(())
    }

    /// What there is to know of it.
    pub fn info(&self) -> ConnectionInfo {
        self.info_of(&mut self.gate.lock())
    }

    /// The same without waiting for a lock; `None` when it is held.
    pub(crate) fn try_info(&self) -> Option<ConnectionInfo> {
        Some(self.info_of(&mut self.gate.try_lock()?))
    }

    fn info_of(&self, inner: &mut Access<'_, ConnectionInner>) -> ConnectionInfo {
        let delivery = inner.delivery();
        let (state, status) = match inner.state {
            State::Connecting => (ConnectionState::Connecting, Status::Ok),
            State::Ready => (ConnectionState::Ready, Status::Ok),
            State::Ended(ending) => (ConnectionState::Ended, ending.status()),
        };
        let until = inner.end.as_ref().map_or_else(Instant::now, |end| end.at);
        ConnectionInfo {
            conn: self.id,
            endpoint: self.endpoint.clone(),
            state,
            status,
            os_errno: inner.end.as_ref().map_or(0, |end| end.os_errno),
            accepted: delivery.accepted,
            acknowledged: delivery.acknowledged,
            released: inner.tracking().0.first().map_or(delivery.accepted, |first| first - 1),
            queued_bytes: if inner.end.is_none() { inner.queued() } else { 0 },
            ended_by: delivery.ended_by,
            waiting: u32::try_from(inner.waiting()).unwrap_or(u32::MAX),
            stalled: inner.stalled,
            age: self.dialled.elapsed(),
            ready_for: inner.ready_at.map_or(Duration::ZERO, |at| until.saturating_duration_since(at)),
            rescues: inner.rescues(),
            message: inner.end.as_ref().map_or_else(String::new, |end| end.message.clone()),
        }
    }

    /// A further line is in use.
    pub(crate) fn attempt_made(&self) {
        self.attempts.fetch_add(1, Ordering::AcqRel);
    }

    /// libzmq has given one up.
    pub(crate) fn attempt_gone(&self) {
        if self.attempts.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.gone.get_or_init(Instant::now);
            self.owner.sockets_closed();
        }
    }

    /// When libzmq gave up all it had for this connection, if it has.
    pub fn gone(&self) -> Option<Instant> {
        self.gone.get().copied()
    }

    /// Its lock. See [`gate::Gate`] for the order of locks.
    pub(crate) fn lock(&self) -> Access<'_, ConnectionInner> {
        self.gate.lock()
    }

    /// Marks the locked life as ended; `None` when it had ended before.
    pub(crate) fn finish(&self, inner: &mut Access<'_, ConnectionInner>, end: End) -> Option<Finished> {
        let finished = inner.finish(end)?;
        self.over.store(true, Ordering::Relaxed);
        Some(finished)
    }

    /// Returns whether a send that the process's budget has refused should be tried again: other connections may still
    /// reserve bytes that have been acknowledged meanwhile.
    fn bytes_reclaimed(&self, result: &Result<u64>) -> bool {
        matches!(result, Err(error) if error.status == Status::Limit) && self.owner.reclaim_bytes()
    }
}
