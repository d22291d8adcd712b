//! The end of a manager: its ids, the threads that wait in it, its descriptors.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use kvconn::error::Status;
use kvconn::events::EventKind;
use kvconn::ids::ConnId;
use kvconn::process::Process;

use crate::common::engine::{
    LARGE, Waiting, after, message, narrow_peer, options, refused, status_of, wait_waiting, waiting_senders,
};
use crate::common::load::within;
use crate::common::{
    Engine, OwnProcess, Peer, PeerOptions, WrongPeer, closed_port, ms, open_descriptors, threads, wait_until,
};
use crate::test_name;

const LONG: Duration = Duration::from_secs(10);

#[track_caller]
fn assert_stale(conn: ConnId) {
    let found = Process::current().and_then(|process| process.connection(conn));
    assert_eq!(status_of(&found), Status::Stale);
}

#[test]
fn the_ids_of_a_destroyed_manager_are_stale() {
    let peer = Peer::any();
    let process = Process::current().expect("a process");
    let (engine, other) = (Engine::new(), Engine::new());
    let (id, node) = (engine.id(), engine.node("n", &[peer.endpoint()]));
    let ended = engine.ready(peer.endpoint());
    ended.disconnect().expect("ended");
    let live = engine.ready(peer.endpoint());
    let elsewhere = other.ready(peer.endpoint());
    let over = engine.node("over", &[]);
    drop(engine.handle_failure(over, None).expect("live"));

    process.destroy_manager(id, after(LONG)).expect("a manager");
    for conn in [&ended, &live] {
        assert_stale(conn.id());
    }
    for node in [node, over] {
        assert_eq!(status_of(&process.node(node)), Status::Stale);
    }
    assert_eq!(status_of(&process.manager(id)), Status::Stale);
    refused(process.destroy_manager(id, after(LONG)), Status::Stale);
    // What was looked up before the end gives an error, too.
    refused(engine.send(&live, &[b"x"], ms(1000)), Status::Disconnected);
    refused(engine.connect(peer.endpoint(), ms(1000)), Status::Stale);
    refused(engine.send_to(peer.endpoint(), &[b"x"], ms(1000)), Status::Stale);
    refused(engine.node_open("n"), Status::Stale);
    refused(engine.handle_failure(node, None), Status::Stale);
    refused(engine.disconnect_endpoint(peer.endpoint()), Status::Stale);
    refused(engine.disconnect_all(after(LONG)), Status::Stale);
    refused(engine.configure(&options(&[("max_nodes", "5")])), Status::Stale);

    other.send(&elsewhere, &[b"x"], ms(1000)).expect("another manager's");
    peer.wait_for("its connections are closed", LONG, |totals| totals.disconnected == 2);
}

/// Whatever call waits in it.
#[test]
fn threads_that_wait_in_a_destroyed_manager_return_at_once() {
    let (stuck, mute, closed) = (narrow_peer(1), WrongPeer::mute(), closed_port());
    let settings = [("send_hwm", "4"), ("backoff_ms", "30000"), ("backoff_max_ms", "30000")];
    let engine = Engine::with(&settings);
    let full = engine.ready(stuck.endpoint());
    stuck.stop();
    engine.fill(&full, LARGE);
    let lazy = engine.lazy(&mute.endpoint());
    engine.events();
    let start = |call: &'static str, endpoint: String| {
        let (manager, conn) = (engine.manager().clone(), lazy.clone());
        Waiting::one(move || match call {
            "connect" => manager.connect(&endpoint, None, after(LONG)).map(|_| 0),
            "retry" => manager.connect(&endpoint, Some(&options(&[("connect_retry", "1")])), after(LONG)).map(|_| 0),
            "send_to" => manager.send_to(&endpoint, &mut || message(&[b"x"]), after(LONG)).map(|_| 0),
            "send" => conn.send(&mut || message(&[b"x"]), after(LONG)),
            _ => manager.next_event(after(LONG)).map(|event| event.kind as u64),
        })
    };
    refused(engine.connect(&closed.endpoint(), LONG), Status::ConnectFailed);
    engine.events();
    let waiting = waiting_senders(&full, 3).and(start("send", mute.endpoint())).and(start("connect", mute.endpoint()));
    let waiting = waiting.and(start("send_to", mute.endpoint())).and(start("retry", closed.endpoint()));
    wait_waiting(&lazy, 2, LONG);
    std::thread::sleep(ms(50)); // so that the calls whose waiting cannot be observed do wait

    let begun = Instant::now();
    let process = Process::current().expect("a process");
    within(LONG, "destroying", || process.destroy_manager(engine.id(), after(LONG))).expect("a manager");
    for result in waiting.return_within(ms(200), begun) {
        let status = result.expect_err("nothing was sent").status;
        assert!(matches!(status, Status::Disconnected | Status::Stale), "{status:?}");
    }
}

