//! The thread that gives lines to a sink, and the queue it takes them from.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::{Level, Sink};
use crate::error::{Error, Result};
use crate::lock::{Condvar, Mutex};
use crate::thread::spawn_quiet;

/// How many lines wait for the sink; beyond that they are counted.
pub(super) const MAX_LINES: usize = 1024;

thread_local! {
    /// The process in which this thread is one that delivers lines, or 0.
    static DELIVERS_IN: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling code runs in a sink. Not in the child that a sink has forked, where no other thread waits.
pub(super) fn is_this_thread() -> bool {
    DELIVERS_IN.get() == std::process::id()
}

/// When a delivery ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Never,
    /// When the sink has got what is queued.
    WhenEmpty,
    /// When the sink returns from the call that it is in.
    AtOnce,
}

/// A sink with its thread and queue.
pub(super) struct Delivery {
    shared: Arc<Shared>,
    /// Until someone has waited for it.
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

struct Queue {
    lines: VecDeque<(Level, String)>,
    /// How many were lost after the last of `lines`.
    lost: u64,
    end: End,
}

impl Delivery {
    /// A thread for the sink, if there is one.
    pub(super) fn start(sink: Option<Sink>) -> Result<Option<Arc<Delivery>>> {
        let Some(sink) = sink else { return Ok(None) };
        let queue = Queue { lines: VecDeque::new(), lost: 0, end: End::Never };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), more: Condvar::new() });
        let its = shared.clone();
        let thread = spawn_quiet("kvconn-log", move || its.deliver(&sink)).map_err(|e| {
            Error::limit(format!("the thread kvconn-log cannot be started: {e}")).errno(e.raw_os_error().unwrap_or(0))
        })?;
        Ok(Some(Arc::new(Delivery { shared, thread: Mutex::new(Some(thread)) })))
    }

    pub(super) fn push(&self, level: Level, line: String) {
        let mut queue = self.shared.queue.lock();
        if queue.lines.len() < MAX_LINES {
            if let Some(loss) = queue.take_loss() {
                queue.lines.push_back(loss);
            }
            queue.lines.push_back((level, line));
        } else {
            queue.lost += 1;
        }
        self.shared.more.notify_one();
    }

    /// Says when to end. An earlier end cannot be put off.
    pub(super) fn end(&self, end: End) {
        let mut queue = self.shared.queue.lock();
        queue.end = queue.end.max(end);
        self.shared.more.notify_one();
    }

    /// Whether it has ended and the sink is dropped.
    pub(super) fn is_over(&self) -> bool {
        // While someone waits for it, it is not over.
        self.thread.try_lock().is_some_and(|thread| thread.as_ref().is_none_or(JoinHandle::is_finished))
    }

    /// Waits until it has ended and the sink is dropped. Not to be called in a sink.
    pub(super) fn wait(&self) {
        // Who comes second waits here for the first.
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            // It fails when dropping the sink panicked, and then it is dropped as well.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn deliver(&self, sink: &Sink) {
        DELIVERS_IN.set(std::process::id());
        while let Some((level, line)) = self.next() {
            // What the sink throws ends this call only; it gets the next line as well.
            if let Err(thrown) = catch_unwind(AssertUnwindSafe(|| sink(level, &line))) {
                // Dropping it may throw again.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(thrown)));
            }
        }
    }

    fn next(&self) -> Option<(Level, String)> {
        let mut queue = self.queue.lock();
        loop {
            if queue.end == End::AtOnce {
                return None;
            }
            if let Some(line) = queue.lines.pop_front().or_else(|| queue.take_loss()) {
                return Some(line);
            }
            if queue.end == End::WhenEmpty {
                return None;
            }
            self.more.wait(&mut queue);
        }
    }
}

impl Queue {
    /// The line that tells what was lost, if anything was.
    fn take_loss(&mut self) -> Option<(Level, String)> {
        let lost = std::mem::take(&mut self.lost);
        (lost > 0).then(|| (Level::Warn, format!("{lost} lines of the log were lost here: they came too fast for it")))
    }
}
