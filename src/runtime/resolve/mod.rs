//! From an endpoint's host name to addresses.
//!
//! libzmq would resolve a name on its I/O thread, at every dial, and one name server that does not
//! answer would stall every socket for ten seconds. So [`Resolver`] looks names up on threads that
//! nobody waits for, and libzmq only sees numeric addresses.
//!
//! When every thread is busy, further names wait. One more thread is there as long as names wait. It looks for them in
//! the hosts file, drops those that nobody waits for any more, and starts one more thread when all others hang: so names
//! that resolve do not wait behind names that hang.

mod hosts;
mod lanes;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::error::Error;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::lanes::Lanes;
use crate::sys::lock::{Condvar, Mutex, MutexGuard};
use crate::sys::thread::spawn_quiet;

/// Most names that are looked up at the same time.
///
/// `getaddrinfo` cannot be cancelled: a name whose server does not answer keeps its thread for ten
/// seconds or more. More would help few, and cost every process about two descriptors and a stack for
/// each, and its name server a burst of questions at every start-up.
const MAX_THREADS: usize = 64;

/// A look-up that has taken so long hangs. When all do and a name waits, one more thread takes it: so many hang after a
/// while that the first ones have given up, which takes the system about ten seconds.
const HANGS: Duration = Duration::from_millis(250);

/// Most threads, those that hang included.
const MAX_WITH_HANGING: usize = 128;

/// How long a thread without work stays: a start-up's names come within this time, and afterwards
/// no thread is left over.
const IDLE: Duration = Duration::from_secs(10);

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveError {
    /// The errno of the system call that failed, else the errno for the `EAI_*` code (see `ERRNOS`). Never 0 or
    /// `EINTR`.
    pub os_errno: i32,
    /// The system's text.
    pub text: String,
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl Error for ResolveError {}

/// What a look-up finds: at least one address, in the order in which to dial them.
pub type Resolved = Result<Vec<SocketAddr>, ResolveError>;

/// What is called with the outcome of a look-up.
pub type Done = Box<dyn FnOnce(Resolved) + Send>;

/// Looks names up on threads of its own.
///
/// A name has one look-up at a time, even if many callers ask for it. There are as many look-ups at a time as there
/// are threads; further names wait in line. Threads come with the names and leave when idle.
///
/// Dropping it waits for nothing: the look-ups that were asked for go on, and their threads end
/// after them. In a forked child there are no such threads; `forget` the parent's resolver there
/// and make another one.
pub struct Resolver {
    shared: Arc<Shared>,
}

/// Looks a name up, however long that takes.
type Lookup = dyn Fn(&str) -> Resolved + Send + Sync;
/// Looks a name up without waiting.
type LocalLookup = dyn Fn(&str) -> Option<Vec<SocketAddr>> + Send + Sync;

struct Shared {
    limits: Limits,
    lookup: Box<Lookup>,
    /// What answers at once if it knows the name: the hosts file.
    local: Box<LocalLookup>,
    /// A lock of its own: no other is taken while it is held.
    state: Mutex<Lookups>,
    /// Signalled when a name is queued for an idle thread, and when the resolver is dropped.
    asked: Condvar,
    /// Signalled when a name is queued that no thread is free for.
    helper: Condvar,
}

struct Limits {
    threads: usize,
    with_hanging: usize,
    hangs: Duration,
    idle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { threads: MAX_THREADS, with_hanging: MAX_WITH_HANGING, hangs: HANGS, idle: IDLE }
    }
}

/// Somebody who has asked for a name.
struct Asking {
    port: u16,
    /// When the answer is of no more use.
    until: Instant,
    done: Done,
}

#[derive(Default)]
struct Lookups {
    /// Every name that is queued or being looked up, and who has asked for it.
    waiting: HashMap<Arc<str>, Vec<Asking>>,
    /// The names that no thread has taken yet.
    queue: Lanes,
    /// Those among them that were not looked for in the hosts file yet.
    unchecked: Vec<Arc<str>>,
    /// The one thread that cares for names that wait is there.
    helping: bool,
    /// The look-ups that run, and since when.
    running: Vec<(Arc<str>, Instant)>,
    /// Threads there are, and how many of them wait for a name.
    threads: usize,
    idle: usize,
    dropped: bool,
}

impl Resolver {
    /// A resolver that asks the system (`getaddrinfo`). Starts no thread yet.
    pub fn new() -> Resolver {
        Resolver::with_limits(Limits::default(), system_lookup, hosts::lookup)
    }

    /// A resolver that asks `lookup` for the addresses of a name; their ports are of no account.
    pub fn with_lookup(lookup: impl Fn(&str) -> Resolved + Send + Sync + 'static) -> Resolver {
        Resolver::with_limits(Limits::default(), lookup, |_| None)
    }

