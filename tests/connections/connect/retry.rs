//! `connect_retry`: one call that dials once a step until the peer is there. For start-up.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use kvconn::error::{Error, Status};
use kvconn::events::EventKind;
use kvconn::ids::ConnId;
use kvconn::process::Process;
use kvconn::timeout::Timeout;

use crate::common::engine::{connection, refused, send, status_of};
use crate::common::load::{Stopwatch, within};
use crate::common::{Engine, Peer, WrongPeer, closed_port, ms, wait_until};

const LIMIT: Duration = Duration::from_secs(10);
const AT_ONCE: Duration = ms(100);
const RETRY: &[(&str, &str)] = &[("connect_retry", "1")];

/// Scenario 3, the second half: the engine is up before its peer.
#[test]
fn a_connect_begun_before_its_peer_ends_ready_and_dials_once_a_step() {
    let early = WrongPeer::closing(); // takes the place of a missing peer, and counts
    let engine = Engine::with(&[("backoff_ms", "100"), ("backoff_max_ms", "200")]);
    let begun = Instant::now();
    let conn = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| engine.connect_with(&early.endpoint(), RETRY, LIMIT));
        wait_until("four dials have failed", LIMIT, || early.connections() >= 4);
        let dials = early.connections();
        let took = begun.elapsed().as_millis() as u64;
        // At 0, 0.1, 0.3, 0.5 … and up to a quarter later each.
        assert!(dials <= 2 + took.saturating_sub(100) / 200, "{dials} dials in {took} ms");
        early.kill();
        let peer = Peer::restart_on(early.port());
        let id = connecting.join().unwrap().expect("READY");
        assert!(send(&connection(id), &[b"x"], LIMIT).is_ok());
        peer.wait_received(1, LIMIT);
        id
    });
    let events = engine.events();
    let failed = events.iter().filter(|event| event.kind == EventKind::ConnectFailed).count();
    assert!(failed >= 3, "each dial is a connection of its own, with an ending of its own");
    let ready: Vec<ConnId> = events.iter().filter(|e| e.kind == EventKind::Ready).map(|e| e.conn).collect();
    assert_eq!(ready, [conn]);
}

#[test]
fn without_it_the_first_failure_is_the_answer() {
    let port = closed_port();
    let engine = Engine::new();
    within(ms(1000), "a refused dial", || refused(engine.connect(&port.endpoint(), LIMIT), Status::ConnectFailed));
    // It is a setting of the call: no other call inherits it.
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    refused(engine.connect_with(&port.endpoint(), RETRY, ms(50)), Status::Timeout);
    std::thread::sleep(ms(5));
    within(ms(1000), "a refused dial", || {
        let result = engine.connect(&port.endpoint(), LIMIT);
        assert!(matches!(status_of(&result), Status::ConnectFailed | Status::Backoff), "{result:?}");
    });
}

#[test]
fn it_gives_up_when_its_time_is_over_and_says_what_the_last_dial_said() {
    let port = closed_port();
    let engine = Engine::with(&[("backoff_ms", "100"), ("backoff_max_ms", "100")]);
    let watch = Stopwatch::start();
    let error = refused(engine.connect_with(&port.endpoint(), RETRY, ms(950)), Status::Timeout);
    watch.between(ms(950), ms(950) + AT_ONCE, "retrying for 950 ms");
    assert_eq!(error.endpoint, port.endpoint());
    // The time may end in the middle of a dial, of which nothing is known yet.
    if error.conn == ConnId::NONE {
        assert_eq!(error.os_errno, libc::ECONNREFUSED);
        assert!(error.message.contains("refused"), "{}", error.message);
    }
    let dials = engine.events_of(EventKind::ConnectFailed).len();
    assert!((2..=10).contains(&dials), "{dials} dials in 950 ms, with steps of 100");
    wait_until("no dial is left", LIMIT, || engine.connections().is_empty());
}

#[test]
fn it_waits_for_the_end_of_a_step_that_began_before_it() {
    let port = closed_port();
    let engine = Engine::with(&[("backoff_ms", "300"), ("backoff_max_ms", "300")]);
    refused(engine.connect(&port.endpoint(), LIMIT), Status::ConnectFailed);
    let failed = Instant::now();
    refused(engine.connect_with(&port.endpoint(), RETRY, ms(1300)), Status::Timeout);
    assert!(failed.elapsed() >= ms(1300));
    let dials = engine.events_of(EventKind::ConnectFailed).len();
    assert!((2..=5).contains(&dials), "{dials} dials in 1300 ms, with steps of 300");
}

#[test]
fn several_that_retry_share_the_dials_and_all_end_ready() {
    let early = WrongPeer::closing();
    let engine = Engine::with(&[("backoff_ms", "100"), ("backoff_max_ms", "100")]);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let connect = || engine.connect_with(&early.endpoint(), RETRY, LIMIT);
        let connecting: Vec<_> = (0..8).map(|_| scope.spawn(connect)).collect();
        wait_until("some dials have failed", LIMIT, || early.connections() >= 4);
        let (dials, took) = (early.connections(), begun.elapsed().as_millis() as u64);
        assert!(dials <= 1 + took / 100, "{dials} dials in {took} ms");
        early.kill();
        let peer = Peer::restart_on(early.port());
        let mut ids: Vec<ConnId> = connecting.into_iter().map(|c| c.join().unwrap().expect("READY")).collect();
        ids.dedup();
        assert_eq!(ids.len(), 1);
        assert_eq!(peer.received().accepted, 1);
    });
}

