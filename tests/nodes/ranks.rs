//! All ranks of a node at once: connecting them under one deadline, and following what a discovery says.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::engine::{LARGE, narrow_peer, own_address};
use crate::common::engine::{SetOnDrop, after, canonical, connection, options, refused, status_of, waiting_senders};
use crate::common::load::{Stopwatch, Storm};
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, WrongPeer, closed_port, ms, wait_until};
use crate::test_name;
use kvconn::connection::ConnectionState;
use kvconn::error::{Error, Result, Status};
use kvconn::ids::{ConnId, NodeId};
use kvconn::timeout::Timeout;

const LONG: Duration = Duration::from_secs(20);

fn open(engine: &Engine) -> NodeId {
    engine.node_open("n").expect("open").0
}

fn statuses(results: &[Result<ConnId>]) -> Vec<Status> {
    results.iter().map(status_of).collect()
}

#[test]
fn every_rank_has_a_connection_or_a_status_within_one_deadline() {
    let ranks = Peer::with(PeerOptions { endpoints: 8, ..PeerOptions::default() });
    let (closed, hole, mute) = (closed_port(), WrongPeer::black_hole(), WrongPeer::mute());
    let engine = Engine::new();
    let node = open(&engine);
    let others = [closed.endpoint(), hole.endpoint(), mute.endpoint()];
    let live = ranks.endpoints();
    let mut all: Vec<&str> = live.iter().chain(&others).map(String::as_str).collect();
    // The same once more, in another spelling.
    let again = canonical(&live[0]);
    assert_ne!(again, live[0]);
    all.push(&again);
    let watch = Stopwatch::start();
    let results = engine.node_connect(node, &all, None, after(ms(700))).expect("registered");
    watch.between(ms(700), ms(800), "the call");
    let mut expected = vec![Status::Ok; 8];
    expected.extend([Status::ConnectFailed, Status::Timeout, Status::Timeout, Status::Ok]);
    assert_eq!(statuses(&results), expected);
    assert_eq!(results[0].clone().ok(), results[11].clone().ok(), "one endpoint, one connection");
    for (endpoint, result) in all.iter().zip(&results) {
        let found = engine.find(endpoint);
        match result {
            Ok(conn) => {
                assert_eq!(connection(*conn).info().state, ConnectionState::Ready);
                assert_eq!(found.expect("live"), *conn);
            }
            // The dial goes on.
            Err(error) if error.status == Status::Timeout => assert_eq!(found.expect("dialling"), error.conn),
            Err(error) => {
                assert_eq!((error.os_errno, &error.endpoint), (libc::ECONNREFUSED, &canonical(endpoint)));
                refused(found, Status::NotFound);
            }
        }
    }
    let error = Error::partial("endpoints", &results).expect_err("three failed");
    assert_eq!((error.status, error.os_errno), (Status::Partial, libc::ECONNREFUSED));
    assert!(error.message.starts_with("3 of 12 endpoints failed; endpoints[8]: "), "{}", error.message);
    // All of them are the node's, whatever came of their dials.
    let failure = engine.handle_failure(node, None).expect("live");
    let owned: Vec<String> = failure.endpoints.iter().map(|failed| failed.endpoint.to_string()).collect();
    let named: Vec<String> = all[..11].iter().map(|endpoint| canonical(endpoint)).collect();
    assert_eq!(owned, named);
    assert_eq!(engine.connections(), []);
}

#[test]
fn without_waiting_every_dial_has_begun_and_nothing_is_nothing() {
    let hole = WrongPeer::black_hole();
    let peer = Peer::any();
    let engine = Engine::new();
    let node = open(&engine);
    assert!(engine.node_connect(node, &[], None, Timeout::Default).expect("live").is_empty());
    let watch = Stopwatch::start();
    let all = [hole.endpoint(), peer.endpoint().into()];
    let results = engine.node_connect(node, &all.each_ref().map(String::as_str), None, after(ms(0))).expect("live");
    watch.at_most(ms(100), "a call that does not wait");
    let conns: Vec<ConnId> = results.into_iter().map(|result| result.expect("a connection")).collect();
    assert_eq!(engine.connections().into_iter().collect::<BTreeSet<_>>(), conns.iter().copied().collect());
    wait_until("the live one is READY", LONG, || connection(conns[1]).info().state == ConnectionState::Ready);
    // Live connections are the result of the next call, and a dial's default time is that of one dial.
    let quick = options(&[("connect_timeout_ms", "300"), ("handshake_timeout_ms", "200")]);
    let mute = WrongPeer::mute();
    let watch = Stopwatch::start();
    let results = engine.node_connect(node, &[peer.endpoint()], None, Timeout::Default).expect("live");
    assert_eq!(results[0].clone().expect("READY"), conns[1]);
    watch.at_most(ms(100), "what is READY");
    let results = engine.node_connect(node, &[&mute.endpoint()], Some(&quick), Timeout::Default).expect("live");
    assert_eq!(statuses(&results), [Status::ConnectFailed]);
    watch.at_most(ms(700), "one dial");
}

