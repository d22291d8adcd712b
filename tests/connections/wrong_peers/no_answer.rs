//! No answer at all: the dial ends at its own deadline, and other endpoints are not disturbed.

use std::time::Duration;

use kvconn::connection::ConnectionState;
use kvconn::error::Status;
use kvconn::events::EventKind;

use super::stream::undisturbed;
use crate::common::engine::{refused, send, wait_ended, wait_waiting};
use crate::common::load::Stopwatch;
use crate::common::{Engine, Namespace, OwnProcess, Peer, PeerOptions, WrongPeer, ms, names};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);
const AT_ONCE: Duration = ms(100);

#[track_caller]
fn took(watch: Stopwatch, time: Duration) {
    // Not early either: a timer of libzmq's beside ours would be.
    watch.between(time - ms(5), time + AT_ONCE, "the dial");
}

/// Scenario 36.
fn fails_at_its_deadline_undisturbing(endpoint: &str) {
    let engine = Engine::with(&[("connect_timeout_ms", "1000")]);
    undisturbed(&engine, || {
        let watch = Stopwatch::start();
        let error = refused(engine.connect(endpoint, LIMIT), Status::ConnectFailed);
        took(watch, ms(1000));
        assert_eq!(error.os_errno, libc::ETIMEDOUT, "{error:?}");
        assert!(error.message.contains("connect_timeout_ms"), "{}", error.message);
        refused(engine.send_to(endpoint, &[b"x"], LIMIT), Status::Backoff);
    });
}

#[test]
fn a_connect_to_a_black_hole_fails_at_its_deadline_and_a_stream_beside_it_goes_on() {
    let hole = WrongPeer::black_hole();
    fails_at_its_deadline_undisturbing(&hole.endpoint());
}

#[test]
fn a_connect_behind_a_dead_network_fails_at_its_deadline_and_a_stream_beside_it_goes_on() {
    skip_unless!(Namespace::available());
    let network = Namespace::new();
    let peer = network.peer(PeerOptions::default());
    network.cut();
    fails_at_its_deadline_undisturbing(peer.endpoint());
    assert_eq!(peer.received().accepted, 0);
}

#[test]
fn a_short_deadline_is_told_from_a_refusal() {
    let holes: Vec<WrongPeer> = (0..4).map(|_| WrongPeer::black_hole()).collect();
    std::thread::scope(|scope| {
        for (hole, timeout) in holes.iter().zip([50, 120, 200, 400]) {
            scope.spawn(move || {
                let settings = [("connect_timeout_ms", timeout.to_string())];
                let engine = Engine::with(&settings.each_ref().map(|(name, value)| (*name, value.as_str())));
                let watch = Stopwatch::start();
                let error = refused(engine.connect(&hole.endpoint(), LIMIT), Status::ConnectFailed);
                took(watch, ms(timeout));
                assert_eq!(error.os_errno, libc::ETIMEDOUT, "after {timeout} ms: {error:?}");
            });
        }
    });
}

#[test]
fn calls_to_a_black_hole_end_at_the_dials_deadline_or_at_their_own() {
    let hole = WrongPeer::black_hole();
    let engine = Engine::with(&[("connect_timeout_ms", "600")]);
    let watch = Stopwatch::start();
    let conn = engine.lazy(&hole.endpoint());
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| send(&conn, &[b"x"], LIMIT));
        let connecting = scope.spawn(|| engine.connect(&hole.endpoint(), LIMIT));
        let impatient = scope.spawn(|| send(&conn, &[b"x"], ms(200)));
        wait_waiting(&conn, 2, LIMIT);
        refused(impatient.join().unwrap(), Status::Timeout);
        watch.at_most(ms(200) + AT_ONCE, "the impatient one");
        refused(patient.join().unwrap(), Status::ConnectFailed);
        refused(connecting.join().unwrap(), Status::ConnectFailed);
        took(watch, ms(600));
    });
    assert_eq!(wait_ended(&conn, LIMIT).accepted, 0);
    assert_eq!(engine.events_of(EventKind::ConnectFailed).len(), 1);
}

#[test]
fn a_silent_first_address_leaves_time_for_the_second() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    names::only_hosts("127.0.0.1 peer.test\n127.0.0.2 peer.test\n");
    let hole = WrongPeer::black_hole();
    let peer = Peer::bind(&format!("tcp://127.0.0.2:{}", hole.port()));
    let engine = Engine::with(&[("connect_timeout_ms", "1000")]);
    let endpoint = format!("tcp://peer.test:{}", hole.port());
    let watch = Stopwatch::start();
    let (conn, _) = engine.send_to(&endpoint, &[b"x"], LIMIT).expect("READY in one dial");
    took(watch, ms(500));
    peer.wait_received(1, LIMIT);
    let events: Vec<_> = engine.events().iter().map(|event| (event.kind, event.conn)).collect();
    assert_eq!(events, [(EventKind::Ready, conn)], "one connection, whatever it is made of");
}

#[test]
fn a_name_with_silent_addresses_only_takes_one_deadline_in_all() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    names::only_hosts("127.0.0.1 peer.test\n127.0.0.2 peer.test\n127.0.0.3 peer.test\n");
    let hole = WrongPeer::black_hole();
    let others = [2, 3].map(|last| WrongPeer::start("full", &format!("127.0.0.{last}:{}", hole.port()), None));
    let engine = Engine::with(&[("connect_timeout_ms", "600")]);
    let watch = Stopwatch::start();
    let error = refused(engine.connect(&format!("tcp://peer.test:{}", hole.port()), LIMIT), Status::ConnectFailed);
    took(watch, ms(600));
    assert_eq!(error.os_errno, libc::ETIMEDOUT);
    drop(others);
}

/// Dials are given to libzmq a few at a time. Those without an answer must not keep the others waiting.
#[test]
fn dials_into_a_black_hole_do_not_hold_up_other_dials() {
    let (hole, peer) = (WrongPeer::start("full", "0.0.0.0:0", None), Peer::any());
    let engine = Engine::with(&[("connect_timeout_ms", "30000")]);
    let port = crate::common::peer::port_of(&hole.endpoint());
    let holes: Vec<_> = (2..60).map(|host| engine.lazy(&format!("tcp://127.0.0.{host}:{port}"))).collect();
    let watch = Stopwatch::start();
    engine.ready(peer.endpoint());
    watch.at_most(Duration::from_secs(3), "a dial to a peer that answers");
    assert!(holes.iter().all(|hole| hole.info().state == ConnectionState::Connecting));
}
