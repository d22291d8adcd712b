//! A manager's nodes: their endpoints, requests, health and failure.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Manager, Sets};
use crate::connection::{Aftermath, End, Transition};
use crate::error::Error;
use crate::error::{Result, Status};
use crate::events::{Event, EventKind};
use crate::ids::NodeId;
use crate::manager::cache::{DialPolicy, Fence};
use crate::manager::nodes::{Failure, NodeInfo, check_name};
use crate::net::endpoint::Endpoint;
use crate::options::{Key, Options, Reach};
use crate::timeout::Timeout;

/// What a caller does after a failure.
const NEXT_STEP: &str = "open it again and register its endpoints in the new life";
/// The reason if the caller gives none.
const NO_REASON: &str = "no reason given";

impl Manager {
    /// The current life of a node, or a new, empty one. The flag says whether it is new.
    pub fn node_open(&self, name: &str) -> Result<(NodeId, bool)> {
        let mut sets = self.open_sets()?;
        let limit = sets.values.count(Key::MaxNodes);
        sets.nodes.open(name, limit)
    }

    /// The current life of a node. NOT_FOUND; INVALID for a name that is not valid.
    pub fn node_find(&self, name: &str) -> Result<NodeId> {
        check_name(name)?;
        self.sets()
            .nodes
            .find(name)
            .ok_or_else(|| Error::new(Status::NotFound, format!("no live node is named {name:?}")))
    }

    /// What is known about a life, also about an ended one. STALE.
    pub fn node_info(&self, node: NodeId) -> Result<NodeInfo> {
        self.sets().nodes.info(node)
    }

    /// Whether this life belongs to this manager, live or ended and remembered.
    pub(crate) fn knows_node(&self, node: NodeId) -> bool {
        self.sets().nodes.info(node).is_ok()
    }

    /// Registers endpoints with a live node, all or none. Dials nothing. Lifts their fences. The backoff of endpoints
    /// that are new to this life is reset.
    pub fn node_add_endpoints(&self, node: NodeId, endpoints: &[&str], options: Option<&Options>) -> Result<()> {
        let endpoints = self.endpoints(endpoints)?;
        if let Some(options) = options {
            options.only(&[Reach::Connection], "kvconn_node_add_endpoints")?;
        }
        let mut sets = self.open_sets()?;
        self.register(&mut sets, node, &endpoints, options)
    }

    /// The same under the global lock.
    pub(super) fn register(
        &self,
        sets: &mut Sets,
        node: NodeId,
        endpoints: &[Endpoint],
        options: Option<&Options>,
    ) -> Result<()> {
        sets.nodes.check_live(node)?;
        check_options(sets, endpoints, options)?;
        let more = places(sets, endpoints);
        self.make_room(sets, more, endpoints)?;
        own(sets, node, endpoints, options)
    }

    /// Makes these the endpoints of a live node, in one step, or changes nothing on an error. Those that it does not own
    /// yet are registered. Those that it owns and that are not among them are taken away. The others keep their
    /// connections and fences.
    pub fn node_set_endpoints(&self, node: NodeId, endpoints: &[&str], options: Option<&Options>) -> Result<()> {
        const CALL: &str = "kvconn_node_set_endpoints";
        let endpoints = self.endpoints(endpoints)?;
        if let Some(options) = options {
            options.only(&[Reach::Connection], CALL)?;
        }
        let mut after = Aftermath::default();
        let mut sets = self.open_sets()?;
        sets.nodes.check_live(node)?;
        check_options(&sets, &endpoints, options)?;
        let before = sets.nodes.endpoints_of(node);
        let (owned, wanted): (HashSet<_>, HashSet<_>) = (before.iter().collect(), endpoints.iter().collect());
        let left: Vec<_> = before.iter().filter(|endpoint| !wanted.contains(endpoint)).cloned().collect();
        let (kept, new): (Vec<_>, Vec<_>) = endpoints.iter().cloned().partition(|endpoint| owned.contains(endpoint));
        // What leaves the node and has no other owner makes room.
        let freed = left.iter().filter(|endpoint| sets.nodes.owners(endpoint) == [node]).count();
        let more = places(&sets, &new).saturating_sub(freed);
        self.make_room(&mut sets, more, &endpoints)?;
        own(&mut sets, node, &new, options)?;
        for endpoint in kept.iter().filter(|_| options.is_some()) {
            sets.cache.remember(endpoint, DialPolicy::Connect(options));
        }
        self.take_away(&mut sets, node, &left, CALL, &mut after)?;
        drop(sets);
        after.run();
        Ok(())
    }

