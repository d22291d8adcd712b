//! Option node_loss: whether lost peers fail their node by themselves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::engine::{canonical, narrow_peer, options, own_address, refused, wait_ended, waiting_senders};
use crate::common::{Engine, Peer, closed_port, ms, wait_until};
use kvconn::connection::{Connection, ConnectionState};
use kvconn::error::Status;
use kvconn::events::EventKind;
use kvconn::ids::NodeId;
use kvconn::manager::nodes::Failure;

const LONG: Duration = Duration::from_secs(10);

/// A manager with this policy, that dials again at once.
fn engine(policy: &str) -> Engine {
    Engine::with(&[("node_loss", policy), ("backoff_ms", "1"), ("backoff_max_ms", "1")])
}

/// Two peers that find their port free when they start again.
fn restarting() -> [Peer; 2] {
    [0, 1].map(|_| Peer::bind(&format!("tcp://{}:0", own_address())))
}

#[track_caller]
fn take(engine: &Engine) -> Failure {
    let mut taken = None;
    wait_until("a failure report is there", LONG, || {
        taken = engine.take_failure();
        taken.is_some()
    });
    taken.expect("the wait ended with it")
}

/// Kills the peer and waits until its connection is over. A failure that follows from it has then happened, too.
#[track_caller]
fn kill(peer: &Peer, conn: &Arc<Connection>) {
    peer.kill();
    wait_ended(conn, LONG);
}

#[track_caller]
fn assert_lives(engine: &Engine, node: NodeId) {
    // The policy acts in the step that ends the connection, so a look behind that step is enough.
    assert_eq!(engine.node_info(node).expect("a node that is known").status, Status::Ok);
    assert!(engine.take_failure().is_none());
}

#[test]
fn with_report_a_loss_is_an_event_and_nothing_more() {
    let peers = [Peer::any(), Peer::any()];
    let engine = engine("report");
    let node = engine.node("n", &[peers[0].endpoint(), peers[1].endpoint()]);
    for peer in &peers {
        let conn = engine.ready(peer.endpoint());
        kill(peer, &conn);
        assert_eq!(conn.info().status, Status::PeerLost);
    }
    assert_lives(&engine, node);
    let kinds: Vec<_> = engine.events().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Ready, EventKind::PeerLost, EventKind::Ready, EventKind::PeerLost]);
}

/// What an earlier life lost is not in the report, nor what a disconnect ended.
#[test]
fn a_report_has_the_last_loss_of_its_own_life() {
    let (first, second) = (Peer::any(), Peer::any());
    let engine = engine("report");
    let both = [first.endpoint(), second.endpoint()];
    let old = engine.node("n", &both);
    let lost = engine.ready(first.endpoint());
    engine.ready(second.endpoint()).disconnect().expect("ended");
    kill(&first, &lost);
    let conns = |failure: &Failure| failure.endpoints.iter().map(|failed| failed.conn).collect::<Vec<_>>();
    let none = kvconn::ids::ConnId::NONE;
    assert_eq!(conns(&engine.handle_failure(old, None).expect("live")), [lost.id(), none]);
    let new = engine.node("n", &both);
    assert_eq!(conns(&engine.handle_failure(new, None).expect("live")), [none, none]);
}

