//! Random sequences of calls, compared with a very simple model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::Index;

use super::{NodeLoss, Nodes, endpoint};
use crate::error::{Result, Status};
use crate::ids::NodeId;
use crate::manager::nodes::Failure;

const MAX_NODES: usize = 4;
const MAX_REQUESTS: usize = 8;
const PORTS: usize = 4;
const MAX_FAILURES: usize = 2;

/// Nodes are picked among the last that were opened, so that calls meet ended lives too.
#[derive(Clone, Debug)]
enum Call {
    Open(usize),
    Add(Index, Vec<usize>),
    Remove(Index, Vec<usize>),
    Track(Index, u64),
    Untrack(Index, u64),
    Health(Index, bool),
    Fail(Index, bool),
    Ready(usize),
    Lost(usize, NodeLoss),
    Take,
    ForgetAll,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let node = any::<Index>;
    let port = 0..PORTS;
    let ports = || prop::collection::vec(0..PORTS, 0..5);
    let policy = prop_oneof![4 => Just(NodeLoss::Report), 1 => Just(NodeLoss::Any), 2 => Just(NodeLoss::All)];
    // Calls that end lives are rare, so that lives grow.
    let call = prop_oneof![
        6 => (0..5_usize).prop_map(Call::Open),
        8 => (node(), ports()).prop_map(|(n, p)| Call::Add(n, p)),
        3 => (node(), ports()).prop_map(|(n, p)| Call::Remove(n, p)),
        8 => (node(), 0..6_u64).prop_map(|(n, r)| Call::Track(n, r)),
        3 => (node(), 0..6_u64).prop_map(|(n, r)| Call::Untrack(n, r)),
        2 => (node(), prop::bool::weighted(0.7)).prop_map(|(n, h)| Call::Health(n, h)),
        1 => (node(), any::<bool>()).prop_map(|(n, l)| Call::Fail(n, l)),
        4 => port.clone().prop_map(Call::Ready),
        4 => (port, policy).prop_map(|(p, y)| Call::Lost(p, y)),
        4 => Just(Call::Take),
        1 => prop::bool::weighted(0.3).prop_map(|all| if all { Call::ForgetAll } else { Call::Take }),
    ];
    prop::collection::vec(call, 0..200)
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Life {
    name: usize,
    /// Each port, and whether it is READY now. `None` if it never was.
    endpoints: Vec<(usize, Option<bool>)>,
    requests: BTreeSet<u64>,
    failures: u32,
}

#[derive(Default)]
struct Model {
    all: Vec<NodeId>,
    lives: BTreeMap<NodeId, Life>,
    over: BTreeMap<NodeId, Status>,
    untaken: Vec<(NodeId, Vec<u64>)>,
    /// How often each request of each life was in a report that was taken.
    failed: BTreeMap<(NodeId, u64), usize>,
    /// The requests in flight when a life failed.
    in_flight: BTreeSet<(NodeId, u64)>,
}

impl Model {
    fn status(&self, node: NodeId) -> Status {
        self.over.get(&node).copied().unwrap_or(Status::Ok)
    }

    fn owns(&self, node: NodeId, port: usize) -> bool {
        self.lives[&node].endpoints.iter().any(|e| e.0 == port)
    }

    fn owners(&self, port: usize) -> Vec<NodeId> {
        self.lives.keys().copied().filter(|n| self.owns(*n, port)).collect()
    }

    fn requests(&self) -> usize {
        let untaken: usize = self.untaken.iter().map(|(_, requests)| requests.len()).sum();
        untaken + self.lives.values().map(|life| life.requests.len()).sum::<usize>()
    }

