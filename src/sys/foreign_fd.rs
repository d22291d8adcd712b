//! Writing to a descriptor that is not kvconn's, on a thread that is not kvconn's.
//!
//! The reader may be slow: there is a deadline. A write can wait although poll says that the descriptor is writable: a
//! terminal is so from 256 free bytes on, and another thread may fill a pipe in between. So pipes and terminals are
//! opened anew, without waiting; the host's own descriptor and its flags stay as they are. The reader may be gone: the
//! kernel then sends SIGPIPE to the writing thread, whose default is to end the process.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use super::descriptor;

/// What a pipe takes without waiting once poll says that it takes any.
const AT_ONCE: usize = libc::PIPE_BUF;

/// Writes everything. The reader may keep it waiting for `patience` at a time: then `TimedOut`, and the rest is
/// missing. When the reader is gone, EPIPE and no signal.
pub(crate) fn write_all(fd: RawFd, mut bytes: &[u8], patience: Duration) -> io::Result<()> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: takes no pointer; any number is allowed as a descriptor.
    if unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let own = open_without_waiting(fd);
    let fd = own.as_ref().map_or(fd, AsRawFd::as_raw_fd);
    let mut deadline = Instant::now() + patience;
    while !bytes.is_empty() {
        wait_writable(fd, deadline)?;
        match write(fd, &bytes[..bytes.len().min(AT_ONCE)]) {
            Ok(n) => (bytes, deadline) = (&bytes[n..], Instant::now() + patience),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Less room than poll has promised.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The same pipe or terminal on a descriptor of kvconn's that never waits. `None` for everything else, and where there
/// is no /proc: files and null devices do not wait for a reader.
fn open_without_waiting(fd: RawFd) -> Option<File> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for a stat; any number is allowed as a descriptor. It is initialised when the call succeeds.
    let stat = unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init())? };
    if !matches!(stat.st_mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFCHR) {
        return None;
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(format!("/proc/self/fd/{fd}")).ok()?;
    Some(File::from(descriptor::above_standard(file.into()).ok()?))
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
