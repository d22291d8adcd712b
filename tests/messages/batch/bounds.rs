//! Many connections in one batch: one deadline for all of them.

use std::time::{Duration, Instant};

use kvconn::error::Status;

use super::send_frames;
use crate::common::engine::{LARGE, narrow_peer};
use crate::common::load::Stopwatch;
use crate::common::{Engine, Peer, PeerOptions, ms};

const COUNT: usize = 256;
const LONG: Duration = Duration::from_secs(60);

#[test]
fn two_hundred_and_fifty_six_healthy_ranks_get_their_message() {
    let peer = Peer::with(PeerOptions { endpoints: COUNT, ..PeerOptions::default() });
    let engine = Engine::new();
    let conns: Vec<_> = peer.endpoints().iter().map(|endpoint| engine.lazy(endpoint)).collect();
    let texts: Vec<String> = (0..COUNT).map(|rank| format!("rank {rank}")).collect();
    let items: Vec<_> = conns.iter().zip(&texts).map(|(conn, text)| (conn, text.as_bytes())).collect();
    for round in 1..=3 {
        for result in send_frames(&items, LONG) {
            assert_eq!(result.expect("a healthy peer"), round);
        }
    }
    peer.wait_received(3 * COUNT as u64, LONG);
    let mut arrived: Vec<Vec<u8>> = peer.messages().into_iter().map(|mut message| message.remove(0)).collect();
    let mut sent: Vec<Vec<u8>> = texts.iter().flat_map(|text| vec![text.clone().into_bytes(); 3]).collect();
    arrived.sort();
    sent.sort();
    assert!(arrived == sent, "each once in each round");
    assert!(conns.iter().all(|conn| conn.info().rescues == 0));
}

#[test]
fn two_hundred_and_fifty_six_stopped_ranks_cost_one_deadline() {
    let peer = narrow_peer(COUNT);
    let engine = Engine::with(&[("send_hwm", "1")]);
    let conns: Vec<_> = peer.endpoints().iter().map(|endpoint| engine.ready(endpoint)).collect();
    peer.stop();
    let items: Vec<_> = conns.iter().map(|conn| (conn, LARGE)).collect();
    // Full as `Engine::fill` means it, all of them.
    let (mut accepted, filling, mut full_since) = (0, Stopwatch::start(), Instant::now());
    while full_since.elapsed() < ms(500) {
        let passed = send_frames(&items, ms(0)).iter().filter(|result| result.is_ok()).count();
        accepted += passed as u64;
        if passed > 0 {
            full_since = Instant::now();
        }
        assert!(filling.elapsed() < LONG, "{accepted} messages, and they are not full");
        std::thread::sleep(ms(1));
    }
    let watch = Stopwatch::start();
    let results = send_frames(&items, ms(1500));
    watch.at_most(ms(1520), "a batch to 256 full connections");
    // The kernels' probes of closed windows may still get some through.
    let passed = results.iter().filter(|result| result.is_ok()).count();
    assert!(passed < COUNT / 2, "{passed} passed: this tests nothing");
    accepted += passed as u64;
    for error in results.into_iter().filter_map(Result::err) {
        assert!(matches!(error.status, Status::Stalled | Status::Timeout), "{error:?}");
    }

    peer.resume();
    for result in send_frames(&items, LONG) {
        result.expect("the peer reads again");
    }
    peer.wait_received(accepted + COUNT as u64, LONG);
    assert_eq!(peer.received().messages, accepted + COUNT as u64);
    let rescues: u64 = conns.iter().map(|conn| conn.info().rescues).sum();
    assert_eq!(rescues, 0);
}
