//! The local ports that dials use (field report R9).

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::common::engine::connection;
use crate::common::{Engine, OwnProcess, Peer, WrongPeer, ms, own_process, wait_until};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);

/// How many sockets of this network are in TIME_WAIT with one of these local ports.
fn time_waits(ports: std::ops::RangeInclusive<u16>) -> usize {
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/thread-self/net/{table}")));
    let lines = tables.iter().flat_map(|table| table.as_ref().expect("a table of connections").lines().skip(1));
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[3] == "06")
        .filter_map(|fields| u16::from_str_radix(fields[1].rsplit(':').next()?, 16).ok())
        .filter(|port| ports.contains(port))
        .count()
}

/// A range of eight ports, all of them in TIME_WAIT after connections of others to the same destination.
fn all_in_time_wait(to: &TcpListener) {
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "42000 42007").expect("narrowing the range of ports");
    let address = to.local_addr().expect("bound");
    let mut streams = Vec::new();
    while let Ok(stream) = TcpStream::connect(address) {
        streams.push((stream, to.accept().expect("a connection").0));
        assert!(streams.len() <= 8);
    }
    assert_eq!(streams.len(), 8, "every port is in use");
    // The connecting side closes first, and is left in TIME_WAIT.
    streams.into_iter().for_each(|(stream, accepted)| {
        drop(stream);
        drop(accepted);
    });
    wait_until("every port is in TIME_WAIT", LIMIT, || time_waits(42000..=42007) == 8);
    // The kernel reuses them for the same destination after a second, if their owner has timestamps.
    std::thread::sleep(ms(1100));
}

/// Where a plain connect works, a dial works.
fn dials_where_every_port_is_in_time_wait(source: Option<&str>) {
    let listener = TcpListener::bind("127.0.0.1:41000").expect("a port");
    let peer = Peer::bind("tcp://127.0.0.1:41001");
    all_in_time_wait(&listener);
    TcpStream::connect(listener.local_addr().unwrap()).expect("a plain connect works");
    let settings: Vec<_> = source.map(|source| ("source_address", source)).into_iter().collect();
    let engine = Engine::with(&settings);
    engine.send_to(peer.endpoint(), &[b"x"], LIMIT).expect("READY, as a plain connect");
    peer.wait_received(1, LIMIT);
}

#[test]
fn a_dial_works_where_every_source_port_is_in_time_wait() {
    skip_unless!(own_process::network_available());
    if !OwnProcess::new(test_name!()).network().parent() {
        dials_where_every_port_is_in_time_wait(None);
    }
}

#[test]
fn a_dial_from_a_source_address_works_where_every_source_port_is_in_time_wait() {
    skip_unless!(own_process::network_available());
    if !OwnProcess::new(test_name!()).network().parent() {
        dials_where_every_port_is_in_time_wait(Some("127.0.0.1"));
    }
}

/// What our own dials leave in TIME_WAIT does not keep other programs of the host from connecting.
#[test]
fn ports_that_dials_have_used_can_be_used_by_a_plain_connect() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let peer = Peer::bind("tcp://127.0.0.1:41001");
    let mute = WrongPeer::start("mute", "127.0.0.1:41000", None);
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "42000 42007").expect("narrowing the range of ports");
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let mut dials = 0;
    while let Ok(id) = engine.connect(peer.endpoint(), LIMIT) {
        connection(id).disconnect().unwrap();
        wait_until("it is closed", LIMIT, || connection(id).gone().is_some());
        dials += 1;
        if dials == 8 {
            break;
        }
    }
    assert!(time_waits(42000..=42007) > 0);
    for _ in 0..8 {
        TcpStream::connect(("127.0.0.1", mute.port())).expect("a plain connect");
    }
}
