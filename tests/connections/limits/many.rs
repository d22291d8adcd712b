//! Many endpoints: at the same time, and one after another.

use std::time::{Duration, Instant};

use kvconn::error::Status;

use crate::common::engine::{connection, refused, send, wait_ended};
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, Received, open_descriptors, wait_until};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(30);

/// Whether a process may be given that many descriptors.
fn descriptors_available(count: u64) -> Result<(), String> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to a live struct.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    // SAFETY: no arguments.
    let root = unsafe { libc::geteuid() } == 0;
    match limit.rlim_max >= count || root {
        true => Ok(()),
        false => Err(format!("{count} descriptors are needed, the hard limit is {}", limit.rlim_max)),
    }
}

/// Scenario 25: with the default settings.
#[test]
fn two_thousand_endpoints_are_ready_and_each_gets_its_message() {
    skip_unless!(descriptors_available(12_000));
    if OwnProcess::new(test_name!()).descriptors(12_000).parent() {
        return;
    }
    let peer = || Peer::with(PeerOptions { endpoints: 500, log: false, ..PeerOptions::default() });
    let peers = [peer(), peer(), peer(), peer()];
    let engine = Engine::new();
    let begun = Instant::now();
    for peer in &peers {
        // Some at a time: on a loaded machine a hundred do not shake hands within handshake_timeout_ms.
        for endpoints in peer.endpoints().chunks(20) {
            let conns: Vec<_> = endpoints.iter().map(|endpoint| engine.lazy(endpoint)).collect();
            for conn in &conns {
                send(conn, &[b"to", b"you"], LIMIT).expect("READY and sent");
            }
        }
    }
    for peer in &peers {
        let all = |totals: &Received| (totals.messages, totals.frames, totals.handshakes) == (500, 1000, 500);
        assert_eq!(peer.wait_for("all are served", LIMIT, all).accepted, 500);
    }
    println!("2000 endpoints READY and served in {:?}", begun.elapsed());
    assert_eq!(engine.connections().len(), 2000);
    let held = open_descriptors();
    assert!(held.total() < 10_100, "5 for each connection: {held:?}");

    let process = kvconn::process::Process::current().unwrap();
    let begun = Instant::now();
    process.destroy_manager(engine.id(), kvconn::timeout::Timeout::After(LIMIT)).expect("all closed");
    println!("closed in {:?}", begun.elapsed());
    wait_until("every descriptor is given back", LIMIT, || open_descriptors().total() < 60);
}

/// Scenario 25, where the process's limit does not allow it.
#[test]
fn where_the_descriptors_end_the_error_says_what_to_raise_and_all_others_work() {
    if OwnProcess::new(test_name!()).descriptors(512).parent() {
        return;
    }
    let peer = Peer::with(PeerOptions { endpoints: 200, ..PeerOptions::default() });
    let engine = Engine::new();
    let mut conns = Vec::new();
    let error = loop {
        match engine.connect(&peer.endpoints()[conns.len()], Duration::ZERO) {
            Ok(id) => conns.push(connection(id)),
            Err(error) => break error,
        }
        // One by one: all that is there is in use.
        wait_until("it is READY", LIMIT, || !conns[conns.len() - 1].info().ready_for.is_zero());
    };
    assert_eq!(error.status, Status::Limit, "{error:?}");
    assert!(error.message.contains("RLIMIT_NOFILE 512"), "{}", error.message);
    assert!(conns.len() > 150, "only {} connections with 512 descriptors", conns.len());
    let missing = &peer.endpoints()[conns.len()];
    for _ in 0..3 {
        refused(engine.send_to(missing, &[b"x"], LIMIT), Status::Limit);
        refused(engine.find(missing), Status::NotFound);
    }
    assert_eq!(engine.connections().len(), conns.len());
    for conn in &conns {
        send(conn, &[b"x"], LIMIT).expect("each works");
    }
    peer.wait_received(conns.len() as u64, LIMIT);
    conns[0].disconnect().unwrap();
    wait_until("there is room again", LIMIT, || engine.connect(missing, LIMIT).is_ok());
}

/// Scenario 12.
#[test]
fn eighty_peers_one_after_another_are_served_and_leave_nothing() {
    if OwnProcess::new(test_name!()).descriptors(256).limit(Duration::from_secs(60)).parent() {
        return;
    }
    let engine = Engine::new();
    // What is made once for the process.
    let first = Peer::any();
    engine.ready(first.endpoint()).disconnect().unwrap();
    drop(first);
    let before = open_descriptors().total();
    for number in 0..80u32 {
        let peer = Peer::any();
        let conn = engine.ready(peer.endpoint());
        send(&conn, &[&number.to_le_bytes()], LIMIT).expect("sent");
        peer.wait_received(1, LIMIT);
        // In turn: the peer dies, leaves in order, or is given up.
        match number % 3 {
            0 => peer.kill(),
            1 => peer.terminate(),
            _ => engine.disconnect_endpoint(peer.endpoint()).unwrap(),
        }
        let status = wait_ended(&conn, LIMIT).status;
        assert_eq!(status, if number % 3 == 2 { Status::Disconnected } else { Status::PeerLost });
    }
    wait_until("the descriptors are given back", LIMIT, || open_descriptors().total() <= before + 8);
}
