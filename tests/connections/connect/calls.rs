//! Connecting: what the call returns and when, what it remembers, and what it never does.

use std::sync::Barrier;
use std::time::Duration;

use kvconn::connection::ConnectionState;
use kvconn::error::Status;
use kvconn::events::EventKind;
use kvconn::ids::ConnId;

use crate::common::engine::{connection, options, refused, send, status_of, wait_ended, wait_waiting};
use crate::common::load::{Stopwatch, within};
use crate::common::{Engine, Peer, PeerOptions, WrongPeer, closed_port, ms};

const LIMIT: Duration = Duration::from_secs(10);
/// What the design allows for 10 ms, on a loaded machine.
const AT_ONCE: Duration = ms(100);

#[test]
fn a_lazy_connect_returns_at_once_and_a_send_waits_for_ready() {
    let peer = Peer::any();
    peer.stop(); // its kernel connects, its libzmq does not shake hands
    let engine = Engine::new();
    let conn = within(AT_ONCE, "a lazy connect", || engine.lazy(peer.endpoint()));
    assert_eq!(conn.info().state, ConnectionState::Connecting);
    let error = within(AT_ONCE, "a send that does not wait", || refused(send(&conn, &[b"no"], ms(0)), Status::Timeout));
    assert_eq!((error.conn, error.endpoint), (conn.id(), conn.endpoint().to_string()));

    std::thread::scope(|scope| {
        let sends: Vec<_> = (0..3).map(|_| scope.spawn(|| send(&conn, &[b"yes"], LIMIT))).collect();
        wait_waiting(&conn, 3, LIMIT);
        assert_eq!(conn.info().accepted, 0, "nothing is accepted before the handshake");
        peer.resume();
        let mut sequences: Vec<_> = sends.into_iter().map(|s| s.join().unwrap().expect("sent once READY")).collect();
        sequences.sort();
        assert_eq!(sequences, [1, 2, 3]);
    });
    peer.wait_received(3, LIMIT);
    assert!(peer.messages().iter().all(|message| message[0] == b"yes"), "the send that failed was not accepted");
    assert_eq!(engine.events_of(EventKind::Ready).len(), 1);
}

#[test]
fn a_connect_whose_wait_ends_first_names_the_connection_and_the_dial_goes_on() {
    let peer = Peer::any();
    peer.stop();
    let engine = Engine::new();
    let watch = Stopwatch::start();
    let error = refused(engine.connect(peer.endpoint(), ms(80)), Status::Timeout);
    watch.between(ms(80), ms(80) + AT_ONCE, "a connect with 80 ms");
    assert_ne!(error.conn, ConnId::NONE, "the connection that is being dialled");
    let conn = connection(error.conn);
    assert_eq!(conn.info().state, ConnectionState::Connecting);
    assert_eq!(engine.find(peer.endpoint()).unwrap(), conn.id());

    peer.resume();
    assert_eq!(engine.connect(peer.endpoint(), LIMIT).expect("READY"), conn.id());
    assert_eq!(conn.info().state, ConnectionState::Ready);
    send(&conn, &[b"x"], LIMIT).expect("sent");
    assert_eq!(peer.wait_received(1, LIMIT).accepted, 1, "one dial in all");
}

#[test]
fn a_connect_by_default_waits_as_long_as_one_dial_may_take() {
    let mute = WrongPeer::mute();
    let engine = Engine::with(&[("connect_timeout_ms", "200"), ("handshake_timeout_ms", "200")]);
    let watch = Stopwatch::start();
    let result = engine.manager().connect(&mute.endpoint(), None, kvconn::timeout::Timeout::Default);
    refused(result, Status::ConnectFailed);
    watch.between(ms(195), ms(400) + AT_ONCE, "a dial");
}

#[test]
fn senders_that_wait_for_ready_fail_at_once_when_the_dial_fails() {
    let mute = WrongPeer::mute();
    let engine = Engine::with(&[("handshake_timeout_ms", "300")]);
    let watch = Stopwatch::start();
    let conn = engine.lazy(&mute.endpoint());
    std::thread::scope(|scope| {
        let sends: Vec<_> = (0..4).map(|_| scope.spawn(|| send(&conn, &[b"x"], LIMIT))).collect();
        wait_waiting(&conn, 4, LIMIT);
        let ended = wait_ended(&conn, LIMIT);
        let failed = Stopwatch::start();
        for send in sends {
            refused(send.join().unwrap(), Status::ConnectFailed);
        }
        failed.at_most(AT_ONCE, "telling the senders");
        assert_eq!(ended.accepted, 0);
    });
    watch.between(ms(295), ms(300) + AT_ONCE, "a handshake that does not come");
}