/// Readers of events get what is queued, then NONE; a thread that waits for one returns at once.
#[test]
fn a_thread_that_waits_for_an_event_of_a_destroyed_manager_gets_none() {
    let engine = Engine::new();
    let reader = |manager: std::sync::Arc<kvconn::manager::Manager>| {
        Waiting::one(move || manager.next_event(after(LONG)).map(|event| event.kind))
    };
    let waiting = reader(engine.manager().clone()).and(reader(engine.manager().clone()));
    std::thread::sleep(ms(50)); // so that they do wait; they get the same if they do not
    let begun = Instant::now();
    let process = Process::current().expect("a process");
    process.destroy_manager(engine.id(), after(LONG)).expect("a manager");
    for result in waiting.return_within(ms(200), begun) {
        assert_eq!(result.expect("none"), EventKind::None);
    }

    let engine = Engine::new();
    drop(engine.handle_failure(engine.node("n", &[]), None).expect("live"));
    process.destroy_manager(engine.id(), after(LONG)).expect("a manager");
    engine.next_event(after(LONG)).expect("what was queued before");
    let after_it = within(ms(100), "no wait", || engine.next_event(after(LONG)));
    assert_eq!(after_it.expect("none").kind, EventKind::None);
}

#[test]
fn of_eight_threads_that_destroy_a_manager_one_does() {
    let peer = Peer::any();
    let process = Process::current().expect("a process");
    for _ in 0..20 {
        let engine = Engine::new();
        engine.ready(peer.endpoint());
        let begin = Barrier::new(8);
        let destroy = || {
            begin.wait();
            status_of(&process.destroy_manager(engine.id(), after(LONG)))
        };
        let mut results: Vec<Status> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(destroy)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a destroyer")).collect()
        });
        results.sort_by_key(|status| -(*status as i32));
        assert_eq!(results, [[Status::Ok].as_slice(), &[Status::Stale; 7]].concat());
    }
}

/// A look-up that finds nothing says what the id stands for, and waits for no thread that waits for it.
#[test]
fn looking_up_a_stale_id_beside_managers_that_come_and_go_never_hangs() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let process = Process::current().expect("a process");
    let stale = process.create_manager(None).expect("a manager");
    process.destroy_manager(stale, after(LONG)).expect("destroyed");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..3000 {
                    assert_eq!(status_of(&process.manager(stale)), Status::Stale);
                }
            });
            scope.spawn(|| {
                for _ in 0..300 {
                    let id = process.create_manager(None).expect("a manager");
                    process.destroy_manager(id, after(LONG)).expect("destroyed");
                }
            });
        }
    });
}

/// With connections that are READY, full, being dialled and ended.
#[test]
fn a_destroyed_manager_leaves_no_descriptor_and_no_thread() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { endpoints: 20, ..PeerOptions::default() });
    let (stuck, mute) = (narrow_peer(1), WrongPeer::mute());
    let process = Process::current().expect("a process");
    // What the process has one of is made with the first connection, and stays.
    drop(Waiting::one(|| drop(Engine::new().lazy("tcp://127.0.0.1:9"))).return_within(LONG, Instant::now()));
    // The last sockets of libzmq go a little later.
    let counts = || (open_descriptors().total(), threads().len());
    let (mut at_rest, mut since) = (counts(), Instant::now());
    while since.elapsed() < ms(200) {
        let now = counts();
        if now != at_rest {
            (at_rest, since) = (now, Instant::now());
        }
        std::thread::sleep(ms(1));
    }
    for _ in 0..4 {
        let engine = Engine::with(&[("send_hwm", "4")]);
        engine.event_fd().expect("a descriptor");
        for endpoint in peer.endpoints() {
            engine.ready(endpoint);
        }
        engine.disconnect_endpoint(&peer.endpoints()[0]).expect("ended");
        let full = engine.ready(stuck.endpoint());
        stuck.stop();
        engine.fill(&full, LARGE);
        let senders = waiting_senders(&full, 2);
        engine.lazy(&mute.endpoint());
        process.destroy_manager(engine.id(), after(LONG)).expect("in time");
        senders.return_within(LONG, Instant::now());
        drop((engine, full));
        stuck.resume();
        wait_until("every descriptor and thread is given back", LONG, || {
            let (descriptors, threads) = counts();
            descriptors <= at_rest.0 && threads <= at_rest.1
        });
    }
}
