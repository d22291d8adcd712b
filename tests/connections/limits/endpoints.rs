//! `max_endpoints` and `max_descriptors`.

use std::sync::Barrier;
use std::time::Duration;

use kvconn::error::{Error, Status};
use kvconn::ids::ManagerId;
use kvconn::process::Process;

use crate::common::engine::{options, refused, send, status_of};
use crate::common::{Engine, OwnProcess, Peer, closed_port, ms, resident_bytes, wait_until};
use crate::test_name;

const LIMIT: Duration = Duration::from_secs(10);

#[track_caller]
fn names_the_limit(error: &Error, limit: u64, current: u64) {
    let says = |word: &str| error.message.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word);
    let complete = says("max_endpoints") && says(&limit.to_string()) && says(&current.to_string());
    assert!(complete, "max_endpoints, {limit} and {current} are not in: {}", error.message);
}

/// Scenario 14.
#[test]
fn beyond_max_endpoints_nothing_is_made_and_what_is_there_goes_on() {
    let (a, b) = (Peer::any(), Peer::any());
    let engine = Engine::with(&[("max_endpoints", "1")]);
    let conn = engine.ready(a.endpoint());
    for _ in 0..3 {
        names_the_limit(&refused(engine.connect(b.endpoint(), LIMIT), Status::Limit), 1, 1);
        names_the_limit(&refused(engine.connect(b.endpoint(), ms(0)), Status::Limit), 1, 1);
        names_the_limit(&refused(engine.send_to(b.endpoint(), &[b"x"], LIMIT), Status::Limit), 1, 1);
        let retry = engine.connect_with(b.endpoint(), &[("connect_retry", "1")], LIMIT);
        names_the_limit(&refused(retry, Status::Limit), 1, 1);
    }
    refused(engine.find(b.endpoint()), Status::NotFound);
    assert_eq!(engine.connections(), [conn.id()]);
    assert_eq!(b.received().accepted, 0);
    send(&conn, &[b"still here"], LIMIT).expect("the first goes on");
    assert_eq!(engine.connect(a.endpoint(), ms(0)).unwrap(), conn.id(), "what is connected is not one more");

    conn.disconnect().unwrap();
    let second = engine.ready(b.endpoint());
    send(&second, &[b"x"], LIMIT).expect("room for this one now");
    names_the_limit(&refused(engine.connect(a.endpoint(), LIMIT), Status::Limit), 1, 1);
    engine.disconnect_endpoint(b.endpoint()).unwrap();
    engine.ready(a.endpoint());
    a.wait_received(1, LIMIT);
    b.wait_received(1, LIMIT);
}

#[test]
fn what_is_registered_counts_once_and_registering_takes_all_or_none() {
    let peers: Vec<Peer> = (0..4).map(|_| Peer::any()).collect();
    let names: Vec<&str> = peers.iter().map(Peer::endpoint).collect();
    let engine = Engine::with(&[("max_endpoints", "3")]);
    engine.ready(names[0]);
    let node = engine.node("node", &names[..2]); // one of them is connected already
    names_the_limit(&refused(engine.node_add_endpoints(node, &names[2..], None), Status::Limit), 3, 2);
    assert_eq!(engine.node_info(node).unwrap().endpoints, 2);
    engine.node_add_endpoints(node, &[names[2], names[2], names[1]], None).expect("one more fits, however often named");
    let alias = engine.node("alias", &names[..3]);
    names_the_limit(&refused(engine.connect(names[3], LIMIT), Status::Limit), 3, 3);
    engine.ready(names[1]); // registered, so there is room for it
    engine.handle_failure(alias, None).unwrap(); // the other node still owns them
    names_the_limit(&refused(engine.connect(names[3], LIMIT), Status::Limit), 3, 3);
    engine.node_remove_endpoints(node, &names[2..3]).unwrap();
    engine.ready(names[3]);
    engine.handle_failure(node, None).unwrap();
    engine.node("next", &[names[0], names[1]]);
    names_the_limit(&refused(engine.connect(names[2], LIMIT), Status::Limit), 3, 3);
}

#[test]
fn failed_fenced_and_lost_endpoints_take_no_place() {
    let mut peer = Peer::any();
    let engine = Engine::with(&[("max_endpoints", "1"), ("backoff_ms", "10000"), ("backoff_max_ms", "10000")]);
    let ports: Vec<_> = (0..3).map(|_| closed_port()).collect();
    for port in &ports {
        refused(engine.connect(&port.endpoint(), LIMIT), Status::ConnectFailed);
    }
    let conn = engine.ready(peer.endpoint());
    refused(engine.connect(&ports[0].endpoint(), LIMIT), Status::Backoff);
    peer.kill();
    wait_until("the loss is seen", LIMIT, || engine.connections().is_empty());
    drop(conn);
    peer.restart();
    let other = Peer::any();
    engine.disconnect_endpoint(peer.endpoint()).unwrap();
    engine.ready(other.endpoint());
}

