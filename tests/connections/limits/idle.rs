//! `idle_timeout_ms` and `evict_idle`: an idle connection is closed, and never one with an unacknowledged message.

use std::time::{Duration, Instant};

use kvconn::delivery::EndedBy;
use kvconn::error::Status;
use kvconn::events::EventKind;

use crate::common::engine::{LARGE, after, connection, narrow_peer, refused, send, wait_ended};
use crate::common::load::Storm;
use crate::common::{Engine, Peer, PeerOptions, ms, wait_until};

const LONG: Duration = Duration::from_secs(20);

#[test]
fn an_idle_connection_is_evicted_and_the_next_send_dials_again() {
    let (engine, peer) = (Engine::with(&[("idle_timeout_ms", "300")]), Peer::any());
    let conn = engine.ready(peer.endpoint());
    // As long as something is sent, it lives.
    let begun = Instant::now();
    while begun.elapsed() < ms(900) {
        send(&conn, &[b"busy"], LONG).expect("it is not idle");
        std::thread::sleep(ms(50));
    }
    let last = Instant::now();
    let info = wait_ended(&conn, LONG);
    assert!(last.elapsed() > ms(250), "evicted {:?} after its last message", last.elapsed());
    assert_eq!((info.status, info.ended_by), (Status::Evicted, EndedBy::Local));
    assert_eq!(info.acknowledged, Some(info.accepted));
    let events = engine.events();
    let endings: Vec<_> = events.iter().filter(|event| event.kind != EventKind::Ready).collect();
    assert_eq!(
        endings.iter().map(|event| (event.kind, event.status)).collect::<Vec<_>>(),
        [(EventKind::Evicted, Status::Evicted)]
    );
    refused(send(&conn, &[b"late"], LONG), Status::Evicted);
    conn.flush(0, after(LONG)).0.expect("all is acknowledged");
    let (again, sequence) = engine.send_to(peer.endpoint(), &[b"again"], LONG).expect("not fenced");
    assert_eq!(sequence, 1);
    assert_ne!(again, conn.id());
    peer.wait_received(info.accepted + 1, LONG);
    // Also one over which nothing was ever sent.
    wait_ended(&connection(again), LONG);
    let unused = engine.ready(peer.endpoint());
    assert_eq!(wait_ended(&unused, LONG).status, Status::Evicted);
}

#[test]
fn what_is_not_acknowledged_keeps_a_connection() {
    let (engine, peer) = (Engine::with(&[("idle_timeout_ms", "100")]), narrow_peer(1));
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    for _ in 0..20 {
        send(&conn, &[LARGE], LONG).unwrap();
    }
    std::thread::sleep(ms(1000));
    assert_eq!(conn.info().status, Status::Ok);
    peer.resume();
    let info = wait_ended(&conn, LONG);
    assert_eq!((info.status, info.acknowledged), (Status::Evicted, Some(20)));
    peer.wait_received(20, LONG);
}

#[test]
fn without_acknowledgements_only_an_unused_connection_is_evicted() {
    let ipc = format!("ipc://{}", std::env::temp_dir().join(format!("kvconn-idle-{}", std::process::id())).display());
    for (bind, settings) in [(&*ipc, &[][..]), ("tcp://127.0.0.1:0", &[("acknowledgement", "off")][..])] {
        let peer = Peer::with(PeerOptions { bind: bind.into(), ..PeerOptions::default() });
        let engine = Engine::with(&[("idle_timeout_ms", "100")]);
        let used = engine.ready_with(peer.endpoint(), settings);
        send(&used, &[b"x"], LONG).unwrap();
        peer.wait_received(1, LONG);
        std::thread::sleep(ms(500));
        assert_eq!(used.info().status, Status::Ok);
        used.disconnect().unwrap();
        assert_eq!(wait_ended(&engine.ready(peer.endpoint()), LONG).status, Status::Evicted);
    }
}

