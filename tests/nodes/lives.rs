//! Lives of nodes: their names, what is remembered of them, their limits and their requests.

use std::time::Duration;

use crate::common::Engine;
use crate::common::engine::{refused, status_of};
use kvconn::error::Status;
use kvconn::ids::NodeId;
use kvconn::manager::nodes::NodeInfo;
use kvconn::process::Process;

const HERE: &str = "tcp://127.0.0.1:9";

fn info(engine: &Engine, node: NodeId) -> NodeInfo {
    engine.node_info(node).expect("a node that is known")
}

#[test]
fn a_name_is_1_to_255_bytes_without_nul_and_compared_exactly() {
    let engine = Engine::new();
    for bad in ["", "a\0b", "\0", &"x".repeat(256), &"é".repeat(128)] {
        let error = refused(engine.node_open(bad), Status::Invalid);
        assert!(error.message.contains("name of a node"), "{}", error.message);
        refused(engine.node_find(bad), Status::Invalid);
    }
    // One is the beginning of another; some differ only by case, by a blank, or in how a letter is composed.
    let long = "n".repeat(255);
    let two_bytes_each = "é".repeat(127);
    let names = [
        "10.0.0.1:899",
        "10.0.0.1:8998",
        "0",
        "a",
        "A",
        "a ",
        " a",
        "\u{e9}",
        "e\u{301}",
        "\n",
        "\u{1b}[31m",
        "prefill/0:%s",
        "节点-7",
        &long,
        &two_bytes_each,
    ];
    let nodes = names.map(|name| {
        let (node, created) = engine.node_open(name).unwrap_or_else(|error| panic!("{name:?}: {error:?}"));
        assert!(created, "{name:?} was there before it was opened");
        node
    });
    for (name, node) in names.iter().zip(nodes) {
        assert_eq!(engine.node_open(name).expect("open"), (node, false), "{name:?}");
        assert_eq!(engine.node_find(name).expect("open"), node, "{name:?}");
        assert_eq!(&*info(&engine, node).name, *name);
    }
    // Each fails alone.
    for (at, node) in nodes.into_iter().enumerate() {
        let failure = engine.handle_failure(node, Some("x")).expect("a live node");
        assert_eq!((&*failure.name, failure.node), (names[at], node));
        refused(engine.node_find(names[at]), Status::NotFound);
        for name in &names[at + 1..] {
            engine.node_find(name).unwrap_or_else(|error| panic!("{:?} took {name:?} along: {error:?}", names[at]));
        }
    }
}

#[test]
fn only_open_begins_a_life_and_each_life_has_an_id_of_its_own() {
    let engine = Engine::new();
    refused(engine.node_find("prefill"), Status::NotFound);
    let mut lives = Vec::new();
    for _ in 0..5 {
        let (node, created) = engine.node_open("prefill").expect("open");
        assert!(created && !lives.contains(&node), "{node} after {lives:?}");
        lives.push(node);
        engine.handle_failure(node, None).expect("a live node");
        refused(engine.node_find("prefill"), Status::NotFound);
    }
    for node in [NodeId::NONE, NodeId(u64::MAX), NodeId(engine.id().0)] {
        refused(engine.node_info(node), Status::Stale);
        refused(engine.handle_failure(node, None), Status::Stale);
        refused(engine.node_add_endpoints(node, &[HERE], None), Status::Stale);
        refused(engine.node_track_request(node, 1), Status::Stale);
    }
}

