//! Scenario 19: a dial of a free port of this host may get that very port as its source, and TCP connects it to itself.
//! The port is taken then, and its true owner must still be able to bind it.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvconn::error::Status;
use kvconn::events::EventKind;

use crate::common::engine::{refused, send, status_of};
use crate::common::load::Stopwatch;
use crate::common::{Engine, OwnProcess, Peer, ms, own_process, soak_time, tcp_traffic};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);

/// Of a network of one's own: so few ports to dial from that the dialled one comes up often.
fn narrow_the_range(first: u16, last: u16) {
    let range = format!("{first} {last}");
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).expect("narrowing the range of ports");
}

/// The local and remote ports of every established connection.
fn established() -> Vec<(u16, u16)> {
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/thread-self/net/{table}")));
    let port_of = |text: &str| u16::from_str_radix(text.rsplit(':').next().expect("a port"), 16).expect("a number");
    let lines = tables.iter().flat_map(|table| table.as_ref().expect("a table of connections").lines().skip(1));
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[3] == "01")
        .map(|fields| (port_of(fields[1]), port_of(fields[2])))
        .collect()
}

/// Dials each port of a narrow range again and again, on this host address.
fn never_ready_and_bindable(host: &str) {
    const PORTS: std::ops::RangeInclusive<u16> = 42_000..=42_011;
    narrow_the_range(*PORTS.start(), *PORTS.end());
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let (begun, watch) = (Instant::now(), Stopwatch::start());
    let time = soak_time(ms(1500));
    let mut failed = 0;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // No connection to itself lasts longer than it takes to see it.
        let looking_on = scope.spawn(|| {
            let (mut since, mut longest) = (None, Duration::ZERO);
            while !over.load(Ordering::Relaxed) {
                let itself = established().iter().any(|(local, remote)| local == remote && PORTS.contains(local));
                let now = Instant::now();
                longest = longest.max(since.map_or(Duration::ZERO, |since| now - since));
                since = itself.then(|| since.unwrap_or(now));
                std::thread::sleep(ms(1));
            }
            longest
        });
        while begun.elapsed() < time || failed < 300 {
            assert!(begun.elapsed() < time + LIMIT, "only {failed} dials");
            for port in PORTS {
                let result = engine.connect(&format!("tcp://{host}:{port}"), LIMIT);
                match status_of(&result) {
                    Status::ConnectFailed => failed += 1,
                    Status::Backoff => {}
                    _ => panic!("nobody listens on {host}:{port}: {result:?}"),
                }
                // Its owner comes, if only to look.
                drop(TcpListener::bind(format!("{host}:{port}")).expect("the port is free"));
            }
        }
        over.store(true, Ordering::Relaxed);
        let longest = looking_on.join().unwrap();
        let excused = watch.excused();
        assert!(
            longest < ms(100) + excused,
            "connected to itself for {longest:?}; for the load {excused:?} are excused"
        );
    });
    assert!(engine.events_of(EventKind::Ready).is_empty());
    // Twelve ports are too few for listeners and connections together.
    narrow_the_range(50_000, 60_000);
    for port in PORTS {
        let peer = Peer::bind(&format!("tcp://{host}:{port}"));
        std::thread::sleep(ms(2)); // a step
        engine.send_to(&format!("tcp://{host}:{port}"), &[b"x"], LIMIT).expect("its owner is there");
        peer.wait_received(1, LIMIT);
    }
}

#[test]
fn stress_a_dial_of_a_free_port_is_never_ready_and_leaves_it_free() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().limit(soak_time(Duration::ZERO) + 6 * LIMIT).parent() {
        return;
    }
    never_ready_and_bindable("127.0.0.1");
}

#[test]
fn stress_a_dial_of_a_free_ipv6_port_is_never_ready_and_leaves_it_free() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().limit(soak_time(Duration::ZERO) + 6 * LIMIT).parent() {
        return;
    }
    never_ready_and_bindable("[::1]");
}

/// With one port to dial from, the kernel has no choice.
#[test]
fn a_connection_to_itself_is_a_failed_dial_for_every_waiting_call() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    for port in [42_001, 42_100] {
        narrow_the_range(port, port);
        let engine = Engine::with(&[("backoff_ms", "10000"), ("backoff_max_ms", "10000")]);
        let endpoint = format!("tcp://127.0.0.1:{port}");
        let before = tcp_traffic();
        let conn = engine.lazy(&endpoint);
        refused(send(&conn, &[b"to myself"], LIMIT), Status::ConnectFailed);
        let after = tcp_traffic();
        // It was connected, and only to itself.
        assert_eq!((after.dials - before.dials, after.refused - before.refused), (1, 0), "{endpoint}");
        assert_eq!(conn.info().accepted, 0);
        refused(engine.send_to(&endpoint, &[b"x"], LIMIT), Status::Backoff);
        narrow_the_range(50_000, 60_000);
        let peer = Peer::bind(&endpoint);
        engine.node("node", &[&endpoint]);
        engine.send_to(&endpoint, &[b"x"], LIMIT).expect("its owner is there");
        peer.wait_received(1, LIMIT);
    }
}

#[test]
fn a_peer_can_listen_on_a_port_that_a_connection_comes_from() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let engine = Engine::new();
    for address in ["127.0.0.1", "[::1]"] {
        let peer = Peer::bind(&format!("tcp://{address}:5555"));
        let endpoint = format!("tcp://{address}:5555");
        let conn = engine.ready(&endpoint);
        let source = established().into_iter().find(|(_, remote)| *remote == 5555).expect("it is established").0;
        let second = Peer::bind(&format!("tcp://{address}:{source}"));
        engine.send_to(&format!("tcp://{address}:{source}"), &[b"x"], LIMIT).expect("sent");
        second.wait_received(1, LIMIT);
        send(&conn, &[b"x"], LIMIT).expect("the first goes on");
        peer.wait_received(1, LIMIT);
        engine.disconnect_endpoint(&endpoint).unwrap();
        // What is left of a connection that we closed does not keep a listener away either.
        peer.kill();
        second.kill();
        Peer::bind(&format!("tcp://{address}:{source}"));
    }
}
