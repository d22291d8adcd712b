//! A peer that is not there yet, or not any more: nothing is accepted into nothing.

use std::time::{Duration, Instant};

use kvconn::error::Status;
use kvconn::events::EventKind;

use crate::common::engine::{refused, send, status_of, text, wait_ended};
use crate::common::load::{Stopwatch, within};
use crate::common::{Engine, Peer, closed_port, ms, wait_until};

const LIMIT: Duration = Duration::from_secs(10);
const AT_ONCE: Duration = ms(100);

/// Scenario 3, the first half.
#[test]
fn sends_to_a_closed_port_fail_at_once_and_those_after_the_peer_came_arrive() {
    let port = closed_port();
    let endpoint = port.endpoint();
    let engine = Engine::new();
    for number in 0..20 {
        let send = || engine.send_to(&endpoint, &[format!("early {number}").as_bytes()], LIMIT);
        // Long before the send's own deadline.
        let result = within(ms(1000), "a send to a closed port", send);
        assert!(matches!(status_of(&result), Status::ConnectFailed | Status::Backoff), "{result:?}");
    }
    let error = refused(engine.send_to(&endpoint, &[b"early"], LIMIT), Status::Backoff);
    let wait = error.retry_after.expect("when to come back");
    let number = port.port();
    drop(port);
    let peer = Peer::restart_on(number);
    std::thread::sleep(wait + ms(2));
    for number in 0..5 {
        engine.send_to(&endpoint, &[format!("late {number}").as_bytes()], LIMIT).expect("the peer is there");
    }
    peer.wait_received(5, LIMIT);
    let texts: Vec<String> = peer.messages().iter().map(|message| text(message)).collect();
    assert_eq!(texts, ["late 0", "late 1", "late 2", "late 3", "late 4"]);
}

/// Scenario 4.
#[test]
fn sends_while_the_peer_is_gone_fail_and_the_next_life_gets_only_what_was_sent_to_it() {
    let mut peer = Peer::any();
    let engine = Engine::with(&[("backoff_ms", "50"), ("backoff_max_ms", "50")]);
    let first = engine.ready(peer.endpoint());
    send(&first, &[b"first life"], LIMIT).expect("sent");
    peer.wait_received(1, LIMIT);
    peer.kill();
    let lost = engine.expect_event(EventKind::PeerLost, LIMIT);
    assert_eq!((lost.conn, lost.count), (first.id(), 1));
    for _ in 0..3 {
        let gap = within(AT_ONCE, "a send in the gap", || refused(send(&first, &[b"gap"], LIMIT), Status::PeerLost));
        assert_eq!(gap.conn, first.id());
        let gap = within(AT_ONCE, "a send_to in the gap", || engine.send_to(peer.endpoint(), &[b"gap"], LIMIT));
        assert!(matches!(status_of(&gap), Status::ConnectFailed | Status::Backoff), "{gap:?}");
    }
    peer.restart();
    let mut sent = None;
    wait_until("the step is over", LIMIT, || {
        sent = engine.send_to(peer.endpoint(), &[b"second life"], LIMIT).ok();
        sent.is_some()
    });
    let (second, sequence) = sent.unwrap();
    assert!(second != first.id() && sequence == 1, "a new life counts from 1");
    refused(send(&first, &[b"late"], LIMIT), Status::PeerLost);
    peer.wait_received(1, LIMIT);
    assert_eq!(peer.messages(), [[b"second life".to_vec()]]);
}

/// Guarantee 2, from the moment of the kill on: a send is accepted before the loss is seen, or refused for ever.
#[test]
fn from_the_first_refusal_on_a_dead_connection_accepts_nothing() {
    for round in 0..10 {
        let peer = Peer::any();
        let engine = Engine::new();
        let conn = engine.ready(peer.endpoint());
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut accepted = 0u64;
                loop {
                    match send(&conn, &[b"one", b"two", b"three"], LIMIT) {
                        Ok(sequence) => {
                            accepted += 1;
                            assert_eq!(sequence, accepted);
                        }
                        Err(error) => {
                            assert_eq!(error.status, Status::PeerLost, "{error:?}");
                            return accepted;
                        }
                    }
                    assert!(begun.elapsed() < LIMIT, "the loss is not seen");
                }
            });
            std::thread::sleep(ms(5 * round));
            peer.kill();
            let killed = Stopwatch::start();
            let accepted = sender.join().unwrap();
            killed.at_most(AT_ONCE, "seeing the loss");
            for _ in 0..1000 {
                refused(send(&conn, &[b"late"], ms(0)), Status::PeerLost);
            }
            assert_eq!(wait_ended(&conn, LIMIT).accepted, accepted, "the count is what was OK");
            assert_eq!(engine.events_of(EventKind::PeerLost).iter().map(|e| e.count).collect::<Vec<_>>(), [accepted]);
        });
    }
}

/// Scenario 5.
#[test]
fn what_was_queued_for_one_life_is_never_delivered_to_the_next() {
    let mut peer = Peer::any();
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    // The kernel takes some of these, libzmq keeps the rest.
    for number in 0..30 {
        assert_eq!(send(&conn, &[&[number; 512 * 1024]], LIMIT).expect("accepted"), u64::from(number) + 1);
    }
    peer.restart();
    let lost = engine.expect_event(EventKind::PeerLost, LIMIT);
    assert_eq!((lost.conn, lost.count), (conn.id(), 30));
    std::thread::sleep(ms(5));
    engine.send_to(peer.endpoint(), &[b"for you"], LIMIT).expect("the new life");
    peer.wait_received(1, LIMIT);
    // Whatever the old socket could still bring would come before or right after.
    std::thread::sleep(ms(200));
    assert_eq!(peer.messages(), [[b"for you".to_vec()]]);
    assert_eq!(peer.received().accepted, 1);
}
