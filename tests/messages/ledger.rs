//! Guarantee 5: losses are counted, not guessed.

use std::sync::Arc;
use std::time::Duration;

use crate::common::engine::{Engine, after, message, refused, wait_ended};
use crate::common::{Peer, PeerOptions, Random, TcpView, ms, wait_until};
use kvconn::connection::Connection;
use kvconn::delivery::EndedBy;
use kvconn::error::Status;
use kvconn::events::EventKind;

const LONG: Duration = Duration::from_secs(20);

/// Mostly small frames, some around the lengths at which their header changes, some large.
fn size(random: &mut Random) -> usize {
    let bound = [4, 40, 300, 70_000][random.below(4) as usize];
    let edge = [0, 1, 33, 34, 222, 223, 255, 256][random.below(8) as usize];
    if random.below(4) == 0 { edge } else { random.below(bound) as usize }
}

/// Sends a message of random shape whose first frame is its number; the sequence.
fn send_numbered(conn: &Arc<Connection>, random: &mut Random, number: u64) -> kvconn::error::Result<u64> {
    let number = number.to_le_bytes();
    let body = vec![0x5a; 70_000];
    let sizes: Vec<usize> = (0..random.below(5)).map(|_| size(random)).collect();
    conn.send(
        &mut || {
            let frames: Vec<&[u8]> = std::iter::once(&number[..]).chain(sizes.iter().map(|n| &body[..*n])).collect();
            message(&frames)
        },
        after(LONG),
    )
}

#[test]
fn what_was_drained_is_acknowledged_to_the_byte() {
    let (engine, peer) = (Engine::new(), Peer::with(PeerOptions { log: false, ..PeerOptions::default() }));
    let conn = engine.ready(peer.endpoint());
    let mut random = Random::new(0x1234_5678);
    for round in 1..=20 {
        for _ in 0..100 {
            send_numbered(&conn, &mut random, 0).unwrap();
        }
        let (flushed, acknowledged) = conn.flush(0, after(LONG));
        flushed.unwrap();
        assert_eq!(acknowledged, round * 100);
    }
    peer.wait_received(2000, LONG);
}

#[test]
fn a_stopped_peer_acknowledges_what_its_kernel_holds_and_no_more() {
    let (engine, peer) = (Engine::new(), Peer::with(PeerOptions { log: false, ..PeerOptions::default() }));
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    let sent = engine.fill(&conn, &[7; 20_000]);
    let error = refused(conn.flush(0, after(ms(50))).0, Status::Timeout);
    let before = conn.info().acknowledged.unwrap();
    assert!(before > 0 && before < sent, "{before} of {sent}: {error}");
    peer.resume();
    let (flushed, acknowledged) = conn.flush(0, after(LONG));
    flushed.unwrap();
    assert_eq!(acknowledged, sent);
}

/// A peer that does not read still sends its PINGs. libzmq cannot write meanwhile, and answers all of them later.
#[test]
fn pings_that_were_answered_late_do_not_leave_anything_unacknowledged() {
    const FRAME: u64 = 1 << 20;
    let (heartbeat, rcvhwm) = (ms(60), 1);
    let peer = Peer::with(PeerOptions { heartbeat, rcvhwm, log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("send_hwm", "8")]);
    let conn = engine.ready(peer.endpoint());
    let view = TcpView::of(peer.endpoint());
    peer.pause_reading();
    let sent = engine.fill(&conn, &[7; FRAME as usize]);
    let received = view.received();
    wait_until("fifteen PINGs have come", LONG, || view.received() >= received + 15 * 9);
    peer.resume_reading();
    let (flushed, acknowledged) = conn.flush(0, after(LONG));
    flushed.unwrap();
    assert_eq!(acknowledged, sent);
    let (pings, pongs) = ((view.received() - 92) / 9, (view.acked() - 93 - sent * (FRAME + 9)) / 7);
    // The last ones may be in flight.
    assert!(pings >= 15 && pings.abs_diff(pongs) <= 3, "{pings} PINGs, {pongs} PONGs");
}

#[test]
fn flush_waits_for_the_message_that_is_asked_for() {
    let (engine, peer) = (Engine::new(), Peer::any());
    let conn = engine.ready(peer.endpoint());
    assert_eq!(conn.flush(0, after(Duration::ZERO)).1, 0, "nothing was sent, nothing is to be waited for");
    engine.send(&conn, &[b"one"], LONG).unwrap();
    assert_eq!(conn.flush(1, after(LONG)).1, 1);
    refused(conn.flush(2, after(LONG)).0, Status::Invalid);
}

