//! How a sender waits for room, and how it is woken.
//!
//! libzmq says "there is room now" by an edge on one descriptor for each socket, and *any* call on the socket may
//! eat that edge. So of all who wait, only the first in the queue (the **head**) polls that descriptor; the others
//! park. Whoever touches the socket while the head polls **kicks** it, for it may have eaten the head's edge. The
//! head hands the baton to the next on *every* way out.
//!
//! A newcomer may try its luck before those who queue (strict order costs a factor of ten as soon as several
//! threads run into a full queue) until the head has polled for [`Channel::FAIR_AFTER`]: then newcomers queue too.
//!
//! The lock is held for non-blocking work only; who waits holds none. A connection that ends gives up its socket
//! at once unless the head is polling its descriptor; then the head gives it up on its way out.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex, MutexGuard};

/// The longest the head polls without looking again. No wake-up is known to get lost; this is a safety net, and
/// every time it catches something it is counted ([`Gate::rescues`]).
const SAFETY_CAP: Duration = Duration::from_millis(100);

/// What one attempt to pass came to.
pub(crate) enum Attempt<D, R> {
    /// Passed.
    Done(D),
    /// No room; the descriptor will tell when there is some.
    Full,
    /// Cannot pass yet; whoever changes that calls [`Access::wake_head`].
    NotYet,
    /// Will never pass.
    Refused(R),
}

/// How long a waiter goes on.
pub(crate) enum Patience<R> {
    /// Until then, at least.
    Until(Instant),
    /// No longer, and why.
    Over(R),
}

/// What is behind the gate.
pub(crate) trait Channel {
    /// What wants to pass.
    type Item;
    /// What passing yields.
    type Done;
    /// Why it does not pass.
    type Refusal;
    /// What the head waits on, outside the lock.
    type Bell: Bell;
    /// How long newcomers may pass a polling head.
    const FAIR_AFTER: Duration = Duration::from_millis(2);

    /// One attempt, without waiting.
    fn attempt(&mut self, item: &mut Self::Item) -> Attempt<Self::Done, Self::Refusal>;
    /// Why nothing will pass any more, once that is so.
    fn refusal(&self) -> Option<Self::Refusal>;
    /// What the head waits on now.
    fn bell(&mut self) -> Self::Bell;
    /// The channel has ended and nobody polls: give up what the bell was made of.
    fn release(&mut self);
}

/// A descriptor of libzmq's and one of ours, or a model of them.
pub(crate) trait Bell {
    /// Waits for an edge or a kick; false when the time is over first.
    fn wait(&self, until: Instant) -> bool;
    /// Ends the wait of the head.
    fn kick(&self);
    /// Takes a kick back.
    fn clear(&self);
}

/// One parked thread.
struct Waiter {
    bell: Condvar,
}

struct Inner<C: Channel> {
    channel: C,
    queue: VecDeque<Arc<Waiter>>,
    /// Newcomers queue.
    fair: bool,
    /// The head is in a wait on this bell, without the lock.
    polling: Option<Arc<C::Bell>>,
    /// The head has been kicked and has not seen it yet.
    kicked: bool,
    /// Times the safety net found what a wake-up should have told.
    rescues: u64,
}

/// The lock of one connection, and the queue before it.
///
/// Lock order: the manager's global lock, then connections' (several at once by ascending id), then leaf locks
/// (events, the watcher's commands).
pub(crate) struct Gate<C: Channel> {
    inner: Mutex<Inner<C>>,
    /// For those who wait for the channel's state, not for room.
    changed: Condvar,
}

/// The locked channel.
pub(crate) struct Access<'a, C: Channel> {
    gate: &'a Gate<C>,
    inner: MutexGuard<'a, Inner<C>>,
}

/// Parked threads to be woken once the locks are given back.
#[must_use]
#[derive(Default)]
pub(crate) struct Wakeups(Vec<Arc<Waiter>>);

impl Wakeups {
    /// Wakes them.
    pub(crate) fn ring(self) {
        for waiter in self.0 {
            waiter.bell.notify_one();
        }
    }
}

impl<C: Channel> Deref for Access<'_, C> {
    type Target = C;
    fn deref(&self) -> &C {
        &self.inner.channel
    }
}

impl<C: Channel> DerefMut for Access<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.inner.channel
    }
}

impl<C: Channel> Inner<C> {
    /// The socket was touched: the polling head must look again, for its edge may be gone.
    fn kick(&mut self) {
        if let (Some(bell), false) = (&self.polling, self.kicked) {
            self.kicked = true;
            bell.kick();
        }
    }

    fn is_head(&self, waiter: &Arc<Waiter>) -> bool {
        self.queue.front().is_some_and(|head| Arc::ptr_eq(head, waiter))
    }
}

impl<C: Channel> Access<'_, C> {
    /// To be called after any use of the socket.
    pub(crate) fn touched(&mut self) {
        self.inner.kick();
    }

    /// How many threads wait for room.
    pub(crate) fn waiting(&self) -> usize {
        self.inner.queue.len()
    }

    /// How often the safety net caught a lost wake-up.
    pub(crate) fn rescues(&self) -> u64 {
        self.inner.rescues
    }

    /// The channel can be tried now: wakes the head, and who waits for the state.
    pub(crate) fn wake_head(&mut self) {
        self.inner.kick();
        if let Some(head) = self.inner.queue.front() {
            head.bell.notify_one();
        }
        self.gate.changed.notify_all();
    }

    /// Nothing passes any more: returns who must be told after the locks are given back.
    pub(crate) fn refuse(mut self) -> Wakeups {
        self.inner.kick();
        self.gate.changed.notify_all();
        Wakeups(self.inner.queue.iter().cloned().collect())
    }

    /// The channel has ended: gives it up, and returns who must be woken after the locks are given back.
    pub(crate) fn close(mut self) -> Wakeups {
        self.inner.kick();
        if self.inner.polling.is_none() {
            self.inner.channel.release();
        }
        self.gate.changed.notify_all();
        Wakeups(self.inner.queue.iter().cloned().collect())
    }
}

