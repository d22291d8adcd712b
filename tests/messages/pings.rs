//! What a peer's PINGs draw from us: PONGs with the peer's own bytes, nothing of our memory, and no message that is
//! acknowledged because a PONG is.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::engine::{Engine, after, send};
use crate::common::raw_peer::{GREETING, READY};
use crate::common::{Namespace, Peer, PeerOptions, ms};
use crate::skip_unless;
use kvconn::connection::{Connection, ConnectionState};
use kvconn::error::Status;

const LONG: Duration = Duration::from_secs(10);

/// A PULL socket of ZMTP 3.1 that can say whatever it likes.
struct RawPull {
    stream: TcpStream,
}

impl RawPull {
    /// Takes the next visitor and shakes hands, mechanism NULL.
    fn accept(listener: &TcpListener) -> RawPull {
        let (mut stream, _) = listener.accept().expect("a visitor");
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        stream.write_all(&GREETING).expect("our greeting");
        stream.write_all(READY).expect("our READY");
        // The visitor's greeting and READY.
        stream.read_exact(&mut [0; 64 + 28]).expect("the visitor's handshake");
        RawPull { stream }
    }

    /// Says PING with this after its name: two bytes of TTL and a context, if it is a proper one.
    fn ping(&mut self, rest: &[u8]) {
        let size = u8::try_from(5 + rest.len()).expect("a short command");
        self.stream.write_all(&[&[4, size], b"\x04PING".as_slice(), rest].concat()).expect("a PING");
    }

    /// The next frame: its flags and what is in it.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        let (flags, size) = self.head();
        let mut body = vec![0; size];
        self.stream.read_exact(&mut body).expect("all of it");
        (flags, body)
    }

    /// The next frame's head: its flags without that of a long size, and how many bytes follow.
    fn head(&mut self) -> (u8, usize) {
        const LONG_SIZE: u8 = 2;
        let mut flags = [0];
        self.stream.read_exact(&mut flags).expect("a frame");
        let mut size = [0; 8];
        let place = if flags[0] & LONG_SIZE == 0 { 7 } else { 0 };
        self.stream.read_exact(&mut size[place..]).expect("its size");
        (flags[0] & !LONG_SIZE, u64::from_be_bytes(size) as usize)
    }
}

