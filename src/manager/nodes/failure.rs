//! What a node's failure took away.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use crate::ids::{ConnId, NodeId};
use crate::net::endpoint::Endpoint;
use crate::sys::lock::Mutex;

/// What a node's failure took away. There is one for each life that failed; it is not `Clone`, so that nobody
/// handles the same failure twice.
#[derive(Debug)]
pub struct Failure {
    /// The life that is over.
    pub node: NodeId,
    /// The node's name.
    pub name: Arc<str>,
    /// Why, in the words of whoever said so; one line.
    pub reason: String,
    /// Wall-clock time of the failure.
    pub at: SystemTime,
    /// What the life owned, in the order in which it was registered.
    pub endpoints: Vec<FailedEndpoint>,
    /// What was in flight on the node, ascending.
    pub requests: Requests,
}

/// One endpoint that a failed life owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedEndpoint {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The connection that it had at that moment, or NONE.
    pub conn: ConnId,
    /// Another live node owns it as well, so that its connection goes on.
    pub spared: bool,
    /// The last message that connection had accepted.
    pub accepted: u64,
    /// The last of them that the peer's kernel has acknowledged; `None`: nobody can tell.
    pub acknowledged: Option<u64>,
}

/// Ids of requests, each once and ascending: a slice that is made when it is first looked at.
///
/// A failure hands the requests over under the manager's global lock, and there may be a million of them: taking the
/// tree as it is costs nothing there, and whoever reads the report pays for the slice (milliseconds). `len` and
/// `is_empty` do not make it.
pub struct Requests {
    len: usize,
    tree: Mutex<BTreeSet<u64>>,
    slice: OnceLock<Vec<u64>>,
}

impl Requests {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of them, ascending.
    pub fn as_slice(&self) -> &[u64] {
        self.slice.get_or_init(|| std::mem::take(&mut *self.tree.lock()).into_iter().collect())
    }
}

impl Deref for Requests {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        self.as_slice()
    }
}

impl From<BTreeSet<u64>> for Requests {
    fn from(tree: BTreeSet<u64>) -> Requests {
        Requests { len: tree.len(), tree: Mutex::new(tree), slice: OnceLock::new() }
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}
