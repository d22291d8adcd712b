//! Which endpoints there are, and what every call says to a text that is none.

use std::time::Duration;

use kvconn::error::Status;

use crate::common::engine::{options, refused, send};
use crate::common::load::{Stopwatch, within};
use crate::common::{Engine, OwnProcess, Peer, closed_port, ms, names, own_process};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);

/// A message arrives at this peer by every way of connecting, without a hint of ours.
fn delivers(peer: &Peer, endpoint: &str) {
    let engine = Engine::new();
    engine.send_to(endpoint, &[b"by send_to"], LIMIT).expect("sent");
    let conn = engine.ready(endpoint);
    assert_eq!(conn.endpoint().as_str(), endpoint);
    send(&conn, &[b"two", b"frames"], LIMIT).expect("sent");
    let totals = peer.wait_received(2, LIMIT);
    assert_eq!((totals.frames, totals.accepted), (3, 1));
}

/// Scenario 18, the first half.
#[test]
fn ipv6_loopback_works_without_a_hint() {
    let peer = Peer::bind("tcp://[::1]:0");
    delivers(&peer, &format!("tcp://[::1]:{}", peer.port()));
}

#[test]
fn ipv4_works_where_ipv6_is_switched_off() {
    skip_unless!(own_process::network_available());
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    for interface in ["all", "default", "lo"] {
        let switch = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        std::fs::write(switch, "1").expect("switching IPv6 off in a network of one's own");
    }
    names::only_hosts("::1 peer.test\n127.0.0.1 peer.test\n");
    let peer = Peer::any();
    delivers(&peer, &format!("tcp://127.0.0.1:{}", peer.port()));
    let engine = Engine::new();
    engine.send_to(&format!("tcp://peer.test:{}", peer.port()), &[b"by name"], LIMIT).expect("sent");
    peer.wait_received(3, LIMIT);
    let ipv6 = format!("tcp://[::1]:{}", peer.port());
    within(ms(1000), "a dial of IPv6", || refused(engine.connect(&ipv6, LIMIT), Status::ConnectFailed));
}

