//! The thread that gives lent buffers back: it waits until libzmq has let them go and their message's outcome is known.
//!
//! libzmq lets go on its own threads, where nothing may wait and no code of the caller's may run.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::Delivery;
use crate::connection::held::Held;
use crate::connection::loans::Outcome;
use crate::error::{Error, Result};
use crate::ids::ConnId;
use crate::lock::{Condvar, Mutex};
use crate::process::Process;
use crate::thread::spawn_quiet;

/// Is told once that the buffers of a message are the caller's again.
pub type Release = Box<dyn FnOnce(ConnId, u64, Outcome) + Send>;

thread_local! {
    /// The process in which this is the thread that gives buffers back, or 0.
    static RELEASES_IN: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling code runs in a release. Not in the child that one has forked.
pub(crate) fn is_this_thread() -> bool {
    RELEASES_IN.get() == std::process::id()
}

/// The thread's door.
pub(crate) struct Releaser(Arc<Shared>);

struct Shared {
    /// Messages that libzmq has let go. Leaf lock.
    let_go: Mutex<Vec<Arc<Held>>>,
    more: Condvar,
}

impl Releaser {
    /// Starts the thread.
    pub(crate) fn start(process: &'static Process) -> Result<Releaser> {
        let shared = Arc::new(Shared { let_go: Mutex::new(Vec::new()), more: Condvar::new() });
        let its = shared.clone();
        spawn_quiet("kvconn-release", move || its.run(process)).map_err(|e| {
            let text = format!("the thread kvconn-release cannot be started: {e}");
            Error::limit(text).errno(e.raw_os_error().unwrap_or(0))
        })?;
        Ok(Releaser(shared))
    }

    /// libzmq has let go an accepted message with a loan.
    pub(crate) fn let_go(&self, held: Arc<Held>) {
        self.0.let_go.lock().push(held);
        self.0.more.notify_one();
    }
}

impl Shared {
    fn run(&self, process: &'static Process) {
        /// How long to wait before the kernel is asked again: at first, and at most. It cannot be asked to tell.
        const FIRST: Duration = Duration::from_micros(100);
        const MOST: Duration = Duration::from_millis(10);
        /// However many are open.
        const LONGEST: Duration = Duration::from_millis(200);
        RELEASES_IN.set(std::process::id());
        let mut open: Vec<Arc<Held>> = Vec::new();
        let mut step = FIRST;
        loop {
            let fresh = self.wait((!open.is_empty()).then_some(step));
            let before = open.len() + fresh.len();
            open.extend(fresh);
            let begun = Instant::now();
            // Of a connection with many open ones the kernel is asked once.
            let mut asked = None;
            open.retain(|held| !settle(process, held, &mut asked));
            // Looking takes a twentieth of the time at the most.
            let least = FIRST.max(begun.elapsed() * 20);
            step = if open.len() < before { least } else { (step * 2).min(MOST).max(least) }.min(LONGEST);
        }
    }

    /// What libzmq has let go; waits for some, at most so long.
    fn wait(&self, time: Option<Duration>) -> Vec<Arc<Held>> {
        let until = time.map(|time| Instant::now() + time);
        let mut let_go = self.let_go.lock();
        while let_go.is_empty() {
            match until {
                Some(until) if self.more.wait_until(&mut let_go, until).timed_out() => break,
                Some(_) => {}
                None => self.more.wait(&mut let_go),
            }
        }
        std::mem::take(&mut *let_go)
    }
}

/// Gives the buffers of a message back, if its outcome is known.
fn settle(process: &Process, held: &Held, asked: &mut Option<(ConnId, Delivery)>) -> bool {
    let Some(loan) = held.loan() else { return true };
    let (conn, sequence) = (loan.conn(), held.sequence());
    let live = match asked {
        Some((of, delivery)) if *of == conn => Some(*delivery),
        _ => process.registry().find(conn).map(|found| found.lock().delivery()),
    };
    *asked = live.map(|delivery| (conn, delivery));
    let so_far = live.and_then(|delivery| delivery.outcome_so_far(sequence));
    // The end last: it may have come after the look.
    let Some(outcome) = so_far.or_else(|| loan.outcome(sequence)) else { return false };
    if loan.give_back(sequence, outcome) {
        // Kept only so that whoever waits finds it.
        process.registry().remove(conn);
    }
    true
}
