//! Passing several gates with one thread.
//!
//! The thread queues at every gate where it must wait, as anybody else does, and keeps every rule of the queue: where
//! it is the head it polls, elsewhere it is called. It waits for all of that at once, on the sources of the gates where
//! it is the head and on one waker, which whoever calls or kicks it rings. Then it looks where it was called, and where
//! its time is over. It holds the lock of one gate at a time, and none while it waits.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use super::{Channel, Entered, Gate, Inner, Next, Patience, Place, Poll, WaitSource, Waiter, Wake};
use crate::sys::sync::MutexGuard;

/// What is to pass one gate.
pub(crate) struct PendingSend<'g, C: Channel, P> {
    pub(crate) gate: &'g Gate<C>,
    /// One after the other, each with its number.
    pub(crate) items: VecDeque<(usize, C::Item)>,
    /// Asked before every wait, for the first of them.
    pub(crate) patience: P,
}

/// Runs all of them. `done` is told what became of each item, without a lock; it may take away what is behind it.
pub(crate) fn run<'g, C, P, A>(
    pending: impl Iterator<Item = PendingSend<'g, C, P>>,
    waker: Arc<A>,
    mut done: impl FnMut(usize, Result<C::Done, C::Refusal>, &mut VecDeque<(usize, C::Item)>),
) where
    C: Channel<WaitSource: WaitSource<Wake = A>> + 'g,
    P: FnMut(&mut C) -> Patience<C::Refusal>,
    A: Wake + 'static,
{
    let mine: Arc<dyn Wake> = waker.clone();
    let mut queued: Vec<_> = pending.filter_map(|send| send.start(&mine, &mut done)).collect();
    while let Some(end) = queued.iter().map(QueuedSend::end).min() {
        let told = C::WaitSource::wait_any(&waker, queued.iter().map(QueuedSend::source), end);
        let now = Instant::now();
        let look = |(queued, told): (QueuedSend<'g, C, P>, bool)| {
            // A call that comes after this rings the waker for the next wait.
            let told = queued.place.me.take_call() || told;
            if told || now >= queued.end() { queued.resume(told, &mine, &mut done) } else { Some(queued) }
        };
        queued = queued.into_iter().zip(told).filter_map(look).collect();
    }
}

/// An errand whose first item stands in the queue.
struct QueuedSend<'g, C: Channel, P> {
    send: PendingSend<'g, C, P>,
    place: Place,
    wait: Wait<C::WaitSource>,
}

/// As a head that polls, or until it is called.
enum Wait<B> {
    Polling(Poll<B>),
    Parked(Instant),
}

/// What became of an item.
trait OnDone<C: Channel>: FnMut(usize, Result<C::Done, C::Refusal>, &mut VecDeque<(usize, C::Item)>) {}
impl<C: Channel, F: FnMut(usize, Result<C::Done, C::Refusal>, &mut VecDeque<(usize, C::Item)>)> OnDone<C> for F {}

impl<'g, C: Channel, P: FnMut(&mut C) -> Patience<C::Refusal>> PendingSend<'g, C, P> {
    /// Passes what passes at once; `None` when that was all.
    fn start(mut self, waker: &Arc<dyn Wake>, done: &mut impl OnDone<C>) -> Option<QueuedSend<'g, C, P>> {
        loop {
            let (_, item) = self.items.front_mut()?;
            match self.gate.enter(item, &mut self.patience, || Waiter::at_several(waker)) {
                Entered::Over(result) => self.over(result, done),
                Entered::Queued(inner, place) => match self.look(inner, place, done) {
                    ControlFlow::Break(queued) => return Some(queued),
                    ControlFlow::Continue(rest) => self = rest,
                },
            }
        }
    }

    /// Looks from the place of the first item; goes on when that is over.
    fn look(
        mut self,
        mut inner: MutexGuard<'g, Inner<C>>,
        mut place: Place,
        done: &mut impl OnDone<C>,
    ) -> ControlFlow<QueuedSend<'g, C, P>, Self> {
        let looked = match self.items.front_mut() {
            Some((_, item)) => place.look(self.gate, &mut inner, item, &mut self.patience),
            None => unreachable!("who stands in a queue has something to pass"),
        };
        let wait = match looked {
            Next::Over(result) => {
                place.leave(inner);
                self.over(result, done);
                return ControlFlow::Continue(self);
            }
            Next::Poll(poll) => Wait::Polling(poll),
            Next::Park(until) => Wait::Parked(until),
        };
        ControlFlow::Break(QueuedSend { send: self, place, wait })
    }

    fn over(&mut self, result: Result<C::Done, C::Refusal>, done: &mut impl OnDone<C>) {
        if let Some((number, _)) = self.items.pop_front() {
            done(number, result, &mut self.items);
        }
    }
}

impl<'g, C: Channel, P: FnMut(&mut C) -> Patience<C::Refusal>> QueuedSend<'g, C, P> {
    /// When it is to look if nobody calls.
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

    /// Looks after a wait; `None` when all has passed.
    fn resume(self, told: bool, waker: &Arc<dyn Wake>, done: &mut impl OnDone<C>) -> Option<Self> {
        let QueuedSend { send, mut place, wait } = self;
        let mut inner = send.gate.inner.lock();
        if let Wait::Polling(poll) = wait {
            place.polled(&mut inner, poll, told);
        }
        match send.look(inner, place, done) {
            ControlFlow::Break(queued) => Some(queued),
            ControlFlow::Continue(rest) => rest.start(waker, done),
        }
    }
}
