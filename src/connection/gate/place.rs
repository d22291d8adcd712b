//! A thread's place in the queue of a gate, and what it does there.

use std::sync::Arc;
use std::time::Instant;

use super::{Attempt, Channel, Gate, Locked, Patience, SAFETY_CAP, WaitSource, Waiter};
use crate::sys::sync::MutexGuard;

/// A thread's place in the queue.
pub(super) struct Place {
    pub(super) me: Arc<Waiter>,
    /// When it first polled.
    pub(super) head_since: Option<Instant>,
    /// The safety net ended the last wait, and nothing else would have.
    pub(super) capped: bool,
}

/// What a queued thread must do next.
pub(super) enum Next<C: Channel> {
    /// The item has passed, or never will: leave the queue.
    Leave(Result<C::Output, C::Refusal>),
    /// Wait until another thread wakes this one.
    Park(Instant),
    /// Poll the source, then call [`Place::polled`].
    Poll(Poll<C::WaitSource>),
}

/// A wait of the polling head.
pub(super) struct Poll<S> {
    pub(super) source: Arc<S>,
    pub(super) until: Instant,
    pub(super) cap: Instant,
}

impl<S> Poll<S> {
    /// When it times out.
    pub(super) fn end(&self) -> Instant {
        self.until.min(self.cap)
    }
}

impl Place {
    /// Takes the last place in the queue.
    pub(super) fn take<C: Channel>(locked: &mut Locked<C>, waiter: Waiter) -> Place {
        let me = Arc::new(waiter);
        locked.queue.push_back(me.clone());
        Place { me, head_since: None, capped: false }
    }

    pub(super) fn is_head<C: Channel>(&self, locked: &Locked<C>) -> bool {
        locked.queue.front().is_some_and(|head| Arc::ptr_eq(head, &self.me))
    }

    /// Tries the item if this place is the head. Returns what to do next.
    pub(super) fn look<'a, C: Channel>(
        &mut self,
        gate: &'a Gate<C>,
        locked: &mut MutexGuard<'a, Locked<C>>,
        item: &mut C::Item,
        patience: &mut impl FnMut(&mut C) -> Patience<C::Refusal>,
    ) -> Next<C> {
        let mut full = false;
        if self.is_head(locked) {
            match gate.attempt(locked, item) {
                Attempt::Passed(done) => {
                    locked.rescues += u64::from(self.capped);
                    return Next::Leave(Ok(done));
                }
                Attempt::Refused(why) => return Next::Leave(Err(why)),
                Attempt::Full => full = true,
                Attempt::NotYet => {
                    self.capped = false;
                    // Newcomers queue. Otherwise threads that send long items would always come first.
                    locked.fair |= locked.away;
                }
            }
        } else if let Some(why) = locked.channel().refusal() {
            return Next::Leave(Err(why));
        }
        let until = match patience(locked.channel()) {
            Patience::Over(why) => return Next::Leave(Err(why)),
            Patience::Until(until) => until,
        };
        if !full {
            return Next::Park(until);
        }
        let now = Instant::now();
        if now.duration_since(*self.head_since.get_or_insert(now)) >= C::FAIR_AFTER {
            locked.fair = true;
        }
        let has_waker = matches!(*self.me, Waiter::AtSeveral(..));
        let source = Arc::new(locked.channel().source(has_waker));
        locked.polling = Some(source.clone());
        Next::Poll(Poll { source, until, cap: now + SAFETY_CAP })
    }

    /// Waits until another thread wakes this one.
    pub(super) fn park<C: Channel>(&self, locked: &mut MutexGuard<'_, Locked<C>>, until: Instant) {
        if let Waiter::Parked(condvar, _) = &*self.me {
            condvar.wait_until(locked, until);
        }
    }

    /// Must be called after a wait on the source. `woken`: the source or another thread ended the wait, not the time.
    pub(super) fn polled<C: Channel>(&mut self, locked: &mut Locked<C>, poll: Poll<C::WaitSource>, woken: bool) {
        locked.polling = None;
        let poller_woken = std::mem::take(&mut locked.poller_woken);
        if poller_woken {
            poll.source.clear();
        }
        // A wake-up that came after the cap, but before this thread got the lock, was not lost.
        self.capped = poll.until > poll.cap && !woken && !poller_woken && !poll.source.wait(poll.cap);
    }

    /// Leaves the queue. The head hands its role to the next thread.
    pub(super) fn leave<C: Channel>(self, mut locked: MutexGuard<'_, Locked<C>>) {
        let was_head = self.is_head(&locked);
        locked.queue.retain(|waiter| !Arc::ptr_eq(waiter, &self.me));
        if was_head {
            // If the connection ended while this thread polled, its socket was left for this thread to close. No other
            // thread can be polling: only the head polls, and that was this thread.
            drop(locked.release_if_ended());
        }
        if was_head || locked.queue.is_empty() {
            // The next head has not waited for long. If newcomers had to queue until the queue is empty, busy senders
            // would never empty it, and every message would cost a context switch.
            locked.fair = false;
        }
        if was_head && !locked.queue.is_empty() {
            let next = locked.queue.front().cloned();
            drop(locked);
            if let Some(next) = next {
                next.wake();
            }
        }
    }
}
