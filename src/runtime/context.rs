//! The libzmq context of the process: made once, before the first connection, when that is safe.

use std::sync::mpsc;

use crate::budget::descriptors as budget;
use crate::error::{Error, Result, Status};
use crate::libzmq::{self, Context};
use crate::sys::thread::spawn_quiet_as_c;

/// libzmq aborts the process when its first socket finds fewer than about 8 descriptors.
const NEEDED_DESCRIPTORS: usize = 16;
/// The most sockets a context is made for. It reserves 12 bytes for each at once; every socket costs a descriptor,
/// so more than the process may open are of no use.
const MAX_SOCKETS: u64 = 262_144;

/// Makes the context and starts its threads.
pub(crate) fn create(io_threads: i32) -> Result<Context> {
    // Its reaper and its I/O threads; libzmq aborts the process when it cannot make one.
    check_threads(1 + io_threads as usize)?;
    // Right before they are needed: what other threads of the process take in between nobody can help.
    budget::check_free(NEEDED_DESCRIPTORS)?;
    let (_, hard) = budget::nofile();
    let sockets = hard.clamp(1024, MAX_SOCKETS) as i32;
    let failed = |what: &str, e: std::io::Error| {
        let text = format!("libzmq cannot make {what}: {}", libzmq::error_text(&e));
        let errno = e.raw_os_error().unwrap_or(0);
        match errno {
            // Another thread has taken what was there a moment ago.
            libc::EMFILE | libc::ENFILE => Error::limit(format!("{text}; raise RLIMIT_NOFILE (ulimit -n)")),
            libc::ENOMEM => Error::limit(text),
            _ => Error::new(Status::Internal, text),
        }
        .errno(errno)
    };
    let context = Context::new(io_threads, sockets).map_err(|e| failed("a context", e))?;
    // Starts the threads now, while we know that it works.
    drop(context.socket(zmq_sys::ZMQ_PUSH).map_err(|e| failed("its first socket", e))?);
    Ok(context)
}

/// Whether that many threads of libzmq's can be made at this moment, found out by making such threads.
fn check_threads(count: usize) -> Result<()> {
    let mut made = Vec::new();
    for _ in 0..count {
        // Each lives until its sender is dropped, so that all of them live at once.
        let (hold, held) = mpsc::channel::<()>();
        let thread = spawn_quiet_as_c("kvconn-probe", move || _ = held.recv()).map_err(|e| {
            Error::limit(format!("{count} more threads are needed, {} could be made: {e}", made.len()))
                .errno(e.raw_os_error().unwrap_or(0))
        })?;
        made.push((hold, thread));
    }
    for (hold, thread) in made {
        drop(hold);
        // A thread that only waited cannot have panicked.
        let _ = thread.join();
    }
    Ok(())
}
