//! # Messages
//!
//! A message is one or more frames, each of any size, also 0. It is accepted whole or not at all, and it is copied: the
//! frames are the caller's again when the call returns. An error means that it was not accepted, now or later, so sending
//! it again cannot duplicate it. Nothing is accepted before the handshake of this connection has succeeded: a send on one that
//! is CONNECTING waits for it, inside its own deadline.

use std::ffi::{c_char, c_void};
use std::{ptr, slice};

use super::guard::{Array, ErrorOut, Out, process, timeout};
use super::strings::Text;
use super::types::{KVCONN_UNKNOWN, kvconn_conn_t, kvconn_error_t, kvconn_manager_t, kvconn_status_t};
use crate::connection::message::{Copies, MAX_FRAMES, Message};
use crate::error::{Error, Result, Status};
use crate::ids::{ConnId, ManagerId};

/// The most frames that one message takes.
pub const KVCONN_MAX_FRAMES: usize = 65536;
const _: () = assert!(KVCONN_MAX_FRAMES == MAX_FRAMES);

/// One frame of a message.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_frame_t {
    /// Its bytes; may be NULL when size is 0.
    pub data: *const c_void,
    /// How many bytes it has.
    pub size: usize,
}

/// A block of bytes that the caller gives.
///
/// # Safety
/// `start` is NULL, or may be read for `size` bytes for the life `'a`.
unsafe fn bytes<'a>(name: impl Fn() -> String, start: *const c_void, size: usize) -> Result<&'a [u8]> {
    if size == 0 {
        Ok(&[])
    } else if start.is_null() {
        Err(Error::invalid(format!("{} is NULL, and its size is {size}", name())))
    } else if isize::try_from(size).is_err() {
        Err(Error::invalid(format!("{} has {size} bytes, more than memory can have", name())))
    } else {
        // SAFETY: not NULL, no larger than memory can be, and readable for `'a` by contract.
        Ok(unsafe { slice::from_raw_parts(start.cast(), size) })
    }
}

/// The frames of a message that the caller gives, in one of two forms.
pub(super) enum Frames<'a> {
    /// One pointer and size for each.
    Apart(Array<'a, kvconn_frame_t>),
    /// One behind the other.
    Packed(*const c_void, Array<'a, u32>),
}

impl<'a> Frames<'a> {
    /// # Safety
    /// The array is as for [`Array::new`], and the data of each frame is NULL or may be read for its size.
    pub(super) unsafe fn apart(frames: *const kvconn_frame_t, count: usize) -> Frames<'a> {
        // SAFETY: the same contract.
        Frames::Apart(unsafe { Array::new("frames", frames, count) })
    }

    /// # Safety
    /// The array is as for [`Array::new`], and `buffer` is NULL or may be read for the sum of the sizes.
    unsafe fn packed(buffer: *const c_void, sizes: *const u32, count: usize) -> Frames<'a> {
        // SAFETY: the same contract.
        Frames::Packed(buffer, unsafe { Array::new("sizes", sizes, count) })
    }

    /// Refuses what cannot be a message. What it returns makes the copy, when the core asks for it.
    fn check(self) -> Result<impl FnMut() -> Result<Message> + 'a> {
        let checked = match self {
            Frames::Apart(_) => Checked::Apart(self.checked()?),
            Frames::Packed(buffer, sizes) => {
                let sizes = some(sizes.get(MAX_FRAMES)?)?;
                // Cannot overflow: 65,536 sizes of 32 bits.
                let total = sizes.iter().map(|s| *s as usize).sum();
                // SAFETY: the buffer is as `packed` was promised.
                Checked::Packed(unsafe { bytes(|| "buffer".into(), buffer, total) }?, sizes)
            }
        };
        Ok(move || checked.copy(None))
    }

    /// Both at once for frames that lie apart, of one of several messages.
    pub(super) fn copy(self, copies: &mut Copies) -> Result<Message> {
        Checked::Apart(self.checked()?).copy(Some(copies))
    }

    /// The frames, each of which has its data. None of packed ones.
    pub(super) fn checked(self) -> Result<&'a [kvconn_frame_t]> {
        let Frames::Apart(frames) = self else { return Ok(&[]) };
        let frames = some(frames.get(MAX_FRAMES)?)?;
        let mut total = 0_usize;
        for (i, frame) in frames.iter().enumerate() {
            // SAFETY: each frame's data is as `apart` was promised.
            unsafe { bytes(|| format!("frames[{i}].data"), frame.data, frame.size) }?;
            total = total.saturating_add(frame.size);
        }
        if isize::try_from(total).is_err() {
            return Err(Error::invalid(format!(
                "the {} frames together have more bytes than memory can have",
                frames.len()
            )));
        }
        Ok(frames)
    }
}

