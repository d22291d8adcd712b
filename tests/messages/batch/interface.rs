//! The C function: what it writes, and where.

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

use kvconn::capi::{self, kvconn_batch_item_t, kvconn_error_t, kvconn_frame_t};
use kvconn::connection::Connection;
use kvconn::error::{Scope, Status};

use crate::common::engine::{LARGE, canonical, narrow_peer};
use crate::common::load::Stopwatch;
use crate::common::{Engine, Peer, closed_port, ms};

/// Memory as a caller may leave it.
const OLD: (u64, i32, u32) = (u64::MAX, 77, u32::MAX);

fn frame(bytes: &[u8]) -> kvconn_frame_t {
    kvconn_frame_t { data: bytes.as_ptr().cast(), size: bytes.len() }
}

fn item(conn: u64, frames: &[kvconn_frame_t]) -> kvconn_batch_item_t {
    let (sequence, status, reserved) = OLD;
    kvconn_batch_item_t { conn, frames: frames.as_ptr(), frame_count: frames.len(), sequence, status, reserved }
}

/// Calls it; the status, and the error, which says the same.
fn send(items: &mut [kvconn_batch_item_t], timeout_ms: i64) -> (Status, kvconn_error_t) {
    // SAFETY: integers and texts only.
    let mut error: kvconn_error_t = unsafe { std::mem::zeroed() };
    error.struct_size = size_of::<kvconn_error_t>() as u32;
    // SAFETY: the items, their frames and the error live for the call.
    let status = unsafe { capi::kvconn_send_batch(items.as_mut_ptr(), items.len(), timeout_ms, &mut error) };
    assert_eq!(status, error.status);
    (Status::from_number(status).expect("a status"), error)
}

fn statuses(items: &[kvconn_batch_item_t]) -> Vec<Status> {
    for item in items {
        assert_eq!(item.reserved, 0);
        assert!(item.status == 0 || item.sequence == 0, "status {}, sequence {}", item.status, item.sequence);
    }
    items.iter().map(|item| Status::from_number(item.status).expect("a status")).collect()
}

fn text(array: &[std::ffi::c_char]) -> &str {
    // SAFETY: the texts of an error end with NUL.
    unsafe { CStr::from_ptr(array.as_ptr()) }.to_str().expect("UTF-8")
}

/// Scenario 23.
#[test]
fn of_eight_ranks_the_stopped_one_fails_and_the_others_get_their_frames_within_one_deadline() {
    let mut peers: Vec<Peer> = (0..8).map(|_| Peer::any()).collect();
    peers[2] = narrow_peer(1);
    let engine = Engine::with(&[("send_hwm", "4")]);
    let conns: Vec<Arc<Connection>> = peers.iter().map(|peer| engine.ready(peer.endpoint())).collect();
    peers[2].stop();
    let filling = Stopwatch::start();
    let accepted = engine.fill(&conns[2], LARGE);

    let texts: Vec<String> = (0..8).map(|rank| format!("for rank {rank}")).collect();
    let frames: Vec<_> = texts.iter().map(|text| [frame(b"common"), frame(text.as_bytes())]).collect();
    let ready = |conns: &[Arc<Connection>]| -> Vec<_> {
        conns.iter().zip(&frames).map(|(conn, frames)| item(conn.id().0, frames)).collect()
    };
    let mut items = ready(&conns);
    let watch = Stopwatch::start();
    let (status, error) = send(&mut items, 1000);
    watch.at_most(ms(1020), "the batch");
    // Patience counts from the last progress, which `fill` has seen 300 ms ago.
    assert!(watch.elapsed() + filling.excused() >= ms(600), "after {:?}", watch.elapsed());

    assert_eq!(status, Status::Partial);
    for (rank, status) in statuses(&items).into_iter().enumerate() {
        match rank {
            2 => assert!(matches!(status, Status::Stalled | Status::Timeout), "{status:?}"),
            _ => assert_eq!((status, items[rank].sequence), (Status::Ok, 1), "rank {rank}"),
        }
    }
    let reason = Status::from_number(items[2].status).expect("a status").name();
    let said = text(&error.message);
    assert!(said.starts_with(&format!("1 of 8 items failed; items[2]: {reason}: ")), "{said}");
    assert_eq!((error.conn, text(&error.endpoint)), (conns[2].id().0, &*canonical(peers[2].endpoint())));
    assert_eq!((error.scope, error.retriable, error.retry_after_ms), (Scope::Call as i32, 0, 0));
    for (rank, peer) in peers.iter().enumerate().filter(|(rank, _)| *rank != 2) {
        peer.wait_received(1, ms(20_000));
        assert_eq!(peer.messages(), [[b"common".to_vec(), texts[rank].clone().into_bytes()]]);
    }

    // The stuck rank costs one deadline, not one for each batch.
    let watch = Stopwatch::of_this_thread();
    for _ in 0..100 {
        let mut items = ready(&conns);
        assert_eq!(send(&mut items, 1000).0, Status::Partial);
        assert_eq!(statuses(&items)[2], Status::Stalled);
    }
    watch.at_most(ms(1000), "a hundred more batches");

    // What was not accepted is sent again, and nothing else.
    peers[2].resume();
    items.iter_mut().filter(|item| item.status == 0).for_each(|item| item.conn = 0);
    assert_eq!(send(&mut items, 20_000).0, Status::Ok);
    let sequences: Vec<u64> = items.iter().map(|item| item.sequence).collect();
    assert_eq!(sequences, [0, 0, accepted + 1, 0, 0, 0, 0, 0]);
    assert!(conns.iter().all(|conn| conn.info().rescues == 0));
}

