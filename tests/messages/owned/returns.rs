//! When buffers are released, and with what outcome.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvconn::connection::Connection;
use kvconn::delivery::Outcome;
use kvconn::error::Status;

use super::buffers::{Buffers, LONG};
use crate::common::engine::{LARGE, Waiting, after, connection, narrow_peer, refused, send, wait_ended, wait_waiting};
use crate::common::load::within;
use crate::common::{Engine, Peer, PeerOptions, ms, soak_time, wait_until};

/// Small buffers, odd ones, empty ones, and some that libzmq writes without copying.
fn frames(number: u8) -> Vec<Vec<u8>> {
    [1, 0, 33, 34, 255, 256, 8192, 70_000].map(|size| vec![number; size]).into()
}

#[test]
fn what_the_peer_has_is_released_as_acknowledged_in_order_on_its_own_thread() {
    let (engine, peer, buffers) = (Engine::new(), Peer::any(), Buffers::new());
    let conn = engine.ready(peer.endpoint());
    for number in 1..=50 {
        assert_eq!(buffers.send(&conn, frames(number), LONG).unwrap(), u64::from(number));
    }
    for number in 1..=50 {
        let released = buffers.released();
        assert_eq!((released.conn, released.sequence, released.outcome), (conn.id(), number, Outcome::Acknowledged));
        assert_eq!(released.thread.as_deref(), Some("kvconn-release"));
    }
    wait_until("all count as released", LONG, || conn.info().released == 50);
    peer.wait_received(50, LONG);
    let arrived = peer.messages();
    for (number, message) in (1..=50).zip(arrived) {
        assert!(message == frames(number), "message {number} is not as it was sent");
    }
    assert_eq!(buffers.released_so_far(), []);
}

/// Scenario 24.
#[test]
fn what_a_stopped_peer_does_not_take_is_released_by_a_disconnect_and_not_before() {
    const SIZE: usize = 64 << 20;
    let (engine, peer, buffers) = (Engine::new(), narrow_peer(1), Buffers::new());
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    for number in 1..=3 {
        assert_eq!(buffers.send(&conn, vec![vec![number; SIZE]], LONG).unwrap(), u64::from(number));
    }
    refused(conn.wait_released(0, after(ms(300))), Status::Timeout);
    assert_eq!((buffers.released_so_far(), conn.info().released), (vec![], 0));
    conn.disconnect().unwrap();
    let mut released = [buffers.released(), buffers.released(), buffers.released()];
    released.sort_by_key(|released| released.sequence);
    assert_eq!(
        released.map(|released| (released.sequence, released.outcome)),
        [1, 2, 3].map(|n| (n, Outcome::Unacknowledged))
    );
    conn.wait_released(3, after(LONG)).unwrap();
    assert_eq!((buffers.released_so_far(), conn.info().released, conn.info().accepted), (vec![], 3, 3));
}

#[test]
fn a_killed_peers_buffers_come_back_with_the_outcome_of_the_ledger() {
    let (engine, peer, buffers) = (Engine::new(), narrow_peer(1), Buffers::new());
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    let sent = (1..=20).take_while(|number| buffers.send(&conn, vec![vec![*number; 64 * 1024]], ms(50)).is_ok()).count()
        as u64;
    assert!(sent > 2);
    peer.kill();
    let info = wait_ended(&conn, LONG);
    let mut released: Vec<_> = (0..sent).map(|_| buffers.released()).collect();
    released.sort_by_key(|released| released.sequence);
    for (released, sequence) in released.iter().zip(1..) {
        let known = Some(sequence) <= info.acknowledged;
        assert_eq!(
            (released.sequence, released.outcome == Outcome::Acknowledged),
            (sequence, known),
            "{released:?} {info:?}"
        );
    }
}

