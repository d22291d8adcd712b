//! Senders that wait for room are released by whatever ends their connection, at once and with the reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::engine::{
    LARGE, after, canonical, narrow_peer, own_address, refused, send, status_of, wait_ended, waiting_senders,
};
use crate::common::load::within;
use crate::common::{
    Engine, OwnProcess, Peer, PeerOptions, closed_port, descriptors_at_rest, held_descriptors, ms, wait_until,
};
use crate::test_name;
use kvconn::connection::Connection;
use kvconn::error::Status;
use kvconn::events::EventKind;
use kvconn::ids::NodeId;
use kvconn::manager::Manager;

const LONG: Duration = Duration::from_secs(10);
/// The bound of guarantee 1 is 10 ms.
const AT_ONCE: Duration = ms(100);

/// A way to end a connection, and the status that says so.
type End = (&'static str, Status, fn(&Manager, &Arc<Connection>, NodeId));

const ENDS: [End; 5] = [
    ("disconnect", Status::Disconnected, |_, conn, _| conn.disconnect().unwrap()),
    ("disconnect_endpoint", Status::Disconnected, |manager, conn, _| {
        manager.disconnect_endpoint(&conn.endpoint().to_string()).unwrap();
    }),
    ("node_remove_endpoints", Status::Disconnected, |manager, conn, node| {
        manager.node_remove_endpoints(node, &[&conn.endpoint().to_string()]).unwrap();
    }),
    ("handle_failure", Status::NodeFailed, |manager, _, node| drop(manager.handle_failure(node, None).unwrap())),
    ("disconnect_all", Status::Disconnected, |manager, _, _| {
        // TIMEOUT: without time to flush, the sockets need not be gone yet.
        manager.disconnect_all(after(Duration::ZERO)).ok();
    }),
];

/// Scenario 1, for every call that ends a connection: one head and four behind it, in a send of half a minute.
#[test]
fn five_senders_blocked_on_a_stopped_peer_are_released_by_every_end() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let engine = Engine::with(&[("send_hwm", "4")]);
    // libzmq and the threads are there from now on.
    let peer = Peer::any();
    engine.ready(peer.endpoint()).disconnect().unwrap();
    let before = descriptors_at_rest();

    for (call, status, end) in ENDS {
        let peer = narrow_peer(1);
        let node = engine.node("prefill", &[peer.endpoint()]);
        let conn = engine.ready(peer.endpoint());
        peer.stop();
        let accepted = engine.fill(&conn, LARGE);
        let senders = waiting_senders(&conn, 5);
        engine.events();

        let begun = Instant::now();
        within(AT_ONCE, call, || end(&engine, &conn, node));
        for result in senders.return_within(2 * AT_ONCE, begun) {
            let error = refused(result, status);
            assert_eq!((error.conn, error.endpoint), (conn.id(), canonical(peer.endpoint())), "{call}");
        }
        let info = conn.info();
        assert_eq!((info.status, info.accepted, info.waiting, info.rescues), (status, accepted, 0, 0), "{call}");
        let endings: Vec<_> = engine.events().into_iter().filter(|event| event.conn == conn.id()).collect();
        assert_eq!(endings.iter().map(|event| (event.status, event.count)).collect::<Vec<_>>(), [(status, accepted)]);
        // What came too late gets the same, without waiting.
        refused(within(AT_ONCE, "a late send", || send(&conn, &[LARGE], LONG)), status);

        peer.resume();
        wait_until("every descriptor is given back", LONG, || held_descriptors() == before);
        // The peer may have got what was accepted, or less; nothing that was refused.
        peer.wait_for("it has seen the end", LONG, |totals| totals.disconnected == 1);
        let received = peer.received();
        assert!(received.messages <= accepted, "{call}: {accepted} accepted, {} received", received.messages);
    }
}