    /// Checks that the report is what the model expects, and counts it as taken.
    fn took(&mut self, node: NodeId, requests: &[u64], failure: &Failure) {
        assert_eq!((failure.node, &failure.requests[..]), (node, requests));
        for request in requests {
            *self.failed.entry((node, *request)).or_default() += 1;
        }
    }
}

fn status<T>(result: &Result<T>) -> Status {
    result.as_ref().err().map_or(Status::Ok, |e| e.status)
}

fn apply(nodes: &mut Nodes, model: &mut Model, call: &Call) {
    let pick = |index: &Index, model: &Model| {
        let last = &model.all[model.all.len().saturating_sub(5)..];
        (!last.is_empty()).then(|| *index.get(last))
    };
    let to_endpoints = |ports: &[usize]| ports.iter().map(|p| endpoint(*p)).collect::<Vec<_>>();
    match call {
        Call::Open(name) => {
            let result = nodes.open(&format!("node-{name}"), MAX_NODES);
            if let Some((node, _)) = model.lives.iter().find(|(_, life)| life.name == *name) {
                assert_eq!(result.unwrap(), (*node, false));
            } else if model.lives.len() + model.untaken.len() >= MAX_NODES {
                assert_eq!(status(&result), Status::Limit);
            } else {
                let (node, created) = result.unwrap();
                assert!(created);
                assert!(!model.all.contains(&node), "{node} was used before");
                model.all.push(node);
                model.lives.insert(node, Life { name: *name, ..Life::default() });
            }
        }
        Call::Add(index, ports) => {
            let Some(node) = pick(index, model) else { return };
            let result = nodes.add_endpoints(node, &to_endpoints(ports));
            assert_eq!(status(&result), model.status(node));
            let Ok(new) = result else { return };
            let mut expected = Vec::new();
            for port in ports {
                if !model.owns(node, *port) {
                    model.lives.get_mut(&node).unwrap().endpoints.push((*port, None));
                    expected.push(endpoint(*port));
                }
            }
            assert_eq!(new, expected);
        }
        Call::Remove(index, ports) => {
            let Some(node) = pick(index, model) else { return };
            let result = nodes.remove_endpoints(node, &to_endpoints(ports));
            assert_eq!(status(&result), model.status(node));
            let Ok(free) = result else { return };
            let mut expected = Vec::new();
            for port in ports {
                if model.owns(node, *port) {
                    model.lives.get_mut(&node).unwrap().endpoints.retain(|e| e.0 != *port);
                    if model.owners(*port).is_empty() {
                        expected.push(endpoint(*port));
                    }
                }
            }
            assert_eq!(free, expected);
        }
        Call::Track(index, request) => {
            let Some(node) = pick(index, model) else { return };
            let known = model.lives.get(&node).is_some_and(|life| life.requests.contains(request));
            let expected = match model.status(node) {
                Status::Ok if !known && model.requests() >= MAX_REQUESTS => Status::Limit,
                other => other,
            };
            assert_eq!(status(&nodes.track_request(node, *request, MAX_REQUESTS)), expected);
            if expected == Status::Ok {
                model.lives.get_mut(&node).unwrap().requests.insert(*request);
            }
        }
        Call::Untrack(index, request) => {
            let Some(node) = pick(index, model) else { return };
            let result = nodes.untrack_request(node, *request);
            assert_eq!(status(&result), model.status(node));
            if let Ok(was_tracked) = result {
                assert_eq!(was_tracked, model.lives.get_mut(&node).unwrap().requests.remove(request));
            }
        }
        Call::Health(index, healthy) => {
            let Some(node) = pick(index, model) else { return };
            let result = nodes.report_health(node, *healthy, "", MAX_FAILURES);
            assert_eq!(status(&result), model.status(node));
            let Ok(fails) = result else { return };
            let life = model.lives.get_mut(&node).unwrap();
            life.failures = if *healthy { 0 } else { life.failures + 1 };
            assert_eq!(fails, life.failures >= 2);
            if fails {
                fail(nodes, model, node, true);
            }
        }
        Call::Fail(index, leave) => {
            let Some(node) = pick(index, model) else { return };
            fail(nodes, model, node, *leave);
        }
        Call::Ready(port) => {
            nodes.endpoint_ready(&endpoint(*port));
            for life in model.lives.values_mut() {
                life.endpoints.iter_mut().filter(|e| e.0 == *port).for_each(|e| e.1 = Some(true));
            }
        }
        Call::Lost(port, policy) => {
            let mut fails = nodes.endpoint_lost(&endpoint(*port), *policy);
            fails.sort();
            let mut expected = Vec::new();
            for (node, life) in &mut model.lives {
                let Some(at) = life.endpoints.iter().position(|e| e.0 == *port && e.1.is_some()) else { continue };
                life.endpoints[at].1 = Some(false);
                let all_lost = life.endpoints.iter().all(|e| e.1 != Some(true));
                if *policy == NodeLoss::Any || (*policy == NodeLoss::All && all_lost) {
                    expected.push(*node);
                }
            }
            assert_eq!(fails, expected);
            for node in fails {
                fail(nodes, model, node, true);
            }
        }
        Call::Take => match nodes.take_failure() {
            None => assert!(model.untaken.is_empty()),
            Some(failure) => {
                let (node, requests) = model.untaken.remove(0);
                model.took(node, &requests, &failure);
            }
        },
        Call::ForgetAll => {
            let (mut owned, _) = nodes.forget_all();
            owned.sort();
            let expected: Vec<_> = (0..PORTS).filter(|p| !model.owners(*p).is_empty()).map(endpoint).collect();
            assert_eq!(owned, expected);
            for node in std::mem::take(&mut model.lives).into_keys() {
                model.over.insert(node, Status::Disconnected);
            }
        }
    }
}

/// Fails the node. The report is left for `take_failure`, or taken at once.
fn fail(nodes: &mut Nodes, model: &mut Model, node: NodeId, leave: bool) {
    let result = nodes.fail(node, "because");
    assert_eq!(status(&result), model.status(node));
    let Ok(failure) = result else { return };
    let life = model.lives.remove(&node).unwrap();
    model.over.insert(node, Status::NodeFailed);
    let listed: Vec<_> = failure.endpoints.iter().map(|e| (e.endpoint.clone(), e.spared)).collect();
    let expected: Vec<_> =
        life.endpoints.iter().map(|(port, _)| (endpoint(*port), !model.owners(*port).is_empty())).collect();
    assert_eq!(listed, expected);
    model.in_flight.extend(life.requests.iter().map(|request| (node, *request)));
    let requests: Vec<u64> = life.requests.into_iter().collect();
    if leave {
        nodes.leave_failure(failure);
        model.untaken.push((node, requests));
    } else {
        model.took(node, &requests, &failure);
    }
}

/// Checks that all queries agree with the model. So a refused call has changed nothing.
fn compare(nodes: &Nodes, model: &Model) {
    for port in 0..PORTS {
        let mut owners = nodes.owners(&endpoint(port)).to_vec();
        owners.sort();
        assert_eq!(owners, model.owners(port));
    }
    assert_eq!(nodes.owned_endpoints(), (0..PORTS).filter(|p| !model.owners(*p).is_empty()).count());
    assert_eq!(nodes.untaken_failures(), model.untaken.len());
    assert_eq!(nodes.live().map(|info| info.node).collect::<Vec<_>>(), model.lives.keys().copied().collect::<Vec<_>>());
    for node in &model.all {
        let info = nodes.info(*node).unwrap();
        assert_eq!(info.status, model.status(*node));
        assert_eq!(status(&nodes.check_live(*node)), model.status(*node));
        let life = model.lives.get(node).cloned().unwrap_or_default();
        assert_eq!((info.endpoints, info.requests), (life.endpoints.len(), life.requests.len()));
        assert_eq!(nodes.endpoints_of(*node), life.endpoints.iter().map(|e| endpoint(e.0)).collect::<Vec<_>>());
        if info.status == Status::Ok {
            assert_eq!(info.failures_in_row, life.failures);
            assert_eq!(nodes.find(&info.name), Some(*node));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_agrees_with_the_model(calls in calls()) {
        let mut nodes = Nodes::new();
        let mut model = Model::default();
        for call in &calls {
            apply(&mut nodes, &mut model, call);
            compare(&nodes, &model);
        }
        // Takes the untaken reports. Afterwards every request in flight at a failure must have been reported exactly
        // once.
        while nodes.untaken_failures() > 0 {
            apply(&mut nodes, &mut model, &Call::Take);
        }
        let failed: BTreeMap<_, _> = model.in_flight.iter().map(|key| (*key, 1)).collect();
        prop_assert_eq!(&model.failed, &failed);
    }
}
