//! Connections by id: live ones, and ended ones whose endings are remembered.

use std::collections::HashMap;
use std::sync::Arc;

use crate::connection::Connection;
use crate::ids::ConnId;
use crate::sys::lock::RwLock;

/// Sharded, so that senders to different connections rarely share a lock.
const SHARDS: usize = 64;

/// The table. Its locks are leaf locks, held for one look-up or change.
pub(crate) struct Registry([RwLock<HashMap<ConnId, Arc<Connection>>>; SHARDS]);

impl Registry {
    pub(crate) fn new() -> Registry {
        Registry(std::array::from_fn(|_| RwLock::default()))
    }

    fn shard(&self, id: ConnId) -> &RwLock<HashMap<ConnId, Arc<Connection>>> {
        &self.0[(id.0 % SHARDS as u64) as usize]
    }

    pub(crate) fn find(&self, id: ConnId) -> Option<Arc<Connection>> {
        self.shard(id).read().get(&id).cloned()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Connection>> {
        self.0.iter().flat_map(|shard| shard.read().values().cloned().collect::<Vec<_>>()).collect()
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
