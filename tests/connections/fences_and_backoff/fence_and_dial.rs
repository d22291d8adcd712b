//! A fence that is set while the endpoint is being dialled: every waiting call is released, and the dial has no effect.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvconn::connection::ConnectionState;
use kvconn::error::Status;
use kvconn::events::EventKind;

use crate::common::engine::{refused, send, wait_ended, wait_waiting};
use crate::common::load::{Stopwatch, within};
use crate::common::{Engine, OwnProcess, Peer, ms, names, own_process, tcp_traffic, wait_until};
use crate::{skip_unless, test_name};

const LIMIT: Duration = Duration::from_secs(10);
const AT_ONCE: Duration = ms(100);

/// Three senders and a connect wait for a dial that hangs; `fence` is set.
fn every_waiting_call_is_released(fence: impl Fn(&Engine, &Peer), status: Status) {
    let peer = Peer::any();
    peer.stop();
    let engine = Engine::with(&[("handshake_timeout_ms", "20000")]);
    engine.node("node", &[peer.endpoint()]);
    let conn = engine.lazy(peer.endpoint());
    std::thread::scope(|scope| {
        let by_id: Vec<_> = (0..2).map(|_| scope.spawn(|| send(&conn, &[b"x"], 2 * LIMIT))).collect();
        let by_name = scope.spawn(|| engine.send_to(peer.endpoint(), &[b"x"], 2 * LIMIT));
        let connecting = scope.spawn(|| engine.connect(peer.endpoint(), 2 * LIMIT));
        wait_waiting(&conn, 3, LIMIT);
        std::thread::sleep(ms(20)); // for the connect, whose waiting nothing shows
        within(AT_ONCE, "setting the fence", || fence(&engine, &peer));
        let set = Stopwatch::start();
        for send in by_id {
            refused(send.join().unwrap(), status);
        }
        refused(by_name.join().unwrap(), status);
        refused(connecting.join().unwrap(), status);
        set.at_most(AT_ONCE, "the release of the last");
    });
    let over = conn.info();
    assert_eq!((over.state, over.status, over.accepted), (ConnectionState::Ended, status, 0));
    assert!(engine.connections().is_empty());

    peer.resume();
    peer.wait_for("the peer saw the end", LIMIT, |totals| totals.disconnected >= 1);
    refused(engine.send_to(peer.endpoint(), &[b"x"], LIMIT), status);
    let totals = peer.received();
    assert_eq!((totals.accepted, totals.messages), (1, 0));
    assert!(engine.events_of(EventKind::Ready).is_empty());
}

#[test]
fn a_disconnect_during_a_dial_releases_every_waiting_call_and_the_dial_has_no_effect() {
    let fence = |engine: &Engine, peer: &Peer| engine.disconnect_endpoint(peer.endpoint()).unwrap();
    every_waiting_call_is_released(fence, Status::Disconnected);
}

#[test]
fn a_failure_during_a_dial_releases_every_waiting_call_and_the_dial_has_no_effect() {
    let fence = |engine: &Engine, _: &Peer| {
        engine.handle_failure(engine.node_find("node").unwrap(), None).map(drop).unwrap();
    };
    every_waiting_call_is_released(fence, Status::NodeFailed);
}

#[test]
fn an_endpoint_fenced_while_its_name_is_looked_up_is_never_dialled() {
    skip_unless!(own_process::network_available());
    skip_unless!(names::available());
    if OwnProcess::new(test_name!()).network().parent() {
        return;
    }
    let server = names::hosts_and_server("");
    let peer = Peer::any();
    let engine = Engine::with(&[("connect_timeout_ms", "20000")]);
    let endpoint = format!("tcp://peer.test:{}", peer.port());
    let conn = engine.lazy(&endpoint);
    wait_until("the name server is asked", LIMIT, || server.held() > 0);
    engine.disconnect_endpoint(&endpoint).unwrap();
    assert_eq!(wait_ended(&conn, AT_ONCE).status, Status::Disconnected);
    let before = tcp_traffic();
    // A first question may be followed by a second, for the other kind of address.
    let until = Instant::now() + ms(500);
    while Instant::now() < until {
        server.answer(Ipv4Addr::LOCALHOST);
        std::thread::sleep(ms(1));
    }
    assert_eq!(tcp_traffic().dials, before.dials, "the answer came, and was dialled");

    // The name does work.
    let conn = engine.lazy(&endpoint);
    wait_until("the peer is READY", LIMIT, || {
        server.answer(Ipv4Addr::LOCALHOST);
        conn.info().state == ConnectionState::Ready
    });
}

#[test]
fn senders_do_not_outrun_a_fence() {
    let peer = Peer::any();
    let engine = Engine::with(&[("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    for round in 0..40 {
        // A dial that the last fence has ended may have to use up its step.
        wait_until("the fence is lifted", LIMIT, || match engine.connect(peer.endpoint(), LIMIT) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.status, Status::Backoff, "round {round}: {error:?}");
                false
            }
        });
        let fenced = AtomicBool::new(false);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        let late = fenced.load(Ordering::SeqCst);
                        let result = engine.send_to(peer.endpoint(), &[b"x"], LIMIT);
                        match result {
                            Ok(_) => assert!(!late, "round {round}: sent behind a fence"),
                            Err(error) => {
                                let expected = matches!(error.status, Status::Disconnected | Status::Backoff);
                                assert!(expected, "{error:?}");
                            }
                        }
                    }
                });
            }
            // A connection that ended, so that the senders are dialling when the fence comes.
            let conn = engine.find(peer.endpoint()).map(crate::common::engine::connection);
            if let (Ok(conn), true) = (conn, round % 2 == 0) {
                conn.disconnect().unwrap();
            }
            std::thread::sleep(Duration::from_micros(97 * (round % 10)));
            engine.disconnect_endpoint(peer.endpoint()).unwrap();
            fenced.store(true, Ordering::SeqCst);
            let left = engine.connections();
            std::thread::sleep(ms(5));
            let later = engine.connections();
            over.store(true, Ordering::SeqCst);
            assert!(left.is_empty() && later.is_empty(), "round {round}: {left:?}, then {later:?}");
        });
    }
    peer.wait_for("every connection is closed", LIMIT, |totals| totals.disconnected == totals.accepted);
}
