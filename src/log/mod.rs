//! The log of the process: lines for a person, given to the host's function or appended to a file.
//!
//! The caller of [`log()`] may hold any of kvconn's locks, so the line only goes into a bounded channel. The thread
//! "kvconn-log" takes it out and gives it to the sink, which may be slow, panic or call kvconn. The thread exists while
//! the log is on.
//!
//! A forked child has no such thread, and the parent's locks may be held for ever: the child never touches the
//! parent's logger and makes its own.

mod file;
mod sink_thread;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result, Status};
use crate::sys::foreign_fd;
use crate::sys::lock::Mutex;
use sink_thread::{LogChannel, SinkThread};

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
pub type Sink = Box<dyn FnMut(Level, &str) + Send>;

/// The environment variable that sends the log to a file.
pub const VARIABLE: &str = "KVCONN_LOG";

/// For how long [`set`] waits for the sink before, which is the host's code.
pub const SINK_WAIT: Duration = Duration::from_secs(1);

/// The level of the log, for [`enabled`]. Written under the lock of the [`Logger`] that it is about.
static LEVEL: AtomicU8 = AtomicU8::new(Level::Off as u8);

/// The logger of this process, or of the one it was forked from. Never freed.
static LOGGER: AtomicPtr<Logger> = AtomicPtr::new(std::ptr::null_mut());

static DROPPED: AtomicU64 = AtomicU64::new(0);
static FAILURES: AtomicU64 = AtomicU64::new(0);

/// Lines that were dropped because the sink was too slow.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// How often the log that `KVCONN_LOG` asks for could not be started, reopened or written.
pub fn failures() -> u64 {
    FAILURES.load(Ordering::Relaxed)
}

/// Whether lines of this level are wanted.
#[inline]
pub fn enabled(level: Level) -> bool {
    level != Level::Off && level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Logs a line, if it is wanted; only then is the text made. Never waits for the sink: when that is too slow, lines
/// are dropped, counted, and the count is logged.
#[inline]
pub fn log(level: Level, text: impl FnOnce() -> String) {
    if enabled(level) {
        push(level, text());
    }
}

/// Sends lines up to `level` to `sink`, or nothing anywhere if there is no sink or `level` is Off. From now on
/// `KVCONN_LOG` has no effect.
///
/// When it returns OK, the sink before has got every line that was logged for it, or all it could take within
/// [`SINK_WAIT`], and is not called again. A sink that calls this itself is not waited for: it loses the lines that it
/// has not got yet, and returns from its last call.
///
/// # Errors
///
/// LIMIT: the thread cannot be made, and nothing has changed. TIMEOUT: the new sink is in place, but the one before has
/// not returned from its call; it is not called again after that.
pub fn set(sink: Option<Sink>, level: Level) -> Result<()> {
    current().set(sink, level)
}

/// Starts the log that the environment variable `KVCONN_LOG` asks for: `level:path`, where the path `-` is standard
/// error. Done once, and not when [`set`] came first. What cannot be used is reported by one line on standard error,
/// and leaves the log off: it must not stop the host.
pub fn from_environment() {
    current().read_environment(std::env::var_os(VARIABLE));
}

/// In a forked child: leaves the parent's logger alone, untouched and unfreed. A log that the environment asked for
/// begins anew; a sink of the host's does not, because it may need what is not in the child.
pub fn reset_after_fork() {
    // SAFETY: null or never freed. It may be the parent's: nothing of it is used that could be locked.
    let by_environment = unsafe { LOGGER.load(Ordering::Acquire).as_ref() }
        .is_some_and(|old| old.pid != std::process::id() && old.by_environment.load(Ordering::Relaxed));
    current();
    if by_environment {
        from_environment();
    }
}

#[cold]
fn push(level: Level, text: String) {
    if let Some(logger) = existing() {
        logger.push(level, text);
    }
}

/// One line on standard error, where nobody else can be told. A standard error that nobody reads must not stop the
/// host.
fn report_failure(text: &str) {
    let line = format!("kvconn: environment variable {VARIABLE}: {text}\n");
    let _ = foreign_fd::write_all(libc::STDERR_FILENO, line.as_bytes(), Duration::ZERO);
}

/// This very process's logger, if it has one.
fn existing() -> Option<&'static Logger> {
    // SAFETY: null or never freed.
    unsafe { LOGGER.load(Ordering::Acquire).as_ref() }.filter(|logger| logger.pid == std::process::id())
}

