//! Bad networks. After each: accepted is acknowledged plus unacknowledged, and every acknowledged message arrived, once
//! and in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvconn::connection::{Connection, ConnectionInfo, ConnectionState};
use kvconn::delivery::EndedBy;
use kvconn::error::{Error, Status};

use super::wire::{self, Weather, Wire};
use crate::common::engine::{after, send, status_of, wait_ended};
use crate::common::raw_peer::Numbers;
use crate::common::{Engine, OwnProcess, Random, RawPeer, ms, soak_time, wait_until};
use crate::{skip_unless, test_name};

const LONG: Duration = Duration::from_secs(60);
/// How long a test may run beyond its soak time.
const EXTRA: Duration = Duration::from_secs(240);

/// A thread that sends one message after the other.
struct Stream {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Option<Error>)>,
}

impl Stream {
    /// Message n of the connection has the number `base` + n, and 0 to 4,000 bytes more, seldom 100,000.
    fn start(conn: &Arc<Connection>, base: u64) -> Stream {
        let stop = Arc::new(AtomicBool::new(false));
        let (conn, stopped) = (conn.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let (mut random, mut accepted) = (Random::new(base + 1), 0);
            let bytes = vec![7; 100_000];
            while !stopped.load(Ordering::SeqCst) {
                let size = if random.below(100) == 0 { bytes.len() as u64 } else { random.below(4000) };
                let number = (base + accepted + 1).to_le_bytes();
                match send(&conn, &[&number, &bytes[..size as usize]], LONG) {
                    Ok(sequence) => accepted += 1 + u64::from(sequence != accepted + 1) * (1 << 40),
                    Err(error) => return (accepted, Some(error)),
                }
            }
            (accepted, None)
        });
        Stream { stop, thread }
    }

    /// Stops it: how many were accepted, and why it has ended if that was before.
    fn stop(self) -> (u64, Option<Error>) {
        self.stop.store(true, Ordering::SeqCst);
        self.end()
    }

    /// The same when it ends by itself.
    fn end(self) -> (u64, Option<Error>) {
        self.thread.join().expect("a sender")
    }
}

/// Waits until the peer has read everything that was acknowledged, and looks at all that it has of this connection.
#[track_caller]
fn account(peer: &RawPeer, base: u64, accepted: u64, acknowledged: u64) -> u64 {
    let of_it = |numbers: &Numbers| numbers.times.range(base + 1..base + (1 << 32)).map(|(n, t)| (*n, *t)).collect();
    let what = format!("{acknowledged} acknowledged messages of {accepted} have arrived");
    let numbers =
        peer.wait_for(&what, LONG, |numbers| acknowledged == 0 || numbers.times.contains_key(&(base + acknowledged)));
    let arrived: Vec<(u64, u64)> = of_it(&numbers);
    assert!(arrived.len() as u64 <= accepted, "{} arrived and {accepted} were accepted", arrived.len());
    // From the first on, without a hole, each once.
    for (place, number) in arrived.iter().enumerate() {
        assert_eq!(*number, (base + 1 + place as u64, 1), "{accepted} accepted, {acknowledged} acknowledged");
    }
    assert_eq!(numbers.disordered, 0, "messages came in another order");
    arrived.len() as u64
}

/// A connection under load that the network ends; how it ended.
#[track_caller]
fn ended(engine: &Engine, conn: &Arc<Connection>, stream: Stream) -> ConnectionInfo {
    let info = wait_ended(conn, LONG);
    let (accepted, error) = stream.end();
    assert_eq!(error.expect("the end reaches the sender").status, Status::PeerLost);
    assert_eq!((info.accepted, info.status), (accepted, Status::PeerLost), "accepted is what was OK");
    assert!(info.acknowledged.is_some_and(|acknowledged| acknowledged <= accepted), "{info:?}");
    drop(engine.events());
    info
}

