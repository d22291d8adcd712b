//! The log of the process: lines for a person, given to the host's function or written to a file.
//!
//! Who logs may hold any of kvconn's locks, so it only queues the line. One thread, "kvconn-log", gives the lines to
//! the sink, which is the host's code: it may be slow, panic or call kvconn. The thread exists while the log is on.
//!
//! A forked child has no such thread, and what its parent left may be locked for ever: the child never touches it,
//! and begins anew.

mod delivery;
mod file;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

use crate::error::{Error, Result};
use crate::sys::lock::Mutex;
use delivery::{Delivery, End};

/// How important a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// No line at all.
    Off = 0,
    /// kvconn cannot do something that it should.
    Error = 1,
    /// Something that the operator may want to change.
    Warn = 2,
    /// What happens to connections and nodes.
    Info = 3,
    /// Each step of it.
    Debug = 4,
}

impl Level {
    const ALL: [Level; 5] = [Level::Off, Level::Error, Level::Warn, Level::Info, Level::Debug];

    /// The word used in `KVCONN_LOG` and in files.
    pub fn name(self) -> &'static str {
        match self {
            Level::Off => "off",
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

/// What takes the lines. Called on the thread "kvconn-log" only, one line at a time, under no lock of kvconn's.
pub type Sink = Box<dyn Fn(Level, &str) + Send + Sync>;

/// The environment variable that sends the log to a file.
const VARIABLE: &str = "KVCONN_LOG";

/// The level of the log, for [`enabled`]. Written under the lock of the [`Log`] that it is about.
static LEVEL: AtomicU8 = AtomicU8::new(Level::Off as u8);

/// The log of this process, or of the one it was forked from. Never freed.
static LOG: AtomicPtr<Log> = AtomicPtr::new(std::ptr::null_mut());

/// Whether lines of this level are wanted.
#[inline]
pub fn enabled(level: Level) -> bool {
    level != Level::Off && level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Logs a line, if it is wanted; only then is the text made. Never waits for the sink: when that is too slow, lines
/// are lost, counted, and the count is logged.
#[inline]
pub fn log(level: Level, text: impl FnOnce() -> String) {
    if enabled(level) {
        push(level, text());
    }
}

/// Sends lines up to `level` to `sink`, or nothing anywhere if there is no sink or `level` is Off. From now on
/// `KVCONN_LOG` has no say.
///
/// When it returns, the sink before has got every line that was logged for it, will not be called any more, and is
/// dropped. That takes as long as the sink does. A sink that calls this itself is not waited for: it loses the lines
/// that it has not got yet, and returns from its last call.
///
/// # Errors
///
/// LIMIT: the thread cannot be made, and nothing has changed.
pub fn set(sink: Option<Sink>, level: Level) -> Result<()> {
    current().set(sink, level)
}

/// Starts the log that the environment variable `KVCONN_LOG` asks for: `level:path`, where the path `-` is standard
/// error. Done once, and not when [`set`] came first.
///
/// # Errors
///
/// INVALID for a value that cannot be used, each time until it can; LIMIT as for [`set`].
pub fn from_environment() -> Result<()> {
    current().read_environment(std::env::var_os(VARIABLE))
}

/// In a forked child: lets go of the parent's log, untouched and unfreed. A log that the environment asked for
/// begins anew; a sink of the host's does not, because it may need what is not in the child.
pub fn reset_after_fork() {
    // SAFETY: null or never freed. It may be the parent's: nothing of it is used that could be locked.
    let by_environment = unsafe { LOG.load(Ordering::Acquire).as_ref() }
        .is_some_and(|old| old.pid != std::process::id() && old.by_environment.load(Ordering::Relaxed));
    current();
    if by_environment {
        // It could be used in the parent. If it cannot be used here, the child has no log, as if the parent had none.
        let _ = from_environment();
    }
}

#[cold]
fn push(level: Level, text: String) {
    if let Some(log) = existing() {
        log.push(level, text);
    }
}

/// This very process's log, if it has one.
fn existing() -> Option<&'static Log> {
    // SAFETY: null or never freed.
    unsafe { LOG.load(Ordering::Acquire).as_ref() }.filter(|log| log.pid == std::process::id())
}

/// This very process's log.
fn current() -> &'static Log {
    if let Some(log) = existing() {
        return log;
    }
    let old = LOG.load(Ordering::Acquire);
    let new = Box::into_raw(Box::new(Log::new(&LEVEL)));
    match LOG.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: never freed from now on.
            let log = unsafe { &*new };
            // In a child this ends the parent's level.
            log.publish(&log.state.lock());
            log
        }
        Err(first) => {
            // Another thread of this process was first. `old` cannot have been its: that would have existed.
            // SAFETY: nobody has seen ours; the other is never freed.
            unsafe {
                drop(Box::from_raw(new));
                &*first
            }
        }
    }
}

