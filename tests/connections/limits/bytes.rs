//! `max_queued_bytes` and `max_total_queued_bytes`: a stopped peer cannot eat the memory.

use std::time::{Duration, Instant};

use kvconn::error::Status;

use crate::common::engine::{Waiting, after, narrow_peer, options, refused, send, status_of, wait_waiting};
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, ms, resident_bytes, wait_until};
use crate::test_name;

const LONG: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;

/// The must-show: 10,000 messages of 1 MiB are offered to a peer that has stopped.
#[test]
fn a_stopped_peer_takes_no_more_memory_than_its_budget() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let ipc = format!("ipc://{}", std::env::temp_dir().join(format!("kvconn-bytes-{}", std::process::id())).display());
    let message = vec![7; MIB];
    for (bind, settings) in [
        ("tcp://127.0.0.1:0", &[("send_hwm", "100000")][..]),
        (&ipc, &[("send_hwm", "100000")][..]),
        ("tcp://127.0.0.1:0", &[("send_hwm", "100000"), ("acknowledgement", "off")][..]),
    ] {
        let peer = Peer::with(PeerOptions { bind: bind.into(), log: false, ..PeerOptions::default() });
        let engine = Engine::new();
        let conn = engine.ready_with(peer.endpoint(), settings);
        peer.stop();
        let before = resident_bytes();
        let (mut accepted, mut most) = (0, 0);
        for _ in 0..10_000 {
            match send(&conn, &[&message], Duration::ZERO) {
                Ok(_) => accepted += 1,
                Err(error) => assert_eq!(error.status, Status::Timeout, "{error:?}"),
            }
            if accepted % 16 == 0 {
                most = most.max(resident_bytes());
            }
        }
        let grown = (most.max(resident_bytes()) - before) / MIB as u64;
        let info = conn.info();
        println!("{bind} {settings:?}: {accepted} of 10000 were accepted, {grown} MiB more are resident");
        assert!(
            (240..=300).contains(&accepted),
            "{accepted} messages of 1 MiB in a budget of 256 MiB and the kernel's buffers"
        );
        assert!(grown <= 256 + 32, "{grown} MiB more are resident");
        assert!(info.queued_bytes <= 256 << 20, "{info:?}");
        // Nothing that was accepted is lost.
        peer.resume();
        peer.wait_received(accepted, LONG);
        wait_until("the budget is free", LONG, || conn.info().queued_bytes == 0);
        conn.disconnect().unwrap();
    }
}

#[test]
fn a_sender_that_waits_for_the_budget_goes_on_when_the_peer_has_acknowledged_some() {
    let (engine, peer) = (Engine::new(), narrow_peer(1));
    let conn = engine.ready_with(peer.endpoint(), &[("max_queued_bytes", "1000000")]);
    peer.stop();
    let message = vec![7; 100_000];
    engine.fill(&conn, &message);
    let info = conn.info();
    assert!(info.queued_bytes <= 1_000_000 && info.queued_bytes > 800_000, "{info:?}");
    // TIMEOUT, or STALLED when nothing has moved for so long.
    let status = status_of(&send(&conn, &[&message], ms(50)));
    assert!(matches!(status, Status::Timeout | Status::Stalled), "{status:?}");
    let sender = |size: usize| {
        let conn = conn.clone();
        Waiting::one(move || send(&conn, &[&vec![8; size]], LONG))
    };
    // One that is larger than the whole budget goes when nothing else is in flight.
    let senders = sender(100_000).and(sender(100_000)).and(sender(3_000_000));
    wait_waiting(&conn, 3, LONG);
    peer.resume();
    senders.return_within(LONG, Instant::now()).into_iter().for_each(|sent| assert!(sent.is_ok(), "{sent:?}"));
    let accepted = conn.info().accepted;
    conn.flush(0, after(LONG)).0.unwrap();
    peer.wait_received(accepted, LONG);
    assert_eq!((conn.info().rescues, conn.info().queued_bytes), (0, 0));
}

