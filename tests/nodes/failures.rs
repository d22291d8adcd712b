//! The failure of a node: what it takes away, what it spares, which call gets the report, and how long it takes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::engine::{
    LARGE, SetOnDrop, Waiting, after, canonical, connection, narrow_peer, own_address, refused, send, text, wait_ended,
    waiting_senders,
};
use crate::common::load::within;
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, closed_port, ms, open_descriptors, wait_until};
use crate::test_name;
use kvconn::connection::ConnectionState;
use kvconn::error::Status;
use kvconn::events::EventKind;
use kvconn::ids::ConnId;
use kvconn::manager::nodes::Failure;

const LONG: Duration = Duration::from_secs(10);

fn listed(failure: &Failure) -> Vec<&str> {
    failure.endpoints.iter().map(|failed| failed.endpoint.as_str()).collect()
}

/// Scenario 6: between two heartbeats a node has restarted on new ports. One port is listed again.
#[test]
fn a_node_that_restarts_within_a_heartbeat_begins_a_new_life() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let (gone, listed_again, fresh) = (narrow_peer(1), Peer::any(), Peer::any());
    let engine = Engine::with(&[("send_hwm", "4"), ("max_failures", "2")]);
    let old = engine.node("prefill-0", &[gone.endpoint(), listed_again.endpoint()]);
    let stuck = engine.ready(gone.endpoint());
    let first = engine.ready(listed_again.endpoint());
    engine.send(&first, &[b"first life"], ms(1000)).expect("sent");
    for request in [9, 7, 8] {
        engine.node_track_request(old, request).expect("live");
    }
    assert!(engine.node_report_health(old, false, Some("no answer")).expect("live").is_none());
    gone.stop();
    let accepted = engine.fill(&stuck, LARGE);
    let senders = waiting_senders(&stuck, 4);

    let begun = Instant::now();
    let failure = within(ms(100), "handle_failure", || engine.handle_failure(old, Some("restarted"))).expect("live");
    for result in senders.return_within(ms(200), begun) {
        let error = refused(result, Status::NodeFailed);
        for part in ["prefill-0", "restarted"] {
            assert!(error.message.contains(part), "{part} is not in: {}", error.message);
        }
    }
    assert_eq!((&*failure.name, failure.node, failure.reason.as_str()), ("prefill-0", old, "restarted"));
    assert_eq!(&failure.requests[..], [7, 8, 9]);
    assert_eq!(listed(&failure), [canonical(gone.endpoint()), canonical(listed_again.endpoint())]);
    let counts: Vec<_> = failure.endpoints.iter().map(|e| (e.conn, e.accepted, e.spared)).collect();
    assert_eq!(counts, [(stuck.id(), accepted, false), (first.id(), 1, false)]);
    wait_until("no socket is left", LONG, || open_descriptors().tcp == 0);

    let new = engine.node("prefill-0", &[fresh.endpoint(), listed_again.endpoint()]);
    assert_ne!(new, old);
    engine.node_track_request(new, 9).expect("live");
    let second = engine.ready(listed_again.endpoint());
    let other = engine.ready(fresh.endpoint());
    assert_ne!(second.id(), first.id());

    // Reports about the old life arrive late.
    refused(engine.node_report_health(old, false, Some("late")), Status::NodeFailed);
    refused(engine.node_report_health(old, false, Some("late")), Status::NodeFailed);
    refused(engine.handle_failure(old, Some("late")), Status::NodeFailed);
    refused(engine.node_remove_endpoints(old, &[listed_again.endpoint()]), Status::NodeFailed);
    refused(engine.node_untrack_request(old, 9), Status::NodeFailed);
    let info = engine.node_info(new).expect("live");
    assert_eq!((info.status, info.endpoints, info.requests, info.failures_in_row), (Status::Ok, 2, 1, 0));
    for conn in [&stuck, &first] {
        refused(engine.send(conn, &[b"x"], ms(1000)), Status::NodeFailed);
        conn.disconnect().expect("ending what has ended is no error");
    }
    for conn in [&second, &other] {
        engine.send(conn, &[b"second life"], ms(1000)).expect("sent");
    }
    // The port that is not listed again stays fenced.
    refused(engine.send_to(gone.endpoint(), &[b"x"], ms(1000)), Status::NodeFailed);
    fresh.wait_received(1, LONG);
    listed_again.wait_received(2, LONG);
    let texts: Vec<String> = listed_again.messages().iter().map(|m| text(m)).collect();
    assert_eq!(texts, ["first life", "second life"]);
    assert_eq!(open_descriptors().tcp, 4, "libzmq's and ours of one socket for each live endpoint");
}

