//! The gate's synchronisation primitives, in one place, so that loom can replace them.
//!
//! Without `--cfg loom` they are those of `lock.rs`. With it they have the same interface over loom's, and a wait has
//! no time limit: a lost wake-up shows as a deadlock of the model.

#[cfg(not(loom))]
pub(crate) use crate::sys::lock::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use model::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
mod model {
    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);
    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }
        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            Some(MutexGuard(Some(self.0.try_lock().ok()?)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    impl<T> MutexGuard<'_, T> {
        pub(crate) fn give_back(&mut self) {
            self.0 = None;
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar(loom::sync::Condvar::new())
        }
        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) {
            guard.0 = Some(self.0.wait(guard.0.take().unwrap()).unwrap());
        }
        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
