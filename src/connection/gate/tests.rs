//! The safety net itself: a wake-up that does get lost is caught, and counted; others are not.

use std::convert::Infallible;

use super::pending::{self, PendingSend};
use super::*;

/// Has room only from a moment on, which its source may fail to tell.
struct Late {
    room_at: Instant,
    rings: Rings,
}

#[derive(Clone, Copy, PartialEq)]
enum Rings {
    /// When there is room.
    InTime,
    /// Never.
    Never,
    /// When the head's wait is over, and not before.
    JustAfterTheCap,
}

impl Channel for Late {
    type Item = ();
    type Done = ();
    type Refusal = ();
    type WaitSource = LateBell;
    type Handover = Infallible;

    fn attempt(&mut self, (): &mut ()) -> Tried<(), (), Infallible> {
        if Instant::now() < self.room_at { Tried::Full } else { Tried::Done(()) }
    }
    fn hand_over(handover: &mut Infallible, (): &mut ()) {
        match *handover {}
    }
    fn complete(&mut self, handover: Infallible, (): &mut ()) -> Result<(), ()> {
        match handover {}
    }
    fn refusal(&self) -> Option<()> {
        None
    }
    fn source(&mut self, _: bool) -> LateBell {
        LateBell { at: self.room_at, rings: self.rings }
    }
    fn release(&mut self) {}
}

struct LateBell {
    at: Instant,
    rings: Rings,
}

impl WaitSource for LateBell {
    type Wake = Silent;

    fn wait(&self, until: Instant) -> bool {
        let polled = until <= Instant::now();
        let until = if self.rings == Rings::InTime { until.min(self.at) } else { until };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        match self.rings {
            Rings::InTime => Instant::now() >= self.at,
            Rings::Never => false,
            Rings::JustAfterTheCap => polled,
        }
    }
    fn wake_poller(&self) {}
    fn clear(&self) {}
    fn wait_any<'a>(_: &Silent, sources: impl Iterator<Item = Option<&'a Self>>, until: Instant) -> Vec<bool> {
        // There is one.
        sources.flatten().map(|source| source.wait(until)).collect()
    }
}

/// Nobody calls.
struct Silent;

impl Wake for Silent {
    fn wake(&self) {}
}

/// Passes a gate that has room after half the cap, alone or on one of a batch's pending; how long that took, and how
/// often the net caught it.
fn pass(rings: Rings, in_batch: bool) -> (Duration, u64) {
    let begun = Instant::now();
    let gate = Gate::new(Late { room_at: begun + SAFETY_CAP / 2, rings });
    let deadline = begun + Duration::from_secs(60);
    let patience = |_: &mut Late| Patience::Until(deadline);
    if in_batch {
        let send = PendingSend { gate: &gate, items: VecDeque::from([(7, ())]), patience };
        let mut results = Vec::new();
        let note = |number, result, _: &mut VecDeque<(usize, ())>| results.push((number, result));
        pending::run([send].into_iter(), Arc::new(Silent), note);
        assert_eq!(results, [(7, Ok(()))]);
    } else {
        assert_eq!(gate.pass(&mut (), patience), Ok(()));
    }
    let took = begun.elapsed();
    let rescues = gate.lock().rescues();
    (took, rescues)
}

#[test]
fn a_wake_up_that_gets_lost_is_caught_and_counted() {
    for in_batch in [false, true] {
        let (took, rescues) = pass(Rings::Never, in_batch);
        assert_eq!(rescues, 1);
        assert!(took >= SAFETY_CAP && took < SAFETY_CAP * 5, "after {took:?}");
    }
}

#[test]
fn a_wake_up_in_time_is_none() {
    for in_batch in [false, true] {
        let (took, rescues) = pass(Rings::InTime, in_batch);
        assert_eq!(rescues, 0);
        assert!(took >= SAFETY_CAP / 2, "after {took:?}");
    }
}

#[test]
fn a_wake_up_that_comes_as_the_wait_ends_is_not_counted() {
    for in_batch in [false, true] {
        assert_eq!(pass(Rings::JustAfterTheCap, in_batch).1, 0);
    }
}