/// A connection to such a peer, for a test of both its ends.
fn with_raw_pull(listener: TcpListener, test: impl FnOnce(&Arc<Connection>, RawPull)) {
    let endpoint = format!("tcp://{}", listener.local_addr().expect("bound"));
    let engine = Engine::new();
    let peer = std::thread::spawn(move || RawPull::accept(&listener));
    let conn = engine.ready(&endpoint);
    test(&conn, peer.join().expect("a peer"));
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

#[test]
fn a_ping_too_short_to_be_one_is_not_answered_and_the_connection_goes_on() {
    with_raw_pull(listener(), |conn, mut peer| {
        for round in 0..20 {
            let text = format!("secret {round}");
            send(conn, &[text.as_bytes()], LONG).expect("accepted");
            assert_eq!(peer.frame(), (0, text.into_bytes()));
            // Without its TTL, and with half of it; then a proper one, whose answer comes after any to those.
            peer.ping(b"");
            peer.ping(b"\0");
            peer.ping(b"\0\0context");
            assert_eq!(peer.frame(), (4, b"\x04PONGcontext".to_vec()));
        }
        assert_eq!(conn.info().state, ConnectionState::Ready);
    });
}

#[test]
fn a_ping_is_answered_with_the_first_sixteen_bytes_of_its_context() {
    with_raw_pull(listener(), |_, mut peer| {
        let context = b"0123456789abcdefghij";
        for length in 0..=context.len() {
            peer.ping(&[b"\0\0".as_slice(), &context[..length]].concat());
            let (flags, body) = peer.frame();
            assert_eq!((flags, &body[..5], &body[5..]), (4, b"\x04PONG".as_slice(), &context[..length.min(16)]));
        }
    });
}

/// libzmq writes a large frame from where it is. The answer to each PING that comes meanwhile follows the frame, and what was
/// read of the frame before makes no difference.
#[test]
fn a_ping_within_a_large_frame_is_answered_behind_it() {
    with_raw_pull(listener(), |conn, mut peer| {
        // More than two kernels hold of it.
        let large: Vec<u8> = (0..24 << 20).map(|place: usize| (place ^ place >> 8) as u8).collect();
        for read in [0, 8 << 10, 64 << 10, 1 << 20] {
            send(conn, &[b"first", &large, b"last"], LONG).expect("accepted");
            assert_eq!(peer.frame(), (1, b"first".to_vec()));
            assert_eq!(peer.head(), (1, large.len()));
            let mut body = vec![0; large.len()];
            peer.stream.read_exact(&mut body[..read]).expect("its beginning");
            for _ in 0..3 {
                peer.ping(b"\0\0context");
                std::thread::sleep(ms(20));
            }
            peer.stream.read_exact(&mut body[read..]).expect("the rest");
            assert!(body == large, "after {read} bytes of it");
            for _ in 0..3 {
                assert_eq!(peer.frame(), (4, b"\x04PONGcontext".to_vec()));
            }
            assert_eq!(peer.frame(), (0, b"last".to_vec()));
        }
        let (flushed, acknowledged) = conn.flush(0, after(LONG));
        flushed.expect("all of it has arrived");
        assert_eq!(acknowledged, 4);
    });
}

/// A peer that does not read gets heartbeats answered later, and what is acknowledged afterwards is exact although messages
/// follow each other.
#[test]
fn heartbeats_without_room_for_their_answers_delay_no_later_flush() {
    with_raw_pull(listener(), |conn, mut peer| {
        let large = vec![7; 24 << 20];
        send(conn, &[&large], LONG).expect("accepted");
        assert_eq!(peer.head(), (0, large.len()));
        for _ in 0..30 {
            peer.ping(b"\0\0");
            std::thread::sleep(ms(5));
        }
        peer.stream.read_exact(&mut vec![0; large.len()]).expect("the message");
        for _ in 0..30 {
            assert_eq!(peer.frame(), (4, b"\x04PONG".to_vec()));
        }
        for sequence in 2..=5 {
            send(conn, &[b"x"], LONG).expect("accepted");
            assert_eq!(peer.frame(), (0, b"x".to_vec()));
            let (flushed, acknowledged) = conn.flush(0, after(ms(1000)));
            flushed.unwrap_or_else(|error| panic!("message {sequence}: {error:?}"));
            assert_eq!(acknowledged, sequence);
        }
    });
}

/// Our answers are bytes that the peer's kernel acknowledges as well; they are counted and taken off.
#[test]
fn a_libzmq_peer_that_sends_heartbeats_leaves_what_is_acknowledged_exact() {
    let heartbeat = ms(100);
    let peer = Peer::with(PeerOptions { heartbeat, ..PeerOptions::default() });
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < ms(2000) {
        sent += 1;
        send(&conn, &[b"x"], LONG).expect("accepted");
        let (flushed, acknowledged) = conn.flush(0, after(LONG));
        flushed.expect("flushed between two heartbeats");
        assert_eq!(acknowledged, sent);
    }
    assert!(sent > 20, "only {sent} messages were flushed beside twenty heartbeats");
}

/// Nine PINGs with the longest context take as many bytes as 25 of libzmq's, and draw 32 bytes more: enough for a short
/// message that never left.
#[test]
fn pings_that_take_as_many_bytes_as_libzmqs_acknowledge_no_message_that_is_lost() {
    skip_unless!(Namespace::available());
    let network = Namespace::new();
    with_raw_pull(network.listener(), |conn, mut peer| {
        for _ in 0..9 {
            peer.ping(b"\x00\x000123456789abcdef");
        }
        for _ in 0..9 {
            assert_eq!(peer.frame(), (4, b"\x04PONG0123456789abcdef".to_vec()));
        }
        // Nothing shows when the peer's kernel has acknowledged the last of them: at the latest after 40 ms.
        std::thread::sleep(ms(200));
        assert_eq!(conn.info().acknowledged, Some(0));
        network.cut();
        send(conn, &[b"lost"], LONG).expect("accepted");
        let (flushed, acknowledged) = conn.flush(0, after(ms(300)));
        assert_eq!((flushed.expect_err("lost in flight").status, acknowledged), (Status::Timeout, 0));
        network.restore();
        assert_eq!(peer.frame(), (0, b"lost".to_vec()));
        let (flushed, acknowledged) = conn.flush(0, after(LONG));
        flushed.expect("it has arrived");
        assert_eq!(acknowledged, 1);
    });
}

/// Heartbeats faster than the peer's kernel acknowledges alone (after 40 ms): there is always a PONG in flight.
#[test]
fn a_libzmq_peer_with_very_fast_heartbeats_keeps_no_flush_from_finishing() {
    for heartbeat in [ms(2), ms(15)] {
        let peer = Peer::with(PeerOptions { heartbeat, ..PeerOptions::default() });
        let engine = Engine::new();
        let conn = engine.ready(peer.endpoint());
        for sent in 1..=20 {
            send(&conn, &[b"x"], LONG).expect("accepted");
            let (flushed, acknowledged) = conn.flush(0, after(ms(3000)));
            flushed.unwrap_or_else(|error| panic!("message {sent} beside a PING every {heartbeat:?}: {error:?}"));
            assert_eq!(acknowledged, sent);
        }
    }
}
