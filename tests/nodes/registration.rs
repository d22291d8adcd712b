//! Registering endpoints with nodes and taking them away: dials, fences, backoff, remembered options.

use std::time::{Duration, Instant};

use crate::common::engine::{
    LARGE, after, canonical, connection, narrow_peer, options, own_address, refused, wait_ended, waiting_senders,
};
use crate::common::load::within;
use crate::common::{Engine, Peer, WrongPeer, closed_port, ms, wait_until};
use kvconn::connection::ConnectionState;
use kvconn::error::Status;
use kvconn::ids::ConnId;

const LONG: Duration = Duration::from_secs(10);

#[test]
fn registering_dials_nothing() {
    let (quiet, peer) = (WrongPeer::mute(), Peer::any());
    let engine = Engine::new();
    let node = engine.node("n", &[&quiet.endpoint(), peer.endpoint()]);
    assert_eq!(engine.connections(), []);
    refused(engine.find(&quiet.endpoint()), Status::NotFound);
    // Whatever registering might have begun has been dialled before this one.
    let conn = engine.ready(peer.endpoint());
    engine.send(&conn, &[b"x"], ms(1000)).expect("sent");
    peer.wait_received(1, LONG);
    assert_eq!(engine.connections(), [conn.id()]);
    assert_eq!(quiet.connections(), 0);
    assert_eq!(engine.node_info(node).expect("live").endpoints, 2);
}

#[test]
fn registering_the_same_endpoint_twice_is_the_same_as_once() {
    let engine = Engine::new();
    let node = engine.node("n", &["tcp://127.0.0.1:9", "tcp://127.0.0.1:9", "tcp://[::ffff:127.0.0.1]:9"]);
    engine.node_add_endpoints(node, &["tcp://127.0.0.1:9"], None).expect("a live node");
    engine.node_add_endpoints(node, &[], None).expect("nothing is nothing");
    assert_eq!(engine.node_info(node).expect("live").endpoints, 1);
    let failure = engine.handle_failure(node, None).expect("live");
    assert_eq!(failure.endpoints.len(), 1);
}

/// What fails leaves no trace: no owner, and no fence lifted.
#[test]
fn registering_is_all_or_nothing() {
    let peer = Peer::any();
    let engine = Engine::with(&[("max_endpoints", "12")]);
    let node = engine.node("n", &[]);
    let fenced = closed_port().endpoint();
    engine.disconnect_endpoint(&fenced).expect("fencing");
    let others: Vec<String> = (1..10).map(|port| format!("tcp://127.0.0.1:{port}")).collect();
    let untouched = |what: &str| {
        assert_eq!(engine.node_info(node).expect("live").endpoints, 0, "{what}: some were registered");
        refused(engine.send_to(&fenced, &[b"x"], ms(10)), Status::Disconnected);
    };
    let with_the_fenced = |last: &str, settings: &[(&str, &str)]| {
        let mut all = vec![fenced.as_str()];
        all.extend(others[..8].iter().map(String::as_str));
        all.push(last);
        engine.node_add_endpoints(node, &all, Some(&options(settings)))
    };

    for malformed in ["tcp://127.0.0.1:99999", "", "udp://127.0.0.1:9", "tcp://127.0.0.1", "tcp://*:5"] {
        let error = refused(with_the_fenced(malformed, &[]), Status::Invalid);
        assert_eq!(error.endpoint, malformed, "the error names the endpoint");
        untouched(malformed);
    }
    for setting in [("max_nodes", "5"), ("io_threads", "2"), ("connect_retry", "1")] {
        let error = refused(with_the_fenced(&others[8], &[setting]), Status::Invalid);
        assert!(error.message.contains(setting.0), "{}", error.message);
        untouched(setting.0);
    }

    // A live connection has another value than these options.
    let conn = engine.ready_with(peer.endpoint(), &[("send_hwm", "7")]);
    let error = refused(with_the_fenced(peer.endpoint(), &[("send_hwm", "8")]), Status::Conflict);
    assert!(error.message.contains("send_hwm = 7"), "{}", error.message);
    assert_eq!(error.conn, conn.id());
    untouched("CONFLICT");

    // One is in use, nine more fit; ten do not. The fenced one is not in use.
    let mut all: Vec<&str> = others.iter().map(String::as_str).collect();
    all.extend([fenced.as_str(), "tcp://127.0.0.1:10", "tcp://127.0.0.1:11"]);
    let error = refused(engine.node_add_endpoints(node, &all, None), Status::Limit);
    for part in ["max_endpoints is 12", "1 are connected or registered"] {
        assert!(error.message.contains(part), "{part} is not in: {}", error.message);
    }
    untouched("LIMIT");
    // What is in use already, or named twice, needs no place.
    let all: Vec<&str> = all[..11].iter().copied().chain([peer.endpoint(), all[0]]).collect();
    engine.node_add_endpoints(node, &all, None).expect("just enough room");
    assert_eq!(engine.node_info(node).expect("live").endpoints, 12);
    let error = refused(engine.connect("tcp://127.0.0.1:11", Duration::ZERO), Status::Limit);
    assert!(error.message.contains("max_endpoints is 12"), "{}", error.message);

    // All of that has not touched the live connection.
    engine.send(&conn, &[b"x"], ms(1000)).expect("sent");
    peer.wait_received(1, LONG);
}