/// Scenario 8: one name, and one endpoint, is the beginning of another.
#[test]
fn the_failure_of_a_node_does_not_reach_one_whose_name_begins_the_same() {
    let address = own_address();
    let names = [1899, 18998].map(|port| format!("{address}:{port}"));
    let endpoints = names.clone().map(|name| format!("tcp://{name}"));
    let peers = endpoints.clone().map(|endpoint| Peer::bind(&endpoint));
    let engine = Engine::new();
    let [short, long] = [0, 1].map(|at| engine.node(&names[at], &[&endpoints[at]]));
    let [gone, stays] = [0, 1].map(|at| engine.ready(&endpoints[at]));
    for (node, request) in [(short, 1), (long, 1), (long, 18)] {
        engine.node_track_request(node, request).expect("live");
    }
    let failure = engine.handle_failure(short, Some("x")).expect("live");
    assert_eq!((listed(&failure), &failure.requests[..]), (vec![endpoints[0].as_str()], &[1][..]));
    refused(engine.send(&gone, &[b"x"], ms(1000)), Status::NodeFailed);
    refused(engine.send_to(&endpoints[0], &[b"x"], ms(1000)), Status::NodeFailed);
    refused(engine.node_find(&names[0]), Status::NotFound);

    engine.send(&stays, &[b"1"], ms(1000)).expect("untouched");
    let (conn, sequence) = engine.send_to(&endpoints[1], &[b"2"], ms(1000)).expect("untouched");
    assert_eq!((conn, sequence), (stays.id(), 2));
    assert_eq!(engine.node_find(&names[1]).expect("untouched"), long);
    let info = engine.node_info(long).expect("untouched");
    assert_eq!((info.status, info.endpoints, info.requests), (Status::Ok, 1, 2));
    peers[1].wait_received(2, LONG);
}

/// Scenario 39: no thread reads events, and no call has a place for the report.
#[test]
fn a_report_that_is_not_taken_waits_and_comes_out_once() {
    let peer = Peer::any();
    let engine = Engine::with(&[("max_events", "2"), ("max_failures", "2"), ("node_loss", "any")]);
    for at in 0..5 {
        // Events for the queue: it is full, and stays so.
        let node = engine.node(&format!("filler-{at}"), &[]);
        drop(engine.handle_failure(node, None).expect("live"));
    }
    let (probed, lost) = (engine.node("probed", &["tcp://127.0.0.1:9"]), engine.node("lost", &[peer.endpoint()]));
    let conn = engine.ready(peer.endpoint());
    for request in 0..500 {
        engine.node_track_request(probed, request).expect("live");
        engine.node_track_request(lost, 1000 + request).expect("live");
    }
    assert!(engine.take_failure().is_none());
    assert!(engine.node_report_health(probed, false, None).expect("live").is_none());
    let failure = engine.node_report_health(probed, false, Some("no answer")).expect("live").expect("the second");
    // What the C layer does when the caller gave no place for the report.
    engine.leave_failure(failure);
    peer.kill();
    wait_ended(&conn, LONG);

    let mut taken = Vec::new();
    wait_until("both reports are there", LONG, || {
        taken.extend(engine.take_failure());
        taken.len() == 2
    });
    assert!(engine.take_failure().is_none());
    assert_eq!((taken[0].node, &*taken[0].name), (probed, "probed"));
    assert!(taken[0].requests.iter().copied().eq(0..500));
    assert_eq!(listed(&taken[0]), ["tcp://127.0.0.1:9"]);
    assert_eq!((taken[1].node, &*taken[1].name), (lost, "lost"));
    assert!(taken[1].requests.iter().copied().eq(1000..1500));
    assert_eq!(listed(&taken[1]), [canonical(peer.endpoint())]);
    // Events were lost, and counted: 5 fillers, READY, two failures. Two of them fit, and PEER_LOST, which comes before
    // the second failure and has a place of its own.
    let events = engine.events();
    let lost: u64 = events.iter().filter(|e| e.kind == EventKind::Overflow).map(|e| e.count).sum();
    assert_eq!((events.len(), lost), (3 + 2, 8 - 2));
}