#[test]
fn a_send_whose_deadline_ends_before_ready_is_not_accepted_later() {
    let peer = Peer::any();
    peer.stop();
    let engine = Engine::new();
    let conn = engine.lazy(peer.endpoint());
    let watch = Stopwatch::start();
    refused(send(&conn, &[b"given up"], ms(120)), Status::Timeout);
    watch.between(ms(120), ms(120) + AT_ONCE, "a send with 120 ms");
    // The dial has had no answer for longer than this one would wait.
    refused(engine.send_to(peer.endpoint(), &[b"given up"], ms(50)), Status::Stalled);
    peer.resume();
    assert_eq!(send(&conn, &[b"wanted"], LIMIT).expect("sent"), 1);
    peer.wait_received(1, LIMIT);
    assert_eq!(peer.messages(), [[b"wanted".to_vec()]]);
}

#[test]
fn all_connects_to_an_endpoint_get_its_one_connection() {
    let peer = Peer::any();
    let engine = Engine::new();
    let together = Barrier::new(8);
    let connect = |number: u64| {
        together.wait();
        match number % 3 {
            0 => engine.connect(peer.endpoint(), LIMIT).expect("connected"),
            1 => engine.connect(peer.endpoint(), ms(0)).expect("dialling"),
            _ => engine.send_to(peer.endpoint(), &[b"x"], LIMIT).expect("sent").0,
        }
    };
    let mut ids: Vec<ConnId> = std::thread::scope(|scope| {
        let connect = &connect;
        let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || connect(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    ids.dedup();
    assert_eq!(ids.len(), 1, "several connections to one endpoint: {ids:?}");
    assert_eq!(engine.connections(), ids);
    let totals = peer.wait_received(2, LIMIT);
    assert_eq!((totals.accepted, totals.handshakes), (1, 1));
}

#[test]
fn other_spellings_of_an_endpoint_are_the_same_endpoint() {
    let peer = Peer::any();
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    let mapped = format!("tcp://[::ffff:127.0.0.1]:{}", peer.port());
    let hexadecimal = format!("tcp://[::FFFF:7f00:1]:{}", peer.port());
    for spelling in [&mapped, &hexadecimal] {
        assert_eq!(engine.connect(spelling, ms(0)).unwrap(), conn.id(), "{spelling}");
        assert_eq!(engine.find(spelling).unwrap(), conn.id(), "{spelling}");
    }
    engine.disconnect_endpoint(&hexadecimal).unwrap();
    assert_eq!(conn.info().status, Status::Disconnected);
    refused(engine.send_to(&mapped, &[b"x"], ms(0)), Status::Disconnected);
}

#[test]
fn options_that_differ_from_the_live_connections_are_a_conflict_and_change_nothing() {
    let peer = Peer::any();
    let engine = Engine::new();
    let conn = engine.ready_with(peer.endpoint(), &[("send_hwm", "10")]);
    let error = refused(engine.connect_with(peer.endpoint(), &[("send_hwm", "11")], LIMIT), Status::Conflict);
    assert!(error.message.contains("send_hwm") && error.message.contains("10"), "{}", error.message);
    assert_eq!(error.conn, conn.id());

    // What agrees, and what is not given, is none.
    for agrees in [&[("send_hwm", "10")][..], &[("connect_retry", "1")], &[("stall_ms", "1000"), ("send_hwm", "10")]] {
        assert_eq!(engine.connect_with(peer.endpoint(), agrees, ms(0)).expect("no conflict"), conn.id(), "{agrees:?}");
    }
    assert_eq!(engine.connect(peer.endpoint(), ms(0)).unwrap(), conn.id());

    // Registering is the same, and takes all endpoints or none.
    let other = closed_port();
    let (node, _) = engine.node_open("node").unwrap();
    let endpoints = [other.endpoint(), peer.endpoint().to_string()];
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let settings = options(&[("send_hwm", "12")]);
    refused(engine.node_add_endpoints(node, &endpoints, Some(&settings)), Status::Conflict);
    assert_eq!(engine.node_info(node).unwrap().endpoints, 0);

    send(&conn, &[b"x"], LIMIT).expect("the connection goes on");
    assert_eq!(peer.wait_received(1, LIMIT).accepted, 1);
}

#[test]
fn options_that_act_elsewhere_are_refused_by_name() {
    let peer = Peer::any();
    let engine = Engine::new();
    for (name, value) in [("max_endpoints", "5"), ("io_threads", "2"), ("send_timeout_ms", "5")] {
        let error = refused(engine.connect_with(peer.endpoint(), &[(name, value)], LIMIT), Status::Invalid);
        assert!(error.message.contains(name), "{}", error.message);
    }
    assert!(engine.connections().is_empty());
    assert_eq!(peer.received().accepted, 0);
}

/// How many messages a connection takes to a peer that reads nothing: the queue, and some the kernel holds.
fn capacity(engine: &Engine, peer: &Peer) -> u64 {
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    let accepted = engine.fill(&conn, &[7; 256 * 1024]);
    conn.disconnect().unwrap();
    peer.resume();
    accepted
}

#[test]
fn every_redial_uses_the_options_that_the_endpoint_remembers() {
    let peer = Peer::with(PeerOptions { rcvbuf: 65536, rcvhwm: 1, log: false, ..PeerOptions::default() });
    // Messages of 256 KiB: the kernel holds some 20 of them at the most.
    let engine = Engine::with(&[("send_hwm", "100")]);
    let endpoint = peer.endpoint();
    let small = |accepted: u64| assert!(accepted < 60, "{accepted} messages fit; send_hwm=10 was forgotten");
    let large = |accepted: u64| assert!(accepted > 90, "only {accepted} messages fit with send_hwm=100");

    large(capacity(&engine, &peer));
    engine.connect_with(endpoint, &[("send_hwm", "10")], LIMIT).expect("READY");
    small(capacity(&engine, &peer));
    // A redial by send_to.
    engine.send_to(endpoint, &[b"x"], LIMIT).expect("redialled");
    small(capacity(&engine, &peer));
    // Behind a fence as well, and by connect without options, or with those of the call alone.
    engine.disconnect_endpoint(endpoint).unwrap();
    engine.connect(endpoint, LIMIT).expect("READY");
    small(capacity(&engine, &peer));
    engine.connect_with(endpoint, &[("connect_retry", "1")], LIMIT).expect("READY");
    small(capacity(&engine, &peer));
    // A registration without options leaves them, one with options replaces them.
    let node = engine.node("node", &[endpoint]);
    engine.send_to(endpoint, &[b"x"], LIMIT).expect("redialled");
    small(capacity(&engine, &peer));
    let replaced = options(&[("send_hwm", "100")]);
    engine.node_add_endpoints(node, &[endpoint], Some(&replaced)).unwrap();
    engine.send_to(endpoint, &[b"x"], LIMIT).expect("redialled");
    large(capacity(&engine, &peer));
}

#[test]
fn looking_never_dials() {
    let peer = Peer::any();
    let engine = Engine::new();
    refused(engine.find(peer.endpoint()), Status::NotFound);
    engine.node("node", &[peer.endpoint()]);
    refused(engine.find(peer.endpoint()), Status::NotFound);
    assert!(engine.connections().is_empty());

    let conn = engine.ready(peer.endpoint());
    assert_eq!(peer.received().accepted, 1);
    assert_eq!(engine.find(peer.endpoint()).unwrap(), conn.id());
    conn.disconnect().unwrap();
    refused(engine.find(peer.endpoint()), Status::NotFound);
    assert!(engine.connections().is_empty());
    assert_eq!(peer.received().accepted, 1);
    assert_eq!(status_of(&engine.find("tcp://nowhere")), Status::Invalid);
}

#[test]
fn connections_lists_the_live_ones_oldest_first_and_info_tells_of_each() {
    let peers: Vec<Peer> = (0..4).map(|_| Peer::any()).collect();
    let engine = Engine::new();
    let conns: Vec<_> = peers.iter().map(|peer| engine.ready(peer.endpoint())).collect();
    let ids: Vec<ConnId> = conns.iter().map(|conn| conn.id()).collect();
    assert_eq!(engine.connections(), ids);
    conns[1].disconnect().unwrap();
    assert_eq!(engine.connections(), [ids[0], ids[2], ids[3]]);
    let again = engine.ready(peers[1].endpoint());
    assert!(again.id() > ids[3], "an id is never used again");
    assert_eq!(engine.connections(), [ids[0], ids[2], ids[3], again.id()]);

    for number in 1..=3 {
        assert_eq!(send(&conns[0], &[b"x"], LIMIT).unwrap(), number);
    }
    let info = conns[0].info();
    assert_eq!((info.conn, info.endpoint.to_string()), (ids[0], format!("tcp://127.0.0.1:{}", peers[0].port())));
    assert_eq!((info.state, info.status, info.accepted), (ConnectionState::Ready, Status::Ok, 3));
    assert!(info.message.is_empty() && !info.stalled && info.waiting == 0);
    assert!(info.age >= info.ready_for && info.ready_for > Duration::ZERO);

    let over = conns[1].info();
    assert_eq!((over.state, over.status), (ConnectionState::Ended, Status::Disconnected));
    assert!(over.message.contains("kvconn_disconnect"), "{}", over.message);
    assert!(over.ready_for > Duration::ZERO);
    std::thread::sleep(ms(5));
    assert_eq!(conns[1].info().ready_for, over.ready_for, "the clock of a life stops with it");
}
