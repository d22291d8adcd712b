//! Which dial goes to libzmq next.
//!
//! libzmq's I/O thread takes up all dials that it has been given before it goes on with any of them. A thousand at once
//! would hold up a single dial, and every connection of that thread, for a tenth of a second. So libzmq is given a few
//! dials at a time. A dial is taken up when libzmq reports anything about it, at the latest that it waits for the peer's
//! answer: a peer that does not answer holds nothing up. A dial that a caller waits for goes first.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use crate::ids::AttemptId;

/// How many dials libzmq has at most that it has not taken up. The I/O thread is never without one, and never has more
/// than a millisecond's work before it.
const WINDOW: usize = 8;

/// The dials that wait for their turn, and those that libzmq has not taken up.
#[derive(Default)]
pub(super) struct Pacing {
    /// Since when each one waits.
    since: HashMap<AttemptId, Instant>,
    /// Those that a caller waits for. May hold some that do not wait for their turn any more.
    hurried: VecDeque<AttemptId>,
    /// The others, as well.
    others: VecDeque<AttemptId>,
    not_taken_up: HashSet<AttemptId>,
}

impl Pacing {
    /// A dial waits for its turn.
    pub(super) fn queue(&mut self, attempt: AttemptId, hurried: bool, now: Instant) {
        self.since.insert(attempt, now);
        if hurried { &mut self.hurried } else { &mut self.others }.push_back(attempt);
    }

    /// A caller waits for this dial.
    pub(super) fn hurry(&mut self, attempt: AttemptId) {
        if self.since.contains_key(&attempt) {
            self.hurried.push_back(attempt);
        }
    }

    pub(super) fn is_queued(&self, attempt: AttemptId) -> bool {
        self.since.contains_key(&attempt)
    }

    /// The dial whose turn it is, and since when it has waited. `None`: libzmq has enough, or none waits.
    pub(super) fn next(&mut self) -> Option<(AttemptId, Instant)> {
        while self.not_taken_up.len() < WINDOW {
            let attempt = self.hurried.pop_front().or_else(|| self.others.pop_front())?;
            if let Some(since) = self.since.remove(&attempt) {
                return Some((attempt, since));
            }
        }
        None
    }

    /// libzmq was given this dial.
    pub(super) fn dialled(&mut self, attempt: AttemptId) {
        self.not_taken_up.insert(attempt);
    }

    /// libzmq has taken it up, or it is given up.
    pub(super) fn over(&mut self, attempt: AttemptId) {
        self.not_taken_up.remove(&attempt);
        self.since.remove(&attempt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next ones, as numbers; libzmq is given them.
    fn given(pacing: &mut Pacing) -> Vec<u64> {
        let next = || pacing.next().map(|(attempt, _)| attempt).inspect(|attempt| pacing.dialled(*attempt));
        std::iter::from_fn(next).map(|attempt| attempt.0).collect()
    }

    #[test]
    fn a_few_at_a_time_in_order_and_those_that_a_caller_waits_for_first() {
        let (mut pacing, now) = (Pacing::default(), Instant::now());
        (1..=100).for_each(|id| pacing.queue(AttemptId(id), id == 50, now));
        assert_eq!(given(&mut pacing), [50, 1, 2, 3, 4, 5, 6, 7]);
        pacing.hurry(AttemptId(90));
        pacing.hurry(AttemptId(90));
        pacing.hurry(AttemptId(3)); // has had its turn
        assert_eq!(given(&mut pacing), []);
        [1, 50].into_iter().for_each(|id| pacing.over(AttemptId(id)));
        assert_eq!(given(&mut pacing), [90, 8]);
        // Given up while it waits, and while libzmq has it.
        [9, 90].into_iter().for_each(|id| pacing.over(AttemptId(id)));
        assert!(!pacing.is_queued(AttemptId(9)) && pacing.is_queued(AttemptId(10)));
        assert_eq!(given(&mut pacing), [10]);
        (2..=100).for_each(|id| pacing.over(AttemptId(id)));
        assert_eq!(given(&mut pacing), []);
        assert!(pacing.since.is_empty() && pacing.hurried.is_empty() && pacing.others.is_empty());
    }
}
