use super::*;

mod model;

const MANY: usize = 1_000_000;

fn endpoint(number: usize) -> Endpoint {
    Endpoint::parse(&format!("tcp://10.0.0.1:{}", 1000 + number)).unwrap()
}

fn endpoints(numbers: std::ops::Range<usize>) -> Vec<Endpoint> {
    numbers.map(endpoint).collect()
}

fn open(nodes: &mut Nodes, name: &str) -> NodeId {
    nodes.open(name, MANY).unwrap().0
}

fn status<T>(result: Result<T>) -> Status {
    result.err().map_or(Status::Ok, |e| e.status)
}

#[test]
fn a_name_is_1_to_255_bytes_without_nul_and_compared_exactly() {
    let mut nodes = Nodes::new();
    for bad in ["", "a\0b", &"é".repeat(128)] {
        assert_eq!(status(nodes.open(bad, MANY)), Status::Invalid, "{bad:?}");
    }
    // One is a prefix of another, one differs only in case, one only in a trailing space.
    let names = ["10.0.0.1:899", "10.0.0.1:8998", "a", "A", "a ", &"é".repeat(127), "\n"];
    let ids = names.map(|name| open(&mut nodes, name));
    for (name, id) in names.iter().zip(ids) {
        assert_eq!(nodes.find(name), Some(id));
        assert_eq!(nodes.open(name, MANY).unwrap(), (id, false));
        assert_eq!(nodes.name(id).as_deref(), Some(*name));
    }
    nodes.fail(ids[0], "x").unwrap();
    assert_eq!(nodes.find(names[0]), None);
    assert_eq!(nodes.find(names[1]), Some(ids[1]), "the failure of a node reached one with a longer name");
}

#[test]
fn an_ended_life_refuses_every_call_and_says_why() {
    let mut nodes = Nodes::new();
    let old = open(&mut nodes, "prefill-0");
    nodes.add_endpoints(old, &endpoints(0..2)).unwrap();
    nodes.fail(old, "probe\ntimed out").unwrap();
    let new = open(&mut nodes, "prefill-0");
    assert_ne!(old, new);
    nodes.add_endpoints(new, &endpoints(0..1)).unwrap();

    assert_eq!(status(nodes.add_endpoints(old, &endpoints(5..6))), Status::NodeFailed);
    assert_eq!(status(nodes.remove_endpoints(old, &endpoints(0..1))), Status::NodeFailed);
    assert_eq!(status(nodes.track_request(old, 1, MANY)), Status::NodeFailed);
    assert_eq!(status(nodes.untrack_request(old, 1)), Status::NodeFailed);
    assert_eq!(status(nodes.report_health(old, false, "", 1)), Status::NodeFailed);
    assert_eq!(status(nodes.fail(old, "again")), Status::NodeFailed);
    assert!(nodes.endpoints_of(old).is_empty());

    let e = nodes.check_live(old).unwrap_err();
    for part in ["\"prefill-0\"", &old.to_string(), " s ago (", "probe timed out", "kvconn_node_open"] {
        assert!(e.message.contains(part), "{part} is not in: {}", e.message);
    }
    let info = nodes.info(old).unwrap();
    assert_eq!((info.status, info.endpoints, info.reason.as_str()), (Status::NodeFailed, 0, "probe timed out"));
    let info = nodes.info(new).unwrap();
    assert_eq!((info.status, info.endpoints, info.requests, info.failures_in_row), (Status::Ok, 1, 0, 0));
    assert_eq!(nodes.owners(&endpoint(0)), [new]);
    assert_eq!(nodes.owned_endpoints(), 1);
    assert_eq!(nodes.untaken_failures(), 0);
}

#[test]
fn the_error_of_a_failed_node_fits_into_a_small_buffer() {
    let mut nodes = Nodes::new();
    let node = open(&mut nodes, &"é".repeat(127));
    let failure = nodes.fail(node, &"ü".repeat(5000)).unwrap();
    assert_eq!(failure.reason, "ü".repeat(127));
    let message = nodes.check_live(node).unwrap_err().message;
    assert!(message.find("kvconn_node_open").is_some_and(|at| at < 200), "{message}");
    let node = open(&mut nodes, "n");
    nodes.fail(node, "").unwrap();
    assert!(nodes.check_live(node).unwrap_err().message.contains("no reason was given"));
}

#[test]
fn unknown_ids_are_stale() {
    let mut nodes = Nodes::new();
    for node in [NodeId::NONE, NodeId(u64::MAX), NodeId(ConnId::fresh().0)] {
        assert_eq!(status(nodes.info(node)), Status::Stale);
        assert_eq!(status(nodes.check_live(node)), Status::Stale);
        assert_eq!(status(nodes.fail(node, "x")), Status::Stale);
        assert_eq!(nodes.name(node), None);
    }
}