fn some<T>(frames: &[T]) -> Result<&[T]> {
    if frames.is_empty() {
        Err(Error::invalid("frame_count is 0; a message has at least one frame"))
    } else {
        Ok(frames)
    }
}

/// Frames that can be copied.
enum Checked<'a> {
    Apart(&'a [kvconn_frame_t]),
    Packed(&'a [u8], &'a [u32]),
}

impl Checked<'_> {
    fn copy(&self, copies: Option<&mut Copies>) -> Result<Message> {
        match *self {
            Checked::Apart(frames) => {
                let bytes = |frame: &kvconn_frame_t| {
                    let data = if frame.size == 0 { ptr::dangling() } else { frame.data.cast::<u8>() };
                    // SAFETY: `checked` has seen that it is not NULL and not too large; readable by `apart`'s contract.
                    unsafe { slice::from_raw_parts(data, frame.size) }
                };
                Message::copied(frames.iter().map(bytes), copies)
            }
            Checked::Packed(mut rest, sizes) => {
                let bytes = |size: &u32| {
                    let frame;
                    (frame, rest) = rest.split_at(*size as usize);
                    frame
                };
                Message::copied(sizes.iter().map(bytes), copies)
            }
        }
    }
}

/// Sends one whole message on this connection, or nothing at all.
///
/// @param conn          the connection.
/// @param frames        its frames, in order.
/// @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
/// @param timeout_ms    how long to wait until the connection is READY and has room; 0 does not wait.
///     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
/// @param[out] sequence the message's number on this connection; may be NULL.
/// @param error         details of a failure; may be NULL.
/// @retval KVCONN_OK             it is accepted, in order behind what this thread sent before.
/// @retval KVCONN_INVALID        there is no frame or too many, or a frame's data is NULL and its size is not 0.
/// @retval KVCONN_STALE          there is no such connection, or it ended too long ago to be remembered.
/// @retval KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline.
/// @retval KVCONN_STALLED        it is full and has made no progress for at least timeout_ms; never with timeout 0.
/// @retval KVCONN_CONNECT_FAILED its dial has failed.
/// @retval KVCONN_PEER_LOST      the peer is gone.
/// @retval KVCONN_DISCONNECTED   this process ended it, before or during the call.
/// @retval KVCONN_NODE_FAILED    its node failed, before or during the call.
/// @retval KVCONN_LIMIT          max_total_queued_bytes is used up, or there is no memory for the message; the message says which.
/// @retval KVCONN_EVICTED        it was idle and was closed, before the call.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_send(
    conn: kvconn_conn_t,
    frames: *const kvconn_frame_t,
    frame_count: usize,
    timeout_ms: i64,
    sequence: *mut u64,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (frames, sequence, error) =
        unsafe { (Frames::apart(frames, frame_count), Out::new("sequence", sequence), ErrorOut::new(error)) };
    error.guard(|| send(conn, frames, timeout_ms, &sequence))
}

/// Does the same as kvconn_send, with frames that lie one behind the other in one buffer, which is easier and faster to call
/// from other languages.
///
/// @param conn          the connection.
/// @param buffer        the bytes of all frames; may be NULL when all sizes are 0.
/// @param sizes         the size of each frame in bytes.
/// @param frame_count   how many sizes, which is how many frames: 1 to KVCONN_MAX_FRAMES.
/// @param timeout_ms    as for kvconn_send.
/// @param[out] sequence the message's number on this connection; may be NULL.
/// @param error         details of a failure; may be NULL.
/// @retval KVCONN_OK             it is accepted, in order behind what this thread sent before.
/// @retval KVCONN_INVALID        there is no frame or too many, or buffer is NULL and not all sizes are 0.
/// @retval KVCONN_STALE          there is no such connection, or it ended too long ago to be remembered.
/// @retval KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline.
/// @retval KVCONN_STALLED        it is full and has made no progress for at least timeout_ms; never with timeout 0.
/// @retval KVCONN_CONNECT_FAILED its dial has failed.
/// @retval KVCONN_PEER_LOST      the peer is gone.
/// @retval KVCONN_DISCONNECTED   this process ended it, before or during the call.
/// @retval KVCONN_NODE_FAILED    its node failed, before or during the call.
/// @retval KVCONN_LIMIT          max_total_queued_bytes is used up, or there is no memory for the message; the message says which.
/// @retval KVCONN_EVICTED        it was idle and was closed, before the call.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_send_packed(
    conn: kvconn_conn_t,
    buffer: *const c_void,
    sizes: *const u32,
    frame_count: usize,
    timeout_ms: i64,
    sequence: *mut u64,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (frames, sequence, error) =
        unsafe { (Frames::packed(buffer, sizes, frame_count), Out::new("sequence", sequence), ErrorOut::new(error)) };
    error.guard(|| send(conn, frames, timeout_ms, &sequence))
}

