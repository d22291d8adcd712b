//! What a connection needs from above. Its manager implements it, so that a connection does not name its manager.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::Connection;
use super::acknowledgement::release_tracker::ReleaseQueue;
use super::end::End;
use super::socket::PushSocket;
use crate::error::{Result, Status};
use crate::ids::{AttemptId, ConnId};

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

/// The thread that watches the sockets of connections. Its methods only queue a command (leaf lock), so they may be
/// called under any lock.
pub(crate) trait SocketWatcher: Send + Sync {
    /// Closes the sockets of dial attempts that are watched.
    fn close(&self, sockets: Vec<(AttemptId, PushSocket)>);
    /// A caller waits for this dial attempt.
    fn hurry(&self, attempt: AttemptId);
    /// Looks after `within` whether messages in flight make progress.
    fn check_stall(&self, conn: ConnId, within: Duration);
}

/// The socket of an ended connection. When it is dropped, the watcher gets it to close it.
pub(crate) struct ClosingSocket {
    socket: Option<(AttemptId, PushSocket)>,
    watcher: Arc<dyn SocketWatcher>,
}

impl ClosingSocket {
    pub(super) fn new(attempt: AttemptId, push: PushSocket, watcher: Arc<dyn SocketWatcher>) -> ClosingSocket {
        ClosingSocket { socket: Some((attempt, push)), watcher }
    }

    /// Drops all of them: the watcher, which is the same for all, gets them in one step and is woken once.
    pub(super) fn close_all(mut sockets: Vec<ClosingSocket>) {
        let Some(watcher) = sockets.first().map(|first| first.watcher.clone()) else { return };
        watcher.close(sockets.iter_mut().filter_map(|closing| closing.socket.take()).collect());
    }
}

impl Drop for ClosingSocket {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.watcher.close(vec![socket]);
        }
    }
}
