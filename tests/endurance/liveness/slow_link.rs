//! One large message on a narrow link: nothing is accepted for seconds, and yet it moves.

use std::time::Duration;

use kvconn::events::EventKind;

use crate::common::engine::{after, send};
use crate::common::load::Stopwatch;
use crate::common::{Engine, Namespace, PeerOptions, ms, soak_time};
use crate::skip_unless;

const LONG: Duration = Duration::from_secs(120);

#[test]
fn a_large_message_on_a_slow_link_is_not_stalled_soak() {
    skip_unless!(Namespace::narrow_available());
    let network = Namespace::new();
    // Three seconds every day, fifteen when there is time.
    let (megabits, mebibytes) = if soak_time(Duration::ZERO).is_zero() { (160, 56) } else { (112, 200) };
    network.narrow(megabits);
    let peer = network.peer(PeerOptions { log: false, ..PeerOptions::default() });
    let engine = Engine::with(&[("stall_ms", "1000")]);
    let conn = engine.ready(peer.endpoint());
    let frame = vec![7; mebibytes << 20];
    let watch = Stopwatch::start();
    send(&conn, &[&frame], LONG).expect("room");
    // No call looks meanwhile: the watcher does.
    assert_eq!(peer.wait_received(1, LONG).bytes, frame.len() as u64);
    println!("{mebibytes} MiB at {megabits} Mbit/s: {:?}", watch.elapsed());
    assert!(watch.elapsed() > ms(2500), "the link is not slow: {:?}", watch.elapsed());
    let (flushed, acknowledged) = conn.flush(0, after(LONG));
    flushed.expect("the peer has it");
    assert_eq!(acknowledged, 1);
    let kinds: Vec<_> = engine.events().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Ready], "neither STALLED nor RECOVERED");
}
