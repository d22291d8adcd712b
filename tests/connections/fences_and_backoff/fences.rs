//! The table of fences: how the last connection ended, and what a call gets then.

use std::time::{Duration, Instant};

use kvconn::connection::ConnectionState;
use kvconn::error::Status;
use kvconn::events::EventKind;
use kvconn::timeout::Timeout;

use crate::common::engine::{options, refused, send, status_of, wait_ended};
use crate::common::load::within;
use crate::common::{Engine, OwnProcess, Peer, WrongPeer, closed_port, ms, own_process, tcp_traffic};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);
const AT_ONCE: Duration = ms(100);

/// `send_to` is refused for this reason without a dial.
#[track_caller]
fn fenced(engine: &Engine, peer: &Peer, status: Status) {
    let dials = peer.received().accepted;
    let error = within(AT_ONCE, "a fenced send", || refused(engine.send_to(peer.endpoint(), &[b"x"], LIMIT), status));
    assert_eq!(error.endpoint, format!("tcp://127.0.0.1:{}", peer.port()));
    refused(engine.find(peer.endpoint()), Status::NotFound);
    assert_eq!(peer.received().accepted, dials, "{status:?}, and dialled all the same");
}

#[track_caller]
fn open(engine: &Engine, peer: &Peer) {
    engine.send_to(peer.endpoint(), &[b"x"], LIMIT).expect("nothing is in the way");
}

#[test]
fn an_endpoint_whose_connection_was_lost_failed_or_disconnected_by_id_is_dialled_by_send_to() {
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let mut peer = Peer::any();
    open(&engine, &peer); // never seen

    let conn = engine.ready(peer.endpoint());
    peer.kill();
    assert_eq!(wait_ended(&conn, LIMIT).status, Status::PeerLost);
    std::thread::sleep(ms(5)); // a step
    let failed = engine.send_to(peer.endpoint(), &[b"x"], LIMIT);
    assert_eq!(status_of(&failed), Status::ConnectFailed, "lost, so it is dialled");
    peer.restart();
    std::thread::sleep(ms(5));
    open(&engine, &peer); // the dial before failed

    engine.ready(peer.endpoint()).disconnect().unwrap();
    open(&engine, &peer);
}

#[test]
fn disconnect_endpoint_fences_until_it_is_connected_or_registered() {
    let peer = Peer::any();
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    engine.disconnect_endpoint(peer.endpoint()).unwrap();
    assert_eq!(conn.info().status, Status::Disconnected);
    fenced(&engine, &peer, Status::Disconnected);
    let error = refused(engine.send_to(peer.endpoint(), &[b"x"], LIMIT), Status::Disconnected);
    for part in ["kvconn_disconnect_endpoint", "kvconn_connect", "registering it in a live node"] {
        assert!(error.message.contains(part), "{}", error.message);
    }

    let again = engine.ready(peer.endpoint()); // lifts
    assert_ne!(again.id(), conn.id());
    again.disconnect().unwrap();
    open(&engine, &peer);

    engine.disconnect_endpoint(peer.endpoint()).unwrap();
    fenced(&engine, &peer, Status::Disconnected);
    engine.node("node", &[peer.endpoint()]); // lifts, and does not dial
    refused(engine.find(peer.endpoint()), Status::NotFound);
    open(&engine, &peer);
}

#[test]
fn disconnect_all_fences_every_endpoint() {
    let peers = [Peer::any(), Peer::any()];
    let engine = Engine::new();
    engine.ready(peers[0].endpoint());
    let node = engine.node("node", &[peers[1].endpoint()]); // registered, not connected
    engine.disconnect_all(Timeout::After(LIMIT)).unwrap();
    for peer in &peers {
        fenced(&engine, peer, Status::Disconnected);
    }
    refused(engine.node_add_endpoints(node, &[peers[1].endpoint()], None), Status::Disconnected);
    engine.ready(peers[0].endpoint());
    open(&engine, &peers[0]);
    engine.node("node", &[peers[1].endpoint()]);
    open(&engine, &peers[1]);
}

#[test]
fn an_endpoint_taken_from_its_node_is_fenced() {
    let peer = Peer::any();
    let engine = Engine::new();
    let node = engine.node("node", &[peer.endpoint()]);
    let conn = engine.ready(peer.endpoint());
    engine.node_remove_endpoints(node, &[peer.endpoint()]).unwrap();
    assert_eq!(conn.info().status, Status::Disconnected);
    fenced(&engine, &peer, Status::Disconnected);
    engine.node_add_endpoints(node, &[peer.endpoint()], None).unwrap();
    open(&engine, &peer);
    engine.node_remove_endpoints(node, &[peer.endpoint()]).unwrap();
    engine.ready(peer.endpoint());
    open(&engine, &peer);
}

