//! Scenario 40: an endpoint that was connected or registered with CURVE is never dialled plain, by any call.

use std::time::Duration;

use kvconn::error::Status;

use super::keys::{Pair, QUICK, peer, peer_at};
use crate::common::engine::{connection, options, refused, send, status_of, wait_ended};
use crate::common::{Engine, Peer, WrongPeer, ms};

const LIMIT: Duration = Duration::from_secs(10);

/// Sends until a dial is made, and the result of that.
fn send_to(engine: &Engine, endpoint: &str) -> kvconn::error::Result<u64> {
    loop {
        match engine.send_to(endpoint, &[b"secret"], LIMIT) {
            Err(error) if error.status == Status::Backoff => std::thread::sleep(ms(2)),
            result => return result.map(|(_, sequence)| sequence),
        }
    }
}

/// A plain peer is now where the endpoint was connected with CURVE. Whatever `dial` does, it gets nothing; and once
/// the true peer is back, all is well.
#[track_caller]
fn never_plain(what: &str, dial: impl Fn(&Engine, &str)) {
    let (server, client) = (Pair::new(), Pair::new());
    let true_peer = peer(&server);
    let endpoint = true_peer.endpoint().to_string();
    let engine = Engine::with(&QUICK);
    let conn = engine.ready_with(&endpoint, &client.settings(&server));
    send(&conn, &[b"secret"], LIMIT).expect("accepted");
    true_peer.wait_received(1, LIMIT);
    true_peer.kill();
    wait_ended(&conn, LIMIT);

    let plain = Peer::bind(&endpoint);
    dial(&engine, &endpoint);
    for _ in 0..3 {
        let error = refused(send_to(&engine, &endpoint), Status::ConnectFailed);
        assert_eq!(error.os_errno, libc::EACCES, "{what}: {}", error.message);
    }
    let totals = plain.received();
    assert!(totals.accepted >= 3, "{what}: only {} dials", totals.accepted);
    assert_eq!((totals.handshakes, totals.messages), (0, 0), "{what}: the plain peer got something");
    plain.kill();

    let true_peer = peer_at(&server, &endpoint);
    send_to(&engine, &endpoint).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    true_peer.wait_received(1, LIMIT);
}

#[test]
fn a_redial_by_send_to_is_encrypted() {
    never_plain("send_to", |_, _| {});
}

#[test]
fn a_redial_by_connect_is_encrypted() {
    let connect = |engine: &Engine, endpoint: &str, settings: &[(&str, &str)]| loop {
        let given = options(settings);
        let given = (!settings.is_empty()).then_some(&given);
        let result = engine.manager().connect(endpoint, given, crate::common::engine::after(LIMIT));
        match status_of(&result) {
            Status::Backoff => std::thread::sleep(ms(2)),
            _ => break refused(result, Status::ConnectFailed),
        };
    };
    never_plain("connect without options", |engine, endpoint| drop(connect(engine, endpoint, &[])));
    // Options that say nothing of CURVE do not take it away.
    never_plain("connect with other options", |engine, endpoint| {
        drop(connect(engine, endpoint, &[("send_hwm", "5")]));
    });
    never_plain("connect_retry alone", |engine, endpoint| {
        let result = engine.connect_with(endpoint, &[("connect_retry", "1")], ms(100));
        refused(result, Status::Timeout);
    });
}

#[test]
fn fences_and_new_lives_of_nodes_do_not_take_it_away() {
    never_plain("a fence that connect lifts", |engine, endpoint| {
        engine.disconnect_endpoint(endpoint).expect("fenced");
        refused(engine.connect(endpoint, LIMIT), Status::ConnectFailed);
    });
    never_plain("a node that fails and is opened again", |engine, endpoint| {
        let node = engine.node("n", &[endpoint]);
        drop(engine.handle_failure(node, None).expect("live"));
        engine.node("n", &[endpoint]);
    });
    never_plain("a registration with other options", |engine, endpoint| {
        let node = engine.node("n", &[]);
        engine.node_add_endpoints(node, &[endpoint], Some(&options(&[("send_hwm", "5")]))).expect("registered");
    });
}

#[test]
fn the_first_dial_of_a_registered_endpoint_is_encrypted() {
    let (server, client) = (Pair::new(), Pair::new());
    let (encrypted, plain) = (peer(&server), Peer::any());
    let engine = Engine::with(&QUICK);
    let node = engine.node("n", &[]);
    let keys = options(&client.settings(&server));
    engine.node_add_endpoints(node, &[encrypted.endpoint(), plain.endpoint()], Some(&keys)).expect("registered");
    send_to(&engine, encrypted.endpoint()).expect("sent");
    encrypted.wait_received(1, LIMIT);
    refused(send_to(&engine, plain.endpoint()), Status::ConnectFailed);
    assert_eq!((plain.received().handshakes, plain.received().messages), (0, 0));
}

/// A connect with keys that gets the live connection has connected with these keys.
#[test]
fn keys_that_agree_with_the_live_connection_are_remembered() {
    let (server, client) = (Pair::new(), Pair::new());
    let true_peer = peer(&server);
    let endpoint = true_peer.endpoint().to_string();
    let engine = Engine::with(&QUICK);
    let keys = client.settings(&server);
    engine.configure(&options(&keys)).expect("configured");
    let conn = engine.ready(&endpoint);
    assert_eq!(engine.ready_with(&endpoint, &keys).id(), conn.id());
    let none = keys.map(|(name, _)| (name, ""));
    engine.configure(&options(&none)).expect("configured");
    conn.disconnect().expect("ended");
    send_to(&engine, &endpoint).expect("redialled with the keys");
    true_peer.wait_received(1, LIMIT);
}

/// The other direction is as strict: plain must be asked for, by the empty text.
#[test]
fn plain_after_curve_must_be_asked_for() {
    let (server, client) = (Pair::new(), Pair::new());
    let plain = Peer::any();
    let engine = Engine::with(&QUICK);
    let error = refused(engine.connect_with(plain.endpoint(), &client.settings(&server), LIMIT), Status::ConnectFailed);
    assert_eq!(error.os_errno, libc::EACCES);
    std::thread::sleep(ms(5)); // longer than the backoff
    let conn = engine.ready_with(plain.endpoint(), &[("curve_server_key", "")]);
    send(&conn, &[b"not secret"], LIMIT).expect("accepted");
    plain.wait_received(1, LIMIT);
}

/// A dial that began plain is not used when keys were registered before it was made.
#[test]
fn keys_registered_while_others_dial_are_not_missed() {
    let (server, client) = (Pair::new(), Pair::new());
    let keys = options(&client.settings(&server));
    for _ in 0..100 {
        let mute = WrongPeer::mute();
        let engine = Engine::new();
        let node = engine.node("n", &[]);
        let endpoint = mute.endpoint();
        let registered = std::thread::scope(|scope| {
            let dialling = scope.spawn(|| engine.connect(&endpoint, Duration::ZERO).expect("dialled"));
            let registered = engine.node_add_endpoints(node, &[&endpoint], Some(&keys));
            dialling.join().unwrap();
            registered
        });
        let id = engine.find(&endpoint).expect("being dialled");
        // Either the dial was first, and the registration is in conflict with it; or it has the keys.
        let agrees = engine.connect_with(&endpoint, &client.settings(&server), Duration::ZERO);
        match &registered {
            Ok(()) => assert_eq!(agrees.expect("no conflict"), id),
            Err(error) => {
                assert_eq!(error.status, Status::Conflict);
                refused(agrees, Status::Conflict);
            }
        }
        connection(id).disconnect().expect("ended");
    }
}
