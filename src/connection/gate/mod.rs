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
//!
//! A thread that sends to many waits at many gates at once, by the same rules ([`pending`]).
//!
//! A long item is handed over in three steps, so that the lock is never held for long: it is begun under the lock, goes
//! on without it ([`Channel::hand_over`]), and is completed under it. Between the steps the channel's user is **away**:
//! it alone may use the socket, and everybody else finds the channel busy and queues. When it comes back it wakes the
//! head. A channel that ended meanwhile is released then.

pub(crate) mod pending;
pub(in crate::connection) mod wait_source;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::sys::sync::{Condvar, Mutex, MutexGuard};

/// The longest the head polls without looking again. No wake-up is known to get lost; this is a safety net, and
/// every time it catches something it is counted ([`Gate::rescues`]). The model knows no time, and has no net.
const SAFETY_CAP: Duration = if cfg!(loom) { Duration::from_secs(1 << 30) } else { Duration::from_millis(100) };

/// What one attempt to pass came to.
pub(crate) enum Tried<D, R, H> {
    /// Passed.
    Done(D),
    /// Begun. The rest is long: it goes on without the lock.
    Begun(H),
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
    type WaitSource: WaitSource;
    /// What a long item is handed over with while its sender is away.
    type Handover;
    /// How long newcomers may pass a polling head.
    const FAIR_AFTER: Duration = Duration::from_millis(2);

    /// One attempt, without waiting.
    fn attempt(&mut self, item: &mut Self::Item) -> Tried<Self::Done, Self::Refusal, Self::Handover>;
    /// Goes on with an item that was begun, without the lock and without waiting.
    fn hand_over(handover: &mut Self::Handover, item: &mut Self::Item);
    /// Ends the attempt that was begun: the item passes now, or not at all.
    fn complete(&mut self, handover: Self::Handover, item: &mut Self::Item) -> Result<Self::Done, Self::Refusal>;
    /// Why nothing will pass any more, once that is so.
    fn refusal(&self) -> Option<Self::Refusal>;
    /// What the head waits on now. `has_waker`: the source need not be kicked, because the head has an waker.
    fn source(&mut self, has_waker: bool) -> Self::WaitSource;
    /// The channel has ended, nobody polls and nobody is away: give up what the source was made of.
    fn release(&mut self);
}

/// A descriptor of libzmq's and one of ours, or a model of them.
pub(crate) trait WaitSource {
    /// What wakes a thread that waits for several sources.
    type Wake: Wake + 'static;
    /// Waits for an edge or a kick; false when the time is over first.
    fn wait(&self, until: Instant) -> bool;
    /// Ends the wait of the head.
    fn wake_poller(&self);
    /// Takes a kick back.
    fn clear(&self);
    /// Waits for an edge of any source or for the waker, takes the waker back, and tells which sources had an edge.
    fn wait_any<'a>(waker: &Self::Wake, sources: impl Iterator<Item = Option<&'a Self>>, until: Instant) -> Vec<bool>
    where
        Self: 'a;
}

/// Wakes a thread that waits at several gates: one waker for all of them.
pub(crate) trait Wake: Send + Sync {
    /// Ends its wait, the present or the next.
    fn wake(&self);
}

/// How a thread in the queue is woken.
enum Waiter {
    /// It parks here.
    Here(Condvar),
    /// It waits at several gates. The flag says that it is to look at this one; it is set before the waker rings.
    AtSeveral(Arc<dyn Wake>, AtomicBool),
}

impl Waiter {
    fn at_several(waker: &Arc<dyn Wake>) -> Waiter {
        Waiter::AtSeveral(waker.clone(), AtomicBool::new(false))
    }

    /// To be called when it should look again.
    fn wake(&self) {
        match self {
            Waiter::Here(source) => source.notify_one(),
            Waiter::AtSeveral(waker, called) => {
                called.store(true, Ordering::Release);
                waker.wake();
            }
        }
    }

    /// The same for a head that polls.
    fn wake_poller(&self, source: &impl WaitSource) {
        match self {
            Waiter::Here(_) => source.wake_poller(),
            Waiter::AtSeveral(..) => self.wake(),
        }
    }

    /// Takes back that it should look.
    fn take_call(&self) -> bool {
        matches!(self, Waiter::AtSeveral(_, called) if called.swap(false, Ordering::AcqRel))
    }
}