#[test]
fn the_idlest_connection_makes_room_when_there_is_none() {
    let peers: Vec<_> = (0..5).map(|_| Peer::any()).collect();
    let engine = Engine::with(&[("max_endpoints", "3"), ("evict_idle", "1"), ("stall_ms", "100")]);
    // The first belongs to a node, the second is the idlest of the others.
    engine.node("a node", &[peers[0].endpoint()]);
    let conns: Vec<_> = peers[..3].iter().map(|peer| engine.ready(peer.endpoint())).collect();
    for conn in [&conns[1], &conns[2], &conns[0]] {
        send(conn, &[b"x"], LONG).unwrap();
        conn.flush(0, after(LONG)).0.unwrap();
        // Messages in flight are looked at ten times each stall_ms.
        wait_until("it is known to be idle", LONG, || conn.try_idle().is_some());
        std::thread::sleep(ms(100));
    }
    let (fourth, _) = engine.send_to(peers[3].endpoint(), &[b"room"], LONG).expect("one makes room");
    assert_eq!(wait_ended(&conns[1], LONG).status, Status::Evicted);
    assert_eq!(engine.connections(), [conns[0].id(), conns[2].id(), fourth]);
    // A registration asks for room as well; what it registers is not evicted for it.
    wait_until("the fourth is known to be idle", LONG, || connection(fourth).try_idle().is_some());
    engine.node("another", &[peers[2].endpoint(), peers[4].endpoint()]);
    assert_eq!(wait_ended(&connection(fourth), LONG).status, Status::Evicted);
    assert_eq!(engine.connections(), [conns[0].id(), conns[2].id()]);
    // Now all belong to nodes.
    let error = refused(engine.connect(peers[1].endpoint(), LONG), Status::Limit);
    assert!(error.message.contains("max_endpoints is 3"), "{}", error.message);
}

/// The watcher looks at what is in flight only now and then. What is acknowledged is idle before it has looked.
#[test]
fn an_acknowledged_connection_makes_room_at_once() {
    let peers: Vec<_> = (0..3).map(|_| Peer::any()).collect();
    let engine = Engine::with(&[("max_endpoints", "2"), ("evict_idle", "1")]);
    let mut conns: Vec<_> = peers[..2].iter().map(|peer| engine.ready(peer.endpoint())).collect();
    for round in 0..6 {
        for conn in &conns {
            send(conn, &[b"x"], LONG).unwrap();
            conn.flush(0, after(LONG)).0.unwrap();
            std::thread::sleep(ms(15));
        }
        let next = engine.connect(peers[(round + 2) % 3].endpoint(), LONG).expect("all is acknowledged");
        // The one that was used first.
        assert_eq!(conns.remove(0).info().status, Status::Evicted);
        assert_eq!(conns[0].info().status, Status::Ok);
        conns.push(connection(next));
    }
}

#[test]
fn without_an_idle_connection_there_is_no_room() {
    let (stopped, other) = (narrow_peer(1), Peer::any());
    let engine = Engine::with(&[("max_endpoints", "1"), ("evict_idle", "1")]);
    let conn = engine.ready(stopped.endpoint());
    stopped.stop();
    engine.fill(&conn, LARGE);
    refused(engine.connect(other.endpoint(), LONG), Status::Limit);
    assert_eq!(conn.info().status, Status::Ok);
    stopped.resume();
    conn.flush(0, after(LONG)).0.unwrap();
    wait_until("it is idle", LONG, || engine.connect(other.endpoint(), LONG).is_ok());
    assert_eq!(conn.info().status, Status::Evicted);
}

/// A send whose connection is being evicted succeeds, or says that nothing was accepted.
#[test]
fn an_eviction_loses_no_message_of_concurrent_senders_stress() {
    let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("idle_timeout_ms", "1"), ("stall_ms", "10")]);
    let endpoint = peer.endpoint();
    let (mut accepted, mut evicted) = (0, 0);
    let storm = Storm::new(ms(3000));
    let mut last = engine.send_to(endpoint, &[b"x"], LONG).expect("a healthy peer").0;
    accepted += 1;
    while storm.goes_on(evicted > 20) {
        std::thread::sleep(Duration::from_micros(accepted * 3_701 % 60_000));
        let (conn, _) = engine.send_to(endpoint, &[b"x"], LONG).expect("a healthy peer");
        evicted += u64::from(conn != last);
        (last, accepted) = (conn, accepted + 1);
    }
    println!("{accepted} messages over {} connections", evicted + 1);
    assert!(evicted > 20);
    assert_eq!(peer.wait_received(accepted, LONG).messages, accepted);
    for event in engine.events_of(EventKind::Evicted) {
        assert_eq!(event.delivery.and_then(|delivery| delivery.acknowledged), Some(event.count), "{event:?}");
    }
}
