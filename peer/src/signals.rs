//! The signals that the process receives and sends.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Tells of SIGTERM by a descriptor. libzmq's own threads block all signals.
pub struct Terminated(OwnedFd);

impl Terminated {
    /// Blocks SIGTERM. Call it before any other thread is made.
    pub fn new() -> io::Result<Terminated> {
        // SAFETY: the set is initialised by sigemptyset, and a new descriptor belongs to this value.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Terminated(OwnedFd::from_raw_fd(fd))),
            }
        }
    }

    /// Readable when SIGTERM has come.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Sends a signal to the whole process.
pub fn send_to_self(signal: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    match unsafe { libc::kill(libc::getpid(), signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
