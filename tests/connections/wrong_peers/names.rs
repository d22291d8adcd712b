//! Names that do not resolve, or not soon.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use kvconn::error::Status;
use kvconn::events::EventKind;

use super::stream::undisturbed;
use crate::common::engine::refused;
use crate::common::load::{Stopwatch, within};
use crate::common::{Engine, OwnProcess, Peer, ms, names, own_process, tcp_traffic, wait_until};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);

/// Scenario 31: the server of this name answers in ten seconds.
#[test]
fn a_slow_name_ends_at_its_dials_deadline_and_disturbs_no_other_endpoint() {
    skip_unless!(own_process::network_available());
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let server = names::hosts_and_server("127.0.0.1 quick.test\n");
    let (peer, late) = (Peer::any(), Peer::any());
    let engine = Engine::with(&[("connect_timeout_ms", "1000"), ("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    let slow = format!("tcp://slow.test:{}", late.port());
    undisturbed(&engine, || {
        let watch = Stopwatch::start();
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                let result = engine.connect(&slow, LIMIT);
                watch.between(ms(995), ms(1100), "the dial");
                result
            });
            let sending = scope.spawn(|| engine.send_to("tcp://another.slow.test:5555", &[b"x"], LIMIT));
            wait_until("the name server is asked", LIMIT, || server.held() >= 2);
            // Other names and addresses do not wait for it.
            let quick = format!("tcp://quick.test:{}", peer.port());
            within(ms(500), "a quick name", || engine.connect(&quick, LIMIT).expect("READY"));
            within(ms(500), "an address", || engine.ready(peer.endpoint()));

            let error = refused(connecting.join().unwrap(), Status::ConnectFailed);
            assert_eq!(error.os_errno, libc::ETIMEDOUT);
            assert!(error.message.contains("name") && error.message.contains("connect_timeout_ms"), "{error:?}");
            refused(sending.join().unwrap(), Status::ConnectFailed);
        });
    });
    // The answer comes after all: nothing is dialled for it, and the next dial works.
    let before = tcp_traffic();
    let until = Instant::now() + ms(300);
    while Instant::now() < until {
        server.answer(Ipv4Addr::LOCALHOST);
        std::thread::sleep(ms(1));
    }
    assert_eq!(tcp_traffic().dials, before.dials);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| engine.send_to(&slow, &[b"x"], LIMIT));
        while !sending.is_finished() {
            server.answer(Ipv4Addr::LOCALHOST);
            std::thread::sleep(ms(1));
        }
        sending.join().unwrap().expect("the name resolves now");
    });
    late.wait_received(1, LIMIT);
}

#[test]
fn a_name_that_does_not_exist_fails_at_once_and_is_asked_once_a_step() {
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    names::only_hosts("127.0.0.1 localhost\n");
    let engine = Engine::with(&[("backoff_ms", "300"), ("backoff_max_ms", "300")]);
    let endpoint = "tcp://no-such-host.test:5555";
    let failed = within(ms(1000), "an unknown name", || {
        refused(engine.send_to(endpoint, &[b"x"], LIMIT), Status::ConnectFailed)
    });
    assert_eq!(failed.endpoint, endpoint);
    assert!(failed.message.to_lowercase().contains("name"), "{}", failed.message);
    let begun = Instant::now();
    let mut looked_up = 0;
    while begun.elapsed() < ms(1000) {
        let error = engine.send_to(endpoint, &[b"x"], LIMIT).expect_err("there is no such host");
        looked_up += u32::from(error.status != Status::Backoff);
    }
    assert!((1..=4).contains(&looked_up), "looked up {looked_up} times in a second, with steps of 300 ms");
    assert_eq!(engine.events_of(EventKind::ConnectFailed).len() as u32, looked_up + 1);
}

/// A name is looked up for each dial: the peer may have moved.
#[test]
fn a_name_that_means_another_address_now_is_dialled_there() {
    skip_unless!(own_process::network_available());
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let server = names::hosts_and_server("");
    let old = Peer::any();
    let new = Peer::bind(&format!("tcp://127.0.0.9:{}", old.port()));
    let engine = Engine::new();
    let endpoint = format!("tcp://moving.test:{}", old.port());
    for (peer, address) in [(&old, Ipv4Addr::LOCALHOST), (&new, Ipv4Addr::new(127, 0, 0, 9))] {
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| engine.send_to(&endpoint, &[b"x"], LIMIT));
            while !sending.is_finished() {
                server.answer(address);
                std::thread::sleep(ms(1));
            }
            let (conn, _) = sending.join().unwrap().expect("sent");
            peer.wait_received(1, LIMIT);
            crate::common::engine::connection(conn).disconnect().unwrap();
        });
    }
    assert_eq!((old.received().messages, new.received().messages), (1, 1));
}
