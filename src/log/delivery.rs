//! The thread that gives lines to a sink, and the queue it takes them from.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Level, Sink};
use crate::error::{Error, Result};
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::thread::{before_stop, host_call, spawn_quiet};

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
pub(super) struct Delivery(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
    /// The thread is over.
    over: Condvar,
}

struct Queue {
    lines: VecDeque<(Level, String)>,
    /// How many were lost after the last of `lines`.
    lost: u64,
    end: End,
    /// The sink is dropped, or its thread has stopped in it for good.
    over: bool,
}

impl Delivery {
    /// A thread for the sink, if there is one.
    pub(super) fn start(sink: Option<Sink>) -> Result<Option<Arc<Delivery>>> {
        let Some(sink) = sink else { return Ok(None) };
        let queue = Queue { lines: VecDeque::new(), lost: 0, end: End::Never, over: false };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), more: Condvar::new(), over: Condvar::new() });
        let over = Over(shared.clone());
        let work = move || {
            let stopped = Over(over.0.clone());
            before_stop(move || drop(stopped));
            over.0.deliver(&sink);
            // Also when dropping the sink panics, for then it is dropped as well.
            let _over = over;
            drop(sink);
        };
        spawn_quiet("kvconn-log", work).map_err(|e| {
            Error::limit(format!("the thread kvconn-log cannot be started: {e}")).errno(e.raw_os_error().unwrap_or(0))
        })?;
        Ok(Some(Arc::new(Delivery(shared))))
    }

    pub(super) fn push(&self, level: Level, line: String) {
        let mut queue = self.0.queue.lock();
        if queue.lines.len() < MAX_LINES {
            if let Some(loss) = queue.take_loss() {
                queue.lines.push_back(loss);
            }
            queue.lines.push_back((level, line));
        } else {
            queue.lost += 1;
        }
        self.0.more.notify_one();
    }

    /// Says when to end. An earlier end cannot be put off.
    pub(super) fn end(&self, end: End) {
        let mut queue = self.0.queue.lock();
        queue.end = queue.end.max(end);
        self.0.more.notify_one();
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.0.queue.lock().over
    }

    /// Waits until it has ended. Not to be called in a sink.
    pub(super) fn wait(&self) {
        let mut queue = self.0.queue.lock();
        while !queue.over {
            self.0.over.wait(&mut queue);
        }
    }
}

/// Says that the thread is over.
struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.queue.lock().over = true;
        self.0.over.notify_all();
    }
}

impl Shared {
    fn deliver(&self, sink: &Sink) {
        DELIVERS_IN.set(std::process::id());
        while let Some((level, line)) = self.next() {
            // What the sink throws ends this call only; it gets the next line as well.
            if let Err(thrown) = catch_unwind(AssertUnwindSafe(|| host_call(|| sink(level, &line)))) {
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
