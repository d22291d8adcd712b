//! Names with several addresses, of which some answer and are of no use (field report R5).

use std::time::Duration;

use kvconn::error::Status;

use crate::common::engine::{connection, options, refused, send, wait_ended};
use crate::common::load::Stopwatch;
use crate::common::{Engine, OwnProcess, Peer, WrongPeer, ms, names, wait_until};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);
const TWO: &str = "127.0.0.1 peer.test\n127.0.0.2 peer.test\n";

/// An engine whose dial takes a second at most for all addresses of a name, and has no steps to wait for.
fn engine() -> Engine {
    Engine::with(&[
        ("connect_timeout_ms", "1000"),
        ("handshake_timeout_ms", "3000"),
        ("backoff_ms", "1"),
        ("backoff_max_ms", "1"),
    ])
}

/// A peer on the second address, at the port that this one has on the first.
fn second(port: u16) -> Peer {
    Peer::bind(&format!("tcp://127.0.0.2:{port}"))
}

/// Reaches the second address in one dial, the first address having used no more than its share of
/// `connect_timeout_ms`.
#[track_caller]
fn reaches_the_second(engine: &Engine, endpoint: &str, peer: &Peer) {
    let watch = Stopwatch::start();
    let (conn, _) = engine.send_to(endpoint, &[b"x"], LIMIT).expect("READY by the second address");
    watch.between(ms(495), ms(700), "the first address's share");
    peer.wait_received(1, LIMIT);
    // It is the good one: the next dial begins with it.
    connection(conn).disconnect().unwrap();
    std::thread::sleep(ms(5)); // a step
    let watch = Stopwatch::start();
    engine.send_to(endpoint, &[b"x"], LIMIT).expect("READY");
    watch.at_most(ms(300), "a dial that begins with the good address");
    peer.wait_received(2, LIMIT);
}

#[test]
fn a_first_address_that_accepts_and_says_nothing_leaves_time_for_the_second() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    names::only_hosts(TWO);
    let mute = WrongPeer::mute();
    let peer = second(mute.port());
    reaches_the_second(&engine(), &format!("tcp://peer.test:{}", mute.port()), &peer);
    assert_eq!(mute.connections(), 1);
}

#[test]
fn a_first_address_whose_process_is_stopped_leaves_time_for_the_second() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    names::only_hosts(TWO);
    let stopped = Peer::any();
    stopped.stop();
    let peer = second(stopped.port());
    reaches_the_second(&engine(), &format!("tcp://peer.test:{}", stopped.port()), &peer);
}

/// The peer moves: what was good fails, and is dialled last from then on.
#[test]
fn the_next_dial_does_not_begin_with_the_address_that_has_just_failed() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    names::only_hosts(TWO);
    let first = Peer::any();
    let endpoint = format!("tcp://peer.test:{}", first.port());
    let engine = engine();
    let conn = engine.ready(&endpoint);
    send(&conn, &[b"x"], LIMIT).expect("sent");
    first.wait_received(1, LIMIT);
    first.kill();
    wait_ended(&conn, LIMIT);
    // The process that has its port now says nothing.
    let mute = WrongPeer::mute_on(first.port());
    std::thread::sleep(ms(5)); // a step
    let error = refused(engine.send_to(&endpoint, &[b"x"], LIMIT), Status::ConnectFailed);
    assert_eq!(error.os_errno, libc::ECONNREFUSED, "that of the last address: {error:?}");
    assert_eq!(mute.connections(), 1);
    let peer = second(first.port());
    std::thread::sleep(ms(5)); // a step
    let watch = Stopwatch::start();
    engine.send_to(&endpoint, &[b"x"], LIMIT).expect("READY");
    watch.at_most(ms(300), "a dial that begins with the address that did not time out");
    peer.wait_received(1, LIMIT);
    assert_eq!(mute.connections(), 1);
}

#[test]
fn with_connect_retry_every_address_has_its_turn() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    names::only_hosts(TWO);
    let mute = WrongPeer::mute();
    let endpoint = format!("tcp://peer.test:{}", mute.port());
    let engine = engine();
    let retry = options(&[("connect_retry", "1")]);
    std::thread::scope(|scope| {
        let connecting =
            scope.spawn(|| engine.manager().connect(&endpoint, Some(&retry), kvconn::timeout::Timeout::After(LIMIT)));
        // The second address refuses at first.
        wait_until("the first address has failed", LIMIT, || mute.connections() >= 1);
        let peer = second(mute.port());
        connecting.join().unwrap().expect("READY by the second address");
        assert_eq!(peer.received().accepted, 1);
    });
}

/// All addresses together take no longer than the dial's own time.
#[test]
fn many_addresses_that_say_nothing_share_the_time() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    names::only_hosts("127.0.0.1 peer.test\n127.0.0.2 peer.test\n127.0.0.3 peer.test\n127.0.0.4 peer.test\n");
    let first = WrongPeer::mute();
    let others = [2, 3, 4].map(|last| WrongPeer::start("mute", &format!("127.0.0.{last}:{}", first.port()), None));
    let engine = Engine::with(&[("connect_timeout_ms", "800"), ("handshake_timeout_ms", "600")]);
    let watch = Stopwatch::start();
    let endpoint = format!("tcp://peer.test:{}", first.port());
    let error = refused(engine.connect(&endpoint, LIMIT), Status::ConnectFailed);
    // A quarter of 800 ms for each but the last, which has its whole handshake_timeout_ms.
    watch.between(ms(1190), ms(1400), "the dial");
    assert_eq!(error.os_errno, libc::ETIMEDOUT, "{error:?}");
    assert!(others.iter().chain([&first]).all(|peer| peer.connections() == 1));
}