/// Guarantee 1: they wait for the handshake here, and nothing was ever accepted.
#[test]
fn senders_blocked_before_ready_are_released_by_every_end() {
    let engine = Engine::new();
    for (call, status, end) in ENDS {
        let peer = Peer::any();
        let node = engine.node("prefill", &[peer.endpoint()]);
        peer.stop();
        let conn = engine.lazy(peer.endpoint());
        let senders = waiting_senders(&conn, 5);
        let begun = Instant::now();
        within(AT_ONCE, call, || end(&engine, &conn, node));
        for result in senders.return_within(2 * AT_ONCE, begun) {
            refused(result, status);
        }
        let info = conn.info();
        assert_eq!((info.status, info.accepted, info.ready_for), (status, 0, Duration::ZERO), "{call}");
        peer.resume();
        peer.wait_for("it has seen the end", LONG, |totals| totals.accepted == totals.disconnected);
        assert_eq!(peer.received().messages, 0, "{call}");
    }
}

/// Scenario 2: the peer is killed while the released senders return, and the endpoint is used at once.
#[test]
fn the_endpoint_of_a_killed_peer_is_used_again_while_its_senders_leave() {
    let engine = Engine::with(&[("send_hwm", "4"), ("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    for round in 0..8 {
        let bind = format!("tcp://{}:0", own_address());
        let mut peer = Peer::with(PeerOptions { bind, rcvbuf: 4096, rcvhwm: 1, log: false, ..Default::default() });
        let first = engine.ready(peer.endpoint());
        peer.stop();
        let accepted = engine.fill(&first, LARGE);
        let senders = waiting_senders(&first, 4);
        let begun = Instant::now();
        let status = if round % 2 == 0 {
            within(AT_ONCE, "disconnect", || engine.disconnect_endpoint(peer.endpoint())).unwrap();
            peer.kill();
            Status::Disconnected
        } else {
            peer.kill();
            Status::PeerLost
        };
        let killed = begun.elapsed();
        // There is no listener: B's own result, at once.
        let result = within(AT_ONCE, "a connect to the killed peer", || engine.connect(peer.endpoint(), ms(5000)));
        match status_of(&result) {
            Status::ConnectFailed | Status::Backoff => {}
            // It may still have found the first connection, whose loss it then saw.
            Status::Ok | Status::PeerLost if status == Status::PeerLost => {}
            _ => panic!("round {round}: {result:?}"),
        }
        peer.restart();
        let mut second = None;
        wait_until("it is connected again", LONG, || {
            second = engine.send_to(peer.endpoint(), &[b"second"], ms(5000)).ok();
            second.is_some()
        });
        let (second, sequence) = second.unwrap();
        assert!(second > first.id() && sequence == 1, "a life of its own");
        for result in senders.return_within(killed + 2 * AT_ONCE, begun) {
            refused(result, status);
        }
        let info = first.info();
        assert_eq!((info.status, info.accepted), (status, accepted), "round {round}");
        peer.wait_received(1, LONG);
        assert_eq!(peer.received().bytes, 6, "nothing of the first life came");
    }
}

/// Guarantee 1: the loss of a peer is seen by an idle thread, by one that sends, and by one that waits for room.
#[test]
fn a_loss_is_seen_within_a_moment_by_idle_sending_and_waiting_threads() {
    for kind in ["killed", "ended"] {
        let engine = Engine::with(&[("send_hwm", "4")]);
        let peer = Peer::with(PeerOptions { endpoints: 3, rcvbuf: 4096, rcvhwm: 1, log: false, ..Default::default() });
        let [idle, sending, waiting] = [0, 1, 2].map(|at| engine.ready(&peer.endpoints()[at]));
        // An idle thread is told by the event.
        let events = engine.manager().clone();
        let idle_id = idle.id();
        let reader = crate::common::engine::Waiting::one(move || {
            loop {
                let event = events.next_event(after(LONG)).unwrap();
                if event.kind != EventKind::Ready && event.conn == idle_id {
                    return Err(kvconn::error::Error::new(event.status, "an event"));
                }
                assert_ne!(event.kind, EventKind::None, "no event of the idle connection's end");
            }
        });
        let busy = sending.clone();
        let sender = crate::common::engine::Waiting::one(move || {
            loop {
                let error = send(&busy, &[b"one", b"two", b"three"], LONG).err();
                if let Some(error) = error {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        peer.pause_reading();
        engine.fill(&waiting, LARGE);
        let blocked = waiting_senders(&waiting, 5);

        let begun = Instant::now();
        match kind {
            "killed" => peer.kill(),
            _ => peer.terminate(),
        }
        // Killing or ending the process takes a moment of its own.
        let took = begun.elapsed();
        for result in reader.and(sender).and(blocked).return_within(took + AT_ONCE, begun) {
            let error = result.expect_err("the peer is gone");
            assert_eq!(error.status, Status::PeerLost, "{kind}: {error:?}");
        }
        for conn in [&idle, &sending, &waiting] {
            assert_eq!(wait_ended(conn, AT_ONCE).status, Status::PeerLost, "{kind}");
        }
    }
}

/// Guarantee 1: the call that ends a connection does not wait for its senders, and a new life does not wait for the
/// old.
#[test]
fn a_new_life_works_while_threads_are_released_from_the_old() {
    let engine = Engine::with(&[("send_hwm", "4")]);
    let peer = narrow_peer(1);
    for round in 0..4 {
        let old = engine.ready(peer.endpoint());
        peer.pause_reading();
        let accepted = engine.fill(&old, LARGE);
        let senders = waiting_senders(&old, 16);
        let received = peer.received().messages;
        let begun = Instant::now();
        engine.disconnect_endpoint(peer.endpoint()).unwrap();
        let new = engine.lazy(peer.endpoint());
        assert_ne!(new.id(), old.id());
        assert_eq!(send(&new, &[b"new"], LONG).expect("the peer lives"), 1, "round {round}");
        for result in senders.return_within(2 * AT_ONCE, begun) {
            refused(result, Status::Disconnected);
        }
        assert_eq!(old.info().accepted, accepted);
        peer.resume_reading();
        peer.wait_for("the new message", LONG, |totals| totals.messages > received);
        new.disconnect().unwrap();
    }
}

/// A thread that waits between two dials is released as well; nothing is dialled after the disconnect.
#[test]
fn many_threads_on_many_endpoints_are_released_by_many_at_once() {
    const ENDPOINTS: usize = 6;
    let engine = Engine::with(&[("send_hwm", "4")]);
    let peer = narrow_peer(ENDPOINTS);
    let closed = closed_port();
    let conns: Vec<_> = peer.endpoints().iter().map(|endpoint| engine.ready(endpoint)).collect();
    peer.stop();
    std::thread::scope(|scope| {
        let fills: Vec<_> = conns.iter().map(|conn| scope.spawn(|| engine.fill(conn, LARGE))).collect();
        fills.into_iter().for_each(|fill| _ = fill.join().expect("a full queue"));
    });
    let senders =
        conns.iter().map(|conn| waiting_senders(conn, 8)).reduce(crate::common::engine::Waiting::and).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for conn in &conns {
            let engine = &engine;
            let endpoint = conn.endpoint().to_string();
            scope.spawn(move || within(AT_ONCE, "disconnect", || engine.disconnect_endpoint(&endpoint)).unwrap());
        }
        // Beside them, a fence for what was never connected.
        within(AT_ONCE, "disconnect", || engine.disconnect_endpoint(&closed.endpoint())).unwrap();
    });
    for result in senders.return_within(2 * AT_ONCE, begun) {
        refused(result, Status::Disconnected);
    }
    refused(engine.send_to(&closed.endpoint(), &[b"x"], LONG), Status::Disconnected);
}
