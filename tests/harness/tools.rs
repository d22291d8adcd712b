//! The test harness itself: the other tests are worth nothing when a peer that is killed still listens.

use std::ffi::{CString, c_int, c_void};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::common::{
    ClosedPort, Namespace, OwnProcess, Peer, PeerOptions, WrongPeer, closed_port, ms, open_descriptors, wait_until,
    within,
};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);

/// A raw libzmq PUSH socket; what is not sent when it is dropped is lost.
struct Push {
    context: *mut c_void,
    socket: *mut c_void,
}

impl Push {
    fn to(endpoint: &str) -> Push {
        let push = Push::new();
        push.connect(endpoint);
        push
    }

    fn new() -> Push {
        // SAFETY: context and socket belong to this value and one thread.
        unsafe {
            let context = zmq_sys::zmq_ctx_new();
            let socket = zmq_sys::zmq_socket(context, zmq_sys::ZMQ_PUSH as c_int);
            let push = Push { context, socket };
            push.set(zmq_sys::ZMQ_LINGER as c_int, 0);
            push.set(zmq_sys::ZMQ_IPV6 as c_int, 1);
            push.set(zmq_sys::ZMQ_IMMEDIATE as c_int, 1);
            push.set(zmq_sys::ZMQ_SNDTIMEO as c_int, 5000);
            push.set(zmq_sys::ZMQ_TCP_MAXRT as c_int, 2500);
            push
        }
    }

    fn connect(&self, endpoint: &str) {
        let text = CString::new(endpoint).expect("no NUL");
        // SAFETY: the socket is open; the text ends with NUL.
        assert_eq!(unsafe { zmq_sys::zmq_connect(self.socket, text.as_ptr()) }, 0);
    }

    fn set_text(&self, option: c_int, text: &str) {
        // SAFETY: the socket is open; the text is read for its length.
        let result = unsafe { zmq_sys::zmq_setsockopt(self.socket, option, text.as_ptr().cast(), text.len()) };
        assert_eq!(result, 0, "option {option}");
    }

    fn set(&self, option: c_int, value: c_int) {
        let size = std::mem::size_of::<c_int>();
        // SAFETY: the socket is open; the value is an int.
        let result = unsafe { zmq_sys::zmq_setsockopt(self.socket, option, (&raw const value).cast(), size) };
        assert_eq!(result, 0, "option {option}");
    }

    fn send(&self, frames: &[&[u8]]) -> bool {
        frames.iter().enumerate().all(|(at, frame)| {
            let more = match at + 1 == frames.len() {
                true => 0,
                false => zmq_sys::ZMQ_SNDMORE as c_int,
            };
            // SAFETY: the frame is read for its length; EINTR does not occur here.
            let sent = unsafe { zmq_sys::zmq_send(self.socket, frame.as_ptr().cast(), frame.len(), more) };
            sent >= 0
        })
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        // SAFETY: the last use of both; LINGER is 0, so the termination does not wait.
        unsafe {
            zmq_sys::zmq_close(self.socket);
            zmq_sys::zmq_ctx_term(self.context);
        }
    }
}

