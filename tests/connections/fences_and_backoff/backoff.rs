//! Backoff: what is refused inside a step, how steps grow, and what restarts them.

use std::time::{Duration, Instant};

use kvconn::error::{Error, Status};

use crate::common::engine::{refused, status_of, wait_ended};
use crate::common::load::{Stopwatch, within};
use crate::common::{Engine, Peer, WrongPeer, closed_port, ms, wait_until};

const LIMIT: Duration = Duration::from_secs(10);
const AT_ONCE: Duration = ms(100);

/// The endpoint is inside a step: connect and send_to say so at once, and how long.
#[track_caller]
fn backing_off(engine: &Engine, endpoint: &str) -> Error {
    let connect = || refused(engine.connect(endpoint, LIMIT), Status::Backoff);
    let error = within(AT_ONCE, "a connect inside a step", connect);
    let send = || refused(engine.send_to(endpoint, &[b"x"], LIMIT), Status::Backoff);
    within(AT_ONCE, "a send inside a step", send);
    assert!(error.retry_after.is_some(), "{error:?}");
    error
}

#[test]
fn inside_a_step_calls_say_at_once_why_the_last_dial_failed_and_when_to_come_back() {
    let port = closed_port();
    let engine = Engine::with(&[("backoff_ms", "10000"), ("backoff_max_ms", "10000")]);
    let failed = refused(engine.connect(&port.endpoint(), LIMIT), Status::ConnectFailed);
    assert_eq!(failed.os_errno, libc::ECONNREFUSED);
    let told = failed.retry_after.expect("the failure itself tells when to come back");
    assert!(told > ms(8000) && told <= ms(12_500), "{told:?}");
    let error = backing_off(&engine, &port.endpoint());
    assert_eq!((error.os_errno, error.endpoint.as_str()), (libc::ECONNREFUSED, port.endpoint().as_str()));
    assert!(error.message.contains(&failed.message), "{} lacks {}", error.message, failed.message);
    let wait = error.retry_after.unwrap();
    assert!(wait > ms(8000) && wait <= ms(12_500), "a step of 10 s and up to a quarter more: {wait:?}");
    assert!(engine.connections().is_empty());
}

#[test]
fn a_send_that_dialled_in_vain_says_when_to_come_back() {
    let port = closed_port();
    let engine = Engine::with(&[("backoff_ms", "10000"), ("backoff_max_ms", "10000")]);
    let error = refused(engine.send_to(&port.endpoint(), &[b"x"], LIMIT), Status::ConnectFailed);
    let told = error.retry_after.expect("when to come back");
    assert!(told > ms(8000) && told <= ms(12_500), "{told:?}");
    assert!(backing_off(&engine, &port.endpoint()).retry_after <= Some(told));
}

#[test]
fn each_failed_dial_doubles_the_step_up_to_the_longest_and_the_time_told_is_the_truth() {
    let port = closed_port();
    let engine = Engine::with(&[("backoff_ms", "100"), ("backoff_max_ms", "400")]);
    let mut told: Option<(Stopwatch, Duration)> = None;
    for step in [100, 200, 400, 400] {
        wait_until("the dial has failed, when the step was over", LIMIT, || {
            status_of(&engine.connect(&port.endpoint(), LIMIT)) == Status::ConnectFailed
        });
        let failed = Instant::now();
        if let Some((watch, wait)) = told {
            watch.between(wait.saturating_sub(ms(1)), wait + AT_ONCE, "the step");
        }
        let wait = backing_off(&engine, &port.endpoint()).retry_after.unwrap();
        told = Some((Stopwatch::start(), wait));
        assert!(wait <= ms(step * 5 / 4), "step {step} ms: {wait:?}");
        // A loaded machine takes its time from the failure to the question.
        let least = ms(step).saturating_sub(failed.elapsed() + ms(30));
        assert!(wait > least, "step {step} ms: only {wait:?}");
    }
}

