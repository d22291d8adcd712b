//! STALLED and RECOVERED, and a peer that flaps while no thread reads events.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::engine::{
    LARGE, SetOnDrop, after, narrow_peer, options, own_address, refused, send, status_of, text,
};
use crate::common::load::Stopwatch;
use crate::common::{
    Engine, OwnProcess, Peer, PeerOptions, ms, open_descriptors, resident_bytes, soak_time, wait_until,
};
use crate::test_name;
use kvconn::error::Status;
use kvconn::events::EventKind;

const LONG: Duration = Duration::from_secs(10);

/// No thread sends: the watcher looks.
#[test]
fn a_stopped_peer_stalls_and_recovers_without_any_sender_waiting() {
    let peer = narrow_peer(1);
    let engine = Engine::with(&[("send_hwm", "4"), ("stall_ms", "600")]);
    let conn = engine.ready(peer.endpoint());
    for round in 0..2 {
        peer.stop();
        let before = conn.info().accepted;
        engine.fill(&conn, LARGE);
        let watch = Stopwatch::start();
        let stalled = engine.expect_event(EventKind::Stalled, LONG);
        // Counted from the last progress, which was before `fill` had found the queue full for a while.
        watch.at_most(ms(700), "STALLED after the queue was full");
        assert_eq!((stalled.conn, stalled.status), (conn.id(), Status::Stalled), "round {round}");
        assert!(stalled.endpoint.as_ref() == Some(conn.endpoint()) && !stalled.message.is_empty(), "{stalled:?}");
        let info = conn.info();
        assert!(info.stalled && info.status == Status::Ok && info.waiting == 0);
        refused(engine.send(&conn, &[b"x"], ms(500)), Status::Stalled);
        assert!(engine.describe().contains("STALLED"), "{}", engine.describe());

        peer.resume();
        let watch = Stopwatch::start();
        let recovered = engine.expect_event(EventKind::Recovered, LONG);
        watch.at_most(ms(500), "RECOVERED after SIGCONT");
        assert_eq!((recovered.conn, recovered.status, recovered.count), (conn.id(), Status::Ok, 0));
        assert!(!conn.info().stalled);
        assert!(conn.info().accepted > before);
        engine.send(&conn, &[b"x"], ms(5000)).expect("it moves again");
        assert!(engine.events().is_empty(), "one STALLED, one RECOVERED");
        peer.wait_received(conn.info().accepted, LONG);
    }
}

#[test]
fn a_peer_that_is_slow_but_moves_does_not_stall() {
    let slow = PeerOptions { delay: ms(20), rcvhwm: 1, log: false, ..PeerOptions::default() };
    let peer = Peer::with(slow);
    let engine = Engine::with(&[("send_hwm", "2"), ("stall_ms", "1000")]);
    let conn = engine.ready(peer.endpoint());
    let begun = Instant::now();
    while begun.elapsed() < ms(2500) {
        engine.send(&conn, &[LARGE], LONG).expect("slow is not stuck");
    }
    let kinds: Vec<_> = engine.events().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Ready]);
}

#[test]
fn a_stalled_connection_that_ends_does_not_recover() {
    let peer = narrow_peer(2);
    let engine = Engine::with(&[("send_hwm", "4"), ("stall_ms", "50")]);
    let conns = [0, 1].map(|at| engine.ready(&peer.endpoints()[at]));
    peer.stop();
    for conn in &conns {
        engine.fill(conn, LARGE);
    }
    wait_until("both have stalled", LONG, || conns.iter().all(|conn| conn.info().stalled));
    engine.events();
    conns[0].disconnect().expect("ended");
    peer.kill();
    wait_until("the other is lost", LONG, || conns[1].info().status == Status::PeerLost);
    let kinds: Vec<_> = engine.events().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Disconnected, EventKind::PeerLost]);
}

/// What libzmq drops when it closes the socket is no progress.
#[test]
fn a_stalled_connection_whose_queue_is_dropped_does_not_recover() {
    let path = std::env::temp_dir().join(format!("kvconn-stall-{}", std::process::id()));
    let bind = format!("ipc://{}", path.display());
    for (bind, settings) in [(&*bind, &[][..]), ("tcp://127.0.0.1:0", &[("acknowledgement", "off")][..])] {
        let peer = Peer::with(PeerOptions {
            bind: bind.into(),
            rcvhwm: 1,
            rcvbuf: 4096,
            log: false,
            ..PeerOptions::default()
        });
        let engine = Engine::with(&[("send_hwm", "8"), ("stall_ms", "100")]);
        let conn = engine.ready_with(peer.endpoint(), settings);
        peer.stop();
        engine.fill(&conn, LARGE);
        engine.expect_event(EventKind::Stalled, LONG);
        // The kernel's last probes may have ended a first stall while the queue was filled.
        wait_until("it is stalled for good", LONG, || {
            let info = conn.info();
            info.stalled && info.without_progress > ms(300)
        });
        engine.events();
        conn.disconnect().unwrap();
        wait_until("libzmq has dropped what it held", LONG, || conn.gone().is_some());
        conn.info();
        let kinds: Vec<_> = engine.events().iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::Disconnected], "{bind}");
    }
}

