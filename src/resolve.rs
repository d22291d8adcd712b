//! From an endpoint's host name to addresses.
//!
//! libzmq would resolve a name on its I/O thread, at every dial, and one name server that does not
//! answer would stall every socket for ten seconds. So [`Resolver`] looks names up on threads that
//! nobody waits for, and libzmq only sees numeric addresses.

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
    /// If a thread was needed and could not be made. Nothing is started then, and `done` is
    /// dropped without a call.
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
            let shared = Arc::clone(&self.shared);
            // It begins by taking the lock, and so finds the name.
            spawn_quiet("kvconn-resolve", move || work(&shared))?;
            state.threads += 1;
        }
        let host: Arc<str> = host.into();
        state.waiting.insert(Arc::clone(&host), vec![(port, done)]);
        state.queue.push_back(host);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A `done` that sends the outcome.
    fn send_to(sender: &Sender<Resolved>) -> Done {
        let sender = sender.clone();
        Box::new(move |resolved| sender.send(resolved).unwrap())
    }

    fn resolve(resolver: &Resolver, host: &str) -> Receiver<Resolved> {
        let (sender, receiver) = channel();
        resolver.resolve(host, 5555, send_to(&sender)).unwrap();
        receiver
    }

    fn found(receiver: &Receiver<Resolved>) -> Vec<SocketAddr> {
        receiver.recv_timeout(LONG).unwrap().unwrap()
    }

    #[track_caller]
    fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < LONG, "not within a minute: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A look-up under the test's control: names that begin with `slow` wait until it is opened.
    #[derive(Clone, Default)]
    struct Server {
        gate: Arc<(Mutex<bool>, Condvar)>,
        asked: Arc<Mutex<Vec<String>>>,
        now: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    impl Server {
        fn open(&self) {
            *self.gate.0.lock() = true;
            self.gate.1.notify_all();
        }

        fn asked(&self) -> usize {
            self.asked.lock().len()
        }

        fn lookup(&self) -> impl Fn(&str) -> Resolved + Send + Sync + 'static {
            let server = self.clone();
            move |host| {
                server.asked.lock().push(host.to_owned());
                let now = server.now.fetch_add(1, SeqCst) + 1;
                server.most.fetch_max(now, SeqCst);
                if host.starts_with("slow") {
                    let mut open = server.gate.0.lock();
                    while !*open {
                        server.gate.1.wait(&mut open);
                    }
                }
                server.now.fetch_sub(1, SeqCst);
                match host {
                    "panic" => panic!("a look-up that panics, on purpose"),
                    "slow failing" => Err(ResolveError::from_code(libc::EAI_AGAIN)),
                    _ => Ok(vec![address("10.0.0.1:7"), address("[fd00::1]:8")]),
                }
            }
        }
    }

    #[test]
    fn finds_localhost() {
        let addresses = found(&resolve(&Resolver::new(), "localhost"));
        assert!(addresses.iter().all(|address| address.ip().is_loopback()));
        assert!(addresses.contains(&address("127.0.0.1:5555")));
    }

    #[test]
    fn says_why_a_name_has_no_address() {
        let resolver = Resolver::new();
        let (absent, invalid) = (resolve(&resolver, "no-such-host.invalid"), resolve(&resolver, "nul\0byte"));
        for receiver in [invalid, absent] {
            let error = receiver.recv_timeout(LONG).unwrap().unwrap_err();
            assert!(error.code != 0 && !error.text.is_empty(), "{error:?}");
            assert_eq!(error.os_errno != 0, error.code == libc::EAI_SYSTEM);
        }
    }

    #[test]
    fn errors_of_the_system_carry_errno() {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = libc::EMFILE };
        let error = ResolveError::from_code(libc::EAI_SYSTEM);
        assert_eq!((error.code, error.os_errno), (libc::EAI_SYSTEM, libc::EMFILE));
        assert_eq!(error.to_string(), io::Error::from_raw_os_error(libc::EMFILE).to_string());
    }

    #[test]
    fn system_addresses_keep_their_scope() {
        // SAFETY: the name is NUL-terminated.
        let index = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        let found = system_lookup("fe80::1%lo").unwrap();
        assert_eq!(found, [address(&format!("[fe80::1%{index}]:0"))]);
        assert_eq!(system_lookup("10.0.0.1").unwrap(), [address("10.0.0.1:0")]);
    }

    #[test]
    fn addresses_are_canonical_with_the_port_and_once() {
        let resolver = Resolver::with_lookup(|_| {
            Ok(["[fd00::1]:1", "10.0.0.1:2", "[::ffff:10.0.0.1]:3", "[fd00::1]:4", "10.0.0.2:5"].map(address).into())
        });
        assert_eq!(
            found(&resolve(&resolver, "host")),
            ["[fd00::1]:5555", "10.0.0.1:5555", "10.0.0.2:5555"].map(address)
        );
    }

    #[test]
    fn a_slow_name_delays_no_other() {
        let server = Server::default();
        let resolver = Resolver::with_lookup(server.lookup());
        let slow = resolve(&resolver, "slow");
        wait_until("the slow look-up runs", || server.asked() == 1);
        for _ in 0..10 {
            found(&resolve(&resolver, "fast"));
        }
        assert!(slow.try_recv().is_err());
        server.open();
        found(&slow);
    }

    #[test]
    fn a_burst_is_not_left_to_one_idle_thread() {
        for _ in 0..20 {
            let server = Server::default();
            let resolver = Resolver::with_lookup(server.lookup());
            found(&resolve(&resolver, "fast"));
            wait_until("it is idle", || resolver.shared.state.lock().idle == 1);
            let names = ["slow1", "slow2", "slow3"].map(|name| resolve(&resolver, name));
            wait_until("all are being looked up", || server.asked() == 4);
            server.open();
            names.iter().for_each(|name| drop(found(name)));
        }
    }

    #[test]
    fn a_name_that_comes_as_the_thread_ends_is_not_lost() {
        let limits = Limits { threads: 1, idle: Duration::from_micros(100) };
        let resolver = Resolver::with_limits(limits, Server::default().lookup());
        for turn in 0..5000 {
            found(&resolve(&resolver, "host"));
            let next = Instant::now() + Duration::from_micros(100 + turn % 100);
            while Instant::now() < next {
                std::hint::spin_loop();
            }
        }
    }

    #[test]
    fn one_lookup_serves_all_who_ask_meanwhile() {
        let server = Server::default();
        let resolver = Resolver::with_lookup(server.lookup());
        let (sender, receiver) = channel();
        for port in 1..=20 {
            resolver.resolve("slow", port, send_to(&sender)).unwrap();
        }
        server.open();
        drop(sender);
        // The channel ends when the last `done` is gone: none of them was called twice.
        let ports: Vec<u16> = receiver.iter().map(|found| found.unwrap()[1].port()).collect();
        assert_eq!(ports, Vec::from_iter(1..=20));
        assert_eq!(server.asked(), 1);
        found(&resolve(&resolver, "slow"));
        assert_eq!(server.asked(), 2, "an answer is not kept");
    }

    #[test]
    fn errors_reach_all_who_wait() {
        let server = Server::default();
        let resolver = Resolver::with_lookup(server.lookup());
        let waiting = ["slow failing"; 2].map(|name| resolve(&resolver, name));
        server.open();
        for receiver in waiting {
            let error = receiver.recv_timeout(LONG).unwrap();
            assert_eq!(error, Err(ResolveError::from_code(libc::EAI_AGAIN)));
        }
        assert_eq!(server.asked(), 1);
    }

    #[test]
    fn threads_are_bounded_and_names_queue() {
        let server = Server::default();
        let resolver = Resolver::with_lookup(server.lookup());
        let (sender, receiver) = channel();
        let names = 3 * MAX_THREADS;
        for name in 0..names {
            for port in [1, 2] {
                let host = format!("slow{name}");
                resolver.resolve(&host, port, send_to(&sender)).unwrap();
            }
        }
        wait_until("every thread is busy", || server.asked() == MAX_THREADS);
        std::thread::sleep(SHORT);
        assert_eq!(server.asked(), MAX_THREADS);
        assert_eq!(resolver.shared.state.lock().threads, MAX_THREADS);
        assert!(receiver.try_recv().is_err());
        server.open();
        drop(sender);
        assert_eq!(receiver.iter().count(), 2 * names);
        assert_eq!(server.asked(), names, "queued names are joined too");
        assert_eq!(server.most.load(SeqCst), MAX_THREADS);
    }

    #[test]
    fn exactly_once_from_many_threads() {
        let server = Server::default();
        server.open();
        let limits = Limits {
            threads: 4,
            // So short that threads come and go all the time.
            idle: Duration::from_micros(50),
        };
        let resolver = Resolver::with_limits(limits, server.lookup());
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            for asker in 0..8_usize {
                let (resolver, sender) = (&resolver, sender.clone());
                scope.spawn(move || {
                    for turn in 0..2000 {
                        let host = format!("host{}", (asker * turn) % 7);
                        resolver.resolve(&host, 5555, send_to(&sender)).unwrap();
                        if turn % 16 == 0 {
                            std::thread::sleep(Duration::from_micros(80));
                        }
                    }
                });
            }
        });
        drop(sender);
        assert_eq!(receiver.iter().count(), 8 * 2000);
        assert!(server.most.load(SeqCst) <= 4);
        wait_until("the threads are gone", || resolver.shared.state.lock().threads == 0);
    }

    #[test]
    fn a_thread_serves_many_names_then_ends() {
        let limits = Limits { threads: 64, idle: 10 * SHORT };
        let resolver = Resolver::with_limits(limits, Server::default().lookup());
        assert_eq!(resolver.shared.state.lock().threads, 0);
        for name in 0..20 {
            found(&resolve(&resolver, &format!("host{name}")));
            wait_until("it is idle", || resolver.shared.state.lock().idle == 1);
            assert_eq!(resolver.shared.state.lock().threads, 1);
        }
        wait_until("it ends", || resolver.shared.state.lock().threads == 0);
        found(&resolve(&resolver, "host"));
    }

    #[test]
    fn a_panic_harms_nobody_else() {
        let limits = Limits { threads: 1, idle: IDLE };
        let resolver = Resolver::with_limits(limits, Server::default().lookup());
        let error = resolve(&resolver, "panic").recv_timeout(LONG).unwrap();
        assert_eq!(error, Err(ResolveError::from_code(libc::EAI_FAIL)));

        let server = Server::default();
        let resolver = Resolver::with_lookup(server.lookup());
        let panicking: Done = Box::new(|_| panic!("a `done` that panics, on purpose"));
        resolver.resolve("slow", 5555, panicking).unwrap();
        let joined = resolve(&resolver, "slow");
        server.open();
        found(&joined);
        wait_until("its thread lives", || resolver.shared.state.lock().idle == 1);
        found(&resolve(&resolver, "fast"));
        assert_eq!(resolver.shared.state.lock().threads, 1);
    }

    #[test]
    fn done_may_ask_again() {
        let resolver = Arc::new(Resolver::with_lookup(Server::default().lookup()));
        let (sender, receiver) = channel();
        let (again, done) = (Arc::clone(&resolver), send_to(&sender));
        let ask_again: Done = Box::new(move |_| again.resolve("host", 1, done).unwrap());
        resolver.resolve("host", 5555, ask_again).unwrap();
        assert_eq!(found(&receiver)[0].port(), 1);
    }

    #[test]
    fn runs_on_a_named_thread() {
        let resolver = Resolver::with_lookup(Server::default().lookup());
        let (sender, receiver) = channel();
        let name: Done = Box::new(move |_| {
            let name = std::thread::current().name().map(str::to_owned);
            sender.send(name).unwrap();
        });
        resolver.resolve("host", 5555, name).unwrap();
        assert_eq!(receiver.recv_timeout(LONG).unwrap().as_deref(), Some("kvconn-resolve"));
    }

    #[test]
    fn dropping_it_waits_for_nothing_and_loses_nothing() {
        let server = Server::default();
        let limits = Limits { threads: 1, idle: LONG };
        let resolver = Resolver::with_limits(limits, server.lookup());
        let shared = Arc::downgrade(&resolver.shared);
        let names = ["slow1", "slow2"].map(|name| resolve(&resolver, name));
        drop(resolver);
        server.open();
        names.iter().for_each(|name| drop(found(name)));
        wait_until("its threads are gone", || shared.upgrade().is_none());

        let resolver = Resolver::with_lookup(server.lookup());
        let shared = Arc::downgrade(&resolver.shared);
        found(&resolve(&resolver, "host"));
        wait_until("its thread is idle", || resolver.shared.state.lock().idle == 1);
        drop(resolver);
        let start = Instant::now();
        wait_until("its idle thread is gone", || shared.upgrade().is_none());
        assert!(start.elapsed() < IDLE / 2);
    }
}
