//! The thread that watches the sockets of connections, as a connection sees it. It stands above, so a connection does not
//! name it.

use std::sync::Arc;
use std::time::Duration;

use super::socket::PushSocket;
use crate::ids::{AttemptId, ConnId};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::descriptors::DescriptorBudget;
    use crate::connection::socket::open_attempt;
    use crate::libzmq::{Context, Inbox};
    use crate::options::Values;
    use crate::sys::lock::Mutex;
    use crate::sys::wake::EventFd;

    /// Notes how many sockets it gets at a time.
    #[derive(Default)]
    struct Noted(Mutex<Vec<usize>>);

    impl SocketWatcher for Noted {
        fn close(&self, sockets: Vec<(AttemptId, PushSocket)>) {
            self.0.lock().push(sockets.len());
        }
        fn hurry(&self, _: AttemptId) {}
        fn check_stall(&self, _: ConnId, _: Duration) {}
    }

    #[test]
    fn the_watcher_gets_the_sockets_of_many_ended_connections_in_one_step() {
        let context = Context::new(1, 16).expect("a context");
        let inbox = Arc::new(Inbox::new(Arc::new(EventFd::new().expect("an eventfd"))));
        let (budget, watcher) = (Arc::new(DescriptorBudget::new()), Arc::new(Noted::default()));
        let make = || {
            let made = open_attempt((&context, &inbox), &budget, &Values::defaults());
            let (attempt, push, monitor) = made.expect("a socket");
            (ClosingSocket::new(attempt, push, watcher.clone()), monitor)
        };
        let (sockets, monitors): (Vec<_>, Vec<_>) = (0..3).map(|_| make()).unzip();
        ClosingSocket::close_all(sockets);
        assert_eq!(*watcher.0.lock(), [3]);
        drop(make());
        ClosingSocket::close_all(Vec::new());
        assert_eq!(*watcher.0.lock(), [3, 1]);
        drop(monitors);
        context.terminate();
    }
}
