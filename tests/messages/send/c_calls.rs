//! The C functions: the shortest way of a message, and where it must be left.

use std::ffi::CString;
use std::ptr;

use kvconn::capi::{self, kvconn_error_t, kvconn_frame_t};
use kvconn::error::Status;
use kvconn::ids::ConnId;

use crate::common::engine::{connection, narrow_peer};
use crate::common::{Engine, Peer, ms, wait_until};

const LONG: i64 = 10_000;

fn frame(bytes: &[u8]) -> kvconn_frame_t {
    kvconn_frame_t { data: bytes.as_ptr().cast(), size: bytes.len() }
}

fn status(number: i32) -> Status {
    Status::from_number(number).expect("a status")
}

/// `kvconn_send`: the status and the sequence.
fn send(conn: ConnId, frames: &[kvconn_frame_t], timeout_ms: i64) -> (Status, u64) {
    let (mut sequence, error) = (77, ptr::null_mut::<kvconn_error_t>());
    // SAFETY: everything lives for the call.
    let result = unsafe { capi::kvconn_send(conn.0, frames.as_ptr(), frames.len(), timeout_ms, &mut sequence, error) };
    (status(result), sequence)
}

/// `kvconn_send_to`: the status and the connection.
fn send_to(engine: &Engine, endpoint: &str, timeout_ms: i64) -> (Status, ConnId) {
    let (text, frame) = (CString::new(endpoint).expect("no NUL"), frame(b"to an endpoint"));
    let (mut conn, sequence, error) = (77, ptr::null_mut(), ptr::null_mut());
    // SAFETY: everything lives for the call.
    let result = unsafe {
        capi::kvconn_send_to(engine.id().0, text.as_ptr(), &frame, 1, timeout_ms, &mut conn, sequence, error)
    };
    (status(result), ConnId(conn))
}

#[test]
fn messages_of_any_number_of_frames_are_counted_in_one_row() {
    let (peer, engine) = (Peer::any(), Engine::new());
    let conn = engine.ready(peer.endpoint());
    let large = vec![b'l'; 100_000];
    let mut sequence = 0;
    for count in [1, 2, 15, 16, 17, 300] {
        for frames in [vec![frame(b"small"); count], vec![frame(b""); count], vec![frame(&large); count.min(20)]] {
            sequence += 1;
            assert_eq!(send(conn.id(), &frames, LONG), (Status::Ok, sequence), "{count} frames");
        }
    }
    // An empty frame may have no data; another one must.
    let (nothing, wrong) =
        (kvconn_frame_t { data: ptr::null(), size: 0 }, kvconn_frame_t { data: ptr::null(), size: 1 });
    assert_eq!(send(conn.id(), &[frame(b"a"), nothing], LONG), (Status::Ok, sequence + 1));
    assert_eq!(send(conn.id(), &[frame(b"a"), wrong], LONG), (Status::Invalid, 0));
    assert_eq!(send(conn.id(), &[], LONG), (Status::Invalid, 0));
    assert_eq!(send(conn.id(), &[nothing], -2), (Status::Invalid, 0));
    peer.wait_received(sequence + 1, ms(60_000));
    let delivered = conn.flush(0, crate::common::engine::after(ms(60_000)));
    assert_eq!((delivered.0.is_ok(), delivered.1), (true, sequence + 1));
}

#[test]
fn an_id_is_of_one_connection_for_ever() {
    let (peer, engine) = (Peer::any(), Engine::new());
    let mut old = Vec::new();
    // Gates are used again: those of the earlier connections, which are remembered, are not.
    for _ in 0..20 {
        let conn = engine.ready(peer.endpoint());
        assert_eq!(send(conn.id(), &[frame(b"x")], LONG), (Status::Ok, 1));
        conn.disconnect().expect("ended");
        old.push(conn.id());
        for id in &old {
            assert_eq!(send(*id, &[frame(b"x")], LONG), (Status::Disconnected, 0));
        }
    }
    let (other, id) = (Engine::new(), ConnId(old[19].0 + 1000));
    let last = other.ready(peer.endpoint());
    assert_eq!(send(id, &[frame(b"x")], LONG), (Status::Stale, 0));
    assert_eq!(send(ConnId::NONE, &[frame(b"x")], LONG), (Status::Stale, 0));
    let ids: Vec<ConnId> = old.into_iter().chain([last.id()]).collect();
    drop((last, engine, other));
    // Their gates get other connections.
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    for id in ids {
        assert_eq!(send(id, &[frame(b"x")], LONG), (Status::Stale, 0));
    }
    assert_eq!(send(conn.id(), &[frame(b"x")], LONG), (Status::Ok, 1));
}

#[test]
fn a_message_to_an_endpoint_takes_the_present_connection_and_no_fenced_one() {
    let (peer, engine, other) = (Peer::any(), Engine::new(), Engine::new());
    let (first, conn) = send_to(&engine, peer.endpoint(), LONG);
    assert_eq!(first, Status::Ok);
    assert_eq!(send_to(&engine, peer.endpoint(), LONG), (Status::Ok, conn));
    // Another manager has a connection of its own.
    let (status, others) = send_to(&other, peer.endpoint(), LONG);
    assert_eq!(status, Status::Ok);
    assert_ne!(others, conn);
    assert_eq!(send_to(&engine, peer.endpoint(), LONG), (Status::Ok, conn));
    // The next connection is found as well as the first.
    connection(conn).disconnect().expect("ended");
    let (status, next) = send_to(&engine, peer.endpoint(), LONG);
    assert_eq!(status, Status::Ok);
    assert!(next != conn && next != others);
    assert_eq!(send_to(&engine, peer.endpoint(), LONG), (Status::Ok, next));
    engine.disconnect_endpoint(peer.endpoint()).expect("fenced");
    assert_eq!(send_to(&engine, peer.endpoint(), LONG), (Status::Disconnected, ConnId::NONE));
    assert_eq!(send_to(&other, peer.endpoint(), LONG), (Status::Ok, others));
    wait_until("all have arrived", ms(60_000), || connection(others).info().acknowledged == Some(2));
}

#[test]
fn a_full_connection_takes_no_message_the_shortest_way() {
    let (peer, engine) = (narrow_peer(1), Engine::with(&[("send_hwm", "4")]));
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    let large = vec![b'l'; 100_000];
    let full = || send(conn.id(), &[frame(&large)], 0).0 == Status::Timeout;
    wait_until("it is full", ms(60_000), || (0..5).all(|_| full()));
    let accepted = conn.info().accepted;
    assert_eq!(send_to(&engine, peer.endpoint(), 0), (Status::Timeout, ConnId::NONE));
    peer.resume();
    let (status, sequence) = send(conn.id(), &[frame(&large)], 60_000);
    assert_eq!((status, sequence), (Status::Ok, accepted + 1));
}
