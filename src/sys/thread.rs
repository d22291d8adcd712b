//! How kvconn starts its own threads, and how they call the host's code.

use std::cell::Cell;
use std::io;
use std::mem::{self, MaybeUninit};
use std::thread::{Builder, JoinHandle};

/// Starts a thread that is named `name` and never runs a signal handler.
///
/// The host process owns the signals: its handlers run on its own threads, never on one of ours,
/// where they could run under a lock or on a stack they do not expect. The mask is set in the
/// calling thread around the start, and inherited: a thread that blocked signals only once it ran
/// could take one before that.
///
/// Linux shows the first 15 bytes of `name`.
///
/// # Errors
///
/// The system's error if no thread could be made. `f` is dropped then.
///
/// # Panics
///
/// If `name` contains a NUL byte.
pub fn spawn_quiet(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let _restored_at_return = SignalsBlocked::new();
    Builder::new().name(name.to_owned()).spawn(f)
}

thread_local! {
    /// What is called before this thread stops for good.
    static BEFORE_STOP: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// Has something done if this thread [stops for good](host_call).
pub(crate) fn before_stop(call: impl FnOnce() + 'static) {
    BEFORE_STOP.set(Some(Box::new(call)));
}

/// Calls a function of the host's, on a thread of ours. It must return; if it is left in another way, the thread stops here
/// for good. Where it returns in a child that it forked, the child ends.
///
/// There are two such ways. A C++ exception has nowhere to go. And when an interpreter ends, it ends the threads that call
/// into it (Python before 3.14 by pthread_exit), which unwinds their stacks: the process would abort where Rust takes that for
/// an exception. It is about to end in order; the thread lets it.
pub(crate) fn host_call<R>(call: impl FnOnce() -> R) -> R {
    struct Stop;
    impl Drop for Stop {
        fn drop(&mut self) {
            if std::thread::panicking() {
                return; // a panic of Rust's has somewhere to go
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
        // It has forked, and returns in the child, which has no other thread: there is nothing left for it to do. What the
        // parent's threads held at that moment is locked for ever here, so nothing is touched.
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
        // SAFETY: both pointers are to sets of our own. sigfillset initialises `all`, and
        // pthread_sigmask, which fails only for an unknown first argument, initialises `before`.
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
        // SAFETY: `before` is the set that pthread_sigmask filled in, and this is still the thread
        // it came from: the value never leaves `spawn_quiet`.
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

    /// Every signal a program can block: not SIGKILL and SIGSTOP, nor those the C library keeps.
    fn blockable() -> impl Iterator<Item = i32> {
        let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
        (1..32).chain(real_time).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal))
    }

    #[test]
    fn thread_blocks_every_signal_and_its_maker_none() {
        let before: Vec<bool> = blockable().map(blocked).collect();
        let (sender, receiver) = mpsc::channel();
        let thread = spawn_quiet("kvconn-test", move || {
            let open: Vec<i32> = blockable().filter(|&signal| !blocked(signal)).collect();
            let name = std::thread::current().name().map(str::to_owned);
            sender.send((open, name)).unwrap();
        });
        let after: Vec<bool> = blockable().map(blocked).collect();
        assert_eq!(before, after, "the maker's mask changed");
        assert_eq!(receiver.recv().unwrap(), (vec![], Some("kvconn-test".to_owned())));
        thread.unwrap().join().unwrap();
    }
}
