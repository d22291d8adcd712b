//! A clock cheap enough to be read for every message.

use std::time::Duration;

/// A moment on the kernel's coarse monotonic clock: at most one tick (4 ms on common kernels) behind the fine one,
/// and read in a few nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Coarse(Duration);

impl Coarse {
    pub(crate) fn now() -> Coarse {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes to a live timespec; the clock exists on every Linux.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut t) };
        Coarse(Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec.unsigned_abs() as u32))
    }

    /// How long ago that was.
    pub(crate) fn elapsed(self) -> Duration {
        Coarse::now().0.saturating_sub(self.0)
    }
}
