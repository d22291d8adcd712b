//! Buffers that were lent with messages of a connection, and which of them are the caller's again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::Delivery;
use crate::ids::ConnId;
use crate::lock::{Condvar, Mutex};
use crate::release::{Release, Releaser};
use crate::thread::host_call;

/// What became of a message whose buffers are given back. Numbers are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Outcome {
    /// The peer's kernel has acknowledged it whole.
    Acknowledged = 1,
    /// The connection has ended before that.
    Unacknowledged = 2,
    /// Nobody can tell.
    Unknown = 3,
}

impl Delivery {
    /// What became of that message of an ended connection.
    fn outcome(&self, sequence: u64) -> Outcome {
        match self.acknowledged {
            Some(acknowledged) if acknowledged >= sequence => Outcome::Acknowledged,
            Some(_) => Outcome::Unacknowledged,
            None => Outcome::Unknown,
        }
    }

    /// The same while it lives: `None` when that is still open.
    pub(crate) fn outcome_so_far(&self, sequence: u64) -> Option<Outcome> {
        Some(self.outcome(sequence)).filter(|outcome| *outcome != Outcome::Unacknowledged)
    }
}

/// What a connection's messages have lent. Its lock is a leaf.
pub(crate) struct Loans {
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    /// Sequences, ascending, with whether that message's buffers are given back; the first is not.
    out: VecDeque<(u64, bool)>,
    /// The final counts.
    end: Option<Delivery>,
    /// The connection is remembered for these loans only.
    forgotten: bool,
}

impl Loans {
    pub(crate) fn new() -> Arc<Loans> {
        Arc::new(Loans { state: Mutex::new(State::default()), returned: Condvar::new() })
    }

    fn lent(&self, sequence: u64) {
        self.state.lock().out.push_back((sequence, false));
    }

    /// The connection has ended with these counts.
    pub(crate) fn ended(&self, delivery: Delivery) {
        self.state.lock().end = Some(delivery);
    }

    /// The connection is to be forgotten; false while somebody may wait for its buffers: then that is so when the last is given
    /// back.
    pub(crate) fn forget(&self) -> bool {
        let mut state = self.state.lock();
        state.forgotten = true;
        state.out.is_empty()
    }

    /// The first message whose buffers are not the caller's yet.
    pub(crate) fn first(&self) -> Option<u64> {
        self.state.lock().out.front().map(|(sequence, _)| *sequence)
    }

    /// Waits until all buffers up to that message are the caller's again; whether they are.
    pub(crate) fn wait_returned(&self, sequence: u64, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.out.front().is_none_or(|(first, _)| *first > sequence) {
                return true;
            }
            if self.returned.wait_until(&mut state, deadline).timed_out() {
                return state.out.front().is_none_or(|(first, _)| *first > sequence);
            }
        }
    }

    /// True when the connection can be forgotten now.
    fn returned(&self, sequence: u64) -> bool {
        let mut state = self.state.lock();
        if let Ok(place) = state.out.binary_search_by_key(&sequence, |(sequence, _)| *sequence) {
            state.out[place].1 = true;
        }
        while state.out.front().is_some_and(|(_, returned)| *returned) {
            state.out.pop_front();
        }
        self.returned.notify_all();
        state.forgotten && state.out.is_empty()
    }
}

/// The buffers of one message.
pub(crate) struct Loan {
    conn: ConnId,
    loans: Arc<Loans>,
    /// Whom to tell, until that is done.
    release: Mutex<Option<Release>>,
    releaser: &'static Releaser,
}

impl Loan {
    pub(crate) fn new(conn: ConnId, loans: Arc<Loans>, release: Option<Release>, releaser: &'static Releaser) -> Loan {
        Loan { conn, loans, release: Mutex::new(release), releaser }
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    pub(crate) fn releaser(&self) -> &'static Releaser {
        self.releaser
    }

    /// The message that lent them was accepted.
    pub(super) fn lent(&self, sequence: u64) {
        self.loans.lent(sequence);
    }

    /// What became of that message, once its connection has ended.
    pub(crate) fn outcome(&self, sequence: u64) -> Option<Outcome> {
        Some(self.loans.state.lock().end?.outcome(sequence))
    }

    /// Tells whoever lent them, under no lock; then they count as given back. True when the connection can be forgotten now.
    pub(crate) fn give_back(&self, sequence: u64, outcome: Outcome) -> bool {
        let release = self.release.lock().take();
        if let Some(release) = release {
            host_call(|| release(self.conn, sequence, outcome));
        }
        self.loans.returned(sequence)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn buffers_are_given_back_up_to_the_first_that_is_not() {
        let loans = Loans::new();
        for sequence in [2, 3, 7] {
            loans.lent(sequence);
        }
        assert_eq!(loans.first(), Some(2));
        loans.returned(3);
        assert_eq!(loans.first(), Some(2));
        assert!(loans.wait_returned(1, Instant::now()) && !loans.wait_returned(2, Instant::now()));
        loans.returned(2);
        assert_eq!(loans.first(), Some(7));
        assert!(loans.wait_returned(6, Instant::now()) && !loans.wait_returned(7, Instant::now()));
        loans.returned(7);
        assert_eq!(loans.first(), None);
    }

    #[test]
    fn who_waits_is_told() {
        let loans = Loans::new();
        loans.lent(1);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| loans.wait_returned(1, Instant::now() + Duration::from_secs(20)));
            loans.returned(1);
            assert!(waits.join().unwrap());
        });
    }
}