#[test]
fn limits_count_untaken_reports_and_are_named_in_the_error() {
    let mut nodes = Nodes::new();
    let a = nodes.open("a", 2).unwrap().0;
    let b = nodes.open("b", 2).unwrap().0;
    for request in 0..3 {
        nodes.track_request(a, request, 4).unwrap();
    }
    nodes.track_request(b, 9, 4).unwrap();
    nodes.track_request(b, 9, 4).unwrap();
    let e = nodes.track_request(b, 10, 4).unwrap_err();
    assert_eq!(e.status, Status::Limit);
    assert!(e.message.contains("max_requests is 4: 4 are tracked, 0 are in"), "{}", e.message);

    let failure = nodes.fail(a, "x").unwrap();
    nodes.leave_failure(failure);
    let e = nodes.track_request(b, 10, 4).unwrap_err();
    assert!(e.message.contains("max_requests is 4: 1 are tracked, 3 are in"), "{}", e.message);
    let e = nodes.open("c", 2).unwrap_err();
    assert_eq!(e.status, Status::Limit);
    assert!(e.message.contains("max_nodes is 2: 1 nodes are live, 1 failure reports"), "{}", e.message);
    assert_eq!(nodes.open("b", 2).unwrap(), (b, false));

    let failure = nodes.take_failure().unwrap();
    assert_eq!((failure.requests.len(), &failure.requests[..]), (3, &[0, 1, 2][..]));
    assert!(nodes.take_failure().is_none());
    nodes.open("c", 2).unwrap();
    nodes.track_request(b, 10, 4).unwrap();
}

#[test]
fn a_request_needs_no_endpoint_and_a_late_rank_finds_the_life_ended() {
    let mut nodes = Nodes::new();
    let node = open(&mut nodes, "prefill");
    nodes.track_request(node, 77, MANY).unwrap();
    nodes.add_endpoints(node, &endpoints(1..5)).unwrap();
    let failure = nodes.fail(node, "died").unwrap();
    assert_eq!(&failure.requests[..], [77]);
    let listed: Vec<Endpoint> = failure.endpoints.iter().map(|e| e.endpoint.clone()).collect();
    assert_eq!(listed, endpoints(1..5));
    assert!(failure.endpoints.iter().all(|e| !e.spared && e.conn == ConnId::NONE && e.accepted == 0));
    assert_eq!(status(nodes.add_endpoints(node, &endpoints(5..9))), Status::NodeFailed);
    assert_eq!((nodes.owned_endpoints(), nodes.live().count()), (0, 0));
}

#[test]
fn an_endpoint_of_another_live_node_is_spared() {
    let mut nodes = Nodes::new();
    let (a, b) = (open(&mut nodes, "a"), open(&mut nodes, "b"));
    nodes.add_endpoints(a, &endpoints(0..3)).unwrap();
    nodes.add_endpoints(b, &endpoints(1..2)).unwrap();
    let failure = nodes.fail(a, "x").unwrap();
    assert_eq!(failure.endpoints.iter().map(|e| e.spared).collect::<Vec<_>>(), [false, true, false]);
    let failure = nodes.fail(b, "x").unwrap();
    assert!(!failure.endpoints[0].spared, "spared for a node that has ended");
}

#[test]
fn endpoints_are_added_and_removed_once() {
    let mut nodes = Nodes::new();
    let (a, b) = (open(&mut nodes, "a"), open(&mut nodes, "b"));
    assert_eq!(nodes.add_endpoints(a, &[endpoint(1), endpoint(2), endpoint(1)]).unwrap(), endpoints(1..3));
    assert_eq!(nodes.add_endpoints(a, &endpoints(2..4)).unwrap(), endpoints(3..4));
    nodes.add_endpoints(b, &endpoints(3..5)).unwrap();
    assert_eq!(nodes.owned_endpoints(), 4);
    assert_eq!(nodes.owners(&endpoint(3)), [a, b]);
    // b still owns 3; a never owned 4.
    assert_eq!(
        nodes.remove_endpoints(a, &[endpoint(1), endpoint(3), endpoint(4), endpoint(1)]).unwrap(),
        [endpoint(1)]
    );
    assert_eq!(nodes.endpoints_of(a), endpoints(2..3));
    assert_eq!(nodes.owners(&endpoint(1)), []);
    assert_eq!(nodes.owners(&endpoint(3)), [b]);
}

#[test]
fn each_of_three_owners_keeps_its_own_record() {
    let mut nodes = Nodes::new();
    let ids = ["a", "b", "c"].map(|name| open(&mut nodes, name));
    // The endpoint has a different place in each node.
    for (count, node) in ids.iter().enumerate() {
        nodes.add_endpoints(*node, &endpoints(0..count)).unwrap();
        nodes.add_endpoints(*node, &endpoints(9..10)).unwrap();
    }
    nodes.endpoint_ready(&endpoint(9));
    for (count, node) in ids.iter().enumerate() {
        nodes.remove_endpoints(*node, &endpoints(9..10)).unwrap();
        assert_eq!(nodes.endpoints_of(*node), endpoints(0..count));
        assert_eq!(nodes.owners(&endpoint(9)).len(), 2 - count);
    }
}

