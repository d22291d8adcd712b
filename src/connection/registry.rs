//! Connections by id: live ones, and ended ones whose endings are remembered.

use std::collections::HashMap;
use std::sync::Arc;

use super::slots::{Slot, Slots};
use super::{Connection, ConnectionGate};
use crate::ids::ConnId;
use crate::sys::lock::RwLock;

/// Sharded, so that senders to different connections rarely share a lock.
const SHARDS: usize = 64;

/// The table. Its locks are leaf locks, held for one look-up or change.
pub(crate) struct Registry {
    shards: [RwLock<HashMap<ConnId, Arc<Connection>>>; SHARDS],
    /// The gates of the live ones.
    gates: Arc<Slots<ConnectionGate>>,
}

impl Registry {
    pub(crate) fn new() -> Registry {
        Registry { shards: std::array::from_fn(|_| RwLock::default()), gates: Arc::new(Slots::new()) }
    }

    fn shard(&self, id: ConnId) -> &RwLock<HashMap<ConnId, Arc<Connection>>> {
        &self.shards[(id.0 % SHARDS as u64) as usize]
    }

    /// An id for a new connection, and its gate.
    pub(super) fn open_gate(&self) -> Slot<ConnectionGate> {
        self.gates.open()
    }

    /// The gates of live connections, by id.
    pub(crate) fn gates(&self) -> &Arc<Slots<ConnectionGate>> {
        &self.gates
    }

    pub(crate) fn find(&self, id: ConnId) -> Option<Arc<Connection>> {
        self.shard(id).read().get(&id).cloned()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Connection>> {
        self.shards.iter().flat_map(|shard| shard.read().values().cloned().collect::<Vec<_>>()).collect()
    }

    pub(crate) fn add(&self, conn: &Arc<Connection>) {
        self.shard(conn.id()).write().insert(conn.id(), conn.clone());
    }

    pub(crate) fn remove(&self, id: ConnId) {
        let removed = self.shard(id).write().remove(&id);
        // Dropped outside the lock: this may be the last reference to a manager.
        drop(removed);
    }
}
