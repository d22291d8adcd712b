//! How a sender waits for room, and how it is woken.
//!
//! libzmq signals "there is room now" as an edge on one descriptor for each socket, and *any* call on the socket can
//! consume that edge. Therefore only the first sender in the queue (the **head**) polls the descriptor. The others
//! park. Every call that touches the socket while the head polls must **wake** the head, because it may have consumed
//! the head's edge. The head hands its role to the next sender on *every* exit path (the **hand-off**).
//!
//! A newcomer may **barge**: try to send before the queued senders. Strict order costs a factor of ten when several
//! threads run into a full queue. Once the head has polled for [`Channel::FAIR_AFTER`], newcomers queue too.
//!
//! The lock is held for non-blocking work only. A waiting thread holds no lock. When a connection ends, its socket is
//! closed at once, unless the head is polling its descriptor. In that case the head closes the socket when it leaves.
//!
//! A thread that sends to many connections waits at many gates at once, by the same rules ([`pending`]).
//!
//! A long item is handed over in three steps, so that the lock is never held for long: it is begun under the lock,
//! continued without it ([`Channel::hand_over`]), and completed under it. Between the steps its sender is **away**: it
//! alone may use the socket, and every other thread finds the channel busy and queues. When the sender comes back it
//! wakes the head. If the channel ended meanwhile, it is released then.

mod channel;
pub(crate) mod pending;
mod place;
pub(in crate::connection) mod wait_source;

use std::collections::VecDeque;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) use channel::{Channel, Patience, Tried, WaitSource, Wake};
use place::{Next, Place};

use crate::sys::sync::{Condvar, Mutex, MutexGuard};

/// The longest that the head polls without looking again. No wake-up is known to get lost. This is a safety net, and
/// every lost wake-up that it catches is counted ([`Gate::rescues`]). The loom model has no time, and so no net.
const SAFETY_CAP: Duration = if cfg!(loom) { Duration::from_secs(1 << 30) } else { Duration::from_millis(100) };

/// How a thread in the queue is woken, and since when it waits.
enum Waiter {
    /// It parks on this.
    Parked(Condvar, Instant),
    /// It waits at several gates. The flag says that it must look at this gate. It is set before the waker is used.
    AtSeveral(Arc<dyn Wake>, AtomicBool, Instant),
}

impl Waiter {
    fn at_several(waker: &Arc<dyn Wake>) -> Waiter {
        Waiter::AtSeveral(waker.clone(), AtomicBool::new(false), Instant::now())
    }

    fn since(&self) -> Instant {
        let (Waiter::Parked(_, since) | Waiter::AtSeveral(_, _, since)) = self;
        *since
    }

    /// Makes the thread look again.
    fn wake(&self) {
        match self {
            Waiter::Parked(condvar, _) => condvar.notify_one(),
            Waiter::AtSeveral(waker, must_look, _) => {
                must_look.store(true, Ordering::Release);
                waker.wake();
            }
        }
    }

    /// The same for a head that polls.
    fn wake_poller(&self, source: &impl WaitSource) {
        match self {
            Waiter::Parked(..) => source.wake_poller(),
            Waiter::AtSeveral(..) => self.wake(),
        }
    }

    /// Takes the flag back. Returns whether it was set.
    fn take_wakeup(&self) -> bool {
        matches!(self, Waiter::AtSeveral(_, must_look, _) if must_look.swap(false, Ordering::AcqRel))
    }
}

/// What is behind a gate. An `Option` would keep its tag far away, in a field of the channel that no item needs.
#[repr(u8)]
enum Behind<C> {
    /// The gate belongs to no connection. No thread waits.
    Nothing,
    Channel(C),
}

impl<C> Behind<C> {
    #[inline(always)]
    fn channel(&mut self) -> Option<&mut C> {
        match self {
            Behind::Channel(channel) => Some(channel),
            Behind::Nothing => None,
        }
    }

    fn take(&mut self) -> Option<C> {
        match std::mem::replace(self, Behind::Nothing) {
            Behind::Channel(channel) => Some(channel),
            Behind::Nothing => None,
        }
    }
}