    fn with_limits(
        limits: Limits,
        lookup: impl Fn(&str) -> Resolved + Send + Sync + 'static,
        local: impl Fn(&str) -> Option<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Resolver {
        Resolver {
            shared: Arc::new(Shared {
                limits,
                lookup: Box::new(lookup),
                local: Box::new(local),
                state: Mutex::default(),
                asked: Condvar::new(),
                helper: Condvar::new(),
            }),
        }
    }

    /// Starts a look-up of `host`, or joins the one that is under way.
    ///
    /// `done` is called exactly once, on a resolver thread and without a lock, with the addresses
    /// in the system's order, each once and with `port`. It should not take long: others who asked
    /// for the same name come after it. If it panics, nobody else notices. After `until` nobody wants the answer: if the
    /// name has no thread by then, it is not looked up, and `done` is called with an error.
    ///
    /// # Errors
    ///
    /// If there is no thread and none could be made. Nothing is started then, and `done` is
    /// dropped without a call. After [`prepare`](Self::prepare) that is not known to happen.
    pub fn resolve(&self, host: &str, port: u16, until: Instant, done: Done) -> io::Result<()> {
        let waiter = Asking { port, until, done };
        let mut state = self.shared.state.lock();
        if let Some(waiting) = state.waiting.get_mut(host) {
            waiting.push(waiter);
            return Ok(());
        }
        let mut waits = false;
        // A thread that has been woken, and has not run yet, still counts as idle: so does its name.
        if state.queue.len() < state.idle {
            self.shared.asked.notify_one();
        } else if state.threads < self.shared.limits.threads {
            // It begins by taking the lock, and so finds the name.
            match start_thread(&self.shared, &mut state) {
                Err(e) if state.threads == 0 => return Err(e),
                // Without one more the name waits for those that are there.
                started => waits = started.is_err(),
            }
        } else {
            waits = true;
        }
        let host: Arc<str> = host.into();
        state.waiting.insert(Arc::clone(&host), vec![waiter]);
        state.queue.push(Arc::clone(&host));
        if waits {
            state.unchecked.push(host);
            self.start_helping(&mut state);
        }
        Ok(())
    }

    /// How many look-ups keep this name waiting for a thread; `None` if it has one, or was not asked for.
    pub fn waits_behind(&self, host: &str) -> Option<usize> {
        let state = self.shared.state.lock();
        state.queue.contains(host).then_some(state.threads)
    }
}

impl Resolver {
    /// Makes sure that there is a thread, before something is made that needs a look-up.
    ///
    /// # Errors
    ///
    /// The system's error if there is none and none could be made.
    pub fn prepare(&self) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if state.threads == 0 { start_thread(&self.shared, &mut state) } else { Ok(()) }
    }

    /// Starts the thread that cares for waiting names, or tells it of a new one. Without it they only wait.
    fn start_helping(&self, state: &mut Lookups) {
        if state.helping {
            self.shared.helper.notify_one();
        } else {
            let shared = Arc::clone(&self.shared);
            state.helping = spawn_quiet("kvconn-hosts", move || help(&shared)).is_ok();
            if !state.helping {
                state.unchecked.clear();
            }
        }
    }
}

fn start_thread(shared: &Arc<Shared>, state: &mut Lookups) -> io::Result<()> {
    let own = Arc::clone(shared);
    spawn_quiet("kvconn-resolve", move || work(&own))?;
    state.threads += 1;
    Ok(())
}

impl Default for Resolver {
    fn default() -> Resolver {
        Resolver::new()
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.shared.state.lock().dropped = true;
        self.shared.asked.notify_all();
    }
}

/// The life of a resolver thread.
fn work(shared: &Shared) {
    let mut state = shared.state.lock();
    loop {
        if let Some(host) = state.queue.pop() {
            let begun = Instant::now();
            if expired(&state, &host, begun) {
                MutexGuard::unlocked(&mut state, || answer(shared, &host, Err(too_late())));
                continue;
            }
            state.running.push((Arc::clone(&host), begun));
            MutexGuard::unlocked(&mut state, || {
                // Whatever the system's look-up does, every waiting dial must be told.
                let panicked = || Err(ResolveError { os_errno: libc::EIO, text: "the look-up panicked".into() });
                answer(shared, &host, guarded(|| (shared.lookup)(&host)).unwrap_or_else(panicked));
            });
            // By its time: the name may be looked up again already.
            let running = state.running.iter().position(|(name, since)| *name == host && *since == begun);
            running.map(|place| state.running.swap_remove(place));
            state.queue.note(&host, begun.elapsed() < shared.limits.hangs);
            // Those that no longer hang give back what was above the limit.
            if state.threads > shared.limits.threads {
                let hang = hanging(&state, shared.limits.hangs, Instant::now());
                if state.threads - hang > shared.limits.threads {
                    break;
                }
            }
            continue;
        }
        if state.dropped {
            break;
        }
        state.idle += 1;
        let waited = shared.asked.wait_for(&mut state, shared.limits.idle);
        state.idle -= 1;
        // The name may have come just now.
        if waited.timed_out() && state.queue.is_empty() {
            break;
        }
    }
    state.threads -= 1;
}