struct Inner<C: Channel> {
    channel: C,
    queue: VecDeque<Arc<Waiter>>,
    /// Newcomers queue.
    fair: bool,
    /// The head is in a wait on this source, without the lock.
    polling: Option<Arc<C::WaitSource>>,
    /// The head has been kicked and has not seen it yet.
    poller_woken: bool,
    /// A thread hands over a long item, without the lock.
    away: bool,
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
    pub(crate) fn wake(self) {
        for waiter in self.0 {
            waiter.wake();
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
    fn wake_poller(&mut self) {
        if let (Some(source), Some(head), false) = (&self.polling, self.queue.front(), self.poller_woken) {
            self.poller_woken = true;
            head.wake_poller(&**source);
        }
    }

    /// Gives up the channel if it has ended and nobody uses it.
    fn release_if_ended(&mut self) {
        if self.polling.is_none() && !self.away && self.channel.refusal().is_some() {
            self.channel.release();
        }
    }
}

impl<C: Channel> Access<'_, C> {
    /// To be called after any use of the socket.
    pub(crate) fn touched(&mut self) {
        self.inner.wake_poller();
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
        self.inner.wake_poller();
        if let Some(head) = self.inner.queue.front() {
            head.wake();
        }
        self.gate.changed.notify_all();
    }

    /// Nothing passes any more: returns who must be told after the locks are given back.
    pub(crate) fn refuse(mut self) -> Wakeups {
        self.inner.wake_poller();
        self.gate.changed.notify_all();
        Wakeups(self.inner.queue.iter().cloned().collect())
    }

    /// The channel has ended: gives it up, and returns who must be woken after the locks are given back.
    pub(crate) fn close(mut self) -> Wakeups {
        self.inner.wake_poller();
        self.inner.release_if_ended();
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
                poller_woken: false,
                away: false,
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

    /// Passes the gate if that needs no waiting; `None` when it does.
    pub(crate) fn try_pass(&self, item: &mut C::Item) -> Option<Result<C::Done, C::Refusal>> {
        self.try_barge(&mut self.inner.lock(), item)
    }

    /// The attempt of one who has just come; `None` when it must queue.
    fn try_barge<'a>(
        &'a self,
        inner: &mut MutexGuard<'a, Inner<C>>,
        item: &mut C::Item,
    ) -> Option<Result<C::Done, C::Refusal>> {
        if inner.fair {
            return inner.channel.refusal().map(Err);
        }
        let attempt = self.attempt(inner, item);
        inner.wake_poller();
        match attempt {
            Attempt::Done(done) => Some(Ok(done)),
            Attempt::Refused(why) => Some(Err(why)),
            Attempt::Full | Attempt::NotYet => None,
        }
    }

    /// One attempt. Gives the lock back while a long item is handed over.
    fn attempt<'a>(&'a self, inner: &mut MutexGuard<'a, Inner<C>>, item: &mut C::Item) -> Attempt<C::Done, C::Refusal> {
        let mut handover = match inner.channel.attempt(item) {
            Tried::Done(done) => return Attempt::Done(done),
            Tried::Full => return Attempt::Full,
            Tried::NotYet => return Attempt::NotYet,
            Tried::Refused(why) => return Attempt::Refused(why),
            Tried::Begun(handover) => handover,
        };
        inner.away = true;
        unlocked(&self.inner, inner, || C::hand_over(&mut handover, item));
        inner.away = false;
        let result = inner.channel.complete(handover, item);
        // The head may have found the channel busy, or polls and has lost its edge.
        inner.wake_poller();
        if let Some(head) = inner.queue.front() {
            head.wake();
        }
        inner.release_if_ended();
        result.map_or_else(Attempt::Refused, Attempt::Done)
    }

    /// Passes the gate, or says why not. `patience` is asked before every wait.
    pub(crate) fn pass(
        &self,
        item: &mut C::Item,
        mut patience: impl FnMut(&mut C) -> Patience<C::Refusal>,
    ) -> Result<C::Done, C::Refusal> {
        let (mut inner, mut place) = match self.enter(item, &mut patience, || Waiter::Here(Condvar::new())) {
            Entered::Over(result) => return result,
            Entered::Queued(inner, place) => (inner, place),
        };
        let result = loop {
            match place.look(self, &mut inner, item, &mut patience) {
                Next::Over(result) => break result,
                Next::Park(until) => place.park(&mut inner, until),
                Next::Poll(poll) => {
                    let told = unlocked(&self.inner, &mut inner, || poll.source.wait(poll.end()));
                    place.polled(&mut inner, poll, told);
                }
            }
        };
        place.leave(inner);
        result
    }

    /// Passes the gate if that needs no waiting, else queues, if there is patience for it.
    fn enter(
        &self,
        item: &mut C::Item,
        patience: &mut impl FnMut(&mut C) -> Patience<C::Refusal>,
        waiter: impl FnOnce() -> Waiter,
    ) -> Entered<'_, C> {
        let mut inner = self.inner.lock();
        if let Some(result) = self.try_barge(&mut inner, item) {
            return Entered::Over(result);
        }
        if let Patience::Over(why) = patience(&mut inner.channel) {
            return Entered::Over(Err(why));
        }
        let place = Place::take(&mut inner, waiter());
        Entered::Queued(inner, place)
    }
}

