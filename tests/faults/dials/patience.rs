//! A dial without an answer is no progress: a send does not wait for it longer than its own time says.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use kvconn::error::Status;

use crate::common::engine::{refused, send};
use crate::common::load::Stopwatch;
use crate::common::{Engine, WrongPeer, ms};

#[test]
fn a_send_to_what_has_been_connecting_for_longer_than_its_time_is_stalled_at_once() {
    let hole = WrongPeer::black_hole();
    let engine = Engine::with(&[("connect_timeout_ms", "5000")]);
    let watch = Stopwatch::start();
    let conn = engine.lazy(&hole.endpoint());
    // Its own time is not over: it waits for the dial.
    refused(send(&conn, &[b"x"], ms(300)), Status::Timeout);
    watch.between(ms(295), ms(400), "the first send");
    // By now the dial has taken longer than this one would wait.
    let watch = Stopwatch::start();
    for _ in 0..10 {
        let error = refused(send(&conn, &[b"x"], ms(200)), Status::Stalled);
        assert!(error.message.contains("connect"), "{}", error.message);
        refused(engine.send_to(&hole.endpoint(), &[b"x"], ms(200)), Status::Stalled);
    }
    watch.at_most(ms(100), "ten sends that do not wait");
    // A longer one waits.
    let watch = Stopwatch::start();
    refused(send(&conn, &[b"x"], ms(1000)), Status::Timeout);
    watch.between(ms(995), ms(1100), "a longer one");
    // One that does not wait at all has nothing to be stalled.
    refused(send(&conn, &[b"x"], Duration::ZERO), Status::Timeout);
    // The first one, which begins the dial itself.
    let other = WrongPeer::black_hole();
    refused(engine.send_to(&other.endpoint(), &[b"x"], ms(200)), Status::Timeout);
    assert_eq!(conn.info().accepted, 0);
}

/// A scheduler with 20 requests for a silent host pays one timeout for each dial that it begins, not one for each request.
#[test]
fn twenty_requests_to_a_silent_host_cost_two_timeouts() {
    const REQUESTS: u32 = 20;
    let hole = WrongPeer::black_hole();
    let engine = Engine::new();
    let (mut waited, mut slow, mut dials) = (Duration::ZERO, 0, HashSet::new());
    let watch = Stopwatch::start();
    for _ in 0..REQUESTS {
        let begun = Instant::now();
        let error = engine.send_to(&hole.endpoint(), &[b"status"], ms(1000)).expect_err("nobody is there");
        let took = begun.elapsed();
        slow += u32::from(took >= ms(900));
        waited += took;
        let known = [Status::Timeout, Status::Stalled, Status::ConnectFailed, Status::Backoff];
        assert!(known.contains(&error.status), "{error:?}");
        if matches!(error.status, Status::Timeout | Status::Stalled) {
            dials.insert(error.conn);
        }
        // Its other work.
        std::thread::sleep(ms(200));
    }
    println!("{REQUESTS} requests waited {waited:?}");
    // connect_timeout_ms is 3 s: the requests take 6 s in all, in which two dials begin; more on a busy machine.
    let dials = dials.len() as u32;
    assert!(dials <= 2 || watch.elapsed() > ms(6500), "{dials} dials in {:?}", watch.elapsed());
    assert!(slow <= dials, "{slow} requests of {REQUESTS} took their whole time; {:?} in all", watch.elapsed());
    assert!(waited <= ms(1025) * dials + watch.excused(), "{waited:?}, {:?} excused", watch.excused());
}
