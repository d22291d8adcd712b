//! Look-ups: many that hang, and what a failed one says.

use std::net::Ipv4Addr;
use std::time::Duration;

use kvconn::error::Status;

use crate::common::engine::refused;
use crate::common::load::Stopwatch;
use crate::common::{Engine, OwnProcess, Peer, ms, names, own_process, wait_until};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);
/// As many look-ups as run at the same time.
const THREADS: usize = 64;

/// Field report R18: more names hang than there are threads for look-ups.
#[test]
fn names_in_the_hosts_file_are_not_behind_names_that_hang() {
    skip_unless!(own_process::network_available());
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let server = names::hosts_and_server("# a comment\n127.0.0.1\tknown.test Other.Test # more\n::1 six.test\n");
    let peer = Peer::any();
    let six = Peer::bind("tcp://[::1]:0");
    let engine = Engine::with(&[("connect_timeout_ms", "2000")]);
    let hanging: Vec<_> = (0..THREADS).map(|n| engine.lazy(&format!("tcp://hangs-{n}.test:5555"))).collect();
    wait_until("the name server is asked for all", LIMIT, || server.held() >= THREADS);
    for (name, peer) in [("known.test", &peer), ("other.test", &peer), ("six.test", &six)] {
        let watch = Stopwatch::start();
        let endpoint = format!("tcp://{name}:{}", peer.port());
        engine.send_to(&endpoint, &[b"x"], LIMIT).expect("the hosts file knows it");
        watch.at_most(ms(500), name);
    }
    peer.wait_received(2, LIMIT);
    six.wait_received(1, LIMIT);
    // A name that nothing knows waits for a thread, and says so.
    let error = refused(engine.connect("tcp://late.test:5555", LIMIT), Status::ConnectFailed);
    assert_eq!(error.os_errno, libc::ETIMEDOUT, "{error:?}");
    assert!(error.message.contains("resolver thread") && error.message.contains("64"), "{}", error.message);
    // One that has a thread says that nobody answered.
    let info = crate::common::engine::wait_ended(&hanging[0], LIMIT);
    assert!(!info.message.contains("resolver thread"), "{}", info.message);
    server.answer(Ipv4Addr::LOCALHOST);
}

#[test]
fn an_unknown_name_says_that_there_is_none() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    names::only_hosts("127.0.0.1 localhost\n");
    let error = refused(Engine::new().connect("tcp://other.test:5555", LIMIT), Status::ConnectFailed);
    assert_eq!(error.os_errno, libc::ENOENT, "{error:?}");
}

#[test]
fn a_name_server_that_is_not_there_is_a_temporary_failure() {
    skip_unless!(own_process::network_available());
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    names::hosts_and_absent_server("127.0.0.1 localhost\n");
    let error = refused(Engine::new().connect("tcp://peer.test:5555", LIMIT), Status::ConnectFailed);
    assert_eq!(error.os_errno, libc::EAGAIN, "{error:?}");
}
