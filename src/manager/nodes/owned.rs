//! Which nodes own which endpoint.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::ids::NodeId;
use crate::net::endpoint::Endpoint;

/// The endpoints that live nodes own.
#[derive(Default)]
pub(super) struct Owned {
    endpoints: HashMap<Endpoint, Owners>,
}

/// The owners of an endpoint: at least one, and nearly always exactly one.
#[derive(Default)]
struct Owners {
    nodes: SmallVec<[NodeId; 1]>,
    /// One for each of `nodes`, in the same order.
    records: SmallVec<[OwnerRecord; 1]>,
}

/// One owner's record of an endpoint.
#[derive(Clone, Copy)]
pub(super) struct OwnerRecord {
    /// Its place in the node's order of registration.
    pub(super) place: u64,
    pub(super) readiness: Readiness,
}

/// What this life has seen of the endpoint's connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    /// It has not been READY since it was registered.
    Never,
    Ready,
    /// It was READY and was lost.
    Lost,
}

/// The result of [`Owned::remove`].
pub(super) struct Removed {
    pub(super) record: OwnerRecord,
    /// The endpoint has no owner now.
    pub(super) is_free: bool,
}

impl Owned {
    /// How many endpoints have an owner.
    pub(super) fn len(&self) -> usize {
        self.endpoints.len()
    }

    pub(super) fn owners(&self, endpoint: &Endpoint) -> &[NodeId] {
        self.endpoints.get(endpoint).map_or(&[], |owners| &owners.nodes)
    }

    /// Each owner with its record of the endpoint.
    pub(super) fn records(&mut self, endpoint: &Endpoint) -> impl Iterator<Item = (NodeId, &mut OwnerRecord)> {
        let owners = self.endpoints.get_mut(endpoint);
        owners.into_iter().flat_map(|owners| owners.nodes.iter().copied().zip(&mut owners.records))
    }

    /// Makes the node an owner. Returns false if it was one already.
    pub(super) fn add(&mut self, endpoint: &Endpoint, node: NodeId, place: u64) -> bool {
        let owners = self.endpoints.entry(endpoint.clone()).or_default();
        if owners.nodes.contains(&node) {
            return false;
        }
        owners.nodes.push(node);
        owners.records.push(OwnerRecord { place, readiness: Readiness::Never });
        true
    }

    /// Removes the node as an owner. `None` if it was none.
    pub(super) fn remove(&mut self, endpoint: &Endpoint, node: NodeId) -> Option<Removed> {
        let owners = self.endpoints.get_mut(endpoint)?;
        let index = owners.nodes.iter().position(|owner| *owner == node)?;
        owners.nodes.swap_remove(index);
        let record = owners.records.swap_remove(index);
        let is_free = owners.nodes.is_empty();
        if is_free {
            self.endpoints.remove(endpoint);
        }
        Some(Removed { record, is_free })
    }

    /// Removes all owners. Returns the endpoints, each once.
    pub(super) fn take(&mut self) -> Vec<Endpoint> {
        std::mem::take(&mut self.endpoints).into_keys().collect()
    }
}