#[test]
fn only_a_registration_in_a_live_node_lifts_the_fence_of_a_failed_one() {
    let peer = Peer::any();
    let engine = Engine::new();
    let old = engine.node("prefill-3", &[peer.endpoint()]);
    engine.ready(peer.endpoint());
    engine.handle_failure(old, Some("no heartbeat")).unwrap();

    let check = |what: &str| {
        fenced(&engine, &peer, Status::NodeFailed);
        for settings in [&[][..], &[("connect_retry", "1")]] {
            let connect = || engine.connect_with(peer.endpoint(), settings, LIMIT);
            let error = within(AT_ONCE, "a fenced connect", || refused(connect(), Status::NodeFailed));
            for part in ["prefill-3", "no heartbeat", "registering it in a live node"] {
                assert!(error.message.contains(part), "{what}: {}", error.message);
            }
        }
        assert_eq!(peer.received().accepted, 1, "{what}");
    };
    check("failed");
    // What does not lift it, and does not weaken it.
    refused(engine.node_add_endpoints(old, &[peer.endpoint()], None), Status::NodeFailed);
    check("after a late registration in the old life");
    engine.disconnect_endpoint(peer.endpoint()).unwrap();
    check("after disconnect_endpoint");
    let (new, created) = engine.node_open("prefill-3").unwrap();
    assert!(created);
    check("after the node was opened again");
    engine.disconnect_all(Timeout::After(LIMIT)).unwrap();
    check("after disconnect_all");
    refused(engine.node_add_endpoints(new, &[peer.endpoint()], None), Status::Disconnected);
    check("after a registration in a life that was forgotten");

    engine.node("prefill-3", &[peer.endpoint()]);
    open(&engine, &peer);
}

#[test]
fn a_failed_node_fences_what_was_not_connected_and_what_was_fenced_before() {
    let peers = [Peer::any(), Peer::any()];
    let engine = Engine::new();
    let node = engine.node("node", &[peers[0].endpoint(), peers[1].endpoint()]);
    engine.disconnect_endpoint(peers[1].endpoint()).unwrap();
    engine.handle_failure(node, None).unwrap();
    for peer in &peers {
        fenced(&engine, peer, Status::NodeFailed);
        refused(engine.connect(peer.endpoint(), LIMIT), Status::NodeFailed);
        assert_eq!(peer.received().accepted, 0);
    }
}

#[test]
fn disconnecting_an_unknown_endpoint_succeeds_and_fences_it() {
    let peer = Peer::any();
    let engine = Engine::new();
    for _ in 0..2 {
        within(AT_ONCE, "disconnect", || engine.disconnect_endpoint(peer.endpoint()).expect("unknown is no error"));
    }
    fenced(&engine, &peer, Status::Disconnected);
    assert_eq!(peer.received().accepted, 0);
    assert!(engine.events().is_empty(), "nothing ended, so nothing is reported");
    engine.ready(peer.endpoint());
}

#[test]
fn disconnecting_twice_is_no_error_and_reported_once() {
    let peer = Peer::any();
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    for _ in 0..2 {
        conn.disconnect().unwrap();
        engine.disconnect_endpoint(peer.endpoint()).unwrap();
    }
    assert_eq!(engine.events_of(EventKind::Disconnected).len(), 1);
    fenced(&engine, &peer, Status::Disconnected);
}

#[test]
fn disconnecting_an_old_life_leaves_its_successor_and_its_endpoint_alone() {
    let mut peer = Peer::any();
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let first = engine.ready(peer.endpoint());
    first.disconnect().unwrap();
    let second = engine.ready(peer.endpoint());
    peer.restart();
    assert_eq!(wait_ended(&second, LIMIT).status, Status::PeerLost);
    std::thread::sleep(ms(5));
    let third = engine.ready(peer.endpoint());

    first.disconnect().unwrap();
    second.disconnect().unwrap();
    assert_eq!(third.info().state, ConnectionState::Ready);
    assert_eq!(second.info().status, Status::PeerLost, "the first ending is the one that counts");
    send(&third, &[b"x"], LIMIT).expect("the successor goes on");
    peer.wait_received(1, LIMIT);
    assert_eq!(engine.find(peer.endpoint()).unwrap(), third.id());
    for old in [&first, &second] {
        refused(send(old, &[b"late"], LIMIT), old.info().status);
    }
    assert_eq!(peer.received().messages, 1);
}

