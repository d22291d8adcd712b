//! What happens to connections while a batch waits for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvconn::connection::{Connection, ConnectionState};
use kvconn::error::{Result, Status};

use super::send_frames;
use crate::common::engine::{LARGE, Waiting, narrow_peer, refused, send, status_of, wait_waiting, waiting_senders};
use crate::common::load::Stopwatch;
use crate::common::{Engine, OwnProcess, Peer, descriptors_at_rest, ms};
use crate::test_name;

const LONG: Duration = Duration::from_secs(20);

/// Full connections to stopped peers.
fn full(engine: &Engine, count: usize) -> (Vec<Peer>, Vec<Arc<Connection>>) {
    let peers: Vec<Peer> = (0..count).map(|_| narrow_peer(1)).collect();
    let conns: Vec<_> = peers.iter().map(|peer| engine.ready(peer.endpoint())).collect();
    peers.iter().for_each(|peer| peer.stop());
    for conn in &conns {
        engine.fill(conn, LARGE);
    }
    (peers, conns)
}

/// A large frame on each, in one batch of a thread of its own, which waits on all of them when this returns.
fn waiting_batch(conns: &[Arc<Connection>]) -> Waiting<Vec<Result<u64>>> {
    let before: Vec<u32> = conns.iter().map(|conn| conn.info().waiting).collect();
    let own = conns.to_vec();
    let batch = Waiting::one(move || {
        let items: Vec<_> = own.iter().map(|conn| (conn, LARGE)).collect();
        send_frames(&items, Duration::from_secs(30))
    });
    for (conn, before) in conns.iter().zip(before) {
        wait_waiting(conn, before + 1, LONG);
    }
    batch
}

#[test]
fn each_item_ends_with_its_connection_and_the_others_go_on() {
    let engine = Engine::with(&[("send_hwm", "4")]);
    let (peers, conns) = full(&engine, 4);
    let node = engine.node("prefill", &[peers[2].endpoint()]);
    let batch = waiting_batch(&conns);
    let gone = |place: usize| {
        let what = format!("the batch has left connection {place}");
        crate::common::wait_until(&what, LONG, || conns[place].info().waiting == 0);
    };
    let watch = Stopwatch::start();
    peers[0].kill();
    gone(0);
    conns[1].disconnect().expect("it ends");
    gone(1);
    engine.handle_failure(node, None).expect("it fails");
    gone(2);
    watch.at_most(ms(1000), "three ends");
    assert_eq!(conns[3].info().waiting, 1, "it still waits for the last");
    let resumed = Instant::now();
    peers[3].resume();
    let results = batch.return_within(LONG, resumed).remove(0);
    let statuses: Vec<Status> = results.iter().map(status_of).collect();
    assert_eq!(statuses, [Status::PeerLost, Status::Disconnected, Status::NodeFailed, Status::Ok]);
    assert!(conns.iter().all(|conn| conn.info().rescues == 0));
}

#[test]
fn the_last_end_returns_at_once() {
    let engine = Engine::with(&[("send_hwm", "4")]);
    let (peers, conns) = full(&engine, 8);
    let batch = waiting_batch(&conns);
    let ended = Instant::now();
    for peer in &peers {
        engine.disconnect_endpoint(peer.endpoint()).expect("it ends");
    }
    for result in batch.return_within(ms(50), ended).remove(0) {
        refused(result, Status::Disconnected);
    }
}

#[test]
fn nothing_waits_without_a_timeout() {
    let engine = Engine::with(&[("send_hwm", "4")]);
    let (_peers, conns) = full(&engine, 1);
    let stopped = Peer::any();
    stopped.stop();
    let (healthy, connecting) = (Peer::any(), engine.lazy(stopped.endpoint()));
    let healthy_conn = engine.ready(healthy.endpoint());
    let items = [(&conns[0], LARGE), (&healthy_conn, b"x".as_slice()), (&connecting, b"x")];
    let watch = Stopwatch::start();
    let results = send_frames(&items, ms(0));
    watch.at_most(ms(10), "a batch that does not wait");
    let statuses: Vec<Status> = results.iter().map(status_of).collect();
    assert_eq!(statuses, [Status::Timeout, Status::Ok, Status::Timeout]);
}

#[test]
fn items_wait_for_ready_until_the_deadline() {
    let peers: Vec<Peer> = (0..4).map(|_| Peer::any()).collect();
    peers.iter().for_each(|peer| peer.stop());
    let engine = Engine::with(&[("handshake_timeout_ms", "20000")]);
    let conns: Vec<_> = peers.iter().map(|peer| engine.lazy(peer.endpoint())).collect();
    let items: Vec<_> = conns.iter().map(|conn| (conn, b"early".as_slice())).collect();
    let watch = Stopwatch::start();
    for result in send_frames(&items, ms(200)) {
        refused(result, Status::Timeout);
    }
    watch.between(ms(200), ms(220), "a batch to peers that do not shake hands");

    let batch = waiting_batch(&conns);
    let resumed = Instant::now();
    peers[..3].iter().for_each(|peer| peer.resume());
    for conn in &conns[..3] {
        crate::common::wait_until("it is READY and the batch has passed", LONG, || conn.info().accepted == 1);
    }
    assert_eq!(conns[3].info().state, ConnectionState::Connecting);
    peers[3].resume();
    for result in batch.return_within(LONG, resumed).remove(0) {
        assert_eq!(result.expect("the peer is there"), 1);
    }
    assert!(conns.iter().all(|conn| conn.info().rescues == 0));
}

