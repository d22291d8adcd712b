//! Every number of a manager, moved by real peers.

use std::time::{Duration, Instant};

use kvconn::error::Status;
use kvconn::events::EventKind;

use super::text::Metrics;
use crate::common::engine::{LARGE, canonical, narrow_peer, refused, wait_ended, waiting_senders};
use crate::common::{Engine, Peer, WrongPeer, closed_port, ms, wait_until};

const LONG: Duration = Duration::from_secs(10);

/// The numbers of a manager that has done nothing: what is counted is there from the beginning, as 0.
#[test]
fn a_new_manager_has_every_series_and_all_are_zero() {
    let metrics = Metrics::of(&Engine::new());
    for series in [
        "dials_total",
        "dials_failed_total",
        "dials_refused_total{status=\"BACKOFF\"}",
        "dials_refused_total{status=\"DISCONNECTED\"}",
        "dials_refused_total{status=\"NODE_FAILED\"}",
        "connections{state=\"CONNECTING\"}",
        "connections{state=\"READY\"}",
        "connections_ended_total{status=\"PEER_LOST\"}",
        "connections_stalled",
        "stalls_total",
        "messages_accepted_total",
        "messages_acknowledged_total",
        "messages_unacknowledged_total",
        "messages_unknown_total",
        "messages_in_flight",
        "sends_refused_total{status=\"TIMEOUT\"}",
        "sends_refused_total{status=\"STALLED\"}",
        "send_blocked_seconds_count",
        "send_blocked_seconds_sum",
        "send_blocked_seconds_bucket{le=\"0.0001\"}",
        "send_blocked_seconds_bucket{le=\"10.0\"}",
        "send_blocked_seconds_bucket{le=\"+Inf\"}",
        "send_waiting",
        "wakeups_rescued_total",
        "endpoints_in_use",
        "endpoints_known",
        "endpoints_fenced",
        "nodes",
        "nodes_failed_total",
        "requests_in_flight",
        "requests_failed_total",
        "failure_reports_waiting",
        "events_waiting",
        "events_lost_total",
    ] {
        assert_eq!(metrics.get(series), 0.0, "{series}");
    }
    metrics.add_up();
}

#[test]
fn dials_and_what_refuses_them_are_counted() {
    let (peer, mute, nobody) = (Peer::any(), WrongPeer::mute(), closed_port());
    let engine = Engine::with(&[("backoff_ms", "60000"), ("backoff_max_ms", "60000")]);
    engine.ready(peer.endpoint());
    engine.lazy(&mute.endpoint());
    refused(engine.connect(&nobody.endpoint(), LONG), Status::ConnectFailed);
    for _ in 0..3 {
        refused(engine.connect(&nobody.endpoint(), LONG), Status::Backoff);
    }
    refused(engine.send_to(&nobody.endpoint(), &[b"x"], LONG), Status::Backoff);
    let metrics = Metrics::of(&engine);
    assert_eq!((metrics.get("dials_total"), metrics.get("dials_failed_total")), (3.0, 1.0));
    assert_eq!(metrics.get("connections{state=\"CONNECTING\"}"), 1.0);
    assert_eq!(metrics.get("connections{state=\"READY\"}"), 1.0);
    assert_eq!(metrics.get("connections_ended_total{status=\"CONNECT_FAILED\"}"), 1.0);
    assert_eq!(metrics.get("dials_refused_total{status=\"BACKOFF\"}"), 4.0);
    assert_eq!(metrics.get("sends_refused_total{status=\"BACKOFF\"}"), 1.0);
    assert_eq!((metrics.get("endpoints_in_use"), metrics.get("endpoints_known")), (2.0, 3.0));
    metrics.add_up();

    // One fence of each kind.
    engine.disconnect_endpoint(peer.endpoint()).expect("fenced");
    refused(engine.send_to(peer.endpoint(), &[b"x"], LONG), Status::Disconnected);
    let node = engine.node("n", &["tcp://127.0.0.1:9"]);
    engine.handle_failure(node, Some("x")).expect("live");
    refused(engine.connect("tcp://127.0.0.1:9", LONG), Status::NodeFailed);
    refused(engine.send_to("tcp://127.0.0.1:9", &[b"x"], LONG), Status::NodeFailed);
    let metrics = Metrics::of(&engine);
    assert_eq!(metrics.get("dials_total"), 3.0);
    assert_eq!(metrics.get("dials_refused_total{status=\"DISCONNECTED\"}"), 1.0);
    assert_eq!(metrics.get("dials_refused_total{status=\"NODE_FAILED\"}"), 2.0);
    assert_eq!(metrics.get("connections_ended_total{status=\"DISCONNECTED\"}"), 1.0);
    assert_eq!((metrics.get("endpoints_fenced"), metrics.get("endpoints_in_use")), (2.0, 1.0));
    // Connecting lifts one of them.
    engine.ready(peer.endpoint());
    let metrics = Metrics::of(&engine);
    assert_eq!((metrics.get("endpoints_fenced"), metrics.get("dials_total")), (1.0, 4.0));
    metrics.add_up();
}