/// Guarantee 6, and scenario 38: a probe that began in the first life ends in the second.
#[test]
fn calls_on_a_life_that_is_over_say_why_and_change_nothing() {
    let engine = Engine::with(&[("max_failures", "2")]);
    let old = engine.node("prefill-0", &[HERE]);
    engine.node_track_request(old, 1).expect("a live node");
    assert!(engine.node_report_health(old, false, Some("slow")).expect("a live node").is_none());
    let failure = engine.handle_failure(old, Some("probe\ntimed out")).expect("a live node");
    assert_eq!(&failure.requests[..], [1]);

    let new = engine.node("prefill-0", &[HERE]);
    engine.node_track_request(new, 1).expect("a live node");
    let before = info(&engine, new);
    let errors = [
        refused(engine.node_report_health(old, false, Some("late")), Status::NodeFailed),
        refused(engine.node_report_health(old, false, Some("late")), Status::NodeFailed),
        refused(engine.node_report_health(old, true, None), Status::NodeFailed),
        refused(engine.handle_failure(old, Some("late")), Status::NodeFailed),
        refused(engine.node_add_endpoints(old, &["tcp://127.0.0.1:10"], None), Status::NodeFailed),
        refused(engine.node_remove_endpoints(old, &[HERE]), Status::NodeFailed),
        refused(engine.node_track_request(old, 2), Status::NodeFailed),
        refused(engine.node_untrack_request(old, 1), Status::NodeFailed),
    ];
    for error in errors {
        for part in ["prefill-0", &format!("life {old}"), "probe timed out", " s ago", "kvconn_node_open"] {
            assert!(error.message.contains(part), "{part:?} is not in: {}", error.message);
        }
    }
    let after = info(&engine, new);
    assert_eq!((after.status, after.endpoints, after.requests), (Status::Ok, 1, 1));
    assert_eq!((before.failures_in_row, after.failures_in_row), (0, 0));
    assert_eq!(engine.node_find("prefill-0").expect("the new life"), new);
    // The late reports of the old life do not count for the new one.
    assert!(engine.node_report_health(new, false, None).expect("a live node").is_none());

    let over = info(&engine, old);
    assert_eq!((over.status, over.endpoints, over.requests), (Status::NodeFailed, 0, 0));
    assert_eq!((&*over.name, over.node), ("prefill-0", old));
    assert!(over.reason.contains("probe timed out"), "{}", over.reason);
}

#[test]
fn unhealthy_reports_in_a_row_fail_a_node_and_a_healthy_one_begins_the_count_anew() {
    let engine = Engine::with(&[("max_failures", "3")]);
    let node = engine.node("n", &[HERE]);
    let report = |healthy| engine.node_report_health(node, healthy, Some("no answer")).expect("a live node");
    for healthy in [false, false, true, false, false] {
        assert!(report(healthy).is_none());
    }
    assert_eq!(info(&engine, node).failures_in_row, 2);
    let failure = report(false).expect("the third in a row");
    assert_eq!((failure.node, failure.endpoints.len()), (node, 1));
    for part in ["3", "no answer"] {
        assert!(failure.reason.contains(part), "{part} is not in: {}", failure.reason);
    }
    refused(engine.node_report_health(node, true, None), Status::NodeFailed);
    // The report was returned by the call that caused it, and by no other.
    assert!(engine.take_failure().is_none());
}

#[test]
fn a_live_node_tells_why_it_was_last_called_unhealthy() {
    let engine = Engine::with(&[("max_failures", "9")]);
    let node = engine.node("n", &[HERE]);
    let report = |healthy, reason| assert!(engine.node_report_health(node, healthy, reason).expect("live").is_none());
    assert_eq!(info(&engine, node).reason, "");
    report(false, Some("no answer\n"));
    assert_eq!((info(&engine, node).status, info(&engine, node).reason.as_str()), (Status::Ok, "no answer "));
    report(false, Some("status 503"));
    assert_eq!(info(&engine, node).reason, "status 503");
    report(false, None);
    assert_eq!(info(&engine, node).reason, "no reason given");
    report(true, Some("fine"));
    assert_eq!((info(&engine, node).failures_in_row, info(&engine, node).reason.as_str()), (0, ""));
}

#[test]
fn the_newest_4096_lives_that_are_over_are_remembered() {
    let engine = Engine::new();
    let lives: Vec<NodeId> = (0..4096 + 10)
        .map(|_| {
            let (node, _) = engine.node_open("flapping").expect("open");
            drop(engine.handle_failure(node, Some("x")).expect("a live node"));
            node
        })
        .collect();
    for node in &lives[..10] {
        refused(engine.node_info(*node), Status::Stale);
        refused(engine.handle_failure(*node, None), Status::Stale);
    }
    for node in &lives[10..] {
        assert_eq!(info(&engine, *node).status, Status::NodeFailed);
    }
    refused(engine.handle_failure(lives[10], None), Status::NodeFailed);
    let process = Process::current().expect("a process");
    assert_eq!(process.node(lives[10]).expect("remembered").id(), engine.id());
    assert_eq!(status_of(&process.node(lives[9])), Status::Stale);
}

