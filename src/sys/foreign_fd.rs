//! Writing to a descriptor that is not kvconn's, on a thread that is not kvconn's.
//!
//! The reader may be slow: there is a deadline. The reader may be gone: the kernel then sends SIGPIPE to the writing
//! thread, whose default is to end the process.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// What a pipe takes without waiting once poll says that it takes any.
const AT_ONCE: usize = libc::PIPE_BUF;

/// Writes everything. The reader may keep it waiting for `patience` at a time: then `TimedOut`, and the rest is
/// missing. When the reader is gone, EPIPE and no signal.
pub(crate) fn write_all(fd: RawFd, mut bytes: &[u8], patience: Duration) -> io::Result<()> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let mut deadline = Instant::now() + patience;
    while !bytes.is_empty() {
        wait_writable(fd, deadline)?;
        match write(fd, &bytes[..bytes.len().min(AT_ONCE)]) {
            Ok(n) => (bytes, deadline) = (&bytes[n..], Instant::now() + patience),
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// One write, of a socket without waiting.
fn write(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the bytes live for the call; any number is allowed as a descriptor.
    let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
    let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error());
    if !matches!(&sent, Err(e) if e.raw_os_error() == Some(libc::ENOTSOCK)) {
        return sent;
    }
    let mut blocked = SigpipeBlocked::new();
    // SAFETY: as above.
    let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    let written = usize::try_from(written).map_err(|_| io::Error::last_os_error());
    blocked.take_away = matches!(&written, Err(e) if e.raw_os_error() == Some(libc::EPIPE));
    written
}

fn wait_writable(fd: RawFd, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that a wait is not a busy loop at its end.
        let ms = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let mut polled = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one live element; any number is allowed as a descriptor.
        match unsafe { libc::poll(&mut polled, 1, ms) } {
            0 => return Err(io::ErrorKind::TimedOut.into()),
            -1 => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            },
            // An error too: write says which.
            _ => return Ok(()),
        }
    }
}

/// Blocks SIGPIPE for the calling thread while it lives. A SIGPIPE that was pending before stays pending: it is the
/// host's.
struct SigpipeBlocked {
    before: libc::sigset_t,
    was_pending: bool,
    /// The write has raised one.
    take_away: bool,
}

impl SigpipeBlocked {
    fn new() -> SigpipeBlocked {
        let sigpipe = sigpipe();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets live for the call, which fails only for an unknown first argument and initialises `before`.
        let before = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &sigpipe, before.as_mut_ptr());
            before.assume_init()
        };
        SigpipeBlocked { before, was_pending: pending(), take_away: false }
    }
}

impl Drop for SigpipeBlocked {
    fn drop(&mut self) {
        if self.take_away && !self.was_pending {
            let (sigpipe, now) = (sigpipe(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
            // SAFETY: the set and the time live for the call; no information is asked for. It waits for nothing, so
            // that no signal interrupts it.
            unsafe { libc::sigtimedwait(&sigpipe, std::ptr::null_mut(), &now) };
        }
        // SAFETY: `before` is the set that pthread_sigmask filled in, on this thread: the value never leaves `write`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// The set of SIGPIPE alone.
fn sigpipe() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set; SIGPIPE is a signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}

/// Whether a SIGPIPE waits for this thread or for the process.
fn pending() -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigpending initialises the set; it fails only for a bad address.
    unsafe {
        libc::sigpending(set.as_mut_ptr());
        libc::sigismember(&set.assume_init(), libc::SIGPIPE) == 1
    }
}