/// What the gate's lock guards. What every item needs comes first, and is close together.
#[repr(C)]
struct Locked<C: Channel> {
    /// Newcomers must queue.
    fair: bool,
    /// The polling head was woken and has not seen it yet.
    poller_woken: bool,
    /// A sender hands over a long item, without the lock.
    away: bool,
    /// The head waits on this source, without the lock.
    polling: Option<Arc<C::WaitSource>>,
    behind: Behind<C>,
    queue: VecDeque<Arc<Waiter>>,
    /// How many threads wait for a change of the channel's state.
    watching: usize,
    /// How often the safety net caught a lost wake-up.
    rescues: u64,
}

/// The lock of one connection, and its queue of waiting senders.
///
/// Lock order: the manager's global lock, then connections' (several at once by ascending id), then leaf locks
/// (events, the watcher's commands, the table of gates).
///
/// What every item needs is in its first cache lines, which it does not share with another gate (`slots.rs`).
#[repr(C)]
pub(crate) struct Gate<C: Channel> {
    locked: Mutex<Locked<C>>,
    /// For threads that wait for a change of the channel's state, not for room.
    changed: Condvar,
}

/// The locked channel.
pub(crate) struct Access<'a, C: Channel> {
    gate: &'a Gate<C>,
    locked: MutexGuard<'a, Locked<C>>,
}

/// Parked threads, to be woken after the locks are released.
#[must_use]
#[derive(Default)]
pub(crate) struct Wakeups(Vec<Arc<Waiter>>);

impl Wakeups {
    /// Wakes them.
    pub(crate) fn wake(self) {
        for waiter in self.0 {
            waiter.wake();
        }
    }
}

impl<C: Channel> Deref for Access<'_, C> {
    type Target = C;
    fn deref(&self) -> &C {
        match &self.locked.behind {
            Behind::Channel(channel) => channel,
            Behind::Nothing => vacant(),
        }
    }
}

impl<C: Channel> DerefMut for Access<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.locked.channel()
    }
}

/// Never called: only a connection asks for the channel, and its gate has one.
#[cold]
#[inline(never)]
fn vacant() -> ! {
    unreachable!("the gate of no connection")
}

impl<C: Channel> Locked<C> {
    #[inline(always)]
    fn channel(&mut self) -> &mut C {
        match &mut self.behind {
            Behind::Channel(channel) => channel,
            Behind::Nothing => vacant(),
        }
    }

    /// The socket was touched: the polling head must look again, because its edge may have been consumed.
    #[inline(always)]
    fn wake_poller(&mut self) {
        if self.polling.is_some() {
            self.wake_the_poller();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_the_poller(&mut self) {
        if let (Some(source), Some(head), false) = (&self.polling, self.queue.front(), self.poller_woken) {
            self.poller_woken = true;
            head.wake_poller(&**source);
        }
    }

    /// Gives up the channel if it has ended and no thread uses it.
    fn release_if_ended(&mut self) -> Option<C::Released> {
        let ended = self.polling.is_none() && !self.away && self.channel().refuses();
        if ended { self.channel().release() } else { None }
    }
}

impl<C: Channel> Access<'_, C> {
    /// Must be called after every use of the socket.
    pub(crate) fn touched(&mut self) {
        self.locked.wake_poller();
    }

    /// How many threads wait for room.
    pub(crate) fn waiting(&self) -> usize {
        self.locked.queue.len()
    }

    /// How long the first of them has waited.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.locked.queue.front().map_or(Duration::ZERO, |head| head.since().elapsed())
    }

    /// How often the safety net caught a lost wake-up.
    pub(crate) fn rescues(&self) -> u64 {
        self.locked.rescues
    }

    /// The channel may pass items now. Wakes the head, and the threads that wait for the state.
    pub(crate) fn wake_head(&mut self) {
        self.locked.wake_poller();
        if let Some(head) = self.locked.queue.front() {
            head.wake();
        }
        self.notify_changed();
    }

