//! Passing several gates with one thread.
//!
//! The thread queues at every gate where it must wait, like any other thread, and keeps every rule of the queue. At a
//! gate where it is the head it polls. At the others it is woken. It waits for all of that at once: on the sources of
//! the gates where it is the head, and on one waker, which every wake-up uses. Then it looks at the gates that woke it
//! or whose time is over. It holds the lock of one gate at a time, and none while it waits.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use super::place::{Next, Place, Poll};
use super::{Channel, Entered, Gate, Locked, Patience, WaitSource, Waiter, Wake};
use crate::sys::sync::MutexGuard;

/// The items that are to pass one gate.
pub(crate) struct PendingSend<'g, C: Channel, P> {
    pub(crate) gate: &'g Gate<C>,
    /// In this order. Each has its number.
    pub(crate) items: VecDeque<(usize, C::Item)>,
    /// Called before every wait, for the first item.
    pub(crate) patience: P,
}

/// Runs all of them. Calls `done` with each item's result, without a lock. `done` may remove the items behind it.
pub(crate) fn run<'g, C, P, A>(
    pending: impl Iterator<Item = PendingSend<'g, C, P>>,
    waker: Arc<A>,
    mut done: impl FnMut(usize, Result<C::Output, C::Refusal>, &mut VecDeque<(usize, C::Item)>),
) where
    C: Channel<WaitSource: WaitSource<Wake = A>> + 'g,
    P: FnMut(&mut C) -> Patience<C::Refusal>,
    A: Wake + 'static,
{
    let mine: Arc<dyn Wake> = waker.clone();
    let mut queued: Vec<_> = pending.filter_map(|send| send.start(&mine, &mut done)).collect();
    while let Some(end) = queued.iter().map(QueuedSend::end).min() {
        let woken = C::WaitSource::wait_any(&waker, queued.iter().map(QueuedSend::source), end);
        let now = Instant::now();
        let look = |(queued, woken): (QueuedSend<'g, C, P>, bool)| {
            // A wake-up that comes after this sets the waker for the next wait.
            let woken = queued.place.me.take_wakeup() || woken;
            if woken || now >= queued.end() { queued.resume(woken, &mine, &mut done) } else { Some(queued) }
        };
        queued = queued.into_iter().zip(woken).filter_map(look).collect();
    }
}

/// A pending send whose first item has a place in the queue.
struct QueuedSend<'g, C: Channel, P> {
    send: PendingSend<'g, C, P>,
    place: Place,
    wait: Wait<C::WaitSource>,
}

/// How it waits: as the polling head, or until it is woken.
enum Wait<S> {
    Polling(Poll<S>),
    Parked(Instant),
}

/// Receives the result of each item.
trait OnDone<C: Channel>: FnMut(usize, Result<C::Output, C::Refusal>, &mut VecDeque<(usize, C::Item)>) {}
impl<C: Channel, F: FnMut(usize, Result<C::Output, C::Refusal>, &mut VecDeque<(usize, C::Item)>)> OnDone<C> for F {}

impl<'g, C: Channel, P: FnMut(&mut C) -> Patience<C::Refusal>> PendingSend<'g, C, P> {
    /// Passes every item that needs no waiting. `None` when no item is left.
    fn start(mut self, waker: &Arc<dyn Wake>, done: &mut impl OnDone<C>) -> Option<QueuedSend<'g, C, P>> {
        loop {
            let (_, item) = self.items.front_mut()?;
            match self.gate.enter(item, &mut self.patience, || Waiter::at_several(waker)) {
                Entered::Done(result) => self.over(result, done),
                Entered::Queued(locked, place) => match self.look(locked, place, done) {
                    ControlFlow::Break(queued) => return Some(queued),
                    ControlFlow::Continue(rest) => self = rest,
                },
            }
        }
    }

    /// Looks from the place of the first item. Continues when that item is done.
    fn look(
        mut self,
        mut locked: MutexGuard<'g, Locked<C>>,
        mut place: Place,
        done: &mut impl OnDone<C>,
    ) -> ControlFlow<QueuedSend<'g, C, P>, Self> {
        let looked = match self.items.front_mut() {
            Some((_, item)) => place.look(self.gate, &mut locked, item, &mut self.patience),
            None => unreachable!("a queued send has an item"),
        };
        let wait = match looked {
            Next::Leave(result) => {
                place.leave(locked);
                self.over(result, done);
                return ControlFlow::Continue(self);
            }
            Next::Poll(poll) => Wait::Polling(poll),
            Next::Park(until) => Wait::Parked(until),
        };
        ControlFlow::Break(QueuedSend { send: self, place, wait })
    }

    fn over(&mut self, result: Result<C::Output, C::Refusal>, done: &mut impl OnDone<C>) {
        if let Some((number, _)) = self.items.pop_front() {
            done(number, result, &mut self.items);
        }
    }
}

impl<'g, C: Channel, P: FnMut(&mut C) -> Patience<C::Refusal>> QueuedSend<'g, C, P> {
    /// When it looks at the gate even if it is not woken.
    fn end(&self) -> Instant {
        match &self.wait {
            Wait::Polling(poll) => poll.end(),
            Wait::Parked(until) => *until,
        }
    }

    fn source(&self) -> Option<&C::WaitSource> {
        match &self.wait {
            Wait::Polling(poll) => Some(&poll.source),
            Wait::Parked(_) => None,
        }
    }

    /// Looks at the gate after a wait. `None` when no item is left.
    fn resume(self, woken: bool, waker: &Arc<dyn Wake>, done: &mut impl OnDone<C>) -> Option<Self> {
        let QueuedSend { send, mut place, wait } = self;
        let mut locked = send.gate.locked.lock();
        if let Wait::Polling(poll) = wait {
            place.polled(&mut locked, poll, woken);
        }
        match send.look(locked, place, done) {
            ControlFlow::Break(queued) => Some(queued),
            ControlFlow::Continue(rest) => rest.start(waker, done),
        }
    }
}