#[test]
fn max_nodes_counts_live_nodes_and_reports_that_were_not_taken() {
    let engine = Engine::with(&[("max_nodes", "3")]);
    let nodes = ["a", "b", "c"].map(|name| engine.node(name, &[]));
    let error = refused(engine.node_open("d"), Status::Limit);
    for part in ["max_nodes is 3", "3 nodes"] {
        assert!(error.message.contains(part), "{part} is not in: {}", error.message);
    }
    refused(engine.node_find("d"), Status::NotFound);
    assert_eq!(engine.node_open("b").expect("a live one is no new one"), (nodes[1], false));

    let failure = engine.handle_failure(nodes[0], None).expect("a live node");
    engine.leave_failure(failure);
    let error = refused(engine.node_open("d"), Status::Limit);
    for part in ["2 nodes", "1 failure reports", "kvconn_take_failure"] {
        assert!(error.message.contains(part), "{part} is not in: {}", error.message);
    }
    engine.take_failure().expect("the report that was left");
    engine.node_open("d").expect("there is room again");
    // A report that its caller took does not count.
    drop(engine.handle_failure(nodes[1], None).expect("a live node"));
    engine.node_open("e").expect("there is room again");

    engine.configure(&crate::common::engine::options(&[("max_nodes", "4")])).expect("a setting that can be changed");
    engine.node_open("f").expect("the limit was raised");
    refused(engine.node_open("g"), Status::Limit);
}

#[test]
fn max_requests_counts_those_of_reports_that_were_not_taken() {
    let engine = Engine::with(&[("max_requests", "10")]);
    let (a, b) = (engine.node("a", &[]), engine.node("b", &[]));
    for request in 0..6 {
        engine.node_track_request(a, request).expect("below the limit");
    }
    for request in 0..4 {
        engine.node_track_request(b, request).expect("below the limit");
    }
    for (node, request) in [(a, 6), (b, 4)] {
        let error = refused(engine.node_track_request(node, request), Status::Limit);
        assert!(error.message.contains("max_requests is 10"), "{}", error.message);
    }
    engine.node_track_request(b, 3).expect("tracking again is the same as once");
    assert!(engine.node_untrack_request(b, 3).expect("a live node"));
    engine.node_track_request(b, 4).expect("there is room again");

    let failure = engine.handle_failure(a, None).expect("a live node");
    engine.leave_failure(failure);
    let error = refused(engine.node_track_request(b, 5), Status::Limit);
    for part in ["4 are tracked", "6 are in failure reports", "kvconn_take_failure"] {
        assert!(error.message.contains(part), "{part} is not in: {}", error.message);
    }
    let failure = engine.take_failure().expect("the report that was left");
    assert_eq!(&failure.requests[..], [0, 1, 2, 3, 4, 5]);
    for request in 5..11 {
        engine.node_track_request(b, request).expect("there is room again");
    }
    refused(engine.node_track_request(b, 11), Status::Limit);
    assert_eq!(info(&engine, b).requests, 10);
}

#[test]
fn a_request_is_tracked_once_on_each_node_until_it_is_untracked() {
    let engine = Engine::new();
    let (a, b) = (engine.node("a", &[]), engine.node("b", &[]));
    for request in [0, 7, u64::MAX, 7, 7] {
        engine.node_track_request(a, request).expect("a live node");
    }
    engine.node_track_request(b, 7).expect("the same id on another node is another request");
    assert_eq!((info(&engine, a).requests, info(&engine, b).requests), (3, 1));
    assert!(engine.node_untrack_request(a, 7).expect("a live node"));
    assert!(!engine.node_untrack_request(a, 7).expect("a live node"));
    assert!(!engine.node_untrack_request(a, 8).expect("a live node"));
    let failure = engine.handle_failure(a, None).expect("a live node");
    assert_eq!(&failure.requests[..], [0, u64::MAX]);
    assert_eq!(&engine.handle_failure(b, None).expect("a live node").requests[..], [7]);
}

#[test]
fn the_age_of_a_life_stops_when_it_is_over() {
    let engine = Engine::new();
    let node = engine.node("n", &[]);
    crate::common::wait_until("the node is 20 ms old", Duration::from_secs(5), || {
        info(&engine, node).age >= crate::common::ms(20)
    });
    drop(engine.handle_failure(node, None).expect("a live node"));
    let age = info(&engine, node).age;
    std::thread::sleep(crate::common::ms(5));
    assert_eq!(info(&engine, node).age, age);
}
