//! However many threads ask for a dead endpoint, and however often: one dial for each step.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvconn::error::Status;

use crate::common::{Engine, OwnProcess, WrongPeer, closed_port, ms, own_process, soak_time, tcp_traffic};
use crate::{skip_unless, test_name};

const BASE: Duration = ms(100);
const LONGEST: Duration = ms(2000);

/// The most dials that the steps allow within this time.
fn dials_allowed(within: Duration) -> u64 {
    let mut dials = 0;
    let (mut at, mut step) = (Duration::ZERO, BASE);
    while at <= within {
        dials += 1;
        at += step;
        step = (step * 2).min(LONGEST);
    }
    dials
}

/// Four threads ask for 3 seconds, in every way there is; how long they really took.
fn hammer(endpoint: &str) -> Duration {
    let engine = Engine::with(&[("backoff_ms", "100"), ("backoff_max_ms", "2000")]);
    let (calls, dials) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    let until = begun + soak_time(Duration::from_secs(3));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (engine, calls, dials) = (&engine, &calls, &dials);
            scope.spawn(move || {
                for round in thread.. {
                    if Instant::now() >= until {
                        break;
                    }
                    let wait = ms(round % 2 * 1000);
                    let result = match round % 4 {
                        0 | 1 => engine.connect(endpoint, wait).map(drop),
                        _ => engine.send_to(endpoint, &[b"x"], wait).map(drop),
                    };
                    calls.fetch_add(1, Ordering::Relaxed);
                    let Err(error) = result else { continue };
                    match error.status {
                        Status::ConnectFailed => _ = dials.fetch_add(1, Ordering::Relaxed),
                        Status::Backoff => {
                            let wait = error.retry_after.expect("when to come back");
                            assert!(wait <= LONGEST + LONGEST / 4, "{error:?}");
                        }
                        // A send without waiting, while another thread's dial is in progress.
                        Status::Timeout => {}
                        _ => panic!("{error:?}"),
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
        }
    });
    let took = begun.elapsed();
    let calls = calls.into_inner();
    assert!(calls > 1000, "only {calls} calls: that is no storm");
    assert!(dials.into_inner() > 0, "nobody was told of a failed dial");
    took
}

#[track_caller]
fn one_for_each_step(dials: u64, took: Duration) {
    let allowed = dials_allowed(took);
    assert!(dials <= allowed, "{dials} dials in {took:?}, the steps allow {allowed}");
    assert!(dials >= 3, "only {dials} dials in {took:?}, although everybody asked");
}

#[test]
fn the_figures_of_this_file_are_those_of_the_design() {
    assert_eq!(dials_allowed(ms(99)), 1);
    assert_eq!(dials_allowed(ms(100)), 2);
    assert_eq!(dials_allowed(ms(3000)), 5); // at 0, 0.1, 0.3, 0.7, 1.5
}

#[test]
fn a_listener_that_closes_or_resets_at_once_is_dialled_once_a_step() {
    std::thread::scope(|scope| {
        for listener in [WrongPeer::closing(), WrongPeer::resetting()] {
            scope.spawn(move || {
                let took = hammer(&listener.endpoint());
                one_for_each_step(listener.connections(), took);
            });
        }
    });
}

#[test]
fn a_port_that_refuses_is_dialled_once_a_step() {
    skip_unless!(own_process::network_available());
    let limit = soak_time(Duration::ZERO) + Duration::from_secs(60);
    if OwnProcess::new(test_name!()).network().limit(limit).parent() {
        return;
    }
    let port = closed_port();
    let before = tcp_traffic();
    let took = hammer(&port.endpoint());
    let after = tcp_traffic();
    one_for_each_step(after.dials - before.dials, took);
    // A SYN and the refusal: there is nothing else.
    assert_eq!(after.segments - before.segments, 2 * (after.dials - before.dials));
}

#[test]
fn without_a_call_nothing_is_dialled() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let port = closed_port();
    let engine = Engine::with(&[("backoff_ms", "10"), ("backoff_max_ms", "10")]);
    engine.node("node", &[&port.endpoint()]);
    engine.connect(&port.endpoint(), ms(5000)).expect_err("nobody listens");
    let before = tcp_traffic();
    std::thread::sleep(ms(500));
    assert_eq!(tcp_traffic(), before, "dialled by itself");
}
