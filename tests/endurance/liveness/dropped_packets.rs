//! Scenario 17: packets are dropped silently.

use std::time::{Duration, Instant};

use kvconn::connection::ConnectionState;
use kvconn::delivery::Delivery;
use kvconn::delivery::EndedBy;
use kvconn::error::Status;
use kvconn::events::EventKind;

use crate::common::engine::{LARGE, after, refused, send, waiting_senders};
use crate::common::load::Stopwatch;
use crate::common::{Engine, Namespace, Peer, PeerOptions, TcpView, ms, wait_until};
use crate::skip_unless;

const LONG: Duration = Duration::from_secs(20);
/// The kernel's timers are late by up to an eighth, and the loss must then be reported.
const HEAD_ROOM: Duration = ms(600);

/// Where a network namespace can be made, the next two tests show what comes of it.
#[test]
fn the_kernels_patience_is_that_of_keepalive_while_nothing_is_in_flight() {
    for (keepalive_idle_s, idle) in [("30", 45_000), ("0", 70_000)] {
        let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
        let user_timeout = ("user_timeout_ms", "70000");
        let engine = Engine::with(&[("keepalive_idle_s", keepalive_idle_s), user_timeout, ("stall_ms", "200")]);
        let conn = engine.ready(peer.endpoint());
        let view = TcpView::of(peer.endpoint());
        assert_eq!(view.user_timeout(), idle, "nothing was sent");
        peer.stop();
        engine.fill(&conn, LARGE);
        assert_eq!(view.user_timeout(), 70_000, "something is in flight");
        peer.resume();
        conn.flush(0, after(LONG)).0.expect("it reads again");
        wait_until("it is idle again", LONG, || view.user_timeout() == idle);
    }
}

/// Each switch is a system call, in the sender and in the watcher.
#[test]
fn the_kernels_patience_is_not_switched_while_messages_follow_each_other() {
    let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("user_timeout_ms", "70000"), ("stall_ms", "100")]);
    let conn = engine.ready(peer.endpoint());
    let view = TcpView::of(peer.endpoint());
    let deadline = Instant::now() + LONG;
    loop {
        let (mut last, mut longest_pause, mut seen) = (Instant::now(), Duration::ZERO, Vec::new());
        for _ in 0..40 {
            send(&conn, &[b"one of many"], LONG).expect("a healthy peer");
            conn.flush(0, after(LONG)).0.expect("it reads");
            longest_pause = longest_pause.max(last.elapsed());
            last = Instant::now();
            // Longer than the watcher takes to find that nothing is in flight.
            std::thread::sleep(ms(40));
            seen.push(view.user_timeout());
        }
        if longest_pause < ms(300) {
            assert_eq!(seen, [70_000; 40]);
            break;
        }
        assert!(Instant::now() < deadline, "the machine is too busy: a message came {longest_pause:?} after another");
    }
    wait_until("it is idle", LONG, || view.user_timeout() == 45_000);
}

/// Keepalive, whatever the user timeout is: that one is for data in flight.
#[test]
fn an_idle_peer_behind_dropped_packets_is_lost_when_its_probes_go_unanswered() {
    skip_unless!(Namespace::available());
    let network = Namespace::new();
    let peer = network.peer(PeerOptions::default());
    let user_timeouts = ["120000", "0", "1500", "10000"];
    let engines = user_timeouts.map(|user_timeout| {
        Engine::with(&[
            ("keepalive_idle_s", "1"),
            ("keepalive_interval_s", "1"),
            ("keepalive_count", "2"),
            ("user_timeout_ms", user_timeout),
        ])
    });
    let conns = engines.each_ref().map(|engine| engine.ready(peer.endpoint()));
    for conn in &conns {
        send(conn, &[b"the only one"], LONG).expect("a healthy peer");
        conn.flush(0, after(LONG)).0.expect("a healthy peer");
    }
    // The last packet of each came a moment ago, and the probes are counted from then.
    let last_packet = Stopwatch::start();
    network.cut();
    for ((engine, conn), user_timeout) in engines.iter().zip(&conns).zip(user_timeouts) {
        let lost = engine.expect_event(EventKind::PeerLost, LONG);
        println!(
            "idle, keepalive 1 s / 1 s / 2, user timeout {user_timeout} ms: lost after {:?}",
            last_packet.elapsed()
        );
        last_packet.between(ms(2000), ms(3000) + HEAD_ROOM, "keepalive 1 s / 1 s / 2");
        let delivery = Delivery { accepted: 1, acknowledged: Some(1), ended_by: EndedBy::Timeout };
        assert_eq!((lost.conn, lost.count, lost.delivery), (conn.id(), 1, Some(delivery)), "{user_timeout} ms");
        refused(send(conn, &[b"late"], ms(0)), Status::PeerLost);
    }
}