fn send(conn: kvconn_conn_t, frames: Frames, timeout_ms: i64, sequence: &Out<u64>) -> Result<()> {
    sequence.optional()?;
    let (mut message, timeout) = (frames.check()?, timeout("timeout_ms", timeout_ms)?);
    sequence.set(process()?.connection(ConnId(conn))?.send(&mut message, timeout)?);
    Ok(())
}

/// Sends one whole message to an endpoint, whichever life of the peer is there; dials when there is no connection and no
/// fence forbids it. Use it for messages that stand alone: two of them may reach two lives of the peer.
///
/// @param m             the manager.
/// @param endpoint      the endpoint, in any spelling. A new dial uses the options that it remembers.
/// @param frames        the message's frames, in order.
/// @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
/// @param timeout_ms    how long to wait until the connection is READY and has room; 0 does not wait.
///     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
/// @param[out] conn     the connection that accepted it; may be NULL.
/// @param[out] sequence the message's number on that connection; may be NULL.
/// @param error         details of a failure; may be NULL.
/// @retval KVCONN_OK             it is accepted, in order behind what this thread sent before.
/// @retval KVCONN_INVALID        the endpoint is malformed, there is no frame or too many, or a frame's data is NULL and its
///     size is not 0.
/// @retval KVCONN_STALE          there is no such manager.
/// @retval KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline; a dial goes on.
/// @retval KVCONN_STALLED        it is full and has made no progress for at least timeout_ms; never with timeout 0.
/// @retval KVCONN_BACKOFF        the last dial failed, was given up, or its connection was lost within a step: retry_after_ms says how
///     long to wait. Not dialled.
/// @retval KVCONN_CONNECT_FAILED the dial has failed.
/// @retval KVCONN_PEER_LOST      the peer was lost during the call.
/// @retval KVCONN_DISCONNECTED   the endpoint is fenced by a disconnect. Not dialled.
/// @retval KVCONN_NODE_FAILED    the endpoint is fenced because its node failed. Not dialled.
/// @retval KVCONN_LIMIT          max_endpoints, max_total_queued_bytes, the process's descriptors or its memory are used up; the
///     message names it.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_send_to(
    m: kvconn_manager_t,
    endpoint: *const c_char,
    frames: *const kvconn_frame_t,
    frame_count: usize,
    timeout_ms: i64,
    conn: *mut kvconn_conn_t,
    sequence: *mut u64,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (endpoint, frames, conn, sequence, error) = unsafe {
        (
            Text::new("endpoint", endpoint),
            Frames::apart(frames, frame_count),
            Out::new("conn", conn),
            Out::new("sequence", sequence),
            ErrorOut::new(error),
        )
    };
    error.guard(|| send_to(m, endpoint, frames, timeout_ms, &conn, &sequence))
}