impl<C: Channel> Gate<C> {
    pub(crate) fn new(channel: C) -> Gate<C> {
        Gate {
            inner: Mutex::new(Inner {
                channel,
                queue: VecDeque::new(),
                fair: false,
                polling: None,
                kicked: false,
                rescues: 0,
            }),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> Access<'_, C> {
        Access { gate: self, inner: self.inner.lock() }
    }

    /// The locked channel, if nobody holds it.
    pub(crate) fn try_lock(&self) -> Option<Access<'_, C>> {
        Some(Access { gate: self, inner: self.inner.try_lock()? })
    }

    /// Waits until `look` finds something in the channel, or the time is over.
    pub(crate) fn wait_for<T>(&self, until: Instant, look: impl Fn(&C) -> Option<T>) -> Option<T> {
        let mut inner = self.inner.lock();
        loop {
            if let Some(found) = look(&inner.channel) {
                return Some(found);
            }
            if Instant::now() >= until {
                return None;
            }
            self.changed.wait_until(&mut inner, until);
        }
    }

    /// Passes the gate, or says why not. `patience` is asked before every wait.
    pub(crate) fn pass(
        &self,
        item: &mut C::Item,
        mut patience: impl FnMut(&mut C) -> Patience<C::Refusal>,
    ) -> Result<C::Done, C::Refusal> {
        let mut inner = self.inner.lock();
        if !inner.fair {
            let attempt = inner.channel.attempt(item);
            inner.kick();
            match attempt {
                Attempt::Done(done) => return Ok(done),
                Attempt::Refused(why) => return Err(why),
                Attempt::Full | Attempt::NotYet => {}
            }
        } else if let Some(why) = inner.channel.refusal() {
            return Err(why);
        }
        if let Patience::Over(why) = patience(&mut inner.channel) {
            return Err(why);
        }
        let me = Arc::new(Waiter { bell: Condvar::new() });
        inner.queue.push_back(me.clone());
        let result = self.queue_up(&mut inner, &me, item, patience);
        leave(inner, &me);
        result
    }

    fn queue_up<'a>(
        &'a self,
        inner: &mut MutexGuard<'a, Inner<C>>,
        me: &Arc<Waiter>,
        item: &mut C::Item,
        mut patience: impl FnMut(&mut C) -> Patience<C::Refusal>,
    ) -> Result<C::Done, C::Refusal> {
        let mut head_since = None;
        let mut capped = false;
        loop {
            let mut poll = false;
            if inner.is_head(me) {
                match inner.channel.attempt(item) {
                    Attempt::Done(done) => {
                        inner.rescues += u64::from(capped);
                        return Ok(done);
                    }
                    Attempt::Refused(why) => return Err(why),
                    Attempt::Full => poll = true,
                    Attempt::NotYet => {}
                }
            } else if let Some(why) = inner.channel.refusal() {
                return Err(why);
            }
            let until = match patience(&mut inner.channel) {
                Patience::Over(why) => return Err(why),
                Patience::Until(until) => until,
            };
            if !poll {
                me.bell.wait_until(inner, until);
                continue;
            }
            let now = Instant::now();
            if now.duration_since(*head_since.get_or_insert(now)) >= C::FAIR_AFTER {
                inner.fair = true;
            }
            let bell = Arc::new(inner.channel.bell());
            inner.polling = Some(bell.clone());
            let cap = now + SAFETY_CAP;
            let told = unlocked(&self.inner, inner, || bell.wait(until.min(cap)));
            inner.polling = None;
            let kicked = std::mem::take(&mut inner.kicked);
            if kicked {
                bell.clear();
            }
            // What came after the cap and before this thread had the lock was not lost.
            capped = until > cap && !told && !kicked && !bell.wait(now);
        }
    }
}

/// Gives the lock back for as long as `wait` takes.
#[cfg(not(loom))]
fn unlocked<'a, T, R>(_: &'a Mutex<T>, guard: &mut MutexGuard<'a, T>, wait: impl FnOnce() -> R) -> R {
    MutexGuard::unlocked(guard, wait)
}
#[cfg(loom)]
fn unlocked<'a, T, R>(mutex: &'a Mutex<T>, guard: &mut MutexGuard<'a, T>, wait: impl FnOnce() -> R) -> R {
    guard.give_back();
    let result = wait();
    *guard = mutex.lock();
    result
}

/// Leaves the queue from any place, handing the baton on.
fn leave<C: Channel>(mut inner: MutexGuard<'_, Inner<C>>, me: &Arc<Waiter>) {
    let was_head = inner.is_head(me);
    inner.queue.retain(|waiter| !Arc::ptr_eq(waiter, me));
    if was_head && inner.channel.refusal().is_some() {
        // Ended while this thread polled: the one who ended it left the socket to us. (Nobody else can be
        // polling: only the head does, and that was this thread.)
        inner.channel.release();
    }
    if inner.queue.is_empty() {
        inner.fair = false;
    } else if was_head {
        let next = inner.queue.front().cloned();
        drop(inner);
        if let Some(next) = next {
            next.bell.notify_one();
        }
    }
}

#[cfg(all(test, loom))]
#[path = "gate_model.rs"]
mod model;
#[cfg(all(test, not(loom)))]
#[path = "gate_tests.rs"]
mod tests;
