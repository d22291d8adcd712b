//! What wakes a polling head: libzmq's descriptor, an eventfd, and the time.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{self as gate, Bell};
use crate::sys::wake::{Alarm, EventFd, wait_readable};

/// What a polling head waits on.
pub(crate) struct SocketBell {
    pub(in crate::connection) socket: RawFd,
    pub(in crate::connection) wake: Option<Arc<EventFd>>,
    /// No descriptor tells everything: it looks again after this time.
    pub(in crate::connection) look_again: Option<Duration>,
}

impl Bell for SocketBell {
    type Alarm = Alarm;

    fn wait(&self, until: Instant) -> bool {
        let again = self.look_again.map(|time| Instant::now() + time).filter(|again| *again < until);
        let wake = self.wake.as_ref().map_or(-1, |wake| wake.as_raw_fd());
        wait_readable(&[self.socket, wake], again.unwrap_or(until)) || again.is_some()
    }

    fn kick(&self) {
        if let Some(wake) = &self.wake {
            wake.ring();
        }
    }

    fn clear(&self) {
        if let Some(wake) = &self.wake {
            wake.clear();
        }
    }

    fn wait_any<'a>(alarm: &Alarm, bells: impl Iterator<Item = Option<&'a Self>>, until: Instant) -> Vec<bool> {
        let (sockets, again): (Vec<RawFd>, Vec<Option<Duration>>) =
            bells.map(|bell| bell.map_or((-1, None), |bell| (bell.socket, bell.look_again))).unzip();
        let soonest = again.iter().flatten().min().map(|time| Instant::now() + *time).filter(|again| *again < until);
        let mut told = alarm.wait(&sockets, soonest.unwrap_or(until));
        if soonest.is_some_and(|soonest| soonest <= Instant::now()) {
            told.iter_mut().zip(again).for_each(|(told, again)| *told |= again.is_some());
        }
        told
    }
}

impl gate::Alarm for Alarm {
    fn ring(&self) {
        Alarm::ring(self);
    }
}