/// An error of the whole call leaves nothing: no owner, no dial.
#[test]
fn what_cannot_be_registered_is_not_dialled() {
    let mute = WrongPeer::mute();
    let peer = Peer::any();
    let engine = Engine::with(&[("max_endpoints", "3")]);
    let node = open(&engine);
    let conn = engine.ready_with(peer.endpoint(), &[("send_hwm", "7")]);
    let call = |all: &[&str], settings: &[(&str, &str)]| {
        engine.node_connect(node, all, Some(&options(settings)), after(LONG)).map(|results| results.len())
    };
    refused(call(&[&mute.endpoint(), "tcp://*:5"], &[]), Status::Invalid);
    refused(call(&[&mute.endpoint()], &[("max_nodes", "5")]), Status::Invalid);
    refused(call(&[&mute.endpoint(), peer.endpoint()], &[("send_hwm", "8")]), Status::Conflict);
    refused(call(&[&mute.endpoint(), "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], &[]), Status::Limit);
    assert_eq!((engine.node_info(node).expect("live").endpoints, mute.connections()), (0, 0));
    assert_eq!(engine.connections(), [conn.id()]);
    refused(engine.node_connect(NodeId(77), &[], None, after(ms(0))), Status::Stale);
    drop(engine.handle_failure(node, None).expect("live"));
    refused(call(&[&mute.endpoint()], &[]), Status::NodeFailed);
}

/// A start-up in which ranks come up in any order.
#[test]
fn with_connect_retry_ranks_that_come_late_are_connected_in_the_same_call() {
    let addresses = [0, 1].map(|_| own_address());
    let early = Peer::any();
    let late = [0, 1].map(|at| Peer::bind(&format!("tcp://{}:0", addresses[at])));
    late.iter().for_each(|peer| peer.kill());
    let engine = Engine::new();
    let node = open(&engine);
    let all = [late[0].endpoint(), early.endpoint(), late[1].endpoint()];
    let retry = options(&[("connect_retry", "1")]);
    let results = std::thread::scope(|scope| {
        let call = scope.spawn(|| engine.node_connect(node, &all, Some(&retry), after(LONG)));
        wait_until("the early one is READY", LONG, || engine.find(early.endpoint()).is_ok());
        // The second first: neither waits for the other.
        let _second = Peer::bind(late[1].endpoint());
        wait_until("the second is READY", LONG, || {
            engine.find(late[1].endpoint()).is_ok_and(|conn| connection(conn).info().state == ConnectionState::Ready)
        });
        assert!(!call.is_finished());
        let _first = Peer::bind(late[0].endpoint());
        call.join().expect("no panic").expect("registered")
    });
    assert_eq!(statuses(&results), [Status::Ok; 3]);
    // Nobody comes: TIMEOUT at the deadline, with the reason.
    let nobody = closed_port();
    let watch = Stopwatch::start();
    let results = engine.node_connect(node, &[&nobody.endpoint()], Some(&retry), after(ms(500))).expect("registered");
    watch.between(ms(500), ms(600), "the call");
    let error = refused(results[0].clone(), Status::Timeout);
    assert_eq!((error.conn, error.os_errno), (ConnId::NONE, libc::ECONNREFUSED));
}

#[test]
fn the_end_of_the_node_ends_the_call_at_once() {
    let hole = WrongPeer::black_hole();
    let closed = closed_port();
    let retry = options(&[("connect_retry", "1")]);
    for (ends, expected) in
        [("fail", Status::NodeFailed), ("forget", Status::Disconnected), ("take", Status::Disconnected)]
    {
        let engine = Engine::new();
        let node = open(&engine);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let result =
                    engine.node_connect(node, &[&hole.endpoint(), &closed.endpoint()], Some(&retry), after(LONG));
                (result, Instant::now())
            });
            wait_until("it dials", LONG, || engine.find(&hole.endpoint()).is_ok());
            let watch = Stopwatch::start();
            match ends {
                "fail" => drop(engine.handle_failure(node, Some("died")).expect("live")),
                "forget" => engine.disconnect_all(after(ms(0))).expect("ended"),
                _ => engine.node_remove_endpoints(node, &[&hole.endpoint(), &closed.endpoint()]).expect("live"),
            }
            let (result, _) = call.join().expect("no panic");
            watch.at_most(ms(100), ends);
            match ends {
                // The node lives on: each of its ranks has the status.
                "take" => assert_eq!(statuses(&result.expect("the node lives")), [expected; 2]),
                _ => drop(refused(result, expected)),
            }
        });
        assert_eq!(engine.connections(), [], "{ends}");
        let fenced = status_of(&engine.send_to(&hole.endpoint(), &[b"x"], ms(0)));
        assert_eq!(fenced, expected, "{ends}");
    }
}

