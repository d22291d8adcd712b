//! Lives of nodes: what each owns, how healthy it is, and what its failure takes away.
//!
//! Pure bookkeeping: no locks, no I/O. It lives under the manager's global lock, so every call is short whatever a
//! node owns: failing a life hands its requests over in one piece, and whoever reads the report sorts them out.
//!
//! A life ends once ([`Nodes::fail`], [`Nodes::forget_all`]) and never comes back. From then on every call that names
//! it gets the same error and changes nothing: a report that arrives late cannot reach the node's next life.

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
use owned::{Owned, Seen};

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
    /// OK while it lives, else why it is over: NODE_FAILED, or DISCONNECTED when all were forgotten.
    pub status: Status,
    /// How many endpoints it owns; none once it is over.
    pub endpoints: usize,
    /// How many requests are tracked on it; none once it is over.
    pub requests: usize,
    /// Unhealthy reports since the last healthy one.
    pub failures_in_row: u32,
    /// How long it has lived, or lived until it ended.
    pub age: Duration,
    /// Why it failed; while it lives, what the last unhealthy report said, empty when the last was healthy.
    pub reason: String,
}

/// All nodes of one manager.
#[derive(Default)]
pub struct Nodes {
    /// Ordered, because ids are given out in order: whoever lists them sees the oldest first.
    lives: BTreeMap<NodeId, Life>,
    names: HashMap<Arc<str>, NodeId>,
    owned: Owned,
    over: NodeHistory,
    /// How many requests all lives track together.
    tracked: usize,
    untaken: VecDeque<Failure>,
    /// How many requests the reports in `untaken` hold together.
    untaken_requests: usize,
}

