//! A failure can be read in the log and in the description, also afterwards: R22.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::engine::{after, canonical};
use crate::common::{Engine, OwnProcess, Peer, ms, wait_until};
use crate::test_name;
use kvconn::error::Status;

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_loss_is_told_with_its_counts_in_log_and_description() {
    let inherited = std::env::var("KVCONN_FAULTS_LOG").map(PathBuf::from);
    let path =
        inherited.unwrap_or_else(|_| std::env::temp_dir().join(format!("kvconn-faults-{}-losses", std::process::id())));
    let text = path.display().to_string();
    let own = OwnProcess::new(test_name!()).env("KVCONN_FAULTS_LOG", &text).env("KVCONN_LOG", &format!("info:{text}"));
    if own.parent() {
        return;
    }
    let (engine, peer, other) = (Engine::new(), Peer::any(), Peer::any());
    let node = engine.node("prefill-3", &[other.endpoint()]);
    let conn = engine.ready(peer.endpoint());
    engine.send(&conn, &[b"first"], ms(5000)).unwrap();
    conn.flush(1, after(ms(5000))).0.unwrap();
    // Of what follows the stopped peer's kernel takes some; the rest is lost with it.
    peer.stop();
    let accepted = 1 + engine.fill(&conn, &[7; 10_000]);
    peer.kill();
    wait_until("the loss is seen", LONG, || conn.info().state == kvconn::connection::ConnectionState::Ended);
    let acknowledged = conn.info().acknowledged.expect("TCP on this host tells");
    assert!((1..accepted).contains(&acknowledged), "{acknowledged} of {accepted}");

    let lost = engine.ready(other.endpoint());
    engine.send(&lost, &[b"second"], ms(5000)).unwrap();
    for request in 1..=3 {
        engine.node_track_request(node, request).unwrap();
    }
    engine.handle_failure(node, Some("no heartbeat")).unwrap();

    let peer_lost = format!("PEER_LOST, connection {} to {}", conn.id(), canonical(peer.endpoint()));
    let counts = format!(
        "{accepted} accepted, {acknowledged} acknowledged, {} unacknowledged, ended by ",
        accepted - acknowledged
    );
    let of_node = format!("NODE_FAILED, connection {} to {}", lost.id(), canonical(other.endpoint()));
    let node_failed = format!("NODE_FAILED, node \"prefill-3\" (life {node})");
    let line = |text: &str, begin: &str| text.lines().find(|line| line.contains(begin)).map(str::to_owned);
    wait_until("the log tells it all", LONG, || {
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        line(&log, &node_failed).is_some() && line(&log, &of_node).is_some()
    });
    for text in [std::fs::read_to_string(&path).unwrap(), engine.describe()] {
        let find = |begin: &str| line(&text, begin).unwrap_or_else(|| panic!("no {begin:?} in\n{text}"));
        assert!(find(&peer_lost).contains(&counts), "{text}");
        assert!(find(&of_node).contains("1 accepted, "), "{text}");
        let told = find(&node_failed);
        assert!(told.contains("3 requests failed") && told.contains("no heartbeat"), "{text}");
    }
    std::fs::remove_file(&path).unwrap();
}

/// A dead pipe has no room, but a send must not call that "no room" or "no progress": the queue is never full.
#[test]
fn a_send_without_patience_says_at_once_that_the_peer_is_gone() {
    let engine = Engine::with(&[("send_hwm", "1000000"), ("backoff_ms", "1"), ("backoff_max_ms", "1")]);
    for round in 0..60 {
        let peer = Peer::any();
        let conn = engine.ready(peer.endpoint());
        let sender = {
            let (conn, timeout) = (conn.clone(), ms(round % 2));
            std::thread::spawn(move || {
                loop {
                    if let Err(error) = crate::common::engine::send(&conn, &[b"0123456789"], timeout) {
                        break error;
                    }
                }
            })
        };
        wait_until("it sends", LONG, || conn.info().accepted > 100);
        peer.kill();
        let error = sender.join().unwrap();
        assert_eq!(error.status, Status::PeerLost, "round {round}: {}", error.message);
        let info = conn.info();
        assert_eq!((info.status, info.os_errno), (Status::PeerLost, error.os_errno), "{}", info.message);
        assert_eq!(info.message, error.message);
    }
}

/// The description keeps the last losses and not all of them, and a node with many endpoints does not push out the
/// others.
#[test]
fn the_description_keeps_the_last_losses() {
    let engine = Engine::new();
    let peers: Vec<Peer> = (0..20).map(|_| Peer::any()).collect();
    let conns: Vec<_> = peers.iter().map(|peer| engine.ready(peer.endpoint())).collect();
    for (peer, conn) in peers.iter().zip(&conns) {
        peer.kill();
        wait_until("the loss is seen", LONG, || conn.info().state == kvconn::connection::ConnectionState::Ended);
    }
    let text = engine.describe();
    let told: Vec<_> = text.lines().filter(|line| line.contains("PEER_LOST, connection")).collect();
    assert_eq!(told.len(), 16, "{text}");
    let last = format!("connection {} ", conns.last().unwrap().id());
    assert!(told[0].contains(&last), "the newest is first: {text}");
}
