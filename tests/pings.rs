//! PINGs of a peer's: what is not one ends the connection, and draws nothing of our memory.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use common::engine::{Engine, wait_ended};
use kvconn::error::Status;

const LONG: Duration = Duration::from_secs(10);

/// What a PULL socket says before the first message: ZMTP 3.0, NULL, READY.
fn shake_hands(peer: &mut TcpStream) {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    peer.write_all(&greeting).unwrap();
    peer.write_all(b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL").unwrap();
    // Their greeting and READY: 64 bytes and 28.
    peer.read_exact(&mut [0; 92]).unwrap();
}

#[test]
fn a_ping_shorter_than_its_fixed_part_ends_the_connection_without_an_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let peer = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(LONG)).unwrap();
        shake_hands(&mut peer);
        peer.write_all(b"\x04\x05\x04PING").unwrap();
        let mut answer = Vec::new();
        // A reset instead of an orderly end is as good.
        let _ = peer.read_to_end(&mut answer);
        answer
    });
    let engine = Engine::new();
    let conn = engine.ready(&endpoint);
    assert_eq!(wait_ended(&conn, LONG).status, Status::PeerLost);
    assert_eq!(peer.join().unwrap(), b"", "an answer to what is no PING");
}
