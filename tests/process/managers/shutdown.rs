//! The end of kvconn in a process. Each test needs a process of its own.

use std::time::{Duration, Instant};

use kvconn::error::Status;
use kvconn::ids::ManagerId;
use kvconn::process::Process;

use super::describe::dumped;
use crate::common::engine::{
    LARGE, Waiting, after, message, narrow_peer, options, refused, status_of, wait_waiting, waiting_senders,
};
use crate::common::load::within;
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, WrongPeer, closed_port, ms, open_descriptors, wait_until};
use crate::test_name;

const LONG: Duration = Duration::from_secs(10);

#[test]
fn every_thread_that_waits_and_every_later_call_gets_shutdown() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let (stuck, mute, closed) = (narrow_peer(1), WrongPeer::mute(), closed_port());
    let process = Process::current().expect("a process");
    let engine = Engine::with(&[("send_hwm", "4"), ("backoff_ms", "30000"), ("backoff_max_ms", "30000")]);
    let default = process.manager(ManagerId::NONE).expect("always there");
    let quiet = Engine::new();
    let node = engine.node("n", &[stuck.endpoint()]);
    let full = engine.ready(stuck.endpoint());
    stuck.stop();
    engine.fill(&full, LARGE);
    let lazy = engine.lazy(&mute.endpoint());
    refused(engine.connect(&closed.endpoint(), LONG), Status::ConnectFailed);
    engine.events();
    let start = |call: &'static str, endpoint: String| {
        let (manager, default, quiet) = (engine.manager().clone(), default.clone(), quiet.manager().clone());
        let conn = lazy.clone();
        Waiting::one(move || match call {
            "connect" => manager.connect(&endpoint, None, after(LONG)).map(|_| 0),
            "retry" => manager.connect(&endpoint, Some(&options(&[("connect_retry", "1")])), after(LONG)).map(|_| 0),
            "default" => default.connect(&endpoint, None, after(LONG)).map(|_| 0),
            "send" => conn.send(&mut || message(&[b"x"]), after(LONG)),
            _ => quiet.next_event(after(LONG)).map(|event| event.kind as u64),
        })
    };
    let waiting = waiting_senders(&full, 3).and(start("send", mute.endpoint())).and(start("connect", mute.endpoint()));
    let waiting = waiting.and(start("retry", closed.endpoint())).and(start("default", mute.endpoint()));
    let waiting = waiting.and(start("next_event", String::new()));
    wait_waiting(&lazy, 1, LONG);
    std::thread::sleep(ms(50)); // so that the calls whose waiting cannot be observed do wait
    let begun = Instant::now();
    let result = within(ms(600), "shutdown", || process.shutdown(after(ms(300))));
    refused(result, Status::Timeout); // the stopped peer took nothing more
    for result in waiting.return_within(ms(200), begun) {
        refused(result, Status::Shutdown);
    }

    assert_eq!(status_of(&Process::current()), Status::Shutdown);
    refused(engine.send(&full, &[b"x"], ms(1000)), Status::Shutdown);
    refused(engine.connect(&mute.endpoint(), ms(1000)), Status::Shutdown);
    refused(engine.send_to(&mute.endpoint(), &[b"x"], ms(1000)), Status::Shutdown);
    refused(engine.node_open("m"), Status::Shutdown);
    refused(engine.handle_failure(node, None), Status::Shutdown);
    refused(engine.node_add_endpoints(node, &[stuck.endpoint()], None), Status::Shutdown);
    refused(default.connect(&mute.endpoint(), None, after(LONG)), Status::Shutdown);
    refused(process.create_manager(None), Status::Shutdown);
    assert_eq!(full.info().status, Status::Shutdown);
    stuck.resume();
    drop(closed); // a socket of the test's own
    wait_until("every socket is closed", LONG, || open_descriptors().tcp == 0);
}

#[test]
fn what_was_accepted_is_flushed() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { endpoints: 3, log: false, ..PeerOptions::default() });
    let process = Process::current().expect("a process");
    let engines = [Engine::new(), Engine::new(), Engine::new()];
    for (engine, endpoint) in engines.iter().zip(peer.endpoints()) {
        let conn = engine.ready(endpoint);
        for _ in 0..500 {
            engine.send(&conn, &[b"x"], ms(1000)).expect("accepted");
        }
    }
    within(ms(2200), "shutdown", || process.shutdown(after(ms(2000)))).expect("everything was flushed");
    // libzmq says that it has given up a socket a moment before it closes the descriptor.
    wait_until("everything is closed", ms(1000), || open_descriptors().tcp == 0);
    peer.wait_received(1500, LONG);
    // Twice is the same as once.
    within(ms(200), "shutdown again", || process.shutdown(after(ms(2000)))).expect("nothing left");
}

/// Managers are created while another thread shuts down: none is left open.
/// A debugger asks when something hangs, and that may be the shutdown.
#[test]
fn a_dump_tells_what_is_left_also_after_the_shutdown() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peer = Peer::any();
    let engine = Engine::new();
    engine.ready(peer.endpoint());
    Process::current().expect("a process").shutdown(after(LONG)).expect("nothing to wait for");
    let text = dumped();
    assert!(text.lines().next().is_some_and(|line| line.ends_with("shut down")), "{text}");
    assert!(text.contains("manager 0: ") && text.contains(&format!("manager {}: ", engine.id())), "{text}");
    assert!(text.contains("not connected; fenced by"), "{text}");
    assert_eq!(status_of(&Process::current()), Status::Shutdown);
}

#[test]
fn no_manager_escapes() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let process = Process::current().expect("a process");
    let created = std::thread::scope(|scope| {
        let creators: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let made = std::iter::from_fn(|| process.create_manager(None).ok());
                    made.map(|id| process.manager(id).expect("just made")).collect::<Vec<_>>()
                })
            })
            .collect();
        std::thread::sleep(ms(2));
        process.shutdown(after(Duration::ZERO)).expect("no connection");
        creators.into_iter().flat_map(|creator| creator.join().expect("a creator")).collect::<Vec<_>>()
    });
    for manager in &created {
        refused(manager.node_open("n"), Status::Shutdown);
    }
}
