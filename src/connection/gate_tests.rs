//! The safety net itself: a wake-up that does get lost is caught, and counted; others are not.

use super::*;

/// Has room only from a moment on, which its bell may fail to tell.
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
    type Bell = LateBell;

    fn attempt(&mut self, (): &mut ()) -> Attempt<(), ()> {
        if Instant::now() < self.room_at { Attempt::Full } else { Attempt::Done(()) }
    }
    fn refusal(&self) -> Option<()> {
        None
    }
    fn bell(&mut self) -> LateBell {
        LateBell { at: self.room_at, rings: self.rings }
    }
    fn release(&mut self) {}
}

struct LateBell {
    at: Instant,
    rings: Rings,
}

impl Bell for LateBell {
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
    fn kick(&self) {}
    fn clear(&self) {}
}

/// Passes a gate that has room after half the cap; how long that took, and how often the net caught it.
fn pass(rings: Rings) -> (Duration, u64) {
    let begun = Instant::now();
    let gate = Gate::new(Late { room_at: begun + SAFETY_CAP / 2, rings });
    let deadline = begun + Duration::from_secs(60);
    assert_eq!(gate.pass(&mut (), |_| Patience::Until(deadline)), Ok(()));
    let took = begun.elapsed();
    let rescues = gate.lock().rescues();
    (took, rescues)
}

#[test]
fn a_wake_up_that_gets_lost_is_caught_and_counted() {
    let (took, rescues) = pass(Rings::Never);
    assert_eq!(rescues, 1);
    assert!(took >= SAFETY_CAP && took < SAFETY_CAP * 5, "after {took:?}");
}

#[test]
fn a_wake_up_in_time_is_none() {
    let (took, rescues) = pass(Rings::InTime);
    assert_eq!(rescues, 0);
    assert!(took >= SAFETY_CAP / 2, "after {took:?}");
}

#[test]
fn a_wake_up_that_comes_as_the_wait_ends_is_not_counted() {
    assert_eq!(pass(Rings::JustAfterTheCap).1, 0);
}
