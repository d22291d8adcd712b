//! From an endpoint's host name to addresses.
//!
//! libzmq would resolve a name on its I/O thread, at every dial, and one name server that does not
//! answer would stall every socket for ten seconds. So [`Resolver`] looks names up on threads that
//! nobody waits for, and libzmq only sees numeric addresses.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use crate::lock::{Condvar, Mutex, MutexGuard};
use crate::thread::spawn_quiet;

/// Most names that are looked up at the same time.
///
/// `getaddrinfo` cannot be cancelled: a name whose server does not answer keeps its thread for ten
/// seconds or more, and only when this many such names are asked for at once does a healthy one
/// have to wait. More would help few, and cost every process about two descriptors and a stack for
/// each, and its name server a burst of questions at every start-up.
const MAX_THREADS: usize = 64;

/// How long a thread without work stays: a start-up's names come within this time, and afterwards
/// no thread is left over.
const IDLE: Duration = Duration::from_secs(10);

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveError {
    /// The `EAI_*` code of `getaddrinfo`.
    pub code: i32,
    /// The `errno` that comes with `EAI_SYSTEM`, else 0. Never `EINTR`.
    pub os_errno: i32,
    /// What `code` or `os_errno` says in words.
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
/// There is one look-up for a name at a time, whoever asks, and as many names at a time as there
/// are threads; further names wait in line. Threads come with the names and leave when idle.
///
/// Dropping it waits for nothing: the look-ups that were asked for go on, and their threads end
/// after them. In a forked child there are no such threads; `forget` the parent's resolver there
/// and make another one.
pub struct Resolver {
    shared: Arc<Shared>,
}

struct Shared {
    limits: Limits,
    lookup: Box<dyn Fn(&str) -> Resolved + Send + Sync>,
    state: Mutex<State>,
    /// Signalled when a name is queued for an idle thread, and when the resolver is dropped.
    asked: Condvar,
}

struct Limits {
    threads: usize,
    idle: Duration,
}

#[derive(Default)]
struct State {
    /// Every name that is queued or being looked up, and who wants to know, for which port.
    waiting: HashMap<Arc<str>, Vec<(u16, Done)>>,
    /// The names that no thread has taken yet.
    queue: VecDeque<Arc<str>>,
    /// Threads there are, and how many of them wait for a name.
    threads: usize,
    idle: usize,
    dropped: bool,
}

impl Resolver {
    /// A resolver that asks the system (`getaddrinfo`). Starts no thread yet.
    pub fn new() -> Resolver {
        Resolver::with_lookup(system_lookup)
    }

    /// A resolver that asks `lookup` for the addresses of a name; their ports are of no account.
    pub fn with_lookup(lookup: impl Fn(&str) -> Resolved + Send + Sync + 'static) -> Resolver {
        let limits = Limits { threads: MAX_THREADS, idle: IDLE };
        Resolver::with_limits(limits, lookup)
    }

    fn with_limits(limits: Limits, lookup: impl Fn(&str) -> Resolved + Send + Sync + 'static) -> Resolver {
        Resolver {
            shared: Arc::new(Shared {
                limits,
                lookup: Box::new(lookup),
                state: Mutex::default(),
                asked: Condvar::new(),
            }),
        }
    }

    /// Starts a look-up of `host`, or joins the one that is under way.
    ///
    /// `done` is called exactly once, on a resolver thread and without a lock, with the addresses
    /// in the system's order, each once and with `port`. It should not take long: others who asked
    /// for the same name come after it. If it panics, nobody else notices.
    ///
    /// # Errors
    ///
    /// If there is no thread and none could be made. Nothing is started then, and `done` is
    /// dropped without a call. After [`prepare`](Self::prepare) that is not known to happen.
    pub fn resolve(&self, host: &str, port: u16, done: Done) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if let Some(waiting) = state.waiting.get_mut(host) {
            waiting.push((port, done));
            return Ok(());
        }
        // A thread that has been woken, and has not run yet, still counts as idle: so does its name.
        if state.queue.len() < state.idle {
            self.shared.asked.notify_one();
        } else if state.threads < self.shared.limits.threads {
            // It begins by taking the lock, and so finds the name.
            match self.start_thread(&mut state) {
                Err(e) if state.threads == 0 => return Err(e),
                // Without one more the name waits for those that are there.
                _ => {}
            }
        }
        let host: Arc<str> = host.into();
        state.waiting.insert(Arc::clone(&host), vec![(port, done)]);
        state.queue.push_back(host);
        Ok(())
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
        if state.threads == 0 { self.start_thread(&mut state) } else { Ok(()) }
    }

    fn start_thread(&self, state: &mut State) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        spawn_quiet("kvconn-resolve", move || work(&shared))?;
        state.threads += 1;
        Ok(())
    }
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
        if let Some(host) = state.queue.pop_front() {
            MutexGuard::unlocked(&mut state, || answer(shared, &host));
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

/// Looks `host` up and tells everybody who asked until then.
fn answer(shared: &Shared, host: &str) {
    // Whatever happens in a call that is not ours, those who wait must hear of it.
    let found = guarded(|| (shared.lookup)(host)).unwrap_or_else(|| Err(ResolveError::from_code(libc::EAI_FAIL)));
    let waiting = shared.state.lock().waiting.remove(host);
    for (port, done) in waiting.unwrap_or_default() {
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

impl ResolveError {
    /// The error of an `EAI_*` code; for `EAI_SYSTEM` it is `errno` that tells.
    fn from_code(code: i32) -> ResolveError {
        if code == libc::EAI_SYSTEM {
            let error = io::Error::last_os_error();
            return ResolveError { code, os_errno: error.raw_os_error().unwrap_or_default(), text: error.to_string() };
        }
        // SAFETY: gai_strerror returns a NUL-terminated string that lives for ever, for any code.
        let text = unsafe { CStr::from_ptr(libc::gai_strerror(code)) };
        ResolveError { code, os_errno: 0, text: text.to_string_lossy().into_owned() }
    }
}

/// Asks `getaddrinfo` for the addresses of `host`, in its order (RFC 6724: what is reachable comes
/// first).
fn system_lookup(host: &str) -> Resolved {
    let Ok(host) = CString::new(host) else {
        return Err(ResolveError::from_code(libc::EAI_NONAME));
    };
    // Without AI_ADDRCONFIG, which would hide `::1` on a host that has no other IPv6 address (and
    // the reverse). What it spares us, addresses of a family that is not there, costs nothing: they
    // come last, and dialling them fails at once.
    //
    // SAFETY: all zeros is an addrinfo without flags and pointers.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = libc::AF_UNSPEC;
    // One entry for each address, not one more for each kind of socket.
    hints.ai_socktype = libc::SOCK_STREAM;

    let mut list = AddressList(ptr::null_mut());
    loop {
        // SAFETY: `host` is NUL-terminated, `hints` is valid, and `list` is empty and takes what is
        // found.
        let code = unsafe { libc::getaddrinfo(host.as_ptr(), ptr::null(), &hints, &mut list.0) };
        if code == 0 {
            break;
        }
        let error = ResolveError::from_code(code);
        if error.os_errno != libc::EINTR {
            return Err(error);
        }
    }
    let found: Vec<SocketAddr> = list.addresses().collect();
    match found.is_empty() {
        true => Err(ResolveError::from_code(libc::EAI_NONAME)),
        false => Ok(found),
    }
}

/// What `getaddrinfo` found, or null.
struct AddressList(*mut libc::addrinfo);

impl AddressList {
    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        // SAFETY: the list is valid, or null, until it is dropped, and nobody changes it.
        let first = unsafe { self.0.as_ref() };
        // SAFETY: `ai_next` is the rest of the same list, or null.
        let entries = std::iter::successors(first, |entry| unsafe { entry.ai_next.as_ref() });
        entries.filter_map(|entry| {
            // SAFETY: the entry's address is as long as its `ai_addrlen` says.
            unsafe { socket_address(entry.ai_addr, entry.ai_addrlen) }
        })
    }
}

impl Drop for AddressList {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the list came from getaddrinfo and is freed only here.
            unsafe { libc::freeaddrinfo(self.0) };
        }
    }
}

/// The address at `address`, with its scope, if it is an IPv4 or IPv6 one.
///
/// # Safety
///
/// `address` must be null or point to `length` readable bytes.
pub(crate) unsafe fn socket_address(address: *const libc::sockaddr, length: libc::socklen_t) -> Option<SocketAddr> {
    let holds = |size: usize| !address.is_null() && length as usize >= size;
    if !holds(size_of::<libc::sockaddr>()) {
        return None;
    }
    // SAFETY: there is a whole sockaddr, as the caller promises; the same holds below.
    match i32::from(unsafe { address.read_unaligned() }.sa_family) {
        libc::AF_INET if holds(size_of::<libc::sockaddr_in>()) => {
            // SAFETY: see above.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(ip, u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 if holds(size_of::<libc::sockaddr_in6>()) => {
            // SAFETY: see above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let (ip, port) = (v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port));
            Some(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}