/// In the queues of the same connections: senders before and behind two batches, which name them in opposite order.
#[test]
fn batches_and_senders_in_the_same_queues_all_pass() {
    let engine = Engine::with(&[("send_hwm", "4")]);
    for _ in 0..3 {
        let (peers, mut conns) = full(&engine, 3);
        let first: Vec<_> = conns.iter().map(|conn| waiting_senders(conn, 2)).collect();
        let one = waiting_batch(&conns);
        conns.reverse();
        let other = waiting_batch(&conns);
        // `waiting_senders` counts the senders that were there before as well.
        let last = conns.iter().map(|conn| {
            let before = conn.info().waiting;
            let own = conn.clone();
            let sender = Waiting::one(move || send(&own, &[LARGE], Duration::from_secs(30)));
            wait_waiting(conn, before + 1, LONG);
            sender
        });
        let senders = first.into_iter().chain(last.collect::<Vec<_>>()).reduce(Waiting::and).expect("senders");
        assert!(conns.iter().all(|conn| conn.info().waiting == 5));
        let resumed = Instant::now();
        peers.iter().for_each(|peer| peer.resume());
        let results = one.and(other).return_within(LONG, resumed).into_iter().flatten();
        for result in results.chain(senders.return_within(LONG, resumed)) {
            result.expect("the peer reads again");
        }
        for conn in &conns {
            assert_eq!((conn.info().waiting, conn.info().rescues), (0, 0));
        }
    }
}

/// No descriptor tells when a budget has room: the batch asks again, and that is no rescue.
#[test]
fn items_wait_for_the_budget_of_bytes_as_they_do_for_room() {
    let engine = Engine::with(&[("send_hwm", "100000"), ("max_queued_bytes", "1000000")]);
    let (peers, conns) = full(&engine, 2);
    assert!(conns.iter().all(|conn| conn.info().queued_bytes > 900_000));
    let batch = waiting_batch(&conns);
    let resumed = Instant::now();
    peers.iter().for_each(|peer| peer.resume());
    for result in batch.return_within(LONG, resumed).remove(0) {
        result.expect("the peer reads again");
    }
    assert!(conns.iter().all(|conn| conn.info().rescues == 0));
}

/// One that is full, for which the batch has three messages, beside one that is not.
#[test]
fn nothing_overtakes_an_item_that_found_no_room() {
    let engine = Engine::with(&[("send_hwm", "4")]);
    let (peers, conns) = full(&engine, 1);
    let healthy = Peer::any();
    let other = engine.ready(healthy.endpoint());
    let full = &conns[0];
    let mut items = vec![(full, LARGE), (&other, b"a".as_slice()), (full, b"b"), (full, b"c"), (&other, b"d")];
    let watch = Stopwatch::start();
    let results = send_frames(&items, ms(400));
    watch.at_most(ms(420), "a batch with one that is full");
    let statuses: Vec<Status> = results.iter().map(status_of).collect();
    let reason = statuses[0];
    assert!(matches!(reason, Status::Stalled | Status::Timeout), "{reason:?}");
    assert_eq!(statuses, [reason, Status::Ok, reason, reason, Status::Ok]);

    let accepted = full.info().accepted;
    let batch = {
        items.retain(|(conn, _)| Arc::ptr_eq(conn, full));
        let own = full.clone();
        Waiting::one(move || send_frames(&[(&own, LARGE), (&own, b"b"), (&own, b"c")], LONG))
    };
    wait_waiting(full, 1, LONG);
    assert_eq!(full.info().waiting, 1, "only the first of them stands in the queue");
    peers[0].resume();
    let results = batch.return_within(LONG, Instant::now()).remove(0);
    let sequences: Vec<u64> = results.into_iter().map(|result| result.expect("the peer reads again")).collect();
    assert_eq!(sequences, [accepted + 1, accepted + 2, accepted + 3]);
}

#[test]
fn a_batch_that_waited_leaves_no_descriptor() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let engine = Engine::with(&[("send_hwm", "4")]);
    let (peers, conns) = full(&engine, 3);
    let items: Vec<_> = conns.iter().map(|conn| (conn, LARGE)).collect();
    let before = descriptors_at_rest();
    for _ in 0..20 {
        // Longer than what has passed since they are full, for which they would be refused at once.
        let batch = waiting_batch(&conns[..1]);
        for result in send_frames(&items, ms(5)) {
            assert!(matches!(status_of(&result), Status::Timeout | Status::Stalled), "{result:?}");
        }
        peers[0].resume();
        batch.return_within(LONG, Instant::now()).remove(0).remove(0).expect("the peer reads again");
        peers[0].stop();
        engine.fill(&conns[0], LARGE);
    }
    assert_eq!(descriptors_at_rest(), before);
    assert!(conns.iter().all(|conn| conn.info().rescues == 0));
}
