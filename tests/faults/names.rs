//! Look-ups: many that hang, and what a failed one says.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use kvconn::connection::Connection;
use kvconn::error::Status;

use crate::common::engine::{refused, wait_ended};
use crate::common::load::Stopwatch;
use crate::common::names::NameServer;
use crate::common::{Engine, OwnProcess, Peer, ms, names, own_process, wait_until};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);
/// As many look-ups as run at the same time.
const THREADS: usize = 64;

/// A name server that answers nothing but names that begin with "known".
fn server_that_knows_some() -> NameServer {
    let server = names::hosts_and_server("127.0.0.1\tlocalhost\n");
    server.answer_names_that_begin_with("known", Ipv4Addr::LOCALHOST);
    server
}

/// Dials names that nobody answers.
fn hang(engine: &Engine, count: usize) -> Vec<Arc<Connection>> {
    (0..count).map(|n| engine.lazy(&format!("tcp://hangs-{n}.test:5555"))).collect()
}

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
    let hanging = hang(&engine, THREADS);
    wait_until("the name server is asked for all", LIMIT, || server.held() >= THREADS);
    for (name, peer) in [("known.test", &peer), ("other.test", &peer), ("six.test", &six)] {
        let watch = Stopwatch::start();
        let endpoint = format!("tcp://{name}:{}", peer.port());
        engine.send_to(&endpoint, &[b"x"], LIMIT).expect("the hosts file knows it");
        watch.at_most(ms(500), name);
    }
    peer.wait_received(2, LIMIT);
    six.wait_received(1, LIMIT);
    // A name that only the name server knows gets a thread, and nobody answers it either.
    let error = refused(engine.connect("tcp://late.test:5555", LIMIT), Status::ConnectFailed);
    assert_eq!(error.os_errno, libc::ETIMEDOUT, "{error:?}");
    assert!(!error.message.contains("resolver thread"), "{}", error.message);
    // One that has a thread says that nobody answered.
    let info = wait_ended(&hanging[0], LIMIT);
    assert!(!info.message.contains("resolver thread"), "{}", info.message);
    server.answer(Ipv4Addr::LOCALHOST);
}

/// Field report R42.
#[test]
fn a_name_that_the_server_knows_is_not_behind_names_that_hang() {
    skip_unless!(own_process::network_available());
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let server = server_that_knows_some();
    let peer = Peer::any();
    let engine = Engine::with(&[("connect_timeout_ms", "3000")]);
    let _hanging = hang(&engine, THREADS);
    wait_until("the name server is asked for all", LIMIT, || server.held() >= THREADS);
    for round in 0..3 {
        let watch = Stopwatch::start();
        let endpoint = format!("tcp://known-{round}.test:{}", peer.port());
        engine.send_to(&endpoint, &[b"x"], LIMIT).expect("the name server knows it");
        watch.at_most(ms(1000), "a name that the server knows");
    }
    peer.wait_received(3, LIMIT);
    server.answer(Ipv4Addr::LOCALHOST);
}

/// More hang than there are threads, those that hang included, and for longer than anybody waits for them.
#[test]
fn names_that_nobody_waits_for_any_more_keep_no_thread_from_others() {
    skip_unless!(own_process::network_available());
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let server = server_that_knows_some();
    let peer = Peer::any();
    let engine = Engine::with(&[("connect_timeout_ms", "1000")]);
    let endpoint = format!("tcp://known.test:{}", peer.port());
    engine.send_to(&endpoint, &[b"x"], LIMIT).expect("the name server knows it");
    engine.disconnect_endpoint(&endpoint).expect("known");
    let hanging = hang(&engine, 10 * THREADS);
    for conn in &hanging {
        wait_ended(conn, LIMIT);
    }
    let watch = Stopwatch::start();
    engine.connect(&endpoint, LIMIT).expect("the name server knows it");
    watch.at_most(ms(1000), "a name that has answered before");
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
