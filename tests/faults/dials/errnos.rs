//! A failed dial says what the failed system call said: its errno, and its own text (field reports R8 and R13).

use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use kvconn::error::{Error, Status};
use kvconn::events::EventKind;

use crate::common::engine::{connection, refused, send, wait_ended};
use crate::common::load::Stopwatch;
use crate::common::{Engine, OwnProcess, Peer, WrongPeer, closed_port, ms, names, own_process};
use crate::refusing_kernel::{self, Rule, refuse};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);

/// Runs iproute2 in the network of this process.
fn try_ip(tool: &str, arguments: &str) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(tool).args(arguments.split(' ')).env("PATH", format!("{path}:/usr/sbin:/sbin")).output();
    let output = output.map_err(|error| format!("{tool}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[track_caller]
fn ip(arguments: &str) {
    try_ip("ip", arguments).unwrap_or_else(|error| panic!("ip {arguments}: {error}"));
}

/// The system's text for an errno.
fn text_of(os_errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(os_errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// A dial fails with this errno in no time, and says so in every place: the error, the event, the connection, the log
/// of the next call. Only a refusal is called one.
#[track_caller]
fn fails_with(engine: &Engine, endpoint: &str, os_errno: i32) -> Error {
    let watch = Stopwatch::start();
    let error = refused(engine.connect(endpoint, LIMIT), Status::ConnectFailed);
    watch.at_most(ms(1000), endpoint);
    assert_eq!(error.os_errno, os_errno, "{endpoint}: {error:?}");
    let says = |message: &str| message.to_lowercase().contains(&text_of(os_errno).to_lowercase());
    assert!(says(&error.message), "{endpoint}: {}", error.message);
    assert_eq!(error.message.contains("refused"), os_errno == libc::ECONNREFUSED, "{endpoint}: {}", error.message);
    assert_eq!(connection(error.conn).info().os_errno, os_errno, "{endpoint}");
    let event = engine.expect_event(EventKind::ConnectFailed, LIMIT);
    assert_eq!(event.os_errno, os_errno, "{endpoint}");
    let backoff = refused(engine.send_to(endpoint, &[b"x"], LIMIT), Status::Backoff);
    assert_eq!(backoff.os_errno, os_errno, "{endpoint}: {backoff:?}");
    error
}

fn engine() -> Engine {
    Engine::with(&[("connect_timeout_ms", "3000"), ("backoff_ms", "10000"), ("backoff_max_ms", "10000")])
}

#[test]
fn what_the_routing_table_says_is_what_the_dial_says() {
    skip_unless!(own_process::network_available());
    skip_unless!(try_ip("ip", "-V"));
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let engine = engine();
    // The addresses are of documentation, and of a network without a way out.
    fails_with(&engine, "tcp://203.0.113.1:5555", libc::ENETUNREACH);
    fails_with(&engine, "tcp://[2001:db8::1]:5555", libc::ENETUNREACH);
    for (kind, last, os_errno) in
        [("prohibit", 2, libc::EACCES), ("unreachable", 3, libc::EHOSTUNREACH), ("blackhole", 4, libc::EINVAL)]
    {
        ip(&format!("route add {kind} 203.0.113.{last}/32"));
        fails_with(&engine, &format!("tcp://203.0.113.{last}:5555"), os_errno);
    }
    let port = closed_port();
    fails_with(&engine, &port.endpoint(), libc::ECONNREFUSED);
}

/// With one port to dial from, and that one in use for the same destination.
#[test]
fn without_a_free_source_port_the_address_is_not_available() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let hole = WrongPeer::black_hole();
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "50001 50001").expect("one port to dial from");
    let (first, second) = (engine(), engine());
    let conn = first.lazy(&hole.endpoint());
    std::thread::sleep(ms(100)); // it is being dialled
    fails_with(&second, &hole.endpoint(), libc::EADDRNOTAVAIL);
    conn.disconnect().unwrap();
}

/// A firewall's DROP on this host, and a sandbox.
#[test]
fn a_connect_that_is_not_permitted_says_so() {
    skip_unless!(refusing_kernel::available());
    for os_errno in [libc::EPERM, libc::ENOBUFS] {
        let name = test_name!();
        if !OwnProcess::new(name.clone()).env("KVCONN_TEST_ERRNO", &os_errno.to_string()).parent() {
            let os_errno = std::env::var("KVCONN_TEST_ERRNO").expect("given above").parse().expect("a number");
            let peer = Peer::any();
            refuse(&[Rule { call: libc::SYS_connect, arguments: &[], errno: os_errno }]);
            fails_with(&engine(), peer.endpoint(), os_errno);
            fails_with(&engine(), "ipc://@kvconn-nobody", os_errno);
            return;
        }
    }
}

/// A kernel that was started without IPv6.
#[test]
fn without_ipv6_an_ipv6_address_says_that_its_family_is_not_supported() {
    skip_unless!(refusing_kernel::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let peer = Peer::any();
    let family = libc::AF_INET6 as u32;
    refuse(&[Rule { call: libc::SYS_socket, arguments: &[(0, family)], errno: libc::EAFNOSUPPORT }]);
    let engine = engine();
    fails_with(&engine, "tcp://[::1]:5555", libc::EAFNOSUPPORT);
    engine.send_to(peer.endpoint(), &[b"x"], LIMIT).expect("IPv4 works");
    peer.wait_received(1, LIMIT);
}

#[test]
fn a_full_ipc_backlog_says_try_again() {
    let path = std::env::temp_dir().join(format!("kvconn-full-{}", std::process::id()));
    let listener = UnixListener::bind(&path).expect("a listener");
    {
        use std::os::fd::AsRawFd;
        // SAFETY: the descriptor is open; listening again only makes the backlog shorter.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    }
    // A connect that would wait for room in the backlog is the proof that there is none.
    let mut fillers = Vec::new();
    while let Some(filler) = connect_without_waiting(&path) {
        fillers.push(filler);
        assert!(fillers.len() < 100, "the backlog does not fill");
    }
    fails_with(&engine(), &format!("ipc://{}", path.display()), libc::EAGAIN);
    std::fs::remove_file(&path).expect("the file");
}

/// A Unix stream, `None` if the backlog is full.
fn connect_without_waiting(path: &std::path::Path) -> Option<UnixStream> {
    use socket2::{Domain, SockAddr, Socket, Type};
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
    socket.set_nonblocking(true).expect("non-blocking");
    match socket.connect(&SockAddr::unix(path).expect("a short path")) {
        Ok(()) => Some(UnixStream::from(std::os::fd::OwnedFd::from(socket))),
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EAGAIN), "{error}");
            None
        }
    }
}

/// What an errno is does not depend on when it comes.
#[test]
fn a_refusal_that_takes_long_is_a_refusal() {
    skip_unless!(own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    skip_unless!(try_ip("tc", "qdisc add dev lo root netem delay 700ms"));
    let port = closed_port();
    let watch = Stopwatch::start();
    let error = refused(engine().connect(&port.endpoint(), LIMIT), Status::ConnectFailed);
    watch.between(ms(1300), ms(2000), "a refusal");
    assert_eq!(error.os_errno, libc::ECONNREFUSED, "{error:?}");
}

/// Every address of a name is tried; what the text says last is the failure of the last one, and its errno.
#[test]
fn the_last_address_of_a_name_tells_its_errno() {
    skip_unless!(own_process::network_available());
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    names::only_hosts("203.0.113.1 peer.test\n127.0.0.1 peer.test\n");
    let port = closed_port();
    let engine = engine();
    let error = refused(engine.connect(&format!("tcp://peer.test:{}", port.port()), LIMIT), Status::ConnectFailed);
    let ends = [libc::ECONNREFUSED, libc::ENETUNREACH];
    assert!(ends.contains(&error.os_errno), "{error:?}");
    assert!(error.message.contains(&text_of(error.os_errno)) || error.message.contains("refused"), "{error:?}");
}

/// Every status of the network carries an errno.
#[test]
fn every_error_of_the_network_carries_an_errno() {
    let peer = Peer::any();
    let hole = WrongPeer::black_hole();
    let settings = [("connect_timeout_ms", "300"), ("backoff_ms", "10000"), ("backoff_max_ms", "10000")];
    let engine = Engine::with(&settings);
    let has = |error: Error, os_errno: i32| assert_eq!(error.os_errno, os_errno, "{error:?}");

    has(refused(engine.connect(&hole.endpoint(), ms(50)), Status::Timeout), libc::ETIMEDOUT);
    has(refused(engine.send_to(&hole.endpoint(), &[b"x"], ms(20)), Status::Stalled), libc::EAGAIN);
    has(refused(engine.send_to(&hole.endpoint(), &[b"x"], LIMIT), Status::ConnectFailed), libc::ETIMEDOUT);
    has(refused(engine.send_to(&hole.endpoint(), &[b"x"], LIMIT), Status::Backoff), libc::ETIMEDOUT);

    let conn = engine.ready(peer.endpoint());
    send(&conn, &[b"x"], LIMIT).expect("sent");
    peer.wait_received(1, LIMIT);
    peer.kill();
    let info = wait_ended(&conn, LIMIT);
    assert_ne!(info.os_errno, 0, "{info:?}");
    has(refused(send(&conn, &[b"x"], LIMIT), Status::PeerLost), info.os_errno);
    let event = engine.expect_event(EventKind::PeerLost, LIMIT);
    assert_eq!(event.os_errno, info.os_errno);
    has(refused(engine.send_to(peer.endpoint(), &[b"x"], LIMIT), Status::Backoff), info.os_errno);

    // A dial that was given up has no errno of the network's; the next one says that it was cancelled.
    let other = WrongPeer::black_hole();
    engine.lazy(&other.endpoint()).disconnect().unwrap();
    has(refused(engine.send_to(&other.endpoint(), &[b"x"], LIMIT), Status::Backoff), libc::ECANCELED);
}
