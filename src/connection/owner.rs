//! What a connection needs from above. Its manager implements it, so that a connection does not name its manager.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::Connection;
use super::acknowledgement::release_tracker::ReleaseQueue;
use super::end::End;
use crate::error::{Result, Status};

/// The manager of a connection. Every method may take the manager's global lock, unless it says otherwise: no lock may
/// be held when it is called.
pub(crate) trait Owner: Send + Sync {
    /// The configured `send_timeout_ms`. Takes no lock.
    fn send_timeout(&self) -> Duration;
    /// Counts a send that was not accepted. Takes no lock.
    fn count_refused(&self, status: Status);
    /// Counts the time that a send has waited. Takes no lock.
    fn count_wait(&self, time: Duration);
    /// Asks all connections to give back the bytes of the process's budget that they do not need. Returns false when
    /// that was done a moment ago.
    fn reclaim_bytes(&self) -> bool;
    /// The queue of the thread `kvconn-release`, which the first call starts. LIMIT when the thread cannot be started.
    fn release_queue(&self) -> Result<Arc<ReleaseQueue>>;
    /// The handshake of a connection has succeeded. `tcp`: a descriptor of ours for its TCP connection, if it has one.
    fn ready(&self, conn: &Arc<Connection>, tcp: Option<OwnedFd>);
    /// Ends a connection, unless it has ended.
    fn end(&self, conn: &Arc<Connection>, end: End);
    /// Evicts a connection that has been idle for `limit`. Returns when to look again, if the connection lives on.
    fn evict_after(&self, conn: &Arc<Connection>, limit: Duration) -> Option<Duration>;
    /// libzmq has closed the last socket of a connection.
    fn sockets_closed(&self);
}
