//! The libzmq context of the process. It is made once, before the first connection, after checks that it cannot abort.

use std::sync::mpsc;

use crate::budget::descriptors as budget;
use crate::error::{Error, Result, Status};
use crate::libzmq::{self, Context};
use crate::sys::thread::spawn_quiet_as_c;

/// libzmq aborts the process if its first socket finds fewer than about 8 free descriptors.
const NEEDED_DESCRIPTORS: usize = 16;
/// The most sockets a context is made for. It reserves 12 bytes for each at once. Every socket costs a descriptor, so more
/// sockets than the process's descriptor limit are useless.
const MAX_SOCKETS: u64 = 262_144;

/// Makes the context and starts its threads.
pub(crate) fn create(io_threads: i32) -> Result<Context> {
    // For its reaper and its I/O threads: libzmq aborts the process if it cannot start one.
    check_threads(1 + io_threads as usize)?;
    // Right before they are needed. What other threads of the process open in between cannot be prevented.
    budget::check_free(NEEDED_DESCRIPTORS)?;
    let (_, hard) = budget::nofile();
    let sockets = hard.clamp(1024, MAX_SOCKETS) as i32;
    let failed = |what: &str, e: std::io::Error| {
        let text = format!("libzmq cannot make {what}: {}", libzmq::error_text(&e));
        let errno = e.raw_os_error().unwrap_or(0);
        match errno {
            // Another thread has taken the descriptors in the meantime.
            libc::EMFILE | libc::ENFILE => Error::limit(format!("{text}; raise RLIMIT_NOFILE (ulimit -n)")),
            libc::ENOMEM => Error::limit(text),
            _ => Error::new(Status::Internal, text),
        }
        .errno(errno)
    };
    let context = Context::new(io_threads, sockets).map_err(|e| failed("a context", e))?;
    // Starts libzmq's threads now, right after the checks.
    drop(context.socket(zmq_sys::ZMQ_PUSH).map_err(|e| failed("its first socket", e))?);
    Ok(context)
}

/// Whether `count` more threads can be started now. Checked by starting such threads.
fn check_threads(count: usize) -> Result<()> {
    let mut made = Vec::new();
    for _ in 0..count {
        // Each thread lives until its sender is dropped, so that all of them live at the same time.
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
