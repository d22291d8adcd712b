//! Series of single endpoints: off, bounded, and counting across redials.

use std::time::Duration;

use super::text::Metrics;
use crate::common::engine::{LARGE, canonical, narrow_peer, options, wait_ended, waiting_senders};
use crate::common::{Engine, Peer, PeerOptions, wait_until};

const LONG: Duration = Duration::from_secs(10);
/// Families of endpoints.
const EACH: usize = 5;

#[test]
fn endpoints_have_no_series_unless_asked_for_and_then_only_so_many() {
    let peer = Peer::with(PeerOptions { endpoints: 4, ..PeerOptions::default() });
    let engine = Engine::new();
    peer.endpoints().iter().for_each(|endpoint| _ = engine.ready(endpoint));
    engine.node("n", &["tcp://127.0.0.1:9"]);
    assert_eq!(Metrics::of(&engine).of_endpoints(), Vec::<&String>::new());
    for (limit, shown) in [("3", 3), ("5", 5), ("10000", 5), ("1", 1), ("0", 0)] {
        engine.configure(&options(&[("metrics_endpoints", limit)])).expect("configured");
        let metrics = Metrics::of(&engine);
        assert_eq!(metrics.of_endpoints().len(), shown * EACH, "{limit}:\n{}", metrics.text);
        metrics.add_up();
        // The first in the order of their texts, at every time.
        let mut endpoints: Vec<_> = peer.endpoints().iter().map(|endpoint| canonical(endpoint)).collect();
        endpoints.push("tcp://127.0.0.1:9".into());
        endpoints.sort();
        for (place, endpoint) in endpoints.iter().enumerate() {
            assert_eq!(metrics.has(&format!("endpoint=\"{endpoint}\"")), place < shown, "{endpoint}");
        }
    }
}

#[test]
fn an_endpoints_series_tell_its_state_and_count_across_redials() {
    let mut peer = Peer::any();
    let stuck = narrow_peer(1);
    let engine =
        Engine::with(&[("metrics_endpoints", "10"), ("send_hwm", "4"), ("stall_ms", "50"), ("backoff_ms", "1")]);
    let (here, there) = (canonical(peer.endpoint()), canonical(stuck.endpoint()));
    engine.node("n", &[&here, &there]);
    let of = |metrics: &Metrics, endpoint: &str| {
        ["messages_accepted_total", "messages_acknowledged_total", "state", "waiting", "stalled"]
            .map(|name| metrics.get(&format!("endpoint_{name}{{endpoint=\"{endpoint}\"}}")))
    };
    assert_eq!(of(&Metrics::of(&engine), &here), [0.0; EACH]);

    let conn = engine.ready(&here);
    for _ in 0..3 {
        engine.send(&conn, &[b"x"], LONG).expect("sent");
    }
    wait_until("all are acknowledged", LONG, || of(&Metrics::of(&engine), &here) == [3.0, 3.0, 2.0, 0.0, 0.0]);
    peer.restart();
    wait_ended(&conn, LONG);
    assert_eq!(of(&Metrics::of(&engine), &here), [3.0, 3.0, 0.0, 0.0, 0.0]);
    let mut again = None;
    wait_until("it is connected again", LONG, || {
        again = engine.connect(&here, LONG).ok();
        again.is_some()
    });
    engine.send_to(&here, &[b"x"], LONG).expect("sent");
    wait_until("the fourth is acknowledged", LONG, || of(&Metrics::of(&engine), &here) == [4.0, 4.0, 2.0, 0.0, 0.0]);

    let full = engine.ready(&there);
    stuck.stop();
    let accepted = engine.fill(&full, LARGE) as f64;
    let senders = waiting_senders(&full, 2);
    wait_until("it has stalled", LONG, || of(&Metrics::of(&engine), &there)[4] == 1.0);
    let metrics = Metrics::of(&engine);
    let [all, acknowledged, state, waiting, _] = of(&metrics, &there);
    assert!(all == accepted && acknowledged < accepted && (state, waiting) == (2.0, 2.0), "{}", metrics.text);
    // The sums are those of all endpoints.
    assert_eq!(metrics.get("messages_accepted_total"), accepted + 4.0);
    metrics.add_up();
    full.disconnect().expect("ended");
    senders.return_within(LONG, std::time::Instant::now());
}

#[test]
fn an_endpoint_with_quotes_and_backslashes_is_one_label() {
    let engine = Engine::with(&[("metrics_endpoints", "10")]);
    engine.node("n", &[r#"ipc:///tmp/a"} 1 \n b"#]);
    let metrics = Metrics::of(&engine);
    assert_eq!(metrics.get(r#"endpoint_state{endpoint="ipc:///tmp/a\"} 1 \\n b"}"#), 0.0);
}
