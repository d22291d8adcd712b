//! Scenario 16: every deadline is kept, and an error means that the message was not accepted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvconn::connection::Connection;
use kvconn::error::Status;
use kvconn::timeout::Timeout;

use crate::common::engine::{LARGE, after, message, narrow_peer, send, status_of, text};
use crate::common::load::{Stopwatch, within};
use crate::common::{Engine, Peer, PeerOptions, ms, soak_time};

const LONG: Duration = Duration::from_secs(20);
/// The guarantee is 20 ms.
const LATE: Duration = ms(100);

/// A send on a full queue; how long it took. STALLED may come before the deadline, TIMEOUT not.
#[track_caller]
fn fails_in_time(conn: &Arc<Connection>, timeout: Duration) -> Duration {
    let watch = Stopwatch::of_this_thread();
    let error = send(conn, &[LARGE], timeout).expect_err("the queue is full");
    let took = watch.elapsed();
    watch.at_most(timeout + LATE, "a send on a full queue");
    match error.status {
        Status::Timeout => assert!(took >= timeout, "TIMEOUT after {took:?} of {timeout:?}"),
        Status::Stalled => assert!(!timeout.is_zero(), "{error:?}"),
        _ => panic!("{error:?}"),
    }
    took
}

#[test]
fn deadlines_on_a_full_queue_are_kept_at_the_head_and_behind_it() {
    let peer = narrow_peer(1);
    let engine = Engine::with(&[("send_hwm", "4"), ("send_timeout_ms", "150")]);
    let conn = engine.ready(peer.endpoint());
    for timeout in [ms(0), ms(1), ms(10), ms(150), ms(1000)] {
        // A little progress, so that no send is refused for the time before.
        peer.resume();
        send(&conn, &[LARGE], LONG).expect("the peer reads");
        peer.stop();
        let accepted = conn.info().accepted + engine.fill(&conn, LARGE);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| fails_in_time(&conn, timeout));
            }
        });
        assert_eq!((conn.info().accepted, conn.info().waiting), (accepted, 0));
    }
    // Without time, without waiting, however often.
    within(ms(1000), "a thousand sends without time", || {
        for _ in 0..1000 {
            assert_eq!(status_of(&send(&conn, &[LARGE], ms(0))), Status::Timeout);
        }
    });
    // The configured time, and one that no clock can add.
    let default = conn.send(&mut || message(&[LARGE]), Timeout::Default);
    assert_eq!(status_of(&default), Status::Stalled, "nothing has moved for longer than 150 ms");
    let sender = conn.clone();
    let forever = std::thread::spawn(move || send(&sender, &[LARGE], Duration::MAX));
    peer.resume();
    forever.join().unwrap().expect("the peer reads again");
}

#[test]
fn deadlines_before_ready_are_kept_at_the_head_and_behind_it() {
    let peer = Peer::any();
    peer.stop();
    let engine = Engine::with(&[("handshake_timeout_ms", "20000")]);
    let dialled = Instant::now();
    let conn = engine.lazy(peer.endpoint());
    for timeout in [ms(0), ms(10), ms(300)] {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    fails_in_time(&conn, timeout);
                    // STALLED counts from the beginning of the dial: it comes when that is older than the timeout.
                    assert!(dialled.elapsed() >= timeout, "given up before the dial was {timeout:?} old");
                });
            }
        });
    }
    // Together with the dial, in one deadline.
    let other = Peer::any();
    other.stop();
    let watch = Stopwatch::start();
    let result = engine.manager().send_to(other.endpoint(), &mut || message(&[b"x"]), after(ms(200)));
    assert_eq!(status_of(&result), Status::Timeout);
    watch.between(ms(200), ms(200) + LATE, "a send_to a peer that does not shake hands");
}

/// One sender's life: with every kind of timeout in turn. Returns the texts that were accepted.
fn sender(conn: &Arc<Connection>, thread: u64, stop: &AtomicBool) -> (BTreeSet<String>, u64) {
    let mut accepted = BTreeSet::new();
    let mut failed = 0;
    for number in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let text = format!("{thread} {number}");
        let timeout = [ms(0), ms(1), ms(3), ms(20), ms(100)][((number + thread) % 5) as usize];
        let watch = Stopwatch::of_this_thread();
        let result = send(conn, &[text.as_bytes(), &LARGE[..2000]], timeout);
        watch.at_most(timeout + LATE, "a send");
        match status_of(&result) {
            Status::Ok => _ = accepted.insert(text),
            Status::Timeout | Status::Stalled => {
                failed += 1;
                // A full queue is not worth a whole processor to this thread.
                std::thread::sleep(Duration::from_micros(200));
            }
            _ => panic!("{result:?}"),
        }
    }
    (accepted, failed)
}

/// Guarantee 4, where it is most easily broken: at the edge of a full queue, with a peer that stops and goes on.
#[test]
fn what_arrives_is_what_was_accepted_and_nothing_that_failed_stress() {
    let peer = Peer::with(PeerOptions { rcvhwm: 4, rcvbuf: 4096, ..PeerOptions::default() });
    let engine = Engine::with(&[("send_hwm", "20")]);
    let conn = engine.ready(peer.endpoint());
    let stop = AtomicBool::new(false);
    let (accepted, failed) = std::thread::scope(|scope| {
        let (conn, stop) = (&conn, &stop);
        let senders: Vec<_> = (0..12).map(|thread| scope.spawn(move || sender(conn, thread, stop))).collect();
        let begun = Instant::now();
        let mut pause = 0;
        while begun.elapsed() < soak_time(ms(2500)) && !senders.iter().any(|sender| sender.is_finished()) {
            pause = (pause * 7 + 13) % 120;
            peer.stop();
            std::thread::sleep(ms(pause));
            peer.resume();
            std::thread::sleep(ms(pause / 2));
        }
        stop.store(true, Ordering::Relaxed);
        senders.into_iter().map(|sender| sender.join().expect("a sender")).fold(
            (BTreeSet::new(), 0),
            |(mut all, failures), (accepted, failed)| {
                all.extend(accepted);
                (all, failures + failed)
            },
        )
    });
    println!("{} accepted, {failed} failed", accepted.len());
    assert!(accepted.len() > 100 && failed > 100, "{} accepted, {failed} failed", accepted.len());
    assert_eq!(conn.info().accepted, accepted.len() as u64);
    assert_eq!(conn.info().rescues, 0);
    peer.wait_received(accepted.len() as u64, LONG);
    let messages = peer.messages();
    let arrived: BTreeSet<String> = messages.iter().map(|message| text(&message[..1])).collect();
    assert_eq!(arrived.len(), messages.len(), "no message twice");
    assert!(arrived == accepted, "lost or refused and sent: {:?}", arrived.symmetric_difference(&accepted));
}
