//! The standard library's locks and condition variables, without poisoning and with deadlines.
//!
//! They are futexes, and what one needs is inside it. That is what makes kvconn work in a forked child: parking_lot's
//! locks share tables of the process, whose own locks a fork can catch in the hands of a thread that the child does
//! not have, and the child then hangs in the first lock that makes it wait.

use std::ops::{Deref, DerefMut};
use std::sync::{self, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

/// A lock. A panic under it leaves it usable: panics are caught at the C boundary.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

/// A locked [`Mutex`].
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// Gone only while this guard waits or is [`unlocked`](MutexGuard::unlocked), and lent to that.
    held: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, held: Some(self.hold()) }
    }

    /// The lock, if it can be had at once.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: self, held: Some(held) })
    }

    fn hold(&self) -> sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("held by who can look")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("held by who can look")
    }
}

impl<'a, T> MutexGuard<'a, T> {
    /// Gives the lock back for as long as the call takes, also when that panics.
    pub(crate) fn unlocked<R>(guard: &mut MutexGuard<'a, T>, call: impl FnOnce() -> R) -> R {
        struct TakeBack<'g, 'a, T>(&'g mut MutexGuard<'a, T>);
        impl<T> Drop for TakeBack<'_, '_, T> {
            fn drop(&mut self) {
                self.0.held = Some(self.0.mutex.hold());
            }
        }
        guard.held = None;
        let _back = TakeBack(guard);
        call()
    }
}

/// Something to wait for, under a [`Mutex`]. A wait may end for no reason.
#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

/// How a wait with a deadline ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waited {
    timed_out: bool,
}

impl Waited {
    /// The time was over first.
    pub(crate) fn timed_out(self) -> bool {
        self.timed_out
    }
}

impl Condvar {
    pub(crate) const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.held.take() {
            guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> Waited {
        let Some(held) = guard.held.take() else { return Waited { timed_out: true } };
        let (held, result) = self.0.wait_timeout(held, time).unwrap_or_else(PoisonError::into_inner);
        guard.held = Some(held);
        Waited { timed_out: result.timed_out() }
    }

    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> Waited {
        self.wait_for(guard, deadline.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock for many readers or one writer.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock for reading, if it can be had at once.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        match self.0.try_read() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_under_a_lock_leaves_it_usable_and_held_by_nobody() {
        let (mutex, lock, condvar) = (Mutex::new(1), RwLock::new(1), Condvar::new());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guards = (mutex.lock(), lock.write());
            panic!("under both");
        }));
        assert!(panicked.is_err());
        *mutex.lock() += 1;
        *lock.write() += 1;
        assert_eq!((*mutex.try_lock().unwrap(), *lock.try_read().unwrap(), *lock.read()), (2, 2, 2));
        let mut guard = mutex.lock();
        assert!(condvar.wait_until(&mut guard, Instant::now()).timed_out());
        assert!(condvar.wait_for(&mut guard, Duration::from_millis(1)).timed_out());
        assert_eq!(*guard, 2);
        assert!(mutex.try_lock().is_none() && lock.try_read().is_some());
    }

    #[test]
    fn an_unlocked_guard_is_locked_again_also_after_a_panic() {
        let mutex = Mutex::new(1);
        let mut guard = mutex.lock();
        MutexGuard::unlocked(&mut guard, || *mutex.lock() = 2);
        assert_eq!(*guard, 2);
        let panicked = catch_unwind(AssertUnwindSafe(|| MutexGuard::unlocked(&mut guard, || panic!("unlocked"))));
        assert!(panicked.is_err() && mutex.try_lock().is_none());
        assert_eq!(*guard, 2);
        drop(guard);
        assert!(mutex.try_lock().is_some());
    }
}
