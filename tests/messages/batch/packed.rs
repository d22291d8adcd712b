//! `kvconn_send_batch_packed`: flat arrays and one buffer, and otherwise the same as a batch of structs.

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

use kvconn::capi::{self, kvconn_error_t};
use kvconn::connection::Connection;
use kvconn::error::Status;

use crate::common::engine::{LARGE, narrow_peer};
use crate::common::load::Stopwatch;
use crate::common::random::Random;
use crate::common::{Engine, Peer, ms};

/// A batch as another language holds it.
#[derive(Default)]
struct Packed {
    conns: Vec<u64>,
    frame_counts: Vec<u32>,
    sizes: Vec<u32>,
    buffer: Vec<u8>,
    sequences: Vec<u64>,
    statuses: Vec<i32>,
}

impl Packed {
    fn of(messages: &[(u64, Vec<&[u8]>)]) -> Packed {
        let mut packed = Packed::default();
        for (conn, frames) in messages {
            packed.conns.push(*conn);
            packed.frame_counts.push(frames.len() as u32);
            packed.sizes.extend(frames.iter().map(|frame| frame.len() as u32));
            packed.buffer.extend(frames.concat());
        }
        // Memory as a caller may leave it.
        packed.sequences = vec![u64::MAX; messages.len()];
        packed.statuses = vec![77; messages.len()];
        packed
    }

    fn send(&mut self, timeout_ms: i64) -> (Status, kvconn_error_t) {
        // SAFETY: integers and texts only.
        let mut error: kvconn_error_t = unsafe { std::mem::zeroed() };
        error.struct_size = size_of::<kvconn_error_t>() as u32;
        // SAFETY: the arrays live for the call, and are as long as `of` made them.
        let status = unsafe {
            capi::kvconn_send_batch_packed(
                self.conns.as_ptr(),
                self.frame_counts.as_ptr(),
                self.conns.len(),
                self.buffer.as_ptr().cast(),
                self.sizes.as_ptr(),
                timeout_ms,
                self.sequences.as_mut_ptr(),
                self.statuses.as_mut_ptr(),
                &mut error,
            )
        };
        assert_eq!(status, error.status);
        (Status::from_number(status).expect("a status"), error)
    }

    fn statuses(&self) -> Vec<Status> {
        self.statuses.iter().map(|status| Status::from_number(*status).expect("a status")).collect()
    }
}

#[test]
fn frames_of_any_number_and_size_arrive_byte_for_byte() {
    let peers: Vec<Peer> = (0..3).map(|_| Peer::any()).collect();
    let engine = Engine::new();
    let conns: Vec<Arc<Connection>> = peers.iter().map(|peer| engine.ready(peer.endpoint())).collect();
    let mut random = Random::new(10);
    let content: Vec<u8> = (0..4096_u32).map(|at| (at * 31) as u8).collect();
    let mut sent = vec![Vec::new(); 3];
    for _ in 0..20 {
        let mut messages = Vec::new();
        for _ in 0..random.below(30) {
            let rank = random.below(3) as usize;
            let frames: Vec<&[u8]> = (0..1 + random.below(5))
                .map(|_| {
                    &content[random.below(2000) as usize..][..[0, 1, 63, 64, 255, 256, 2000][random.below(7) as usize]]
                })
                .collect();
            // Some are skipped, and keep their places in the arrays.
            let skipped = random.below(5) == 0;
            if !skipped {
                sent[rank].push(frames.iter().map(|frame| frame.to_vec()).collect::<Vec<_>>());
            }
            messages.push((if skipped { 0 } else { conns[rank].id().0 }, frames));
        }
        let mut packed = Packed::of(&messages);
        assert_eq!(packed.send(10_000).0, Status::Ok);
        assert!(packed.statuses().iter().all(|status| *status == Status::Ok));
        for ((conn, _), sequence) in messages.iter().zip(&packed.sequences) {
            assert_eq!(*conn == 0, *sequence == 0);
        }
    }
    for (peer, sent) in peers.iter().zip(&sent) {
        peer.wait_received(sent.len() as u64, ms(20_000));
        assert!(peer.messages() == *sent, "other messages arrived than were sent");
    }
}