#[test]
fn only_unhealthy_reports_in_a_row_fail_a_node() {
    let mut nodes = Nodes::new();
    let node = open(&mut nodes, "n");
    for (healthy, fails) in [(false, false), (true, false), (false, false), (false, true), (false, true)] {
        assert_eq!(nodes.report_health(node, healthy, "", 2).unwrap(), fails);
    }
    assert_eq!(nodes.info(node).unwrap().failures_in_row, 3);
}

#[test]
fn losses_fail_nodes_by_the_policy() {
    let mut nodes = Nodes::new();
    let (a, b) = (open(&mut nodes, "a"), open(&mut nodes, "b"));
    nodes.add_endpoints(a, &endpoints(0..4)).unwrap();
    nodes.add_endpoints(b, &endpoints(0..1)).unwrap();
    let ready = |nodes: &mut Nodes, port| nodes.endpoint_ready(&endpoint(port));
    let lost = |nodes: &mut Nodes, port, policy| nodes.endpoint_lost(&endpoint(port), policy);
    for policy in [NodeLoss::Any, NodeLoss::All] {
        assert_eq!(lost(&mut nodes, 0, policy), [], "it was never READY");
        assert_eq!(lost(&mut nodes, 9, policy), [], "it has no owner");
    }
    for port in 0..3 {
        ready(&mut nodes, port);
        ready(&mut nodes, port);
    }
    assert_eq!(lost(&mut nodes, 1, NodeLoss::Report), []);
    assert_eq!(lost(&mut nodes, 1, NodeLoss::Any), [a]);
    assert_eq!(lost(&mut nodes, 0, NodeLoss::All), [b], "b's only one; a has 2 left");
    ready(&mut nodes, 1);
    assert_eq!(lost(&mut nodes, 2, NodeLoss::All), [], "1 is back");
    nodes.remove_endpoints(a, &endpoints(2..3)).unwrap();
    assert_eq!(lost(&mut nodes, 1, NodeLoss::All), [a], "3 was never READY and does not count");
    // In the new life the same endpoint has not been READY.
    nodes.fail(a, "x").unwrap();
    let a = open(&mut nodes, "a");
    nodes.add_endpoints(a, &endpoints(0..4)).unwrap();
    assert_eq!(lost(&mut nodes, 1, NodeLoss::Any), []);
    ready(&mut nodes, 1);
    nodes.remove_endpoints(a, &endpoints(1..2)).unwrap();
    nodes.add_endpoints(a, &endpoints(1..2)).unwrap();
    assert_eq!(lost(&mut nodes, 1, NodeLoss::All), [], "READY only before it was registered again");
}

#[test]
fn forgetting_all_ends_lives_without_reports_and_keeps_untaken_reports() {
    let mut nodes = Nodes::new();
    let (a, b, c) = (open(&mut nodes, "a"), open(&mut nodes, "b"), open(&mut nodes, "c"));
    nodes.add_endpoints(a, &endpoints(0..2)).unwrap();
    nodes.add_endpoints(b, &endpoints(1..3)).unwrap();
    nodes.track_request(a, 1, MANY).unwrap();
    nodes.track_request(c, 2, MANY).unwrap();
    let failure = nodes.fail(c, "x").unwrap();
    nodes.leave_failure(failure);

    let (mut owned, _) = nodes.forget_all();
    owned.sort();
    assert_eq!(owned, endpoints(0..3));
    let e = nodes.check_live(a).unwrap_err();
    assert_eq!(e.status, Status::Disconnected);
    assert!(e.message.contains("kvconn_disconnect_all"), "{}", e.message);
    assert_eq!(nodes.info(b).unwrap().status, Status::Disconnected);
    assert_eq!(status(nodes.check_live(c)), Status::NodeFailed);
    assert_eq!((nodes.find("a"), nodes.owned_endpoints(), nodes.live().count()), (None, 0, 0));
    assert_eq!(nodes.untaken_failures(), 1);

    let a = nodes.open("a", 2).unwrap().0;
    nodes.track_request(a, 1, 2).unwrap();
    assert_eq!(&nodes.take_failure().unwrap().requests[..], [2]);
}

#[test]
fn failing_a_large_node_is_fast_and_its_requests_are_sorted_for_the_reader() {
    let mut nodes = Nodes::new();
    let node = open(&mut nodes, "large");
    nodes.add_endpoints(node, &endpoints(1..6001)).unwrap();
    let count = 300_000_u64;
    for request in 0..count {
        nodes.track_request(node, request.wrapping_mul(0x9E37_79B9_7F4A_7C15), MANY).unwrap();
    }
    let begun = Instant::now();
    let failure = nodes.fail(node, "x").unwrap();
    let took = begun.elapsed();
    // About 1 ms in a release build on an idle machine. Sorting the requests here would take 20 ms.
    assert!(took < Duration::from_millis(100), "{took:?}");
    assert_eq!((failure.endpoints.len(), failure.requests.len()), (6000, count as usize));
    assert!(failure.requests.is_sorted());
    assert_eq!(failure.requests.as_slice().len(), count as usize);
}
