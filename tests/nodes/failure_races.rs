//! The failure of a node is one step: what many threads do at the same moment comes before it or after it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use crate::common::engine::{SetOnDrop, connection, send, status_of};
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, ms, open_descriptors, soak_time, wait_until};
use crate::test_name;
use kvconn::connection::{Connection, ConnectionState};
use kvconn::error::Status;
use kvconn::ids::{ConnId, NodeId};

const LONG: Duration = Duration::from_secs(10);
/// For a test that soaks.
const STRESS_LIMIT: Duration = Duration::from_secs(3600);

/// The fewest failures of a test's time.
const FAILURES: u64 = 50;

/// Whether there must be another one: the time is not over, or a busy machine has made fewer in it.
fn goes_on(begun: Instant, time: Duration, failures: u64) -> bool {
    begun.elapsed() < time || failures < FAILURES && begun.elapsed() < 3 * LONG
}

/// Scenario 22: each request in flight fails exactly once, whatever is being added meanwhile.
#[test]
fn each_request_in_flight_is_in_exactly_one_report() {
    const THREADS: u64 = 4;
    const EACH: u64 = 250;
    let engine = Engine::new();
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..100 {
        let (a, b) = (engine.node("a", &[]), engine.node("b", &[]));
        let begin = Barrier::new(THREADS as usize + 1);
        let progress = AtomicU64::new(0);
        let worker = |thread: u64| {
            let [mut in_a, mut in_b] = [BTreeSet::new(), BTreeSet::new()];
            let mut refused = 0;
            begin.wait();
            for request in (0..EACH).map(|at| at * THREADS + thread) {
                // Every other one to each node; every third is done again before the next begins.
                let (node, tracked) = if request % 2 == 0 { (a, &mut in_a) } else { (b, &mut in_b) };
                match status_of(&engine.node_track_request(node, request)) {
                    Status::Ok => {
                        assert!(node == b || refused == 0, "accepted after a refusal");
                        tracked.insert(request);
                    }
                    Status::NodeFailed if node == a => refused += 1,
                    other => panic!("tracking {request}: {other:?}"),
                }
                if request % 3 == 0 && tracked.contains(&request) {
                    match engine.node_untrack_request(node, request) {
                        Ok(was_tracked) => assert!(was_tracked && tracked.remove(&request)),
                        // Then it is the report that has it.
                        Err(error) => assert!(node == a && error.status == Status::NodeFailed, "{error:?}"),
                    }
                }
                progress.fetch_add(1, Ordering::Relaxed);
            }
            (in_a, in_b, refused)
        };
        let (results, failure) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || worker(thread))).collect();
            begin.wait();
            // Another moment in every round.
            while progress.load(Ordering::Relaxed) < round * 8 {
                std::hint::spin_loop();
            }
            let failure = engine.handle_failure(a, Some("x")).expect("live");
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("a worker")).collect();
            (results, failure)
        });
        let in_a: BTreeSet<u64> = results.iter().flat_map(|(in_a, _, _)| in_a).copied().collect();
        let in_b: BTreeSet<u64> = results.iter().flat_map(|(_, in_b, _)| in_b).copied().collect();
        assert!(failure.requests.iter().eq(&in_a), "round {round}: {:?}\n{in_a:?}", failure.requests);
        let info = engine.node_info(b).expect("untouched");
        assert_eq!((info.status, info.requests), (Status::Ok, in_b.len()), "round {round}");
        let failure = engine.handle_failure(b, None).expect("live");
        assert!(failure.requests.iter().eq(&in_b), "round {round}");
        assert!(engine.take_failure().is_none());
        accepted += in_a.len();
        refused += results.iter().map(|(_, _, refused)| refused).sum::<u64>();
    }
    assert!(accepted > 0 && refused > 0, "the failures came too early or too late: {accepted}, {refused}");
}

