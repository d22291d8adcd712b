//! Passing several gates with one thread.
//!
//! The thread queues at every gate where it must wait, as anybody else does, and keeps every rule of the queue: where
//! it is the head it polls, elsewhere it is called. It waits for all of that at once, on the bells of the gates where
//! it is the head and on one alarm, which whoever calls or kicks it rings. Then it looks where it was called, and where
//! its time is over. It holds the lock of one gate at a time, and none while it waits.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use super::{Alarm, Bell, Channel, Entered, Gate, Inner, Look, Patience, Place, Poll, Waiter};
use crate::sys::sync::MutexGuard;

/// What is to pass one gate.
pub(crate) struct Errand<'g, C: Channel, P> {
    pub(crate) gate: &'g Gate<C>,
    /// One after the other, each with its number.
    pub(crate) items: VecDeque<(usize, C::Item)>,
    /// Asked before every wait, for the first of them.
    pub(crate) patience: P,
}

/// Runs all of them. `done` is told what became of each item, without a lock; it may take away what is behind it.
pub(crate) fn run<'g, C, P, A>(
    errands: impl Iterator<Item = Errand<'g, C, P>>,
    alarm: Arc<A>,
    mut done: impl FnMut(usize, Result<C::Done, C::Refusal>, &mut VecDeque<(usize, C::Item)>),
) where
    C: Channel<Bell: Bell<Alarm = A>> + 'g,
    P: FnMut(&mut C) -> Patience<C::Refusal>,
    A: Alarm + 'static,
{
    let mine: Arc<dyn Alarm> = alarm.clone();
    let mut standing: Vec<_> = errands.filter_map(|errand| errand.set_out(&mine, &mut done)).collect();
    while let Some(end) = standing.iter().map(Standing::end).min() {
        let told = C::Bell::wait_any(&alarm, standing.iter().map(Standing::bell), end);
        let now = Instant::now();
        let look = |(standing, told): (Standing<'g, C, P>, bool)| {
            // A call that comes after this rings the alarm for the next wait.
            let told = standing.place.me.take_call() || told;
            if told || now >= standing.end() { standing.go_on(told, &mine, &mut done) } else { Some(standing) }
        };
        standing = standing.into_iter().zip(told).filter_map(look).collect();
    }
}

/// An errand whose first item stands in the queue.
struct Standing<'g, C: Channel, P> {
    errand: Errand<'g, C, P>,
    place: Place,
    wait: Wait<C::Bell>,
}

/// As a head that polls, or until it is called.
enum Wait<B> {
    Polling(Poll<B>),
    Parked(Instant),
}

/// What became of an item.
trait Done<C: Channel>: FnMut(usize, Result<C::Done, C::Refusal>, &mut VecDeque<(usize, C::Item)>) {}
impl<C: Channel, F: FnMut(usize, Result<C::Done, C::Refusal>, &mut VecDeque<(usize, C::Item)>)> Done<C> for F {}

impl<'g, C: Channel, P: FnMut(&mut C) -> Patience<C::Refusal>> Errand<'g, C, P> {
    /// Passes what passes at once; `None` when that was all.
    fn set_out(mut self, alarm: &Arc<dyn Alarm>, done: &mut impl Done<C>) -> Option<Standing<'g, C, P>> {
        loop {
            let (_, item) = self.items.front_mut()?;
            match self.gate.enter(item, &mut self.patience, || Waiter::at_several(alarm)) {
                Entered::Over(result) => self.over(result, done),
                Entered::Queued(inner, place) => match self.look(inner, place, done) {
                    ControlFlow::Break(standing) => return Some(standing),
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
        done: &mut impl Done<C>,
    ) -> ControlFlow<Standing<'g, C, P>, Self> {
        let looked = match self.items.front_mut() {
            Some((_, item)) => place.look(&mut inner, item, &mut self.patience),
            None => unreachable!("who stands in a queue has something to pass"),
        };
        let wait = match looked {
            Look::Over(result) => {
                place.leave(inner);
                self.over(result, done);
                return ControlFlow::Continue(self);
            }
            Look::Poll(poll) => Wait::Polling(poll),
            Look::Park(until) => Wait::Parked(until),
        };
        ControlFlow::Break(Standing { errand: self, place, wait })
    }

    fn over(&mut self, result: Result<C::Done, C::Refusal>, done: &mut impl Done<C>) {
        if let Some((number, _)) = self.items.pop_front() {
            done(number, result, &mut self.items);
        }
    }
}

impl<'g, C: Channel, P: FnMut(&mut C) -> Patience<C::Refusal>> Standing<'g, C, P> {
    /// When it is to look if nobody calls.
    fn end(&self) -> Instant {
        match &self.wait {
            Wait::Polling(poll) => poll.end(),
            Wait::Parked(until) => *until,
        }
    }

    fn bell(&self) -> Option<&C::Bell> {
        match &self.wait {
            Wait::Polling(poll) => Some(&poll.bell),
            Wait::Parked(_) => None,
        }
    }

    /// Looks after a wait; `None` when all has passed.
    fn go_on(self, told: bool, alarm: &Arc<dyn Alarm>, done: &mut impl Done<C>) -> Option<Self> {
        let Standing { errand, mut place, wait } = self;
        let mut inner = errand.gate.inner.lock();
        if let Wait::Polling(poll) = wait {
            place.polled(&mut inner, poll, told);
        }
        match errand.look(inner, place, done) {
            ControlFlow::Break(standing) => Some(standing),
            ControlFlow::Continue(rest) => rest.set_out(alarm, done),
        }
    }
}