/// The life of the thread that cares for names that wait: until none is left.
fn help(shared: &Arc<Shared>) {
    let mut state = shared.state.lock();
    while !state.queue.is_empty() {
        for host in std::mem::take(&mut state.unchecked) {
            if !state.queue.contains(&host) {
                continue;
            }
            let found = MutexGuard::unlocked(&mut state, || guarded(|| (shared.local)(&host)).flatten());
            // A thread may have taken it meanwhile.
            if let Some(found) = found
                && state.queue.remove(&host)
            {
                MutexGuard::unlocked(&mut state, || answer(shared, &host, Ok(found)));
            }
        }
        let now = Instant::now();
        let Lookups { queue, waiting, .. } = &mut *state;
        for host in queue.take_if(|host| is_over(waiting.get(host), now)) {
            MutexGuard::unlocked(&mut state, || answer(shared, &host, Err(too_late())));
        }
        let all_hang = state.idle == 0 && hanging(&state, shared.limits.hangs, now) == state.threads;
        if all_hang && state.threads < shared.limits.with_hanging && !state.queue.is_empty() {
            // Where none can be made, the name waits for one that hangs.
            let _ = start_thread(shared, &mut state);
        }
        if state.unchecked.is_empty() && !state.queue.is_empty() {
            shared.helper.wait_for(&mut state, shared.limits.hangs / 4);
        }
    }
    state.helping = false;
}

/// How many look-ups hang.
fn hanging(state: &Lookups, hangs: Duration, now: Instant) -> usize {
    state.running.iter().filter(|(_, since)| now.saturating_duration_since(*since) >= hangs).count()
}

/// Whether nobody wants to know a name any more.
fn expired(state: &Lookups, host: &str, now: Instant) -> bool {
    is_over(state.waiting.get(host), now)
}

fn is_over(waiting: Option<&Vec<Asking>>, now: Instant) -> bool {
    waiting.is_none_or(|waiting| waiting.iter().all(|waiter| waiter.until <= now))
}

fn too_late() -> ResolveError {
    ResolveError { os_errno: libc::ETIMEDOUT, text: "no resolver thread was free in time".into() }
}

/// Tells everybody who has asked for `host` until now.
fn answer(shared: &Shared, host: &str, found: Resolved) {
    let waiting = shared.state.lock().waiting.remove(host);
    for Asking { port, done, .. } in waiting.unwrap_or_default() {
        let resolved = found.clone().map(|found| with_port(found, port));
        guarded(move || done(resolved));
    }
}

/// Calls `f`; `None` if it panics.
fn guarded<T>(f: impl FnOnce() -> T) -> Option<T> {
    // Nothing of ours is left half-changed: `f` shares no state with the caller.
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => Some(value),
        Err(payload) => {
            // Dropping it could panic again.
            std::mem::forget(payload);
            None
        }
    }
}

/// The addresses in canonical form and with `port`, each once.
fn with_port(found: Vec<SocketAddr>, port: u16) -> Vec<SocketAddr> {
    let mut addresses = Vec::with_capacity(found.len());
    for mut address in found {
        address.set_ip(address.ip().to_canonical());
        address.set_port(port);
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// The errno that stands for an `EAI_*` code. `ENOENT` says that the name is unknown, `EAGAIN` that nobody could say.
const ERRNOS: [(i32, i32); 6] = [
    (libc::EAI_NONAME, libc::ENOENT),
    (libc::EAI_NODATA, libc::ENOENT),
    (libc::EAI_AGAIN, libc::EAGAIN),
    (libc::EAI_MEMORY, libc::ENOMEM),
    (libc::EAI_FAIL, libc::EIO),
    (libc::EAI_FAMILY, libc::EAFNOSUPPORT),
];

impl From<io::Error> for ResolveError {
    /// The standard library keeps the errno of a failed system call (`EAI_SYSTEM`). Of every other code it keeps only
    /// the text, so the text tells the code. Both come from `gai_strerror` in the same process, in whatever language.
    fn from(error: io::Error) -> ResolveError {
        let text = error.to_string();
        let code = || ERRNOS.iter().find(|(code, _)| text.ends_with(&code_text(*code)));
        let os_errno = error.raw_os_error().unwrap_or_else(|| code().map_or(libc::EIO, |(_, errno)| *errno));
        ResolveError { os_errno, text }
    }
}

/// The system's text for an `EAI_*` code.
fn code_text(code: i32) -> String {
    // SAFETY: gai_strerror returns a NUL-terminated string that is never freed, for any code.
    unsafe { CStr::from_ptr(libc::gai_strerror(code)) }.to_string_lossy().into_owned()
}

/// Asks `getaddrinfo` for the addresses of `host`, in its order (RFC 6724: reachable addresses come first).
///
/// The standard library calls it without AI_ADDRCONFIG, which would hide `::1` on a host that has no other IPv6 address
/// (and the reverse). Addresses of a family that the host does not have come last, and dialling them fails at once.
fn system_lookup(host: &str) -> Resolved {
    loop {
        match (host, 0).to_socket_addrs() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
            Ok(found) if found.len() == 0 => {
                return Err(ResolveError {
                    os_errno: libc::ENOENT,
                    text: "the name has no IPv4 or IPv6 address".into(),
                });
            }
            Ok(found) => return Ok(found.collect()),
        }
    }
}
