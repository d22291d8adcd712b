//! Progress of what is in flight: STALLED and RECOVERED, and how long a sender without room goes on.

use std::time::{Duration, Instant};

use super::ConnectionInner;
use crate::connection::acknowledgement::tcp_info;
use crate::connection::gate::Patience;
use crate::connection::socket::PushSocket;
use crate::connection::state::State;
use crate::error::{Error, Status};
use crate::events::{Event, EventKind};
use crate::sys::clock::Coarse;

/// The text when a send without room finds that the peer is gone, before the watcher reports it.
const NO_PEER: &str = "the peer is gone";

/// How long a connection is idle, about, before the kernel gets the patience of an idle one: keepalive has not begun yet.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);

impl ConnectionInner {
    /// Checks the progress of what is in flight, and raises STALLED or RECOVERED when due. Returns the time until the
    /// next check; `None` when nothing is in flight.
    pub(crate) fn check_stall(&mut self) -> Option<Duration> {
        if self.state != State::Ready {
            return None;
        }
        if self.account.refresh_at_rest().progress {
            self.note_progress();
        }
        let in_flight =
            self.handing_over || self.queued() > 0 || self.full && !self.socket().is_some_and(PushSocket::writable);
        if !in_flight {
            self.progress_watched = false;
            self.account.give_back();
            self.note_progress();
            return None;
        }
        let idle = self.progress.elapsed();
        if idle >= self.stall_time && !self.stalled {
            self.stalled = true;
            let text = format!("nothing in flight has made progress for {} ms", idle.as_millis());
            self.raise(Event::new(EventKind::Stalled, text));
        }
        let due = self.stall_time.saturating_sub(idle);
        Some(if due.is_zero() {
            // The longer it has stalled, the less often: RECOVERED is late by a tenth of the stall at most.
            self.check_interval().max((idle / 10).min(Duration::from_secs(1)))
        } else {
            due.clamp(Duration::from_millis(1), self.check_interval())
        })
    }

    /// Nothing is in flight. Whether [`settle`](Self::settle) must follow after [`SETTLE`].
    pub(crate) fn begins_to_settle(&mut self) -> bool {
        let begins = self.state == State::Ready && self.is_patience_in_flight && !self.settles;
        self.settles |= begins;
        begins
    }

    /// Gives the kernel the patience of an idle connection, unless messages have followed. Returns whether this must be
    /// tried again after [`SETTLE`]. Setting it for each message would take a system call twice.
    pub(crate) fn settle(&mut self) -> bool {
        let idle = self.state == State::Ready && !self.progress_watched;
        if idle && self.progress.elapsed() < SETTLE / 2 {
            return true;
        }
        self.settles = false;
        if idle && let Some(tcp) = self.account.tcp() {
            self.timeouts.while_idle(tcp);
            self.is_patience_in_flight = false;
        }
        false
    }

    /// How long it has been idle: READY, nothing to do, and every accepted message acknowledged. `None` if it is not
    /// idle.
    pub(crate) fn idle(&mut self) -> Option<Duration> {
        if self.progress_watched && self.may_be_idle() {
            // Everything may be acknowledged since the watcher's last look.
            self.refresh();
        }
        let idle = self.may_be_idle() && self.queued() == 0 && !self.full;
        idle.then(|| self.progress.elapsed())
    }

    /// The same as of the watcher's last look, without a system call.
    pub(crate) fn known_idle(&self) -> Option<Duration> {
        let idle = self.may_be_idle() && !self.progress_watched;
        idle.then(|| self.progress.elapsed())
    }

    /// Whether it is idle if nothing is in flight.
    fn may_be_idle(&self) -> bool {
        let known = self.account.acknowledged().is_some();
        self.state == State::Ready && known && !self.dead && !self.handing_over && self.draining.is_none()
    }

    /// How soon the kernel is asked again whether the budget has room. The kernel has no notification for it. The
    /// longer there was no progress, the less often it is asked.
    pub(super) fn budget_recheck_interval(&self) -> Duration {
        (self.progress.elapsed() / 16).clamp(Duration::from_millis(2), Duration::from_millis(50))
    }

    /// How often progress is checked while something is in flight. Progress and STALLED are seen at most one check
    /// late.
    pub(super) fn check_interval(&self) -> Duration {
        (self.stall_time / 10).clamp(Duration::from_millis(5), Duration::from_millis(100))
    }

    /// When progress is checked for the first time after something was sent on an idle connection. A message now and then
    /// is acknowledged by then, and so are those that followed soon: one check is enough for all of them. Progress is noted
    /// late by this time at most.
    pub(super) fn first_check(&self) -> Duration {
        (self.stall_time / 4).min(Duration::from_millis(250)).max(self.check_interval())
    }