#[test]
fn a_bad_network_loses_repeats_and_mixes_up_nothing_soak() {
    skip_unless!(wire::available());
    let time = soak_time(ms(3000));
    if OwnProcess::new(test_name!()).network().limit(6 * time + EXTRA).parent() {
        return;
    }
    let bad = Weather { lost: 10, repeated: 20, overtaken: 100, damaged: 5, ..Weather::default() };
    let far = Weather { delay: ms(20), jitter: ms(20), ..Weather::default() };
    let both = Weather { delay: ms(2), jitter: ms(2), ..bad };
    // Every day the worst alone.
    let all = [
        ("loss", Weather { lost: 20, ..Weather::default() }),
        ("repetition", Weather { repeated: 200, ..Weather::default() }),
        ("another order", Weather { overtaken: 250, ..Weather::default() }),
        ("damage", Weather { damaged: 20, ..Weather::default() }),
        ("delay", far),
        ("all of it", both),
    ];
    let chosen = if time > ms(3000) { &all[..] } else { &all[5..] };
    for (seed, (name, weather)) in chosen.iter().enumerate() {
        let wire = Wire::new(0x5eed + seed as u64);
        let peer = wire.raw_peer(0);
        let engine = Engine::with(&[("connect_timeout_ms", "30000"), ("handshake_timeout_ms", "30000")]);
        wire.set(*weather);
        let conn = engine.ready(&peer.endpoint());
        let stream = Stream::start(&conn, 0);
        std::thread::sleep(time); // the load lasts so long
        let (accepted, error) = stream.stop();
        assert!(error.is_none(), "{name}: {error:?}");
        conn.flush(0, after(LONG)).0.unwrap_or_else(|error| panic!("{name}: {error:?}, {:?}", wire.counts()));
        let info = conn.info();
        assert_eq!((info.accepted, info.acknowledged), (accepted, Some(accepted)), "{name}");
        assert_eq!(account(&peer, 0, accepted, accepted), accepted, "{name}");
        assert_eq!(info.state, ConnectionState::Ready, "{name}");
        println!("{name}: {accepted} messages accepted, acknowledged and received; {:?}", wire.counts());
        assert!(accepted > 20, "{name}: the load was too small to show anything");
    }
}

#[test]
fn a_forged_reset_costs_what_was_not_acknowledged_and_nothing_else_soak() {
    skip_unless!(wire::available());
    let time = soak_time(ms(2000));
    if OwnProcess::new(test_name!()).network().limit(time + EXTRA).parent() {
        return;
    }
    let wire = Wire::new(0xfeed);
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let peer = wire.raw_peer(0);
    let (begun, mut random) = (std::time::Instant::now(), Random::new(0xabc));
    let (mut rounds, mut accepted, mut unacknowledged) = (0, 0, 0);
    // To us, to the peer, to both.
    while begun.elapsed() < time || rounds < 3 {
        let (here, there) = [(true, false), (false, true), (true, true)][rounds as usize % 3];
        let endpoint = peer.endpoint();
        wait_until("it is READY", LONG, || status_of(&engine.connect(&endpoint, LONG)) == Status::Ok);
        let conn = engine.ready(&endpoint);
        rounds += 1;
        let base = rounds << 32;
        let stream = Stream::start(&conn, base);
        let until = 1 + random.below(300);
        wait_until("some were accepted", LONG, || conn.info().accepted >= until);
        wait_until("a reset that fits into the stream ends it", LONG, || {
            wire.reset(here, there);
            std::thread::sleep(ms(1));
            conn.info().state == ConnectionState::Ended
        });
        wire.reset(false, false);
        let info = ended(&engine, &conn, stream);
        assert_eq!(info.ended_by, EndedBy::Reset, "{info:?}");
        let acknowledged = info.acknowledged.expect("TCP tells");
        account(&peer, base, info.accepted, acknowledged);
        accepted += info.accepted;
        unacknowledged += info.accepted - acknowledged;
    }
    println!("{rounds} resets: {accepted} accepted, {unacknowledged} unacknowledged; {:?}", wire.counts());
}