#[test]
fn registering_lifts_both_kinds_of_fence() {
    let peers = [Peer::any(), Peer::any()];
    let [by_disconnect, by_failure] = [peers[0].endpoint(), peers[1].endpoint()];
    let engine = Engine::new();
    let old = engine.node("n", &[by_disconnect, by_failure]);
    engine.ready(by_disconnect);
    engine.disconnect_endpoint(by_disconnect).expect("fencing");
    refused(engine.send_to(by_disconnect, &[b"x"], ms(1000)), Status::Disconnected);
    engine.node_add_endpoints(old, &[by_disconnect], None).expect("live");
    engine.send_to(by_disconnect, &[b"1"], ms(5000)).expect("the fence is lifted");

    drop(engine.handle_failure(old, Some("gone")).expect("live"));
    for endpoint in [by_disconnect, by_failure] {
        refused(engine.send_to(endpoint, &[b"x"], ms(1000)), Status::NodeFailed);
        refused(engine.connect(endpoint, ms(1000)), Status::NodeFailed);
    }
    let new = engine.node("n", &[by_failure]);
    engine.send_to(by_failure, &[b"2"], ms(5000)).expect("the fence is lifted");
    refused(engine.send_to(by_disconnect, &[b"x"], ms(1000)), Status::NodeFailed);
    engine.node_add_endpoints(new, &[by_disconnect], None).expect("live");
    engine.ready(by_disconnect);
    peers[0].wait_received(1, LONG);
    assert_eq!(peers[1].wait_received(1, LONG).accepted, 1);
}

/// Nothing but a registration in a live life lifts it, and nothing weakens it.
#[test]
fn a_failed_nodes_fence_is_lifted_by_a_registration_alone_and_names_its_cause() {
    let peer = WrongPeer::mute();
    let endpoint = peer.endpoint();
    let engine = Engine::new();
    let old = engine.node("prefill-0", &[&endpoint]);
    drop(engine.handle_failure(old, Some("xid 79")).expect("live"));
    let fenced = |what: &str| {
        for error in [
            refused(engine.send_to(&endpoint, &[b"x"], ms(1000)), Status::NodeFailed),
            refused(engine.connect(&endpoint, ms(1000)), Status::NodeFailed),
            refused(engine.connect_with(&endpoint, &[("connect_retry", "1")], ms(1000)), Status::NodeFailed),
        ] {
            for part in ["prefill-0", "xid 79", &format!("life {old}"), " s ago", "registering it in a live node lifts"]
            {
                assert!(error.message.contains(part), "{what}: {part:?} is not in: {}", error.message);
            }
            assert_eq!(error.endpoint, endpoint);
        }
    };
    fenced("handle_failure");
    engine.disconnect_endpoint(&endpoint).expect("a weaker fence");
    fenced("disconnect_endpoint");
    engine.node("prefill-0", &[]);
    fenced("node_open");
    refused(engine.node_add_endpoints(old, &[&endpoint], None), Status::NodeFailed);
    fenced("a registration in the life that is over");
    engine.node_remove_endpoints(engine.node("prefill-0", &[]), &[&endpoint]).expect("not its endpoint");
    fenced("a removal by a node that does not own it");
    engine.disconnect_all(after(Duration::ZERO)).ok();
    fenced("disconnect_all");
    assert_eq!(peer.connections(), 0, "a fenced endpoint was dialled");

    engine.node("another", &[&endpoint]);
    engine.lazy(&endpoint);
    wait_until("it is dialled", LONG, || peer.connections() == 1);
}

