//! How many bytes may be queued in this process: accepted, and not yet acknowledged by the peers' kernels.
//!
//! Each connection reserves bytes in steps, so that senders to different connections do not contend here for every
//! message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much a connection reserves at once: two hundred small messages, and small enough for ten thousand connections.
const STEP: u64 = 16 * 1024;

/// The process's budget.
pub(crate) struct ByteBudget {
    taken: AtomicU64,
    /// Option `max_total_queued_bytes`.
    limit: AtomicU64,
}

/// The bytes that one connection has reserved. Returned when dropped.
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

    /// A reservation of 0 bytes.
    pub(crate) fn reservation(self: &Arc<Self>) -> Reservation {
        Reservation { budget: self.clone(), taken: 0 }
    }
}

impl Reservation {
    /// How many bytes are reserved.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Grows to `bytes`. Returns false, and reserves nothing, if that is more than the budget has.
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

    /// How much of the whole budget is reserved, and its limit.
    pub(crate) fn state(&self) -> (u64, u64) {
        self.budget.state()
    }

    /// Shrinks to `bytes`, and one or two steps more.
    pub(crate) fn keep(&mut self, bytes: u64) {
        if self.taken > bytes + 2 * STEP {
            self.give_back(self.taken - bytes.next_multiple_of(STEP));
        }
    }

    /// Returns everything.
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
    fn bytes_are_reserved_in_steps_and_returned() {
        let budget = budget(10 * STEP);
        let (mut one, mut two) = (budget.reservation(), budget.reservation());
        assert!(one.reserve(1) && one.reserve(STEP));
        assert!(two.reserve(5 * STEP + 1));
        assert_eq!(budget.state().0, 7 * STEP);
        one.keep(0);
        assert_eq!(budget.state().0, 7 * STEP, "one or two steps are kept");
        two.keep(STEP + 1);
        assert_eq!(budget.state().0, 3 * STEP);
        drop((one, two));
        assert_eq!(budget.state().0, 0);
    }

    #[test]
    fn too_large_a_reservation_is_refused_and_reserves_nothing() {
        let budget = budget(2 * STEP + 10);
        let (mut one, mut two) = (budget.reservation(), budget.reservation());
        assert!(!one.reserve(3 * STEP));
        assert_eq!(budget.state().0, 0);
        assert!(one.reserve(2 * STEP));
        // What is left is less than a step.
        assert!(two.reserve(10) && !two.reserve(11) && !one.reserve(u64::MAX));
        two.close();
        assert!(one.reserve(2 * STEP + 10));
    }
}