/// Scenario 43: SGLang registers ranks one by one, while requests are in flight already.
#[test]
fn a_late_rank_of_a_life_that_is_over_makes_no_half_node() {
    let peers = Peer::with(PeerOptions { endpoints: 8, ..PeerOptions::default() });
    let ranks: Vec<&str> = peers.endpoints().iter().map(String::as_str).collect();
    let engine = Engine::new();
    let (node, _) = engine.node_open("prefill").expect("open");
    engine.node_track_request(node, 77).expect("before any endpoint is known");
    engine.node_add_endpoints(node, &ranks[..4], None).expect("live");
    engine.ready(ranks[0]);
    let failure = engine.handle_failure(node, Some("died")).expect("live");
    assert_eq!(&failure.requests[..], [77]);
    assert_eq!(failure.endpoints.len(), 4);
    assert_eq!(failure.endpoints[1].conn, ConnId::NONE, "rank 1 was not connected");

    refused(engine.node_add_endpoints(node, &ranks[4..], None), Status::NodeFailed);
    refused(engine.node_track_request(node, 78), Status::NodeFailed);
    refused(engine.node_find("prefill"), Status::NotFound);
    assert_eq!(engine.node_info(node).expect("remembered").endpoints, 0);
    assert!(engine.describe().contains(" 0 endpoints in use"), "{}", engine.describe());
    assert!(engine.take_failure().is_none(), "request 77 was reported twice");
    for rank in &ranks[..4] {
        refused(engine.send_to(rank, &[b"x"], ms(1000)), Status::NodeFailed);
    }
    // The late ranks were not touched: neither registered nor fenced.
    engine.send_to(ranks[4], &[b"x"], ms(5000)).expect("no fence");
    peers.wait_received(1, LONG);
}

/// Scenario 44: two names for one prefill own the same endpoint.
#[test]
fn an_endpoint_that_another_live_node_owns_is_spared() {
    let (shared, alone) = (Peer::any(), Peer::any());
    let engine = Engine::new();
    let a = engine.node("prefill", &[shared.endpoint(), alone.endpoint()]);
    let b = engine.node("prefill.alias", &[shared.endpoint()]);
    let (conn, own) = (engine.ready(shared.endpoint()), engine.ready(alone.endpoint()));
    engine.send(&own, &[b"x"], ms(1000)).expect("sent");
    // A stream that must not notice.
    let stop = AtomicBool::new(false);
    let (failure, sent) = std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let stream = scope.spawn(|| {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                sent = send(&conn, &[b"x"], ms(5000)).expect("the connection goes on");
            }
            sent
        });
        shared.wait_received(100, LONG);
        let failure = engine.handle_failure(a, Some("x")).expect("live");
        let then = shared.received().messages;
        shared.wait_received(then + 100, LONG);
        drop(stopping);
        (failure, stream.join().expect("a sender"))
    });
    assert_eq!(listed(&failure), [canonical(shared.endpoint()), canonical(alone.endpoint())]);
    let [spared, failed] = &failure.endpoints[..] else { panic!("two endpoints") };
    assert!(spared.spared && !failed.spared);
    assert_eq!((spared.conn, failed.conn, failed.accepted), (conn.id(), own.id(), 1));
    assert!((100..=sent).contains(&spared.accepted), "{} of {sent}", spared.accepted);
    refused(engine.send(&own, &[b"x"], ms(1000)), Status::NodeFailed);
    let (same, _) = engine.send_to(shared.endpoint(), &[b"x"], ms(1000)).expect("not fenced");
    assert_eq!(same, conn.id());
    shared.wait_received(sent + 1, LONG);

    // Its last owner fails, too.
    let failure = engine.handle_failure(b, Some("y")).expect("live");
    let [failed] = &failure.endpoints[..] else { panic!("one endpoint") };
    assert_eq!((failed.spared, failed.conn, failed.accepted), (false, conn.id(), sent + 1));
    refused(engine.send(&conn, &[b"x"], ms(1000)), Status::NodeFailed);
    let error = refused(engine.send_to(shared.endpoint(), &[b"x"], ms(1000)), Status::NodeFailed);
    assert!(error.message.contains("prefill.alias"), "{}", error.message);
    shared.wait_for("the connection is closed", LONG, |totals| totals.disconnected == 1);
}

/// Guarantee 1: it never waits for a sender, only marks and wakes.
#[test]
fn sixty_four_senders_on_eight_stopped_endpoints_are_released_at_once() {
    let peer = narrow_peer(8);
    let engine = Engine::with(&[("send_hwm", "4")]);
    let endpoints: Vec<&str> = peer.endpoints().iter().map(String::as_str).collect();
    let node = engine.node("prefill", &endpoints);
    let conns: Vec<_> = endpoints.iter().map(|endpoint| engine.ready(endpoint)).collect();
    peer.stop();
    let accepted: Vec<u64> = std::thread::scope(|scope| {
        let filling: Vec<_> = conns.iter().map(|conn| scope.spawn(|| engine.fill(conn, LARGE))).collect();
        filling.into_iter().map(|thread| thread.join().expect("a filled queue")).collect()
    });
    let senders = conns.iter().map(|conn| waiting_senders(conn, 8)).reduce(Waiting::and).expect("eight endpoints");

    let begun = Instant::now();
    let failure = within(ms(100), "handle_failure", || engine.handle_failure(node, Some("x"))).expect("live");
    let results = senders.return_within(ms(200), begun);
    assert_eq!(results.len(), 64);
    for result in results {
        refused(result, Status::NodeFailed);
    }
    let reported: Vec<u64> = failure.endpoints.iter().map(|failed| failed.accepted).collect();
    assert_eq!(reported, accepted, "a released sender's message was accepted after all");
}