    /// Removes endpoints from a live node. Those without another live owner are disconnected and fenced. Endpoints that
    /// it does not own are not changed.
    pub fn node_remove_endpoints(&self, node: NodeId, endpoints: &[&str]) -> Result<()> {
        let endpoints = self.endpoints(endpoints)?;
        let mut after = Aftermath::default();
        let mut sets = self.open_sets()?;
        self.take_away(&mut sets, node, &endpoints, "kvconn_node_remove_endpoints", &mut after)?;
        drop(sets);
        after.run();
        Ok(())
    }

    /// The same under the global lock.
    fn take_away(
        &self,
        sets: &mut Sets,
        node: NodeId,
        endpoints: &[Endpoint],
        by: &'static str,
        after: &mut Aftermath,
    ) -> Result<()> {
        let released = sets.nodes.remove_endpoints(node, endpoints)?;
        let conns: Vec<_> = released.iter().filter_map(|endpoint| sets.cache.current(endpoint).cloned()).collect();
        let end = End::new(Transition::Disconnect, format!("disconnected by {by}"));
        self.end_together(sets, &conns, end, after);
        for endpoint in &released {
            sets.cache.disowned(endpoint);
        }
        self.fence(sets, &released, by);
        Ok(())
    }

    pub(super) fn endpoints(&self, texts: &[&str]) -> Result<Vec<Endpoint>> {
        texts.iter().map(|text| self.endpoint(text)).collect()
    }

    /// Tracks a request in flight on a live node. Tracking it twice is the same as once.
    pub fn node_track_request(&self, node: NodeId, request: u64) -> Result<()> {
        let mut sets = self.open_sets()?;
        let limit = sets.values.count(Key::MaxRequests);
        sets.nodes.track_request(node, request, limit)
    }

    /// Stops tracking a request. Returns whether it was tracked.
    pub fn node_untrack_request(&self, node: NodeId, request: u64) -> Result<bool> {
        self.open_sets()?.nodes.untrack_request(node, request)
    }

    /// One result of a health probe. `max_failures` unhealthy ones in a row fail the node.
    pub fn node_report_health(&self, node: NodeId, healthy: bool, reason: Option<&str>) -> Result<Option<Failure>> {
        let mut sets = self.open_sets()?;
        let limit = sets.values.count(Key::MaxFailures);
        let reason = reason.unwrap_or(NO_REASON);
        if !sets.nodes.report_health(node, healthy, reason, limit)? {
            return Ok(None);
        }
        let reason = format!("{limit} unhealthy reports in a row: {reason}");
        let mut after = Aftermath::default();
        let failure = self.fail_node(&mut sets, node, &reason, &mut after)?;
        drop(sets);
        after.run();
        Ok(Some(failure))
    }

    /// Ends a life of a node: takes away its endpoints and requests in one step.
    pub fn handle_failure(&self, node: NodeId, reason: Option<&str>) -> Result<Failure> {
        let mut after = Aftermath::default();
        let mut sets = self.open_sets()?;
        let failure = self.fail_node(&mut sets, node, reason.unwrap_or(NO_REASON), &mut after)?;
        drop(sets);
        after.run();
        Ok(failure)
    }

    /// Keeps a report that could not be handed to its caller. `take_failure` returns it.
    pub fn leave_failure(&self, failure: Failure) {
        self.leave(&mut self.sets(), failure);
    }

    /// The same under the global lock. Wakes a thread that waits for a report.
    pub(super) fn leave(&self, sets: &mut Sets, failure: Failure) {
        sets.nodes.leave_failure(failure);
        self.reported.notify_one();
    }

    /// The oldest report that was not taken yet.
    pub fn take_failure(&self) -> Option<Failure> {
        self.sets().nodes.take_failure()
    }

