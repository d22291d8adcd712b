//! A peer whose kernel says that it is gone is lost at once.

use std::time::{Duration, Instant};

use kvconn::delivery::Delivery;
use kvconn::delivery::EndedBy;
use kvconn::events::EventKind;

use crate::common::engine::{after, send};
use crate::common::load::Stopwatch;
use crate::common::{Engine, Peer, ms};

const LONG: Duration = ms(20_000);
const ROUNDS: usize = 10;

/// How soon PEER_LOST comes once `end` is called, on a connection whose peer has one message, read or not.
fn seen_after(peer: &Peer, reads: bool, ended_by: EndedBy, end: impl FnOnce(&Peer)) -> Duration {
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    if !reads {
        peer.stop();
    }
    send(&conn, &[b"the only one"], LONG).expect("its kernel takes it");
    conn.flush(0, after(LONG)).0.expect("its kernel has it");
    if reads {
        peer.wait_received(1, LONG);
    }
    let begun = Instant::now();
    end(peer);
    let over = Stopwatch::start();
    let lost = engine.expect_event(EventKind::PeerLost, LONG);
    over.at_most(ms(100), "seeing the end of a process that is over");
    let delivery = Delivery { accepted: 1, acknowledged: Some(1), ended_by };
    assert_eq!((lost.conn, lost.delivery), (conn.id(), Some(delivery)));
    begun.elapsed()
}

#[test]
fn a_peer_that_dies_or_closes_is_lost_at_once() {
    type Case = (&'static str, bool, EndedBy, fn(&Peer));
    let cases: [Case; 3] = [
        ("SIGKILL, everything read", true, EndedBy::Fin, |peer| peer.kill()),
        ("SIGKILL, something unread", false, EndedBy::Reset, |peer| peer.kill()),
        ("zmq_close", true, EndedBy::Fin, Peer::terminate),
    ];
    for (what, reads, ended_by, end) in cases {
        let mut times: Vec<Duration> = (0..ROUNDS).map(|_| seen_after(&Peer::any(), reads, ended_by, end)).collect();
        times.sort();
        println!("{what}: lost {:?} after that was asked for, at the most {:?}", times[ROUNDS / 2], times[ROUNDS - 1]);
    }
}
