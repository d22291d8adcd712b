//! `source_address` and `interface`: where TCP is dialled from.

use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use kvconn::error::{Error, Status};

use crate::common::engine::{after, options, refused, send};
use crate::common::load::Stopwatch;
use crate::common::{Engine, OwnProcess, Peer, PeerOptions, ms, names, own_process, tcp_traffic};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);
const QUICK: [(&str, &str); 2] = [("backoff_ms", "1"), ("backoff_max_ms", "1")];

/// Dials a listener at this address with these settings; where the call came from.
#[track_caller]
fn dialled_from(address: &str, settings: &[(&str, &str)]) -> IpAddr {
    let listener = TcpListener::bind(format!("{address}:0")).expect("a port");
    let engine = Engine::with(settings);
    engine.lazy(&format!("tcp://{}", listener.local_addr().expect("bound")));
    listener.accept().expect("a visitor").1.ip()
}

#[track_caller]
fn connect_failed(engine: &Engine, endpoint: &str, settings: &[(&str, &str)]) -> Error {
    refused(engine.connect_with(endpoint, settings, LIMIT), Status::ConnectFailed)
}

#[test]
fn the_peer_sees_the_source_that_was_asked_for() {
    for (to, source, seen) in [
        ("127.0.0.1", "127.0.0.2", "127.0.0.2"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("127.8.9.10", "::ffff:127.3.2.1", "127.3.2.1"),
        ("[::1]", "::1", "::1"),
        ("127.0.0.1", "", "127.0.0.1"),
    ] {
        let from = dialled_from(to, &[("source_address", source)]);
        assert_eq!(from, seen.parse::<IpAddr>().unwrap(), "to {to} from {source:?}");
    }
}

#[test]
fn messages_arrive_from_there_and_redials_come_from_there() {
    let mut peer = Peer::any();
    let port = peer.port();
    let engine = Engine::with(&QUICK);
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let conn = engine.ready_with(&endpoint, &[("source_address", "127.0.0.2")]);
    send(&conn, &[b"1"], LIMIT).expect("accepted");
    peer.wait_received(1, LIMIT);
    assert!(established("127.0.0.2", port), "no connection from 127.0.0.2");
    let error = refused(engine.connect_with(&endpoint, &[("source_address", "127.0.0.3")], LIMIT), Status::Conflict);
    assert!(error.message.contains("source_address = 127.0.0.2"), "{}", error.message);

    peer.restart();
    crate::common::wait_until("it is redialled", LIMIT, || engine.send_to(&endpoint, &[b"2"], LIMIT).is_ok());
    peer.wait_received(1, LIMIT);
    assert!(established("127.0.0.2", port), "the redial did not come from 127.0.0.2");
}

/// Whether there is an established IPv4 connection from that address to that port.
fn established(from: &str, port: u16) -> bool {
    let address = u32::from_le_bytes(from.parse::<std::net::Ipv4Addr>().expect("an address").octets());
    let (from, to) = (format!("{address:08X}:"), format!(":{port:04X}"));
    let tables =
        ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap());
    // IPv6 sockets have the IPv4 address in their last four bytes.
    tables.iter().flat_map(|table| table.lines().skip(1)).any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let local = fields[1].rsplit_once(':').expect("a port").0;
        local.ends_with(&from[..8]) && fields[2].ends_with(&to) && fields[3] == "01"
    })
}

#[test]
fn a_source_that_does_not_fit_says_so_and_dials_nothing() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let engine = Engine::with(&QUICK);
    let before = tcp_traffic();
    for (endpoint, source, os_errno, text) in [
        ("tcp://[::1]:9", "127.0.0.2", libc::EAFNOSUPPORT, "source_address 127.0.0.2 is IPv4, and ::1 is IPv6"),
        ("tcp://127.0.0.1:9", "::1", libc::EAFNOSUPPORT, "source_address ::1 is IPv6, and 127.0.0.1 is IPv4"),
        ("tcp://127.0.0.3:9", "203.0.113.7", libc::EADDRNOTAVAIL, "source_address 203.0.113.7"),
        ("tcp://[fd00::1]:9", "2001:db8::7", libc::EADDRNOTAVAIL, "source_address 2001:db8::7"),
    ] {
        let error = connect_failed(&engine, endpoint, &[("source_address", source)]);
        assert_eq!(error.os_errno, os_errno, "{}", error.message);
        assert!(error.message.contains(text), "{text:?} is not in: {}", error.message);
    }
    for malformed in ["127.0.0.1:0", "localhost", "0.0.0.0", "eth0"] {
        let error = kvconn::options::Options::default().set("source_address", malformed).expect_err("malformed");
        assert_eq!(error.status, Status::Invalid);
    }
    assert_eq!(tcp_traffic().dials, before.dials, "something was dialled");
}