/// Whether a thread of this process waits for something.
fn sleeps(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'))
}

/// A call that retries is in the middle of it when `end` happens: it returns, and nothing is dialled from then on.
fn released(end: impl Fn(&Engine, &str), status: Status, settings: &[(&str, &str)], peer: WrongPeer) {
    let engine = Engine::with(settings);
    engine.node("node", &[&peer.endpoint()]);
    let endpoint = peer.endpoint();
    std::thread::scope(|scope| {
        let (calling, callers) = channel();
        let call = |calling: Sender<i32>| {
            // SAFETY: only asks.
            calling.send(unsafe { libc::gettid() }).expect("the test waits for it");
            engine.connect_with(&endpoint, RETRY, 3 * LIMIT)
        };
        let calling = [(); 3].map(|()| calling.clone());
        let calls = calling.map(|calling| scope.spawn(move || call(calling)));
        let callers: Vec<i32> = calls.iter().map(|_| callers.recv_timeout(LIMIT).expect("a caller")).collect();
        wait_until("it has dialled", LIMIT, || peer.connections() == 1);
        // From the peer's accept to the dial's failure, and to where the callers wait then. One that calls later than
        // the end dials again: it lifts the fence.
        std::thread::sleep(ms(100));
        wait_until("all of them wait", LIMIT, || callers.iter().copied().all(sleeps));
        within(AT_ONCE, "ending it", || end(&engine, &endpoint));
        let ended = Stopwatch::start();
        for call in calls {
            let error: Error = refused(call.join().unwrap(), status);
            assert_eq!(error.endpoint, endpoint);
        }
        ended.at_most(AT_ONCE, "the release");
    });
    std::thread::sleep(ms(700));
    assert_eq!(peer.connections(), 1, "dialled again");
}

/// Whatever ends it, each with an engine and a peer of its own.
fn released_by_each(settings: &[(&str, &str)], peer: impl Fn() -> WrongPeer + Sync) {
    let by_disconnect = |engine: &Engine, endpoint: &str| engine.disconnect_endpoint(endpoint).unwrap();
    let by_failure = |engine: &Engine, _: &str| {
        engine.handle_failure(engine.node_find("node").unwrap(), None).map(drop).unwrap();
    };
    // TIMEOUT: the sockets are still being closed.
    let by_role_switch = |engine: &Engine, _: &str| engine.disconnect_all(Timeout::After(ms(0))).unwrap_or(());
    let by_destruction = |engine: &Engine, _: &str| {
        let process = Process::current().unwrap();
        process.destroy_manager(engine.id(), Timeout::After(ms(0))).unwrap_or(());
    };
    // A connection that is being dialled then ends, its manager's end or not.
    let destroyed = if settings == WITHIN { Status::Disconnected } else { Status::Stale };
    std::thread::scope(|scope| {
        scope.spawn(|| released(by_disconnect, Status::Disconnected, settings, peer()));
        scope.spawn(|| released(by_failure, Status::NodeFailed, settings, peer()));
        scope.spawn(|| released(by_role_switch, Status::Disconnected, settings, peer()));
        scope.spawn(|| released(by_destruction, destroyed, settings, peer()));
    });
}

/// With a step that ends while the test looks on.
const BETWEEN: &[(&str, &str)] = &[("backoff_ms", "500"), ("backoff_max_ms", "500")];
/// A peer that never answers.
const WITHIN: &[(&str, &str)] = &[("handshake_timeout_ms", "20000"), ("backoff_ms", "500"), ("backoff_max_ms", "500")];

#[test]
fn between_two_dials_it_is_released_by_disconnect_failure_role_switch_and_the_managers_end() {
    released_by_each(BETWEEN, WrongPeer::closing);
}

#[test]
fn within_a_dial_it_is_released_by_disconnect_failure_role_switch_and_the_managers_end() {
    released_by_each(WITHIN, WrongPeer::mute);
}

#[test]
fn a_fence_that_was_there_before_is_lifted_by_it() {
    let peer = Peer::any();
    let engine = Engine::new();
    engine.disconnect_endpoint(peer.endpoint()).unwrap();
    engine.connect_with(peer.endpoint(), RETRY, LIMIT).expect("READY");
    engine.send_to(peer.endpoint(), &[b"x"], LIMIT).expect("lifted");
}

#[test]
fn a_fence_that_was_there_before_is_lifted_by_it_also_when_it_must_wait_for_a_step() {
    let mut peer = Peer::any();
    let engine = Engine::with(&[("backoff_ms", "1000"), ("backoff_max_ms", "1000")]);
    peer.kill();
    refused(engine.connect(peer.endpoint(), LIMIT), Status::ConnectFailed);
    engine.disconnect_endpoint(peer.endpoint()).unwrap();
    peer.restart();
    // Inside the step, so that the fence is there still when the call waits.
    engine.connect_with(peer.endpoint(), RETRY, LIMIT).expect("READY");
    engine.send_to(peer.endpoint(), &[b"x"], LIMIT).expect("lifted");
    peer.wait_received(1, LIMIT);
}