/// As a batch of structs: the stopped rank fails alone, within one deadline, and what failed is sent again.
#[test]
fn each_message_has_its_own_status() {
    let peer = Peer::any();
    let full = narrow_peer(1);
    let engine = Engine::with(&[("send_hwm", "4")]);
    let (conn, stuck) = (engine.ready(peer.endpoint()), engine.ready(full.endpoint()));
    full.stop();
    let accepted = engine.fill(&stuck, LARGE);
    let (id, stuck_id) = (conn.id().0, stuck.id().0);
    let good: Vec<&[u8]> = vec![b"good", b""];
    let large: Vec<&[u8]> = vec![LARGE];
    let messages = [
        (id, good.clone()),
        (stuck_id, large.clone()),
        (u64::MAX, good.clone()),
        (id, vec![]),
        (stuck_id, good.clone()),
        (id, good),
    ];
    let mut packed = Packed::of(&messages);
    let watch = Stopwatch::start();
    let (status, error) = packed.send(1000);
    watch.at_most(ms(1020), "the batch");
    assert_eq!(status, Status::Partial);
    let statuses = packed.statuses();
    let stalled = statuses[1];
    assert!(matches!(stalled, Status::Stalled | Status::Timeout), "{stalled:?}");
    // Nothing overtakes what failed on its connection.
    assert_eq!(statuses, [Status::Ok, stalled, Status::Stale, Status::Invalid, stalled, Status::Ok]);
    assert_eq!(packed.sequences, [1, 0, 0, 0, 0, 2]);
    // SAFETY: the texts of an error end with NUL.
    let said = unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_str().expect("UTF-8");
    assert!(said.starts_with("4 of 6 items failed; items[1]: "), "{said}");
    assert_eq!(error.conn, stuck_id);
    assert_ne!(error.os_errno, 0);

    full.resume();
    for place in [0, 2, 3, 5] {
        packed.conns[place] = 0;
    }
    assert_eq!(packed.send(20_000).0, Status::Ok);
    assert_eq!(packed.sequences, [0, accepted + 1, 0, 0, accepted + 2, 0]);
    peer.wait_received(2, ms(20_000));
    full.wait_received(accepted + 2, ms(20_000));
}

#[test]
fn a_batch_that_cannot_be_cut_into_messages_sends_nothing() {
    let peer = Peer::any();
    let engine = Engine::new();
    let id = engine.ready(peer.endpoint()).id().0;
    let two = || Packed::of(&[(id, vec![b"first"]), (id, vec![b"second", b""])]);
    let refused = |mut packed: Packed, text: &str| {
        let (status, error) = packed.send(1000);
        assert_eq!((status, packed.statuses()), (Status::Invalid, vec![Status::Invalid; 2]), "{text}");
        assert_eq!(packed.sequences, [0, 0], "{text}");
        // SAFETY: the texts of an error end with NUL.
        let said = unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_str().expect("UTF-8");
        assert!(said.contains(text), "{text:?} is not in {said}");
    };
    let mut packed = two();
    packed.frame_counts[1] = 65_537;
    refused(packed, "frame_counts[1] is 65537");
    let mut packed = two();
    packed.frame_counts = vec![0, u32::MAX];
    refused(packed, "frame_counts[1]");
    let (status, _) = two().send(-2);
    assert_eq!(status, Status::Invalid);

    // NULL for what is not wanted, and for what is empty.
    let (conns, counts, sizes) = ([id], [1], [0]);
    let (null, none) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the arrays live for the call; NULL is allowed where it is given.
    let sent = unsafe {
        capi::kvconn_send_batch_packed(
            conns.as_ptr(),
            counts.as_ptr(),
            1,
            ptr::null(),
            sizes.as_ptr(),
            1000,
            null,
            none,
            ptr::null_mut(),
        )
    };
    assert_eq!(sent, Status::Ok as i32);
    peer.wait_received(1, ms(10_000));
    assert_eq!(peer.messages(), [[vec![0_u8; 0]]]);
}