#[test]
fn an_item_that_cannot_be_sent_has_its_own_status_and_the_others_go() {
    let peer = Peer::any();
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    let ended = engine.connect(peer.endpoint(), ms(0)).expect("the same connection");
    assert_eq!(ended, conn.id());
    let other = Peer::any();
    let gone = engine.ready(other.endpoint());
    gone.disconnect().expect("it ends");

    let id = conn.id().0;
    let good = [frame(b"good")];
    let without_data = [frame(b"good"), kvconn_frame_t { data: ptr::null(), size: 1 }];
    let too_large = [kvconn_frame_t { data: b"x".as_ptr().cast(), size: usize::MAX }];
    let mut items = [
        item(id, &good),
        item(id, &[]),
        item(id, &without_data),
        item(0, &without_data),
        item(u64::MAX, &good),
        item(gone.id().0, &good),
        item(id, &too_large),
        kvconn_batch_item_t { frame_count: 2, frames: ptr::null(), ..item(id, &good) },
        kvconn_batch_item_t { frame_count: usize::MAX, ..item(id, &good) },
        item(id, &good),
    ];
    let (status, error) = send(&mut items, 5000);
    assert_eq!(status, Status::Partial);
    use Status::{Disconnected, Invalid, Ok, Stale};
    let expected = [Ok, Invalid, Invalid, Ok, Stale, Disconnected, Invalid, Invalid, Invalid, Ok];
    assert_eq!(statuses(&items), expected);
    assert_eq!((items[0].sequence, items[3].sequence, items[9].sequence), (1, 0, 2));
    let said = text(&error.message);
    assert!(said.starts_with("7 of 10 items failed; items[1]: KVCONN_INVALID: ") && said.contains("frame"), "{said}");
    assert_eq!((error.conn, text(&error.endpoint)), (id, &*canonical(peer.endpoint())));
    peer.wait_received(2, ms(20_000));
    assert_eq!(peer.messages(), [[b"good"], [b"good"]]);
}

#[test]
fn the_first_failure_brings_its_errno() {
    let closed = closed_port();
    let engine = Engine::new();
    let peer = Peer::any();
    let (refused, conn) = (engine.lazy(&closed.endpoint()), engine.ready(peer.endpoint()));
    let good = [frame(b"good")];
    let mut items = [item(conn.id().0, &good), item(refused.id().0, &good)];
    let watch = Stopwatch::start();
    let (status, error) = send(&mut items, 10_000);
    watch.at_most(ms(2000), "a refused dial");
    assert_eq!((status, statuses(&items)), (Status::Partial, vec![Status::Ok, Status::ConnectFailed]));
    assert_eq!((error.os_errno, error.conn), (libc::ECONNREFUSED, refused.id().0));
    let said = text(&error.message);
    assert!(said.starts_with("1 of 2 items failed; items[1]: KVCONN_CONNECT_FAILED: "), "{said}");
}

#[test]
fn a_call_that_fails_as_a_whole_sends_nothing_and_every_item_says_so() {
    let peer = Peer::any();
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    let good = [frame(b"good")];
    let mut items = [item(conn.id().0, &good), item(0, &good)];
    for timeout in [-2, i64::MIN] {
        items.iter_mut().for_each(|item| (item.sequence, item.status, item.reserved) = OLD);
        assert_eq!(send(&mut items, timeout).0, Status::Invalid);
        assert_eq!(statuses(&items), [Status::Invalid; 2]);
    }
    // SAFETY: NULL is checked, and so is the count before the items are looked at.
    let (none, without, absurd) = unsafe {
        let error = ptr::null_mut();
        (
            capi::kvconn_send_batch(ptr::null_mut(), 0, 0, error),
            capi::kvconn_send_batch(ptr::null_mut(), 1, 0, error),
            capi::kvconn_send_batch(items.as_mut_ptr(), capi::KVCONN_MAX_BATCH + 1, 0, error),
        )
    };
    let invalid = Status::Invalid as i32;
    assert_eq!((none, without, absurd), (0, invalid, invalid));
    assert_eq!(conn.info().accepted, 0);
}