#[test]
fn data_in_flight_behind_dropped_packets_ends_the_connection_after_the_user_timeout() {
    skip_unless!(Namespace::available());
    let network = Namespace::new();
    let peer = network.peer(PeerOptions::default());
    let engine = Engine::with(&[("user_timeout_ms", "2000"), ("send_hwm", "4")]);
    let conn = engine.ready(peer.endpoint());
    for _ in 0..10 {
        send(&conn, &[b"before"], LONG).expect("a healthy peer");
    }
    conn.flush(0, after(LONG)).0.expect("a healthy peer");
    // 0.2 s, and seconds if the machine was late with the first answers.
    let again = TcpView::of(peer.endpoint()).retransmission_timeout();
    network.cut();
    let first_in_flight = Stopwatch::start();
    let filled = engine.fill(&conn, LARGE);
    let senders = waiting_senders(&conn, 3);
    let lost = engine.expect_event(EventKind::PeerLost, LONG);
    let at = Instant::now();
    println!("user timeout 2000 ms, sent again after {again:?}: lost after {:?}", first_in_flight.elapsed());
    first_in_flight.between(ms(1990), ms(2000) + again + HEAD_ROOM, "a user timeout of 2000 ms");
    for result in senders.return_within(ms(100), at) {
        refused(result, Status::PeerLost);
    }
    // The ten arrived; of what came after, not a byte did.
    let delivery = Delivery { accepted: 10 + filled, acknowledged: Some(10), ended_by: EndedBy::Timeout };
    assert_eq!((lost.count, lost.delivery), (10 + filled, Some(delivery)));
    peer.wait_received(10, LONG);
    assert_eq!(peer.received().messages, 10);
}

/// The watcher's first look at a busy connection comes after 250 ms, and finds what the peer answered before. `stall_ms`
/// counts from there, so that a message sent in between is not called stalled early.
#[test]
fn a_peer_that_stops_answering_before_the_first_look_stalls_in_time() {
    skip_unless!(Namespace::available());
    let network = Namespace::new();
    let peer = network.peer(PeerOptions::default());
    let engine = Engine::with(&[("stall_ms", "1000"), ("user_timeout_ms", "2000")]);
    let conn = engine.ready(peer.endpoint());
    let watch = Stopwatch::start();
    send(&conn, &[b"answered"], LONG).expect("a healthy peer");
    // Asking kvconn would be a look. The SYN, the greeting, READY, and the message with its header.
    let all = 1 + 64 + 28 + 2 + 8;
    let view = TcpView::of(peer.endpoint());
    wait_until("the peer's kernel has acknowledged it", LONG, || view.acked() == all);
    drop(view);
    network.cut();
    watch.at_most(ms(240), "cutting the network");
    send(&conn, &[b"not answered"], LONG).expect("there is room");
    let unanswered = Stopwatch::start();
    engine.expect_event(EventKind::Stalled, LONG);
    println!("stall_ms 1000: STALLED after {:?}", watch.elapsed());
    unanswered.between(ms(990), ms(1350), "STALLED");
    let lost = engine.expect_event(EventKind::PeerLost, LONG);
    let delivery = Delivery { accepted: 2, acknowledged: Some(1), ended_by: EndedBy::Timeout };
    assert_eq!(lost.delivery, Some(delivery));
}

#[test]
fn packets_that_are_dropped_for_less_than_the_timeouts_cost_nothing() {
    skip_unless!(Namespace::available());
    let network = Namespace::new();
    let peer = network.peer(PeerOptions { log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[
        ("keepalive_idle_s", "1"),
        ("keepalive_interval_s", "1"),
        ("keepalive_count", "10"),
        ("user_timeout_ms", "15000"),
    ]);
    let (idle, busy) = (Engine::with(&[("keepalive_idle_s", "1"), ("keepalive_count", "10")]), &engine);
    let (idle_conn, conn) = (idle.ready(peer.endpoint()), busy.ready(peer.endpoint()));
    let mut sent = 0;
    for cut in [true, false] {
        if cut {
            network.cut();
        }
        let begun = Instant::now();
        while begun.elapsed() < ms(2000) {
            // While it is cut these wait in the kernel and in the queue.
            sent += u64::from(send(&conn, &[b"some", b"bytes"], ms(0)).is_ok());
            std::thread::sleep(ms(5));
        }
        network.restore();
    }
    let (flushed, acknowledged) = conn.flush(0, after(LONG));
    flushed.expect("the network is whole again");
    assert_eq!(acknowledged, sent);
    peer.wait_received(sent, LONG);
    for (engine, conn) in [(&idle, idle_conn), (busy, conn)] {
        assert_eq!(conn.info().state, ConnectionState::Ready);
        assert_eq!(engine.events_of(EventKind::PeerLost).len(), 0);
        send(&conn, &[b"still the same connection"], LONG).expect("it lives");
        conn.flush(0, after(LONG)).0.expect("it lives");
    }
    peer.wait_received(sent + 2, LONG);
}
