//! How a connection ends: what its end is asked for with, and what the end leaves.

use std::time::{Duration, Instant};

use super::gate::{Access, Wakeups};
use super::inner::ConnectionInner;
use super::socket_watcher::ClosingSocket;
use super::state::{EndReason, Transition};
use crate::delivery::Delivery;

/// How a connection ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) transition: Transition,
    pub(crate) os_errno: i32,
    pub(crate) message: String,
    /// How long accepted messages may still be sent.
    pub(crate) linger: Duration,
    pub(crate) at: Instant,
}

impl End {
    pub(crate) fn new(transition: Transition, message: impl Into<String>) -> End {
        End { transition, os_errno: 0, message: message.into(), linger: Duration::ZERO, at: Instant::now() }
    }

    pub(crate) fn errno(mut self, os_errno: i32) -> End {
        self.os_errno = os_errno;
        self
    }

    pub(crate) fn linger(mut self, time: Duration) -> End {
        self.linger = time;
        self
    }
}

/// What the cache needs to know about an ended connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) ending: EndReason,
    pub(crate) delivery: Delivery,
    pub(crate) os_errno: i32,
    /// How long it was READY. `None` if it never was.
    pub(crate) ready_for: Option<Duration>,
}

/// What the end of connections leaves to do. [`run`](Aftermath::run) must follow when the locks are released.
#[must_use]
#[derive(Default)]
pub(crate) struct Aftermath {
    wakeups: Wakeups,
    sockets: Vec<ClosingSocket>,
}

impl Aftermath {
    /// Gives up an ended connection.
    pub(crate) fn close(&mut self, conn: Access<'_, ConnectionInner>) {
        self.sockets.extend(conn.close(&mut self.wakeups));
    }

    /// Wakes the senders, and only then has the sockets closed: that keeps the watcher and libzmq's threads busy, which
    /// would take the processor from this call if they began while it still ends other connections.
    pub(crate) fn run(self) {
        self.wakeups.wake();
        ClosingSocket::close_all(self.sockets);
    }
}