    /// The same. Waits for one until the timeout; the default is as long as it takes. Several threads may wait; each
    /// report goes to one of them. STALE or SHUTDOWN when the manager is closed meanwhile.
    pub fn wait_for_failure(&self, timeout: Timeout) -> Result<Option<Failure>> {
        /// Nobody waits longer.
        const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);
        let deadline = Instant::now() + timeout.or(YEAR);
        let mut sets = self.sets();
        loop {
            // First: a thread that was woken for a report takes it, even if its time is over by then.
            if let Some(failure) = sets.nodes.take_failure() {
                return Ok(Some(failure));
            }
            self.check_open(&sets)?;
            if Instant::now() >= deadline {
                return Ok(None);
            }
            self.reported.wait_until(&mut sets, deadline);
        }
    }

    /// The step itself, under the global lock.
    pub(super) fn fail_node(
        &self,
        sets: &mut Sets,
        node: NodeId,
        reason: &str,
        after: &mut Aftermath,
    ) -> Result<Failure> {
        let mut failure = sets.nodes.fail(node, reason)?;
        sets.past.nodes_failed += 1;
        sets.past.requests_failed += failure.requests.len() as u64;
        let text = format!("node {:?} (life {node}) failed: {}; {NEXT_STEP}", failure.name, failure.reason);
        let released: Vec<_> =
            failure.endpoints.iter().filter(|failed| !failed.spared).map(|failed| failed.endpoint.clone()).collect();
        let conns: Vec<_> = released.iter().filter_map(|endpoint| sets.cache.current(endpoint).cloned()).collect();
        let ended = self.end_together(sets, &conns, End::new(Transition::NodeFailure, text), after);
        let (reason, at): (Arc<str>, _) = (failure.reason.as_str().into(), Instant::now());
        for endpoint in &released {
            sets.cache.disowned(endpoint);
            let (name, reason) = (failure.name.clone(), reason.clone());
            sets.cache.fence(endpoint, Fence::NodeFailed { node, name, reason, at });
        }
        sets.cache.trim(&sets.values);
        self.wake_fenced();
        let deliveries: std::collections::HashMap<_, _> =
            ended.iter().map(|(conn, finished)| (conn.endpoint(), (conn.id(), finished.delivery))).collect();
        for failed in &mut failure.endpoints {
            if let Some((conn, delivery)) = deliveries.get(&failed.endpoint) {
                failed.conn = *conn;
                failed.accepted = delivery.accepted;
                failed.acknowledged = delivery.acknowledged;
            } else if let (true, Some((conn, delivery))) = (failed.was_lost, sets.cache.last_lost(&failed.endpoint))
                && !(failed.spared && sets.cache.current(&failed.endpoint).is_some())
            {
                failed.conn = conn;
                failed.accepted = delivery.accepted;
                failed.acknowledged = delivery.acknowledged;
            } else if let (true, Some(conn)) = (failed.spared, sets.cache.current(&failed.endpoint)) {
                failed.conn = conn.id();
                let info = conn.info();
                failed.accepted = info.accepted;
                failed.acknowledged = info.acknowledged;
            }
        }
        self.events.push(Event {
            status: Status::NodeFailed,
            node,
            node_name: Some(failure.name.clone()),
            count: failure.requests.len() as u64,
            // The event names the node itself.
            ..Event::new(EventKind::NodeFailed, format!("{}; {NEXT_STEP}", failure.reason))
        });
        Ok(failure)
    }
}

/// Whether endpoints can be registered with these options.
fn check_options(sets: &Sets, endpoints: &[Endpoint], options: Option<&Options>) -> Result<()> {
    let Some(options) = options else { return Ok(()) };
    endpoints.iter().try_for_each(|endpoint| sets.cache.check_options(endpoint, options, &sets.values))
}

/// How many of these endpoints are not in use yet, each counted once.
fn places(sets: &Sets, endpoints: &[Endpoint]) -> usize {
    let unused = endpoints.iter().filter(|endpoint| !sets.cache.is_in_use(endpoint));
    unused.collect::<HashSet<_>>().len()
}

/// Makes a live node an owner of these endpoints. There must be room for them.
fn own(sets: &mut Sets, node: NodeId, endpoints: &[Endpoint], options: Option<&Options>) -> Result<()> {
    sets.nodes.add_endpoints(node, endpoints)?;
    for endpoint in endpoints {
        if sets.cache.current(endpoint).is_some_and(|conn| conn.is_ready()) {
            sets.nodes.endpoint_ready(endpoint);
        }
    }
    let options = options.map(|options| Arc::new(options.clone()));
    for endpoint in endpoints {
        sets.cache.registered(endpoint, node, options.as_ref());
    }
    Ok(())
}
