//! Whole messages in each thread's order, and sequence numbers that count them, under any mixture of senders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvconn::connection::{Connection, ConnectionState};
use kvconn::error::Status;

use crate::common::engine::{Waiting, refused, send, status_of, text, wait_waiting};
use crate::common::{Engine, Peer, PeerOptions, ms};
use crate::tagged::{Tag, check_whole_and_in_order};

const LONG: Duration = Duration::from_secs(20);

/// Scenario 10.
#[test]
fn messages_of_eight_threads_arrive_whole_and_in_each_threads_order() {
    const THREADS: u64 = 8;
    const EACH: u64 = 3000;
    let peer = Peer::any();
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let conn = &conn;
            scope.spawn(move || {
                for number in 0..EACH {
                    let tag = Tag { conn: conn.id().0, thread, number };
                    tag.send(conn, 6, 40, LONG).expect("a healthy peer");
                }
            });
        }
    });
    assert_eq!(conn.info().accepted, THREADS * EACH);
    peer.wait_received(THREADS * EACH, LONG);
    let tags = check_whole_and_in_order(&peer.messages());
    assert_eq!(tags.len() as u64, THREADS * EACH);
    assert_eq!(conn.info().rescues, 0);
}

/// What one thread sent: the number within the thread, and the sequence it got.
fn sender(conn: &Arc<Connection>, thread: u64, each: u64, retries: &AtomicU64) -> Vec<(Tag, u64)> {
    let mut sent = Vec::new();
    for number in 0..each {
        let tag = Tag { conn: conn.id().0, thread, number };
        // A third never waits, a third waits a little, a third waits: all ways through the gate, mixed.
        let timeout = [ms(0), ms(1), LONG][(thread % 3) as usize];
        loop {
            match tag.send(conn, 1 + thread % 4, 1500, timeout) {
                Ok(sequence) => break sent.push((tag, sequence)),
                Err(error) => {
                    assert!(matches!(error.status, Status::Timeout | Status::Stalled), "{error:?}");
                    assert!(timeout < LONG, "{error:?}");
                    retries.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
        }
    }
    sent
}

/// Guarantee 7, with threads that pass others in the gate, threads that wait, and threads that give up.
#[test]
fn sequences_count_the_messages_in_the_order_in_which_they_arrive() {
    const THREADS: u64 = 9;
    const EACH: u64 = 300;
    // A queue of ten before a slow peer, and more than the kernel holds: most senders find it full.
    let slow = PeerOptions { delay: Duration::from_micros(200), rcvhwm: 2, rcvbuf: 4096, ..PeerOptions::default() };
    let peer = Peer::with(slow);
    let engine = Engine::with(&[("send_hwm", "10")]);
    let conn = engine.ready(peer.endpoint());
    let retries = AtomicU64::new(0);
    let mut sent: Vec<(Tag, u64)> = std::thread::scope(|scope| {
        let (conn, retries) = (&conn, &retries);
        let senders: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || sender(conn, thread, EACH, retries))).collect();
        senders.into_iter().flat_map(|sender| sender.join().expect("a sender")).collect()
    });
    assert!(retries.load(Ordering::Relaxed) > 100, "the queue was never full: this tests nothing");
    sent.sort_by_key(|(_, sequence)| *sequence);
    assert!(sent.iter().map(|(_, sequence)| *sequence).eq(1..=THREADS * EACH), "1, 2, 3, each once");
    peer.wait_received(THREADS * EACH, LONG);
    let arrived = check_whole_and_in_order(&peer.messages());
    assert!(arrived.iter().eq(sent.iter().map(|(tag, _)| tag)), "they arrive in the order of their sequences");
    let info = conn.info();
    assert_eq!((info.accepted, info.rescues, info.waiting), (THREADS * EACH, 0, 0));
}

