//! One connection: one PUSH socket to one endpoint, from its dial to its end.

pub mod acknowledgement;
pub mod batch;
pub(crate) mod dial;
mod end;
pub(crate) mod gate;
mod handover;
mod info;
mod inner;
pub mod message;
pub(crate) mod owner;
pub(crate) mod registry;
pub(crate) mod slots;
pub(crate) mod socket;
pub(crate) mod socket_watcher;
pub(crate) mod state;
mod timeouts;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::budget::bytes::Reservation;
use crate::connection::message::{Message, ShortMessage};
use crate::delivery::Release;
use crate::error::{Error, Result, Status};
use crate::events::Events;
use crate::ids::{AttemptId, ConnId};
use crate::net::endpoint::Endpoint;
use crate::options::Values;
use crate::timeout::Timeout;

use acknowledgement::buffers::{self, ZeroCopyBuffers};
use dial::AddressHistory;
pub(crate) use end::{Aftermath, End, Finished};
use gate::{Access, Channel, Gate, Patience, Wakeups};
pub use info::{ConnectionInfo, ConnectionState};
use inner::ConnectionInner;
pub(crate) use inner::Draining;
pub(crate) use inner::progress::SETTLE;
use owner::Owner;
use registry::Registry;
use slots::Slot;
use socket::PushSocket;
use socket_watcher::SocketWatcher;
pub use state::{EndReason, State, Transition};

/// One connection. After its end it is kept without its socket, as long as the ending is remembered.
pub struct Connection {
    id: ConnId,
    endpoint: Endpoint,
    owner: Arc<dyn Owner>,
    values: Arc<Values>,
    dialled: Instant,
    /// What its endpoint's dials have taught about the addresses of its name.
    addresses: Arc<AddressHistory>,
    /// Set at the end. A hint: it saves copying a message for an ended connection. The state under the lock decides.
    ended: AtomicBool,
    /// Sockets of its dial attempts that libzmq has not closed yet.
    open_attempts: AtomicUsize,
    /// When libzmq closed the last of them.
    closed_at: OnceLock<Instant>,
    gate: Slot<ConnectionGate>,
}

/// The lock of one connection at a time. It outlives the connection.
pub(crate) type ConnectionGate = Gate<ConnectionInner>;

// What every message needs of a connection is in two cache lines.
#[cfg(not(loom))]
const _: () = assert!(ConnectionGate::CHANNEL + ConnectionInner::EVERY_MESSAGE <= 2 * slots::LINE);

impl Connection {
    pub(crate) fn new(
        endpoint: Endpoint,
        (owner, events): (Arc<dyn Owner>, Arc<Events>),
        values: Arc<Values>,
        attempt: (AttemptId, PushSocket),
        addresses: Arc<AddressHistory>,
        (watcher, reservation): (Arc<dyn SocketWatcher>, Reservation),
        registry: &Registry,
    ) -> Arc<Connection> {
        let gate = registry.open_gate();
        let id = gate.id();
        events.expect_ending(id);
        let inner = ConnectionInner::new(id, endpoint.clone(), &values, attempt, events, (watcher, reservation));
        gate.occupy(inner);
        Arc::new(Connection {
            id,
            endpoint,
            owner,
            values,
            dialled: Instant::now(),
            addresses,
            ended: AtomicBool::new(false),
            open_attempts: AtomicUsize::new(1),
            closed_at: OnceLock::new(),
            gate,
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

    /// Sends one whole message on this connection, or fails, and then the message is not accepted. Waits for READY and
    /// for room, up to the timeout. `message` makes the message; it is called at most once, after a first check of the
    /// state.
    pub fn send(self: &Arc<Self>, message: &mut dyn FnMut() -> Result<Message>, timeout: Timeout) -> Result<u64> {
        self.count_failure(self.send_uncounted(message, timeout))
    }

    /// Like `send`, with frames that are copied here.
    pub fn send_frames(self: &Arc<Self>, frames: &[&[u8]], timeout: Timeout) -> Result<u64> {
        let mut short = ShortMessage::new();
        if frames.is_empty() || !frames.iter().all(|frame| short.push(frame)) {
            return self.send(&mut || Message::from_frames(frames.iter().copied()), timeout);
        }
        self.send_short(&mut short, timeout)
    }

    /// Like `send`, with a complete message, which is tried the shortest way first.
    #[inline(always)]
    pub(crate) fn send_short(self: &Arc<Self>, message: &mut ShortMessage, timeout: Timeout) -> Result<u64> {
        match self.gate.pass_short(message, |_| true) {
            Some(sequence) => Ok(sequence),
            None => self.send_long_way(message, timeout),
        }
    }

    /// Like `send`, with a message that did not pass the shortest way.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_long_way(self: &Arc<Self>, message: &mut ShortMessage, timeout: Timeout) -> Result<u64> {
        self.count_failure(self.pass(&mut message.take(), timeout))
    }

    /// Counts a failed send; returns the same result.
    pub(crate) fn count_failure<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|e| self.owner.count_refused(e.status))
    }