    /// Wakes the threads that wait for the state. Without any, it makes no system call: a node may have thousands of
    /// connections.
    fn notify_changed(&self) {
        if self.locked.watching > 0 {
            self.gate.changed.notify_all();
        }
    }

    /// Nothing passes any more. The returned threads must be woken after the locks are released.
    pub(crate) fn refuse(mut self) -> Wakeups {
        self.locked.wake_poller();
        self.notify_changed();
        Wakeups(self.locked.queue.iter().cloned().collect())
    }

    /// The channel has ended: gives it up, unless a thread still uses it. The threads that are added to `wakeups` must be
    /// woken after the locks are released.
    pub(crate) fn close(mut self, wakeups: &mut Wakeups) -> Option<C::Released> {
        self.locked.wake_poller();
        let released = self.locked.release_if_ended();
        self.notify_changed();
        wakeups.0.extend(self.locked.queue.iter().cloned());
        released
    }
}

impl<C: Channel> Default for Gate<C> {
    /// A gate without a channel.
    fn default() -> Gate<C> {
        Gate::with(Behind::Nothing)
    }
}

impl<C: Channel> Gate<C> {
    /// Where its channel begins: the state of the lock and the tag take 8 bytes each. A test compares it.
    pub(crate) const CHANNEL: usize =
        offset_of!(Gate<C>, locked) + size_of::<u64>() + offset_of!(Locked<C>, behind) + size_of::<u64>();

    fn with(behind: Behind<C>) -> Gate<C> {
        Gate {
            locked: Mutex::new(Locked {
                fair: false,
                poller_woken: false,
                away: false,
                polling: None,
                behind,
                queue: VecDeque::new(),
                watching: 0,
                rescues: 0,
            }),
            changed: Condvar::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn new(channel: C) -> Gate<C> {
        Gate::with(Behind::Channel(channel))
    }

    /// Puts a channel behind a gate that has none.
    pub(crate) fn occupy(&self, channel: C) {
        let mut locked = self.locked.lock();
        debug_assert!(locked.queue.is_empty() && locked.polling.is_none());
        let before = std::mem::replace(&mut locked.behind, Behind::Channel(channel));
        debug_assert!(matches!(before, Behind::Nothing));
        (locked.fair, locked.rescues) = (false, 0);
    }

    /// Takes the channel away. No thread may be at the gate, except in [`pass_short`](Self::pass_short).
    pub(crate) fn vacate(&self) -> Option<C> {
        self.locked.lock().behind.take()
    }

    /// Passes a short item by the shortest way, if the channel is the right one. `None`: nothing is decided, and
    /// [`pass`](Self::pass) must follow, or [`try_pass`](Self::try_pass).
    #[inline(always)]
    pub(crate) fn pass_short(&self, item: &mut C::Short, is_right: impl FnOnce(&C) -> bool) -> Option<C::Output> {
        let mut locked = self.locked.lock();
        if locked.fair {
            return None;
        }
        let channel = locked.behind.channel().filter(|channel| is_right(channel))?;
        let passed = channel.attempt_short(item);
        locked.wake_poller();
        passed
    }

    pub(crate) fn lock(&self) -> Access<'_, C> {
        Access { gate: self, locked: self.locked.lock() }
    }

    /// The locked channel. `None` if another thread holds the lock.
    pub(crate) fn try_lock(&self) -> Option<Access<'_, C>> {
        Some(Access { gate: self, locked: self.locked.try_lock()? })
    }

    /// Waits until `look` finds something in the channel, or until the time is over.
    pub(crate) fn wait_for<T>(&self, until: Instant, look: impl Fn(&C) -> Option<T>) -> Option<T> {
        let mut locked = self.locked.lock();
        loop {
            if let Some(found) = look(locked.channel()) {
                return Some(found);
            }
            if Instant::now() >= until {
                return None;
            }
            locked.watching += 1;
            self.changed.wait_until(&mut locked, until);
            locked.watching -= 1;
        }
    }