#[test]
fn ipc_works_by_path_and_by_abstract_name() {
    let directory = std::env::temp_dir().join(format!("kvconn-ipc-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = format!("ipc://{}/rank-0", directory.display());
    let name = format!("ipc://@kvconn-{}", std::process::id());
    for endpoint in [&path, &name] {
        let mut peer = Peer::bind(endpoint);
        delivers(&peer, endpoint);

        let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
        let conn = engine.ready(endpoint);
        peer.kill();
        crate::common::engine::wait_ended(&conn, LIMIT);
        assert_eq!(conn.info().status, Status::PeerLost);
        std::thread::sleep(ms(5));
        within(ms(1000), "a refused dial", || refused(engine.connect(endpoint, LIMIT), Status::ConnectFailed));
        peer.restart();
        std::thread::sleep(ms(5));
        engine.send_to(endpoint, &[b"again"], LIMIT).expect("redialled");
        peer.wait_received(1, LIMIT);
        engine.disconnect_endpoint(endpoint).unwrap();
        refused(engine.send_to(endpoint, &[b"x"], LIMIT), Status::Disconnected);
    }
    std::fs::remove_dir_all(&directory).expect("the directory");
}

#[test]
fn an_ipc_path_where_nothing_listens_is_refused_at_once_and_the_errno_says_why() {
    let engine = Engine::new();
    // A file of a socket whose listener is gone.
    let left = std::env::temp_dir().join(format!("kvconn-left-{}", std::process::id()));
    drop(std::os::unix::net::UnixListener::bind(&left).expect("a listener"));
    for (path, errno) in [
        ("/nonexistent/kvconn/rank-0", libc::ENOENT),
        ("/dev/null/rank-0", libc::ENOTDIR),
        (left.to_str().expect("plain text"), libc::ECONNREFUSED),
        ("@kvconn-nobody", libc::ECONNREFUSED),
    ] {
        let dial = || refused(engine.connect(&format!("ipc://{path}"), LIMIT), Status::ConnectFailed);
        let error = within(ms(1000), "a refused dial", dial);
        assert_eq!(error.os_errno, errno, "{path}: {error:?}");
    }
    std::fs::remove_file(&left).expect("the file");
}

/// Scenario 18, the second half, and more of the kind. Each call refuses it, says why, and dials nothing.
#[test]
fn what_is_no_endpoint_is_invalid_at_once_in_every_call_and_the_text_says_why() {
    let long = format!("tcp://{}.example:5555", "a".repeat(400));
    let long_path = format!("ipc:///{}", "a".repeat(120));
    #[rustfmt::skip]
    let refusals = [
        ("tcp://0.0.0.0:5555", "listen"), ("tcp://[::]:5555", "listen"), ("tcp://*:5555", "listen"),
        ("tcp://127.0.0.1:0", "port 0"), ("tcp://127.0.0.1:*", "port"), ("tcp://127.0.0.1:65536", "65535"),
        ("tcp://127.0.0.1:99999", "65535"), ("tcp://127.0.0.1", "port is missing"),
        ("tcp://127.0.0.1:", "port is empty"),
        ("tcp://127.0.0.1:-1", "decimal"), ("tcp://127.0.0.1:0x50", "decimal"), ("tcp://127.0.0.1:080", "decimal"),
        ("tcp://::1:5555", "brackets"), ("tcp://fd00::1:5555", "brackets"), ("tcp://[::1:5555", "bracket"),
        ("tcp://[fe80::1]:5555", "zone"), ("tcp://[fe80::1%nosuch0]:5555", "interface"),
        ("tcp://127.0.0.1 :5555", "blank"), ("tcp://127.0.0.1:5555 ", "blank"), (" tcp://127.0.0.1:5555", "scheme"),
        ("tcp://127.0.0.1:5555\n", "control"), ("tcp://127.0.0.1:\u{0}5555", "control"),
        ("tcp://127.1:5555", "IPv4"), ("tcp://1.2.3.256:5555", "IPv4"), ("tcp://2130706433:5555", "IPv4"),
        ("tcp://239.0.0.1:5555", "multicast"), ("tcp://:5555", "host is missing"), ("tcp://", ""),
        ("tcp://lo;127.0.0.1:5555", "source"), ("tcp://127.0.0.1:5555/path", "path"), ("tcp://user@host:5555", "user"),
        ("tcp://münchen:5555", "xn--"), ("tcp://a..b:5555", "label"), ("tcp://-a:5555", "edge"),
        ("TCP://127.0.0.1:5555", "lower case"), ("127.0.0.1:5555", "scheme"), ("udp://127.0.0.1:5555", "scheme"),
        ("inproc://x", "scheme"), ("", "scheme"), ("ipc://", "path"), ("ipc://@", "name"), ("ipc://*", "listen"),
        (long.as_str(), "bytes long"), (long_path.as_str(), "107"),
    ];
    let engine = Engine::new();
    let (node, _) = engine.node_open("node").unwrap();
    let port = closed_port();
    let (fine, retry) = (port.endpoint(), options(&[("connect_retry", "1")]));
    for (text, why) in refusals {
        let watch = Stopwatch::start();
        let wait = kvconn::manager::Timeout::After(LIMIT);
        let errors = [
            refused(engine.connect(text, LIMIT), Status::Invalid),
            refused(engine.manager().connect(text, Some(&retry), wait), Status::Invalid),
            refused(engine.send_to(text, &[b"x"], LIMIT), Status::Invalid),
            refused(engine.disconnect_endpoint(text), Status::Invalid),
            refused(engine.find(text), Status::Invalid),
            refused(engine.node_add_endpoints(node, &[&fine, text], None), Status::Invalid),
            refused(engine.node_remove_endpoints(node, &[&fine, text]), Status::Invalid),
        ];
        watch.at_most(ms(100), text);
        for error in errors {
            assert!(error.message.contains(why), "{text:?} is refused without a word on {why}: {}", error.message);
            assert!(error.message.len() < 256 && error.endpoint.len() < 264, "{text:?}: {error:?}");
        }
    }
    assert_eq!(engine.node_info(node).unwrap().endpoints, 0, "all or none");
    assert!(engine.connections().is_empty());
    assert!(engine.events().is_empty());
}

/// What reaches a name that has these addresses: READY by one call that does not retry.
fn reached_in_one_dial(hosts: &str, bind: &str) {
    names::only_hosts(hosts);
    let peer = Peer::bind(bind);
    let engine = Engine::new();
    let endpoint = format!("tcp://LocalHost:{}", peer.port());
    let id = within(ms(1000), "a dial", || engine.connect(&endpoint, LIMIT).expect("READY in one dial"));
    assert_eq!(engine.connections(), [id]);
    let conn = crate::common::engine::connection(id);
    assert_eq!(conn.endpoint().as_str(), format!("tcp://localhost:{}", peer.port()));
    send(&conn, &[b"x"], LIMIT).expect("sent");
    let totals = peer.wait_received(1, LIMIT);
    assert_eq!((totals.messages, totals.handshakes), (1, 1));
    let events: Vec<_> = engine.events().into_iter().map(|event| event.kind).collect();
    assert_eq!(events, [kvconn::events::EventKind::Ready]);
}

/// Scenario 42.
#[test]
fn a_name_whose_first_address_is_ipv6_reaches_a_peer_on_ipv4() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    reached_in_one_dial("::1 localhost\n127.0.0.1 localhost\n", "tcp://127.0.0.1:0");
}

/// Scenario 42, the other way round.
#[test]
fn a_name_whose_first_address_is_ipv4_reaches_a_peer_on_ipv6() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    skip_unless!(names::prefer_ipv4());
    reached_in_one_dial("127.0.0.1 localhost\n::1 localhost\n", "tcp://[::1]:0");
}

#[test]
fn a_name_reaches_a_peer_on_the_last_of_its_addresses() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let hosts: String = (2..=9).map(|last| format!("127.0.0.{last} localhost\n")).collect();
    reached_in_one_dial(&hosts, "tcp://127.0.0.9:0");
}

#[test]
fn a_name_and_its_address_are_two_endpoints() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    names::only_hosts("127.0.0.1 localhost\n");
    let peer = Peer::any();
    let engine = Engine::new();
    let by_address = engine.ready(peer.endpoint());
    let by_name = engine.ready(&format!("tcp://localhost:{}", peer.port()));
    assert_ne!(by_address.id(), by_name.id());
    engine.disconnect_endpoint(peer.endpoint()).unwrap();
    send(&by_name, &[b"x"], LIMIT).expect("the other goes on");
    assert_eq!(peer.wait_received(1, LIMIT).accepted, 2);
}