/// Whatever state a connection is in, and whatever a thread waits for.
#[test]
fn dials_under_way_end_with_their_node() {
    let mute = crate::common::WrongPeer::mute();
    let closed = closed_port();
    let engine = Engine::with(&[("backoff_ms", "30000"), ("backoff_max_ms", "30000")]);
    let (mute, closed) = (mute.endpoint(), closed.endpoint());
    let node = engine.node("prefill", &[&mute, &closed]);
    let lazy = engine.lazy(&mute);
    let start = |call: &'static str, endpoint: &str| {
        let (manager, endpoint) = (engine.manager().clone(), endpoint.to_string());
        let conn = lazy.clone();
        let retry = crate::common::engine::options(&[("connect_retry", "1")]);
        Waiting::one(move || match call {
            "connect" => manager.connect(&endpoint, None, after(LONG)).map(|_| ()),
            "retry" => manager.connect(&endpoint, Some(&retry), after(LONG)).map(|_| ()),
            "send" => send(&conn, &[b"x"], LONG).map(|_| ()),
            _ => manager.send_to(&endpoint, &mut || crate::common::engine::message(&[b"x"]), after(LONG)).map(|_| ()),
        })
    };
    refused(engine.connect(&closed, ms(1000)), Status::ConnectFailed);
    let waiting = start("connect", &mute).and(start("send", &mute)).and(start("send_to", &mute));
    let waiting = waiting.and(start("retry", &closed));
    crate::common::engine::wait_waiting(&lazy, 2, LONG);
    // So that the calls whose waiting cannot be observed do wait; they get the same if they do not.
    std::thread::sleep(ms(50));

    let begun = Instant::now();
    let failure = within(ms(100), "handle_failure", || engine.handle_failure(node, Some("x"))).expect("live");
    for result in waiting.return_within(ms(200), begun) {
        refused(result, Status::NodeFailed);
    }
    assert_eq!((failure.endpoints[0].conn, failure.endpoints[0].accepted), (lazy.id(), 0));
    assert_eq!(failure.endpoints[1].conn, ConnId::NONE);
    let info = connection(lazy.id()).info();
    assert_eq!((info.state, info.status, info.ready_for), (ConnectionState::Ended, Status::NodeFailed, Duration::ZERO));
}

/// Guarantee 1 for many: everything of one node, within a second.
#[test]
fn a_node_of_twelve_hundred_endpoints_fails_in_one_step() {
    if OwnProcess::new(test_name!()).network_if_possible().parent() {
        return;
    }
    const COUNT: usize = 1200;
    let peer = Peer::with(PeerOptions { endpoints: COUNT, log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("connect_timeout_ms", "60000"), ("handshake_timeout_ms", "60000")]);
    let endpoints: Vec<&str> = peer.endpoints().iter().map(String::as_str).collect();
    let node = engine.node("large", &endpoints);
    for request in 0..100_000 {
        engine.node_track_request(node, request).expect("live");
    }
    let conns: Vec<_> = endpoints.iter().map(|endpoint| engine.lazy(endpoint)).collect();
    let ready = || conns.iter().all(|conn| conn.info().state == ConnectionState::Ready);
    wait_until("all are READY", Duration::from_secs(60), ready);
    engine.events();

    let limit = Duration::from_secs(1);
    let failure = within(limit, "handle_failure", || engine.handle_failure(node, Some("x"))).expect("live");
    assert_eq!((failure.endpoints.len(), failure.requests.len()), (COUNT, 100_000));
    assert!(failure.requests.iter().copied().eq(0..100_000));
    for (conn, failed) in conns.iter().zip(&failure.endpoints) {
        assert_eq!((failed.conn, &failed.endpoint), (conn.id(), conn.endpoint()), "not in the order of registration");
        refused(engine.send(conn, &[b"x"], Duration::ZERO), Status::NodeFailed);
        refused(engine.send_to(conn.endpoint().as_str(), &[b"x"], Duration::ZERO), Status::NodeFailed);
    }
    assert_eq!(engine.events_of(EventKind::NodeFailed).len(), COUNT + 1);
    peer.wait_for("every socket is closed", Duration::from_secs(30), |totals| totals.disconnected == COUNT as u64);
}