    /// How long nothing has moved.
    pub(in crate::connection) fn without_progress(&self) -> Duration {
        self.progress.elapsed()
    }

    /// It has made progress.
    pub(super) fn note_progress(&mut self) {
        self.full = false;
        self.ran_out = None;
        self.progress = Coarse::now();
        if std::mem::take(&mut self.stalled) {
            self.raise(Event::new(EventKind::Recovered, ""));
        }
    }

    #[inline(always)]
    pub(super) fn note_accepted(&mut self) {
        self.full = false;
        if !self.progress_watched {
            self.begin_progress();
        }
    }

    /// Nothing was in flight before: patience counts from here.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_progress(&mut self) {
        self.progress = Coarse::now();
        self.watch_progress(self.first_check());
    }

    pub(super) fn watch_progress(&mut self, within: Duration) {
        if !std::mem::replace(&mut self.progress_watched, true) {
            if let (false, Some(tcp)) = (self.is_patience_in_flight, self.account.tcp()) {
                self.timeouts.while_in_flight(tcp);
                self.is_patience_in_flight = true;
            }
            self.watcher.check_stall(self.conn, within);
        }
    }

    /// Whether a send with at least this timeout had run out when this one began, without progress since then. A send
    /// that waited by then goes on: it has a deadline of its own. In whole milliseconds, because kvconn_send_to takes
    /// from its timeout what finding the connection took.
    pub(super) fn has_waited_in_vain(&self, timeout: Duration, begun: Instant) -> bool {
        self.ran_out
            .is_some_and(|(longest, at)| begun >= at && timeout.as_millis() <= longest.as_nanos().div_ceil(1_000_000))
    }

    /// How long a sender goes on that began at `begun` and found no room. A pipe that has just died has no room either:
    /// the kernel is asked before a sender gives up.
    pub(in crate::connection) fn patience(&mut self, timeout: Duration, begun: Instant) -> Patience<Error> {
        let patience = self.patience_for_room(timeout, begun);
        let is_over = || self.account.tcp().is_some_and(|tcp| tcp_info::read(tcp).is_ok_and(|info| info.is_over()));
        match patience {
            Patience::Over(_) if self.state == State::Ready && is_over() => {
                Patience::Over(self.error(Status::PeerLost, 0, NO_PEER))
            }
            patience => patience,
        }
    }

    /// The same for a peer that is there. The patience counts from the connection's last progress. It is the sender's
    /// own: a shorter deadline of another thread does not change it.
    pub(super) fn patience_for_room(&mut self, timeout: Duration, begun: Instant) -> Patience<Error> {
        let (now, deadline) = (Instant::now(), begun + timeout);
        let (conn, endpoint) = (self.conn, self.endpoint.clone());
        let over = |status, text: String| Patience::Over(Error::new(status, text).about(conn).at(endpoint));
        if self.state == State::Connecting {
            // A dial without an answer is no progress.
            let connecting = begun.saturating_duration_since(self.dialled);
            if connecting >= timeout && !timeout.is_zero() {
                let text = format!("connecting for {} ms without an answer; not accepted", connecting.as_millis());
                return over(Status::Stalled, text);
            }
            if now < deadline {
                self.hurry();
                return Patience::Until(deadline);
            }
            return over(Status::Timeout, format!("not READY within {} ms; not accepted", timeout.as_millis()));
        }
        if self.handing_over {
            // Not full: another thread hands over a long message, and does not wait.
            if now < deadline {
                return Patience::Until(deadline);
            }
            let text = format!("busy with another thread's long message for {} ms", timeout.as_millis());
            return over(Status::Timeout, format!("{text}; not accepted"));
        }
        if self.progress.elapsed() >= timeout {
            self.refresh();
        }
        let idle = self.progress.elapsed();
        if idle >= timeout && !timeout.is_zero() {
            let text = format!("full, and no progress for {} ms; not accepted", idle.as_millis());
            return over(Status::Stalled, text);
        }
        if now >= deadline {
            if self.ran_out.is_none_or(|(longest, _)| longest < timeout) {
                self.ran_out = Some((timeout, now));
            }
            // Without a descriptor of ours nothing tells the two apart.
            let or = if self.account.tcp().is_none() { " (full, or the peer has just gone)" } else { "" };
            return over(Status::Timeout, format!("no room within {} ms{or}; not accepted", timeout.as_millis()));
        }
        if self.has_waited_in_vain(timeout, begun) {
            self.refresh();
            if let Some((longest, at)) = self.ran_out {
                let (longest, ago) = (longest.as_millis(), at.elapsed().as_millis());
                let text =
                    format!("no room within the {longest} ms of a send before, and no progress in {ago} ms since");
                return over(Status::Timeout, format!("{text}; not waited again, not accepted"));
            }
        }
        Patience::Until(deadline.min(now + (timeout - idle)))
    }
}
