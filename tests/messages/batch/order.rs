//! Whole messages in order, beside other senders.

use std::sync::Arc;
use std::time::Duration;

use kvconn::connection::Connection;

use super::send_messages;
use crate::common::{Engine, Peer, PeerOptions};
use crate::tagged::{Tag, check_whole_and_in_order};

const LONG: Duration = Duration::from_secs(60);

/// Batches of two messages for each connection; the connections in another order for each thread.
fn batches(conns: &[Arc<Connection>], thread: u64, each: u64) {
    for number in (0..each).step_by(2) {
        let tags = [number, number + 1].map(|number| {
            let tag = |conn: &Arc<Connection>| Tag { conn: conn.id().0, thread, number };
            conns.iter().map(|conn| tag(conn).frames(1 + thread % 4, 300)).collect::<Vec<_>>()
        });
        let mut items: Vec<_> = tags
            .iter()
            .flat_map(|frames| conns.iter().zip(frames))
            .map(|(conn, frames)| (conn, frames.iter().map(Vec::as_slice).collect()))
            .collect();
        if thread % 2 == 1 {
            // Both rounds stay in order; within each the connections come the other way round.
            items[..conns.len()].reverse();
            items[conns.len()..].reverse();
        }
        let results = send_messages(&items, LONG);
        let sequences: Vec<u64> = results.into_iter().map(|result| result.expect("slow, not stuck")).collect();
        let (first, second) = sequences.split_at(conns.len());
        assert!(first.iter().zip(second).all(|(first, second)| first < second), "{first:?} and then {second:?}");
    }
}

/// Guarantee 7 with batches: eight threads, half of them with single sends, into queues that are mostly full.
#[test]
fn batches_and_sends_of_eight_threads_arrive_whole_and_in_each_threads_order() {
    const THREADS: u64 = 8;
    const EACH: u64 = 200;
    let slow = PeerOptions { delay: Duration::from_micros(200), rcvhwm: 2, rcvbuf: 4096, ..PeerOptions::default() };
    let peers: Vec<Peer> = (0..4).map(|_| Peer::with(slow.clone())).collect();
    let engine = Engine::with(&[("send_hwm", "10")]);
    let conns: Vec<_> = peers.iter().map(|peer| engine.ready(peer.endpoint())).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let conns = &conns;
            scope.spawn(move || match thread % 4 {
                0 | 1 => batches(conns, thread, EACH),
                _ => {
                    for number in 0..EACH {
                        for conn in conns {
                            let tag = Tag { conn: conn.id().0, thread, number };
                            tag.send(conn, 1 + thread % 4, 300, LONG).expect("slow, not stuck");
                        }
                    }
                }
            });
        }
    });
    for (peer, conn) in peers.iter().zip(&conns) {
        peer.wait_received(THREADS * EACH, LONG);
        assert_eq!(check_whole_and_in_order(&peer.messages()).len() as u64, THREADS * EACH);
        let info = conn.info();
        assert_eq!((info.accepted, info.rescues, info.waiting), (THREADS * EACH, 0, 0));
    }
}
