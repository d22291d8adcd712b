//! Waking a thread through a descriptor, and waiting on descriptors.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::sys::descriptor;

/// An eventfd: readable from [`wake`](EventFd::wake) until [`clear`](EventFd::clear).
#[derive(Debug)]
pub(crate) struct EventFd {
    fd: OwnedFd,
    /// A wake-up could not be written.
    owed: AtomicBool,
}

impl EventFd {
    pub(crate) fn new() -> io::Result<EventFd> {
        // SAFETY: takes no pointers.
        descriptor::own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
            .map(|fd| EventFd { fd, owed: AtomicBool::new(false) })
    }

    pub(crate) fn wake(&self) {
        let one: u64 = 1;
        // Not `write`, which is a cancellation point: senders come here.
        // SAFETY: 8 live bytes.
        let write = || unsafe {
            let written = libc::syscall(libc::SYS_write, self.fd.as_raw_fd(), std::ptr::from_ref(&one), 8_usize);
            written as libc::ssize_t
        };
        // Only a sandbox is known to be in the way.
        let written = (0..3).any(|_| retry(write) == 8);
        self.owed.store(!written, Ordering::Relaxed);
    }

    /// Whether the last wake-up could not be written, and should be tried again.
    pub(crate) fn owes_wake(&self) -> bool {
        self.owed.load(Ordering::Relaxed)
    }

    pub(crate) fn clear(&self) {
        let mut count: u64 = 0;
        // SAFETY: 8 live bytes. It fails only if there is nothing to clear.
        retry(|| unsafe { libc::read(self.fd.as_raw_fd(), std::ptr::from_mut(&mut count).cast(), 8) });
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Wakes a thread that waits on any number of other descriptors.
#[derive(Debug)]
pub(crate) struct Waker(Option<EventFd>);

impl Waker {
    /// If no descriptor is left for it, the thread looks again every few milliseconds instead.
    pub(crate) fn new() -> Waker {
        Waker(EventFd::new().ok())
    }

    /// Ends the present wait, or the next one.
    pub(crate) fn wake(&self) {
        if let Some(eventfd) = &self.0 {
            eventfd.wake();
        }
    }

    /// Waits until it is woken, one of the descriptors is readable, or the time is over. Takes the wake-up back.
    /// Returns which descriptors are readable.
    pub(crate) fn wait(&self, fds: &[RawFd], until: Instant) -> Vec<bool> {
        let mut polled: Vec<_> = fds.iter().map(|fd| readable(*fd)).collect();
        match &self.0 {
            Some(eventfd) => {
                polled.push(readable(eventfd.as_raw_fd()));
                wait(&mut polled, until);
                eventfd.clear();
            }
            None => _ = wait(&mut polled, until.min(Instant::now() + Duration::from_millis(5))),
        }
        polled[..fds.len()].iter().map(|fd| fd.revents != 0).collect()
    }
}

/// Waits until one of the descriptors is readable or the time is over. Signals do not end the wait.
pub(crate) fn wait_readable(fds: &[RawFd], until: Instant) -> bool {
    let mut polled = [readable(-1); 2];
    for (slot, fd) in polled.iter_mut().zip(fds) {
        slot.fd = *fd;
    }
    wait(&mut polled, until)
}

/// A descriptor to wait on. A negative one is skipped.
fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

fn wait(polled: &mut [libc::pollfd], until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let time = libc::timespec { tv_sec: left.as_secs() as libc::time_t, tv_nsec: left.subsec_nanos().into() };
        // SAFETY: the array and the time live for the call. A negative descriptor is skipped.
        let n = unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &time, std::ptr::null()) };
        match n {
            0 => return false,
            n if n > 0 => return true,
            // Not even a wait without time has looked at the descriptors when a signal came first.
            _ if is_interrupted() => {}
            _ if Instant::now() >= until => return false,
            _ => {} // Any other error would be a defect of kvconn, and the deadline ends the loop.
        }
    }
}

/// Makes a system call again for as long as a signal interrupts it.
fn retry(mut call: impl FnMut() -> libc::ssize_t) -> libc::ssize_t {
    loop {
        match call() {
            -1 if is_interrupted() => {}
            result => return result,
        }
    }
}

fn is_interrupted() -> bool {
    io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
}
