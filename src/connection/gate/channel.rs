//! What the gate guards, and what its waiting threads wait on: a libzmq socket, or a model of one.

use std::time::{Duration, Instant};

/// The result of one attempt to pass.
pub(crate) enum Tried<T, R, H> {
    /// Passed.
    Passed(T),
    /// Begun. The rest is long: it is handed over without the lock.
    Begun(H),
    /// There is no room. The descriptor signals when there is.
    Full,
    /// It cannot pass yet. The code that changes this calls [`Access::wake_head`](super::Access::wake_head).
    NotYet,
    /// It will never pass.
    Refused(R),
}

/// How long a waiter goes on.
pub(crate) enum Patience<R> {
    /// At least until then.
    Until(Instant),
    /// No longer, for this reason.
    Over(R),
}

/// What is behind the gate.
pub(crate) trait Channel {
    /// What passes the gate.
    type Item;
    /// An item that is complete, and that passes at once or not at all.
    type Short;
    /// The result of passing.
    type Output;
    /// Why an item does not pass.
    type Refusal;
    /// What the head waits on, outside the lock.
    type WaitSource: WaitSource;
    /// What a long item is handed over with while its sender is away.
    type Handover;
    /// What is left of a channel that was given up. It may be dropped under the gate's lock.
    type Released;
    /// How long newcomers may barge past a polling head.
    const FAIR_AFTER: Duration = Duration::from_millis(2);

    /// One attempt of the shortest way, without waiting. `None`: nothing is decided, and the item is as it was, or
    /// [`attempt`](Channel::attempt) refuses it.
    fn attempt_short(&mut self, item: &mut Self::Short) -> Option<Self::Output>;
    /// One attempt, without waiting.
    fn attempt(&mut self, item: &mut Self::Item) -> Tried<Self::Output, Self::Refusal, Self::Handover>;
    /// Continues with an item that was begun, without the lock and without waiting.
    fn hand_over(handover: &mut Self::Handover, item: &mut Self::Item);
    /// Ends the attempt that was begun: the item passes now, or not at all.
    fn complete(&mut self, handover: Self::Handover, item: &mut Self::Item) -> Result<Self::Output, Self::Refusal>;
    /// Why nothing will pass any more. `None` while items can pass.
    fn refusal(&self) -> Option<Self::Refusal>;
    /// Whether there is such a reason.
    fn refuses(&self) -> bool {
        self.refusal().is_some()
    }
    /// What the head waits on now. `has_waker`: the source needs no eventfd, because the head has a waker of its own.
    fn source(&mut self, has_waker: bool) -> Self::WaitSource;
    /// The channel has ended, no thread polls, and no sender is away: give up what the source was made of. `None`: that
    /// was given up before.
    fn release(&mut self) -> Option<Self::Released>;
}

/// A descriptor of libzmq's and one of ours, or a model of them.
pub(crate) trait WaitSource {
    /// What wakes a thread that waits for several sources.
    type Wake: Wake + 'static;
    /// Waits for an edge or a wake-up. Returns false if the time is over first.
    fn wait(&self, until: Instant) -> bool;
    /// Ends the wait of the head.
    fn wake_poller(&self);
    /// Takes a wake-up back.
    fn clear(&self);
    /// Waits for an edge of any source or for the waker. Takes the waker's wake-up back, and returns which sources had
    /// an edge.
    fn wait_any<'a>(waker: &Self::Wake, sources: impl Iterator<Item = Option<&'a Self>>, until: Instant) -> Vec<bool>
    where
        Self: 'a;
}

/// Wakes a thread that waits at several gates: one waker for all of them.
pub(crate) trait Wake: Send + Sync {
    /// Ends its present wait, or its next one.
    fn wake(&self);
}