#[test]
fn a_discovery_adds_what_is_new_and_ends_what_left() {
    let peers: Vec<Peer> = (0..4).map(|_| Peer::any()).collect();
    let [kept, left, new, shared] = [0, 1, 2, 3].map(|at| peers[at].endpoint());
    let engine = Engine::new();
    let node = engine.node("n", &[kept, left, shared]);
    let other = engine.node("other", &[shared]);
    let conns = [kept, left, shared].map(|endpoint| engine.ready(endpoint));
    engine.disconnect_endpoint(new).expect("a fence to lift");
    engine.node_set_endpoints(node, &[new, kept, new], None).expect("live");
    assert_eq!(engine.node_info(node).expect("live").endpoints, 2);
    // What stays has its connection, and what another node owns as well.
    for conn in [&conns[0], &conns[2]] {
        engine.send(conn, &[b"x"], ms(1000)).expect("untouched");
    }
    let error = refused(engine.send(&conns[1], &[b"x"], ms(1000)), Status::Disconnected);
    assert!(error.message.contains("kvconn_node_set_endpoints"), "{}", error.message);
    let error = refused(engine.send_to(left, &[b"x"], ms(1000)), Status::Disconnected);
    assert!(error.message.contains("kvconn_node_set_endpoints"), "{}", error.message);
    engine.send_to(new, &[b"x"], ms(5000)).expect("registered: the fence is lifted");
    // The same list again changes nothing, and keeps the fence of a disconnect.
    engine.disconnect_endpoint(kept).expect("fencing");
    engine.node_set_endpoints(node, &[kept, new], Some(&options(&[("send_hwm", "1000")]))).expect("live");
    refused(engine.send_to(kept, &[b"x"], ms(1000)), Status::Disconnected);
    // In the order of their registration.
    let failure = engine.handle_failure(node, None).expect("live");
    let owned: Vec<String> = failure.endpoints.iter().map(|failed| failed.endpoint.to_string()).collect();
    assert_eq!(owned, [canonical(kept), canonical(new)]);
    refused(engine.node_set_endpoints(node, &[kept], None), Status::NodeFailed);
    // Nothing is left of it.
    engine.node_set_endpoints(other, &[], None).expect("live");
    assert_eq!(engine.node_info(other).expect("live").endpoints, 0);
    refused(engine.send_to(shared, &[b"x"], ms(1000)), Status::Disconnected);
}

