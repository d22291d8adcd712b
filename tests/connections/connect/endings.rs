//! Endings: each connection has one, it is reported once, and it is remembered for a while.

use std::time::Duration;

use kvconn::connection::ConnectionState;
use kvconn::error::Status;
use kvconn::events::{Event, EventKind};
use kvconn::ids::ConnId;
use kvconn::process::Process;
use kvconn::timeout::Timeout;

use crate::common::engine::{connection, refused, send, wait_ended};
use crate::common::load::within;
use crate::common::{Engine, Peer, closed_port, ms};

const LIMIT: Duration = Duration::from_secs(10);

const ENDINGS: [EventKind; 4] =
    [EventKind::ConnectFailed, EventKind::PeerLost, EventKind::Disconnected, EventKind::NodeFailed];

fn of(conn: ConnId, events: &[Event]) -> Vec<EventKind> {
    events.iter().filter(|event| event.conn == conn).map(|event| event.kind).collect()
}

#[test]
fn every_connection_has_one_ending_event_that_is_queued_before_the_call_returns() {
    let engine = Engine::new();
    let peer = Peer::any();
    let ready = || {
        let conn = engine.ready(peer.endpoint());
        send(&conn, &[b"x"], LIMIT).expect("sent");
        engine.events();
        conn
    };
    type End<'a> = &'a dyn Fn();
    let node = engine.node("node", &[peer.endpoint()]);
    let by_id = || engine.find(peer.endpoint()).map(connection).unwrap().disconnect().unwrap();
    let by_endpoint = || engine.disconnect_endpoint(peer.endpoint()).unwrap();
    let by_removal = || engine.node_remove_endpoints(node, &[peer.endpoint()]).unwrap();
    let by_all = || engine.disconnect_all(Timeout::After(LIMIT)).unwrap();
    let by_failure = || {
        let node = engine.node("node", &[peer.endpoint()]);
        engine.handle_failure(node, None).map(drop).unwrap();
    };
    let ways: [(End, Status, EventKind); 5] = [
        (&by_id, Status::Disconnected, EventKind::Disconnected),
        (&by_endpoint, Status::Disconnected, EventKind::Disconnected),
        (&by_removal, Status::Disconnected, EventKind::Disconnected),
        (&by_all, Status::Disconnected, EventKind::Disconnected),
        (&by_failure, Status::NodeFailed, EventKind::NodeFailed),
    ];
    for (end, status, kind) in ways {
        let conn = ready();
        end();
        let events = engine.events();
        assert_eq!(of(conn.id(), &events), [kind]);
        let event = events.iter().find(|event| event.conn == conn.id()).unwrap();
        assert_eq!((event.status, event.count), (status, 1), "the status and the messages accepted");
        assert_eq!(event.endpoint.as_ref(), Some(conn.endpoint()));
        let info = conn.info();
        assert_eq!((info.state, info.status, info.accepted), (ConnectionState::Ended, status, 1));
        assert!(!info.message.is_empty());
        refused(send(&conn, &[b"late"], LIMIT), status);
        conn.disconnect().unwrap();
        assert!(engine.events().is_empty(), "an ending is reported once");
    }
}

#[test]
fn a_failed_dial_and_a_lost_peer_are_reported_once() {
    let engine = Engine::new();
    let port = closed_port();
    let refused_dial = engine.lazy(&port.endpoint());
    let event = engine.expect_event(EventKind::ConnectFailed, LIMIT);
    assert_eq!((event.conn, event.os_errno, event.count), (refused_dial.id(), libc::ECONNREFUSED, 0));
    assert_eq!(refused_dial.info().status, Status::ConnectFailed);

    let peer = Peer::any();
    let conn = engine.ready(peer.endpoint());
    for _ in 0..5 {
        send(&conn, &[b"x"], LIMIT).expect("sent");
    }
    peer.wait_received(5, LIMIT);
    engine.events();
    peer.kill();
    let event = engine.expect_event(EventKind::PeerLost, LIMIT);
    assert_eq!((event.conn, event.status, event.count), (conn.id(), Status::PeerLost, 5));
    engine.disconnect_endpoint(peer.endpoint()).unwrap();
    conn.disconnect().unwrap();
    assert!(engine.events().is_empty());
    let info = wait_ended(&conn, LIMIT);
    assert_eq!((info.status, info.accepted), (Status::PeerLost, 5), "the first ending stays");
}

#[test]
fn ends_at_the_same_time_make_one_ending() {
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let mut peer = Peer::any();
    for round in 0..20u64 {
        let node = engine.node("node", &[peer.endpoint()]);
        let conn = engine.ready_with(peer.endpoint(), &[("connect_retry", "1")]);
        engine.events();
        std::thread::scope(|scope| {
            scope.spawn(|| conn.disconnect().unwrap());
            scope.spawn(|| engine.disconnect_endpoint(peer.endpoint()).unwrap());
            scope.spawn(|| engine.handle_failure(node, None).map(drop).unwrap());
            if round % 4 == 0 {
                peer.kill();
            }
        });
        let ended = conn.info().status;
        let events = engine.events();
        let endings: Vec<EventKind> = of(conn.id(), &events).into_iter().filter(|k| ENDINGS.contains(k)).collect();
        assert_eq!(endings.len(), 1, "round {round}: {endings:?}");
        refused(send(&conn, &[b"x"], LIMIT), ended);
        if round % 4 == 0 {
            peer.restart();
        }
    }
}

#[test]
fn the_newest_4096_endings_are_remembered_and_older_ids_are_stale() {
    const REMEMBERED: u64 = 4096;
    let peer = Peer::any();
    let engine = Engine::new();
    let process = Process::current().unwrap();
    let live = engine.ready(peer.endpoint()).id();

    // Dialled to nowhere and ended at once: a dial that no call observes.
    let elsewhere = closed_port();
    let (mut ended, mut node) = (Vec::new(), None);
    for _ in 0..REMEMBERED + 10 {
        // Ended while it is dialled, or after that was refused: either way its step is used up.
        let conn = loop {
            match engine.connect(&elsewhere.endpoint(), ms(0)) {
                Ok(id) => break connection(id),
                // As many sockets to this endpoint as there may be are closing.
                Err(error) if error.status == Status::Timeout => std::thread::sleep(ms(1)),
                Err(error) => {
                    assert_eq!(error.status, Status::Backoff, "{error:?}");
                    // A new life restarts the steps.
                    node.map(|node| engine.handle_failure(node, None).unwrap());
                    node = Some(engine.node("node", &[&elsewhere.endpoint()]));
                }
            }
        };
        conn.disconnect().unwrap();
        ended.push(conn.id());
    }
    for (place, id) in ended.iter().enumerate() {
        let found = process.connection(*id);
        if place < 10 {
            let error = refused(found.map(|conn| conn.id()), Status::Stale);
            assert_eq!(error.conn, *id);
        } else {
            assert_eq!(found.expect("remembered").info().state, ConnectionState::Ended);
        }
    }
    assert_eq!(connection(live).info().state, ConnectionState::Ready, "a live one is not an ending");
    within(LIMIT, "the rest", || drop(engine));
    for id in [live, *ended.last().unwrap(), ConnId::NONE, ConnId(u64::MAX)] {
        refused(process.connection(id).map(|conn| conn.id()), Status::Stale);
    }
}
