//! Waiting for many descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::sys::descriptor;

/// An epoll descriptor whose events are tokens.
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: takes no pointers.
        descriptor::own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Epoll)
    }

    /// Reports each time the descriptor becomes readable.
    pub(crate) fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.add_for(libc::EPOLLIN, fd, token)
    }

    /// Reports when the other side has closed.
    pub(crate) fn add_hang_up(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.add_for(libc::EPOLLRDHUP, fd, token)
    }

    fn add_for(&self, events: libc::c_int, fd: RawFd, token: u64) -> io::Result<()> {
        let events = (events | libc::EPOLLET) as u32;
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: both descriptors are open, the event lives for the call.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until something is ready or the time is over. A signal, or a debugger that stops and resumes the process,
    /// also ends the wait: then nothing is ready, and nothing is lost.
    pub(crate) fn wait(&self, until: Option<Instant>, ready: &mut Vec<u64>) {
        const ROOM: usize = 256;
        let mut events = [MaybeUninit::<libc::epoll_event>::uninit(); ROOM];
        let timeout = until.map_or(-1, |at| {
            // Rounded up: waking a millisecond early would be a busy loop.
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
            i32::try_from(left.as_millis()).unwrap_or(i32::MAX)
        });
        // SAFETY: there is room for ROOM events.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr().cast(), ROOM as i32, timeout) };
        ready.clear();
        for event in events.iter().take(usize::try_from(n).unwrap_or(0)) {
            // SAFETY: the kernel has filled the first n events.
            ready.push(unsafe { event.assume_init() }.u64);
        }
    }
}
