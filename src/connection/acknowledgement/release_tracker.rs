//! Reports when libzmq has freed the frames of a message. libzmq calls back for each frame.
//!
//! This is needed in two cases. Where acknowledgements are unknown, the bytes that libzmq still holds count against the
//! budget. And a zero-copy buffer belongs to the caller again only after libzmq has freed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::buffers::ZeroCopyBuffers;
use crate::libzmq::FreeCallback;
use crate::sys::lock::{Condvar, Mutex};

/// The bytes of a connection's messages that libzmq has freed. About one in two hundred small messages is tracked and
/// stands for those before it, because libzmq frees in order. Messages accepted after the last tracked one are not
/// counted.
#[derive(Default)]
pub(in crate::connection) struct FreedBytes {
    /// Bytes on the wire of accepted messages that a tracker covers.
    tracked: u64,
    /// Of these, the bytes that libzmq has freed. Trackers add to it, on libzmq's threads.
    freed: Arc<AtomicU64>,
    /// `freed` at the last update.
    seen: u64,
    /// Bytes accepted since the last tracked message.
    untracked: u64,
}

impl FreedBytes {
    /// The counter that trackers add to.
    pub(in crate::connection) fn counter(&self) -> &Arc<AtomicU64> {
        &self.freed
    }

    /// Returns true if libzmq has freed more since the last update.
    pub(in crate::connection) fn refresh(&mut self) -> bool {
        let freed = self.freed.load(Ordering::Acquire);
        std::mem::replace(&mut self.seen, freed) < freed
    }

    /// Bytes that libzmq held at the last update.
    pub(in crate::connection) fn queued(&self) -> u64 {
        self.tracked.saturating_sub(self.seen)
    }

    /// How many bytes the next message of `bytes` bytes should track. `None` if too few have come together since the
    /// last one.
    pub(in crate::connection) fn due(&self, bytes: u64) -> Option<u64> {
        /// Many small messages share the cost of one tracker.
        const ENOUGH: u64 = 16 * 1024;
        let bytes = self.untracked + bytes;
        (bytes >= ENOUGH).then_some(bytes)
    }

    /// A message of `bytes` bytes was accepted. `tracked`: the bytes that its tracker covers, if it has one.
    pub(in crate::connection) fn accept(&mut self, bytes: u64, tracked: Option<u64>) {
        let tracked = tracked.unwrap_or(0);
        self.tracked += tracked;
        // Other messages may have been accepted while this one waited.
        self.untracked = (self.untracked + bytes).saturating_sub(tracked);
    }
}

/// Reports when libzmq has freed one message.
pub(crate) struct ReleaseTracker {
    /// Frames that libzmq has not freed, and one more until the send has returned.
    left: AtomicUsize,
    /// Its sequence once it is accepted, 0 before.
    sequence: AtomicU64,
    /// The bytes on the wire that it covers: the message's own, and those of untracked messages before it.
    bytes: u64,
    /// The connection's counter of freed bytes.
    freed: Arc<AtomicU64>,
    buffers: Option<ZeroCopyBuffers>,
    /// Takes the message when libzmq has freed it, if it has zero-copy buffers.
    queue: Option<Arc<ReleaseQueue>>,
    /// The message before it in the queue. Only used under the queue's lock.
    before: Mutex<Option<Arc<ReleaseTracker>>>,
}

impl ReleaseTracker {
    /// For a copied message, of which one frame is tracked.
    pub(crate) fn copied(bytes: u64, freed: Arc<AtomicU64>) -> Arc<ReleaseTracker> {
        ReleaseTracker::new(1, bytes, freed, None, None)
    }

    /// For a message of zero-copy buffers; all of its frames are tracked.
    pub(crate) fn zero_copy(
        frames: usize,
        bytes: u64,
        freed: Arc<AtomicU64>,
        buffers: ZeroCopyBuffers,
        queue: Arc<ReleaseQueue>,
    ) -> Arc<ReleaseTracker> {
        ReleaseTracker::new(frames, bytes, freed, Some(buffers), Some(queue))
    }

    fn new(
        frames: usize,
        bytes: u64,
        freed: Arc<AtomicU64>,
        buffers: Option<ZeroCopyBuffers>,
        queue: Option<Arc<ReleaseQueue>>,
    ) -> Arc<ReleaseTracker> {
        let (left, sequence) = (AtomicUsize::new(frames + 1), AtomicU64::new(0));
        Arc::new(ReleaseTracker { left, sequence, bytes, freed, buffers, queue, before: Mutex::default() })
    }

    /// The message's sequence; 0 when it was not accepted.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// The bytes that it covers.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The message's zero-copy buffers.
    pub(crate) fn buffers(&self) -> Option<&ZeroCopyBuffers> {
        self.buffers.as_ref()
    }

    /// The message was accepted. libzmq may have freed it before this call.
    pub(crate) fn accepted(self: Arc<Self>, sequence: u64) {
        if let Some(buffers) = &self.buffers {
            buffers.sent(sequence);
        }
        self.sequence.store(sequence, Ordering::Release);
        self.freed();
    }

    /// The message was not accepted. Waits until libzmq has freed the frames that it took. Usually that is at once. If
    /// the pipe died within the message, libzmq frees them when the socket is closed, which the connection's end has
    /// already requested. Returns false after 10 s.
    pub(crate) fn wait_freed(&self) -> bool {
        const LONG: Duration = Duration::from_secs(10);
        let begun = Instant::now();
        while self.left.load(Ordering::Acquire) > 1 {
            if begun.elapsed() > LONG {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }
}

impl FreeCallback for ReleaseTracker {
    fn freed(self: Arc<Self>) {
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 || self.sequence() == 0 {
            return;
        }
        self.freed.fetch_add(self.bytes, Ordering::Release);
        if let Some(queue) = &self.queue {
            queue.push(self.clone());
        }
    }
}

/// Accepted messages with zero-copy buffers that libzmq has freed. libzmq's threads fill the queue, and the thread
/// `kvconn-release` empties it. libzmq's threads must not wait and must not run the caller's code.
pub(crate) struct ReleaseQueue {
    /// The newest message; each holds the one before it. A list through the messages, because libzmq's threads must not
    /// allocate: Rust ends the process when it finds no memory. Lock order: this lock, then that of a link; both are
    /// leaves.
    newest: Mutex<Option<Arc<ReleaseTracker>>>,
    more: Condvar,
}

impl ReleaseQueue {
    pub(crate) fn new() -> Arc<ReleaseQueue> {
        Arc::new(ReleaseQueue { newest: Mutex::default(), more: Condvar::new() })
    }

    fn push(&self, message: Arc<ReleaseTracker>) {
        let mut newest = self.newest.lock();
        *message.before.lock() = newest.take();
        *newest = Some(message);
        self.more.notify_one();
    }

    /// Takes everything. Waits for at least one message, for at most `time`.
    pub(crate) fn take(&self, time: Option<Duration>) -> Vec<Arc<ReleaseTracker>> {
        let until = time.map(|time| Instant::now() + time);
        let mut newest = self.newest.lock();
        while newest.is_none() {
            match until {
                Some(until) if self.more.wait_until(&mut newest, until).timed_out() => break,
                Some(_) => {}
                None => self.more.wait(&mut newest),
            }
        }
        let mut next = newest.take();
        drop(newest);
        let mut freed = Vec::new();
        while let Some(message) = next {
            next = message.before.lock().take();
            freed.push(message);
        }
        // Oldest first.
        freed.reverse();
        freed
    }
}