/// What a whole attempt came to.
enum Attempt<D, R> {
    Done(D),
    Full,
    NotYet,
    Refused(R),
}

/// What coming to the gate came to.
enum Entered<'a, C: Channel> {
    /// It has passed, or never will.
    Over(Result<C::Done, C::Refusal>),
    /// It has a place in the queue; to look from there is next.
    Queued(MutexGuard<'a, Inner<C>>, Place),
}

/// A thread's place in the queue.
struct Place {
    me: Arc<Waiter>,
    /// When it first polled.
    head_since: Option<Instant>,
    /// The safety net has ended the last wait, and nothing else would have.
    capped: bool,
}

/// What a look from a place came to.
enum Next<C: Channel> {
    /// It has passed, or never will: to leave is next.
    Over(Result<C::Done, C::Refusal>),
    /// To wait until somebody calls.
    Park(Instant),
    /// To wait on the source as well, and say so afterwards.
    Poll(Poll<C::WaitSource>),
}

/// A wait of the head's.
struct Poll<B> {
    source: Arc<B>,
    until: Instant,
    cap: Instant,
}

impl<B> Poll<B> {
    /// When it ends by itself.
    fn end(&self) -> Instant {
        self.until.min(self.cap)
    }
}

impl Place {
    /// The last place.
    fn take<C: Channel>(inner: &mut Inner<C>, waiter: Waiter) -> Place {
        let me = Arc::new(waiter);
        inner.queue.push_back(me.clone());
        Place { me, head_since: None, capped: false }
    }

    fn is_head<C: Channel>(&self, inner: &Inner<C>) -> bool {
        inner.queue.front().is_some_and(|head| Arc::ptr_eq(head, &self.me))
    }

    /// Tries if it is this one's turn, and says what to do next.
    fn look<'a, C: Channel>(
        &mut self,
        gate: &'a Gate<C>,
        inner: &mut MutexGuard<'a, Inner<C>>,
        item: &mut C::Item,
        patience: &mut impl FnMut(&mut C) -> Patience<C::Refusal>,
    ) -> Next<C> {
        let mut full = false;
        if self.is_head(inner) {
            match gate.attempt(inner, item) {
                Attempt::Done(done) => {
                    inner.rescues += u64::from(self.capped);
                    return Next::Over(Ok(done));
                }
                Attempt::Refused(why) => return Next::Over(Err(why)),
                Attempt::Full => full = true,
                Attempt::NotYet => {
                    self.capped = false;
                    // Newcomers queue, or those who send long items would always come first.
                    inner.fair |= inner.away;
                }
            }
        } else if let Some(why) = inner.channel.refusal() {
            return Next::Over(Err(why));
        }
        let until = match patience(&mut inner.channel) {
            Patience::Over(why) => return Next::Over(Err(why)),
            Patience::Until(until) => until,
        };
        if !full {
            return Next::Park(until);
        }
        let now = Instant::now();
        if now.duration_since(*self.head_since.get_or_insert(now)) >= C::FAIR_AFTER {
            inner.fair = true;
        }
        let has_waker = matches!(*self.me, Waiter::AtSeveral(..));
        let source = Arc::new(inner.channel.source(has_waker));
        inner.polling = Some(source.clone());
        Next::Poll(Poll { source, until, cap: now + SAFETY_CAP })
    }

    /// Waits until somebody calls.
    fn park<C: Channel>(&self, inner: &mut MutexGuard<'_, Inner<C>>, until: Instant) {
        if let Waiter::Here(source) = &*self.me {
            source.wait_until(inner, until);
        }
    }

    /// To be said after a wait on the source; `told`: by the source or a call, not by the time.
    fn polled<C: Channel>(&mut self, inner: &mut Inner<C>, poll: Poll<C::WaitSource>, told: bool) {
        inner.polling = None;
        let poller_woken = std::mem::take(&mut inner.poller_woken);
        if poller_woken {
            poll.source.clear();
        }
        // What came after the cap and before this thread had the lock was not lost.
        self.capped = poll.until > poll.cap && !told && !poller_woken && !poll.source.wait(poll.cap);
    }

    /// Leaves the queue, handing the baton on.
    fn leave<C: Channel>(self, mut inner: MutexGuard<'_, Inner<C>>) {
        let was_head = self.is_head(&inner);
        inner.queue.retain(|waiter| !Arc::ptr_eq(waiter, &self.me));
        if was_head {
            // If it ended while this thread polled, the one who ended it left the socket to us. (Nobody else can be
            // polling: only the head does, and that was this thread.)
            inner.release_if_ended();
        }
        if inner.queue.is_empty() {
            inner.fair = false;
        } else if was_head {
            let next = inner.queue.front().cloned();
            drop(inner);
            if let Some(next) = next {
                next.wake();
            }
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

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;
