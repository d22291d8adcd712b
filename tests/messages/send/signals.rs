//! Scenario 34: a thousand signals a second, without SA_RESTART, to threads in calls.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvconn::error::{Result, Status};
use kvconn::events::EventKind;
use kvconn::process::Process;

use crate::common::engine::{LARGE, Waiting, after, narrow_peer, refused, send, wait_waiting};
use crate::common::load::Stopwatch;
use crate::common::{Engine, OwnProcess, Peer, WrongPeer, closed_port, ms, wait_until};
use crate::tagged::{Tag, check_whole_and_in_order};
use crate::test_name;

const LONG: Duration = Duration::from_secs(20);

static SIGNALS: AtomicU64 = AtomicU64::new(0);
static OVER: AtomicBool = AtomicBool::new(false);
/// The threads that are in a call.
static TARGETS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

extern "C" fn on_alarm(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Starts the thread that signals all targets a thousand times a second.
fn open_fire() -> std::thread::JoinHandle<()> {
    let handler: extern "C" fn(libc::c_int) = on_alarm;
    // SAFETY: a sigaction of zeroes has no flags (so no SA_RESTART) and an empty mask; the handler only counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
    }
    std::thread::spawn(|| {
        while !OVER.load(Ordering::Relaxed) {
            for target in TARGETS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                // SAFETY: signals a thread of this process; a handler is there.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), *target, libc::SIGALRM) };
            }
            std::thread::sleep(Duration::from_micros(900));
        }
    })
}

/// Runs it as a target, until it returns.
fn under_fire<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: takes nothing.
    let own = unsafe { libc::gettid() };
    TARGETS.lock().unwrap_or_else(PoisonError::into_inner).push(own);
    let result = call();
    TARGETS.lock().unwrap_or_else(PoisonError::into_inner).retain(|target| *target != own);
    result
}

/// A call that must last its own time, and fail with one of these.
#[track_caller]
fn lasts<T: std::fmt::Debug>(time: Duration, statuses: &[Status], call: impl FnOnce() -> Result<T>) {
    let watch = Stopwatch::start();
    let error = under_fire(call).expect_err("nothing here can succeed");
    watch.between(time, time + ms(100), error.status.name());
    assert!(statuses.contains(&error.status) && error.os_errno != libc::EINTR, "{error:?}");
}

#[test]
fn no_call_notices_a_thousand_signals_a_second() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let ticker = open_fire();
    // A manager for each part: the fences of one are nothing to the next, whose peers may get the same ports.
    for calls in [calls_that_succeed, calls_that_time_out, calls_that_are_woken] {
        let engine = Engine::with(&[("handshake_timeout_ms", "300"), ("send_hwm", "4")]);
        calls(&engine);
        under_fire(|| Process::current().unwrap().destroy_manager(engine.id(), after(LONG))).expect("destroyed");
    }
    OVER.store(true, Ordering::Relaxed);
    ticker.join().unwrap();
    let signals = SIGNALS.load(Ordering::Relaxed);
    assert!(signals > 1000, "only {signals} signals: this tests nothing");
}

fn calls_that_succeed(engine: &Engine) {
    let peer = Peer::any();
    let conn = under_fire(|| engine.ready(peer.endpoint()));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let conn = &conn;
            scope.spawn(move || {
                under_fire(|| {
                    for number in 0.. {
                        let tag = Tag { conn: conn.id().0, thread, number };
                        tag.send(conn, 6, 3000, LONG).expect("a healthy peer");
                        if begun.elapsed() > ms(500) {
                            break;
                        }
                    }
                });
            });
        }
    });
    let accepted = conn.info().accepted;
    peer.wait_received(accepted, LONG);
    assert_eq!(check_whole_and_in_order(&peer.messages()).len() as u64, accepted);
    under_fire(|| {
        engine.send_to(peer.endpoint(), &[b"x"], LONG).expect("a healthy peer");
        let node = engine.node("n", &[peer.endpoint()]);
        engine.node_track_request(node, 1).expect("live");
        assert_eq!(engine.handle_failure(node, None).expect("live").requests.len(), 1);
    });
}

fn calls_that_time_out(engine: &Engine) {
    let time = ms(250);
    let [silent, other] = [Peer::any(), Peer::any()];
    silent.stop();
    other.stop();
    let (mute, closed) = (WrongPeer::mute(), closed_port());
    std::thread::scope(|scope| {
        scope.spawn(|| lasts(time, &[Status::Timeout], || engine.connect(silent.endpoint(), time)));
        scope.spawn(|| lasts(ms(300), &[Status::ConnectFailed], || engine.connect(&mute.endpoint(), LONG)));
        let retry = [("connect_retry", "1")];
        scope.spawn(move || lasts(time, &[Status::Timeout], || engine.connect_with(&closed.endpoint(), &retry, time)));
        let conn = engine.lazy(other.endpoint());
        scope.spawn(move || lasts(time, &[Status::Timeout], || send(&conn, &[b"x"], time)));
    });

    let peer = narrow_peer(1);
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    // The head and three behind it; its own progress was just now.
    let filled = Instant::now();
    let accepted = engine.fill(&conn, LARGE);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let watch = Stopwatch::start();
                let error = under_fire(|| send(&conn, &[LARGE], ms(1500))).expect_err("full");
                watch.at_most(ms(1600), "a send of 1500 ms");
                assert!(matches!(error.status, Status::Timeout | Status::Stalled), "{error:?}");
                // Counted from the last progress, which was after `fill` began.
                assert!(filled.elapsed() >= ms(1500), "{error:?}");
            });
        }
    });
    assert_eq!(conn.info().accepted, accepted);
    engine.events();
    let watch = Stopwatch::start();
    let event = under_fire(|| engine.next_event(after(time))).expect("an event or none");
    watch.between(time, time + ms(100), "next_event");
    assert_eq!(event.kind, EventKind::None);
    lasts(time, &[Status::Timeout], || engine.disconnect_all(after(time)));
}

fn calls_that_are_woken(engine: &Engine) {
    let peer = narrow_peer(1);
    let conn = engine.ready(peer.endpoint());
    for end in [false, true] {
        peer.pause_reading();
        engine.fill(&conn, LARGE);
        let waiting = (0..4).map(|_| {
            let conn = conn.clone();
            Waiting::one(move || under_fire(|| send(&conn, &[LARGE], LONG)))
        });
        let waiting = waiting.reduce(Waiting::and).unwrap();
        wait_waiting(&conn, 4, LONG);
        let seen = SIGNALS.load(Ordering::Relaxed);
        wait_until("they are signalled while they wait", LONG, || SIGNALS.load(Ordering::Relaxed) > seen + 200);
        assert_eq!(conn.info().waiting, 4);
        if end {
            under_fire(|| conn.disconnect()).unwrap();
            for result in waiting.return_within(ms(200), Instant::now()) {
                refused(result, Status::Disconnected);
            }
        } else {
            peer.resume_reading();
            for result in waiting.return_within(LONG, Instant::now()) {
                result.expect("there is room again");
            }
        }
    }
    assert_eq!(conn.info().rescues, 0);
}