/// Guarantee 6: of all threads that report the failure of one life, one gets the report.
#[test]
fn of_eight_threads_that_fail_one_life_one_gets_the_report() {
    const THREADS: usize = 8;
    let engine = Engine::with(&[("max_failures", "1")]);
    let mut winners = [0; 2];
    for round in 0..300 {
        let node = engine.node("n", &["tcp://127.0.0.1:9"]);
        engine.node_track_request(node, round).expect("live");
        let begin = Barrier::new(THREADS);
        let reporter = |thread: usize| {
            begin.wait();
            // Half of them probe it.
            match thread % 2 {
                0 => engine.handle_failure(node, Some("x")),
                _ => engine.node_report_health(node, false, Some("x")).map(|failure| failure.expect("the first")),
            }
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || reporter(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a reporter")).collect()
        });
        for (thread, result) in results.iter().enumerate() {
            match result {
                Ok(failure) => {
                    assert_eq!((&failure.requests[..], failure.endpoints.len()), (&[round][..], 1));
                    winners[thread % 2] += 1;
                }
                Err(error) => assert_eq!(error.status, Status::NodeFailed, "{error:?}"),
            }
        }
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "round {round}");
        assert!(engine.take_failure().is_none());
    }
    assert_eq!(winners[0] + winners[1], 300);
}

/// Guarantee 6: a thread that has seen the failure on one connection sees it on the other.
#[test]
fn a_thread_that_saw_the_failure_on_one_connection_sees_it_on_the_other_stress() {
    if OwnProcess::new(test_name!()).limit(STRESS_LIMIT).network_if_possible().parent() {
        return;
    }
    const THREADS: u64 = 2;
    let peer = Peer::with(PeerOptions { endpoints: 2, log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("max_fences", "16")]);
    let endpoints = [0, 1].map(|at| peer.endpoints()[at].as_str());
    let life = Mutex::new((0, None::<[Arc<Connection>; 2]>));
    let (stop, attempts, seen) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let sender = || {
        let (mut last, mut at) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            let (number, Some(conns)) = life.lock().expect("no panic under it").clone() else { continue };
            if number == last {
                std::thread::yield_now();
                continue;
            }
            last = number;
            // Alternately until the failure is seen on one; the very next send is on the other.
            loop {
                let status = status_of(&send(&conns[at], &[b"x"], Duration::ZERO));
                at = 1 - at;
                attempts.fetch_add(1, Ordering::Relaxed);
                match status {
                    Status::Ok | Status::Timeout => {}
                    Status::NodeFailed => break,
                    other => panic!("a send got {other:?}"),
                }
            }
            let next = status_of(&send(&conns[at], &[b"x"], Duration::ZERO));
            assert_eq!(next, Status::NodeFailed, "on the other connection, after NODE_FAILED on the first");
            seen.fetch_add(1, Ordering::Relaxed);
        }
    };
    let mut failures = 0;
    std::thread::scope(|scope| {
        let _stopping = SetOnDrop(&stop);
        let senders: Vec<_> = (0..THREADS).map(|_| scope.spawn(sender)).collect();
        let panicked = || senders.iter().any(|sender| sender.is_finished());
        let begun = Instant::now();
        while goes_on(begun, soak_time(ms(2500)), failures) && !panicked() {
            let node = engine.node("n", &endpoints);
            let conns = endpoints.map(|endpoint| engine.lazy(endpoint));
            // Most lives end while they are dialled, which makes many; some are READY and full of messages.
            if failures % 16 == 0 {
                wait_until("both are READY", LONG, || conns.iter().all(|c| c.info().state == ConnectionState::Ready));
            }
            failures += 1;
            *life.lock().expect("no panic under it") = (failures, Some(conns));
            let enough = attempts.load(Ordering::Relaxed) + 1 + failures % 8;
            while attempts.load(Ordering::Relaxed) < enough && !panicked() {
                std::thread::yield_now();
            }
            drop(engine.handle_failure(node, Some("x")).expect("live"));
            while seen.load(Ordering::Relaxed) < failures * THREADS && !panicked() {
                std::thread::yield_now();
            }
        }
    });
    println!("{failures} failures");
    assert!(failures >= FAILURES, "{failures} failures");
}

