//! Scrapes beside everything else: no number goes back, none is counted twice or lost, and nobody is held up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::text::Metrics;
use crate::common::engine::{LARGE, SetOnDrop, after, connection, narrow_peer, own_address, waiting_senders};
use crate::common::load::{Storm, within};
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, ms};
use crate::test_name;

const LONG: Duration = Duration::from_secs(10);

#[test]
fn counters_never_go_back_while_peers_flap_and_threads_scrape_stress() {
    if OwnProcess::new(test_name!()).network_if_possible().parent() {
        return;
    }
    let bind = format!("tcp://{}:0", own_address());
    let peers =
        [0, 1].map(|_| Peer::with(PeerOptions { bind: bind.clone(), endpoints: 2, log: false, ..Default::default() }));
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "2"), ("metrics_endpoints", "3")]);
    let endpoints: Vec<&str> = peers.iter().flat_map(|peer| peer.endpoints()).map(String::as_str).collect();
    // In use all the time, so that their series do not begin anew.
    engine.node("n", &endpoints);
    let (stop, accepted, scrapes) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let running = || !stop.load(Ordering::Relaxed);
    // The text of the last scrape that has ended, on any thread.
    let last = Mutex::new(Arc::new(Metrics::of(&engine)));
    std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        for place in 0..3 {
            let (endpoints, accepted) = (&endpoints, &accepted);
            let engine = &engine;
            scope.spawn(move || {
                for round in 0.. {
                    if !running() {
                        return;
                    }
                    let endpoint = endpoints[(place + round) % endpoints.len()];
                    if let Ok((conn, _)) = engine.send_to(endpoint, &[b"x"], ms(20)) {
                        accepted.fetch_add(1, Ordering::Relaxed);
                        // Some go by the caller's will.
                        if round % 97 == 0 {
                            connection(conn).disconnect().expect("no error");
                        }
                    }
                }
            });
        }
        for _ in 0..3 {
            scope.spawn(|| {
                let _stopping = SetOnDrop(&stop);
                while running() {
                    let before = last.lock().unwrap().clone();
                    let metrics = Metrics::of(&engine);
                    metrics.add_up();
                    metrics.not_below(&before);
                    *last.lock().unwrap() = Arc::new(metrics);
                    scrapes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let storm = Storm::new(ms(1500));
        let mut flaps = 0;
        // Not every flap ends a connection.
        while running() && storm.goes_on(scrapes.load(Ordering::Relaxed) >= 50 && flaps >= 30) {
            peers[0].flap();
            flaps += 1;
            std::thread::sleep(ms(20));
        }
        drop(stopping);
    });
    engine.disconnect_all(after(LONG)).expect("closed");
    let metrics = Metrics::of(&engine);
    metrics.add_up();
    assert_eq!(metrics.get("messages_accepted_total"), accepted.load(Ordering::Relaxed) as f64);
    assert_eq!((metrics.get("messages_in_flight"), metrics.get("connections{state=\"READY\"}")), (0.0, 0.0));
    assert!(metrics.get("connections_ended_total{status=\"PEER_LOST\"}") >= 10.0, "{}", metrics.text);
    assert_eq!(metrics.get("wakeups_rescued_total"), 0.0);
    let scrapes = scrapes.into_inner();
    println!("{scrapes} scrapes, {} connections ended", metrics.get("dials_total"));
    assert!(scrapes >= 50, "{scrapes} scrapes");
}

#[test]
fn a_scrape_beside_a_stopped_peer_and_blocked_senders_returns_at_once() {
    let peer = narrow_peer(2);
    let engine = Engine::with(&[("send_hwm", "4"), ("stall_ms", "60000"), ("metrics_endpoints", "10")]);
    let conns = [0, 1].map(|at| engine.ready(&peer.endpoints()[at]));
    peer.stop();
    conns.iter().for_each(|conn| _ = engine.fill(conn, LARGE));
    let senders = waiting_senders(&conns[0], 8).and(waiting_senders(&conns[1], 8));
    for _ in 0..20 {
        within(ms(20), "a scrape", || engine.metrics_text().expect("a text"));
        assert_eq!(Metrics::of(&engine).get("send_waiting"), 16.0);
    }
    conns.iter().for_each(|conn| conn.disconnect().expect("ended"));
    senders.return_within(LONG, Instant::now());
    assert_eq!(Metrics::of(&engine).get("send_waiting"), 0.0);
    assert_eq!(Metrics::of(&engine).get("send_blocked_seconds_count"), 16.0);
}
