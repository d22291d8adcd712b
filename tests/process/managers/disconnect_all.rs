//! The change of a role: everything is flushed, closed, fenced and forgotten, and the manager works again.

use std::time::{Duration, Instant};

use kvconn::connection::ConnectionState;
use kvconn::error::Status;
use kvconn::events::EventKind;

use crate::common::engine::{
    LARGE, after, narrow_peer, own_address, refused, status_of, text, wait_ended, waiting_senders,
};
use crate::common::load::within;
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, WrongPeer, ms, open_descriptors, wait_until};
use crate::test_name;

const LONG: Duration = Duration::from_secs(10);

/// Scenario 45.
#[test]
fn a_message_just_accepted_arrives_although_everything_is_closed() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { endpoints: 4, ..PeerOptions::default() });
    let engine = Engine::new();
    let endpoints: Vec<&str> = peer.endpoints().iter().map(String::as_str).collect();
    let nodes = [engine.node("a", &endpoints[..2]), engine.node("b", &endpoints[1..3])];
    engine.node_track_request(nodes[0], 7).expect("live");
    let conns: Vec<_> = endpoints.iter().map(|endpoint| engine.ready(endpoint)).collect();
    for round in 0..50 {
        for conn in &conns {
            engine.send(conn, &[format!("ABORT {round}").as_bytes()], ms(1000)).expect("accepted");
        }
    }
    within(ms(1200), "disconnect_all", || engine.disconnect_all(after(ms(1000)))).expect("everything was flushed");
    // libzmq says that it has given up a socket a moment before it closes the descriptor.
    wait_until("everything is closed", ms(1000), || open_descriptors().tcp == 0);
    peer.wait_received(200, LONG);
    assert_eq!(peer.messages().iter().filter(|message| text(message).starts_with("ABORT ")).count(), 200);

    for conn in &conns {
        let info = conn.info();
        assert_eq!((info.state, info.status, info.accepted), (ConnectionState::Ended, Status::Disconnected, 50));
    }
    for endpoint in &endpoints {
        let error = refused(engine.send_to(endpoint, &[b"x"], ms(1000)), Status::Disconnected);
        assert!(error.message.contains("kvconn_disconnect_all"), "{}", error.message);
    }
    for node in nodes {
        for error in [
            refused(engine.node_track_request(node, 8), Status::Disconnected),
            refused(engine.handle_failure(node, Some("late")), Status::Disconnected),
            refused(engine.node_add_endpoints(node, &endpoints, None), Status::Disconnected),
        ] {
            assert!(error.message.contains("kvconn_disconnect_all"), "{}", error.message);
        }
        assert_eq!(engine.node_info(node).expect("remembered").status, Status::Disconnected);
    }
    refused(engine.node_find("a"), Status::NotFound);
    assert!(engine.take_failure().is_none(), "the caller gives the work up itself");
    assert_eq!(engine.connections(), []);
    let events = engine.events();
    let count = |kind| events.iter().filter(|event| event.kind == kind).count();
    assert_eq!((count(EventKind::Disconnected), count(EventKind::NodeFailed)), (4, 0));

    // The manager works again: a connect lifts its fence, a registration lifts its own.
    engine.send(&engine.ready(endpoints[0]), &[b"new"], ms(1000)).expect("accepted");
    let node = engine.node("a", &endpoints[1..]);
    assert!(!nodes.contains(&node));
    for endpoint in &endpoints[1..] {
        engine.send_to(endpoint, &[b"new"], ms(5000)).expect("accepted");
    }
    peer.wait_received(204, LONG);
}

/// Guarantee 1: a stopped peer holds it up until its time is over, and no thread longer than a moment.
#[test]
fn what_cannot_be_flushed_in_time_is_dropped() {
    let peer = narrow_peer(1);
    let engine = Engine::with(&[("send_hwm", "4")]);
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    engine.fill(&conn, LARGE);
    let senders = waiting_senders(&conn, 3);
    let begun = Instant::now();
    let result = within(ms(600), "disconnect_all", || engine.disconnect_all(after(ms(300))));
    let error = refused(result, Status::Timeout);
    assert_eq!((error.conn, error.endpoint.as_str()), (conn.id(), conn.endpoint().as_str()));
    for part in ["1 connection ", conn.endpoint().as_str()] {
        assert!(error.message.contains(part), "{part} is not in: {}", error.message);
    }
    assert!(begun.elapsed() >= ms(300), "it gave up after {:?}", begun.elapsed());
    for result in senders.return_within(ms(200), begun) {
        refused(result, Status::Disconnected);
    }
    peer.resume();
    // Nothing was left to flush: at once.
    within(ms(100), "with nothing to do", || engine.disconnect_all(after(LONG))).expect("closed");
    engine.ready(peer.endpoint());
}

/// Flush 0: what was accepted may be dropped, and TIMEOUT may say so. There is nothing to wait for.
#[test]
fn without_time_to_flush_it_returns_at_once() {
    let (peer, stuck) = (Peer::any(), narrow_peer(1));
    let engine = Engine::with(&[("send_hwm", "4")]);
    engine.ready(peer.endpoint());
    let full = engine.ready(stuck.endpoint());
    stuck.stop();
    engine.fill(&full, LARGE);
    let senders = waiting_senders(&full, 3);
    let begun = Instant::now();
    let result = within(ms(100), "disconnect_all", || engine.disconnect_all(after(Duration::ZERO)));
    assert!(matches!(status_of(&result), Status::Ok | Status::Timeout), "{result:?}");
    for result in senders.return_within(ms(200), begun) {
        refused(result, Status::Disconnected);
    }
    peer.wait_for("it is closed", LONG, |totals| totals.disconnected == 1);
}

/// Also those that are not connected at that moment.
#[test]
fn every_endpoint_is_fenced() {
    let lost = Peer::bind(&format!("tcp://{}:0", own_address()));
    let (known, mute) = (WrongPeer::closing(), WrongPeer::mute());
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let conn = engine.ready(lost.endpoint());
    lost.flap();
    wait_ended(&conn, LONG);
    refused(engine.connect(&known.endpoint(), LONG), Status::ConnectFailed);
    let dialling = engine.lazy(&mute.endpoint());
    wait_until("it is dialled", LONG, || mute.connections() == 1);
    let failed = engine.node("n", &["tcp://127.0.0.1:9"]);
    drop(engine.handle_failure(failed, Some("x")).expect("live"));

    engine.disconnect_all(after(ms(1000))).expect("closed");
    assert_eq!(dialling.info().status, Status::Disconnected);
    for endpoint in [lost.endpoint(), &known.endpoint(), &mute.endpoint()] {
        refused(engine.send_to(endpoint, &[b"x"], ms(1000)), Status::Disconnected);
    }
    refused(engine.send_to("tcp://127.0.0.1:9", &[b"x"], ms(1000)), Status::NodeFailed);
    assert_eq!((lost.received().accepted, known.connections(), mute.connections()), (1, 1, 1));
    engine.ready(lost.endpoint());
}

#[test]
fn reports_that_were_not_taken_survive_it() {
    let engine = Engine::new();
    let node = engine.node("n", &[]);
    engine.node_track_request(node, 5).expect("live");
    let failure = engine.handle_failure(node, Some("x")).expect("live");
    engine.leave_failure(failure);
    engine.disconnect_all(after(ms(1000))).expect("nothing to close");
    let failure = engine.take_failure().expect("never dropped");
    assert_eq!((failure.node, &failure.requests[..]), (node, &[5][..]));
    refused(engine.node_track_request(node, 6), Status::NodeFailed);
}
