//! Another service at the port: it is found out within the handshake's time, and gets no message.

use std::time::Duration;

use kvconn::error::Status;
use kvconn::events::EventKind;

use crate::common::engine::{refused, send, wait_ended, wait_waiting};
use crate::common::load::Stopwatch;
use crate::common::{Engine, Peer, PeerOptions, WrongPeer, ms};

const LIMIT: Duration = Duration::from_secs(10);
const HANDSHAKE: Duration = ms(400);

/// Scenario 30. Three senders wait for what will never be READY. Returns what the dial's failure says.
#[track_caller]
fn found_out(endpoint: &str) -> String {
    let engine = Engine::with(&[("handshake_timeout_ms", "400"), ("backoff_ms", "10000"), ("backoff_max_ms", "10000")]);
    let watch = Stopwatch::start();
    let conn = engine.lazy(endpoint);
    std::thread::scope(|scope| {
        let sends: Vec<_> = (0..3).map(|_| scope.spawn(|| send(&conn, &[b"secret"], LIMIT))).collect();
        for send in sends {
            refused(send.join().unwrap(), Status::ConnectFailed);
        }
    });
    // Were the handshake not what ends it, it would take connect_timeout_ms: 3 s.
    watch.at_most(HANDSHAKE + ms(600), "finding it out");
    let info = wait_ended(&conn, LIMIT);
    assert_eq!((info.status, info.accepted, info.ready_for), (Status::ConnectFailed, 0, Duration::ZERO));
    assert_ne!(info.os_errno, 0, "{}", info.message);
    let events: Vec<_> = engine.events().into_iter().map(|event| (event.kind, event.count)).collect();
    assert_eq!(events, [(EventKind::ConnectFailed, 0)]);
    refused(engine.send_to(endpoint, &[b"secret"], LIMIT), Status::Backoff);
    info.message
}

#[test]
fn a_mute_listener_is_found_out_when_the_handshakes_time_is_over() {
    let peer = WrongPeer::mute();
    let watch = Stopwatch::start();
    let message = found_out(&peer.endpoint());
    assert!(watch.elapsed() >= HANDSHAKE - ms(5), "a peer may take as long as configured");
    assert!(message.contains("handshake_timeout_ms"), "{message}");
    assert_eq!(peer.connections(), 1);
    assert!(peer.bytes() <= 64, "{} bytes are more than a greeting", peer.bytes());
}

#[test]
fn services_that_speak_first_are_found_out() {
    let greeting = |mechanism: &[u8], rest: &[u8]| {
        let mut bytes = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0".to_vec();
        bytes.extend(mechanism);
        bytes.resize(64, 0);
        bytes.extend(rest);
        bytes
    };
    let banners: [(&str, Vec<u8>); 11] = [
        ("HTTP", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("SSH", b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n".to_vec()),
        ("SMTP", b"220 mail.example ESMTP\r\n".to_vec()),
        ("zeroes", vec![0; 64 * 1024]),
        ("ones", vec![0xff; 64 * 1024]),
        ("one byte", vec![1]),
        ("half a ZMTP greeting", greeting(b"NULL", b"")[..20].to_vec()),
        ("a ZMTP greeting and nothing more", greeting(b"NULL", b"")),
        ("another mechanism", greeting(b"PLAIN", b"")),
        ("a command of garbage", greeting(b"NULL", b"\x04\x10garbage garbage!")),
        ("a huge command", greeting(b"NULL", b"\x06\x7f\xff\xff\xff\xff\xff\xff\xff\x05READY")),
    ];
    std::thread::scope(|scope| {
        for (what, banner) in &banners {
            scope.spawn(move || {
                let peer = WrongPeer::speaking(banner);
                found_out(&peer.endpoint());
                assert_eq!(peer.connections(), 1, "{what}");
                // A greeting and, after a good greeting, a READY command.
                assert!(peer.bytes() <= 200, "{what} was sent {} bytes", peer.bytes());
            });
        }
    });
}

#[test]
fn a_listener_that_closes_or_resets_is_found_out_at_once() {
    for peer in [WrongPeer::closing(), WrongPeer::resetting()] {
        let watch = Stopwatch::start();
        found_out(&peer.endpoint());
        watch.at_most(ms(200), "finding it out");
        assert_eq!(peer.connections(), 1);
    }
}

#[test]
fn a_zeromq_socket_of_another_type_is_found_out_at_once() {
    for socket in ["REP", "SUB", "ROUTER", "DEALER", "PAIR"] {
        let peer = Peer::with(PeerOptions { socket, ..PeerOptions::default() });
        let watch = Stopwatch::start();
        let message = found_out(peer.endpoint());
        watch.at_most(ms(200), socket);
        // It may be the peer that finds us out first, and closes.
        assert!(message.contains("PULL") || message.contains("handshake"), "{socket}: {message}");
        assert_eq!(peer.received().messages, 0, "{socket}");
    }
}

#[test]
fn a_peer_that_wants_curve_is_found_out() {
    // Any 32 bytes are a key.
    let secret = Some("D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs".to_string());
    let peer = Peer::with(PeerOptions { curve_secret: secret, ..PeerOptions::default() });
    found_out(peer.endpoint());
    assert_eq!(peer.received().messages, 0);
}

#[test]
fn a_peer_that_is_only_slow_to_shake_hands_is_no_wrong_peer() {
    let peer = Peer::any();
    peer.stop();
    let engine = Engine::with(&[("handshake_timeout_ms", "5000"), ("connect_timeout_ms", "100")]);
    let conn = engine.lazy(peer.endpoint());
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&conn, &[b"x"], LIMIT));
        wait_waiting(&conn, 1, LIMIT);
        std::thread::sleep(ms(500)); // TCP is connected, so connect_timeout_ms is not its limit any more
        peer.resume();
        sending.join().unwrap().expect("sent");
    });
    peer.wait_received(1, LIMIT);
}