/// A name has addresses of both families: those that do not fit are passed over.
#[test]
fn of_a_name_the_addresses_that_fit_are_dialled() {
    skip_unless!(own_process::network_available());
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    names::only_hosts("::1 both.test\n127.0.0.1 both.test\n::1 six.test\n");
    let peer = Peer::with(PeerOptions { bind: "tcp://127.0.0.1:0".into(), ..PeerOptions::default() });
    let engine = Engine::with(&QUICK);
    let source = [("source_address", "127.0.0.2")];
    let conn = engine.ready_with(&format!("tcp://both.test:{}", peer.port()), &source);
    send(&conn, &[b"x"], LIMIT).expect("accepted");
    peer.wait_received(1, LIMIT);

    let before = tcp_traffic();
    let error = connect_failed(&engine, "tcp://six.test:9", &source);
    assert_eq!(error.os_errno, libc::EAFNOSUPPORT, "{}", error.message);
    assert_eq!(tcp_traffic().dials, before.dials, "something was dialled");
    // The failed dial comes first; the addresses that were skipped are named as well.
    let error = connect_failed(&engine, "tcp://both.test:9", &source);
    assert_eq!(error.os_errno, libc::ECONNREFUSED, "{}", error.message);
    assert!(error.message.contains("::1 is IPv6"), "{}", error.message);
    assert_eq!(tcp_traffic().dials, before.dials + 1);
}

#[test]
fn an_interface_is_dialled_through() {
    let peer = Peer::any();
    let engine = Engine::with(&QUICK);
    let conn = engine.ready_with(peer.endpoint(), &[("interface", "lo")]);
    send(&conn, &[b"x"], LIMIT).expect("accepted");
    peer.wait_received(1, LIMIT);
    let error = refused(engine.connect_with(peer.endpoint(), &[("interface", "")], LIMIT), Status::Conflict);
    assert!(error.message.contains("interface = lo"), "{}", error.message);
    assert_eq!(
        dialled_from("127.0.0.1", &[("interface", "lo"), ("source_address", "127.0.0.2")]).to_string(),
        "127.0.0.2"
    );

    let watch = Stopwatch::start();
    let error = connect_failed(&engine, "tcp://127.0.0.1:9", &[("interface", "nosuch0")]);
    assert_eq!(error.os_errno, libc::ENODEV, "{}", error.message);
    assert!(error.message.contains("interface nosuch0"), "{}", error.message);
    watch.at_most(ms(500), "what libzmq does not tell");
}

/// The interface decides, not the route.
#[test]
fn nothing_leaves_through_another_interface() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let ip = std::process::Command::new("ip").args("link add kvother type dummy".split(' ')).status();
    if !ip.is_ok_and(|status| status.success()) {
        println!("SKIPPED: no dummy interface can be made");
        return;
    }
    assert!(std::process::Command::new("ip").args("link set kvother up".split(' ')).status().unwrap().success());
    let peer = Peer::any();
    let engine = Engine::with(&[QUICK[0], QUICK[1], ("connect_timeout_ms", "300")]);
    connect_failed(&engine, peer.endpoint(), &[("interface", "kvother")]);
    assert_eq!(peer.received().accepted, 0);
    std::thread::sleep(ms(5)); // longer than the backoff
    engine.ready_with(peer.endpoint(), &[("interface", "lo")]);
}

/// With one port to dial from, the kernel has no choice: it is the one that is dialled.
#[test]
fn a_source_that_is_the_destination_is_found_out() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let range =
        |ports: &str| std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", ports).expect("a range of ports");
    let engine = Engine::with(&QUICK);
    let before = tcp_traffic();
    range("42001 42001");
    connect_failed(&engine, "tcp://127.0.0.1:42001", &[("source_address", "127.0.0.1")]);
    let after = tcp_traffic();
    // It was connected, and only to itself.
    assert_eq!((after.dials - before.dials, after.refused - before.refused), (1, 0));
    range("50000 60000");
    let peer = Peer::bind("tcp://127.0.0.1:42001");
    crate::common::wait_until("its owner is dialled", LIMIT, || {
        engine.send_to("tcp://127.0.0.1:42001", &[b"x"], LIMIT).is_ok()
    });
    peer.wait_received(1, LIMIT);
}

/// ipc has neither.
#[test]
fn ipc_takes_no_notice() {
    let path = std::env::temp_dir().join(format!("kvconn-source-{}", std::process::id()));
    let peer = Peer::bind(&format!("ipc://{}", path.display()));
    let engine = Engine::with(&[("source_address", "203.0.113.7"), ("interface", "nosuch0")]);
    let conn = engine.ready(peer.endpoint());
    send(&conn, &[b"x"], LIMIT).expect("accepted");
    peer.wait_received(1, LIMIT);
    drop(peer);
    std::fs::remove_file(path).ok();
}

/// libzmq lists the interfaces for it, for which it needs a descriptor, and aborts without one: corrected in the libzmq
/// that is built in.
#[test]
fn a_source_without_descriptors_fails_the_dial() {
    if OwnProcess::new(test_name!()).descriptors(200).parent() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let engine = Engine::with(&[QUICK[0], QUICK[1], ("connect_timeout_ms", "200")]);
    let endpoint = format!("tcp://{}", listener.local_addr().expect("bound"));
    let source = options(&[("source_address", "127.0.0.2")]);
    // Everything that a connection needs at first is there; what libzmq needs for TCP is gone by then.
    for _ in 0..50 {
        let mut taken = Vec::new();
        let result = engine.manager().connect(&endpoint, Some(&source), after(Duration::ZERO));
        while let Ok(one) = listener.try_clone() {
            taken.push(one);
        }
        std::thread::sleep(ms(20));
        drop(taken);
        if let Ok(id) = result {
            crate::common::engine::connection(id).disconnect().expect("ended");
        }
    }
    engine.lazy(&endpoint);
    listener.accept().expect("all is well again");
}