    /// Like `send`, but a failure is not counted.
    pub(crate) fn send_uncounted(
        self: &Arc<Self>,
        message: &mut dyn FnMut() -> Result<Message>,
        timeout: Timeout,
    ) -> Result<u64> {
        self.check_alive()?;
        self.pass(&mut message()?, timeout)
    }

    /// Like `send`, with frames that are not copied. On success `release` is called once, on the thread kvconn-release,
    /// when the frames are the caller's again. That may be before this call returns. On an error the frames are the
    /// caller's when this call returns, and `release` is not called.
    ///
    /// # Safety
    /// The frames must be readable and must not change until they are the caller's again.
    pub unsafe fn send_owned(
        self: &Arc<Self>,
        frames: &[*const [u8]],
        release: Option<Release>,
        timeout: Timeout,
    ) -> Result<u64> {
        // SAFETY: the same contract.
        self.count_failure(unsafe { self.send_zero_copy(frames, release, timeout) })
    }

    /// # Safety
    /// As for [`send_owned`](Self::send_owned).
    unsafe fn send_zero_copy(
        self: &Arc<Self>,
        frames: &[*const [u8]],
        release: Option<Release>,
        timeout: Timeout,
    ) -> Result<u64> {
        self.check_alive()?;
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

    /// Returns an error if it has ended. Takes no lock while it lives.
    fn check_alive(&self) -> Result<()> {
        match self.ended.load(Ordering::Relaxed) {
            true => self.gate.lock().refusal().map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    fn pass(self: &Arc<Self>, message: &mut Message, timeout: Timeout) -> Result<u64> {
        let timeout = timeout.or(self.owner.send_timeout());
        let (mut begun, mut waits) = (None, false);
        let mut pass = |message: &mut Message| {
            self.gate.pass(message, |inner| {
                // The clock is read only when the send has to wait.
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
        self.end_if_lost(result)
    }

    /// Ends the connection if the error says that the peer is lost; returns the same result.
    fn end_if_lost(self: &Arc<Self>, result: Result<u64>) -> Result<u64> {
        let Err(error) = result else { return result };
        if error.status != Status::PeerLost {
            return Err(error);
        }
        // This send may be the first to find the peer gone. If the connection has ended already, this changes nothing.
        self.owner.end(self, End::new(Transition::PeerGone, error.message.clone()));
        // The end knows more: the errno, and how the peer left.
        Err(self.gate.lock().refusal().unwrap_or(error))
    }

    /// Waits until the buffers of every message up to `sequence` (0: all accepted so far) are the caller's again.
    /// TIMEOUT; WOULD_DEADLOCK on the thread that releases them; INVALID for a message that is not accepted yet.
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
                    format!("the buffers of message {target} are released by this thread, after this call"),
                ),
            };
        }
        match in_flight.wait_released(target, now + timeout.or(self.owner.send_timeout())) {
            true => Ok(()),
            false => {
                let first = in_flight.first().unwrap_or(target);
                error(
                    Status::Timeout,
                    format!("the buffers of message {first} were not released within the time given"),
                )
            }
        }
    }

    /// Returns the bytes of the process's budget that it does not need. Does nothing while another thread holds the
    /// lock.
    pub(crate) fn try_give_back(&self) {
        if let Some(mut inner) = self.gate.try_lock() {
            inner.give_back();
        }
    }

    /// Asks to forget it. Returns false while buffers are in flight: the release of the last buffer then forgets it.
    pub(crate) fn forget(&self) -> bool {
        self.gate.lock().tracking().0.forget()
    }

    /// Waits until it is READY. An error says why it cannot become READY, or that the deadline has passed.
    pub(crate) fn wait_ready(&self, deadline: Instant) -> Result<()> {
        self.gate.lock().hurry();
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

    /// Waits until the peer's kernel has acknowledged every message up to `sequence` (0: all accepted so far). In every
    /// case also returns what is acknowledged. TIMEOUT; UNSUPPORTED where acknowledgements are unknown; or why it
    /// ended.
    pub fn flush(&self, sequence: u64, timeout: Timeout) -> (Result<()>, u64) {
        /// How long to wait before the kernel is asked again, at first and at most. The kernel has no notification for
        /// it.
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

    /// Stops accepting messages. The returned threads must be woken after the locks are released.
    pub(crate) fn drain(&self, why: Draining) -> Wakeups {
        let mut inner = self.gate.lock();
        inner.drain(why);
        inner.refuse()
    }

    /// One step of a flush. `None`: it must go on.
    fn flushed(&self, target: u64, last: bool) -> Option<(Result<()>, u64)> {
        let mut inner = self.gate.lock();
        let delivery = inner.delivery();
        let error = |status, text: String| Err(Error::new(status, text).about(self.id).at(&self.endpoint));
        if target > delivery.accepted {
            let text = format!("message {target} was not accepted yet; the last is {}", delivery.accepted);
            return Some((error(Status::Invalid, text), delivery.acknowledged.unwrap_or(0)));
        }
        let Some(acknowledged) = delivery.acknowledged else {
            let text = "the acknowledgements are unknown: the endpoint is ipc, the option acknowledgement is off, the \
                        connection is MPTCP, or the kernel does not count";
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

    /// How long it has been idle. `None` if it is not idle, or if another thread holds its lock.
    pub fn try_idle(&self) -> Option<Duration> {
        self.gate.try_lock()?.idle()
    }

    /// The same as of the watcher's last look, without a system call: a connection that has become idle since is not yet
    /// known to be.
    pub(crate) fn try_known_idle(&self) -> Option<Duration> {
        self.gate.try_lock()?.known_idle()
    }

    /// Ends this connection. A newer connection to the same endpoint is not affected. No fence is set. Ending an ended
    /// connection is not an error.
    pub fn disconnect(self: &Arc<Self>) -> Result<()> {
        self.owner.end(self, End::new(Transition::Disconnect, "disconnected by kvconn_disconnect"));
        Ok(())
    }

    /// Another dial attempt has opened a socket.
    pub(crate) fn attempt_opened(&self) {
        self.open_attempts.fetch_add(1, Ordering::AcqRel);
    }

    /// libzmq has closed the socket of a dial attempt.
    pub(crate) fn attempt_closed(&self) {
        if self.open_attempts.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.closed_at.get_or_init(Instant::now);
            self.owner.sockets_closed();
        }
    }

    /// When libzmq closed its last socket. `None` while one is open.
    pub fn gone(&self) -> Option<Instant> {
        self.closed_at.get().copied()
    }

    /// Its lock. See [`gate::Gate`] for the order of locks.
    pub(crate) fn lock(&self) -> Access<'_, ConnectionInner> {
        self.gate.lock()
    }

    /// Marks the locked connection as ended. `None` if it had ended before.
    pub(crate) fn finish(&self, inner: &mut Access<'_, ConnectionInner>, end: End) -> Option<Finished> {
        let finished = inner.finish(end)?;
        self.ended.store(true, Ordering::Relaxed);
        self.gate.hide();
        Some(finished)
    }

    /// Returns whether a send that the process's budget refused should be tried again. Other connections may still
    /// reserve bytes that were acknowledged in the meantime.
    fn bytes_reclaimed(&self, result: &Result<u64>) -> bool {
        matches!(result, Err(error) if error.status == Status::Limit) && self.owner.reclaim_bytes()
    }
}

/// Sends a complete message at a gate that was found by this id, if it is still that connection's, and if that needs no
/// waiting. `None`: nothing is decided.
#[inline(always)]
pub(crate) fn send_short(gate: &ConnectionGate, id: ConnId, message: &mut ShortMessage) -> Option<u64> {
    gate.pass_short(message, |inner| inner.is(id))
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The gate may get another connection.
        drop(self.gate.vacate());
    }
}
