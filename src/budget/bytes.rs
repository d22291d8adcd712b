//! How many bytes may be queued in this process: accepted, and not yet acknowledged by the peers' kernels.
//!
//! Each connection takes its share in steps, so that senders to different connections do not meet here with every message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a connection takes at once: two hundred small messages, and little enough for ten thousand connections.
const STEP: u64 = 16 * 1024;

/// The process's budget.
pub(crate) struct ByteBudget {
    taken: AtomicU64,
    /// Option `max_total_queued_bytes`.
    limit: AtomicU64,
}

/// What one connection has taken of it; given back when dropped.
pub(crate) struct Reservation {
    budget: Arc<ByteBudget>,
    taken: u64,
}

impl ByteBudget {
    pub(crate) fn new(limit: u64) -> ByteBudget {
        ByteBudget { taken: AtomicU64::new(0), limit: AtomicU64::new(limit) }
    }

    /// Sets `max_total_queued_bytes`.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// How much is taken, and the limit.
    pub(crate) fn state(&self) -> (u64, u64) {
        (self.taken.load(Ordering::Relaxed), self.limit.load(Ordering::Relaxed))
    }

    /// Nothing yet.
    pub(crate) fn reservation(self: &Arc<Self>) -> Reservation {
        Reservation { budget: self.clone(), taken: 0 }
    }
}

impl Reservation {
    /// Takes what is missing to so many bytes; false, and nothing is taken, when that is more than there is.
    pub(crate) fn reserve(&mut self, bytes: u64) -> bool {
        let missing = bytes.saturating_sub(self.taken);
        missing == 0 || self.take(missing.next_multiple_of(STEP)) || self.take(missing)
    }

    fn take(&mut self, bytes: u64) -> bool {
        let limit = self.budget.limit.load(Ordering::Relaxed);
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= limit);
        let took = self.budget.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        self.taken += if took { bytes } else { 0 };
        took
    }

    /// How much of the whole budget is taken, and its limit.
    pub(crate) fn state(&self) -> (u64, u64) {
        self.budget.state()
    }

    /// Gives back what is not needed for so many bytes, but for a step or two.
    pub(crate) fn keep(&mut self, bytes: u64) {
        if self.taken > bytes + 2 * STEP {
            self.give_back(self.taken - bytes.next_multiple_of(STEP));
        }
    }

    /// Gives everything back.
    pub(crate) fn close(&mut self) {
        self.give_back(self.taken);
    }

    fn give_back(&mut self, bytes: u64) {
        self.taken -= bytes;
        self.budget.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: u64) -> Arc<ByteBudget> {
        Arc::new(ByteBudget::new(limit))
    }

    #[test]
    fn shares_are_taken_in_steps_and_given_back() {
        let budget = budget(10 * STEP);
        let (mut one, mut two) = (budget.reservation(), budget.reservation());
        assert!(one.reserve(1) && one.reserve(STEP));
        assert!(two.reserve(5 * STEP + 1));
        assert_eq!(budget.state().0, 7 * STEP);
        one.keep(0);
        assert_eq!(budget.state().0, 7 * STEP, "a step or two are kept");
        two.keep(STEP + 1);
        assert_eq!(budget.state().0, 3 * STEP);
        drop((one, two));
        assert_eq!(budget.state().0, 0);
    }

    #[test]
    fn what_is_too_much_is_refused_and_takes_nothing() {
        let budget = budget(2 * STEP + 10);
        let (mut one, mut two) = (budget.reservation(), budget.reservation());
        assert!(!one.reserve(3 * STEP));
        assert_eq!(budget.state().0, 0);
        assert!(one.reserve(2 * STEP));
        // The last bytes are less than a step.
        assert!(two.reserve(10) && !two.reserve(11) && !one.reserve(u64::MAX));
        two.close();
        assert!(one.reserve(2 * STEP + 10));
    }
}