    /// Passes the gate if that needs no waiting. `None`: it needs waiting.
    pub(crate) fn try_pass(&self, item: &mut C::Item) -> Option<Result<C::Output, C::Refusal>> {
        self.try_barge(&mut self.locked.lock(), item)
    }

    /// Tries a newcomer's item. `None`: it must queue.
    fn try_barge<'a>(
        &'a self,
        locked: &mut MutexGuard<'a, Locked<C>>,
        item: &mut C::Item,
    ) -> Option<Result<C::Output, C::Refusal>> {
        if locked.fair {
            return locked.channel().refusal().map(Err);
        }
        let attempt = self.attempt(locked, item);
        locked.wake_poller();
        match attempt {
            Attempt::Passed(done) => Some(Ok(done)),
            Attempt::Refused(why) => Some(Err(why)),
            Attempt::Full | Attempt::NotYet => None,
        }
    }

    /// One attempt. Gives the lock back while a long item is handed over.
    fn attempt<'a>(
        &'a self,
        locked: &mut MutexGuard<'a, Locked<C>>,
        item: &mut C::Item,
    ) -> Attempt<C::Output, C::Refusal> {
        let mut handover = match locked.channel().attempt(item) {
            Tried::Passed(done) => return Attempt::Passed(done),
            Tried::Full => return Attempt::Full,
            Tried::NotYet => return Attempt::NotYet,
            Tried::Refused(why) => return Attempt::Refused(why),
            Tried::Begun(handover) => handover,
        };
        locked.away = true;
        unlocked(&self.locked, locked, || C::hand_over(&mut handover, item));
        locked.away = false;
        let result = locked.channel().complete(handover, item);
        // The head may have found the channel busy, or it polls and has lost its edge.
        locked.wake_poller();
        if let Some(head) = locked.queue.front() {
            head.wake();
        }
        drop(locked.release_if_ended());
        result.map_or_else(Attempt::Refused, Attempt::Passed)
    }

    /// Passes the gate, or returns why not. `patience` is called before every wait.
    pub(crate) fn pass(
        &self,
        item: &mut C::Item,
        mut patience: impl FnMut(&mut C) -> Patience<C::Refusal>,
    ) -> Result<C::Output, C::Refusal> {
        let waiter = || Waiter::Parked(Condvar::new(), Instant::now());
        let (mut locked, mut place) = match self.enter(item, &mut patience, waiter) {
            Entered::Done(result) => return result,
            Entered::Queued(locked, place) => (locked, place),
        };
        let result = loop {
            match place.look(self, &mut locked, item, &mut patience) {
                Next::Leave(result) => break result,
                Next::Park(until) => place.park(&mut locked, until),
                Next::Poll(poll) => {
                    let woken = unlocked(&self.locked, &mut locked, || poll.source.wait(poll.end()));
                    place.polled(&mut locked, poll, woken);
                }
            }
        };
        place.leave(locked);
        result
    }

    /// Passes the gate if that needs no waiting. Else queues, if `patience` allows it.
    fn enter(
        &self,
        item: &mut C::Item,
        patience: &mut impl FnMut(&mut C) -> Patience<C::Refusal>,
        waiter: impl FnOnce() -> Waiter,
    ) -> Entered<'_, C> {
        let mut locked = self.locked.lock();
        if let Some(result) = self.try_barge(&mut locked, item) {
            return Entered::Done(result);
        }
        if let Patience::Over(why) = patience(locked.channel()) {
            return Entered::Done(Err(why));
        }
        let place = Place::take(&mut locked, waiter());
        Entered::Queued(locked, place)
    }
}

/// The result of a whole attempt.
enum Attempt<T, R> {
    Passed(T),
    Full,
    NotYet,
    Refused(R),
}

/// The result of entering the gate.
enum Entered<'a, C: Channel> {
    /// The item has passed, or never will.
    Done(Result<C::Output, C::Refusal>),
    /// The thread has a place in the queue. The next step is [`Place::look`].
    Queued(MutexGuard<'a, Locked<C>>, Place),
}

/// Releases the lock while `wait` runs.
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

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;
