//! What wakes a polling head: libzmq's descriptor, an eventfd, and the time.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{self as gate, WaitSource};
use crate::sys::wake::{EventFd, Waker, wait_readable};

/// What a polling head waits on.
pub(crate) struct SocketWaitSource {
    pub(in crate::connection) socket: RawFd,
    pub(in crate::connection) wake: Option<Arc<EventFd>>,
    /// Look again after this time, because the descriptors do not signal everything.
    pub(in crate::connection) look_again: Option<Duration>,
}

impl WaitSource for SocketWaitSource {
    type Wake = Waker;

    fn wait(&self, until: Instant) -> bool {
        let again = self.look_again.map(|time| Instant::now() + time).filter(|again| *again < until);
        let wake = self.wake.as_ref().map_or(-1, |wake| wake.as_raw_fd());
        wait_readable(&[self.socket, wake], again.unwrap_or(until)) || again.is_some()
    }

    fn wake_poller(&self) {
        if let Some(wake) = &self.wake {
            wake.wake();
        }
    }

    fn clear(&self) {
        if let Some(wake) = &self.wake {
            wake.clear();
        }
    }

    fn wait_any<'a>(waker: &Waker, sources: impl Iterator<Item = Option<&'a Self>>, until: Instant) -> Vec<bool> {
        let (sockets, again): (Vec<RawFd>, Vec<Option<Duration>>) =
            sources.map(|source| source.map_or((-1, None), |source| (source.socket, source.look_again))).unzip();
        let soonest = again.iter().flatten().min().map(|time| Instant::now() + *time).filter(|again| *again < until);
        let mut woken = waker.wait(&sockets, soonest.unwrap_or(until));
        if soonest.is_some_and(|soonest| soonest <= Instant::now()) {
            woken.iter_mut().zip(again).for_each(|(woken, again)| *woken |= again.is_some());
        }
        woken
    }
}

impl gate::Wake for Waker {
    fn wake(&self) {
        Waker::wake(self);
    }
}