#[test]
fn with_any_the_first_loss_fails_the_node() {
    let (lost, stuck) = (Peer::any(), narrow_peer(1));
    let engine = Engine::with(&[("node_loss", "any"), ("send_hwm", "4")]);
    let node = engine.node("prefill-0", &[lost.endpoint(), stuck.endpoint(), "tcp://127.0.0.1:9"]);
    let conns = [&lost, &stuck].map(|peer| engine.ready(peer.endpoint()));
    for request in [3, 1, 2] {
        engine.node_track_request(node, request).expect("live");
    }
    engine.send(&conns[0], &[b"arrives"], LONG).expect("sent");
    conns[0].flush(1, crate::common::engine::after(LONG)).0.expect("acknowledged");
    stuck.stop();
    let accepted = engine.fill(&conns[1], crate::common::engine::LARGE);
    let senders = waiting_senders(&conns[1], 3);
    let begun = Instant::now();
    kill(&lost, &conns[0]);
    // A sender that waits on another endpoint of the node returns at once.
    for result in senders.return_within(ms(500), begun) {
        refused(result, Status::NodeFailed);
    }
    let failure = take(&engine);
    assert_eq!((failure.node, &*failure.name, &failure.requests[..]), (node, "prefill-0", &[1, 2, 3][..]));
    for part in ["node_loss", &canonical(lost.endpoint())] {
        assert!(failure.reason.contains(part), "{part} is not in: {}", failure.reason);
    }
    let listed: Vec<_> = failure.endpoints.iter().map(|e| (e.endpoint.to_string(), e.conn, e.accepted)).collect();
    let none = kvconn::ids::ConnId::NONE;
    let expected = [
        // Over before the node was: the report still says which connection it was, and what became of its messages.
        (canonical(lost.endpoint()), conns[0].id(), 1),
        (canonical(stuck.endpoint()), conns[1].id(), accepted),
        ("tcp://127.0.0.1:9".into(), none, 0),
    ];
    assert_eq!(listed, expected);
    let acknowledged = [0, 2].map(|place| failure.endpoints[place].acknowledged);
    assert_eq!(acknowledged, [Some(1), Some(0)]);
    assert!(engine.take_failure().is_none());

    let statuses = conns.each_ref().map(|conn| conn.info().status);
    assert_eq!(statuses, [Status::PeerLost, Status::NodeFailed]);
    for endpoint in [lost.endpoint(), stuck.endpoint(), "tcp://127.0.0.1:9"] {
        refused(engine.send_to(endpoint, &[b"x"], ms(1000)), Status::NodeFailed);
    }
    // What led to it stands before it.
    let events: Vec<_> = engine.events().iter().map(|event| (event.kind, event.conn, event.node)).collect();
    let of_node = NodeId::NONE;
    let expected = [
        (EventKind::PeerLost, conns[0].id(), of_node),
        (EventKind::NodeFailed, conns[1].id(), of_node),
        (EventKind::NodeFailed, none, node),
    ];
    assert_eq!(events.into_iter().filter(|(kind, ..)| kind_ends(*kind)).collect::<Vec<_>>(), expected);
}

fn kind_ends(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Ready | EventKind::Stalled | EventKind::Recovered)
}

#[test]
fn with_all_the_last_loss_fails_the_node() {
    let peers = [Peer::any(), Peer::any(), Peer::any()];
    let engine = engine("all");
    let endpoints = peers.each_ref().map(|peer| peer.endpoint());
    let node = engine.node("n", &[endpoints[0], endpoints[1], endpoints[2], "tcp://127.0.0.1:9"]);
    let conns = endpoints.map(|endpoint| engine.ready(endpoint));
    for at in [1, 0] {
        kill(&peers[at], &conns[at]);
        assert_lives(&engine, node);
    }
    kill(&peers[2], &conns[2]);
    let failure = take(&engine);
    assert_eq!((failure.node, failure.endpoints.len()), (node, 4));
    refused(engine.node_track_request(node, 1), Status::NodeFailed);
}

#[test]
fn with_all_an_endpoint_that_is_ready_again_counts_as_not_lost() {
    let mut peers = restarting();
    let engine = engine("all");
    let node = engine.node("n", &[peers[0].endpoint(), peers[1].endpoint()]);
    let mut first = engine.ready(peers[0].endpoint());
    let second = engine.ready(peers[1].endpoint());
    for _ in 0..2 {
        kill(&peers[0], &first);
        peers[0].restart();
        std::thread::sleep(ms(3)); // longer than the backoff
        first = engine.ready(peers[0].endpoint());
    }
    kill(&peers[1], &second);
    assert_lives(&engine, node);
    kill(&peers[0], &first);
    assert_eq!(take(&engine).node, node);
}

