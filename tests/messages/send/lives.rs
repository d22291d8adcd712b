//! A message belongs to one life of the peer, however and whenever that life ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvconn::connection::Connection;
use kvconn::connection::message::Message;
use kvconn::error::{Error, Status};
use kvconn::ids::ConnId;

use crate::common::engine::{after, connection, own_address, send, status_of, wait_ended};
use crate::common::load::Storm;
use crate::common::{Engine, Peer, PeerOptions, ms};
use crate::tagged::{Tag, check_whole_and_in_order};

const LONG: Duration = Duration::from_secs(20);

/// By connection and thread: how many messages were accepted.
type Accepted = Mutex<BTreeMap<(u64, u64), u64>>;

/// Sends to whatever life there is, until it is told to stop.
fn sender(engine: &Engine, endpoint: &str, thread: u64, stop: &AtomicBool, accepted: &Accepted) {
    while !stop.load(Ordering::Relaxed) {
        let conn = match engine.connect(endpoint, ms(2000)) {
            Ok(conn) => connection(conn),
            Err(error) => {
                let known = [Status::ConnectFailed, Status::Backoff, Status::PeerLost, Status::Timeout];
                assert!(known.contains(&error.status), "{error:?}");
                std::thread::sleep(ms(1));
                continue;
            }
        };
        let mut number = accepted.lock().expect("no panic").get(&(conn.id().0, thread)).copied().unwrap_or(0);
        while !stop.load(Ordering::Relaxed) {
            let result = Tag { conn: conn.id().0, thread, number }.send(&conn, 12, 2000, ms(500));
            match status_of(&result) {
                Status::Ok => number += 1,
                Status::Timeout | Status::Stalled => {}
                Status::PeerLost => break,
                _ => panic!("{result:?}"),
            }
        }
        accepted.lock().expect("no panic").insert((conn.id().0, thread), number);
    }
}

/// Guarantees 4 and 7: the pipe dies within a message again and again. No successor sees a piece of it, or anything
/// that was accepted for the life before.
#[test]
fn no_life_gets_a_cut_message_or_one_of_another_life_stress() {
    const THREADS: u64 = 4;
    let bind = format!("tcp://{}:0", own_address());
    let mut peer = Peer::with(PeerOptions { bind, rcvhwm: 20, rcvbuf: 16_384, ..PeerOptions::default() });
    // More than HWM frames are in the queue, so that a message is often half handed over.
    let engine = Engine::with(&[("send_hwm", "30"), ("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let endpoint = peer.endpoint().to_string();
    let (stop, accepted) = (AtomicBool::new(false), Accepted::default());
    let mut lives: Vec<Vec<Tag>> = Vec::new();
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (engine, endpoint, stop, accepted) = (&engine, &endpoint, &stop, &accepted);
                scope.spawn(move || sender(engine, endpoint, thread, stop, accepted))
            })
            .collect();
        let storm = Storm::new(ms(2500));
        let mut round = 0;
        while storm.goes_on(lives.len() >= 5) && !senders.iter().any(|sender| sender.is_finished()) {
            round += 1;
            peer.wait_received(20 + round % 7 * 10, LONG);
            lives.push(check_whole_and_in_order(&peer.messages()));
            peer.restart();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let accepted: BTreeMap<(u64, u64), u64> = accepted.into_inner().expect("no panic");
    let accepted_on = |conn: u64| -> u64 { accepted.range((conn, 0)..(conn + 1, 0)).map(|(_, count)| count).sum() };
    assert!(lives.len() >= 5, "{} lives", lives.len());

    // The last life is not killed: all that was accepted for it arrives.
    if let Ok(last) = engine.find(&endpoint) {
        peer.wait_received(accepted_on(last.0), LONG);
        let tags = check_whole_and_in_order(&peer.messages());
        assert_eq!(tags.len() as u64, accepted_on(last.0));
        assert_eq!(connection(last).info().accepted, accepted_on(last.0));
        lives.push(tags);
    }
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    for (at, life) in lives.iter().enumerate() {
        let conns: BTreeSet<u64> = life.iter().map(|tag| tag.conn).collect();
        assert!(conns.is_disjoint(&seen), "life {at} got messages of a life before: {conns:?} of {seen:?}");
        for &conn in &conns {
            let received = life.iter().filter(|tag| tag.conn == conn).count() as u64;
            let info = connection(ConnId(conn)).info();
            assert_eq!(info.accepted, accepted_on(conn), "connection {conn} counts what it said was accepted");
            assert!(received <= info.accepted, "life {at}: {received} of {}", info.accepted);
        }
        seen.extend(conns);
    }
    println!("{} lives, {} messages", lives.len(), lives.iter().map(Vec::len).sum::<usize>());
}

/// Sends messages of so many frames that one of them is always being handed over, until the peer is gone: how many
/// were accepted, and the errors of the send that ended it and of those after it.
fn send_until_lost(conn: &Arc<Connection>, frames: usize) -> (u64, Error, Vec<Error>) {
    let frame = conn.id().0.to_le_bytes();
    let mut message = || Message::from_frames((0..frames).map(|_| &frame[..]));
    let mut accepted = 0;
    loop {
        match conn.send(&mut message, after(ms(2000))) {
            Ok(_) => accepted += 1,
            Err(error) if matches!(error.status, Status::Timeout | Status::Stalled) => {}
            Err(error) => {
                // libzmq would say OK to these, and swallow them.
                let late = (0..3).map(|_| send(conn, &[b"late"], Duration::ZERO).expect_err("nobody is there"));
                return (accepted, error, late.collect());
            }
        }
    }
}

/// The same where it hits one message for sure: with so many frames that the peer dies while they are handed over.
#[test]
fn a_message_whose_pipe_dies_between_two_frames_is_refused_and_so_is_all_that_follows() {
    let bind = format!("tcp://{}:0", own_address());
    let mut peer = Peer::with(PeerOptions { bind, log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1"), ("send_hwm", "20")]);
    let begun = Instant::now();
    let (mut lives, mut broken) = (0, 0);
    while broken < 3 {
        assert!(begun.elapsed() < 3 * LONG, "in {lives} lives no message was hit");
        lives += 1;
        let conn = engine.ready(peer.endpoint());
        let sender = || {
            let conn = conn.clone();
            std::thread::spawn(move || send_until_lost(&conn, 10_000))
        };
        let senders = [(); 3].map(|()| sender());
        std::thread::sleep(ms(5 + lives % 20));
        peer.kill();
        let mut accepted = 0;
        for sender in senders {
            let (ok, error, late) = sender.join().expect("a sender");
            accepted += ok;
            broken += u32::from(error.message.contains("within a message"));
            for error in late.into_iter().chain([error]) {
                assert_eq!((error.status, error.conn), (Status::PeerLost, conn.id()), "{error:?}");
            }
        }
        let info = wait_ended(&conn, LONG);
        assert_eq!((info.status, info.accepted), (Status::PeerLost, accepted));
        peer.restart();
    }
    println!("{broken} messages were hit in {lives} lives");
    send(&engine.ready(peer.endpoint()), &[b"new"], LONG).expect("a new life");
    peer.wait_received(1, LONG);
    assert_eq!(peer.received().bytes, 3, "nothing of the lives before");
}
