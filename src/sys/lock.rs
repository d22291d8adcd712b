//! The standard library's locks and condition variables, without poisoning and with deadlines.
//!
//! They are futexes, and each holds all of its state itself. Therefore kvconn works in a forked child. parking_lot's
//! locks share tables of the process. A fork can happen while another thread holds a lock of these tables. The child
//! does not have that thread, so it hangs in the first lock that has to wait.

use std::ops::{Deref, DerefMut};
use std::sync::{self, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

/// A lock. It stays usable after a panic under it: panics are caught at the C boundary.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

/// A locked [`Mutex`].
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only while this guard waits on a condition or is [`unlocked`](MutexGuard::unlocked).
    held: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, held: Some(self.hold()) }
    }

    /// The lock, if it is free.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: self, held: Some(held) })
    }

    #[inline(always)]
    fn hold(&self) -> sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.held.as_ref().expect("the guard holds its lock")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("the guard holds its lock")
    }
}

impl<'a, T> MutexGuard<'a, T> {
    /// Releases the lock while `call` runs, and takes it again, also after a panic.
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

/// A condition variable for a [`Mutex`]. A wait may end spuriously.
#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

/// How a wait with a deadline ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waited {
    timed_out: bool,
}

impl Waited {
    /// Whether the deadline came first.
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

    /// The lock for reading, if no writer holds it.
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
    fn a_panic_under_a_lock_leaves_it_usable_and_free() {
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
    fn an_unlocked_guard_is_locked_again_even_after_a_panic() {
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
