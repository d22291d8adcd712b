//! Frames that several items have in common are copied once.

use std::sync::Arc;
use std::time::Duration;

use kvconn::connection::Connection;

use super::{send_frames, send_messages};
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, ms, resident_bytes};
use crate::test_name;

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// On half of the connections libzmq tells kvconn when it frees a message.
fn eight_ranks(engine: &Engine, log: bool) -> (Vec<Peer>, Vec<Arc<Connection>>) {
    let options = PeerOptions { log, ..PeerOptions::default() };
    let peers: Vec<Peer> = (0..8).map(|_| Peer::with(options.clone())).collect();
    let accounts = ["on", "off"].into_iter().cycle();
    let connect = |(peer, account): (&Peer, _)| engine.ready_with(peer.endpoint(), &[("acknowledgement", account)]);
    let conns = peers.iter().zip(accounts).map(connect).collect();
    (peers, conns)
}

/// Eight queues hold 64 MiB each, and the process 64 MiB in all. Frames that are equal and lie apart are copied each.
#[test]
fn sixty_four_mebibytes_for_eight_ranks_are_held_once() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let engine = Engine::new();
    let (peers, conns) = eight_ranks(&engine, false);
    peers.iter().for_each(|peer| peer.stop());
    let common = vec![b'x'; 64 * MIB];
    let apart: Vec<Vec<u8>> = (0..8).map(|_| vec![b'y'; 8 * MIB]).collect();
    let grown = |items: Vec<(&Arc<Connection>, &[u8])>| {
        let before = resident_bytes();
        for result in send_frames(&items, ms(0)) {
            result.expect("the queue has room for a message");
        }
        (resident_bytes() - before) as usize / MIB
    };
    let shared = grown(conns.iter().map(|conn| (conn, common.as_slice())).collect());
    assert!((56..=80).contains(&shared), "64 MiB for eight ranks took {shared} MiB");
    let copied = grown(conns.iter().zip(&apart).map(|(conn, frame)| (conn, frame.as_slice())).collect());
    assert!(copied >= 56, "eight different frames of 8 MiB took {copied} MiB");

    drop(common);
    let held = resident_bytes();
    peers.iter().for_each(|peer| peer.resume());
    for peer in &peers {
        assert_eq!(peer.wait_received(2, LONG).bytes, 72 * MIB as u64);
    }
    let what = "the copies are freed when the last rank has them";
    crate::common::wait_until(what, LONG, || resident_bytes() as usize + 100 * MIB < held as usize);
}

/// Shared and different frames of all sizes in one batch, behind the end of the caller's memory.
#[test]
fn shared_frames_arrive_as_they_were() {
    let engine = Engine::new();
    let (peers, conns) = eight_ranks(&engine, true);
    let pattern = |size: usize, seed: usize| (0..size).map(|i| (i * 31 + seed * 7) as u8).collect::<Vec<u8>>();
    // Around what libzmq keeps inside a message, what is worth sharing, and what goes past its buffer.
    let common: Vec<Vec<u8>> = [0, 1, 33, 34, 63, 64, 65, 8192, 8 * MIB].map(|size| pattern(size, size)).into();
    let own: Vec<Vec<u8>> = (0..8).map(|rank| pattern(100, rank)).collect();
    for sequence in 1..=3 {
        let mut frames = common.clone();
        let items: Vec<_> = conns
            .iter()
            .zip(&own)
            .map(|(conn, own)| (conn, frames.iter().map(Vec::as_slice).chain([own.as_slice(), &frames[8]]).collect()))
            .collect();
        for result in send_messages(&items, LONG) {
            assert_eq!(result.expect("a healthy peer"), sequence);
        }
        drop(items);
        // The frames are the caller's again.
        frames.iter_mut().for_each(|frame| frame.fill(0));
    }
    for (peer, own) in peers.iter().zip(&own) {
        peer.wait_received(3, LONG);
        let expected: Vec<&Vec<u8>> = common.iter().chain([own, &common[8]]).collect();
        for message in peer.messages() {
            assert!(message.iter().eq(expected.iter().copied()), "a frame is altered");
        }
    }
}