/// Guarantee 4: nothing is accepted before the handshake, and after it the sender that waited longest comes first.
#[test]
fn senders_that_wait_for_ready_are_accepted_in_the_order_of_their_coming() {
    const SENDERS: u32 = 6;
    let peer = Peer::any();
    // The kernel accepts the connection, the peer does not shake hands.
    peer.stop();
    let engine = Engine::with(&[("handshake_timeout_ms", "20000")]);
    let conn = engine.lazy(peer.endpoint());
    let waiting = (0..SENDERS).map(|number| {
        let sender = conn.clone();
        let one = Waiting::one(move || send(&sender, &[number.to_string().as_bytes()], LONG));
        wait_waiting(&conn, number + 1, LONG);
        one
    });
    let waiting = waiting.reduce(Waiting::and).expect("senders");
    // A send that would not wait does not get in either.
    for _ in 0..100 {
        refused(send(&conn, &[b"early"], ms(0)), Status::Timeout);
    }
    let info = conn.info();
    assert_eq!((info.state, info.accepted, info.waiting), (ConnectionState::Connecting, 0, SENDERS));
    peer.resume();
    for (number, result) in waiting.return_within(LONG, Instant::now()).into_iter().enumerate() {
        assert_eq!(result.expect("the peer is there"), number as u64 + 1);
    }
    peer.wait_received(u64::from(SENDERS), LONG);
    let texts: Vec<String> = peer.messages().iter().map(|message| text(message)).collect();
    assert_eq!(texts, ["0", "1", "2", "3", "4", "5"]);
}

/// The peer dies in the middle of the handshake: the senders that wait for it return at once.
#[test]
fn senders_that_wait_for_ready_fail_when_the_peer_dies_before_it() {
    let peer = Peer::any();
    peer.stop();
    let engine = Engine::with(&[("handshake_timeout_ms", "20000")]);
    let conn = engine.lazy(peer.endpoint());
    let sender = conn.clone();
    let waiting = (0..4).map(|_| {
        let sender = sender.clone();
        Waiting::one(move || send(&sender, &[b"x"], LONG))
    });
    let waiting = waiting.reduce(Waiting::and).expect("senders");
    wait_waiting(&conn, 4, LONG);
    let begun = Instant::now();
    peer.kill();
    let killed = begun.elapsed();
    for result in waiting.return_within(killed + ms(200), begun) {
        refused(result, Status::ConnectFailed);
    }
    let info = conn.info();
    assert_eq!((info.status, info.accepted, info.ready_for), (Status::ConnectFailed, 0, Duration::ZERO));
}

/// What is sent while the connection is being dialled, by threads that come and go, arrives once and in order.
#[test]
fn a_thundering_start_loses_and_doubles_nothing() {
    const THREADS: u64 = 8;
    for _ in 0..10 {
        let peer = Peer::any();
        let engine = Engine::new();
        let conn = engine.lazy(peer.endpoint());
        let accepted: u64 = std::thread::scope(|scope| {
            let sender = |thread| {
                let conn = &conn;
                scope.spawn(move || {
                    let mut accepted = 0;
                    for attempt in 0..50 {
                        let tag = Tag { conn: conn.id().0, thread, number: accepted };
                        let result = tag.send(conn, 2, 40, ms(attempt % 3));
                        match status_of(&result) {
                            Status::Ok => accepted += 1,
                            // STALLED: it has been connecting for longer than this send would wait.
                            Status::Timeout | Status::Stalled => {}
                            _ => panic!("{result:?}"),
                        }
                    }
                    accepted
                })
            };
            let senders: Vec<_> = (0..THREADS).map(sender).collect();
            senders.into_iter().map(|sender| sender.join().expect("a sender")).sum()
        });
        assert_eq!(conn.info().accepted, accepted);
        // One more, which waits for READY whatever the others did.
        assert_eq!(Tag { conn: conn.id().0, thread: 99, number: 0 }.send(&conn, 1, 40, LONG).unwrap(), accepted + 1);
        peer.wait_received(accepted + 1, LONG);
        assert_eq!(check_whole_and_in_order(&peer.messages()).len() as u64, accepted + 1);
    }
}
