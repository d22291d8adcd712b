//! Lives of nodes: what each owns, how healthy it is, and what its failure takes away.
//!
//! Pure bookkeeping: no locks, no I/O. It is guarded by the manager's global lock, so every call is short, however much
//! a node owns. Failing a life moves its requests as a whole; the reader of the report makes the sorted list.
//!
//! A life ends once ([`Nodes::fail`], [`Nodes::forget_all`]) and never comes back. From then on every call that names
//! it gets the same error and changes nothing. So a late report cannot reach the node's next life.

mod failure;
mod history;
mod owned;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::error::{Error, Result, Status};
use crate::ids::{ConnId, NodeId};
use crate::net::endpoint::Endpoint;
use crate::options::NodeLoss;

use history::{NodeHistory, one_line};
use owned::{Owned, Readiness};

pub use failure::{FailedEndpoint, Failure, Requests};

/// The longest name of a node, in bytes.
pub const MAX_NAME: usize = 255;

/// How much of a reason is kept, in bytes.
const MAX_REASON: usize = 255;

/// What is known about one life of a node.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// The life.
    pub node: NodeId,
    /// The node's name.
    pub name: Arc<str>,
    /// OK while it lives. Afterwards the reason: NODE_FAILED, or DISCONNECTED when all nodes were forgotten.
    pub status: Status,
    /// How many endpoints it owns. 0 once it has ended.
    pub endpoints: usize,
    /// How many requests are tracked on it. 0 once it has ended.
    pub requests: usize,
    /// Unhealthy reports since the last healthy one.
    pub failures_in_row: u32,
    /// How long it has lived, or had lived when it ended.
    pub age: Duration,
    /// Why it failed. While it lives: the reason of the last report if that was unhealthy, else empty.
    pub reason: String,
}

/// All nodes of one manager.
#[derive(Default)]
pub struct Nodes {
    /// Ordered by id, which is the order of opening: listing them gives the oldest first.
    lives: BTreeMap<NodeId, Life>,
    names: HashMap<Arc<str>, NodeId>,
    owned: Owned,
    history: NodeHistory,
    /// How many requests all lives track together.
    tracked: usize,
    untaken: VecDeque<Failure>,
    /// How many requests the reports in `untaken` hold together.
    untaken_requests: usize,
}