#[test]
fn what_was_never_ready_or_is_not_the_nodes_any_more_does_not_count() {
    let (peer, removed, refusing) = (Peer::any(), Peer::any(), closed_port().endpoint());
    let engine = engine("any");
    let node = engine.node("n", &[peer.endpoint(), removed.endpoint(), &refusing]);
    refused(engine.connect(&refusing, ms(2000)), Status::ConnectFailed);
    assert_lives(&engine, node);
    let conn = engine.ready(removed.endpoint());
    engine.node_remove_endpoints(node, &[removed.endpoint()]).expect("live");
    kill(&removed, &conn);
    assert_lives(&engine, node);
    // Neither does what this process ended.
    let conn = engine.ready(peer.endpoint());
    conn.disconnect().expect("ended");
    let conn = engine.ready(peer.endpoint());
    engine.disconnect_endpoint(peer.endpoint()).expect("ended");
    kill(&peer, &conn);
    assert_lives(&engine, node);
}

#[test]
fn an_endpoint_that_was_ready_before_it_was_registered_counts() {
    for policy in ["any", "all"] {
        let peer = Peer::any();
        let engine = engine(policy);
        let conn = engine.ready(peer.endpoint());
        let node = engine.node("n", &[peer.endpoint()]);
        kill(&peer, &conn);
        assert_eq!(take(&engine).node, node, "{policy}");
    }
}

#[test]
fn every_owner_of_a_lost_endpoint_fails_with_its_own_report() {
    let peer = Peer::any();
    let engine = engine("any");
    let nodes = ["a", "b", "c"].map(|name| engine.node(name, &[peer.endpoint()]));
    let other = engine.node("other", &["tcp://127.0.0.1:9"]);
    for (at, node) in nodes.iter().enumerate() {
        engine.node_track_request(*node, at as u64).expect("live");
    }
    let conn = engine.ready(peer.endpoint());
    kill(&peer, &conn);
    let mut failures = [take(&engine), take(&engine), take(&engine)];
    failures.sort_by_key(|failure| failure.node);
    for (at, failure) in failures.iter().enumerate() {
        assert_eq!((failure.node, &failure.requests[..]), (nodes[at], &[at as u64][..]));
    }
    assert_lives(&engine, other);
    refused(engine.connect(peer.endpoint(), ms(1000)), Status::NodeFailed);
}

/// A new life begins with nothing seen: what its predecessor lost does not count against it.
#[test]
fn a_new_life_counts_its_own_losses_only() {
    let mut peers = restarting();
    let engine = engine("all");
    let endpoints = peers.each_ref().map(|peer| peer.endpoint().to_string());
    let names = endpoints.each_ref().map(String::as_str);
    let old = engine.node("n", &names);
    let conns = names.map(|endpoint| engine.ready(endpoint));
    kill(&peers[0], &conns[0]);
    drop(engine.handle_failure(old, None).expect("live"));
    peers[0].restart();
    let new = engine.node("n", &names);
    let conns = names.map(|endpoint| engine.ready(endpoint));
    kill(&peers[1], &conns[1]);
    assert_lives(&engine, new);
    assert_eq!(conns[0].info().state, ConnectionState::Ready);
    // The policy can be changed while the node lives.
    engine.configure(&options(&[("node_loss", "report")])).expect("a setting that can be changed");
    kill(&peers[0], &conns[0]);
    assert_lives(&engine, new);
}

/// What this process has ended, or evicted, is neither READY nor lost: it keeps no node alive.
#[test]
fn with_all_what_was_ended_from_here_keeps_no_node_alive() {
    let peers = [(); 4].map(|()| Peer::any());
    let engine = engine("all");
    let endpoints: Vec<&str> = peers.iter().map(Peer::endpoint).collect();
    let node = engine.node("n", &endpoints);
    let [first, second, third] = [0, 1, 2].map(|n| engine.ready(endpoints[n]));
    let idle = engine.ready_with(endpoints[3], &[("idle_timeout_ms", "1")]);
    assert_eq!(wait_ended(&idle, LONG).status, Status::Evicted);
    first.disconnect().unwrap();
    assert_lives(&engine, node);
    kill(&peers[1], &second);
    assert_lives(&engine, node);
    kill(&peers[2], &third);
    assert_eq!(take(&engine).node, node);
    // The last one that is READY is ended from here: that is no loss.
    let node = engine.node("m", &[endpoints[0], endpoints[3]]);
    let [first, fourth] = [0, 3].map(|n| engine.ready_with(endpoints[n], &[("idle_timeout_ms", "0")]));
    kill(&peers[0], &first);
    fourth.disconnect().unwrap();
    assert_lives(&engine, node);
}
