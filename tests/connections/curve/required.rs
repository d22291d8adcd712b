//! Keys that contradict each other, CONFLICT, and require_curve.

use std::time::Duration;

use kvconn::connection::ConnectionState;
use kvconn::error::Status;
use kvconn::process::Process;

use super::keys::{Pair, QUICK, peer};
use crate::common::engine::{options, refused, send};
use crate::common::{Engine, Peer, WrongPeer, ms};

const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn incomplete_and_mixed_up_keys_are_invalid_everywhere_and_dial_nothing() {
    let (server, client, other) = (Pair::new(), Pair::new(), Pair::new());
    let [server_key, public_key, secret_key] = client.settings(&server);
    let engine = Engine::new();
    let mute = WrongPeer::mute();
    let endpoint = mute.endpoint();
    let node = engine.node("n", &[]);
    let refuse = |settings: &[(&str, &str)], text: &str| {
        let given = options(settings);
        for error in [
            refused(engine.connect_with(&endpoint, settings, LIMIT), Status::Invalid),
            refused(engine.node_add_endpoints(node, &[&endpoint], Some(&given)), Status::Invalid),
        ] {
            assert!(error.message.contains(text), "{text:?} is not in: {}", error.message);
            assert_eq!(error.endpoint, endpoint);
        }
    };
    let configure = |settings: &[(&str, &str)], text: &str| {
        let process = Process::current().expect("a process");
        for error in [
            refused(engine.configure(&options(settings)), Status::Invalid),
            refused(process.create_manager(Some(&options(settings))), Status::Invalid),
        ] {
            assert!(error.message.contains(text), "{text:?} is not in: {}", error.message);
        }
    };
    for (settings, text) in [
        (&[server_key][..], "no curve_public_key"),
        (&[server_key, public_key], "no curve_secret_key"),
        (&[server_key, secret_key], "no curve_public_key"),
        (&[server_key, public_key, ("curve_secret_key", &other.secret)], "not made together"),
        (&[public_key, ("curve_secret_key", &other.secret)], "not made together"),
        (
            &[server_key, ("curve_public_key", &client.secret), ("curve_secret_key", &client.public)],
            "not made together",
        ),
    ] {
        refuse(settings, text);
        configure(settings, text);
    }
    // A client's keys alone are a mistake for a connection; configured, they wait for the server's keys to come.
    refuse(&[public_key, secret_key], "no curve_server_key");
    engine.configure(&options(&[public_key, secret_key])).expect("configured");
    assert_eq!((mute.connections(), engine.connections().len()), (0, 0));
    assert_eq!(engine.node_info(node).expect("live").endpoints, 0);

    let peers = [peer(&server), peer(&other)];
    for (peer, pair) in peers.iter().zip([&server, &other]) {
        let conn = engine.ready_with(peer.endpoint(), &[("curve_server_key", &pair.public)]);
        send(&conn, &[b"x"], LIMIT).expect("accepted");
        peer.wait_received(1, LIMIT);
    }
}

#[test]
fn other_keys_than_the_live_connections_are_a_conflict() {
    let (server, client, other) = (Pair::new(), Pair::new(), Pair::new());
    let (encrypted, plain) = (peer(&server), Peer::any());
    let engine = Engine::new();
    let live = engine.ready_with(encrypted.endpoint(), &client.settings(&server));
    let in_clear = engine.ready(plain.endpoint());
    let keys = client.settings(&server);
    for (settings, text) in [
        (client.settings(&other), "another curve_server_key"),
        (other.settings(&server), "another curve_public_key"),
        ([("curve_server_key", ""), keys[1], keys[2]], "another curve_server_key"),
    ] {
        let error = refused(engine.connect_with(encrypted.endpoint(), &settings, LIMIT), Status::Conflict);
        assert!(error.message.contains(text), "{}", error.message);
        assert_eq!(error.conn, live.id());
    }
    let error = refused(engine.connect_with(plain.endpoint(), &keys, LIMIT), Status::Conflict);
    assert!(error.message.contains("no curve_server_key"), "{}", error.message);
    let node = engine.node("n", &[]);
    let registering = engine.node_add_endpoints(node, &[plain.endpoint()], Some(&options(&keys)));
    assert_eq!(refused(registering, Status::Conflict).conn, in_clear.id());
    // What agrees is none, and both go on.
    assert_eq!(engine.connect_with(encrypted.endpoint(), &keys, LIMIT).expect("the same"), live.id());
    for (conn, peer) in [(live, &encrypted), (in_clear, &plain)] {
        send(&conn, &[b"x"], LIMIT).expect("accepted");
        assert_eq!(peer.wait_received(1, LIMIT).accepted, 1);
    }
}

#[test]
fn where_curve_is_required_nothing_is_dialled_plain() {
    let (server, client) = (Pair::new(), Pair::new());
    let mute = WrongPeer::mute();
    let endpoint = mute.endpoint();
    let engine = Engine::with(&[QUICK[0], QUICK[1], ("require_curve", "1")]);
    let keys = client.settings(&server);
    let refuse = |what: &str, result: Result<String, kvconn::error::Error>| {
        let error = refused(result, Status::Invalid);
        assert!(error.message.contains("require_curve"), "{what}: {}", error.message);
        assert_eq!(error.endpoint, endpoint, "{what}");
    };
    let told = |id: kvconn::ids::ConnId| format!("connection {id}");
    refuse("connect", engine.connect(&endpoint, LIMIT).map(told));
    refuse("connect_with", engine.connect_with(&endpoint, &[("send_hwm", "5")], LIMIT).map(told));
    refuse("connect_retry", engine.connect_with(&endpoint, &[("connect_retry", "1")], LIMIT).map(told));
    refuse("plain asked for", engine.connect_with(&endpoint, &[("curve_server_key", "")], LIMIT).map(told));
    refuse("send_to", engine.send_to(&endpoint, &[b"x"], LIMIT).map(|(id, _)| told(id)));
    engine.node("n", &[&endpoint]);
    refuse("send_to a registered one", engine.send_to(&endpoint, &[b"x"], LIMIT).map(|(id, _)| told(id)));
    assert_eq!((mute.connections(), engine.events().len()), (0, 0));

    // With keys of its own, remembered ones, and configured ones.
    let peer = peer(&server);
    let conn = engine.ready_with(peer.endpoint(), &keys);
    conn.disconnect().expect("ended");
    engine.send_to(peer.endpoint(), &[b"x"], LIMIT).expect("remembered");
    peer.wait_received(1, LIMIT);
    let configured = Engine::with(&[("require_curve", "1"), keys[0], keys[1], keys[2]]);
    configured.send_to(peer.endpoint(), &[b"x"], LIMIT).expect("configured");
    peer.wait_received(2, LIMIT);
}

#[test]
fn requiring_curve_later_ends_no_live_connection_and_permits_no_plain_redial() {
    let plain = Peer::any();
    let engine = Engine::with(&QUICK);
    let conn = engine.ready(plain.endpoint());
    engine.configure(&options(&[("require_curve", "1")])).expect("configured");
    assert_eq!(conn.info().state, ConnectionState::Ready);
    engine.send_to(plain.endpoint(), &[b"x"], LIMIT).expect("live");
    plain.wait_received(1, LIMIT);
    conn.disconnect().expect("ended");
    std::thread::sleep(ms(5)); // longer than the backoff
    refused(engine.send_to(plain.endpoint(), &[b"x"], LIMIT), Status::Invalid);
    refused(engine.connect(plain.endpoint(), LIMIT), Status::Invalid);
    assert_eq!(plain.received().accepted, 1);
}
