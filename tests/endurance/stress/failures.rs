//! Scenario 20: a node fails and returns a hundred times under sixteen threads that send to its eight endpoints.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use kvconn::error::Status;
use kvconn::ids::NodeId;

use crate::common::engine::{connection, send, status_of};
use crate::common::load::Stopwatch;
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, ms, open_descriptors, wait_until};
use crate::test_name;

const LONG: Duration = Duration::from_secs(20);
const ENDPOINTS: usize = 8;
const FAILURES: u64 = 100;

#[test]
fn a_node_fails_and_returns_a_hundred_times_under_sixteen_senders_stress() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { endpoints: ENDPOINTS, log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("max_events", "100000")]);
    let endpoints: Vec<&str> = peer.endpoints().iter().map(String::as_str).collect();
    let stop = AtomicBool::new(false);
    let (accepted, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let sender = |thread: usize| {
        for at in (thread..).take_while(|_| !stop.load(Ordering::Relaxed)) {
            let endpoint = endpoints[at % ENDPOINTS];
            let frames: [&[u8]; 3] = [b"one", b"two", b"three"];
            let watch = Stopwatch::start();
            // By endpoint, or on the connection.
            let result = if at % 2 == 0 {
                engine.send_to(endpoint, &frames, ms(1000)).map(drop)
            } else {
                let conn = engine.connect(endpoint, Duration::ZERO);
                conn.and_then(|conn| send(&connection(conn), &frames, ms(1000))).map(drop)
            };
            match status_of(&result) {
                Status::Ok => _ = accepted.fetch_add(1, Ordering::Relaxed),
                Status::NodeFailed => _ = refused.fetch_add(1, Ordering::Relaxed),
                _ => panic!("{result:?}"),
            }
            watch.at_most(ms(1500), "a send of a second");
        }
    };
    let open = || engine.node("prefill", &endpoints);
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..2 * ENDPOINTS).map(|thread| scope.spawn(move || sender(thread))).collect();
        // One thread fails each life that it is told of, another opens the next.
        let (lives, living) = mpsc::channel::<NodeId>();
        let (over, again) = mpsc::channel();
        let engine = &engine;
        let failer = scope.spawn(move || {
            for (count, node) in living.into_iter().enumerate() {
                // In every other life there is time for connections to be READY.
                if count % 2 == 0 {
                    wait_until("all are connected", LONG, || engine.connections().len() == ENDPOINTS);
                }
                let watch = Stopwatch::start();
                let failure = engine.handle_failure(node, Some("a test")).expect("a live node");
                watch.at_most(ms(200), "handle_failure");
                assert_eq!(failure.endpoints.len(), ENDPOINTS);
                over.send(()).unwrap();
            }
        });
        lives.send(open()).unwrap();
        for _ in 1..FAILURES {
            again.recv_timeout(LONG).expect("a life that is over");
            lives.send(open()).unwrap();
        }
        again.recv_timeout(LONG).expect("the last life is over");
        drop(lives);
        failer.join().expect("every life failed");
        assert_eq!(engine.connections(), [], "nothing survives");
        open();
        let before = accepted.load(Ordering::Relaxed);
        wait_until("it serves again", LONG, || accepted.load(Ordering::Relaxed) > before + 1000);
        stop.store(true, Ordering::Relaxed);
        senders.into_iter().for_each(|sender| sender.join().expect("a sender"));
    });
    assert!(refused.load(Ordering::Relaxed) > FAILURES, "nobody met a failure: this tests nothing");

    // Open sockets = live endpoints, here and at the peer.
    assert_eq!(engine.connections().len(), ENDPOINTS);
    // Each has two descriptors here: libzmq's, and ours to ask the kernel on.
    wait_until("every other socket is closed", LONG, || open_descriptors().tcp == 2 * ENDPOINTS);
    peer.wait_for("the peer knows it", LONG, |totals| totals.accepted - totals.disconnected == ENDPOINTS as u64);
    let totals = peer.received();
    let accepted = accepted.into_inner();
    assert!(totals.messages <= accepted && totals.frames == 3 * totals.messages, "{totals:?} of {accepted}");
    for conn in engine.connections() {
        assert_eq!(connection(conn).info().rescues, 0);
    }
    println!("{accepted} accepted, {refused:?} refused, {} arrived", totals.messages);
}
