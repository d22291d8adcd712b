//! Events: one ending for each connection, queued before the call that caused it returns; the descriptor; many readers.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::common::engine::{
    SetOnDrop, Waiting, after, canonical, options, own_address, refused, status_of, wait_ended,
};
use crate::common::load::Stopwatch;
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, WrongPeer, closed_port, ms, open_descriptors, wait_until};
use crate::test_name;
use kvconn::connection::Connection;
use kvconn::error::Status;
use kvconn::events::{Event, EventKind};
use kvconn::ids::{ConnId, NodeId};

const LONG: Duration = Duration::from_secs(10);

fn is_ending(kind: EventKind) -> bool {
    use EventKind::{ConnectFailed, Disconnected, NodeFailed, PeerLost};
    matches!(kind, ConnectFailed | PeerLost | Disconnected | NodeFailed)
}

/// Whether the descriptor is readable within the time.
fn readable(fd: RawFd, wait: Duration) -> bool {
    let mut item = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live item.
    let count = unsafe { libc::poll(&mut item, 1, wait.as_millis() as i32) };
    assert!(count >= 0 && item.revents & !libc::POLLIN == 0, "poll: {count}, {:#x}", item.revents);
    count == 1
}

/// Three READY connections to one node, that accepted 1, 2 and 3 messages; their READY events are read.
fn three_ready(engine: &Engine, peer: &Peer) -> (NodeId, Vec<Arc<Connection>>) {
    let endpoints: Vec<&str> = peer.endpoints().iter().map(String::as_str).collect();
    let node = engine.node("n", &endpoints);
    let conns: Vec<_> = endpoints.iter().map(|endpoint| engine.ready(endpoint)).collect();
    for (at, conn) in conns.iter().enumerate() {
        (0..=at).for_each(|_| assert!(engine.send(conn, &[b"x"], ms(1000)).is_ok()));
    }
    let ready: Vec<_> = engine.events().iter().map(|e| (e.kind, e.status, e.conn, e.count)).collect();
    let expected: Vec<_> = conns.iter().map(|conn| (EventKind::Ready, Status::Ok, conn.id(), 0)).collect();
    assert_eq!(ready, expected);
    (node, conns)
}

/// Whichever call ends connections: when it returns, each has raised one ending, with the right contents.
#[test]
fn each_connection_raises_one_ending_before_the_call_that_caused_it_returns() {
    type Call = fn(&Engine, NodeId, &[Arc<Connection>]);
    let calls: [(&str, EventKind, Call); 5] = [
        ("kvconn_disconnect", EventKind::Disconnected, |_, _, conns| {
            conns.iter().for_each(|conn| conn.disconnect().expect("ended"));
        }),
        ("kvconn_disconnect_endpoint", EventKind::Disconnected, |engine, _, conns| {
            conns.iter().for_each(|conn| engine.disconnect_endpoint(conn.endpoint().as_str()).expect("ended"));
        }),
        ("kvconn_disconnect_all", EventKind::Disconnected, |engine, _, _| {
            engine.disconnect_all(after(LONG)).expect("ended");
        }),
        ("kvconn_node_remove_endpoints", EventKind::Disconnected, |engine, node, conns| {
            let endpoints: Vec<&str> = conns.iter().map(|conn| conn.endpoint().as_str()).collect();
            engine.node_remove_endpoints(node, &endpoints).expect("live");
        }),
        ("xid 79", EventKind::NodeFailed, |engine, node, _| {
            drop(engine.handle_failure(node, Some("xid 79")).expect("live"));
        }),
    ];
    for (cause, kind, call) in calls {
        let peer = Peer::with(PeerOptions { endpoints: 3, ..PeerOptions::default() });
        let engine = Engine::new();
        let (node, conns) = three_ready(&engine, &peer);
        let begun = SystemTime::now();
        call(&engine, node, &conns);
        let events = engine.events();
        let (of_node, of_conns): (Vec<_>, Vec<_>) = events.iter().partition(|event| event.node == node);
        assert_eq!(of_conns.len(), 3, "{cause}: {events:?}");
        for event in of_conns {
            let conn = conns.iter().find(|conn| conn.id() == event.conn).expect("one of the three, each once");
            let status = if kind == EventKind::NodeFailed { Status::NodeFailed } else { Status::Disconnected };
            assert_eq!((event.kind, event.status, event.os_errno), (kind, status, 0), "{cause}");
            assert_eq!(event.endpoint.as_ref(), Some(conn.endpoint()), "{cause}");
            assert_eq!(event.count, conn.info().accepted, "{cause}");
            assert!(event.message.contains(cause), "{cause} is not in: {}", event.message);
            assert!((begun..=SystemTime::now()).contains(&event.at));
        }
        let distinct: BTreeSet<_> = events.iter().map(|event| event.conn).collect();
        assert_eq!(distinct.len(), events.len(), "{cause}: one for each");
        // The node's own stands last, and has its name.
        if kind == EventKind::NodeFailed {
            let [last] = of_node[..] else { panic!("{of_node:?}") };
            assert_eq!((last.kind, last.status, last.conn), (kind, Status::NodeFailed, ConnId::NONE));
            assert_eq!((last.node_name.as_deref(), last.count), (Some("n"), 0));
            assert_eq!(events.last().map(|event| event.node), Some(node));
        } else {
            assert!(of_node.is_empty(), "{cause}: {of_node:?}");
        }
        // Nothing comes after the ending, whatever else ends the connection again.
        conns.iter().for_each(|conn| conn.disconnect().expect("no error"));
        peer.kill();
        engine.disconnect_all(after(LONG)).expect("nothing left");
        let more = engine.events();
        assert!(more.iter().all(|event| event.conn == ConnId::NONE), "{cause}: {more:?}");
    }
}

