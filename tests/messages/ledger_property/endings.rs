//! Endings under load at random moments, again and again: what each leaves, and what sending it again makes of it.

use std::sync::Arc;
use std::time::Duration;

use kvconn::connection::Connection;
use kvconn::delivery::Delivery;
use kvconn::delivery::EndedBy;
use kvconn::error::Status;
use kvconn::events::EventKind;

use super::messages::{Account, Shape, Way};
use crate::common::engine::{after, own_address, status_of, wait_ended};
use crate::common::{Engine, Random, RawPeer, TcpView, soak_time, wait_until};

const LONG: Duration = Duration::from_secs(30);
/// In turn.
const WAYS: [Way; 2] = [Way::Copied, Way::Owned];

/// Ten of each every day, a hundred where there is time.
fn rounds() -> u64 {
    if soak_time(Duration::ZERO).is_zero() { 10 } else { 100 }
}

fn engine() -> Engine {
    // The successor is dialled as soon as it listens.
    Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")])
}

/// Sends one after the other until the connection is over.
fn send_until_it_ends(conn: &Arc<Connection>, seed: u64) -> Account {
    let (mut random, mut account) = (Random::new(seed | 1), Account::default());
    loop {
        let shape = Shape::random(&mut random);
        match shape.send(WAYS[account.next() as usize % 2], conn, account.next(), LONG) {
            Ok(sequence) => {
                assert_eq!(sequence, account.next());
                account.accept(shape);
            }
            Err(error) => {
                assert_eq!(error.status, Status::PeerLost, "{error:?}");
                return account;
            }
        }
    }
}

/// A life under load that `end` ends once some messages were accepted; what was accepted, and the account of it that
/// was given: by the event and by the connection, which must agree.
fn life(engine: &Engine, peer: &RawPeer, random: &mut Random, end: impl Fn(&RawPeer)) -> (Account, Delivery) {
    let conn = engine.ready(&peer.endpoint());
    let view = TcpView::of(&peer.endpoint());
    let (sender, seed) = (conn.clone(), random.below(u64::MAX));
    let sending = std::thread::spawn(move || send_until_it_ends(&sender, seed));
    let until = 1 + random.below(400);
    if random.below(3) == 0 {
        // Full buffers in flight.
        peer.pause_reading();
        wait_until("a sender waits", LONG, || conn.info().waiting > 0);
    } else {
        wait_until("some were accepted", LONG, || conn.info().accepted >= until);
    }
    end(peer);
    let lost = engine.expect_event(EventKind::PeerLost, LONG);
    let account = sending.join().expect("a sender");
    let info = wait_ended(&conn, LONG);
    let delivery = lost.delivery.expect("the counts");
    let acknowledged = delivery.acknowledged.expect("TCP tells");
    assert_eq!(
        (info.accepted, info.acknowledged, info.ended_by),
        (delivery.accepted, delivery.acknowledged, delivery.ended_by)
    );
    assert_eq!((lost.conn, delivery.accepted), (conn.id(), account.accepted()), "accepted is what was OK");
    assert!(acknowledged <= account.accepted(), "{delivery:?}");
    assert!(acknowledged <= account.covered(&view), "{delivery:?}: the kernel has counted less");
    (account, delivery)
}

/// Sends exactly the unacknowledged to the successor, which gets them and nothing else, each once.
fn send_again(engine: &Engine, successor: &RawPeer, account: &Account, delivery: Delivery) {
    let endpoint = successor.endpoint();
    wait_until("the successor is READY", LONG, || status_of(&engine.connect(&endpoint, LONG)) == Status::Ok);
    let conn = engine.ready(&endpoint);
    let unacknowledged = delivery.acknowledged.expect("TCP tells") + 1..=account.accepted();
    for number in unacknowledged.clone() {
        account.shape(number).send(WAYS[number as usize % 2], &conn, number, LONG).expect("a healthy peer");
    }
    conn.flush(0, after(LONG)).0.expect("a healthy peer");
    let count = unacknowledged.clone().count();
    let got = successor.wait_for("all that was sent again", LONG, |numbers| numbers.times.len() >= count);
    assert_eq!(got.times, unacknowledged.map(|number| (number, 1)).collect());
    conn.disconnect().expect("live");
}

#[test]
fn a_killed_peer_leaves_accepted_as_acknowledged_and_unacknowledged_soak() {
    let (engine, mut random) = (engine(), Random::new(0xdead_0001));
    let mut peer = RawPeer::bind(&format!("{}:0", own_address()));
    let (mut accepted, mut unacknowledged) = (0, 0);
    for _ in 0..rounds() {
        let (account, delivery) = life(&engine, &peer, &mut random, |peer| peer.kill());
        peer = peer.succeed();
        send_again(&engine, &peer, &account, delivery);
        peer = peer.succeed();
        accepted += account.accepted();
        unacknowledged += account.accepted() - delivery.acknowledged.expect("TCP tells");
    }
    println!("{} kills: {accepted} accepted, {unacknowledged} unacknowledged and sent again", rounds());
}

/// The peer reads on to the end, so that not a byte that its kernel has acknowledged is lost.
#[test]
fn a_peer_that_drains_and_closes_has_everything_acknowledged_and_sending_the_rest_again_leaves_no_hole_soak() {
    let (engine, mut random) = (engine(), Random::new(0xd1a1_0002));
    let mut peer = RawPeer::bind(&format!("{}:0", own_address()));
    let (mut accepted, mut unacknowledged, mut twice) = (0, 0, 0);
    for round in 0..rounds() {
        let (account, delivery) = life(&engine, &peer, &mut random, RawPeer::finish);
        assert_eq!(delivery.ended_by, EndedBy::Fin, "round {round}");
        let acknowledged = delivery.acknowledged.expect("TCP tells");
        let got = peer.wait_for("the connection is over", LONG, |numbers| numbers.open == 0);
        let first_hole = (1..).find(|number| !got.times.contains_key(number)).expect("numbers do not end");
        assert!(acknowledged < first_hole, "round {round}: {delivery:?}, and {first_hole} did not arrive");
        assert!(got.times.values().all(|times| *times == 1), "round {round}");
        peer = peer.succeed();
        send_again(&engine, &peer, &account, delivery);
        peer = peer.succeed();
        // What arrived once before the end, and once more.
        let arrived_twice = got.times.keys().filter(|number| **number > acknowledged).count() as u64;
        accepted += account.accepted();
        unacknowledged += account.accepted() - acknowledged;
        twice += arrived_twice;
    }
    let rounds = rounds();
    println!(
        "{rounds} drained: {accepted} accepted, {unacknowledged} unacknowledged and sent again, {twice} came twice"
    );
}