/// Guarantee 3: a new life's registration restarts the backoff, and only once.
#[test]
fn registering_a_hundred_times_in_a_life_permits_one_more_dial() {
    let peer = WrongPeer::closing();
    let endpoint = peer.endpoint();
    let engine = Engine::with(&[("backoff_ms", "60000"), ("backoff_max_ms", "60000")]);
    let mut dials = 0;
    let mut one_dial = |what: &str| {
        refused(engine.connect(&endpoint, LONG), Status::ConnectFailed);
        refused(engine.connect(&endpoint, LONG), Status::Backoff);
        let error = refused(engine.send_to(&endpoint, &[b"x"], ms(1000)), Status::Backoff);
        let wait = error.retry_after.unwrap_or_default();
        assert!(wait > Duration::from_secs(50) && wait <= Duration::from_secs(75), "{what}: {wait:?}");
        dials += 1;
        assert_eq!(peer.connections(), dials, "{what}");
    };
    one_dial("the first");
    let node = engine.node("n", &[&endpoint]);
    one_dial("after the registration");
    for _ in 0..100 {
        engine.node_add_endpoints(node, &[&endpoint], None).expect("live");
        refused(engine.connect(&endpoint, LONG), Status::Backoff);
    }
    // Nor does taking it away and registering it again, or registering it together with others.
    engine.node_remove_endpoints(node, &[&endpoint]).expect("live");
    engine.node_add_endpoints(node, &["tcp://127.0.0.1:9", &endpoint], None).expect("live");
    refused(engine.connect(&endpoint, LONG), Status::Backoff);
    drop(engine.handle_failure(node, None).expect("live"));
    engine.node("n", &[&endpoint]);
    one_dial("after the registration in a new life");
    engine.node("m", &[&endpoint]);
    one_dial("after the registration in another new life");
}

#[test]
fn send_to_dials_with_the_options_of_the_registration() {
    let (peer, mute) = (Peer::bind(&format!("tcp://{}:0", own_address())), WrongPeer::mute());
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let node = engine.node("n", &[]);
    let given = options(&[("send_hwm", "7"), ("handshake_timeout_ms", "100")]);
    engine.node_add_endpoints(node, &[peer.endpoint(), &mute.endpoint()], Some(&given)).expect("live");
    let value = |conn| {
        let error = refused(engine.connect_with(peer.endpoint(), &[("send_hwm", "8")], ms(1000)), Status::Conflict);
        assert_eq!(error.conn, conn);
        error.message
    };
    let (conn, _) = engine.send_to(peer.endpoint(), &[b"1"], ms(5000)).expect("sent");
    assert!(value(conn).contains("send_hwm = 7"));
    // The redial of a connection that is lost, and a registration without options, keep them.
    peer.flap();
    wait_ended(&connection(conn), LONG);
    engine.node_add_endpoints(node, &[peer.endpoint()], None).expect("live");
    let mut next = ConnId::NONE;
    wait_until("the peer can be dialled again", LONG, || match engine.send_to(peer.endpoint(), &[b"2"], ms(5000)) {
        Ok((again, _)) => {
            next = again;
            true
        }
        Err(_) => false,
    });
    assert_ne!(next, conn);
    assert!(value(next).contains("send_hwm = 7"));

    // The setting acts: by default this would take three seconds.
    for _ in 0..2 {
        let failed = within(Duration::from_secs(2), "a handshake of 100 ms at the most", || {
            engine.send_to(&mute.endpoint(), &[b"x"], LONG)
        });
        refused(failed, Status::ConnectFailed);
        std::thread::sleep(ms(5)); // longer than the backoff
    }
    // New options of a later registration take the place of the old.
    let conn = engine.find(peer.endpoint()).expect("live");
    connection(conn).disconnect().expect("ended");
    let given = options(&[("send_hwm", "9")]);
    engine.node_add_endpoints(node, &[peer.endpoint()], Some(&given)).expect("live");
    let (conn, _) = engine.send_to(peer.endpoint(), &[b"3"], ms(5000)).expect("sent");
    assert!(value(conn).contains("send_hwm = 9"));
}

