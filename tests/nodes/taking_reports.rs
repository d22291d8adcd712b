//! Failure reports that no call returned: threads that wait for them, and what ends their wait.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::engine::{SetOnDrop, Waiting, after, refused, status_of, wait_ended};
use crate::common::load::Stopwatch;
use crate::common::{Engine, OwnProcess, Peer, ms, soak_time};
use crate::test_name;
use kvconn::error::{Result, Status};
use kvconn::manager::Manager;
use kvconn::manager::nodes::Failure;
use kvconn::process::Process;
use kvconn::timeout::Timeout;

const LONG: Duration = Duration::from_secs(20);

/// A thread that waits for a report.
fn taker(manager: &Arc<Manager>, timeout: Timeout) -> Waiting<Result<Option<Failure>>> {
    let manager = manager.clone();
    Waiting::one(move || manager.wait_for_failure(timeout))
}

/// A failure whose report is left to be taken, as the C layer does when the caller gave no place for it.
fn fail(engine: &Engine, name: &str, request: u64) {
    let node = engine.node(name, &[]);
    engine.node_track_request(node, request).expect("live");
    engine.leave_failure(engine.handle_failure(node, None).expect("live"));
}

#[test]
fn a_waiting_thread_gets_the_report_of_a_node_that_a_lost_peer_failed() {
    let peer = Peer::any();
    let engine = Engine::with(&[("node_loss", "any")]);
    let node = engine.node("n", &[peer.endpoint()]);
    engine.node_track_request(node, 42).expect("live");
    let conn = engine.ready(peer.endpoint());
    // The default waits as long as it takes, and not for send_timeout_ms.
    let waiting = taker(&engine, Timeout::Default);
    assert!(engine.wait_for_failure(after(ms(1100))).expect("open").is_none());
    peer.kill();
    wait_ended(&conn, LONG);
    for taken in waiting.return_within(ms(100), Instant::now()) {
        let failure = taken.expect("open").expect("a report");
        assert_eq!((failure.node, &failure.requests[..]), (node, &[42][..]));
    }
}

#[test]
fn a_wait_for_a_report_keeps_its_time() {
    let engine = Engine::new();
    for timeout in [0, 1, 50, 300] {
        let watch = Stopwatch::start();
        assert!(engine.wait_for_failure(after(ms(timeout))).expect("open").is_none());
        watch.between(ms(timeout), ms(timeout + 50), "the wait");
    }
    fail(&engine, "n", 7);
    let watch = Stopwatch::start();
    let failure = engine.wait_for_failure(Timeout::Default).expect("open").expect("it is there");
    watch.at_most(ms(50), "taking what is there");
    assert_eq!(&failure.requests[..], [7]);
    // Forgetting the nodes leaves no report, and ends no wait.
    engine.node("forgotten", &[]);
    let waiting = taker(&engine, after(ms(300)));
    engine.disconnect_all(after(ms(0))).expect("nothing to flush");
    let taken = waiting.return_within(ms(400), Instant::now());
    assert!(matches!(taken[..], [Ok(None)]), "{taken:?}");
}

#[test]
fn the_end_of_the_manager_ends_every_wait_for_a_report() {
    let process = Process::current().expect("a process");
    let id = process.create_manager(None).expect("a manager");
    let manager = process.manager(id).expect("the manager just made");
    let mut waiting = taker(&manager, Timeout::Default);
    waiting.add(taker(&manager, after(LONG)));
    waiting.add(taker(&manager, after(LONG)));
    // Most of them wait by now; one that comes later finds the manager closed.
    std::thread::sleep(ms(50));
    let begun = Instant::now();
    process.destroy_manager(id, after(LONG)).expect("nothing is open");
    for taken in waiting.return_within(ms(100), begun) {
        let error = refused(taken, Status::Stale);
        assert!(error.message.ends_with("was destroyed"), "{}", error.message);
    }
}

#[test]
fn shutdown_ends_every_wait_for_a_report() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let process = Process::current().expect("a process");
    let engine = Engine::new();
    let mut waiting = taker(&engine, Timeout::Default);
    waiting.add(taker(&engine, after(LONG)));
    std::thread::sleep(ms(50));
    let begun = Instant::now();
    process.shutdown(after(LONG)).expect("nothing is open");
    for taken in waiting.return_within(ms(100), begun) {
        // In the words of every other call.
        let error = refused(taken, Status::Shutdown);
        assert_eq!(error.message, "kvconn_shutdown was called in this process");
    }
}

/// Each report goes to one thread, also when the time of a waiting one ends at the moment at which it is woken.
#[test]
fn of_many_threads_that_wait_one_gets_each_report_stress() {
    const THREADS: u64 = 8;
    let engine = Engine::new();
    let (stop, left) = (AtomicBool::new(false), AtomicU64::new(0));
    let taker = |thread: u64| {
        let (mut taken, mut number) = (Vec::new(), thread);
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            // From no time to some milliseconds: about as long as the next report takes.
            let timeout = Duration::from_micros(number * 7919 % 3000);
            taken.extend(engine.wait_for_failure(after(timeout)).expect("open").map(|failure| failure.requests[0]));
        }
        taken
    };
    let taken: Vec<u64> = std::thread::scope(|scope| {
        let taker = &taker;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || taker(thread))).collect();
        let stopping = SetOnDrop(&stop);
        let begun = Instant::now();
        while begun.elapsed() < soak_time(ms(1500)) && !threads.iter().any(|thread| thread.is_finished()) {
            fail(&engine, "n", left.fetch_add(1, Ordering::Relaxed));
            std::thread::sleep(Duration::from_micros(left.load(Ordering::Relaxed) * 1237 % 2000));
        }
        drop(stopping);
        threads.into_iter().flat_map(|thread| thread.join().expect("a taker")).collect()
    });
    let rest: Vec<u64> = std::iter::from_fn(|| engine.take_failure()).map(|failure| failure.requests[0]).collect();
    let left = left.into_inner();
    let all: BTreeSet<u64> = taken.iter().chain(&rest).copied().collect();
    assert_eq!(taken.len() + rest.len(), all.len(), "a report came out twice");
    assert!(all.iter().copied().eq(0..left), "a report is missing");
    assert!(taken.len() > 100, "{} of {left}", taken.len());
    assert_eq!(status_of(&engine.wait_for_failure(after(ms(0)))), Status::Ok);
}