/// A call that waits for the next step is not refused: it asked for that.
#[test]
fn a_connect_that_retries_counts_dials_and_not_refusals() {
    let nobody = closed_port();
    let engine = Engine::with(&[("backoff_ms", "20"), ("backoff_max_ms", "20")]);
    let retries = std::thread::scope(|scope| {
        let retrying = scope.spawn(|| engine.connect_with(&nobody.endpoint(), &[("connect_retry", "1")], LONG));
        wait_until("it has dialled three times", LONG, || Metrics::of(&engine).get("dials_failed_total") >= 3.0);
        engine.disconnect_endpoint(&nobody.endpoint()).expect("fenced");
        retrying.join().expect("a thread")
    });
    assert!(retries.is_err());
    let metrics = Metrics::of(&engine);
    metrics.add_up();
    assert_eq!(metrics.get("dials_refused_total{status=\"BACKOFF\"}"), 0.0);
}

#[test]
fn what_a_killed_peer_had_not_acknowledged_is_counted_when_it_ends() {
    let peer = narrow_peer(1);
    let engine = Engine::with(&[("send_hwm", "4"), ("stall_ms", "60000")]);
    let conn = engine.ready(peer.endpoint());
    engine.send(&conn, &[b"first"], LONG).expect("sent");
    wait_until("it is acknowledged", LONG, || Metrics::of(&engine).get("messages_acknowledged_total") == 1.0);
    peer.stop();
    let accepted = 1.0 + engine.fill(&conn, LARGE) as f64;
    let metrics = Metrics::of(&engine);
    assert_eq!(metrics.get("messages_accepted_total"), accepted);
    assert!(metrics.get("messages_in_flight") >= 1.0, "{}", metrics.text);
    assert_eq!(metrics.get("messages_unacknowledged_total"), 0.0);
    metrics.add_up();

    peer.kill();
    let info = wait_ended(&conn, LONG);
    let acknowledged = info.acknowledged.expect("tcp") as f64;
    let after = Metrics::of(&engine);
    assert_eq!(after.get("messages_accepted_total"), accepted);
    assert_eq!(after.get("messages_acknowledged_total"), acknowledged);
    assert_eq!(after.get("messages_unacknowledged_total"), accepted - acknowledged);
    assert!(acknowledged < accepted, "nothing was lost, so nothing was tested");
    assert_eq!(after.get("messages_in_flight"), 0.0);
    assert_eq!(after.get("connections_ended_total{status=\"PEER_LOST\"}"), 1.0);
    assert_eq!(after.get("connections{state=\"READY\"}"), 0.0);
    assert_eq!((after.get("dials_failed_total"), after.get("send_waiting")), (0.0, 0.0));
    refused(engine.send(&conn, &[b"x"], LONG), Status::PeerLost);
    assert_eq!(Metrics::of(&engine).get("sends_refused_total{status=\"PEER_LOST\"}"), 1.0);
    after.not_below(&metrics);
    after.add_up();
}

#[test]
fn over_ipc_the_outcome_of_messages_is_unknown() {
    let path = std::env::temp_dir().join(format!("kvconn-metrics-{}", std::process::id()));
    let peer = Peer::bind(&format!("ipc://{}", path.display()));
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    for live in [true, false] {
        if live {
            (0..5).for_each(|_| _ = engine.send(&conn, &[b"x"], LONG).expect("sent"));
        } else {
            conn.disconnect().expect("no error");
        }
        let metrics = Metrics::of(&engine);
        assert_eq!((metrics.get("messages_accepted_total"), metrics.get("messages_unknown_total")), (5.0, 5.0));
        assert_eq!((metrics.get("messages_in_flight"), metrics.get("messages_unacknowledged_total")), (0.0, 0.0));
        metrics.add_up();
    }
    std::fs::remove_file(path).ok();
}

