//! How a connection ends: what its end is asked for with, and what the end leaves.

use std::time::{Duration, Instant};

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
