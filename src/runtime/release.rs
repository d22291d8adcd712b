//! The thread `kvconn-release`: it calls the caller's release functions, once libzmq has freed a message and its
//! outcome is known.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::acknowledgement::buffers::mark_release_thread;
use crate::connection::acknowledgement::release_tracker::{ReleaseQueue, ReleaseTracker};
use crate::connection::registry::Registry;
use crate::delivery::Delivery;
use crate::error::{Error, Result};
use crate::ids::ConnId;
use crate::sys::thread::spawn_quiet;

/// Starts the thread. Returns the queue that it serves.
pub(crate) fn start(registry: Arc<Registry>) -> Result<Arc<ReleaseQueue>> {
    let queue = ReleaseQueue::new();
    let served = queue.clone();
    spawn_quiet("kvconn-release", move || run(&registry, &served)).map_err(|e| {
        let text = format!("the thread kvconn-release cannot be started: {e}");
        Error::limit(text).errno(e.raw_os_error().unwrap_or(0))
    })?;
    Ok(queue)
}

fn run(registry: &Registry, queue: &ReleaseQueue) {
    /// How long to wait before the kernel is asked again: at first, and at most. The kernel has no notification for it.
    const FIRST: Duration = Duration::from_micros(100);
    const MOST: Duration = Duration::from_millis(10);
    /// The bound, however many messages are open.
    const LONGEST: Duration = Duration::from_millis(200);
    mark_release_thread();
    let mut open: Vec<Arc<ReleaseTracker>> = Vec::new();
    let mut step = FIRST;
    loop {
        let fresh = queue.take((!open.is_empty()).then_some(step));
        let before = open.len() + fresh.len();
        open.extend(fresh);
        let begun = Instant::now();
        // The kernel is asked once for a connection with many open messages.
        let mut asked = None;
        open.retain(|message| !settle(registry, message, &mut asked));
        // Asking takes at most a twentieth of the time.
        let least = FIRST.max(begun.elapsed() * 20);
        step = if open.len() < before { least } else { (step * 2).min(MOST).max(least) }.min(LONGEST);
    }
}

/// Releases the buffers of a message, if its outcome is known. Returns whether it is settled.
fn settle(registry: &Registry, message: &ReleaseTracker, asked: &mut Option<(ConnId, Delivery)>) -> bool {
    let Some(buffers) = message.buffers() else { return true };
    let (conn, sequence) = (buffers.conn(), message.sequence());
    let live = match asked {
        Some((of, delivery)) if *of == conn => Some(*delivery),
        _ => registry.find(conn).map(|found| found.lock().delivery()),
    };
    *asked = live.map(|delivery| (conn, delivery));
    let so_far = live.and_then(|delivery| delivery.outcome_so_far(sequence));
    // The end is asked last: it may have come after the first question.
    let Some(outcome) = so_far.or_else(|| buffers.outcome(sequence)) else { return false };
    if buffers.release(sequence, outcome) {
        // The connection was kept only for threads that wait for its buffers.
        registry.remove(conn);
    }
    true
}
