//! What happens in one manager does not reach another.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvconn::error::Status;
use kvconn::events::EventKind;
use kvconn::ids::{ConnId, ManagerId, NodeId};
use kvconn::process::Process;
use kvconn::timeout::Timeout;

use crate::common::engine::{LARGE, SetOnDrop, narrow_peer, options, refused, send, text, waiting_senders};
use crate::common::{Engine, OwnProcess, Peer, ms};
use crate::test_name;

const LONG: Duration = Duration::from_secs(10);

/// Scenario 41.
#[test]
fn a_manager_that_fails_nodes_overflows_and_is_destroyed_disturbs_no_other() {
    let (steady, stuck, shared) = (Peer::any(), narrow_peer(1), Peer::any());
    let other = Engine::new();
    let stream = other.ready(steady.endpoint());
    let also_shared = other.ready(shared.endpoint());
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let streaming = scope.spawn(|| {
            let mut sent = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let accepted = send(&stream, &[format!("{}", sent + 1).as_bytes()], ms(2000)).expect("not disturbed");
                sent += 1;
                assert_eq!(accepted, sent);
                std::thread::sleep(Duration::from_micros(300));
            }
            sent
        });
        let engine = Engine::with(&[("max_events", "2"), ("send_hwm", "4"), ("stall_ms", "50")]);
        let full = engine.ready(stuck.endpoint());
        stuck.stop();
        engine.fill(&full, LARGE);
        let senders = waiting_senders(&full, 4);
        for round in 0..60 {
            let node = engine.node("n", &[shared.endpoint(), "tcp://127.0.0.1:9"]);
            engine.node_track_request(node, round).expect("live");
            engine.ready(shared.endpoint());
            let failure = engine.handle_failure(node, Some("x")).expect("live");
            engine.leave_failure(failure);
        }
        drop(engine);
        for result in senders.return_within(LONG, std::time::Instant::now()) {
            refused(result, Status::Disconnected);
        }
        drop(stopping);
        streaming.join().expect("the stream")
    });
    steady.wait_received(sent, LONG);
    assert!(steady.messages().iter().map(|message| text(message)).eq((1..=sent).map(|n| n.to_string())));
    // The endpoint that failed sixty times over there is connected here, and was so all the time.
    other.send(&also_shared, &[b"x"], ms(1000)).expect("not disturbed");
    assert_eq!(steady.received().accepted, 1);
    let kinds: Vec<_> = other.events().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Ready; 2]);
    assert!(other.take_failure().is_none());
}

#[test]
fn two_managers_share_no_connection_node_fence_event_or_setting() {
    let peer = Peer::any();
    let (a, b) = (Engine::with(&[("send_timeout_ms", "30")]), Engine::new());
    let nodes = [&a, &b].map(|engine| engine.node("prefill", &[peer.endpoint()]));
    let conns = [&a, &b].map(|engine| engine.ready(peer.endpoint()));
    assert_ne!(nodes[0], nodes[1]);
    assert_ne!(conns[0].id(), conns[1].id());
    peer.wait_for("each has a connection of its own", LONG, |totals| totals.handshakes == 2);

    // The id of one manager's node means nothing to the other.
    refused(b.handle_failure(nodes[0], None), Status::Stale);
    refused(b.node_track_request(nodes[0], 1), Status::Stale);
    refused(b.node_info(nodes[0]), Status::Stale);
    let process = Process::current().expect("a process");
    assert_eq!(process.node(nodes[0]).expect("a's").id(), a.id());
    assert_eq!(process.node(nodes[1]).expect("b's").id(), b.id());

    drop(a.handle_failure(nodes[0], Some("x")).expect("live"));
    refused(a.send_to(peer.endpoint(), &[b"x"], ms(1000)), Status::NodeFailed);
    let (conn, _) = b.send_to(peer.endpoint(), &[b"x"], ms(1000)).expect("no fence here");
    assert_eq!(conn, conns[1].id());
    assert_eq!((a.connections().len(), b.connections()), (0, vec![conns[1].id()]));
    assert_eq!(a.events_of(EventKind::NodeFailed).len(), 2);
    assert_eq!(b.events_of(EventKind::NodeFailed).len(), 0);
    assert_ne!(a.event_fd().expect("a descriptor"), b.event_fd().expect("a descriptor"));

    let wait = |engine: &Engine| {
        let begun = std::time::Instant::now();
        assert_eq!(engine.next_event(Timeout::Default).expect("none").kind, EventKind::None);
        begun.elapsed()
    };
    let (short, long) = (wait(&a), wait(&b));
    assert!(short < ms(500) && long >= ms(1000), "{short:?}, {long:?}");
}