#[test]
fn a_flush_is_released_when_the_connection_ends() {
    let (engine, peer) = (Engine::new(), Peer::with(PeerOptions { log: false, ..PeerOptions::default() }));
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    engine.fill(&conn, &[7; 20_000]);
    let flushing = conn.clone();
    let flush = crate::common::engine::Waiting::one(move || flushing.flush(0, after(LONG)).0);
    wait_until("the peer holds something", LONG, || conn.info().acknowledged > Some(0));
    let begun = std::time::Instant::now();
    engine.disconnect_endpoint(peer.endpoint()).unwrap();
    let ended = flush.return_within(ms(100), begun);
    assert!(ended.into_iter().all(|result| result.unwrap_err().status == Status::Disconnected));
}

#[test]
fn over_ipc_acknowledgement_is_unknown() {
    let path = format!("ipc:///tmp/kvconn-ledger-{}", std::process::id());
    let (engine, peer) = (Engine::new(), Peer::bind(&path));
    let conn = engine.ready(&path);
    engine.send(&conn, &[b"x"], LONG).unwrap();
    refused(conn.flush(0, after(LONG)).0, Status::Unsupported);
    assert_eq!(conn.info().acknowledged, None);
    peer.kill();
    let end = wait_ended(&conn, LONG);
    assert_eq!((end.acknowledged, end.ended_by), (None, EndedBy::Unknown));
}

/// How it ended is told apart, and every ending counts what was accepted and what was acknowledged.
#[test]
fn an_ending_says_how_and_how_far() {
    let engine = Engine::new();
    let closed = Peer::any();
    let conn = engine.ready(closed.endpoint());
    engine.send(&conn, &[b"drained"], LONG).unwrap();
    closed.wait_received(1, LONG);
    closed.terminate();
    let end = wait_ended(&conn, LONG);
    assert_eq!((end.accepted, end.acknowledged, end.ended_by), (1, Some(1), EndedBy::Fin));
    let event = engine.expect_event(EventKind::PeerLost, LONG);
    assert_eq!(event.delivery.map(|d| (d.acknowledged, d.ended_by)), Some((Some(1), EndedBy::Fin)));

    let full = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let conn = engine.ready(full.endpoint());
    full.stop();
    let sent = engine.fill(&conn, &[7; 20_000]);
    full.kill(); // with unread data: its kernel resets
    let end = wait_ended(&conn, LONG);
    assert_eq!((end.accepted, end.ended_by), (sent, EndedBy::Reset));
    assert!(end.acknowledged.is_some_and(|n| n > 0 && n < sent), "{end:?}");

    let ours = Peer::any();
    let conn = engine.ready(ours.endpoint());
    engine.send(&conn, &[b"x"], LONG).unwrap();
    conn.flush(0, after(LONG)).0.unwrap();
    conn.disconnect().unwrap();
    let end = conn.info();
    assert_eq!((end.acknowledged, end.ended_by), (Some(1), EndedBy::Local));
}

/// Scenario 5: a queue for one life of the peer is never delivered to the next, and every message of it is reported.
#[test]
fn what_a_killed_peer_did_not_acknowledge_is_reported_and_not_delivered_to_its_successor() {
    let (engine, mut peer) = (Engine::new(), Peer::any());
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    let sent = engine.fill(&conn, &[7; 50_000]);
    peer.restart();
    let end = wait_ended(&conn, LONG);
    let acknowledged = end.acknowledged.unwrap();
    assert_eq!(end.accepted, sent);
    assert!(acknowledged < sent, "the queue was full");
    wait_until("the successor is there", LONG, || engine.send_to(peer.endpoint(), &[b"new"], ms(500)).is_ok());
    peer.wait_received(1, LONG);
    assert_eq!(peer.messages(), [[b"new".to_vec()]]);
}

/// Many endings under load, at random moments: what is acknowledged lies between nothing and what was accepted, and a
/// connection whose peer has read everything has acknowledged everything.
#[test]
fn endings_under_load_account_for_every_message() {
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let mut peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let mut random = Random::new(99);
    for round in 0..10 {
        let conn = engine.ready(peer.endpoint());
        let sender = conn.clone();
        let seed = random.below(u64::MAX);
        let sending = std::thread::spawn(move || {
            let mut random = Random::new(seed | 1);
            (0..).take_while(|n| send_numbered(&sender, &mut random, *n).is_ok()).count() as u64
        });
        let until = 50 + random.below(2000);
        wait_until("some were sent", LONG, || conn.info().accepted >= until);
        if round % 2 == 0 {
            peer.restart();
        } else {
            conn.disconnect().unwrap();
        }
        let accepted = sending.join().unwrap();
        let end = wait_ended(&conn, LONG);
        assert_eq!(end.accepted, accepted);
        assert!(end.acknowledged.is_some_and(|n| n <= accepted), "{end:?}");
    }
}
