//! The safety net: a lost wake-up is caught and counted. A wake-up in time is not counted.

use std::convert::Infallible;
use std::ptr;

use super::pending::{self, PendingSend};
use super::*;

/// Has room from a given moment on. Its source may fail to signal it.
struct Late {
    room_at: Instant,
    signals: Signals,
}

#[derive(Clone, Copy, PartialEq)]
enum Signals {
    /// As soon as there is room.
    InTime,
    /// Never.
    Never,
    /// Right after the head's wait is over, not before.
    JustAfterTheCap,
}

impl Channel for Late {
    type Item = ();
    type Short = ();
    type Output = ();
    type Refusal = ();
    type WaitSource = LateSource;
    type Handover = Infallible;
    type Released = ();

    fn attempt_short(&mut self, (): &mut ()) -> Option<()> {
        (Instant::now() >= self.room_at).then_some(())
    }
    fn attempt(&mut self, (): &mut ()) -> Tried<(), (), Infallible> {
        if Instant::now() < self.room_at { Tried::Full } else { Tried::Passed(()) }
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
    fn source(&mut self, _: bool) -> LateSource {
        LateSource { at: self.room_at, signals: self.signals }
    }
    fn release(&mut self) -> Option<()> {
        None
    }
}

struct LateSource {
    at: Instant,
    signals: Signals,
}

impl WaitSource for LateSource {
    type Wake = NoWaker;

    fn wait(&self, until: Instant) -> bool {
        let polled = until <= Instant::now();
        let until = if self.signals == Signals::InTime { until.min(self.at) } else { until };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        match self.signals {
            Signals::InTime => Instant::now() >= self.at,
            Signals::Never => false,
            Signals::JustAfterTheCap => polled,
        }
    }
    fn wake_poller(&self) {}
    fn clear(&self) {}
    fn wait_any<'a>(_: &NoWaker, sources: impl Iterator<Item = Option<&'a Self>>, until: Instant) -> Vec<bool> {
        // There is only one.
        sources.flatten().map(|source| source.wait(until)).collect()
    }
}

/// Never wakes.
struct NoWaker;

impl Wake for NoWaker {
    fn wake(&self) {}
}

/// Passes a gate that has room after half the cap, with a single send or as one of a batch. Returns how long that took,
/// and how often the safety net caught it.
fn pass(signals: Signals, in_batch: bool) -> (Duration, u64) {
    let begun = Instant::now();
    let gate = Gate::new(Late { room_at: begun + SAFETY_CAP / 2, signals });
    let deadline = begun + Duration::from_secs(60);
    let patience = |_: &mut Late| Patience::Until(deadline);
    if in_batch {
        let send = PendingSend { gate: &gate, items: VecDeque::from([(7, ())]), patience };
        let mut results = Vec::new();
        let note = |number, result, _: &mut VecDeque<(usize, ())>| results.push((number, result));
        pending::run([send].into_iter(), Arc::new(NoWaker), note);
        assert_eq!(results, [(7, Ok(()))]);
    } else {
        assert_eq!(gate.pass(&mut (), patience), Ok(()));
    }
    let took = begun.elapsed();
    let rescues = gate.lock().rescues();
    (took, rescues)
}

/// What is promised about cache lines counts from there (`connection/mod.rs`).
#[test]
fn the_channel_begins_where_it_is_said() {
    let gate = Gate::new(Late { room_at: Instant::now(), signals: Signals::InTime });
    let channel = ptr::from_ref::<Late>(&gate.lock()).addr();
    assert_eq!(channel - ptr::from_ref(&gate).addr(), Gate::<Late>::CHANNEL);
}

#[test]
fn a_lost_wake_up_is_caught_and_counted() {
    for in_batch in [false, true] {
        let (took, rescues) = pass(Signals::Never, in_batch);
        assert_eq!(rescues, 1);
        assert!(took >= SAFETY_CAP && took < SAFETY_CAP * 5, "after {took:?}");
    }
}

#[test]
fn a_wake_up_in_time_is_not_counted() {
    for in_batch in [false, true] {
        let (took, rescues) = pass(Signals::InTime, in_batch);
        assert_eq!(rescues, 0);
        assert!(took >= SAFETY_CAP / 2, "after {took:?}");
    }
}

#[test]
fn a_wake_up_right_after_the_cap_is_not_counted() {
    for in_batch in [false, true] {
        assert_eq!(pass(Signals::JustAfterTheCap, in_batch).1, 0);
    }
}
