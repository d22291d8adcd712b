//! What a node's failure took away.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use crate::ids::{ConnId, NodeId};
use crate::net::endpoint::Endpoint;
use crate::sys::lock::Mutex;

/// What a node's failure took away. There is one for each life that failed. It is not `Clone`, so the same failure
/// cannot be handled twice.
#[derive(Debug)]
pub struct Failure {
    /// The life that ended.
    pub node: NodeId,
    /// The node's name.
    pub name: Arc<str>,
    /// The reason that the caller gave, as one line.
    pub reason: String,
    /// Wall-clock time of the failure.
    pub at: SystemTime,
    /// The endpoints that the life owned, in the order of their registration.
    pub endpoints: Vec<FailedEndpoint>,
    /// The requests in flight on the node, ascending.
    pub requests: Requests,
}

/// One endpoint that a failed life owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedEndpoint {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Its connection at that moment. If it had none: the last one that was lost while the node owned the endpoint, or
    /// NONE.
    pub conn: ConnId,
    /// It was READY in this life and was lost, and has not been READY since.
    pub(crate) was_lost: bool,
    /// Another live node owns it too, so its connection goes on.
    pub spared: bool,
    /// The last message that connection had accepted.
    pub accepted: u64,
    /// The last of them that the peer's kernel has acknowledged. `None`: unknown.
    pub acknowledged: Option<u64>,
}

/// Ids of requests, each once and ascending. The slice is made when it is first read.
///
/// A failure hands the requests over under the manager's global lock, and there may be a million of them. Moving the
/// tree costs nothing there. The reader of the report pays for the slice (milliseconds). `len` and `is_empty` do not
/// make the slice.
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