#[test]
fn a_lost_peer_and_a_failed_dial_raise_one_ending_each() {
    let (peer, refusing, closing) = (Peer::any(), closed_port(), WrongPeer::closing());
    let engine = Engine::new();
    let conn = engine.ready(peer.endpoint());
    for _ in 0..5 {
        engine.send(&conn, &[b"x"], ms(1000)).expect("sent");
    }
    peer.kill();
    let lost = engine.expect_event(EventKind::PeerLost, LONG);
    assert_eq!((lost.conn, lost.status, lost.count), (conn.id(), Status::PeerLost, 5));
    assert_eq!(lost.endpoint.map(|e| e.to_string()), Some(canonical(peer.endpoint())));
    refused(engine.send(&conn, &[b"x"], ms(1000)), Status::PeerLost);
    conn.disconnect().expect("no error");

    for (endpoint, errno) in [(refusing.endpoint(), Some(libc::ECONNREFUSED)), (closing.endpoint(), None)] {
        let id = engine.lazy(&endpoint).id();
        wait_ended(&crate::common::engine::connection(id), LONG);
        let events = engine.events();
        let [event] = &events[..] else { panic!("{endpoint}: {events:?}") };
        assert_eq!((event.kind, event.conn, event.count), (EventKind::ConnectFailed, id, 0), "never READY, no READY");
        assert_eq!(event.status, Status::ConnectFailed);
        assert!(errno.is_none_or(|errno| event.os_errno == errno), "{event:?}");
        assert!(!event.message.is_empty());
    }
    assert!(engine.events().is_empty());
}

/// All threads end everything at once: still one ending each, after READY.
#[test]
fn racing_endings_are_one_ending_stress() {
    if OwnProcess::new(test_name!()).network_if_possible().parent() {
        return;
    }
    let bind = format!("tcp://{}:0", own_address());
    let peer = Peer::with(PeerOptions { bind, endpoints: 8, log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("max_events", "100000"), ("backoff_ms", "5"), ("backoff_max_ms", "5")]);
    let endpoints: Vec<&str> = peer.endpoints().iter().map(String::as_str).collect();
    let (stop, connects) = (AtomicBool::new(false), AtomicU64::new(0));
    let running = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let _stopping = SetOnDrop(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                while running() {
                    for endpoint in &endpoints {
                        let got = engine.connect(endpoint, ms(20));
                        connects.fetch_add(u64::from(got.is_ok()), Ordering::Relaxed);
                    }
                    std::thread::sleep(ms(1));
                }
            });
        }
        scope.spawn(|| {
            while running() {
                for conn in engine.connections() {
                    crate::common::engine::connection(conn).disconnect().expect("no error");
                }
                std::thread::sleep(ms(15));
            }
        });
        scope.spawn(|| {
            while running() {
                endpoints.iter().for_each(|endpoint| engine.disconnect_endpoint(endpoint).expect("no error"));
                std::thread::sleep(ms(25));
            }
        });
        let begun = Instant::now();
        while begun.elapsed() < ms(1500) || connects.load(Ordering::Relaxed) < 20 {
            peer.flap();
            assert!(begun.elapsed() < Duration::from_secs(30), "nothing connects");
        }
    });
    engine.disconnect_all(after(LONG)).expect("ended");
    let mut seen: BTreeMap<ConnId, Vec<EventKind>> = BTreeMap::new();
    for event in engine.events() {
        assert_ne!(event.kind, EventKind::Overflow);
        seen.entry(event.conn).or_default().push(event.kind);
    }
    for (conn, kinds) in &seen {
        let endings = kinds.iter().filter(|kind| is_ending(**kind)).count();
        assert!(endings == 1 && kinds.last().is_some_and(|kind| is_ending(*kind)), "{conn}: {kinds:?}");
        match kinds[..] {
            [EventKind::Ready, EventKind::PeerLost | EventKind::Disconnected] => {}
            [EventKind::ConnectFailed | EventKind::Disconnected] => {}
            _ => panic!("{conn}: {kinds:?}"),
        }
    }
    let kinds: BTreeSet<_> = seen.values().map(|kinds| kinds.len()).collect();
    assert_eq!(kinds, BTreeSet::from([1, 2]), "some were READY, some were not");
}