/// This very process's logger.
fn current() -> &'static Logger {
    loop {
        if let Some(logger) = existing() {
            return logger;
        }
        let old = LOGGER.load(Ordering::Acquire);
        let new = Box::into_raw(Box::new(Logger::new(&LEVEL)));
        if LOGGER.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            // SAFETY: never freed from now on.
            let logger = unsafe { &*new };
            // In a child this ends what its parent had.
            DROPPED.store(0, Ordering::Relaxed);
            FAILURES.store(0, Ordering::Relaxed);
            logger.publish(&logger.state.lock());
        } else {
            // SAFETY: another thread was first; nobody has seen ours.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// The log of one process.
struct Logger {
    pid: u32,
    level: &'static AtomicU8,
    /// A leaf: held for a moment, and no other lock under it but that of a [`SinkThread`].
    state: Mutex<LoggerState>,
    /// Whether the environment asked for the log that is on. For the child, which cannot look into `state`.
    by_environment: AtomicBool,
}

#[derive(Default)]
struct LoggerState {
    level: Option<Level>,
    channel: Option<LogChannel>,
    /// The threads of the sinks before, until they end.
    ending: Vec<Arc<SinkThread>>,
    environment_read: bool,
    set_by_caller: bool,
}

impl Logger {
    fn new(level: &'static AtomicU8) -> Logger {
        Logger { pid: std::process::id(), level, state: Mutex::default(), by_environment: AtomicBool::new(false) }
    }

    fn push(&self, level: Level, mut text: String) {
        // One line, whatever names and reasons of callers are in it.
        if text.contains(char::is_control) {
            text = text.replace(char::is_control, " ");
        }
        if let Some(channel) = &mut self.state.lock().channel {
            DROPPED.fetch_add(channel.push(level, text), Ordering::Relaxed);
        }
    }

    fn set(&self, sink: Option<Sink>, level: Level) -> Result<()> {
        let channel = sink.filter(|_| level != Level::Off).map(LogChannel::start).transpose()?;
        let ending = {
            let mut state = self.state.lock();
            state.set_by_caller = true;
            self.by_environment.store(false, Ordering::Relaxed);
            self.replace(&mut state, channel, level);
            // Also those before the one that this call replaced: another call may still be waiting for them.
            state.ending.clone()
        };
        // A sink that waited for its own end would wait for ever.
        let deadline = if sink_thread::is_current() { None } else { Some(Instant::now() + SINK_WAIT) };
        let running = ending.iter().filter(|old| !old.end(deadline)).count();
        if running > 0 && deadline.is_some() {
            return Err(Error::new(
                Status::Timeout,
                format!(
                    "the log function before has not returned within {} s; it is not called again",
                    SINK_WAIT.as_secs()
                ),
            ));
        }
        Ok(())
    }

    fn read_environment(&self, value: Option<OsString>) {
        {
            let mut state = self.state.lock();
            if state.set_by_caller || std::mem::replace(&mut state.environment_read, true) {
                return;
            }
        }
        let Some(value) = value else { return };
        // Not under the lock: opening a file may take its time.
        let started =
            file::sink(&value).and_then(|(sink, level)| Ok((sink.map(LogChannel::start).transpose()?, level)));
        match started {
            Ok((channel, level)) => {
                let mut state = self.state.lock();
                if !state.set_by_caller {
                    self.by_environment.store(channel.is_some(), Ordering::Relaxed);
                    self.replace(&mut state, channel, level);
                }
            }
            Err(e) => {
                FAILURES.fetch_add(1, Ordering::Relaxed);
                report_failure(&format!("no log: {}", e.message));
            }
        }
    }

    fn replace(&self, state: &mut LoggerState, channel: Option<LogChannel>, level: Level) {
        state.level = channel.as_ref().map(|_| level);
        self.publish(state);
        state.ending.retain(|old| !old.is_over());
        if let Some(old) = std::mem::replace(&mut state.channel, channel) {
            state.ending.push(old.close());
        }
    }

    fn publish(&self, state: &LoggerState) {
        self.level.store(state.level.unwrap_or(Level::Off) as u8, Ordering::Relaxed);
    }
}
