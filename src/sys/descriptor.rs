//! Descriptors that kvconn owns: close-on-exec, and never one of the standard ones.
//!
//! A daemon that has closed its standard input, output or error still writes to descriptors 0 to 2. If one of them were
//! ours by then, it would write into our files and connections.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The first descriptor above the standard ones.
const LOWEST: RawFd = 3;

/// Takes over what a system call has just returned: a new descriptor, or -1 and errno.
pub(crate) fn own(fd: RawFd) -> io::Result<OwnedFd> {
    if fd == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, owned by nobody else.
    above_standard(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The same descriptor, or a duplicate above the standard ones.
pub(crate) fn above_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() < LOWEST { duplicate(fd.as_raw_fd()) } else { Ok(fd) }
}

/// A duplicate of any descriptor number.
pub(crate) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    duplicate_from(fd, LOWEST)
}

/// The same, with the first free number from `lowest` on.
fn duplicate_from(fd: RawFd, lowest: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers; it fails if the number is no open descriptor.
    match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: just made, owned by nobody else.
        own => Ok(unsafe { OwnedFd::from_raw_fd(own) }),
    }
}

/// Makes the kernel's table of descriptors so large that this number fits.
pub(crate) fn make_room(number: RawFd) {
    // SAFETY: takes no pointers.
    if let Ok(any) = own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }) {
        drop(duplicate_from(any.as_raw_fd(), number));
    }
}

/// Whether no descriptor has this number now.
pub(crate) fn is_free(fd: RawFd) -> bool {
    // SAFETY: takes no pointers; changes nothing.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    flags == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
}