/// The contents of forgotten lives. The caller only drops it.
pub struct Remains(#[allow(dead_code)] BTreeMap<NodeId, Life>);

/// A live node.
struct Life {
    name: Arc<str>,
    opened: Instant,
    /// By their order of registration, in which a report lists them.
    endpoints: BTreeMap<u64, Endpoint>,
    next_place: u64,
    /// How many of `endpoints` are READY now.
    ready: usize,
    /// A tree and not a hash table: it grows without the pause of rehashing a million ids, and it is already sorted.
    requests: BTreeSet<u64>,
    failures_in_row: u32,
    /// The reason of the last unhealthy report.
    unhealthy: String,
}

impl Nodes {
    /// An empty set.
    pub fn new() -> Nodes {
        Nodes::default()
    }

    /// The current life of the node with this name, or a new, empty one. The flag says whether it is new. `max_nodes`
    /// limits live nodes and untaken reports together, so failing and opening nodes without taking reports stays
    /// bounded.
    ///
    /// # Errors
    ///
    /// INVALID for a name that is not valid, LIMIT.
    pub fn open(&mut self, name: &str, max_nodes: usize) -> Result<(NodeId, bool)> {
        if let Some(node) = self.find(name) {
            return Ok((node, false));
        }
        check_name(name)?;
        let (live, untaken) = (self.lives.len(), self.untaken.len());
        if live + untaken >= max_nodes {
            return Err(Error::limit(format!(
                "max_nodes is {max_nodes}: {live} nodes are live, {untaken} failure reports wait for kvconn_take_failure"
            )));
        }
        let node = NodeId::fresh();
        let name: Arc<str> = name.into();
        self.names.insert(name.clone(), node);
        let life = Life {
            name,
            opened: Instant::now(),
            endpoints: BTreeMap::new(),
            next_place: 0,
            ready: 0,
            requests: BTreeSet::new(),
            failures_in_row: 0,
            unhealthy: String::new(),
        };
        self.lives.insert(node, life);
        Ok((node, true))
    }

    /// The current life of the node with this name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.names.get(name).copied()
    }

    /// What is known about a life, also about an ended one while it is remembered.
    ///
    /// # Errors
    ///
    /// STALE.
    pub fn info(&self, node: NodeId) -> Result<NodeInfo> {
        if let Some(life) = self.lives.get(&node) {
            return Ok(life.info(node));
        }
        self.history.get(node).cloned().ok_or_else(|| self.history.error(node))
    }

    /// The name of the node that has or had this life.
    pub fn name(&self, node: NodeId) -> Option<Arc<str>> {
        let live = self.lives.get(&node).map(|life| &life.name);
        live.or_else(|| self.history.get(node).map(|info| &info.name)).cloned()
    }

    /// Whether the life is live. Every call below that names a life fails with the same errors, and then changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// NODE_FAILED, DISCONNECTED when all nodes were forgotten, STALE.
    pub fn check_live(&self, node: NodeId) -> Result<()> {
        if self.lives.contains_key(&node) { Ok(()) } else { Err(self.history.error(node)) }
    }

    /// Makes the node an owner of all these endpoints. Returns those that it did not own before, each once.
    ///
    /// For endpoints that are READY already, [`endpoint_ready`](Nodes::endpoint_ready) must be called afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live).
    pub fn add_endpoints(&mut self, node: NodeId, endpoints: &[Endpoint]) -> Result<Vec<Endpoint>> {
        let life = live(&mut self.lives, &self.history, node)?;
        let mut new = Vec::new();
        for endpoint in endpoints {
            if self.owned.add(endpoint, node, life.next_place) {
                life.endpoints.insert(life.next_place, endpoint.clone());
                life.next_place += 1;
                new.push(endpoint.clone());
            }
        }
        Ok(new)
    }

    /// Removes the node as an owner of these endpoints. Returns those that it owned and that have no live owner now.
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live).
    pub fn remove_endpoints(&mut self, node: NodeId, endpoints: &[Endpoint]) -> Result<Vec<Endpoint>> {
        let life = live(&mut self.lives, &self.history, node)?;
        let mut free = Vec::new();
        for endpoint in endpoints {
            let Some(removed) = self.owned.remove(endpoint, node) else { continue };
            life.endpoints.remove(&removed.record.place);
            life.ready -= usize::from(removed.record.readiness == Readiness::Ready);
            if removed.is_free {
                free.push(endpoint.clone());
            }
        }
        Ok(free)
    }

    /// The live nodes that own the endpoint.
    pub fn owners(&self, endpoint: &Endpoint) -> &[NodeId] {
        self.owned.owners(endpoint)
    }

    /// How many endpoints have an owner, each counted once.
    pub fn owned_endpoints(&self) -> usize {
        self.owned.len()
    }

    /// Tracks a request in flight on the node. Repeating it changes nothing. `max_requests` limits the requests of all
    /// nodes and of untaken reports together.
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live), LIMIT.
    pub fn track_request(&mut self, node: NodeId, request: u64, max_requests: usize) -> Result<()> {
        let life = live(&mut self.lives, &self.history, node)?;
        let (tracked, untaken) = (self.tracked, self.untaken_requests);
        if tracked + untaken >= max_requests {
            if life.requests.contains(&request) {
                return Ok(());
            }
            return Err(Error::limit(format!(
                "max_requests is {max_requests}: {tracked} are tracked, {untaken} are in failure reports that wait for \
                 kvconn_take_failure"
            )));
        }
        self.tracked += usize::from(life.requests.insert(request));
        Ok(())
    }

    /// Stops tracking a request. Returns whether it was tracked.
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live).
    pub fn untrack_request(&mut self, node: NodeId, request: u64) -> Result<bool> {
        let life = live(&mut self.lives, &self.history, node)?;
        let was_tracked = life.requests.remove(&request);
        self.tracked -= usize::from(was_tracked);
        Ok(was_tracked)
    }

    /// Counts a health report and keeps the reason of an unhealthy one. Returns true if it completes `max_failures`
    /// unhealthy ones in a row. Then the caller has to fail the node.
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live).
    pub fn report_health(&mut self, node: NodeId, healthy: bool, reason: &str, max_failures: usize) -> Result<bool> {
        let life = live(&mut self.lives, &self.history, node)?;
        life.failures_in_row = if healthy { 0 } else { life.failures_in_row.saturating_add(1) };
        life.unhealthy = if healthy { String::new() } else { one_line(reason, MAX_REASON) };
        Ok(!healthy && life.failures_in_row as usize >= max_failures)
    }

    /// Ends the life and takes away everything it owned, in one step. The report lists the endpoints in the order of
    /// their registration, without connections and counts, which are not known here. The report must reach the caller
    /// of kvconn, or [`leave_failure`](Nodes::leave_failure).
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live).
    pub fn fail(&mut self, node: NodeId, reason: &str) -> Result<Failure> {
        let Some(life) = self.lives.remove(&node) else { return Err(self.history.error(node)) };
        self.names.remove(&life.name);
        self.tracked -= life.requests.len();
        let reason = one_line(reason, MAX_REASON);
        self.history.add(life.info(node), Status::NodeFailed, reason.clone());
        let endpoints = life.endpoints.into_values().map(|endpoint| {
            let removed = self.owned.remove(&endpoint, node);
            FailedEndpoint {
                spared: removed.as_ref().is_some_and(|removed| !removed.is_free),
                was_lost: removed.is_some_and(|removed| removed.record.readiness == Readiness::Lost),
                endpoint,
                conn: ConnId::NONE,
                accepted: 0,
                acknowledged: Some(0),
            }
        });
        Ok(Failure {
            node,
            name: life.name,
            reason,
            at: SystemTime::now(),
            endpoints: endpoints.collect(),
            requests: life.requests.into(),
        })
    }

    /// Ends every life with DISCONNECTED and without a report, because the caller gives up the work itself. Untaken
    /// reports stay. Returns all endpoints that had an owner, each once, and the contents of the lives. Drop these
    /// outside the lock: freeing a million requests takes tens of milliseconds.
    pub fn forget_all(&mut self) -> (Vec<Endpoint>, Remains) {
        self.names.clear();
        self.tracked = 0;
        let lives = std::mem::take(&mut self.lives);
        for (node, life) in &lives {
            self.history.add(life.info(*node), Status::Disconnected, String::new());
        }
        (self.owned.take(), Remains(lives))
    }

    /// The connection to the endpoint is READY. Must also be called when a READY endpoint gets an owner.
    pub fn endpoint_ready(&mut self, endpoint: &Endpoint) {
        for (node, record) in self.owned.records(endpoint) {
            if let Some(life) = self.lives.get_mut(&node) {
                life.ready += usize::from(record.readiness != Readiness::Ready);
                record.readiness = Readiness::Ready;
            }
        }
    }

    /// The connection to the endpoint is lost. Returns the nodes that have to fail because of it. An endpoint counts
    /// for a node only if it was READY in this life and the node still owns it. `Any` fails a node when its first
    /// endpoint is lost, `All` when no endpoint is READY any more.
    pub fn endpoint_lost(&mut self, endpoint: &Endpoint, policy: NodeLoss) -> Vec<NodeId> {
        let mut failed = Vec::new();
        for (node, record) in self.owned.records(endpoint) {
            let Some(life) = self.lives.get_mut(&node) else { continue };
            if record.readiness == Readiness::Never {
                continue;
            }
            life.ready -= usize::from(record.readiness == Readiness::Ready);
            record.readiness = Readiness::Lost;
            let fails = match policy {
                NodeLoss::Report => false,
                NodeLoss::Any => true,
                NodeLoss::All => life.ready == 0,
            };
            if fails {
                failed.push(node);
            }
        }
        failed
    }

    /// A connection to the endpoint was ended locally: it counts neither as READY nor as lost.
    pub fn endpoint_closed_locally(&mut self, endpoint: &Endpoint) {
        for (node, record) in self.owned.records(endpoint) {
            if let (Some(life), Readiness::Ready) = (self.lives.get_mut(&node), record.readiness) {
                life.ready -= 1;
                record.readiness = Readiness::Never;
            }
        }
    }

    /// Keeps a report that was not handed to the caller of kvconn, until [`take_failure`](Nodes::take_failure). It is
    /// never dropped. It counts against the limits of nodes and requests, so these reports are bounded.
    pub fn leave_failure(&mut self, failure: Failure) {
        self.untaken_requests += failure.requests.len();
        self.untaken.push_back(failure);
    }

    /// The oldest report that was not taken yet.
    pub fn take_failure(&mut self) -> Option<Failure> {
        let failure = self.untaken.pop_front()?;
        self.untaken_requests -= failure.requests.len();
        Some(failure)
    }

    /// How many reports were not taken yet.
    pub fn untaken_failures(&self) -> usize {
        self.untaken.len()
    }

    /// How many lives are live.
    pub fn live_count(&self) -> usize {
        self.lives.len()
    }

    /// How many requests the live nodes track together.
    pub fn tracked_requests(&self) -> usize {
        self.tracked
    }

    /// The live nodes, oldest first.
    pub fn live(&self) -> impl Iterator<Item = NodeInfo> {
        self.lives.iter().map(|(node, life)| life.info(*node))
    }

    /// The node's endpoints in the order of their registration. Empty once the life has ended.
    pub fn endpoints_of(&self, node: NodeId) -> Vec<Endpoint> {
        self.lives.get(&node).map_or_else(Vec::new, |life| life.endpoints.values().cloned().collect())
    }
}

impl Life {
    fn info(&self, node: NodeId) -> NodeInfo {
        NodeInfo {
            node,
            name: self.name.clone(),
            status: Status::Ok,
            endpoints: self.endpoints.len(),
            requests: self.requests.len(),
            failures_in_row: self.failures_in_row,
            age: self.opened.elapsed(),
            reason: self.unhealthy.clone(),
        }
    }
}

/// The life, if it is live. Takes single fields, so that the caller can use the others at the same time.
fn live<'a>(lives: &'a mut BTreeMap<NodeId, Life>, history: &NodeHistory, node: NodeId) -> Result<&'a mut Life> {
    lives.get_mut(&node).ok_or_else(|| history.error(node))
}

/// Whether a node can have that name.
///
/// # Errors
///
/// INVALID.
pub fn check_name(name: &str) -> Result<()> {
    match name.len() {
        0 => Err(Error::invalid("the name of a node is empty")),
        1..=MAX_NAME if name.contains('\0') => Err(Error::invalid("the name of a node contains a NUL byte")),
        1..=MAX_NAME => Ok(()),
        len => Err(Error::invalid(format!("the name of a node has {len} bytes, more than {MAX_NAME}"))),
    }
}
