//! The libzmq context of the process. It is made once, before the first connection.

use crate::budget::descriptors as budget;
use crate::error::{Error, Result, Status};
use crate::libzmq::{self, Context};

/// What libzmq's threads, its first socket and the watcher need.
const NEEDED_DESCRIPTORS: usize = 16;
/// The most sockets a context is made for. It reserves 12 bytes for each at once. Every socket costs a descriptor, so
/// more sockets than the process's descriptor limit are useless.
const MAX_SOCKETS: u64 = 262_144;

/// Makes the context and starts its threads: whether they can be made is known only when they are there. A failure
/// leaves nothing behind.
pub(crate) fn create(io_threads: i32) -> Result<Context> {
    // Names the limit, where it can be named before.
    budget::check_free(NEEDED_DESCRIPTORS)?;
    let (_, hard) = budget::nofile();
    let sockets = hard.clamp(1024, MAX_SOCKETS) as i32;
    let context = Context::new(io_threads, sockets).map_err(|e| failed("a context", &e))?;
    // The first socket starts the threads.
    match context.socket(zmq_sys::ZMQ_PUSH) {
        Ok(socket) => drop(socket),
        Err(e) => {
            context.terminate();
            return Err(failed("its threads and its first socket", &e));
        }
    }
    Ok(context)
}

fn failed(what: &str, e: &std::io::Error) -> Error {
    let text = format!("libzmq cannot make {what}: {}", libzmq::error_text(e));
    let errno = e.raw_os_error().unwrap_or(0);
    match errno {
        libc::EMFILE | libc::ENFILE => Error::limit(format!("{text}; raise RLIMIT_NOFILE (ulimit -n)")),
        libc::EAGAIN => Error::limit(format!("{text}; raise RLIMIT_NPROC (ulimit -u) or the cgroup's pids.max")),
        libc::ENOSPC => Error::limit(format!("{text}; raise fs.epoll.max_user_watches")),
        libc::ENOMEM => Error::limit(text),
        _ => Error::new(Status::Internal, text),
    }
    .errno(errno)
}
