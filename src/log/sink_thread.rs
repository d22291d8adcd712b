//! A sink, the thread that calls it, and the bounded channel in between.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use super::{Level, Sink};
use crate::error::{Error, Result};
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::thread::{before_stop, host_call, spawn_quiet};

/// How many lines wait for the sink; beyond that they are dropped.
pub(super) const CAPACITY: usize = 1024;

thread_local! {
    /// The process in which this thread calls a sink, or 0.
    static CALLS_SINK_IN: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling code runs in a sink. Not in the child that a sink has forked, where no other thread waits.
pub(super) fn is_current() -> bool {
    CALLS_SINK_IN.get() == std::process::id()
}

struct Record {
    level: Level,
    text: String,
}

/// The sending end.
pub(super) struct LogChannel {
    records: SyncSender<Record>,
    /// Lines dropped and not reported yet.
    dropped: Arc<AtomicU64>,
    thread: Arc<SinkThread>,
}

/// The thread, as its logger sees it.
#[derive(Default)]
pub(super) struct SinkThread {
    /// A leaf.
    state: Mutex<SinkState>,
    changed: Condvar,
}

#[derive(Default)]
struct SinkState {
    in_call: bool,
    /// No further call.
    abandoned: bool,
    /// The sink is dropped, or its thread has stopped in it for good.
    over: bool,
}

impl LogChannel {
    pub(super) fn start(mut sink: Sink) -> Result<LogChannel> {
        let (records, receiver) = sync_channel(CAPACITY);
        let (thread, dropped) = (Arc::new(SinkThread::default()), Arc::new(AtomicU64::new(0)));
        let channel = LogChannel { records, dropped: dropped.clone(), thread: thread.clone() };
        spawn_quiet("kvconn-log", move || {
            let stopped = MarkOver(thread.clone());
            before_stop(move || drop(stopped));
            // Also when dropping the sink panics, for then it is dropped as well.
            let over = MarkOver(thread);
            over.0.run(&receiver, &dropped, &mut sink);
            drop(sink);
        })
        .map_err(|e| {
            Error::limit(format!("the thread kvconn-log cannot be started: {e}")).errno(e.raw_os_error().unwrap_or(0))
        })?;
        Ok(channel)
    }

    /// Queues a line without waiting; how many were dropped instead.
    pub(super) fn push(&mut self, level: Level, text: String) -> u64 {
        let report = take_dropped(&self.dropped);
        let unreported = report.as_ref().map_or(0, |(count, _)| *count);
        // The report goes first, where the lines are missing.
        if let Some((_, report)) = report
            && self.records.try_send(report).is_err()
        {
            self.dropped.fetch_add(unreported + 1, Ordering::Relaxed);
            return 1;
        }
        let lost = u64::from(self.records.try_send(Record { level, text }).is_err());
        self.dropped.fetch_add(lost, Ordering::Relaxed);
        lost
    }

    /// The thread ends when it has given the sink what is queued.
    pub(super) fn close(self) -> Arc<SinkThread> {
        self.thread
    }
}

/// The count of dropped lines that nobody has reported, and the line that reports it.
fn take_dropped(dropped: &AtomicU64) -> Option<(u64, Record)> {
    let count = dropped.swap(0, Ordering::Relaxed);
    let text = format!("{count} lines of the log were dropped here: they came faster than the log takes them");
    (count > 0).then_some((count, Record { level: Level::Warn, text }))
}

/// Says that the thread is over.
struct MarkOver(Arc<SinkThread>);

impl Drop for MarkOver {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.in_call, state.over) = (false, true);
        self.0.changed.notify_all();
    }
}

impl SinkThread {
    fn run(&self, records: &Receiver<Record>, dropped: &AtomicU64, sink: &mut Sink) {
        CALLS_SINK_IN.set(std::process::id());
        let next = || {
            let queued = records.try_recv().ok().or_else(|| Some(take_dropped(dropped)?.1));
            queued.or_else(|| records.recv().ok())
        };
        while let Some(Record { level, text }) = next() {
            {
                let mut state = self.state.lock();
                if state.abandoned {
                    return;
                }
                state.in_call = true;
            }
            // What the sink throws ends this call only; it gets the next line as well.
            if let Err(thrown) = catch_unwind(AssertUnwindSafe(|| host_call(|| sink(level, &text)))) {
                // Dropping it may throw again.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(thrown)));
            }
            self.state.lock().in_call = false;
            self.changed.notify_all();
        }
    }

    /// Waits until the thread is over, without a deadline not at all, and then stops it before its next call. Half of
    /// the time is for the lines that are queued, the other half for the call that runs then. False: the sink is still
    /// in that call.
    pub(super) fn end(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        if let Some(deadline) = deadline {
            let half = Instant::now() + deadline.saturating_duration_since(Instant::now()) / 2;
            while !state.over && !self.changed.wait_until(&mut state, half).timed_out() {}
            state.abandoned = true;
            while state.in_call && !self.changed.wait_until(&mut state, deadline).timed_out() {}
        }
        state.abandoned = true;
        !state.in_call
    }

    /// Whether the thread is over.
    pub(super) fn is_over(&self) -> bool {
        self.state.lock().over
    }
}