#[test]
fn a_connection_that_lived_longer_than_a_step_makes_the_next_dial_free() {
    let mut peer = Peer::any();
    let engine = Engine::with(&[("backoff_ms", "300"), ("backoff_max_ms", "20000")]);
    let conn = engine.ready(peer.endpoint());
    wait_until("it has lived for a step", LIMIT, || conn.info().ready_for > ms(310));
    peer.kill();
    wait_ended(&conn, LIMIT);
    refused(engine.connect(peer.endpoint(), LIMIT), Status::ConnectFailed); // dialled
    let wait = backing_off(&engine, peer.endpoint()).retry_after.unwrap();
    assert!(wait <= ms(375), "the first step: {wait:?}");

    // Two more failures: the step is 1.2 s now. A life shorter than that changes nothing.
    for step in [300, 600] {
        std::thread::sleep(backing_off(&engine, peer.endpoint()).retry_after.unwrap() + ms(2));
        if step == 300 {
            refused(engine.connect(peer.endpoint(), LIMIT), Status::ConnectFailed);
        }
    }
    peer.restart();
    let conn = engine.ready(peer.endpoint());
    wait_until("it has lived for the first step", LIMIT, || conn.info().ready_for > ms(310));
    peer.kill();
    wait_ended(&conn, LIMIT);
    let wait = backing_off(&engine, peer.endpoint()).retry_after.unwrap();
    assert!(wait > ms(900) && wait <= ms(1500), "the third step, of 1.2 s: {wait:?}");
}

#[test]
fn a_peer_that_comes_and_goes_within_a_step_is_not_redialled_inside_it() {
    let peer = Peer::any();
    let engine = Engine::with(&[("backoff_ms", "10000"), ("backoff_max_ms", "10000")]);
    let conn = engine.ready(peer.endpoint());
    peer.flap();
    assert_eq!(wait_ended(&conn, LIMIT).status, Status::PeerLost);
    let error = backing_off(&engine, peer.endpoint());
    assert!(error.message.contains(&conn.info().message), "{}", error.message);
    assert_eq!(peer.received().accepted, 1);
}

#[test]
fn what_the_caller_ends_does_not_count_as_a_failure() {
    let peer = Peer::any();
    let engine = Engine::with(&[("backoff_ms", "10000"), ("backoff_max_ms", "10000")]);
    for _ in 0..3 {
        engine.ready(peer.endpoint()).disconnect().unwrap();
        engine.ready(peer.endpoint());
        engine.disconnect_endpoint(peer.endpoint()).unwrap();
        let node = engine.node("node", &[peer.endpoint()]);
        engine.ready(peer.endpoint());
        engine.handle_failure(node, None).unwrap();
        engine.node("node", &[peer.endpoint()]);
    }
}

#[test]
fn a_registration_in_a_new_life_begins_the_steps_anew_and_in_the_same_life_does_not() {
    let port = closed_port();
    let endpoint = port.endpoint();
    let engine = Engine::with(&[("backoff_ms", "10000"), ("backoff_max_ms", "10000")]);
    let dials = |what: &str| {
        let result = engine.connect(&endpoint, LIMIT);
        assert_eq!(status_of(&result), Status::ConnectFailed, "{what}");
        backing_off(&engine, &endpoint);
    };
    dials("never seen");
    let node = engine.node("node", &[&endpoint]);
    dials("registered for the first time");
    for _ in 0..3 {
        engine.node_add_endpoints(node, &[&endpoint], None).unwrap();
        backing_off(&engine, &endpoint);
    }
    engine.node_remove_endpoints(node, &[&endpoint]).unwrap();
    engine.node_add_endpoints(node, &[&endpoint], None).unwrap();
    backing_off(&engine, &endpoint);

    engine.handle_failure(node, None).unwrap();
    engine.node("node", &[&endpoint]);
    dials("registered in the node's next life");
}

#[test]
fn a_connect_that_may_not_dial_yet_does_not_lift_the_fence() {
    let port = closed_port();
    let engine = Engine::with(&[("backoff_ms", "10000"), ("backoff_max_ms", "10000")]);
    refused(engine.connect(&port.endpoint(), LIMIT), Status::ConnectFailed);
    engine.disconnect_endpoint(&port.endpoint()).unwrap();
    refused(engine.connect(&port.endpoint(), LIMIT), Status::Backoff);
    refused(engine.send_to(&port.endpoint(), &[b"x"], LIMIT), Status::Disconnected);
}

#[test]
fn one_endpoints_steps_are_not_anothers() {
    let (dead, peer) = (WrongPeer::closing(), Peer::any());
    let engine = Engine::with(&[("backoff_ms", "10000"), ("backoff_max_ms", "10000")]);
    refused(engine.connect(&dead.endpoint(), LIMIT), Status::ConnectFailed);
    backing_off(&engine, &dead.endpoint());
    engine.ready(peer.endpoint());
    // Nor one manager's another's.
    refused(Engine::new().connect(&dead.endpoint(), LIMIT), Status::ConnectFailed);
    assert_eq!(dead.connections(), 2);
}
