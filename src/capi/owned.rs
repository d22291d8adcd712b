//! # Owned buffers
//!
//! kvconn_send_owned sends without copying. The caller must not free or change the buffers until they are released.
//! Two things must have happened: libzmq has freed them; and the message is acknowledged, or its connection has ended. A
//! stopped peer keeps them as long as it is connected; a disconnect releases them. There are two forms:
//!
//! - With a release function: kvconn calls it once for each accepted message, on the thread "kvconn-release", holding
//!   no lock.
//! - Without one: the buffers of all messages up to info.released are the caller's again; kvconn_wait_released waits
//!   for that. Use this form from other languages: no code of theirs runs on a foreign thread.
//!
//! At the end of the program, call kvconn_shutdown before main returns if release functions may still run. KVCONN_OK of
//! it means that all buffers are released. After KVCONN_TIMEOUT do not free or change the rest until the process ends.

use std::ffi::c_void;
use std::ptr;

use super::guard::{ErrorOut, process, timeout};
use super::message::{Frames, kvconn_frame_t};
use super::pointers::Out;
use super::types::{kvconn_conn_t, kvconn_error_t, kvconn_status_t};
use crate::delivery::Release;
use crate::error::Result;
use crate::ids::ConnId;

/// The outcome of a message whose buffers are released.
pub type kvconn_outcome_t = i32;

/// A function that tells the caller that the buffers of a message are its own again. It gets the connection, the
/// sequence and the outcome of the message, and the pointer given to kvconn_send_owned.
///
/// It runs on the thread "kvconn-release", one call at a time; while it runs, other buffers wait. It may call kvconn.
/// In it, kvconn_wait_released returns KVCONN_WOULD_DEADLOCK instead of waiting for a later release, and
/// kvconn_disconnect_all, kvconn_manager_destroy and kvconn_shutdown do not wait for buffers. It is not called in a
/// forked child. It must return. After a C++ exception out of it, or pthread_exit, nothing is released any more. A
/// longjmp out of it is undefined. If it forks, the child must not return from it: the child would end there.
pub type kvconn_release_fn_t = Option<
    unsafe extern "C-unwind" fn(conn: kvconn_conn_t, sequence: u64, outcome: kvconn_outcome_t, user_data: *mut c_void),
>;

/// Sends one whole message on this connection without copying it, or nothing. Use it for large frames: below about 10
/// KiB kvconn_send is faster. Returns the statuses that all sends share, and those below.
///
/// On KVCONN_OK kvconn keeps the buffers until it releases them, which may be before the call returns. On an error they
/// are the caller's when the call returns, and release is not called, now or later. If the peer dies in the middle of
/// the message, the call waits some milliseconds until libzmq has freed the first frames.
///
/// @param frames        the frames, in order. The array is read only during the call; the data must not change until
///     released.
/// @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
/// @param timeout_ms    as for kvconn_send.
/// @param release       called once when the buffers are the caller's again; NULL for the form without a function.
/// @param user_data     a pointer for release; kvconn does not use it.
/// @param[out] sequence the message's number on this connection; may be NULL.
/// @retval KVCONN_LIMIT   also: the thread "kvconn-release" cannot be started.
/// @retval KVCONN_EVICTED the connection was idle, and was closed before the call.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_send_owned(
    conn: kvconn_conn_t,
    frames: *const kvconn_frame_t,
    frame_count: usize,
    timeout_ms: i64,
    release: kvconn_release_fn_t,
    user_data: *mut c_void,
    sequence: *mut u64,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (frames, sequence, error) =
        unsafe { (Frames::separate(frames, frame_count), Out::new("sequence", sequence), ErrorOut::new(error)) };
    error.guard(|| {
        sequence.optional()?;
        let (frames, timeout) = (frames.raw()?, timeout("timeout_ms", timeout_ms)?);
        let conn = process()?.connection(ConnId(conn))?;
        // SAFETY: the caller promised that the frames stay as they are until they are released.
        sequence.set(unsafe { conn.send_owned(&frames, release_call(release, user_data), timeout) }?);
        Ok(())
    })
}

/// The caller's release function and pointer, as the core calls them.
fn release_call(release: kvconn_release_fn_t, user_data: *mut c_void) -> Option<Release> {
    /// A pointer that only the caller's function looks at.
    struct UserData(*mut c_void);
    // SAFETY: never dereferenced here; that the function may use it on the thread "kvconn-release" is what its type says.
    unsafe impl Send for UserData {}

    let (release, user_data) = (release?, UserData(user_data));
    Some(Box::new(move |conn: ConnId, sequence, outcome| {
        let user_data = user_data;
        // SAFETY: the caller promised a function that takes these.
        unsafe { release(conn.0, sequence, outcome as kvconn_outcome_t, user_data.0) }
    }))
}

/// Waits until the buffers of kvconn_send_owned are the caller's again, and their release functions have returned.
/// Messages up to acknowledged in kvconn_connection_info were acknowledged.
///
/// @param conn       the connection. It may have ended; it is remembered until all its buffers are released.
/// @param sequence   the last message to wait for; 0 is the last one accepted so far.
/// @param timeout_ms how long to wait; 0 only looks.
/// @retval KVCONN_OK             the buffers of all messages up to sequence are the caller's.
/// @retval KVCONN_INVALID        no message with this sequence was accepted yet.
/// @retval KVCONN_TIMEOUT        some buffers are not released yet.
/// @retval KVCONN_WOULD_DEADLOCK called from a release function, for buffers that are not released yet.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_wait_released(
    conn: kvconn_conn_t,
    sequence: u64,
    timeout_ms: i64,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let error = unsafe { ErrorOut::new(error) };
    error.guard(|| {
        let timeout = timeout("timeout_ms", timeout_ms)?;
        process()?.connection(ConnId(conn))?.wait_released(sequence, timeout)
    })
}

impl Frames<'_> {
    /// The addresses of the frames, for frames that are not copied.
    fn raw(self) -> Result<Vec<*const [u8]>> {
        let frames = self.checked()?;
        let raw = |frame: &kvconn_frame_t| {
            let start = if frame.size == 0 { ptr::dangling() } else { frame.data.cast::<u8>() };
            ptr::slice_from_raw_parts(start, frame.size)
        };
        Ok(frames.iter().map(raw).collect())
    }
}
