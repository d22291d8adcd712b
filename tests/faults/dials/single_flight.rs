//! Many threads connect to one endpoint: one dials, the others wait for its result (field report R31).

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvconn::error::Status;
use kvconn::ids::ConnId;

use crate::common::engine::{SetOnDrop, canonical, status_of};
use crate::common::load::{Stopwatch, Storm};
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, WrongPeer, ms, open_descriptors, tcp_traffic, wait_until};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);

/// What one connection holds, and those of the same endpoint that are closing, at most.
const AT_MOST: usize = 5 * 17;

#[test]
fn stress_threads_that_connect_to_one_endpoint_while_it_is_disconnected_hold_few_descriptors() {
    if OwnProcess::new(test_name!()).network_if_possible().descriptors(1024).parent() {
        return;
    }
    const THREADS: usize = 250;
    let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let endpoint = peer.endpoint();
    // The events' descriptor and the library's own.
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    engine.ready(endpoint);
    let base = open_descriptors().total();
    let over = AtomicBool::new(false);
    let (connected, refusals, limits) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (mut most, mut opened) = (0, 0);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let result = engine.connect(endpoint, ms(500));
                    match status_of(&result) {
                        Status::Ok => connected.fetch_add(1, Ordering::Relaxed),
                        Status::Limit => limits.fetch_add(1, Ordering::Relaxed),
                        Status::Backoff | Status::Disconnected | Status::Timeout => {
                            refusals.fetch_add(1, Ordering::Relaxed)
                        }
                        _ => panic!("{result:?}"),
                    };
                    std::thread::yield_now();
                }
            });
        }
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if let Ok(id) = engine.find(endpoint) {
                    crate::common::engine::connection(id).disconnect().unwrap();
                }
                std::thread::sleep(ms(10));
            }
        });
        let begun = Instant::now();
        while begun.elapsed() < ms(2000) {
            most = most.max(open_descriptors().total().saturating_sub(base));
            // The host's own.
            File::open("/proc/self/stat").expect("the host opens a file");
            opened += 1;
            std::thread::sleep(ms(2));
        }
    });
    println!(
        "at most {most} descriptors, {} connected, {} refused, {opened} files opened",
        connected.load(Ordering::Relaxed),
        refusals.load(Ordering::Relaxed)
    );
    assert!(most <= AT_MOST, "{most} descriptors for one endpoint");
    assert_eq!(limits.load(Ordering::Relaxed), 0, "LIMIT");
    assert!(connected.load(Ordering::Relaxed) > 0);
}

/// All of them get the one connection, or all of them the one failure.
#[test]
fn threads_that_connect_at_the_same_time_share_one_dial() {
    skip_unless!(crate::common::own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let peer = Peer::any();
    let engine = Engine::with(&[("backoff_ms", "10000"), ("backoff_max_ms", "10000")]);
    let closed = crate::common::closed_port();
    for (endpoint, status) in [(peer.endpoint().to_owned(), Status::Ok), (closed.endpoint(), Status::ConnectFailed)] {
        let (base, before) = (open_descriptors().total(), tcp_traffic());
        let barrier = std::sync::Barrier::new(128);
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..128)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        engine.connect(&endpoint, LIMIT)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(tcp_traffic().dials - before.dials, 1, "{endpoint}");
        let ok = |result: &&kvconn::error::Result<_>| {
            // A thread that comes after the failure is told to wait.
            status_of(*result) == status || status == Status::ConnectFailed && status_of(*result) == Status::Backoff
        };
        assert!(results.iter().all(|result| ok(&result)), "{endpoint}: {results:?}");
        if status == Status::ConnectFailed {
            wait_until("it is given back", LIMIT, || open_descriptors().total() == base);
        }
    }
}

/// The one that dials is no one's lock: others give up at their own deadlines.
#[test]
fn threads_that_wait_for_anothers_dial_keep_their_own_deadlines() {
    let hole = WrongPeer::black_hole();
    let engine = Engine::with(&[("connect_timeout_ms", "5000")]);
    engine.lazy(&hole.endpoint());
    let watch = Stopwatch::start();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| crate::common::engine::refused(engine.connect(&hole.endpoint(), ms(200)), Status::Timeout));
        }
    });
    watch.between(ms(195), ms(300), "sixteen connects");
}

/// Gives these threads of this process the processor only when nobody else wants it.
fn make_late(names: &[&str]) -> usize {
    let mut late = 0;
    for thread in std::fs::read_dir("/proc/self/task").expect("the threads").map(|thread| thread.expect("a thread")) {
        let name = std::fs::read_to_string(thread.path().join("comm")).expect("its name");
        if names.iter().any(|begin| name.starts_with(begin)) {
            let id = thread.file_name().to_str().and_then(|id| id.parse().ok()).expect("a number");
            let none = libc::sched_param { sched_priority: 0 };
            // SAFETY: the parameters live for the call.
            assert_eq!(unsafe { libc::sched_setscheduler(id, libc::SCHED_IDLE, &raw const none) }, 0, "{name}");
            late += 1;
        }
    }
    late
}

/// Everything that this process starts from here on shares one processor.
fn on_one_processor() {
    // SAFETY: plain data, for which zeros are an empty set; it lives for the calls.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::try_from(libc::sched_getcpu()).expect("a processor"), &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// The threads that close sockets are kvconn's and libzmq's. That they get no processor is no limit that a caller could
/// raise: the call waits for them until its deadline, and that runs out.
#[test]
fn a_caller_that_ends_and_dials_while_sockets_are_closed_late_meets_its_deadline_and_no_limit() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    on_one_processor();
    let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let endpoint = peer.endpoint();
    let engine = Engine::new();
    engine.ready(endpoint);
    let base = open_descriptors().total();
    assert!(make_late(&["kvconn-watcher", "ZMQbg"]) >= 3, "the watcher and two threads of libzmq");
    let over = AtomicBool::new(false);
    let (mut ends, mut waits, mut most) = (0, 0, 0);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        // Several: what the late threads get beside one is more if the tests run with a low priority (nice).
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let storm = Storm::new(ms(1500));
        while storm.goes_on(waits > 0) {
            let node = engine.node("n", &[endpoint]);
            let called = Instant::now();
            // No bound: a late thread may hold a lock for a moment, which takes it long here.
            let (result, least) = match ends % 3 {
                0 => (engine.connect(endpoint, Duration::ZERO).map(drop), ms(0)),
                1 => (engine.send_to(endpoint, &[b"x"], Duration::ZERO).map(drop), ms(0)),
                _ => (engine.connect(endpoint, ms(30)).map(drop), ms(30)),
            };
            if let Err(error) = result {
                assert_eq!(error.status, Status::Timeout, "{error:?}");
                assert!(called.elapsed() >= least, "{error:?}");
                if error.message.contains("being closed") {
                    assert_eq!((error.endpoint, error.conn), (canonical(endpoint), ConnId::NONE));
                    waits += 1;
                }
            }
            most = most.max(open_descriptors().total().saturating_sub(base));
            engine.handle_failure(node, None).expect("it lives");
            ends += 1;
        }
    });
    println!("{ends} ends, {waits} dials not begun, at most {most} descriptors");
    assert!(waits > 0, "the sockets were closed in time");
    assert!(most <= AT_MOST, "{most} descriptors for one endpoint");
    // Now they get the processor.
    engine.node("n", &[endpoint]);
    engine.connect(endpoint, LIMIT).expect("READY");
    wait_until("the others are closed", LIMIT, || open_descriptors().total() <= base);
}