#[test]
fn fences_are_kept_for_the_newest() {
    let peers: Vec<Peer> = (0..5).map(|_| Peer::any()).collect();
    let engine = Engine::with(&[("max_fences", "3")]);
    let fence = |place: usize| engine.disconnect_endpoint(peers[place].endpoint()).unwrap();
    (0..3).for_each(fence);
    fence(0); // once more: now it is the newest
    fence(3);
    open(&engine, &peers[1]); // the oldest is forgotten
    for place in [0, 2, 3] {
        fenced(&engine, &peers[place], Status::Disconnected);
    }
    // What is connected or registered has no place among them.
    engine.ready(peers[0].endpoint());
    fence(4);
    for place in [2, 3, 4] {
        fenced(&engine, &peers[place], Status::Disconnected);
    }
}

/// Scenario 7: another program takes the port of a peer that was given up.
fn a_listener_on_the_old_port_sees_no_connection(end: impl Fn(&Engine), status: Status, connect_too: bool) {
    let peer = Peer::any();
    let engine = Engine::new();
    engine.node("node", &[peer.endpoint()]);
    engine.ready(peer.endpoint());
    end(&engine);
    peer.kill();
    let listener = WrongPeer::mute_on(peer.port());
    let until = Instant::now() + Duration::from_secs(2);
    let retry = options(&[("connect_retry", "1")]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (engine, listener, retry) = (&engine, &listener, &retry);
            scope.spawn(move || {
                while Instant::now() < until {
                    refused(engine.send_to(&listener.endpoint(), &[b"ABORT"], LIMIT), status);
                    if connect_too {
                        let options = (thread == 0).then_some(retry);
                        let wait = Timeout::After(LIMIT);
                        refused(engine.manager().connect(&listener.endpoint(), options, wait), status);
                    }
                    std::thread::sleep(ms(1));
                }
            });
        }
    });
    assert_eq!(listener.connections(), 0);
}

#[test]
fn after_a_disconnect_or_a_failure_a_listener_on_the_old_port_sees_no_connection() {
    let by_endpoint = |engine: &Engine| {
        let conn = crate::common::engine::connection(engine.connections()[0]);
        engine.disconnect_endpoint(conn.endpoint().as_str()).unwrap();
    };
    let by_failure = |engine: &Engine| {
        engine.handle_failure(engine.node_find("node").unwrap(), Some("gone")).map(drop).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| a_listener_on_the_old_port_sees_no_connection(by_endpoint, Status::Disconnected, false));
        scope.spawn(|| a_listener_on_the_old_port_sees_no_connection(by_failure, Status::NodeFailed, true));
    });
}

#[test]
fn a_fenced_endpoint_gets_not_one_packet() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let peers = [Peer::any(), Peer::any()];
    let engine = Engine::new();
    engine.node("node", &[peers[0].endpoint()]);
    peers.iter().for_each(|peer| drop(engine.ready(peer.endpoint())));
    engine.handle_failure(engine.node_find("node").unwrap(), None).unwrap();
    engine.disconnect_endpoint(peers[1].endpoint()).unwrap();
    for peer in &peers {
        peer.wait_for("the peer saw the end", LIMIT, |totals| totals.disconnected == 1);
    }
    let gone = closed_port();
    engine.disconnect_endpoint(&gone.endpoint()).unwrap();
    // The last acknowledgements of what was closed.
    std::thread::sleep(ms(100));
    let before = tcp_traffic();
    let until = Instant::now() + ms(1500);
    while Instant::now() < until {
        refused(engine.send_to(peers[0].endpoint(), &[b"x"], LIMIT), Status::NodeFailed);
        refused(engine.connect(peers[0].endpoint(), LIMIT), Status::NodeFailed);
        refused(engine.send_to(peers[1].endpoint(), &[b"x"], LIMIT), Status::Disconnected);
        refused(engine.send_to(&gone.endpoint(), &[b"x"], LIMIT), Status::Disconnected);
        std::thread::sleep(ms(1));
    }
    assert_eq!(tcp_traffic(), before);
    // The counters do count: one dial of the refused port.
    refused(engine.connect(&gone.endpoint(), LIMIT), Status::ConnectFailed);
    assert_eq!(tcp_traffic().dials, before.dials + 1);
}