#[test]
fn a_discovery_that_is_refused_changes_nothing() {
    let peer = Peer::any();
    let engine = Engine::with(&[("max_endpoints", "3")]);
    let node = engine.node("n", &["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]);
    let conn = engine.ready_with(peer.endpoint(), &[("send_hwm", "7")]);
    let set = |all: &[&str], settings: &[(&str, &str)]| engine.node_set_endpoints(node, all, Some(&options(settings)));
    let untouched = |what: &str| {
        assert_eq!(engine.node_info(node).expect("live").endpoints, 2, "{what}");
        for endpoint in ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"] {
            let status = status_of(&engine.send_to(endpoint, &[b"x"], ms(0)));
            assert_ne!(status, Status::Disconnected, "{what}: fenced");
        }
        engine.send(&conn, &[b"x"], ms(1000)).expect("untouched");
    };
    refused(set(&["tcp://127.0.0.1:1", "tcp://*:5"], &[]), Status::Invalid);
    untouched("INVALID");
    refused(set(&["tcp://127.0.0.1:1"], &[("connect_retry", "1")]), Status::Invalid);
    untouched("an option that does not belong here");
    refused(set(&[peer.endpoint()], &[("send_hwm", "8")]), Status::Conflict);
    untouched("CONFLICT");
    // One place is the connection's. What leaves makes room for what comes.
    refused(set(&["tcp://127.0.0.1:3", "tcp://127.0.0.1:4", "tcp://127.0.0.1:5"], &[]), Status::Limit);
    untouched("LIMIT");
    set(&["tcp://127.0.0.1:3", "tcp://127.0.0.1:4"], &[]).expect("two left, two came");
    assert_eq!(engine.node_info(node).expect("live").endpoints, 2);
    refused(engine.send_to("tcp://127.0.0.1:1", &[b"x"], ms(0)), Status::Disconnected);
}

#[test]
fn senders_that_wait_on_a_rank_that_left_return_at_once() {
    let peer = narrow_peer(1);
    let engine = Engine::with(&[("send_hwm", "4")]);
    let node = engine.node("n", &[peer.endpoint()]);
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    engine.fill(&conn, LARGE);
    let senders = waiting_senders(&conn, 3);
    let begun = Instant::now();
    engine.node_set_endpoints(node, &["tcp://127.0.0.1:1"], None).expect("live");
    for result in senders.return_within(ms(100), begun) {
        refused(result, Status::Disconnected);
    }
}

/// Discovery, connecting and failure at the same time: each life is whole at every moment, and nothing is left behind.
#[test]
fn discovery_and_connecting_beside_failures_leave_nothing_behind_stress() {
    if OwnProcess::new(test_name!()).limit(Duration::from_secs(3600)).network_if_possible().parent() {
        return;
    }
    const RANKS: usize = 6;
    let peer = Peer::with(PeerOptions { endpoints: RANKS, log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let ranks: Vec<&str> = peer.endpoints().iter().map(String::as_str).collect();
    let stop = AtomicBool::new(false);
    let known = [Status::NodeFailed, Status::NotFound];
    // Two disjoint halves: a report must list one of them whole, or nothing of both.
    let halves = [&ranks[..RANKS / 2], &ranks[RANKS / 2..]];
    let discovery = |thread: usize| {
        for at in (thread..).take_while(|_| !stop.load(Ordering::Relaxed)) {
            let result = engine.node_find("n").and_then(|node| engine.node_set_endpoints(node, halves[at % 2], None));
            if let Err(error) = result {
                assert!(known.contains(&error.status), "{error:?}");
            }
        }
    };
    let connector = || {
        while !stop.load(Ordering::Relaxed) {
            for half in halves {
                let call = |node| engine.node_connect(node, half, None, after(ms(5)));
                if let Err(error) = engine.node_find("n").and_then(call) {
                    assert!(known.contains(&error.status), "{error:?}");
                }
            }
            for rank in &ranks {
                // Fenced or not: never a connection to an endpoint that no node owns, once the node has failed.
                drop(engine.send_to(rank, &[b"x"], Duration::ZERO));
            }
        }
    };
    let mut failures = 0;
    std::thread::scope(|scope| {
        let _stopping = SetOnDrop(&stop);
        let mut threads: Vec<_> = (0..2).map(|thread| scope.spawn(move || discovery(thread))).collect();
        threads.push(scope.spawn(connector));
        let storm = Storm::new(ms(2000));
        while storm.goes_on(failures >= 50) && !threads.iter().any(|thread| thread.is_finished()) {
            let node = open(&engine);
            match failures % 3 {
                0 => std::thread::sleep(ms(3)),
                1 => drop(engine.node_connect(node, halves[0], None, after(ms(20)))),
                _ => {}
            }
            let failure = engine.handle_failure(node, Some("x")).expect("live");
            let owned: BTreeSet<String> = failure.endpoints.iter().map(|failed| failed.endpoint.to_string()).collect();
            for half in halves {
                let named: BTreeSet<String> = half.iter().map(|endpoint| canonical(endpoint)).collect();
                let common = owned.intersection(&named).count();
                assert!(common == 0 || common == named.len(), "half of a half: {owned:?}");
            }
            for failed in failure.endpoints.iter().filter(|failed| failed.conn != ConnId::NONE) {
                assert_eq!(connection(failed.conn).info().status, Status::NodeFailed);
            }
            failures += 1;
        }
    });
    assert!(failures >= 50, "{failures} failures");
}
