//! Look-ups that answer, fail, hang and come together.

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

fn later() -> Instant {
    Instant::now() + LONG
}

fn failure() -> ResolveError {
    ResolveError { os_errno: libc::EAGAIN, text: code_text(libc::EAI_AGAIN) }
}

fn resolve(resolver: &Resolver, host: &str) -> Receiver<Resolved> {
    let (sender, receiver) = channel();
    resolver.resolve(host, 5555, later(), send_to(&sender)).unwrap();
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
                "slow failing" => Err(failure()),
                _ => Ok(vec![address("10.0.0.1:7"), address("[fd00::1]:8")]),
            }
        }
    }
}

#[test]
fn finds_localhost() {
    // Field report R45: a machine whose hosts file does not have the name.
    if hosts::lookup("localhost").is_none_or(|found| !found.contains(&address("127.0.0.1:0"))) {
        return println!("SKIPPED: /etc/hosts does not say that localhost is 127.0.0.1");
    }
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
        assert!(error.os_errno != 0 && !error.text.is_empty(), "{error:?}");
    }
}

#[test]
fn the_text_of_a_failed_lookup_tells_its_code() {
    for (code, os_errno) in ERRNOS {
        // As the standard library makes it.
        let text = format!("failed to lookup address information: {}", code_text(code));
        let error = ResolveError::from(io::Error::other(text.clone()));
        assert_eq!(error, ResolveError { os_errno, text });
    }
    let unknown = ResolveError::from(io::Error::other("something else"));
    assert_eq!((unknown.os_errno, &*unknown.text), (libc::EIO, "something else"));
}

#[test]
fn a_failed_system_call_keeps_its_errno() {
    let error = ResolveError::from(io::Error::from_raw_os_error(libc::EMFILE));
    assert_eq!(error.os_errno, libc::EMFILE);
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
    assert_eq!(found(&resolve(&resolver, "host")), ["[fd00::1]:5555", "10.0.0.1:5555", "10.0.0.2:5555"].map(address));
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
    let limits = Limits { threads: 1, idle: Duration::from_micros(100), ..Limits::default() };
    let resolver = Resolver::with_limits(limits, Server::default().lookup(), |_| None);
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
        resolver.resolve("slow", port, later(), send_to(&sender)).unwrap();
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
        assert_eq!(error, Err(failure()));
    }
    assert_eq!(server.asked(), 1);
}