/// The same for `send_to`, whose fences are set in the same step.
#[test]
fn a_thread_that_saw_the_fence_on_one_endpoint_sees_it_on_the_other_stress() {
    if OwnProcess::new(test_name!()).limit(STRESS_LIMIT).network_if_possible().parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { endpoints: 2, log: false, ..PeerOptions::default() });
    let engine = Engine::new();
    let endpoints = [0, 1].map(|at| peer.endpoints()[at].as_str());
    // Odd while the node is over and may be registered again at any moment.
    let (epoch, stop, seen) = (AtomicU64::new(1), AtomicBool::new(false), AtomicU64::new(0));
    let sender = || {
        let mut at = 0;
        while !stop.load(Ordering::Relaxed) {
            let before = epoch.load(Ordering::SeqCst);
            let sent = engine.send_to(endpoints[at], &[b"x"], Duration::ZERO);
            let first = status_of(&sent);
            at = 1 - at;
            if first != Status::NodeFailed {
                assert!(matches!(first, Status::Ok | Status::Timeout), "{sent:?}");
                continue;
            }
            let second = status_of(&engine.send_to(endpoints[at], &[b"x"], Duration::ZERO));
            if before % 2 == 0 && epoch.load(Ordering::SeqCst) == before {
                assert_eq!(second, Status::NodeFailed, "on the other endpoint, after NODE_FAILED on the first");
                seen.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::yield_now();
        }
    };
    let mut failures = 0;
    std::thread::scope(|scope| {
        let _stopping = SetOnDrop(&stop);
        let senders: Vec<_> = (0..2).map(|_| scope.spawn(sender)).collect();
        let panicked = || senders.iter().any(|sender| sender.is_finished());
        let begun = Instant::now();
        while goes_on(begun, soak_time(ms(2000)), failures) && !panicked() {
            let node = engine.node("n", &endpoints);
            epoch.fetch_add(1, Ordering::SeqCst);
            while engine.connections().is_empty() && !panicked() {
                std::thread::yield_now();
            }
            let enough = seen.load(Ordering::Relaxed) + 1;
            drop(engine.handle_failure(node, Some("x")).expect("live"));
            while seen.load(Ordering::Relaxed) < enough && !panicked() {
                std::thread::yield_now();
            }
            epoch.fetch_add(1, Ordering::SeqCst);
            failures += 1;
        }
    });
    println!("{failures} failures");
    assert!(failures >= FAILURES, "{failures} failures");
}

/// A dial that begins while the node fails leaves nothing behind: no connection to a fenced endpoint, no socket.
#[test]
fn connecting_while_the_node_fails_leaves_no_connection_behind_stress() {
    if OwnProcess::new(test_name!()).limit(STRESS_LIMIT).network_if_possible().parent() {
        return;
    }
    const ENDPOINTS: usize = 4;
    let peer = Peer::with(PeerOptions { endpoints: ENDPOINTS, log: false, ..PeerOptions::default() });
    let engine = Engine::new();
    let endpoints: Vec<&str> = peer.endpoints().iter().map(String::as_str).collect();
    let current = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let connector = |thread: usize| {
        for at in (thread..).take_while(|_| !stop.load(Ordering::Relaxed)) {
            let endpoint = endpoints[at % ENDPOINTS];
            let got = match at % 3 {
                0 => engine.connect(endpoint, ms(20)).map(connection),
                1 => engine.connect(endpoint, Duration::ZERO).map(connection),
                _ => engine.send_to(endpoint, &[b"x"], ms(5)).map(|(conn, _)| connection(conn)),
            };
            if let Err(error) = got {
                let known = [Status::NodeFailed, Status::Timeout, Status::Stalled];
                assert!(known.contains(&error.status), "{error:?}");
            }
        }
    };
    let mut failures = 0;
    std::thread::scope(|scope| {
        let _stopping = SetOnDrop(&stop);
        let connectors: Vec<_> = (0..4).map(|thread| scope.spawn(move || connector(thread))).collect();
        let begun = Instant::now();
        while goes_on(begun, soak_time(ms(2000)), failures) && !connectors.iter().any(|thread| thread.is_finished()) {
            let node = engine.node("n", &endpoints);
            current.store(node.0, Ordering::Relaxed);
            let wanted = failures as usize % (ENDPOINTS + 1);
            wait_until("some are connected", LONG, || engine.connections().len() >= wanted);
            let failure = engine.handle_failure(node, Some("x")).expect("live");
            // From here on no connect succeeds.
            assert_eq!(engine.connections(), [], "after the failure of {node}");
            for failed in failure.endpoints.iter().filter(|failed| failed.conn != ConnId::NONE) {
                assert_eq!(connection(failed.conn).info().status, Status::NodeFailed);
            }
            failures += 1;
        }
    });
    assert!(failures >= FAILURES, "{failures} failures");
    let over = engine.node_info(NodeId(current.load(Ordering::Relaxed))).expect("remembered");
    assert_eq!(over.status, Status::NodeFailed);
    wait_until("every socket is closed", LONG, || open_descriptors().tcp == 0);
    wait_until("the peer knows it", LONG, || {
        let totals = peer.received();
        totals.accepted == totals.disconnected
    });
}
