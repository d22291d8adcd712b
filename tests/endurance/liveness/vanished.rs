//! A host that was switched off answers nothing; one that is back knows nothing of the connection, and says so: RST.

use std::time::Duration;

use kvconn::delivery::EndedBy;
use kvconn::error::Status;
use kvconn::events::EventKind;

use crate::common::engine::{LARGE, after, refused, send};
use crate::common::load::Stopwatch;
use crate::common::{Engine, Namespace, Peer, PeerOptions, ms};
use crate::skip_unless;

const LONG: Duration = Duration::from_secs(30);

/// The peer and its kernel's side of the connection vanish without a packet. (With something unread the kernel of
/// a killed process says RST, once; that is lost with the rest.)
fn vanish(network: &Namespace, peer: &Peer) {
    network.cut();
    peer.kill();
}

/// It is keepalive that asks.
#[test]
fn an_idle_peer_that_vanished_and_is_back_is_lost_by_reset_with_the_next_probe() {
    skip_unless!(Namespace::available());
    let network = Namespace::new();
    let peer = network.peer(PeerOptions::default());
    let engine = Engine::with(&[("keepalive_idle_s", "2"), ("keepalive_interval_s", "1"), ("keepalive_count", "20")]);
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    send(&conn, &[b"never read"], LONG).expect("its kernel takes it");
    conn.flush(0, after(LONG)).0.expect("its kernel has it");
    vanish(&network, &peer);
    network.restore();
    let back = Stopwatch::start();
    let lost = engine.expect_event(EventKind::PeerLost, LONG);
    println!("idle, keepalive 2 s: the host that is back answers after {:?}", back.elapsed());
    back.at_most(ms(2600), "the first probe after 2 s");
    let delivery = lost.delivery.expect("the counts");
    assert_eq!((delivery.accepted, delivery.acknowledged, delivery.ended_by), (1, Some(1), EndedBy::Reset));
    refused(send(&conn, &[b"late"], ms(0)), Status::PeerLost);
}

/// It is the kernel that sends again.
#[test]
fn a_peer_that_vanished_with_data_in_flight_and_is_back_is_lost_by_reset() {
    skip_unless!(Namespace::available());
    let network = Namespace::new();
    let peer = network.peer(PeerOptions::default());
    let engine = Engine::with(&[("send_hwm", "4")]);
    let conn = engine.ready(peer.endpoint());
    peer.stop();
    send(&conn, &[b"never read"], LONG).expect("its kernel takes it");
    conn.flush(0, after(LONG)).0.expect("its kernel has it");
    vanish(&network, &peer);
    let accepted = 1 + engine.fill(&conn, LARGE);
    network.restore();
    let back = Stopwatch::start();
    let lost = engine.expect_event(EventKind::PeerLost, LONG);
    println!("data in flight: the host that is back answers after {:?}", back.elapsed());
    // What is sent again is sent at doubling intervals, the first some 200 ms after it was sent first.
    back.at_most(ms(3000), "sending again");
    let delivery = lost.delivery.expect("the counts");
    assert_eq!((delivery.accepted, delivery.acknowledged, delivery.ended_by), (accepted, Some(1), EndedBy::Reset));
}