/// What lives that were forgotten leave: only to be dropped.
pub struct Remains(#[allow(dead_code)] BTreeMap<NodeId, Life>);

/// A life that goes on.
struct Life {
    name: Arc<str>,
    opened: Instant,
    /// By the place each got when it was registered, so that a report lists them in that order.
    endpoints: BTreeMap<u64, Endpoint>,
    next_place: u64,
    /// How many of `endpoints` are READY now.
    ready: usize,
    /// A tree and not a hash table: it grows without the pauses of rehashing a million, and is already sorted.
    requests: BTreeSet<u64>,
    failures_in_row: u32,
    /// What the last of them said.
    unhealthy: String,
}

impl Nodes {
    /// No nodes.
    pub fn new() -> Nodes {
        Nodes::default()
    }

    /// The current life of the node of that name, or a new and empty one; whether it is new. `max_nodes` limits live
    /// nodes and untaken reports together, so that nobody can fail and open nodes without end and never take a report.
    ///
    /// # Errors
    ///
    /// INVALID for a name that cannot be one, LIMIT.
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

    /// The current life of the node of that name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.names.get(name).copied()
    }

    /// What is known about a life, also about one that is over, while it is remembered.
    ///
    /// # Errors
    ///
    /// STALE.
    pub fn info(&self, node: NodeId) -> Result<NodeInfo> {
        if let Some(life) = self.lives.get(&node) {
            return Ok(life.info(node));
        }
        self.over.get(node).cloned().ok_or_else(|| self.over.error(node))
    }

    /// The name of the node that this is, or was, a life of.
    pub fn name(&self, node: NodeId) -> Option<Arc<str>> {
        let live = self.lives.get(&node).map(|life| &life.name);
        live.or_else(|| self.over.get(node).map(|info| &info.name)).cloned()
    }

    /// Whether the life goes on. Every call below that names a life fails with the same errors, and then changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// NODE_FAILED, DISCONNECTED when all nodes were forgotten, STALE.
    pub fn check_live(&self, node: NodeId) -> Result<()> {
        if self.lives.contains_key(&node) { Ok(()) } else { Err(self.over.error(node)) }
    }

    /// Makes the node an owner of all these endpoints. The result is those it did not own before, each once.
    ///
    /// What is READY already has to be told afterwards, by [`endpoint_ready`](Nodes::endpoint_ready).
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live).
    pub fn add_endpoints(&mut self, node: NodeId, endpoints: &[Endpoint]) -> Result<Vec<Endpoint>> {
        let life = live(&mut self.lives, &self.over, node)?;
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

    /// Makes the node an owner of none of these endpoints. The result is those that it owned and no live node owns
    /// now.
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live).
    pub fn remove_endpoints(&mut self, node: NodeId, endpoints: &[Endpoint]) -> Result<Vec<Endpoint>> {
        let life = live(&mut self.lives, &self.over, node)?;
        let mut free = Vec::new();
        for endpoint in endpoints {
            let Some(removed) = self.owned.remove(endpoint, node) else { continue };
            life.endpoints.remove(&removed.share.place);
            life.ready -= usize::from(removed.share.seen == Seen::Ready);
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

    /// Notes that a request is in flight on the node; once more changes nothing. `max_requests` limits those of all
    /// nodes and of untaken reports together.
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live), LIMIT.
    pub fn track_request(&mut self, node: NodeId, request: u64, max_requests: usize) -> Result<()> {
        let life = live(&mut self.lives, &self.over, node)?;
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

    /// Notes that a request is no longer in flight on the node; whether it was.
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live).
    pub fn untrack_request(&mut self, node: NodeId, request: u64) -> Result<bool> {
        let life = live(&mut self.lives, &self.over, node)?;
        let was_tracked = life.requests.remove(&request);
        self.tracked -= usize::from(was_tracked);
        Ok(was_tracked)
    }

    /// Counts a health report, and keeps the reason of an unhealthy one. True: it is the last of `max_failures` unhealthy ones in a row, and the caller has to
    /// fail the node now.
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live).
    pub fn report_health(&mut self, node: NodeId, healthy: bool, reason: &str, max_failures: usize) -> Result<bool> {
        let life = live(&mut self.lives, &self.over, node)?;
        life.failures_in_row = if healthy { 0 } else { life.failures_in_row.saturating_add(1) };
        life.unhealthy = if healthy { String::new() } else { one_line(reason, MAX_REASON) };
        Ok(!healthy && life.failures_in_row as usize >= max_failures)
    }

    /// Ends the life and takes away all it owned, in one step. The report lists the endpoints in the order in which
    /// they were registered, without connections and counts, which are not known here. Either it reaches the caller
    /// of kvconn, or it goes to [`leave_failure`](Nodes::leave_failure).
    ///
    /// # Errors
    ///
    /// Those of [`check_live`](Nodes::check_live).
    pub fn fail(&mut self, node: NodeId, reason: &str) -> Result<Failure> {
        let Some(life) = self.lives.remove(&node) else { return Err(self.over.error(node)) };
        self.names.remove(&life.name);
        self.tracked -= life.requests.len();
        let reason = one_line(reason, MAX_REASON);
        self.over.add(life.info(node), Status::NodeFailed, reason.clone());
        let endpoints = life.endpoints.into_values().map(|endpoint| FailedEndpoint {
            spared: self.owned.remove(&endpoint, node).is_some_and(|removed| !removed.is_free),
            endpoint,
            conn: ConnId::NONE,
            accepted: 0,
            acknowledged: Some(0),
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

    /// Ends every life, with DISCONNECTED and without a report: the caller gives the work up itself. Reports that
    /// nobody took stay. The result is all endpoints that had an owner, each once, and what the lives leave: to be
    /// dropped outside the lock, for freeing a million requests takes tens of milliseconds.
    pub fn forget_all(&mut self) -> (Vec<Endpoint>, Remains) {
        self.names.clear();
        self.tracked = 0;
        let lives = std::mem::take(&mut self.lives);
        for (node, life) in &lives {
            self.over.add(life.info(*node), Status::Disconnected, String::new());
        }
        (self.owned.take(), Remains(lives))
    }

    /// The connection to the endpoint is READY. Also to be told when an endpoint that is READY gets an owner.
    pub fn endpoint_ready(&mut self, endpoint: &Endpoint) {
        for (node, share) in self.owned.shares(endpoint) {
            if let Some(life) = self.lives.get_mut(&node) {
                life.ready += usize::from(share.seen != Seen::Ready);
                share.seen = Seen::Ready;
            }
        }
    }

    /// The connection to the endpoint is lost. The result is the nodes that have to fail now because of it. An
    /// endpoint counts for a node only if it was READY in this life and is still the node's:
    /// `Any` fails a node with the first that is lost, `All` when the last that was READY is lost.
    pub fn endpoint_lost(&mut self, endpoint: &Endpoint, policy: NodeLoss) -> Vec<NodeId> {
        let mut failed = Vec::new();
        for (node, share) in self.owned.shares(endpoint) {
            let Some(life) = self.lives.get_mut(&node) else { continue };
            if share.seen == Seen::Never {
                continue;
            }
            life.ready -= usize::from(share.seen == Seen::Ready);
            share.seen = Seen::Lost;
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

    /// A connection to it was ended from here: it counts neither as READY nor as lost.
    pub fn endpoint_put_down(&mut self, endpoint: &Endpoint) {
        for (node, share) in self.owned.shares(endpoint) {
            if let (Some(life), Seen::Ready) = (self.lives.get_mut(&node), share.seen) {
                life.ready -= 1;
                share.seen = Seen::Never;
            }
        }
    }

    /// Keeps a report that the caller of kvconn did not take, until [`take_failure`](Nodes::take_failure). It is
    /// never dropped: what bounds these reports is that they count for the limits of nodes and requests.
    pub fn leave_failure(&mut self, failure: Failure) {
        self.untaken_requests += failure.requests.len();
        self.untaken.push_back(failure);
    }

    /// The oldest report that nobody took.
    pub fn take_failure(&mut self) -> Option<Failure> {
        let failure = self.untaken.pop_front()?;
        self.untaken_requests -= failure.requests.len();
        Some(failure)
    }

    /// How many reports nobody took.
    pub fn untaken_failures(&self) -> usize {
        self.untaken.len()
    }

    /// How many lives go on.
    pub fn live_count(&self) -> usize {
        self.lives.len()
    }

    /// How many requests they track together.
    pub fn tracked_requests(&self) -> usize {
        self.tracked
    }

    /// The lives that go on, the oldest first.
    pub fn live(&self) -> impl Iterator<Item = NodeInfo> {
        self.lives.iter().map(|(node, life)| life.info(*node))
    }

    /// What the node owns, in the order in which it was registered; nothing once the life is over.
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

/// The life, if it goes on. Takes fields and not the whole, so that the others can be used beside it.
fn live<'a>(lives: &'a mut BTreeMap<NodeId, Life>, over: &NodeHistory, node: NodeId) -> Result<&'a mut Life> {
    lives.get_mut(&node).ok_or_else(|| over.error(node))
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
