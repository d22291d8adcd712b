//! Scenario 37: the peer is not the one whose key was given. It gets no message and no key, and waiting calls
//! return within the handshake's time, with the reason.

use std::time::Duration;

use kvconn::connection::ConnectionState;
use kvconn::error::{Error, Status};
use kvconn::events::EventKind;

use super::keys::{Pair, contains, peer};
use super::recorder::{Recorder, greeting};
use crate::common::engine::{refused, send, wait_ended};
use crate::common::load::Stopwatch;
use crate::common::{Engine, Peer, PeerOptions, ms};

const LIMIT: Duration = Duration::from_secs(10);
const MESSAGE: &[u8] = b"a message that nobody else may read";

/// Three senders wait for what will never be READY. Returns the error that they get.
#[track_caller]
fn found_out(endpoint: &str, settings: &[(&str, &str)]) -> Error {
    let mut all = vec![("handshake_timeout_ms", "1000"), ("backoff_ms", "10000"), ("backoff_max_ms", "10000")];
    all.extend(settings);
    let engine = Engine::with(&all);
    let watch = Stopwatch::start();
    let conn = engine.lazy(endpoint);
    let mut errors: Vec<Error> = std::thread::scope(|scope| {
        let sends: Vec<_> = (0..3).map(|_| scope.spawn(|| send(&conn, &[MESSAGE], LIMIT))).collect();
        sends.into_iter().map(|send| refused(send.join().unwrap(), Status::ConnectFailed)).collect()
    });
    watch.at_most(ms(1100), "finding it out");
    let info = wait_ended(&conn, LIMIT);
    assert_eq!((info.state, info.status), (ConnectionState::Ended, Status::ConnectFailed));
    assert_eq!((info.accepted, info.ready_for), (0, Duration::ZERO));
    let events = engine.events();
    assert_eq!(
        events.iter().map(|event| (event.kind, event.count)).collect::<Vec<_>>(),
        [(EventKind::ConnectFailed, 0)]
    );
    let error = errors.pop().expect("three of them");
    assert_eq!((events[0].os_errno, &events[0].message), (error.os_errno, &error.message));
    refused(engine.send_to(endpoint, &[MESSAGE], LIMIT), Status::Backoff);
    error
}

#[track_caller]
fn says(error: &Error, os_errno: i32, text: &str) {
    assert_eq!(error.os_errno, os_errno, "{}", error.message);
    assert!(error.message.contains(text), "{text:?} is not in: {}", error.message);
}

#[track_caller]
fn got_nothing(peer: &Peer) {
    let totals = peer.received();
    assert_eq!((totals.messages, totals.frames, totals.handshakes, totals.accepted), (0, 0, 0, 1));
}

#[test]
fn a_plain_peer_gets_nothing() {
    let (server, client) = (Pair::new(), Pair::new());
    for socket in ["PULL", "REP"] {
        let peer = Peer::with(PeerOptions { socket, ..PeerOptions::default() });
        says(&found_out(peer.endpoint(), &client.settings(&server)), libc::EACCES, "does not speak CURVE");
        got_nothing(&peer);
    }
}

#[test]
fn a_peer_with_another_key_gets_nothing() {
    let (server, other, client) = (Pair::new(), Pair::new(), Pair::new());
    let peer = peer(&other);
    says(&found_out(peer.endpoint(), &client.settings(&server)), libc::EACCES, "another key than curve_server_key");
    got_nothing(&peer);
}

#[test]
fn a_key_that_hides_nothing_is_found_out() {
    // The neutral point of the curve: anybody can read what is encrypted for it.
    let (server, client) = (Pair::new(), Pair::new());
    let neutral = Pair { public: "0".repeat(40), secret: server.secret.clone() };
    let peer = peer(&server);
    says(&found_out(peer.endpoint(), &client.settings(&neutral)), libc::EACCES, "curve_server_key");
    got_nothing(&peer);
}

#[test]
fn a_plain_connection_to_a_peer_that_asks_for_curve_fails() {
    let peer = peer(&Pair::new());
    let error = found_out(peer.endpoint(), &[]);
    assert!(error.message.contains("asks for CURVE"), "{}", error.message);
    got_nothing(&peer);
}

#[test]
fn a_peer_with_the_right_key_that_is_no_pull_socket_gets_nothing() {
    let (server, client) = (Pair::new(), Pair::new());
    for socket in ["REP", "SUB", "ROUTER"] {
        let options = PeerOptions { socket, curve_secret: Some(server.secret.clone()), ..PeerOptions::default() };
        let peer = Peer::with(options);
        let error = found_out(peer.endpoint(), &client.settings(&server));
        assert!(!error.message.contains("plain"), "{}", error.message);
        assert_ne!(error.os_errno, 0);
        assert_eq!((peer.received().messages, peer.received().frames), (0, 0));
    }
}

/// Whatever a listener says that is no CURVE peer, it hears a greeting, at most a HELLO, and no more.
#[test]
fn a_listener_hears_neither_a_message_nor_a_key() {
    let (server, client) = (Pair::new(), Pair::new());
    let garbled = [greeting(3, "CURVE"), b"\x04\x10garbage garbage!".to_vec()].concat();
    let welcome = [greeting(3, "CURVE"), [&[4, 168, 7][..], b"WELCOME", &[1; 160]].concat()].concat();
    // A READY before its time, which plain peers say.
    let ready = [&greeting(3, "CURVE")[..], b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PULL"].concat();
    // An ERROR of ZAP's, from a peer that has proved nothing.
    let error = [&greeting(3, "CURVE")[..], b"\x04\x0a\x05ERROR\x03400"].concat();
    const HELLO: usize = 202;
    std::thread::scope(|scope| {
        for (what, says_first, at_most, os_errno) in [
            ("nothing", Vec::new(), 64, libc::ETIMEDOUT),
            ("half a greeting", greeting(3, "CURVE")[..20].to_vec(), 64, libc::ETIMEDOUT),
            ("a plain greeting", greeting(3, "NULL"), 64, libc::EACCES),
            ("another mechanism", greeting(3, "PLAIN"), 64, libc::EACCES),
            ("a longer name", greeting(3, "CURVE2"), 64, libc::EACCES),
            ("ZMTP 2", greeting(1, ""), 64, libc::EPROTO),
            ("ZMTP 1", greeting(0, ""), 64, libc::EPROTO),
            ("ZMTP 1 without a version", vec![1, 0], 64, libc::EPROTO),
            ("HTTP", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec(), 64, libc::EPROTO),
            ("CURVE and nothing more", greeting(3, "CURVE"), 64 + HELLO, libc::ETIMEDOUT),
            ("CURVE and garbage", garbled, 64 + HELLO, libc::EPROTO),
            ("CURVE and a false WELCOME", welcome, 64 + HELLO, libc::EACCES),
            ("CURVE and READY", ready, 64 + HELLO, libc::EPROTO),
            ("CURVE and ERROR", error, 64 + HELLO, libc::EPROTO),
        ] {
            let (server, client) = (&server, &client);
            scope.spawn(move || {
                let recorder = Recorder::saying(&says_first);
                let error = found_out(&recorder.endpoint(), &client.settings(server));
                assert_eq!(error.os_errno, os_errno, "{what}: {}", error.message);
                let recorded = recorder.recorded();
                assert!(recorded.len() <= at_most, "{what}: {} bytes were sent", recorded.len());
                for trace in server.traces().into_iter().chain(client.traces()).chain([MESSAGE.to_vec()]) {
                    assert!(!contains(&recorded, &trace), "{what}: a secret was sent");
                }
            });
        }
    });
}