#[test]
fn the_total_is_shared_by_all_connections_and_refuses_at_once() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let manager = kvconn::process::Process::current().unwrap().manager(kvconn::ids::ManagerId::NONE).unwrap();
    manager.configure(&options(&[("max_total_queued_bytes", "3000000")])).unwrap();
    let (engine, peers) = (Engine::new(), [narrow_peer(1), narrow_peer(1), narrow_peer(1)]);
    let conns = [0, 1, 2].map(|n| engine.ready(peers[n].endpoint()));
    peers.iter().for_each(|peer| peer.stop());
    let message = vec![7; 100_000];
    let mut sent = 0;
    let error = loop {
        match send(&conns[sent % 2], &[&message], LONG) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.status, Status::Limit, "{error:?}");
    assert!(error.message.contains("max_total_queued_bytes is 3000000"), "{}", error.message);
    assert!(sent >= 28, "{sent} messages of 100 kB in 3 MB");
    // The others, too; and at once.
    let begun = Instant::now();
    refused(send(&conns[2], &[&message], LONG), Status::Limit);
    assert!(begun.elapsed() < LONG / 4);
    // What one connection gives back, another can have.
    conns[0].disconnect().unwrap();
    send(&conns[2], &[&message], LONG).expect("room again");
    manager.configure(&options(&[("max_total_queued_bytes", "10000000")])).unwrap();
    send(&conns[1], &[&message], LONG).expect("more room");
    peers.iter().for_each(|peer| peer.resume());
    for conn in &conns[1..] {
        conn.flush(0, after(LONG)).0.unwrap();
    }
    // All of it is given back: one message of nearly everything fits.
    wait_until("the shares are given back", LONG, || send(&conns[2], &[&vec![1; 9_900_000]], ms(100)).is_ok());
}

/// What is refused, idle or long acknowledged takes nothing from others.
#[test]
fn the_total_counts_only_what_is_in_flight() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let manager = kvconn::process::Process::current().unwrap().manager(kvconn::ids::ManagerId::NONE).unwrap();
    manager.configure(&options(&[("max_total_queued_bytes", "20000000")])).unwrap();
    let (stuck, healthy) =
        (narrow_peer(1), Peer::with(PeerOptions { endpoints: 40, log: false, ..PeerOptions::default() }));
    let engine = Engine::with(&[("send_hwm", "4"), ("max_endpoints", "100")]);
    let conn = engine.ready(stuck.endpoint());
    stuck.stop();
    engine.fill(&conn, &[7; 100_000]);
    // A message that finds the queue full has been refused, and takes nothing.
    let status = status_of(&send(&conn, &[&vec![7; 16 * MIB]], Duration::ZERO));
    assert_eq!(status, Status::Timeout);
    let other = engine.ready(&healthy.endpoints()[0]);
    for _ in 0..20 {
        // Acknowledged at once, though no call has looked: it is not in flight any more.
        send(&other, &[&vec![7; 8 * MIB]], LONG).expect("enough is left");
        other.flush(0, after(LONG)).0.unwrap();
    }
    // Many that are idle take nothing at all.
    conn.disconnect().unwrap();
    manager.configure(&options(&[("max_total_queued_bytes", "200000")])).unwrap();
    for endpoint in healthy.endpoints() {
        let idle = engine.ready(endpoint);
        send(&idle, &[b"once"], LONG).unwrap();
        idle.flush(0, after(LONG)).0.unwrap();
    }
    for endpoint in healthy.endpoints() {
        let idle = engine.ready(endpoint);
        wait_until("there is room for it", LONG, || send(&idle, &[b"again"], LONG).is_ok());
    }
}

#[test]
fn a_sender_that_waits_for_the_budget_uses_no_processor() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let (engine, peer) = (Engine::new(), narrow_peer(1));
    let conn = engine.ready_with(peer.endpoint(), &[("send_hwm", "2"), ("max_queued_bytes", "400000")]);
    peer.stop();
    engine.fill(&conn, &[7; 60_000]);
    let before = crate::common::processor_time();
    let waiting = {
        let conn = conn.clone();
        Waiting::one(move || send(&conn, &[&[8; 390_000]], ms(3000)))
    };
    let status = status_of(&waiting.return_within(LONG, Instant::now()).remove(0));
    assert!(matches!(status, Status::Timeout | Status::Stalled), "{status:?}");
    let used = crate::common::processor_time() - before;
    assert!(used < ms(700), "3 s of waiting took {used:?} of the processor");
}