struct Log {
    /// The process that it belongs to.
    pid: u32,
    level: &'static AtomicU8,
    state: Mutex<State>,
    /// Whether the environment has been read with success. Its lock is held while it is read; `state` comes under it.
    environment_read: Mutex<bool>,
    /// Whether the environment asked for the log that is on. For the child, which cannot look into `state`.
    by_environment: AtomicBool,
}

#[derive(Default)]
struct State {
    level: Option<Level>,
    delivery: Option<Arc<Delivery>>,
    /// Those before, while their threads may still be there.
    ending: Vec<Arc<Delivery>>,
    /// The caller has said what it wants.
    by_caller: bool,
}

impl Log {
    fn new(level: &'static AtomicU8) -> Log {
        Log {
            pid: std::process::id(),
            level,
            state: Mutex::default(),
            environment_read: Mutex::new(false),
            by_environment: AtomicBool::new(false),
        }
    }

    fn push(&self, level: Level, mut text: String) {
        // One line, whatever names and reasons of callers are in it.
        if text.contains(char::is_control) {
            text = text.replace(char::is_control, " ");
        }
        let state = self.state.lock();
        if let Some(delivery) = &state.delivery {
            delivery.push(level, text);
        }
    }

    fn set(&self, sink: Option<Sink>, level: Level) -> Result<()> {
        let new = Delivery::start(sink.filter(|_| level != Level::Off))?;
        let mut state = self.state.lock();
        state.by_caller = true;
        self.by_environment.store(false, Ordering::Relaxed);
        self.replace(&mut state, new, level);
        let in_sink = delivery::is_this_thread();
        if in_sink {
            // After this returns no sink before is called again; waiting for one would be waiting for oneself.
            state.ending.iter().for_each(|old| old.end(End::AtOnce));
            return Ok(());
        }
        let ending = state.ending.clone();
        drop(state);
        // Not only for the one that this call replaced: another call may still be waiting for the one before.
        ending.iter().for_each(|old| old.wait());
        self.state.lock().ending.retain(|old| !ending.iter().any(|waited| Arc::ptr_eq(old, waited)));
        Ok(())
    }

    fn read_environment(&self, value: Option<OsString>) -> Result<()> {
        let mut read = self.environment_read.lock();
        if *read {
            return Ok(());
        }
        if let Some(value) = value {
            let (sink, level) = file::sink(&value)
                .map_err(|e| Error { message: format!("environment variable {VARIABLE}: {}", e.message), ..e })?;
            let new = Delivery::start(sink)?;
            let mut state = self.state.lock();
            if state.by_caller {
                // Nothing was queued for it.
                new.iter().for_each(|new| new.end(End::AtOnce));
                state.ending.extend(new);
            } else {
                self.by_environment.store(new.is_some(), Ordering::Relaxed);
                self.replace(&mut state, new, level);
            }
        }
        *read = true;
        Ok(())
    }

    fn replace(&self, state: &mut State, new: Option<Arc<Delivery>>, level: Level) {
        state.level = new.as_ref().map(|_| level);
        self.publish(state);
        // Those that a sink replaced, and nobody waited for.
        state.ending.retain(|old| !old.is_over());
        if let Some(old) = std::mem::replace(&mut state.delivery, new) {
            old.end(End::WhenEmpty);
            state.ending.push(old);
        }
    }

    fn publish(&self, state: &State) {
        self.level.store(state.level.unwrap_or(Level::Off) as u8, Ordering::Relaxed);
    }
}
