//! Counts that a manager keeps itself, because nothing else remembers the events.
//!
//! [`Past`] is plain numbers under the global lock. [`Counts`] are atomics, for events outside that lock. They are
//! kvconn's own and not the metrics library's: some of that library's counters are behind parking_lot locks, which do
//! not survive a fork (`sys/lock.rs`). A send that does not wait touches none of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{STATUSES, Status};

/// A number for each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByStatus([u64; STATUSES.len()]);

impl ByStatus {
    pub(crate) fn of(&self, status: Status) -> u64 {
        self.0[place(status)]
    }

    pub(crate) fn add(&mut self, status: Status) {
        self.0[place(status)] += 1;
    }
}

fn place(status: Status) -> usize {
    -(status as i32) as usize
}

/// Totals of ended connections and failed nodes, under the global lock. They grow in the step in which a connection
/// leaves the cache. So a thread that holds the lock finds every connection either here or among the live ones, never
/// in both.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    pub(crate) dials: u64,
    /// Ended connections, by the status that calls on them get now.
    pub(crate) ended: ByStatus,
    /// Of ended connections: messages accepted, and their outcomes.
    pub(crate) accepted: u64,
    pub(crate) acknowledged: u64,
    pub(crate) unacknowledged: u64,
    pub(crate) unknown: u64,
    /// Of ended connections: lost wake-ups that the gate's safety net caught.
    pub(crate) rescues: u64,
    pub(crate) nodes_failed: u64,
    pub(crate) requests_failed: u64,
}

impl Past {
    /// A connection has ended, with these counts.
    pub(crate) fn ended(&mut self, status: Status, accepted: u64, acknowledged: Option<u64>, rescues: u64) {
        self.ended.add(status);
        self.accepted += accepted;
        match acknowledged {
            Some(acknowledged) => {
                self.acknowledged += acknowledged;
                self.unacknowledged += accepted - acknowledged;
            }
            None => self.unknown += accepted,
        }
        self.rescues += rescues;
    }
}

/// Counts of events outside the global lock.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) dials_refused: AtomicByStatus,
    pub(crate) sends_refused: AtomicByStatus,
    pub(crate) waits: Waits,
}

/// [`ByStatus`], for any thread.
#[derive(Debug, Default)]
pub(crate) struct AtomicByStatus([AtomicU64; STATUSES.len()]);

impl AtomicByStatus {
    pub(crate) fn add(&self, status: Status) {
        self.0[place(status)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> ByStatus {
        ByStatus(self.0.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }
}

/// The upper bounds of the classes of [`Waits`], in microseconds. Longer waits have a class of their own.
const CLASSES: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];

/// How long sends have waited. Sends that did not wait are not counted.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    classes: [AtomicU64; CLASSES.len() + 1],
    nanoseconds: AtomicU64,
}

/// [`Waits`] at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitsRead {
    /// Each class's upper bound in seconds, and how many waits are in it but in no smaller class.
    pub(crate) classes: Vec<(f64, u64)>,
    /// The sum of all waits, in seconds.
    pub(crate) sum: f64,
}

impl Waits {
    pub(crate) fn add(&self, time: Duration) {
        let class = CLASSES.partition_point(|most| Duration::from_micros(*most) < time);
        self.classes[class].fetch_add(1, Ordering::Relaxed);
        // The counter has room for 584 years.
        self.nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> WaitsRead {
        let bounds = CLASSES.iter().map(|most| *most as f64 / 1e6).chain([f64::INFINITY]);
        let counts = self.classes.iter().map(|count| count.load(Ordering::Relaxed));
        WaitsRead { classes: bounds.zip(counts).collect(), sum: self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9 }
    }
}

impl WaitsRead {
    pub(crate) fn count(&self) -> u64 {
        self.classes.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_in_the_smallest_class_that_holds_it() {
        let waits = Waits::default();
        for micros in [0, 100, 101, 10_000_000, 10_000_001] {
            waits.add(Duration::from_micros(micros));
        }
        let read = waits.read();
        let filled: Vec<_> = read.classes.iter().filter(|(_, count)| *count > 0).copied().collect();
        assert_eq!(filled, [(0.0001, 2), (0.00025, 1), (10.0, 1), (f64::INFINITY, 1)]);
        assert_eq!((read.count(), read.sum), (5, 20.000_202));
    }

    #[test]
    fn accepted_is_the_sum_of_acknowledged_unacknowledged_and_unknown() {
        let mut past = Past::default();
        past.ended(Status::PeerLost, 10, Some(7), 0);
        past.ended(Status::Disconnected, 5, None, 1);
        assert_eq!((past.accepted, past.acknowledged, past.unacknowledged, past.unknown), (15, 7, 3, 5));
        assert_eq!((past.ended.of(Status::PeerLost), past.ended.of(Status::Timeout), past.rescues), (1, 0, 1));
    }
}
