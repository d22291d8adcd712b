//! The gate wakes every thread that it should wake, without its safety net.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::engine::send;
use crate::common::{Engine, Peer, PeerOptions, ms, soak_time};

const LONG: Duration = Duration::from_secs(20);

/// A peer that reads a message a millisecond or so, behind a small buffer: a Unix socket.
fn slow_peer(name: &str) -> Peer {
    let bind = format!("ipc://@kvconn-{name}-{}", std::process::id());
    Peer::with(PeerOptions { bind, rcvhwm: 1, delay: ms(1), log: false, ..PeerOptions::default() })
}

/// A defect of the gate shows as a lost wake-up of senders that come and go: one that comes may take the signal that
/// another waits for, and then leave for a while.
#[test]
fn intermittent_senders_never_need_the_safety_net_stress() {
    const SENDERS: usize = 64;
    let peer = slow_peer("intermittent");
    let engine = Engine::with(&[("send_hwm", "100")]);
    let conn = engine.ready(peer.endpoint());
    let (stop, most) = (AtomicBool::new(false), AtomicU32::new(0));
    let frame = [7; 8000];
    let (counts, slowest): (Vec<u64>, Vec<Duration>) = std::thread::scope(|scope| {
        let sender = || {
            let (mut count, mut slowest) = (0, Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                send(&conn, &[&frame], LONG).expect("a slow peer");
                slowest = slowest.max(begun.elapsed());
                count += 1;
                std::thread::sleep(ms(30));
            }
            (count, slowest)
        };
        let senders: Vec<_> = (0..SENDERS).map(|_| scope.spawn(sender)).collect();
        let begun = Instant::now();
        while begun.elapsed() < soak_time(ms(4000)) {
            most.fetch_max(conn.info().waiting, Ordering::Relaxed);
            std::thread::sleep(ms(20));
        }
        stop.store(true, Ordering::Relaxed);
        senders.into_iter().map(|sender| sender.join().expect("a sender")).unzip()
    });
    let info = conn.info();
    let total: u64 = counts.iter().sum();
    let (least, fair) = (*counts.iter().min().unwrap(), total / SENDERS as u64);
    let most = most.into_inner();
    println!("{total} messages, {least} to {:?} a sender, up to {most} waiting", counts.iter().max().unwrap());
    println!("slowest send {:?}, {} rescues", slowest.iter().max().unwrap(), info.rescues);
    assert!(most >= 32, "only {most} of {SENDERS} ever waited at once: this tests nothing");
    assert_eq!((info.accepted, info.rescues), (total, 0));
    assert!(least > 0 && least >= fair / 5, "the unluckiest sent {least} of a fair share of {fair}");
}

/// The same with senders that never pause, some of which barge and give up: no sender starves.
#[test]
fn nobody_starves_between_busy_and_barging_senders_stress() {
    const SENDERS: usize = 24;
    let peer = slow_peer("busy");
    let engine = Engine::with(&[("send_hwm", "20")]);
    let conn = engine.ready(peer.endpoint());
    let stop = AtomicBool::new(false);
    let frame = [7; 8000];
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let patient = || {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                send(&conn, &[&frame], LONG).expect("a slow peer");
                count += 1;
            }
            count
        };
        // They never wait: they pass when there is room, and may take the signal from the sender that polls.
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    send(&conn, &[&frame], Duration::ZERO).ok();
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
        }
        let senders: Vec<_> = (0..SENDERS).map(|_| scope.spawn(patient)).collect();
        std::thread::sleep(soak_time(ms(3000)));
        stop.store(true, Ordering::Relaxed);
        senders.into_iter().map(|sender| sender.join().expect("a sender")).collect()
    });
    let total: u64 = counts.iter().sum();
    let (least, fair) = (*counts.iter().min().unwrap(), total / SENDERS as u64);
    println!("{total} messages of the patient, {least} to {} a sender", counts.iter().max().unwrap());
    assert_eq!(conn.info().rescues, 0);
    assert!(least > 0 && least >= fair / 5, "the unluckiest sent {least} of a fair share of {fair}");
}