#[test]
fn a_path_that_swallows_long_packets_ends_the_connection_after_the_user_timeout() {
    skip_unless!(wire::available());
    if OwnProcess::new(test_name!()).network().limit(EXTRA).parent() {
        return;
    }
    let wire = Wire::new(0x1234);
    let engine = Engine::with(&[("user_timeout_ms", "2000")]);
    let peer = wire.raw_peer(0);
    let conn = engine.ready(&peer.endpoint());
    send(&conn, &[&1_u64.to_le_bytes()], LONG).expect("a healthy path");
    conn.flush(0, after(LONG)).0.expect("a healthy path");
    wire.set(Weather { longest: Some(576), ..Weather::default() });
    // Short messages pass, one at a time; long ones do not.
    for number in 2..=5_u64 {
        send(&conn, &[&number.to_le_bytes(), b"short"], LONG).expect("they fit");
        conn.flush(0, after(LONG)).0.expect("they fit");
    }
    let mut accepted = 5_u64;
    let error = loop {
        match send(&conn, &[&(accepted + 1).to_le_bytes(), &[7; 10_000]], LONG) {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.status, Status::PeerLost, "{error:?}");
    let info = wait_ended(&conn, LONG);
    assert_eq!((info.accepted, info.acknowledged), (accepted, Some(5)), "{info:?}");
    assert_eq!(info.ended_by, EndedBy::Timeout, "{info:?}");
    assert_eq!(account(&peer, 0, accepted, 5), 5);
    assert!(wire.counts().too_long > 0);
}

#[test]
fn a_host_that_takes_an_address_over_gets_nothing_of_its_predecessor() {
    skip_unless!(wire::available());
    if OwnProcess::new(test_name!()).network().limit(EXTRA).parent() {
        return;
    }
    let wire = Wire::new(0x4321);
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let peer = wire.raw_peer(0);
    let endpoint = peer.endpoint();
    let port = endpoint.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let successor = wire.raw_peer_of_other_host(port);
    let conn = engine.ready(&endpoint);
    let stream = Stream::start(&conn, 0);
    wait_until("some were accepted", LONG, || conn.info().accepted > 100);
    wire.take_over();
    // The other host knows nothing of this connection and resets it.
    let info = ended(&engine, &conn, stream);
    assert_eq!(info.ended_by, EndedBy::Reset, "{info:?}");
    account(&peer, 0, info.accepted, info.acknowledged.expect("TCP tells"));

    wait_until("the other host answers", LONG, || status_of(&engine.connect(&endpoint, LONG)) == Status::Ok);
    let next = engine.ready(&endpoint);
    assert_ne!(next.id(), conn.id());
    let base = 1 << 32;
    for number in 1..=100_u64 {
        send(&next, &[&(base + number).to_le_bytes()], LONG).expect("a healthy peer");
    }
    next.flush(0, after(LONG)).0.expect("a healthy peer");
    account(&successor, base, 100, 100);
    let strangers = successor.numbers().times.range(..base).count();
    assert_eq!(strangers, 0, "the other host got what was meant for its predecessor");
    assert_eq!(peer.numbers().times.range(base..).count(), 0);
}

#[test]
fn a_nat_that_forgets_costs_the_connection_and_no_acknowledged_message() {
    skip_unless!(wire::available());
    if OwnProcess::new(test_name!()).network().limit(EXTRA).parent() {
        return;
    }
    let wire = Wire::new(0x7777);
    wire.set(Weather { nat: true, ..Weather::default() });
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let peer = wire.raw_peer(0);
    // Idle, and under load.
    for (round, busy) in [(1_u64, false), (2, true)] {
        let endpoint = peer.endpoint();
        wait_until("it is READY", LONG, || status_of(&engine.connect(&endpoint, LONG)) == Status::Ok);
        let conn = engine.ready(&endpoint);
        let base = round << 32;
        if busy {
            let stream = Stream::start(&conn, base);
            wait_until("some were accepted", LONG, || conn.info().accepted > 100);
            wire.forget();
            let info = ended(&engine, &conn, stream);
            assert_eq!(info.ended_by, EndedBy::Reset, "{info:?}");
            account(&peer, base, info.accepted, info.acknowledged.expect("TCP tells"));
            continue;
        }
        send(&conn, &[&(base + 1).to_le_bytes()], LONG).expect("a healthy path");
        conn.flush(0, after(LONG)).0.expect("a healthy path");
        wire.forget();
        // Its packets come from another port now, of which the peer's host knows nothing: it resets.
        send(&conn, &[&(base + 2).to_le_bytes()], LONG).expect("nobody knows yet");
        let info = wait_ended(&conn, LONG);
        assert_eq!((info.accepted, info.acknowledged, info.ended_by), (2, Some(1), EndedBy::Reset), "{info:?}");
        assert_eq!(account(&peer, base, 2, 1), 1);
    }
}
