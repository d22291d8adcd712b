//! Who owns which endpoint.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::ids::NodeId;
use crate::net::endpoint::Endpoint;

/// The endpoints that live nodes own.
#[derive(Default)]
pub(super) struct Owned {
    endpoints: HashMap<Endpoint, Owners>,
}

/// Who owns an endpoint: at least one, and nearly always no other.
#[derive(Default)]
struct Owners {
    nodes: SmallVec<[NodeId; 1]>,
    /// What the endpoint is to each of `nodes`, in the same order.
    shares: SmallVec<[Share; 1]>,
}

/// What an endpoint is to one of its owners.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// Its place among those that the node owns.
    pub(super) place: u64,
    pub(super) seen: Seen,
}

/// What a life has seen of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It has not been READY since it was registered.
    Never,
    Ready,
    /// It was READY, and is not any more.
    Lost,
}

/// What [`Owned::remove`] took away.
pub(super) struct Removed {
    pub(super) share: Share,
    /// Nobody owns the endpoint now.
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

    /// What the endpoint is to each of its owners.
    pub(super) fn shares(&mut self, endpoint: &Endpoint) -> impl Iterator<Item = (NodeId, &mut Share)> {
        let owners = self.endpoints.get_mut(endpoint);
        owners.into_iter().flat_map(|owners| owners.nodes.iter().copied().zip(&mut owners.shares))
    }

    /// Makes the node an owner; false when it is one.
    pub(super) fn add(&mut self, endpoint: &Endpoint, node: NodeId, place: u64) -> bool {
        let owners = self.endpoints.entry(endpoint.clone()).or_default();
        if owners.nodes.contains(&node) {
            return false;
        }
        owners.nodes.push(node);
        owners.shares.push(Share { place, seen: Seen::Never });
        true
    }

    /// Takes the endpoint from the node, if it is the node's.
    pub(super) fn remove(&mut self, endpoint: &Endpoint, node: NodeId) -> Option<Removed> {
        let owners = self.endpoints.get_mut(endpoint)?;
        let index = owners.nodes.iter().position(|owner| *owner == node)?;
        owners.nodes.swap_remove(index);
        let share = owners.shares.swap_remove(index);
        let is_free = owners.nodes.is_empty();
        if is_free {
            self.endpoints.remove(endpoint);
        }
        Some(Removed { share, is_free })
    }

    /// Takes all from everyone; the endpoints, each once.
    pub(super) fn take(&mut self) -> Vec<Endpoint> {
        std::mem::take(&mut self.endpoints).into_keys().collect()
    }
}