#[test]
fn an_endpoint_that_is_removed_is_disconnected_and_fenced() {
    let peer = narrow_peer(3);
    let [removed, kept, foreign] = &peer.endpoints() else { panic!("three endpoints") };
    let engine = Engine::with(&[("send_hwm", "4")]);
    let node = engine.node("n", &[removed, kept]);
    let conns = [removed, kept, foreign].map(|endpoint| engine.ready(endpoint));
    peer.stop();
    let filled = engine.fill(&conns[0], LARGE);
    let senders = waiting_senders(&conns[0], 2);
    let begun = Instant::now();
    let removing = || engine.node_remove_endpoints(node, &[removed, foreign, "tcp://127.0.0.1:9"]);
    within(ms(100), "removing", removing).expect("live");
    for result in senders.return_within(ms(200), begun) {
        refused(result, Status::Disconnected);
    }
    let info = conns[0].info();
    assert_eq!((info.state, info.status, info.accepted), (ConnectionState::Ended, Status::Disconnected, filled));
    assert!(info.message.contains("kvconn_node_remove_endpoints"), "{}", info.message);
    refused(engine.send(&conns[0], &[b"x"], ms(1000)), Status::Disconnected);
    let error = refused(engine.send_to(removed, &[b"x"], ms(1000)), Status::Disconnected);
    assert!(error.message.contains("kvconn_node_remove_endpoints"), "{}", error.message);

    // The one that stays and the one that was never the node's go on; the unknown one is not fenced.
    for conn in &conns[1..] {
        assert_eq!(conn.info().state, ConnectionState::Ready);
    }
    assert_eq!(engine.node_info(node).expect("live").endpoints, 1);
    engine.connect("tcp://127.0.0.1:9", Duration::ZERO).expect("no fence");
    peer.resume();
    for conn in &conns[1..] {
        engine.send(conn, &[b"x"], ms(5000)).expect("sent");
    }
    // A connect lifts it.
    assert_ne!(engine.ready(removed).id(), conns[0].id());
    engine.send_to(removed, &[b"x"], ms(5000)).expect("the fence is lifted");
    // What was removed is not the node's any more.
    let failure = engine.handle_failure(node, None).expect("live");
    let listed: Vec<&str> = failure.endpoints.iter().map(|failed| failed.endpoint.as_str()).collect();
    assert_eq!(listed, [canonical(kept)]);
    engine.send_to(removed, &[b"x"], ms(5000)).expect("not touched by the failure");
}

#[test]
fn an_endpoint_that_another_live_node_owns_stays_connected_when_one_removes_it() {
    let peer = Peer::any();
    let engine = Engine::new();
    let (a, b) = (engine.node("a", &[peer.endpoint()]), engine.node("b", &[peer.endpoint()]));
    let conn = engine.ready(peer.endpoint());
    engine.node_remove_endpoints(a, &[peer.endpoint()]).expect("live");
    engine.send(&conn, &[b"1"], ms(1000)).expect("b still owns it");
    engine.node_remove_endpoints(a, &[peer.endpoint()]).expect("it was not a's");
    engine.send_to(peer.endpoint(), &[b"2"], ms(1000)).expect("b still owns it");
    peer.wait_received(2, LONG);
    engine.node_remove_endpoints(b, &[peer.endpoint()]).expect("live");
    refused(engine.send(&conn, &[b"3"], ms(1000)), Status::Disconnected);
    refused(engine.send_to(peer.endpoint(), &[b"3"], ms(1000)), Status::Disconnected);
    assert_eq!(engine.find(peer.endpoint()).unwrap_or(ConnId::NONE), ConnId::NONE);
    assert_eq!(peer.received().messages, 2);
}