#[test]
fn threads_are_bounded_and_names_queue() {
    let server = Server::default();
    let limits = Limits { hangs: LONG, ..Limits::default() };
    let resolver = Resolver::with_limits(limits, server.lookup(), |_| None);
    let (sender, receiver) = channel();
    let names = 3 * MAX_THREADS;
    for name in 0..names {
        for port in [1, 2] {
            let host = format!("slow{name}");
            resolver.resolve(&host, port, later(), send_to(&sender)).unwrap();
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
        hangs: LONG,
        ..Limits::default()
    };
    let resolver = Resolver::with_limits(limits, server.lookup(), |_| None);
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        for policy in 0..8_usize {
            let (resolver, sender) = (&resolver, sender.clone());
            scope.spawn(move || {
                for turn in 0..2000 {
                    let host = format!("host{}", (policy * turn) % 7);
                    resolver.resolve(&host, 5555, later(), send_to(&sender)).unwrap();
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
fn a_name_that_the_hosts_file_knows_does_not_wait_for_a_thread() {
    let server = Server::default();
    let limits = Limits { threads: 2, hangs: LONG, ..Limits::default() };
    let local = |host: &str| host.starts_with("known").then(|| vec![address("10.0.0.9:1")]);
    let resolver = Resolver::with_limits(limits, server.lookup(), local);
    let hanging = ["slow1", "slow2", "slow3"].map(|name| resolve(&resolver, name));
    wait_until("every thread is busy", || server.asked() == 2);
    assert_eq!((resolver.waits_behind("slow3"), resolver.waits_behind("slow1")), (Some(2), None));
    for name in ["known1", "known2"] {
        let both = [resolve(&resolver, name), resolve(&resolver, name)];
        both.iter().for_each(|one| assert_eq!(found(one), [address("10.0.0.9:5555")]));
    }
    assert!(hanging[2].try_recv().is_err());
    server.open();
    hanging.iter().for_each(|name| drop(found(name)));
    wait_until("its thread is gone", || !resolver.shared.state.lock().helping);
    assert_eq!(server.asked(), 3, "the hosts file's names were not asked for");
    // With a thread to spare the system is asked, whatever the hosts file says.
    assert_eq!(found(&resolve(&resolver, "known1")).len(), 2);
}

#[test]
fn a_thread_serves_many_names_then_ends() {
    let limits = Limits { threads: 64, idle: 10 * SHORT, ..Limits::default() };
    let resolver = Resolver::with_limits(limits, Server::default().lookup(), |_| None);
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
    let limits = Limits { threads: 1, idle: IDLE, ..Limits::default() };
    let resolver = Resolver::with_limits(limits, Server::default().lookup(), |_| None);
    let error = resolve(&resolver, "panic").recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!((error.os_errno, &*error.text), (libc::EIO, "the look-up panicked"));

    let server = Server::default();
    let resolver = Resolver::with_lookup(server.lookup());
    let panicking: Done = Box::new(|_| panic!("a `done` that panics, on purpose"));
    resolver.resolve("slow", 5555, later(), panicking).unwrap();
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
    let ask_again: Done = Box::new(move |_| again.resolve("host", 1, later(), done).unwrap());
    resolver.resolve("host", 5555, later(), ask_again).unwrap();
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
    resolver.resolve("host", 5555, later(), name).unwrap();
    assert_eq!(receiver.recv_timeout(LONG).unwrap().as_deref(), Some("kvconn-resolve"));
}

#[test]
fn dropping_it_waits_for_nothing_and_loses_nothing() {
    let server = Server::default();
    let limits = Limits { threads: 1, idle: LONG, ..Limits::default() };
    let resolver = Resolver::with_limits(limits, server.lookup(), |_| None);
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

/// Field report R42.
#[test]
fn a_name_that_answers_does_not_wait_behind_names_that_hang() {
    let server = Server::default();
    let limits = Limits { threads: 4, hangs: SHORT, ..Limits::default() };
    let resolver = Resolver::with_limits(limits, server.lookup(), |_| None);
    let hanging: Vec<_> = (0..4).map(|n| resolve(&resolver, &format!("slow{n}"))).collect();
    wait_until("every thread is busy", || server.asked() == 4);
    for round in 0..3 {
        found(&resolve(&resolver, &format!("fast{round}")));
    }
    assert!(hanging.iter().all(|name| name.try_recv().is_err()));
    let threads = resolver.shared.state.lock().threads;
    assert!(threads <= 6, "{threads} threads for one name at a time");
    server.open();
    hanging.iter().for_each(|name| drop(found(name)));
}

#[test]
fn threads_that_hang_are_bounded_too() {
    let server = Server::default();
    let limits = Limits { threads: 2, with_hanging: 5, hangs: Duration::from_millis(2), ..Limits::default() };
    let resolver = Resolver::with_limits(limits, server.lookup(), |_| None);
    let hanging: Vec<_> = (0..9).map(|n| resolve(&resolver, &format!("slow{n}"))).collect();
    wait_until("as many as there may be hang", || server.asked() == 5);
    std::thread::sleep(SHORT);
    assert_eq!((server.asked(), resolver.shared.state.lock().threads), (5, 5));
    server.open();
    hanging.iter().for_each(|name| drop(found(name)));
    wait_until("the helper has gone", || !resolver.shared.state.lock().helping);
}

#[test]
fn a_name_that_nobody_waits_for_any_more_is_not_looked_up() {
    let server = Server::default();
    let limits = Limits { threads: 1, with_hanging: 1, hangs: SHORT, ..Limits::default() };
    let resolver = Resolver::with_limits(limits, server.lookup(), |_| None);
    let slow = resolve(&resolver, "slow");
    wait_until("its look-up runs", || server.asked() == 1);
    let (sender, receiver) = channel();
    resolver.resolve("late", 1, Instant::now() + SHORT, send_to(&sender)).unwrap();
    // Somebody else waits longer for this one.
    let kept = {
        resolver.resolve("kept", 1, Instant::now(), send_to(&sender)).unwrap();
        resolve(&resolver, "kept")
    };
    let error = receiver.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(error.os_errno, libc::ETIMEDOUT, "{error:?}");
    assert_eq!(resolver.waits_behind("late"), None);
    server.open();
    found(&slow);
    found(&kept);
    assert!(receiver.recv_timeout(LONG).unwrap().is_ok(), "the answer came anyway");
    assert!(!server.asked.lock().contains(&"late".to_owned()));
}

#[test]
fn a_name_that_answered_quickly_passes_names_that_hung() {
    let server = Server::default();
    let limits = Limits { threads: 1, with_hanging: 1, hangs: SHORT, ..Limits::default() };
    let resolver = Resolver::with_limits(limits, server.lookup(), |_| None);
    found(&resolve(&resolver, "fast"));
    let slow = resolve(&resolver, "slow");
    wait_until("its look-up runs", || server.asked() == 2);
    let waiting = ["new1", "new2", "fast"].map(|name| resolve(&resolver, name));
    server.open();
    waiting.iter().for_each(|name| drop(found(name)));
    found(&slow);
    assert_eq!(*server.asked.lock(), ["fast", "slow", "fast", "new1", "new2"]);
}
