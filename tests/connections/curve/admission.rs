//! A peer that lets in only clients whose keys it knows: ZAP, on the peer's side.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use kvconn::error::Status;

use super::keys::{Pair, QUICK};
use crate::common::engine::{refused, send};
use crate::common::{Engine, ms};

const LIMIT: Duration = Duration::from_secs(10);

/// A PULL peer in this process, with a libzmq context of its own and a ZAP handler that answers with `status` to
/// every client but `friend`. Returns its endpoint, and what arrives.
fn peer_with_handler(server: &Pair, friend: &Pair, status: &'static str) -> (String, Receiver<Vec<u8>>) {
    let context = zmq::Context::new();
    let handler = context.socket(zmq::REP).expect("a socket");
    handler.bind("inproc://zeromq.zap.01").expect("the handler's address");
    let friend = zmq::z85_decode(&friend.public).expect("a key");
    std::thread::spawn(move || {
        // version, request, domain, address, identity, mechanism, key
        while let Ok(request) = handler.recv_multipart(0) {
            assert_eq!((&request[5][..], request[6].len()), (&b"CURVE"[..], 32));
            let status = if request[6] == friend { "200" } else { status };
            let reply = [&b"1.0"[..], &request[1], status.as_bytes(), b"", b"", b""];
            handler.send_multipart(reply, 0).expect("an answer");
        }
    });
    let pull = context.socket(zmq::PULL).expect("a socket");
    pull.set_curve_server(true).expect("a server");
    pull.set_curve_secretkey(&zmq::z85_decode(&server.secret).expect("a key")).expect("its key");
    pull.bind("tcp://127.0.0.1:*").expect("a port");
    let endpoint = pull.get_last_endpoint().expect("bound").expect("text");
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        while let Ok(message) = pull.recv_bytes(0) {
            if sender.send(message).is_err() {
                break;
            }
        }
    });
    (endpoint, receiver)
}

#[test]
fn a_client_that_the_peer_does_not_know_is_told_so() {
    let (server, friend, stranger) = (Pair::new(), Pair::new(), Pair::new());
    for (status, errnos, text) in [
        ("400", &[libc::EACCES][..], "ZAP status 400"),
        ("500", &[libc::EACCES], "ZAP status 500"),
        // "Not now" is never said to the client. libzmq closes the connection, or leaves it open.
        ("300", &[libc::EPROTO, libc::ETIMEDOUT], "does not let this client in"),
    ] {
        let (endpoint, arrived) = peer_with_handler(&server, &friend, status);
        let engine = Engine::with(&[QUICK[0], QUICK[1], ("handshake_timeout_ms", "1000")]);
        let result = engine.connect_with(&endpoint, &stranger.settings(&server), LIMIT);
        let error = refused(result, Status::ConnectFailed);
        assert!(errnos.contains(&error.os_errno) && error.message.contains(text), "{error:?}");
        assert!(arrived.recv_timeout(ms(50)).is_err(), "a stranger's message has arrived");

        let engine = Engine::new();
        let conn = engine.ready_with(&endpoint, &friend.settings(&server));
        send(&conn, &[b"welcome"], LIMIT).expect("accepted");
        assert_eq!(arrived.recv_timeout(LIMIT).expect("delivered"), b"welcome");
    }
}
