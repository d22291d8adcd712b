//! A peer that has stopped costs a caller one deadline, not one for each message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvconn::connection::Connection;
use kvconn::connection::message::Copies;
use kvconn::error::{Error, Result, Status};
use kvconn::events::EventKind;
use kvconn::process::Process;

use crate::common::engine::{LARGE, Waiting, after, message, narrow_peer, refused, send, status_of, wait_waiting};
use crate::common::load::Stopwatch;
use crate::common::{Engine, Peer, PeerOptions, ms, wait_until};

const LONG: Duration = Duration::from_secs(20);
/// In the text of a send that did not wait, because another had waited in vain.
const NOT_AGAIN: &str = "not waited again";

/// Scenario 15.
#[test]
fn after_one_deadline_on_a_stopped_peer_the_next_hundred_sends_cost_nothing() {
    let peer = narrow_peer(1);
    let engine = Engine::with(&[("send_hwm", "4")]);
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    let watch_fill = Stopwatch::start();
    let accepted = engine.fill(&conn, LARGE);
    // The queue has been full for 100 ms now, and patience counts from then.
    let watch = Stopwatch::start();
    let first = send(&conn, &[LARGE], ms(1000)).expect_err("nobody reads");
    watch.at_most(ms(1100), "the first send");
    let took = watch.elapsed();
    assert!(matches!(first.status, Status::Stalled | Status::Timeout), "{first:?}");
    // `fill` may have been late to see that nothing moved.
    assert!(took + watch_fill.excused() >= ms(700), "the first took {took:?}");

    let watch = Stopwatch::start();
    for timeout in (0..100).map(|number| [ms(1000), ms(10), ms(500), ms(1)][number % 4]) {
        let error = refused(send(&conn, &[LARGE], timeout), Status::Stalled);
        assert!(error.status.row().retriable, "{error:?}");
    }
    watch.at_most(ms(1000), "a hundred more sends");
    // A sender with a longer timeout still waits, counted from the last progress.
    refused(send(&conn, &[LARGE], ms(2500)), Status::Stalled);
    assert!(watch_fill.elapsed() >= ms(2500), "nothing had moved for {:?} at the most", watch_fill.elapsed());
    // Without a timeout no call waits, and none says that the peer is stuck.
    refused(send(&conn, &[LARGE], ms(0)), Status::Timeout);
    assert_eq!(engine.expect_event(EventKind::Stalled, LONG).conn, conn.id());

    peer.resume();
    assert_eq!(send(&conn, &[LARGE], LONG).expect("it reads again"), accepted + 1);
    assert_eq!(engine.expect_event(EventKind::Recovered, LONG).conn, conn.id());
    for number in 2..100 {
        assert_eq!(send(&conn, &[LARGE], LONG).expect("it reads again"), accepted + number);
    }
    peer.wait_received(accepted + 99, LONG);
    assert_eq!(peer.received().messages, accepted + 99, "nothing that was refused arrives");
}

/// Sends with 10 ms each, for 200 ms.
fn hasty(conn: &Arc<Connection>) -> Waiting<Result<u64>> {
    let conn = conn.clone();
    Waiting::one(move || {
        let begun = Instant::now();
        let mut last = Ok(0);
        while begun.elapsed() < ms(200) {
            last = send(&conn, &[LARGE], ms(10));
        }
        last
    })
}

/// Sends with half a minute.
fn patient(conn: &Arc<Connection>) -> Waiting<Result<u64>> {
    let conn = conn.clone();
    Waiting::one(move || send(&conn, &[LARGE], ms(30_000)))
}

/// Scenario 15b.
#[test]
fn a_short_deadline_beside_it_fails_no_other_send() {
    let peer = narrow_peer(1);
    let engine = Engine::with(&[("send_hwm", "4")]);
    let conn = engine.ready(peer.endpoint());
    for hasty_first in [true, false, true] {
        // Full at this moment; the last progress is recent, so that no send is refused for the time before.
        peer.stop();
        while status_of(&send(&conn, &[LARGE], ms(5))) == Status::Ok {}
        let first = hasty_first.then(|| hasty(&conn));
        let mut patients = patient(&conn);
        // The kernel may still take some, and then libzmq has room for two at once: until so many have to wait.
        let mut until_waiting = |count| {
            while conn.info().waiting < count {
                patients.add(patient(&conn));
                std::thread::sleep(ms(5));
            }
        };
        // The hasty one may be among them now.
        until_waiting(if hasty_first { 3 } else { 2 });
        let hasty = first.unwrap_or_else(|| hasty(&conn));
        // The peer pauses 200 ms.
        std::thread::sleep(ms(200));
        until_waiting(2);
        peer.resume();
        for result in patients.return_within(LONG, Instant::now()) {
            result.unwrap_or_else(|error| panic!("a sender with half a minute: {error:?}"));
        }
        for result in hasty.return_within(LONG, Instant::now()) {
            assert!(matches!(status_of(&result), Status::Ok | Status::Timeout | Status::Stalled), "{result:?}");
        }
    }
    let info = conn.info();
    assert_eq!((info.rescues, info.waiting), (0, 0));
}

