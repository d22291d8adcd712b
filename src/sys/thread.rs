//! How kvconn starts its own threads, and how these call the host's code.

use std::cell::Cell;
use std::io;
use std::mem::{self, MaybeUninit};
use std::thread::{Builder, JoinHandle};

/// Starts a thread named `name` that never runs a signal handler.
///
/// Signals belong to the host process. Its handlers run on its own threads, never on one of kvconn's, where they could
/// run under a lock or on a stack that they do not expect. The calling thread blocks all signals around the start, and
/// the new thread inherits the mask. A thread that blocked signals itself could get one before that.
///
/// Linux shows the first 15 bytes of `name`.
///
/// # Errors
///
/// The system's error if no thread could be made. Then `f` is dropped.
///
/// # Panics
///
/// If `name` contains a NUL byte.
pub fn spawn_quiet(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let _restored_at_return = SignalsBlocked::new();
    Builder::new().name(name.to_owned()).spawn(f)
}

thread_local! {
    /// Called before this thread stops for good.
    static BEFORE_STOP: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// Sets what is called if this thread [stops for good](host_call).
pub(crate) fn before_stop(call: impl FnOnce() + 'static) {
    BEFORE_STOP.set(Some(Box::new(call)));
}

/// Calls a function of the host's on a thread of kvconn's. The function must return. If it is left in another way, the
/// thread stops here for good. If it forks and returns in the child, the child ends.
///
/// There are two such ways. A C++ exception has nowhere to go. And an interpreter that exits ends the threads that call
/// into it (Python before 3.14 by pthread_exit), which unwinds their stacks. Rust would take that for an exception and
/// abort the process, although the process is about to exit in order. So the thread stops and lets the process exit.
pub(crate) fn host_call<R>(call: impl FnOnce() -> R) -> R {
    struct Stop;
    impl Drop for Stop {
        fn drop(&mut self) {
            if std::thread::panicking() {
                return; // a Rust panic is caught further up
            }
            if let Some(call) = BEFORE_STOP.take() {
                call();
            }
            loop {
                std::thread::park();
            }
        }
    }
    let (unwound, process) = (Stop, std::process::id());
    let result = call();
    mem::forget(unwound);
    if std::process::id() != process {
        // The call has forked and returns in the child, which has no other thread and nothing left to do. Locks that
        // the parent's threads held at that moment are locked here for ever, so nothing is touched.
        // SAFETY: always allowed.
        unsafe { libc::_exit(0) };
    }
    result
}

/// Blocks all signals for the calling thread while it lives, then restores the thread's mask.
struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    fn new() -> SignalsBlocked {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both pointers are to our own sets. sigfillset initialises `all`. pthread_sigmask initialises
        // `before`; it fails only for an unknown first argument.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        SignalsBlocked { before }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: `before` is the set that pthread_sigmask filled in, and this is still the same thread:
        // the value never leaves `spawn`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::spawn_quiet;
    use std::sync::mpsc;

    /// Whether the calling thread blocks `signal`.
    fn blocked(signal: i32) -> bool {
        let mut mask = std::mem::MaybeUninit::uninit();
        // SAFETY: a query (no new set) that initialises `mask`.
        let mask = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
            mask.assume_init()
        };
        // SAFETY: `mask` is initialised.
        unsafe { libc::sigismember(&mask, signal) == 1 }
    }

    /// Every signal that a program can block: not SIGKILL and SIGSTOP, nor those that the C library keeps.
    fn blockable() -> impl Iterator<Item = i32> {
        let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
        (1..32).chain(real_time).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal))
    }

    #[test]
    fn a_thread_blocks_every_signal_and_its_creator_none() {
        let before: Vec<bool> = blockable().map(blocked).collect();
        let (sender, receiver) = mpsc::channel();
        let thread = spawn_quiet("kvconn-test", move || {
            let open: Vec<i32> = blockable().filter(|&signal| !blocked(signal)).collect();
            let name = std::thread::current().name().map(str::to_owned);
            sender.send((open, name)).unwrap();
        });
        let after: Vec<bool> = blockable().map(blocked).collect();
        assert_eq!(before, after, "the creator's mask changed");
        assert_eq!(receiver.recv().unwrap(), (vec![], Some("kvconn-test".to_owned())));
        thread.unwrap().join().unwrap();
    }
}