#[test]
fn stalls_waiting_threads_and_the_time_they_were_blocked_are_counted() {
    let peer = narrow_peer(1);
    let engine = Engine::with(&[("send_hwm", "4"), ("stall_ms", "100")]);
    let conn = engine.ready(peer.endpoint());
    for _ in 0..3 {
        engine.send(&conn, &[b"x"], LONG).expect("sent");
    }
    peer.stop();
    engine.fill(&conn, LARGE);
    let metrics = Metrics::of(&engine);
    // What need not wait, or must not, is not counted.
    assert_eq!(metrics.get("send_blocked_seconds_count"), 0.0);
    let refusals = metrics.get("sends_refused_total{status=\"TIMEOUT\"}");
    assert!(refusals >= 1.0, "{}", metrics.text);

    let senders = waiting_senders(&conn, 3);
    wait_until("it has stalled", LONG, || Metrics::of(&engine).get("connections_stalled") == 1.0);
    // On a busy machine the I/O thread may have paused while the queue was being filled: each such pause is a stall too.
    let stalls = engine.events_of(EventKind::Stalled).len() as f64;
    let metrics = Metrics::of(&engine);
    assert!(stalls >= 1.0, "{}", metrics.text);
    assert_eq!((metrics.get("send_waiting"), metrics.get("stalls_total")), (3.0, stalls));
    assert_eq!(metrics.get("send_blocked_seconds_count"), 0.0, "they wait still");
    // At once, without waiting: it has not moved for longer than that.
    refused(engine.send(&conn, &[b"x"], ms(50)), Status::Stalled);
    std::thread::sleep(ms(120));
    let begun = Instant::now();
    peer.resume();
    senders.return_within(LONG, begun);
    wait_until("it moves", LONG, || Metrics::of(&engine).get("connections_stalled") == 0.0);
    let stalls = stalls + engine.events_of(EventKind::Stalled).len() as f64;
    let metrics = Metrics::of(&engine);
    assert_eq!((metrics.get("send_waiting"), metrics.get("stalls_total")), (0.0, stalls));
    assert!(metrics.get("sends_refused_total{status=\"STALLED\"}") == 1.0, "{}", metrics.text);
    let blocked = |le: &str| metrics.get(&format!("send_blocked_seconds_bucket{{le=\"{le}\"}}"));
    // Each of the three, for as long as they were left waiting.
    assert_eq!((metrics.get("send_blocked_seconds_count"), blocked("+Inf")), (3.0, 3.0), "{}", metrics.text);
    assert_eq!((blocked("0.1"), blocked("10.0")), (0.0, 3.0), "{}", metrics.text);
    assert!(metrics.get("send_blocked_seconds_sum") > 0.3, "{}", metrics.text);
    assert_eq!(metrics.get("wakeups_rescued_total"), 0.0);
    metrics.add_up();
}

/// A wait for READY is a wait, and one that ends with an error counts as well.
#[test]
fn a_send_that_waits_for_a_dial_in_vain_was_blocked() {
    let mute = WrongPeer::mute();
    let engine = Engine::new();
    refused(engine.send_to(&mute.endpoint(), &[b"x"], ms(120)), Status::Timeout);
    let metrics = Metrics::of(&engine);
    assert_eq!(metrics.get("send_blocked_seconds_count"), 1.0);
    assert_eq!(metrics.get("send_blocked_seconds_bucket{le=\"0.1\"}"), 0.0);
    assert_eq!(metrics.get("sends_refused_total{status=\"TIMEOUT\"}"), 1.0);
    assert_eq!(metrics.get("messages_accepted_total"), 0.0);
}

#[test]
fn nodes_requests_and_reports_are_counted() {
    let peer = Peer::any();
    let engine = Engine::with(&[("node_loss", "any"), ("max_failures", "1")]);
    let nodes = ["a", "b", "c"].map(|name| engine.node(name, &[]));
    engine.node_add_endpoints(nodes[0], &[peer.endpoint()], None).expect("live");
    for (place, node) in nodes.iter().enumerate() {
        (0..=place as u64).for_each(|request| engine.node_track_request(*node, request).expect("live"));
    }
    engine.node_untrack_request(nodes[2], 0).expect("live");
    let metrics = Metrics::of(&engine);
    assert_eq!((metrics.get("nodes"), metrics.get("requests_in_flight")), (3.0, 5.0));

    // One by its caller, one by its health, one by a loss that nobody takes the report of.
    let conn = engine.ready(peer.endpoint());
    peer.kill();
    wait_ended(&conn, LONG);
    engine.node_report_health(nodes[1], false, None).expect("live").expect("failed");
    let metrics = Metrics::of(&engine);
    assert_eq!((metrics.get("nodes"), metrics.get("requests_in_flight")), (1.0, 2.0));
    assert_eq!((metrics.get("nodes_failed_total"), metrics.get("requests_failed_total")), (2.0, 3.0));
    assert_eq!(metrics.get("failure_reports_waiting"), 1.0);
    engine.take_failure().expect("the report");
    engine.handle_failure(nodes[2], None).expect("live");
    refused(engine.handle_failure(nodes[2], None), Status::NodeFailed);
    let metrics = Metrics::of(&engine);
    assert_eq!((metrics.get("nodes"), metrics.get("requests_in_flight")), (0.0, 0.0));
    assert_eq!((metrics.get("nodes_failed_total"), metrics.get("requests_failed_total")), (3.0, 5.0));
    assert_eq!(metrics.get("failure_reports_waiting"), 0.0);
}

#[test]
fn events_that_wait_and_events_that_were_lost_are_counted() {
    let peer = Peer::any();
    let engine = Engine::with(&[("max_events", "2")]);
    for _ in 0..3 {
        engine.ready(peer.endpoint()).disconnect().expect("no error");
    }
    let metrics = Metrics::of(&engine);
    // READY and DISCONNECTED, three times. Two READY fit, and two endings have places of their own. The third connection
    // began while two endings were unread, so an OVERFLOW stands for both of its events.
    assert_eq!((metrics.get("events_waiting"), metrics.get("events_lost_total")), (5.0, 2.0));
    assert_eq!(engine.events_of(EventKind::Overflow).len(), 1);
    let metrics = Metrics::of(&engine);
    assert_eq!((metrics.get("events_waiting"), metrics.get("events_lost_total")), (0.0, 2.0));
    assert!(!metrics.text.contains(&canonical(peer.endpoint())), "no series of endpoints unless asked for");
}