#[test]
fn the_descriptor_is_readable_exactly_while_events_wait() {
    let peer = Peer::any();
    let engine = Engine::with(&[("max_events", "2")]);
    let fd = engine.event_fd().expect("a descriptor");
    assert_eq!(engine.event_fd().expect("a descriptor"), fd);
    assert!(!readable(fd, Duration::ZERO));
    let conn = engine.ready(peer.endpoint());
    assert!(readable(fd, LONG));
    assert!(readable(fd, Duration::ZERO), "looking does not change it");
    conn.disconnect().expect("ended");
    (0..2).for_each(|_| engine.ready(peer.endpoint()).disconnect().expect("ended"));
    // READY and DISCONNECTED of two connections, and an OVERFLOW for the two events of the third, which did not fit.
    use EventKind::{Disconnected, Overflow, Ready};
    for kind in [Ready, Disconnected, Ready, Disconnected, Overflow] {
        assert!(readable(fd, Duration::ZERO), "before {kind:?}");
        let event = engine.next_event(after(Duration::ZERO)).expect("an event");
        assert_eq!((event.kind, event.count), (kind, if kind == EventKind::Overflow { 2 } else { 0 }));
    }
    assert!(!readable(fd, Duration::ZERO));
    assert_eq!(engine.next_event(after(Duration::ZERO)).expect("none").kind, EventKind::None);

    // A thread in poll is woken by what another thread does.
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| readable(fd, LONG));
        std::thread::sleep(ms(30));
        let conn = engine.lazy(peer.endpoint());
        conn.disconnect().expect("ended");
        assert!(poller.join().expect("a poller"));
    });
}

#[test]
fn the_descriptor_is_the_managers_and_goes_with_it() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let before = open_descriptors();
    for _ in 0..50 {
        let engine = Engine::new();
        engine.event_fd().expect("a descriptor");
        engine.disconnect_endpoint("tcp://127.0.0.1:9").expect("fenced");
    }
    assert_eq!(open_descriptors(), before);
}

#[test]
fn a_wait_for_an_event_ends_with_the_event_or_with_its_time() {
    let peer = Peer::any();
    let engine = Engine::with(&[("send_timeout_ms", "50")]);
    for (timeout, least) in [(after(Duration::ZERO), 0), (after(ms(50)), 50), (kvconn::timeout::Timeout::Default, 50)] {
        let watch = Stopwatch::start();
        let event = engine.next_event(timeout).expect("none");
        assert_eq!((event.kind, event.status), (EventKind::None, Status::Ok));
        watch.between(ms(least), ms(least + 100), "waiting in vain");
    }
    let manager = engine.manager().clone();
    let reader = Waiting::one(move || manager.next_event(after(LONG)).expect("an event").kind);
    std::thread::sleep(ms(30)); // so that it does wait
    engine.lazy(peer.endpoint()).disconnect().expect("ended");
    let kind = reader.return_within(ms(100), Instant::now())[0];
    assert!(is_ending(kind) || kind == EventKind::Ready, "{kind:?}");
}