#[test]
fn the_default_manager_is_always_there_and_cannot_be_destroyed() {
    let process = Process::current().expect("a process");
    let default = process.manager(ManagerId::NONE).expect("always there");
    assert_eq!(default.id(), ManagerId::NONE);
    refused(process.destroy_manager(ManagerId::NONE, Timeout::Default), Status::Invalid);
    process.manager(ManagerId::NONE).expect("still there");
    for id in [ManagerId(u64::MAX), ManagerId(Engine::new().node("n", &[]).0)] {
        let stale = process.manager(id).map(|manager| manager.id());
        refused(stale, Status::Stale);
        refused(process.destroy_manager(id, Timeout::Default), Status::Stale);
    }
}

/// An id of another kind is a mistake of the caller's that the text names.
#[test]
fn an_id_of_another_kind_is_named_as_such() {
    let (process, engine, peer) = (Process::current().expect("a process"), Engine::new(), Peer::any());
    let (node, conn) = (engine.node("n", &[]).0, engine.ready(peer.endpoint()).id().0);
    let message = |error: kvconn::error::Error| error.message;
    let as_conn = |id| message(refused(process.connection(ConnId(id)).map(|conn| conn.id()), Status::Stale));
    let as_node = |id| message(refused(process.node(NodeId(id)).map(|manager| manager.id()), Status::Stale));
    let as_manager = |id| message(refused(process.manager(ManagerId(id)).map(|manager| manager.id()), Status::Stale));
    let manager = engine.id().0;
    assert_eq!(
        [as_conn(node), as_manager(node)],
        [format!("{node} is the id of a node"), format!("{node} is the id of a node")]
    );
    assert_eq!([as_node(conn), as_manager(conn)], [conn, conn].map(|id| format!("{id} is the id of a connection")));
    assert_eq!(
        [as_conn(manager), as_node(manager)],
        [manager, manager].map(|id| format!("{id} is the id of a manager"))
    );
}

#[test]
fn a_manager_takes_settings_of_managers_and_connections_and_no_others() {
    let process = Process::current().expect("a process");
    for setting in [("io_threads", "2"), ("max_descriptors", "100"), ("connect_retry", "1")] {
        let error = refused(process.create_manager(Some(&options(&[setting]))), Status::Invalid);
        assert!(error.message.contains(setting.0), "{}", error.message);
    }
    let contradiction = options(&[("backoff_ms", "5000"), ("backoff_max_ms", "10")]);
    refused(process.create_manager(Some(&contradiction)), Status::Invalid);
    let engine = Engine::with(&[("max_nodes", "1"), ("send_hwm", "5")]);
    refused(engine.configure(&contradiction), Status::Invalid);
    refused(engine.configure(&options(&[("io_threads", "2")])), Status::Invalid);
    engine.node("a", &[]);
    refused(engine.node_open("b"), Status::Limit);
}

/// A bound for loops that forget to destroy.
#[test]
fn a_thousand_managers_are_the_most_and_their_ids_are_never_reused() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let process = Process::current().expect("a process");
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let mut all = Vec::new();
        let error = loop {
            match process.create_manager(None) {
                Ok(id) => all.push(id),
                Err(error) => break error,
            }
            assert!(all.len() < 10_000, "there is no limit");
        };
        assert_eq!((error.status, all.len()), (Status::Limit, 1024));
        assert!(error.message.contains("1024"), "{}", error.message);
        for id in all {
            assert!(seen.insert(id), "{id} was given out twice");
            process.destroy_manager(id, Timeout::Default).expect("a manager");
        }
    }
}