#[test]
fn without_acknowledgement_the_outcome_is_unknown_and_buffers_come_back_once_libzmq_has_written_them() {
    let directory = std::env::temp_dir().join(format!("kvconn-owned-{}", std::process::id()));
    let bind = format!("ipc://{}", directory.display());
    for (bind, settings) in [(&*bind, &[][..]), ("tcp://127.0.0.1:0", &[("acknowledgement", "off")][..])] {
        let (engine, peer, buffers) =
            (Engine::new(), Peer::with(PeerOptions { bind: bind.into(), ..PeerOptions::default() }), Buffers::new());
        let conn = engine.ready_with(peer.endpoint(), settings);
        for number in 1..=20 {
            buffers.send(&conn, frames(number), LONG).unwrap();
        }
        conn.wait_released(0, after(LONG)).unwrap();
        let released = buffers.released_so_far();
        assert_eq!(released.iter().map(|released| released.sequence).collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
        assert!(released.iter().all(|released| released.outcome == Outcome::Unknown), "{released:?}");
        peer.wait_received(20, LONG);
        assert!(peer.messages().into_iter().zip(1..).all(|(message, number)| message == frames(number)));
        // What it does not read, libzmq holds until the end.
        peer.stop();
        let mut sent = 0;
        while buffers.send(&conn, vec![LARGE.into()], ms(20)).is_ok() && sent < 500 {
            sent += 1;
        }
        assert!(buffers.released_so_far().len() < sent);
        conn.disconnect().unwrap();
        conn.wait_released(0, after(LONG)).unwrap();
    }
}

/// The form without a function, which callers from other languages use.
#[test]
fn without_a_function_the_connection_says_up_to_where_buffers_are_released() {
    let (engine, peer) = (Engine::new(), narrow_peer(1));
    let conn = engine.ready(peer.endpoint());
    conn.wait_released(0, after(Duration::ZERO)).expect("no buffer is in flight");
    let buffer = vec![7; 1 << 20];
    // SAFETY: the buffer is as old as the test's last wait.
    let send_owned = |conn: &Arc<Connection>| unsafe { conn.send_owned(&[&raw const buffer[..]], None, after(LONG)) };
    let first = send_owned(&conn).unwrap();
    send(&conn, &[b"copied"], LONG).unwrap();
    conn.wait_released(0, after(LONG)).unwrap();
    assert_eq!((first, conn.info().released), (1, 2), "a copied message has no buffer in flight");
    refused(conn.wait_released(3, after(LONG)), Status::Invalid);

    peer.stop();
    let second = send_owned(&conn).unwrap();
    let third = send_owned(&conn).unwrap();
    let begun = Instant::now();
    refused(within(ms(2000), "a wait", || conn.wait_released(third, after(ms(100)))), Status::Timeout);
    assert!(begun.elapsed() >= ms(100));
    assert_eq!(conn.info().released, second - 1);
    let waiting = {
        let conn = conn.clone();
        Waiting::one(move || conn.wait_released(third, after(LONG)))
    };
    peer.resume();
    waiting.return_within(LONG, Instant::now()).remove(0).unwrap();
    assert_eq!((conn.info().released, conn.info().acknowledged), (third, Some(third)));
    conn.disconnect().unwrap();
    conn.wait_released(third, after(Duration::ZERO)).expect("also once it has ended");
}

#[test]
fn a_refused_message_keeps_no_buffer() {
    let (engine, peer, buffers) = (Engine::with(&[("send_hwm", "2")]), narrow_peer(1), Buffers::new());
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    let full = engine.fill(&conn, LARGE);
    refused(buffers.send(&conn, frames(1), Duration::ZERO), Status::Timeout);
    let released = conn.info().released;
    assert_eq!(released, full);
    let waiting = {
        let conn = conn.clone();
        Waiting::one(move || {
            let buffers = Buffers::new();
            (buffers.send(&conn, frames(2), LONG).map_err(|error| error.status), buffers.released_so_far())
        })
    };
    wait_waiting(&conn, 1, LONG);
    conn.disconnect().unwrap();
    let (sent, released) = waiting.return_within(LONG, Instant::now()).remove(0);
    assert_eq!((sent, released), (Err(Status::Disconnected), vec![]));
    refused(buffers.send(&conn, frames(3), LONG), Status::Disconnected);
    refused(buffers.send(&connection(conn.id()), vec![], LONG), Status::Disconnected);
    let healthy = Peer::any();
    let other = engine.ready(healthy.endpoint());
    refused(buffers.send(&other, vec![], LONG), Status::Invalid);
    assert_eq!(buffers.released_so_far(), []);
}

/// A pipe that dies in the middle of a message: libzmq has taken some of its frames, and the caller gets all of them
/// back.
#[test]
fn a_message_cut_by_its_peers_death_keeps_no_buffer_once_the_call_returns() {
    const FRAMES: usize = 10_000;
    let engine = Engine::with(&[("send_hwm", "20"), ("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let begun = Instant::now();
    let (mut lives, mut cut) = (0, 0);
    while cut < 3 {
        assert!(begun.elapsed() < 3 * LONG, "in {lives} lives no message was cut");
        lives += 1;
        let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
        // The port may be that of a peer before it, whose loss is a moment ago.
        let conn = engine.ready_with(peer.endpoint(), &[("connect_retry", "1")]);
        // Of several one is always handing a message over.
        let senders = [(); 3].map(|()| {
            let conn = conn.clone();
            std::thread::spawn(move || {
                let buffers = Buffers::new();
                loop {
                    if let Err(error) = buffers.send(&conn, vec![vec![7; 40]; FRAMES], LONG) {
                        break (error, buffers);
                    }
                }
            })
        });
        std::thread::sleep(ms(5 + lives % 20));
        peer.kill();
        let ended = senders.map(|sender| sender.join().expect("a sender"));
        conn.wait_released(0, after(LONG)).unwrap();
        let mut released = 0;
        for (error, buffers) in ended {
            assert_eq!(error.status, Status::PeerLost, "{error:?}");
            cut += u32::from(error.message.contains("within a message"));
            released += buffers.released_so_far().len() as u64;
        }
        assert_eq!(released, conn.info().accepted, "each accepted message is released once, and no other");
    }
    println!("{cut} messages were cut in {lives} lives");
}

#[test]
fn large_buffers_arrive_whole_soak() {
    let sizes: &[usize] =
        if soak_time(ms(0)) > ms(0) { &[1, 1 << 20, 300 << 20, 1 << 30] } else { &[1, 1 << 20, 300 << 20] };
    let (engine, peer, buffers) =
        (Engine::new(), Peer::with(PeerOptions { log: false, ..PeerOptions::default() }), Buffers::new());
    let conn = engine.ready(peer.endpoint());
    for (count, size) in (1..).zip(sizes) {
        let before = peer.received().bytes;
        buffers.send(&conn, vec![vec![9; *size]], LONG).unwrap();
        assert_eq!(buffers.released().outcome, Outcome::Acknowledged);
        let received = peer.wait_received(count, LONG);
        assert_eq!(received.bytes - before, *size as u64);
    }
}