/// STALLED is for a peer that does not move. One that is slow costs each sender its own deadline, or lets it pass.
#[test]
fn a_slow_peer_that_moves_is_never_called_stalled() {
    // A Unix socket, whose buffer is a few messages; the peer reads one in 20 ms.
    let name = format!("ipc://@kvconn-slow-{}", std::process::id());
    let options = PeerOptions { bind: name, rcvhwm: 1, delay: ms(20), log: false, ..PeerOptions::default() };
    let peer = Peer::with(options);
    let engine = Engine::with(&[("send_hwm", "1")]);
    let conn = engine.ready(peer.endpoint());
    let stop = AtomicBool::new(false);
    let (passed, timed_out) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let watch = Stopwatch::start();
                    match send(&conn, &[LARGE], ms(400)) {
                        Ok(_) => _ = passed.fetch_add(1, Ordering::Relaxed),
                        // A peer that gets no processor does not move either.
                        Err(error) if error.status == Status::Stalled && watch.excused() > ms(200) => {}
                        Err(error) => {
                            let took = watch.elapsed();
                            assert_eq!(error.status, Status::Timeout, "after {took:?}: {error:?}");
                            if error.message.contains(NOT_AGAIN) {
                                // Until the next message leaves, 20 ms later.
                                std::thread::sleep(ms(1));
                            } else {
                                assert!(took >= ms(400), "after {took:?}");
                                timed_out.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                }
            });
        }
        std::thread::sleep(ms(2500));
        stop.store(true, Ordering::Relaxed);
    });
    let (passed, timed_out) = (passed.into_inner(), timed_out.into_inner());
    println!("{passed} passed, {timed_out} timed out");
    assert!(passed >= 20 && timed_out >= 20, "{passed} passed, {timed_out} timed out");
    assert_eq!(conn.info().accepted, passed);
    peer.wait_received(passed, LONG);
}

/// The time that ran out is not spent a second time by any sender, until there was progress.
#[test]
fn after_a_timeout_no_send_with_that_time_waits_until_there_was_progress() {
    // A Unix socket, and a peer that reads a message in 10 ms: progress comes several times a second, and room after
    // half of the queue, which takes 5 s.
    const FRAME: &[u8] = &[b'x'; 4096];
    let name = format!("ipc://@kvconn-in-vain-{}", std::process::id());
    let peer = Peer::with(PeerOptions { bind: name, rcvhwm: 1, delay: ms(10), log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("send_hwm", "1000")]);
    let conn = engine.ready(peer.endpoint());
    engine.fill(&conn, FRAME);
    let sender = |timeout| {
        let conn = conn.clone();
        Waiting::one(move || send(&conn, &[FRAME], timeout))
    };
    let first = sender(ms(1500));
    wait_waiting(&conn, 1, LONG);
    let begun = Instant::now();
    let patient = sender(ms(30_000));
    wait_waiting(&conn, 2, LONG);
    // So that it cannot be called stalled: something moves while it waits. Then the peer stops.
    wait_until("progress during the wait", LONG, || {
        begun.elapsed() > ms(500) && conn.info().without_progress < begun.elapsed()
    });
    peer.stop();
    for result in first.return_within(ms(1600), begun) {
        let error = refused(result, Status::Timeout);
        assert!(!error.message.contains(NOT_AGAIN), "{}", error.message);
    }

    let watch = Stopwatch::start();
    let in_vain = |error: Error| match error.status {
        Status::Timeout => assert!(error.message.contains(NOT_AGAIN), "{error:?}"),
        // Nothing has moved for so long by now.
        status => assert_eq!(status, Status::Stalled, "{error:?}"),
    };
    for timeout in [1500, 1400, 700, 1, 1500] {
        in_vain(send(&conn, &[FRAME], ms(timeout)).expect_err("full"));
        in_vain(engine.send_to(peer.endpoint(), &[FRAME], ms(timeout)).expect_err("full"));
        let items = [conn.id(); 2].map(|id| (id, |_: &mut Copies| message(&[FRAME])));
        for result in Process::current().unwrap().send_batch(items.into_iter(), after(ms(timeout))) {
            in_vain(result.expect_err("full"));
        }
    }
    watch.at_most(ms(300), "sends that do not wait");
    assert_eq!(conn.info().waiting, 1, "the patient one has a deadline of its own");
    // What has more time than ran out waits, until nothing has moved for that long.
    let watch = Stopwatch::start();
    refused(send(&conn, &[FRAME], ms(3000)), Status::Stalled);
    assert!(watch.elapsed() + watch.excused() >= ms(500), "after {:?}", watch.elapsed());

    // Progress, and yet no room: the next one waits again.
    peer.resume();
    wait_until("progress", LONG, || conn.info().without_progress < ms(200));
    let watch = Stopwatch::start();
    let error = refused(send(&conn, &[FRAME], ms(300)), Status::Timeout);
    assert!(watch.elapsed() >= ms(300) && !error.message.contains(NOT_AGAIN), "{:?}: {error:?}", watch.elapsed());
    for result in patient.return_within(LONG, Instant::now()) {
        result.expect("there is room at last");
    }
    assert_eq!((conn.info().rescues, conn.info().waiting), (0, 0));
}