/// How often the watcher has slept.
fn watcher_sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("listing threads");
    let status = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok())
        .find(|status| status.starts_with("Name:\tkvconn-watcher\n"))
        .expect("the watcher");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a count");
    line.trim().parse().expect("a number")
}

/// A sender that is quicker than its peer finds the queue full all the time: that alone is no work for the watcher.
#[test]
fn a_queue_that_is_often_full_does_not_keep_the_watcher_busy() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("send_hwm", "2"), ("stall_ms", "100")]);
    let conn = engine.ready(peer.endpoint());
    let (mut fulls, before) = (0, watcher_sleeps());
    let begun = Instant::now();
    while begun.elapsed() < ms(1500) || fulls < 500 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the queue was full {fulls} times only");
        if status_of(&engine.send(&conn, &[LARGE], Duration::ZERO)) == Status::Timeout {
            fulls += 1;
            engine.send(&conn, &[LARGE], LONG).expect("the peer reads");
        }
    }
    let (took, sleeps) = (begun.elapsed(), watcher_sleeps() - before);
    println!("full {fulls} times in {took:?}, the watcher was woken {sleeps} times");
    // Ten looks each stall_ms while a message is in flight, and some for what else there is.
    let looks = took.as_millis() as u64 / 10;
    assert!(sleeps <= 2 * looks + 10, "woken {sleeps} times in {took:?}, full {fulls} times");
}

/// Scenario 29 in the small.
#[test]
fn a_flapping_peer_and_unread_events_disturb_no_other_endpoint_stress() {
    if OwnProcess::new(test_name!()).limit(Duration::from_secs(3600)).network_if_possible().parent() {
        return;
    }
    const BOUND: u64 = 16;
    let (flapping, steady) = (Peer::bind(&format!("tcp://{}:0", own_address())), Peer::any());
    let engine = Engine::with(&[("max_events", "16"), ("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let stream = engine.ready(steady.endpoint());
    let (stop, slow, longest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut events = 1_u64; // READY of the stream
    let mut flaps = 0;
    let mut memory = 0;
    let sent = std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let streaming = scope.spawn(|| {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                sent = send(&stream, &[b"steady"], ms(1000)).expect("the other endpoint is not disturbed");
                let took = begun.elapsed();
                slow.fetch_add(u64::from(took > ms(20)), Ordering::Relaxed);
                longest.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(200));
            }
            sent
        });
        let begun = Instant::now();
        while begun.elapsed() < soak_time(ms(2500)) || flaps < 300 {
            assert!(begun.elapsed() < soak_time(ms(30_000)) + LONG, "{flaps} flaps");
            // Every connection raises an ending, and READY before it if it was.
            match engine.connect(flapping.endpoint(), LONG) {
                Ok(id) => {
                    events += 2;
                    flapping.flap();
                    let conn = crate::common::engine::connection(id);
                    wait_until("the loss is seen", LONG, || conn.info().status == Status::PeerLost);
                    flaps += 1;
                    if flaps == 200 {
                        memory = resident_bytes();
                    }
                }
                Err(error) if error.status == Status::ConnectFailed => events += 1,
                Err(error) => {
                    assert_eq!(error.status, Status::Backoff, "{error:?}");
                    std::thread::sleep(ms(1));
                }
            }
        }
        drop(stopping);
        streaming.join().expect("the stream")
    });
    let grown = resident_bytes().saturating_sub(memory);
    assert!(grown < 16 << 20, "{grown} bytes more after {flaps} flaps than after 200");
    steady.wait_received(sent, LONG);
    assert!(steady.messages().iter().all(|message| text(message) == "steady"));
    // A send does not wait for anything; what is slow is the machine.
    let (slow, longest) = (slow.into_inner(), Duration::from_micros(longest.into_inner()));
    println!("{flaps} flaps, {sent} messages, {slow} of them over 20 ms, the longest {longest:?}");
    assert!(slow * 20 <= sent, "{slow} of {sent} sends took more than 20 ms, the longest {longest:?}");

    // Nothing was lost without being counted, and nothing was raised twice.
    let waiting = engine.events();
    let lost: u64 = waiting.iter().filter(|e| e.kind == EventKind::Overflow).map(|e| e.count).sum();
    let kept = waiting.iter().filter(|e| e.kind != EventKind::Overflow).count() as u64;
    // As many endings have places of their own.
    assert_eq!((kept, lost), (2 * BOUND, events - 2 * BOUND));

    // The state is right at the end.
    wait_until("the peer can be connected", LONG, || engine.connect(flapping.endpoint(), LONG).is_ok());
    let id = engine.find(flapping.endpoint()).expect("live");
    engine.send(&crate::common::engine::connection(id), &[b"last"], ms(5000)).expect("sent");
    flapping.wait_received(1, LONG);
    let live = engine.connections();
    assert!(live.len() == 2 && live.contains(&id) && live.contains(&stream.id()), "{live:?}");
    wait_until("every other socket is closed", LONG, || open_descriptors().tcp == 4);
    engine.configure(&options(&[("max_events", "100")])).expect("a setting that can be changed");
    engine.disconnect_all(after(LONG)).expect("ended");
    assert_eq!(engine.events_of(EventKind::Disconnected).len(), 2);
    assert_eq!(status_of(&engine.find(flapping.endpoint())), Status::NotFound);
}