fn refused(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

#[test]
fn a_peer_receives_whole_messages_byte_for_byte() {
    let peer = Peer::any();
    let push = Push::to(peer.endpoint());
    let large = vec![7; 512 * 1024];
    assert!(push.send(&[b"one"]));
    assert!(push.send(&[b"", b"a\0b\nc", &large]));
    let totals = peer.wait_received(2, LIMIT);
    assert_eq!((totals.messages, totals.frames), (2, 4));
    assert_eq!(totals.bytes, 3 + 5 + large.len() as u64);
    assert_eq!((totals.accepted, totals.handshakes), (1, 1));
    let expected = vec![vec![b"one".to_vec()], vec![vec![], b"a\0b\nc".to_vec(), large]];
    assert_eq!(peer.messages(), expected);
    drop(push);
    peer.wait_for("the peer saw the end", LIMIT, |totals| totals.disconnected == 1);
}

#[test]
fn a_peer_listens_on_ipv6_ipc_and_many_endpoints() {
    let directory = std::env::temp_dir().join(format!("kvconn-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    for bind in ["tcp://[::1]:0", &format!("ipc://{}/peer", directory.display())] {
        let peer = Peer::bind(bind);
        let push = Push::to(peer.endpoint());
        assert!(push.send(&[b"x"]), "{bind}");
        peer.wait_received(1, LIMIT);
    }
    std::fs::remove_dir_all(&directory).expect("the directory");

    let peer = Peer::with(PeerOptions { endpoints: 100, ..PeerOptions::default() });
    assert_eq!(peer.endpoints().len(), 100);
    for endpoint in [&peer.endpoints()[0], &peer.endpoints()[99]] {
        assert!(Push::to(endpoint).send(&[b"x"]));
    }
}

#[test]
fn a_stopped_peer_reads_nothing_until_it_is_resumed() {
    let peer = Peer::with(PeerOptions { rcvhwm: 1, ..PeerOptions::default() });
    let push = Push::to(peer.endpoint());
    assert!(push.send(&[b"before"]));
    peer.wait_received(1, LIMIT);
    peer.stop();
    assert!(push.send(&[b"while stopped"]));
    peer.resume();
    peer.wait_received(2, LIMIT);
}

#[test]
fn a_slow_or_paused_reader_is_slow_or_paused() {
    let peer = Peer::with(PeerOptions { delay: ms(20), paused: true, ..PeerOptions::default() });
    let push = Push::to(peer.endpoint());
    for _ in 0..10 {
        assert!(push.send(&[b"x"]));
    }
    std::thread::sleep(ms(50));
    assert_eq!(peer.received().messages, 0);
    let begun = std::time::Instant::now();
    peer.resume_reading();
    peer.wait_received(10, LIMIT);
    assert!(begun.elapsed() >= ms(180), "{:?}", begun.elapsed());
}

#[test]
fn a_killed_peer_is_gone_and_restarts_empty_on_its_port() {
    let mut peer = Peer::any();
    let port = peer.port();
    {
        let push = Push::to(peer.endpoint());
        assert!(push.send(&[b"x"]));
        peer.wait_received(1, LIMIT);
        peer.stop();
        peer.kill();
        assert!(refused(port), "port {port} after the kill");
    }
    peer.restart();
    assert_eq!(peer.port(), port);
    assert_eq!(peer.received().messages, 0);
    let push = Push::to(peer.endpoint());
    assert!(push.send(&[b"y"]));
    peer.wait_received(1, LIMIT);
    drop(push);
    peer.terminate();
    assert!(refused(port), "port {port} after the end");
    assert_eq!(Peer::restart_on(port).port(), port);
}

#[test]
fn a_flapping_peer_drops_its_connections_and_listens_again() {
    let peer = Peer::any();
    for round in 1..=100 {
        let push = Push::to(peer.endpoint());
        assert!(push.send(&[b"x"]));
        peer.wait_received(round, LIMIT);
        peer.flap();
    }
    assert_eq!(peer.received().messages, 100);
}

#[test]
fn wrong_peers_do_what_they_are_named_for() {
    let visit = |peer: &WrongPeer| {
        let stream = TcpStream::connect(("127.0.0.1", peer.port())).expect("a connection");
        stream.set_read_timeout(Some(ms(200))).expect("a timeout");
        stream
    };
    let said = |stream: &mut TcpStream| {
        let mut buffer = [0; 64];
        stream.read(&mut buffer).map(|n| buffer[..n].to_vec())
    };

    let mute = WrongPeer::mute();
    let mut stream = visit(&mute);
    stream.write_all(b"hello").expect("written");
    assert!(said(&mut stream).is_err(), "a mute peer spoke");
    wait_until("five bytes have arrived", LIMIT, || mute.bytes() == 5);
    assert_eq!((mute.connections(), mute.open()), (1, 1));
    drop(stream);
    wait_until("the connection is closed", LIMIT, || mute.open() == 0);
    let port = mute.port();
    drop(mute);
    assert_eq!(WrongPeer::mute_on(port).connections(), 0);

    let http = WrongPeer::http();
    let banner = said(&mut visit(&http)).expect("a banner");
    assert!(banner.starts_with(b"HTTP/1.1 400"));

    let resetting = WrongPeer::resetting();
    let error = said(&mut visit(&resetting)).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

    let closing = WrongPeer::closing();
    assert_eq!(said(&mut visit(&closing)).expect("an end"), b"");
    assert_eq!(closing.connections(), 1);

    let closed: ClosedPort = closed_port();
    assert!(refused(closed.port()));

    let hole = WrongPeer::black_hole();
    let address = ([127, 0, 0, 1], hole.port()).into();
    let error = TcpStream::connect_timeout(&address, ms(300)).expect_err("no answer");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn a_curve_peer_takes_only_clients_that_know_its_key() {
    let keys = || {
        let (mut public, mut secret) = ([0u8; 41], [0u8; 41]);
        // SAFETY: both buffers hold the 41 bytes that a Z85 key with its NUL needs.
        let result = unsafe { zmq_sys::zmq_curve_keypair(public.as_mut_ptr().cast(), secret.as_mut_ptr().cast()) };
        assert_eq!(result, 0, "this libzmq has no CURVE");
        let text = |key: &[u8]| String::from_utf8(key[..40].to_vec()).expect("Z85");
        (text(&public), text(&secret))
    };
    let (server_public, server_secret) = keys();
    let peer = Peer::with(PeerOptions { curve_secret: Some(server_secret), ..PeerOptions::default() });
    let plain = Push::to(peer.endpoint());
    plain.set(zmq_sys::ZMQ_SNDTIMEO as c_int, 300);
    assert!(!plain.send(&[b"in clear"]));

    let (public, secret) = keys();
    let push = Push::new();
    push.set_text(zmq_sys::ZMQ_CURVE_SERVERKEY as c_int, &server_public);
    push.set_text(zmq_sys::ZMQ_CURVE_PUBLICKEY as c_int, &public);
    push.set_text(zmq_sys::ZMQ_CURVE_SECRETKEY as c_int, &secret);
    push.connect(peer.endpoint());
    assert!(push.send(&[b"sealed"]));
    peer.wait_received(1, LIMIT);
    assert_eq!(peer.messages(), [[b"sealed".to_vec()]]);
}

#[test]
fn a_rep_socket_is_a_wrong_peer_too() {
    let peer = Peer::with(PeerOptions { socket: "REP", ..PeerOptions::default() });
    let push = Push::to(peer.endpoint());
    push.set(zmq_sys::ZMQ_SNDTIMEO as c_int, 300);
    assert!(!push.send(&[b"x"]), "a REP socket took a PUSH's message");
    assert_eq!(peer.received().handshakes, 0);
}

#[test]
fn a_cut_network_drops_packets_silently_until_it_is_restored() {
    skip_unless!(Namespace::available());
    let network = Namespace::new();
    let peer = network.peer(PeerOptions::default());
    assert!(peer.endpoint().contains(&network.there().to_string()));
    let push = Push::to(peer.endpoint());
    push.set(zmq_sys::ZMQ_SNDTIMEO as c_int, 5000);
    assert!(push.send(&[b"before"]));
    peer.wait_received(1, LIMIT);

    network.cut();
    assert!(push.send(&[b"lost for a while"]));
    std::thread::sleep(ms(200));
    assert_eq!(peer.received().messages, 1);
    let address = format!("{}:{}", network.there(), peer.port());
    let address = address.parse().expect("an address");
    let error = TcpStream::connect_timeout(&address, ms(300)).expect_err("no answer");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");

    network.restore();
    let totals = peer.wait_received(2, LIMIT);
    assert_eq!(totals.disconnected, 0, "the cut reset the connection");

    // A cut longer than the user timeout ends the connection.
    network.cut();
    assert!(push.send(&[b"never"]));
    push.set(zmq_sys::ZMQ_SNDTIMEO as c_int, 0);
    wait_until("the user timeout ends the connection", LIMIT, || !push.send(&[b"probe"]));
}

#[test]
fn two_networks_live_side_by_side_and_leave_nothing() {
    skip_unless!(Namespace::available());
    let devices = {
        let (one, two) = (Namespace::new(), Namespace::new());
        assert_ne!(one.there(), two.there());
        let wrong = two.wrong_peer("mute");
        TcpStream::connect((two.there(), wrong.port())).expect("a connection");
        [one.device().to_string(), two.device().to_string()]
    };
    for device in devices {
        let path = format!("/sys/class/net/{device}");
        assert!(!std::path::Path::new(&path).exists(), "{device} is left");
    }
}

#[test]
fn a_test_can_have_a_process_and_its_limits_to_itself() {
    let own = OwnProcess::new(test_name!()).descriptors(64).env("KVCONN_X", "y");
    if own.parent() {
        return;
    }
    assert_eq!(std::env::var("KVCONN_X").as_deref(), Ok("y"));
    let before = open_descriptors();
    let held: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    assert!(held.len() < 64);
    drop(held);
    let _closed = closed_port();
    let after = open_descriptors();
    assert_eq!(after.total(), before.total() + 1, "{before:?} {after:?}");
    assert_eq!(after.tcp, before.tcp + 1, "{before:?} {after:?}");
}

#[test]
fn a_test_can_have_a_network_to_itself() {
    skip_unless!(crate::common::own_process::network_available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let devices = std::fs::read_to_string("/proc/net/dev").expect("devices");
    assert!(!devices.contains("eth0"), "{devices}");
    let peer = Peer::any();
    assert!(Push::to(peer.endpoint()).send(&[b"x"]));
}

#[test]
fn an_own_process_that_fails_fails_its_test() {
    if std::env::var("KVCONN_OWN_PROCESS").is_ok() {
        if OwnProcess::new(test_name!()).parent() {
            return;
        }
        panic!("on purpose");
    }
    let child = OwnProcess::new(test_name!()).run().expect("the parent");
    assert!(!child.status.success());
    assert!(child.stderr.contains("on purpose"), "{child:?}");
}

#[test]
fn limits_are_kept_or_said() {
    within(ms(500), "nothing", || ());
    let failure = std::panic::catch_unwind(|| {
        within(ms(1), "a long nap", || std::thread::sleep(ms(10)));
    });
    assert!(failure.is_err());
    let failure = std::panic::catch_unwind(|| wait_until("never", ms(5), || false));
    assert!(failure.is_err());
    assert!(crate::common::resident_bytes() > 1 << 20);
    assert!(!crate::common::threads().is_empty());
}

#[test]
fn peers_die_with_the_test_even_when_stopped() {
    if std::env::var("KVCONN_OWN_PROCESS").is_err() {
        let child = OwnProcess::new(test_name!()).run().expect("the parent");
        let pid = child.stdout.split("pid=").nth(1).expect("a pid");
        let pid: u32 = pid.split_whitespace().next().expect("a pid").parse().expect("a number");
        wait_until("the orphan is gone", LIMIT, || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
        });
        return;
    }
    let peer = Peer::any();
    peer.stop();
    println!("pid={} ", peer.pid());
    // SAFETY: ends this process at once, without any destructor; that is the point.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}