/// Does the same as kvconn_send_to, with frames that lie one behind the other in one buffer.
///
/// @param m             the manager.
/// @param endpoint      the endpoint, in any spelling. A new dial uses the options that it remembers.
/// @param buffer        the bytes of all frames; may be NULL when all sizes are 0.
/// @param sizes         the size of each frame in bytes.
/// @param frame_count   how many sizes, which is how many frames: 1 to KVCONN_MAX_FRAMES.
/// @param timeout_ms    as for kvconn_send_to.
/// @param[out] conn     the connection that accepted it; may be NULL.
/// @param[out] sequence the message's number on that connection; may be NULL.
/// @param error         details of a failure; may be NULL.
/// @retval KVCONN_OK             it is accepted, in order behind what this thread sent before.
/// @retval KVCONN_INVALID        the endpoint is malformed, there is no frame or too many, or buffer is NULL and not all sizes
///     are 0.
/// @retval KVCONN_STALE          there is no such manager.
/// @retval KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline; a dial goes on.
/// @retval KVCONN_STALLED        it is full and has made no progress for at least timeout_ms; never with timeout 0.
/// @retval KVCONN_BACKOFF        the last dial failed, was given up, or its connection was lost within a step: retry_after_ms says how
///     long to wait. Not dialled.
/// @retval KVCONN_CONNECT_FAILED the dial has failed.
/// @retval KVCONN_PEER_LOST      the peer was lost during the call.
/// @retval KVCONN_DISCONNECTED   the endpoint is fenced by a disconnect. Not dialled.
/// @retval KVCONN_NODE_FAILED    the endpoint is fenced because its node failed. Not dialled.
/// @retval KVCONN_LIMIT          max_endpoints, max_total_queued_bytes, the process's descriptors or its memory are used up; the
///     message names it.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_send_packed_to(
    m: kvconn_manager_t,
    endpoint: *const c_char,
    buffer: *const c_void,
    sizes: *const u32,
    frame_count: usize,
    timeout_ms: i64,
    conn: *mut kvconn_conn_t,
    sequence: *mut u64,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (endpoint, frames, conn, sequence, error) = unsafe {
        (
            Text::new("endpoint", endpoint),
            Frames::packed(buffer, sizes, frame_count),
            Out::new("conn", conn),
            Out::new("sequence", sequence),
            ErrorOut::new(error),
        )
    };
    error.guard(|| send_to(m, endpoint, frames, timeout_ms, &conn, &sequence))
}

/// Waits until the peer's kernel has acknowledged messages of this connection.
///
/// What is acknowledged a peer that goes on reading has, as long as the connection ends by KVCONN_ENDED_FIN. After a reset or a timeout,
/// or when the peer closes its socket or is killed before it has read, what its kernel held may be gone.
///
/// @param conn              the connection.
/// @param sequence          up to which message; 0 is all that were accepted until this call, which is KVCONN_OK when there are none.
/// @param timeout_ms        how long to wait; 0 only looks. KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
/// @param[out] acknowledged the sequence of the last message acknowledged whole, also when the wait or the connection ended
///     first; KVCONN_UNKNOWN with KVCONN_UNSUPPORTED. May be NULL.
/// @param error             details of a failure; may be NULL.
/// @retval KVCONN_OK             they are acknowledged.
/// @retval KVCONN_INVALID        no message of that sequence was accepted yet.
/// @retval KVCONN_STALE          there is no such connection, or it ended too long ago to be remembered.
/// @retval KVCONN_TIMEOUT        they are not all acknowledged yet.
/// @retval KVCONN_PEER_LOST      the peer was lost before its kernel acknowledged them all.
/// @retval KVCONN_DISCONNECTED   this process ended the connection before they were all acknowledged.
/// @retval KVCONN_NODE_FAILED    its node failed before they were all acknowledged.
/// @retval KVCONN_UNSUPPORTED    nobody can tell: an ipc endpoint, or acknowledgement is off.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_flush(
    conn: kvconn_conn_t,
    sequence: u64,
    timeout_ms: i64,
    acknowledged: *mut u64,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (acknowledged, error) = unsafe { (Out::new("acknowledged", acknowledged), ErrorOut::new(error)) };
    error.guard(|| {
        acknowledged.optional()?;
        let timeout = timeout("timeout_ms", timeout_ms)?;
        let (result, reached) = process()?.connection(ConnId(conn))?.flush(sequence, timeout);
        // Exceptions from zero on failure: how far it came is known then as well, or that nobody can tell.
        match result.as_ref().map_err(|e| e.status) {
            Err(Status::Invalid) => {}
            Err(Status::Unsupported) => acknowledged.set(KVCONN_UNKNOWN),
            _ => acknowledged.set(reached),
        }
        result
    })
}

fn send_to(
    m: kvconn_manager_t,
    endpoint: Text,
    frames: Frames,
    timeout_ms: i64,
    conn: &Out<kvconn_conn_t>,
    sequence: &Out<u64>,
) -> Result<()> {
    conn.optional()?;
    sequence.optional()?;
    let (endpoint, mut message) = (endpoint.required()?, frames.check()?);
    let timeout = timeout("timeout_ms", timeout_ms)?;
    let (id, number) = process()?.manager(ManagerId(m))?.send_to(endpoint, &mut message, timeout)?;
    conn.set(id.0);
    sequence.set(number);
    Ok(())
}
