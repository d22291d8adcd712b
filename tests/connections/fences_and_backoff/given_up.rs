//! A dial that the caller gives up before it is READY has used up its step all the same.

use std::time::{Duration, Instant};

use kvconn::error::{Error, Status};
use kvconn::timeout::Timeout;

use crate::common::engine::{after, connection, refused, status_of};
use crate::common::load::{Stopwatch, Storm};
use crate::common::{Engine, OwnProcess, WrongPeer, closed_port, ms, own_process, soak_time, tcp_traffic, wait_until};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);
const AT_ONCE: Timeout = Timeout::After(Duration::ZERO);

type Ask = fn(&Engine, &str) -> Result<(), Error>;
type GiveUp = fn(&Engine, &str);

/// Ways to ask for a dial without waiting for it.
const ASK: [Ask; 2] = [
    |engine, endpoint| engine.connect(endpoint, Duration::ZERO).map(drop),
    |engine, endpoint| engine.send_to(endpoint, &[b"x"], Duration::ZERO).map(drop),
];

/// Ways to give it up.
const GIVE_UP: [GiveUp; 3] = [
    |engine, endpoint| {
        if let Ok(conn) = engine.find(endpoint) {
            connection(conn).disconnect().expect("no error");
        }
    },
    |engine, endpoint| engine.disconnect_endpoint(endpoint).expect("no error"),
    |engine, _| engine.disconnect_all(AT_ONCE).expect("no error"),
];

#[test]
fn a_dial_that_was_given_up_is_not_repeated_within_its_step_and_the_error_says_so() {
    let mute = WrongPeer::mute();
    for give_up in GIVE_UP {
        let engine = Engine::with(&[("backoff_ms", "20000"), ("backoff_max_ms", "20000")]);
        let conn = engine.lazy(&mute.endpoint());
        give_up(&engine, &mute.endpoint());
        let error = refused(engine.connect(&mute.endpoint(), LIMIT), Status::Backoff);
        assert!(error.message.contains("the last dial was given up"), "{}", error.message);
        assert!(error.message.contains(&conn.info().message), "{} lacks {}", error.message, conn.info().message);
        assert_eq!(error.os_errno, libc::ECANCELED, "nothing failed");
        let wait = error.retry_after.expect("when to come back");
        assert!(wait > ms(15_000) && wait <= ms(25_000), "a step of 20 s and up to a quarter more: {wait:?}");
        assert!(engine.describe().contains("the last dial was given up"), "{}", engine.describe());
    }
    let engine = Engine::with(&[("backoff_ms", "20000"), ("backoff_max_ms", "20000")]);
    let conn = engine.lazy(&mute.endpoint());
    conn.disconnect().expect("ended");
    let error = refused(engine.send_to(&mute.endpoint(), &[b"x"], LIMIT), Status::Backoff);
    assert!(error.message.contains("the last dial was given up"), "{}", error.message);
}

#[test]
fn the_step_of_a_dial_that_was_given_up_counts_from_its_start_and_does_not_grow() {
    let mute = WrongPeer::mute();
    let engine = Engine::with(&[("backoff_ms", "1000"), ("backoff_max_ms", "20000")]);
    for _ in 0..3 {
        let dialled = Stopwatch::start();
        let conn = engine.lazy(&mute.endpoint());
        std::thread::sleep(ms(500));
        conn.disconnect().expect("ended");
        let wait = refused(engine.connect(&mute.endpoint(), LIMIT), Status::Backoff).retry_after.expect("when");
        assert!(wait <= ms(750), "half of the step was over: {wait:?}");
        wait_until("the step is over", LIMIT, || engine.connect(&mute.endpoint(), Duration::ZERO).is_ok());
        dialled.between(ms(1000), ms(1400), "the step");
        // Its own step is over before it is given up: the next dial is free.
        let conn = connection(engine.find(&mute.endpoint()).expect("dialled"));
        std::thread::sleep(ms(1300));
        conn.disconnect().expect("ended");
    }
    engine.connect(&mute.endpoint(), Duration::ZERO).expect("dialled");
}

#[test]
fn a_registration_in_a_new_life_forgets_the_dial_that_was_given_up() {
    let mute = WrongPeer::mute();
    let engine = Engine::with(&[("backoff_ms", "20000"), ("backoff_max_ms", "20000")]);
    for _ in 0..3 {
        let node = engine.node("node", &[&mute.endpoint()]);
        let conn = engine.lazy(&mute.endpoint());
        conn.disconnect().expect("ended");
        refused(engine.connect(&mute.endpoint(), LIMIT), Status::Backoff);
        engine.handle_failure(node, None).expect("failed");
    }
    let node = engine.node("node", &[&mute.endpoint()]);
    engine.lazy(&mute.endpoint());
    engine.handle_failure(node, None).expect("failed");
    engine.node("node", &[&mute.endpoint()]);
    engine.lazy(&mute.endpoint());
}

/// Asks and gives up without end, in every way there is.
fn dial_and_give_up(engine: &Engine, endpoint: &str) -> Duration {
    let begun = Instant::now();
    let storm = Storm::new(ms(2000));
    let (mut rounds, mut dials) = (0, 0);
    while storm.goes_on(rounds > 1000) {
        // After each way of giving up the fence, if there is one, is lifted by a connect.
        let (ask, give_up) = (ASK[rounds % 2], GIVE_UP[rounds / 2 % 3]);
        let before = tcp_traffic().dials;
        let asked = ask(engine, endpoint);
        let status = status_of(&asked);
        let expected = [Status::Ok, Status::Backoff, Status::ConnectFailed, Status::Disconnected, Status::Timeout];
        assert!(expected.contains(&status), "{asked:?}");
        if matches!(status, Status::Ok | Status::Timeout) {
            // Every other dial is given up only after it has left: a busy machine may give up all others before that.
            dials += 1;
            if dials % 2 == 0 {
                wait_until("the dial has left", LIMIT, || tcp_traffic().dials > before);
            }
        }
        give_up(engine, endpoint);
        rounds += 1;
        std::thread::sleep(Duration::from_micros(50));
    }
    assert!(rounds > 1000, "only {rounds} rounds: that is no storm");
    engine.disconnect_all(after(LIMIT)).expect("ended");
    begun.elapsed()
}

#[test]
fn dialling_and_giving_up_without_end_is_one_dial_a_step() {
    skip_unless!(own_process::network_available());
    let limit = 2 * soak_time(Duration::ZERO) + Duration::from_secs(60);
    if OwnProcess::new(test_name!()).network().limit(limit).parent() {
        return;
    }
    let (port, hole) = (closed_port(), WrongPeer::black_hole());
    for endpoint in [port.endpoint(), hole.endpoint()] {
        let engine = Engine::with(&[("backoff_ms", "100"), ("backoff_max_ms", "100")]);
        let before = tcp_traffic().dials;
        let took = dial_and_give_up(&engine, &endpoint);
        let dials = tcp_traffic().dials - before;
        let allowed = took.as_millis() / 100 + 1;
        assert!(u128::from(dials) <= allowed, "{endpoint}: {dials} dials in {took:?}, the steps allow {allowed}");
        assert!(dials >= 3, "{endpoint}: only {dials} dials in {took:?}, although it was asked for");
    }
}
