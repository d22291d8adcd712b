//! # Owned buffers
//!
//! kvconn_send_owned sends without copying: the caller lends its buffers, and must neither free nor change them until they are its
//! own again. That is when libzmq has let them go, and it is known whether the peer has acknowledged the message or the connection
//! has ended before. A stopped peer keeps them for as long as it is connected; a disconnect gives them back.
//!
//! There are two forms. With a release function, kvconn calls it once for each accepted message, on its thread "kvconn-release",
//! under no lock. Without one, the buffers of all messages up to info.released are the caller's, and kvconn_wait_released waits
//! for that: callers from other languages use this form, because no code of theirs runs on a foreign thread.
//!
//! At the end of the program: after KVCONN_OK of kvconn_shutdown all lent buffers are released; after KVCONN_TIMEOUT of it the rest
//! must stay as they are until the process ends, and kvconn_wait_released returns KVCONN_SHUTDOWN. A program that returns from main
//! while releases may still run shuts down first: they must not touch what its exit destroys.

use std::ffi::c_void;
use std::ptr;

use super::guard::{ErrorOut, Out, process, timeout};
use super::message::{Frames, kvconn_frame_t};
use super::types::{kvconn_conn_t, kvconn_error_t, kvconn_status_t};
use crate::error::Result;
use crate::ids::ConnId;
use crate::release::Release;

/// A function that is told that the buffers of a message are the caller's again: the connection, the message's sequence, what became
/// of it (one of KVCONN_OUTCOME_…), and the pointer that was given with it.
///
/// It is called on the thread "kvconn-release", one call at a time; while it runs, other buffers wait. It may call kvconn: every
/// function works there, but kvconn_wait_released returns KVCONN_WOULD_DEADLOCK instead of waiting for what comes after this
/// call, and kvconn_disconnect_all, kvconn_manager_destroy and kvconn_shutdown do not wait for buffers. In a forked child it is not
/// called, and in a child that it forked itself it must not return: the child then ends. Elsewhere it must return: a C++ exception
/// out of it, or pthread_exit, stops the thread, and nothing is released any more; a longjmp out of it is undefined.
pub type kvconn_release_fn_t =
    Option<unsafe extern "C-unwind" fn(conn: kvconn_conn_t, sequence: u64, outcome: i32, user_data: *mut c_void)>;

/// Sends one whole message on this connection without copying it, or nothing at all. For large frames: one below some ten KiB is
/// sent faster by kvconn_send.
///
/// The array of frames itself is read during the call only. On KVCONN_OK the buffers are lent until they are released; on an error
/// they are the caller's when the call returns, and release is not called, now or later. When the peer dies in the middle of the
/// message, the call waits for libzmq to let the frames go that it took, which takes some milliseconds. A release may come before
/// the call returns.
///
/// @param conn          the connection.
/// @param frames        its frames, in order. Their data must stay as it is until it is released.
/// @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
/// @param timeout_ms    how long to wait until the connection is READY and has room; 0 does not wait.
///     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
/// @param release       told once when the buffers are the caller's again; NULL for the form without one.
/// @param user_data     a pointer that release gets; kvconn does not look at it.
/// @param[out] sequence the message's number on this connection; may be NULL.
/// @param error         details of a failure; may be NULL.
/// @retval KVCONN_OK             it is accepted, in order behind what this thread sent before, and its buffers are lent.
/// @retval KVCONN_INVALID        there is no frame or too many, or a frame's data is NULL and its size is not 0.
/// @retval KVCONN_STALE          there is no such connection, or it ended too long ago to be remembered.
/// @retval KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline.
/// @retval KVCONN_STALLED        it is full and has made no progress for at least timeout_ms; never with timeout 0.
/// @retval KVCONN_CONNECT_FAILED its dial has failed.
/// @retval KVCONN_PEER_LOST      the peer is gone.
/// @retval KVCONN_DISCONNECTED   this process ended it, before or during the call.
/// @retval KVCONN_NODE_FAILED    its node failed, before or during the call.
/// @retval KVCONN_LIMIT          max_total_queued_bytes is used up, there is no memory, or the thread "kvconn-release" cannot be
///     started; the message says which.
/// @retval KVCONN_EVICTED        it was idle and was closed, before the call.
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
        unsafe { (Frames::apart(frames, frame_count), Out::new("sequence", sequence), ErrorOut::new(error)) };
    error.guard(|| {
        sequence.optional()?;
        let (frames, timeout) = (frames.raw()?, timeout("timeout_ms", timeout_ms)?);
        let conn = process()?.connection(ConnId(conn))?;
        // SAFETY: the caller promised that the frames stay as they are until they are released.
        sequence.set(unsafe { conn.send_owned(&frames, told(release, user_data), timeout) }?);
        Ok(())
    })
}

/// The caller's function and pointer, for the core.
fn told(release: kvconn_release_fn_t, user_data: *mut c_void) -> Option<Release> {
    /// A pointer that only the caller's function looks at.
    struct UserData(*mut c_void);
    // SAFETY: never dereferenced here; that the function may use it on the thread "kvconn-release" is what its type says.
    unsafe impl Send for UserData {}

    let (release, user_data) = (release?, UserData(user_data));
    Some(Box::new(move |conn: ConnId, sequence, outcome| {
        let user_data = user_data;
        // SAFETY: the caller promised a function that takes these.
        unsafe { release(conn.0, sequence, outcome as i32, user_data.0) }
    }))
}

/// Waits until the buffers of messages that were sent by kvconn_send_owned are the caller's again, after release was called where
/// one was given. What became of the messages: those up to acknowledged in kvconn_connection_info were acknowledged.
///
/// @param conn       the connection, also one that has ended.
/// @param sequence   up to which message; 0 is all that were accepted until this call.
/// @param timeout_ms how long to wait; 0 only looks. KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
/// @param error      details of a failure; may be NULL.
/// @retval KVCONN_OK             the buffers of all messages up to that one are the caller's.
/// @retval KVCONN_INVALID        no message of that sequence was accepted yet.
/// @retval KVCONN_STALE          there is no such connection, or it ended too long ago to be remembered. A connection that has lent
///     buffers is remembered until they are released.
/// @retval KVCONN_TIMEOUT        some are not the caller's yet.
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
    /// Where the frames are, for frames that are not copied.
    fn raw(self) -> Result<Vec<*const [u8]>> {
        let frames = self.checked()?;
        let raw = |frame: &kvconn_frame_t| {
            let start = if frame.size == 0 { ptr::dangling() } else { frame.data.cast::<u8>() };
            ptr::slice_from_raw_parts(start, frame.size)
        };
        Ok(frames.iter().map(raw).collect())
    }
}