#[test]
fn of_many_threads_as_many_as_there_is_room_for_get_a_connection() {
    const ROOM: usize = 3;
    let peers: Vec<Peer> = (0..8).map(|_| Peer::any()).collect();
    let engine = Engine::with(&[("max_endpoints", "3")]);
    for round in 0..10 {
        let together = Barrier::new(peers.len());
        let (engine, together) = (&engine, &together);
        let results: Vec<Status> = std::thread::scope(|scope| {
            let connect = |peer| {
                move || {
                    together.wait();
                    status_of(&engine.connect(Peer::endpoint(peer), LIMIT))
                }
            };
            let threads: Vec<_> = peers.iter().map(|peer| scope.spawn(connect(peer))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let count = |status| results.iter().filter(|result| **result == status).count();
        assert_eq!((count(Status::Ok), count(Status::Limit)), (ROOM, peers.len() - ROOM), "round {round}: {results:?}");
        assert_eq!(engine.connections().len(), ROOM);
        for peer in &peers {
            engine.disconnect_endpoint(peer.endpoint()).unwrap();
        }
    }
    let dials: u64 = peers.iter().map(|peer| peer.received().accepted).sum();
    assert_eq!(dials, 10 * ROOM as u64, "a connect that got LIMIT dialled nothing");
}

#[test]
fn max_descriptors_is_told_by_name_and_counts_closing_connections_until_they_are_closed() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peers: Vec<Peer> = (0..4).map(|_| Peer::any()).collect();
    let process = Process::current().unwrap();
    process.manager(ManagerId::NONE).unwrap().configure(&options(&[("max_descriptors", "9")])).unwrap();
    let engine = Engine::new();
    let conns: Vec<_> = peers[..3].iter().map(|peer| engine.ready(peer.endpoint())).collect();
    let error = refused(engine.connect(peers[3].endpoint(), LIMIT), Status::Limit);
    assert!(error.message.contains("max_descriptors is 9"), "{}", error.message);
    // Another manager shares the budget.
    refused(Engine::new().connect(peers[3].endpoint(), LIMIT), Status::Limit);
    assert_eq!(peers[3].received().accepted, 0);
    for conn in &conns {
        send(conn, &[b"x"], LIMIT).expect("those there are go on");
    }
    conns[0].disconnect().unwrap();
    wait_until("a connection is closed", LIMIT, || match status_of(&engine.connect(peers[3].endpoint(), LIMIT)) {
        Status::Ok => true,
        Status::Limit => false,
        other => panic!("{other:?}"),
    });
    engine.send_to(peers[3].endpoint(), &[b"x"], LIMIT).expect("sent");
    peers[3].wait_received(1, LIMIT);
}

/// Guarantee 8: an engine that disconnects endpoints for ever does not grow.
#[test]
fn what_is_remembered_of_endpoints_is_bounded() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let engine = Engine::with(&[("max_fences", "500"), ("backoff_ms", "60000"), ("backoff_max_ms", "60000")]);
    // Addresses of this host without a listener.
    let endpoint = |number: usize| format!("tcp://127.77.{}.{}:9", number / 250, number % 250 + 1);
    let fence = |range: std::ops::Range<usize>| {
        range.for_each(|number| engine.disconnect_endpoint(&endpoint(number)).expect("fenced"));
    };
    let dial = |range: std::ops::Range<usize>| {
        for number in range {
            refused(engine.connect(&endpoint(number), LIMIT), Status::ConnectFailed);
        }
    };
    fence(0..1000);
    let before = resident_bytes();
    fence(1000..13_000);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 1 << 20, "{grown} bytes more");
    dial(20_000..20_600);

    let status = |number: usize| status_of(&engine.send_to(&endpoint(number), &[b"x"], LIMIT));
    assert_eq!([12_500, 12_999].map(status), [Status::Disconnected; 2], "the newest fences");
    assert_eq!(status(12_499), Status::ConnectFailed, "an older one is forgotten");
    assert_eq!([20_101, 20_599].map(status), [Status::Backoff; 2], "the newest failures, less the one just made");
    assert_eq!(status(20_099), Status::ConnectFailed, "an older one is forgotten");
}