/// Some poll the descriptor, some wait in next_event: each event goes to exactly one.
#[test]
fn each_event_goes_to_one_of_several_readers() {
    const CONNECTIONS: usize = 400;
    let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("max_events", "100000"), ("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let fd = engine.event_fd().expect("a descriptor");
    let (stop, read) = (AtomicBool::new(false), AtomicU64::new(0));
    let reader = |polls: bool| {
        let mut got: Vec<Event> = Vec::new();
        // At the end every reader empties the queue once more.
        loop {
            let last_round = stop.load(Ordering::Relaxed);
            if polls {
                readable(fd, ms(20));
            }
            let wait = if polls { Duration::ZERO } else { ms(20) };
            while let Some(event) = Some(engine.next_event(after(wait)).expect("an event or none"))
                .filter(|event| event.kind != EventKind::None)
            {
                read.fetch_add(1, Ordering::Relaxed);
                got.push(event);
            }
            if last_round {
                return got;
            }
        }
    };
    let (got, made) = std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let readers: Vec<_> = (0..4).map(|at| scope.spawn(move || reader(at % 2 == 0))).collect();
        let mut made = Vec::new();
        for at in 0..CONNECTIONS {
            // Half of them become READY. What was given up before has used up its step.
            let wait = if at % 2 == 0 { LONG } else { Duration::ZERO };
            let id = loop {
                match engine.connect(peer.endpoint(), wait) {
                    Ok(id) => break id,
                    error => refused(error, Status::Backoff),
                };
                std::thread::sleep(ms(1));
            };
            let conn = crate::common::engine::connection(id);
            conn.disconnect().expect("ended");
            made.push(conn.id());
        }
        drop(stopping);
        let got: Vec<Vec<Event>> = readers.into_iter().map(|reader| reader.join().expect("a reader")).collect();
        (got, made)
    });
    assert!(!readable(fd, Duration::ZERO));
    let endings: Vec<ConnId> = got.iter().flatten().filter(|e| is_ending(e.kind)).map(|e| e.conn).collect();
    let distinct: BTreeSet<_> = endings.iter().copied().collect();
    assert_eq!((endings.len(), distinct.len()), (CONNECTIONS, CONNECTIONS), "an event was read twice, or lost");
    assert_eq!(distinct, made.into_iter().collect());
    for events in &got {
        assert!(events.is_sorted_by_key(|event| event.conn), "what one reader gets is in order");
    }
}

/// A queue's bound can be changed; what waits stays.
#[test]
fn losses_are_counted_where_they_happened() {
    let peer = Peer::any();
    let engine = Engine::with(&[("max_events", "3")]);
    let connect = |count: usize| {
        (0..count).map(|_| engine.ready(peer.endpoint())).for_each(|conn| conn.disconnect().expect("ended"));
    };
    let read = || engine.events().iter().map(|e| (e.kind, e.count)).collect::<Vec<_>>();
    use EventKind::{Disconnected, Overflow, Ready};
    // Three connections have places for their endings. Those that begin while three endings are unread have none.
    let fit = [(Ready, 0), (Disconnected, 0)].repeat(3);
    connect(5);
    assert_eq!(read(), [&fit[..], &[(Overflow, 4)]].concat());
    connect(1);
    assert_eq!(read(), fit[..2]);
    connect(4);
    engine.configure(&options(&[("max_events", "6")])).expect("a setting that can be changed");
    connect(4);
    assert_eq!(read(), [&fit[..], &[(Overflow, 2)], &fit[..], &[(Overflow, 2)]].concat());
    assert_eq!(status_of(&engine.next_event(after(Duration::ZERO))), Status::Ok);
    assert!(engine.describe().contains("8 were lost"), "{}", engine.describe());
    wait_until("all are closed", LONG, || peer.received().disconnected == 14);
}

/// No thread reads events while connections become READY, and then all of them are lost.
#[test]
fn endings_are_not_crowded_out() {
    const CONNECTIONS: usize = 100;
    let peer = Peer::with(PeerOptions { endpoints: CONNECTIONS, ..PeerOptions::default() });
    let engine = Engine::with(&[("max_events", "10")]);
    let conns: Vec<_> = peer.endpoints().iter().map(|endpoint| engine.ready(endpoint)).collect();
    peer.kill();
    conns.iter().for_each(|conn| _ = wait_ended(conn, LONG));
    let events = engine.events();
    let lost = events.iter().filter(|event| event.kind == EventKind::PeerLost).map(|event| event.conn);
    assert_eq!(lost.collect::<BTreeSet<_>>(), conns.iter().map(|conn| conn.id()).collect());
    let missing: u64 = events.iter().filter(|e| e.kind == EventKind::Overflow).map(|e| e.count).sum();
    assert_eq!(missing, CONNECTIONS as u64 - 10, "of the READY events ten fit");
}
