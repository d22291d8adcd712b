//! # Messages
//!
//! A message is one or more frames of any size, also 0. It is accepted whole or not at all. kvconn copies it: the
//! frames are the caller's again when the call returns. An error means that the message was not accepted, now or later,
//! so sending it again cannot duplicate it. No message is accepted before the handshake of its connection has
//! succeeded: a send to a connection that is CONNECTING waits for READY, within its own timeout.
//!
//! ## Statuses that all sends share
//!
//! ```text
//! KVCONN_OK             the message is accepted. It is queued after this thread's earlier messages.
//! KVCONN_INVALID        there is no frame, or too many, or a frame's data is NULL and its size is not 0.
//! KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline; or another send has waited
//!                       so long before, and nothing has moved since. This call did not wait then.
//! KVCONN_STALLED        the connection is full, and nothing has moved for at least timeout_ms; or it has been
//!                       CONNECTING for so long. The call did not wait longer. Never with timeout 0.
//! KVCONN_CONNECT_FAILED the dial failed.
//! KVCONN_PEER_LOST      the peer is gone.
//! KVCONN_DISCONNECTED   this process ended the connection, before or during the call.
//! KVCONN_NODE_FAILED    the node of the endpoint failed, before or during the call.
//! KVCONN_LIMIT          max_total_queued_bytes is used up, or there is no memory. The message says which.
//! ```

use std::ffi::{c_char, c_void};
use std::{ptr, slice};

use super::KVCONN_DEFAULT_TIMEOUT;
use super::guard::{ErrorOut, process, timeout, uncancellable};
use super::pointers::{Array, Out};
use super::recent;
use super::strings::Text;
use super::types::{KVCONN_UNKNOWN, kvconn_conn_t, kvconn_error_t, kvconn_manager_t, kvconn_status_t};
use crate::connection::batch::BatchMessage;
use crate::connection::message::{Copies, MAX_FRAMES, Message, ShortMessage};
use crate::connection::send_short;
use crate::error::{Error, Result, Status};
use crate::ids::{ConnId, ManagerId};
use crate::process::Process;

/// The largest number of frames in one message.
pub const KVCONN_MAX_FRAMES: usize = 65536;
const _: () = assert!(KVCONN_MAX_FRAMES == MAX_FRAMES);

/// One frame of a message.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_frame_t {
    /// Its bytes; may be NULL if size is 0.
    pub data: *const c_void,
    /// Its size in bytes.
    pub size: usize,
}

impl kvconn_frame_t {
    /// Adds a copy to the message. Returns false if it is not as usual: without data, or larger than `most`, which is at
    /// most what an array can have.
    ///
    /// # Safety
    /// Its data is NULL or may be read for its size.
    #[inline(always)]
    unsafe fn copy_usual(&self, message: &mut ShortMessage, most: usize) -> bool {
        if self.size == 0 {
            return message.push(&[]);
        }
        if self.data.is_null() || self.size > most {
            return false;
        }
        // SAFETY: not NULL, no larger than memory can be, and readable by contract.
        message.push(unsafe { slice::from_raw_parts(self.data.cast(), self.size) })
    }
}

/// A block of the caller's bytes.
///
/// # Safety
/// `start` is NULL, or may be read for `size` bytes for the life `'a`.
pub(super) unsafe fn bytes<'a>(name: impl Fn() -> String, start: *const c_void, size: usize) -> Result<&'a [u8]> {
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

/// The caller's frames of one message, in one of two forms.
pub(super) enum Frames<'a> {
    /// A pointer and a size for each frame.
    Separate(Array<'a, kvconn_frame_t>),
    /// All frames one after the other in one buffer.
    Packed(*const c_void, Array<'a, u32>),
}

impl<'a> Frames<'a> {
    /// # Safety
    /// The array is as for [`Array::new`], and the data of each frame is NULL or may be read for its size.
    pub(super) unsafe fn separate(frames: *const kvconn_frame_t, count: usize) -> Frames<'a> {
        // SAFETY: the same contract.
        Frames::Separate(unsafe { Array::new("frames", frames, count) })
    }

    /// # Safety
    /// The array is as for [`Array::new`], and `buffer` is NULL or may be read for the sum of the sizes.
    unsafe fn packed(buffer: *const c_void, sizes: *const u32, count: usize) -> Frames<'a> {
        // SAFETY: the same contract.
        Frames::Packed(buffer, unsafe { Array::new("sizes", sizes, count) })
    }

    /// Copies the frames in one pass. Returns false if they are not as usual: wrong, too many, or larger than `most`.
    /// Then [`check`](Frames::check) says whether they can be a message.
    #[inline(always)]
    fn copy_few(&self, message: &mut ShortMessage, most: usize) -> bool {
        match self {
            Frames::Separate(frames) => {
                let Some(frames) = frames.few(ShortMessage::MOST) else { return false };
                message.reserve(frames.iter().map(|frame| frame.size));
                for frame in frames {
                    // SAFETY: the data satisfies the contract of `separate`.
                    if !unsafe { frame.copy_usual(message, most) } {
                        return false;
                    }
                }
            }
            Frames::Packed(buffer, sizes) => {
                let Some(sizes) = sizes.few(ShortMessage::MOST) else { return false };
                message.reserve(sizes.iter().map(|size| *size as usize));
                let mut data = buffer.cast::<u8>();
                for size in sizes {
                    let frame = kvconn_frame_t { data: data.cast(), size: *size as usize };
                    data = data.wrapping_add(frame.size);
                    // SAFETY: the buffer satisfies the contract of `packed`.
                    if !unsafe { frame.copy_usual(message, most) } {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Rejects what cannot be a message. The result makes the copy when the core asks for it.
    fn check(self) -> Result<impl FnMut() -> Result<Message> + 'a> {
        let checked = match self {
            Frames::Separate(_) => Checked::Separate(self.checked()?),
            Frames::Packed(buffer, sizes) => {
                let sizes = some(sizes.get(MAX_FRAMES)?)?;
                // Cannot overflow: 65,536 sizes of 32 bits.
                let total = sizes.iter().map(|s| *s as usize).sum();
                // SAFETY: the buffer satisfies the contract of `packed`.
                Checked::Packed(unsafe { bytes(|| "buffer".into(), buffer, total) }?, sizes)
            }
        };
        Ok(move || checked.copy(None))
    }

    /// The frames, each with valid data. Empty for packed frames.
    pub(super) fn checked(self) -> Result<&'a [kvconn_frame_t]> {
        let Frames::Separate(frames) = self else { return Ok(&[]) };
        let frames = some(frames.get(MAX_FRAMES)?)?;
        let mut total = 0_usize;
        for (i, frame) in frames.iter().enumerate() {
            // SAFETY: each frame's data satisfies the contract of `separate`.
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

impl BatchMessage for Frames<'_> {
    #[inline(always)]
    fn copy_short(&self, message: &mut ShortMessage) -> bool {
        self.copy_few(message, Copies::ALWAYS_COPIED)
    }

    fn copy(self, copies: &mut Copies) -> Result<Message> {
        Checked::Separate(self.checked()?).copy(Some(copies))
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
    Separate(&'a [kvconn_frame_t]),
    Packed(&'a [u8], &'a [u32]),
}

impl Checked<'_> {
    fn copy(&self, copies: Option<&mut Copies>) -> Result<Message> {
        match *self {
            Checked::Separate(frames) => {
                let bytes = |frame: &kvconn_frame_t| {
                    let data = if frame.size == 0 { ptr::dangling() } else { frame.data.cast::<u8>() };
                    // SAFETY: `checked` made sure that it is not NULL and not too large; readable by `separate`'s contract.
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

/// Sends one whole message on this connection, or nothing. Never dials. Returns the statuses that all sends share, and
/// EVICTED.
///
/// @param frames        the frames, in order.
/// @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
/// @param timeout_ms    how long to wait until the connection is READY and has room.
/// @param[out] sequence the message's number on this connection; may be NULL.
/// @retval KVCONN_EVICTED the connection was idle, and was closed before the call.
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
        unsafe { (Frames::separate(frames, frame_count), Out::new("sequence", sequence), ErrorOut::new(error)) };
    error.guard_quick(|| send(conn, frames, timeout_ms, &sequence))
}

/// Like kvconn_send, with all frames one after the other in one buffer. This is easier and faster to call from other
/// languages. Returns the statuses that all sends share, and EVICTED.
///
/// @param buffer        the bytes of all frames; may be NULL if all sizes are 0.
/// @param sizes         the size of each frame in bytes.
/// @param frame_count   how many sizes (and frames): 1 to KVCONN_MAX_FRAMES.
/// @param timeout_ms    as for kvconn_send.
/// @param[out] sequence the message's number on this connection; may be NULL.
/// @retval KVCONN_EVICTED the connection was idle, and was closed before the call.
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
    error.guard_quick(|| send(conn, frames, timeout_ms, &sequence))
}

/// The most bytes of a frame on the shortest way: the frames together are no more than memory can have.
const MOST_BYTES: usize = isize::MAX as usize / ShortMessage::MOST;

/// The shortest way calls no cancellation point, so it need not hold off the cancellation of the thread, which would
/// take a fifth of its time.
#[inline(always)]
fn send(conn: kvconn_conn_t, frames: Frames, timeout_ms: i64, sequence: &Out<u64>) -> Result<()> {
    let conn = ConnId(conn);
    if sequence.is_aligned()
        && timeout_ms >= i64::from(KVCONN_DEFAULT_TIMEOUT)
        && let Some(gate) = Process::begun().and_then(|process| process.gate(conn))
    {
        let mut message = ShortMessage::new();
        if frames.copy_few(&mut message, MOST_BYTES) {
            let number = match send_short(gate, conn, &mut message) {
                Some(number) => number,
                None => send_long_way(conn, &mut message, timeout_ms)?,
            };
            sequence.set(number);
            return Ok(());
        }
    }
    send_any(conn, frames, timeout_ms, sequence)
}

/// Sends a message that did not pass the shortest way.
#[cold]
#[inline(never)]
fn send_long_way(conn: ConnId, message: &mut ShortMessage, timeout_ms: i64) -> Result<u64> {
    uncancellable(|| process()?.connection(conn)?.send_long_way(message, timeout("timeout_ms", timeout_ms)?))
}

/// Sends a message that is long, or of which an argument is wrong, or whose connection has ended.
#[cold]
#[inline(never)]
fn send_any(conn: ConnId, frames: Frames, timeout_ms: i64, sequence: &Out<u64>) -> Result<()> {
    uncancellable(|| {
        sequence.optional()?;
        let (mut message, timeout) = (frames.check()?, timeout("timeout_ms", timeout_ms)?);
        sequence.set(process()?.connection(conn)?.send(&mut message, timeout)?);
        Ok(())
    })
}

/// Sends one whole message to an endpoint, whichever life of the peer is there. Dials if there is no connection and no
/// fence. Use it for messages that stand alone: two of them may reach two lives of the peer. Returns the statuses that
/// all sends share, and those below.
///
/// @param endpoint      the endpoint in any spelling. A dial uses the options that the endpoint remembers.
/// @param frames        the frames, in order.
/// @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
/// @param timeout_ms    as for kvconn_send.
/// @param[out] conn     the connection that accepted the message; may be NULL.
/// @param[out] sequence the message's number on that connection; may be NULL.
/// @retval KVCONN_INVALID      also: the endpoint is malformed.
/// @retval KVCONN_TIMEOUT      as for all sends; a dial goes on.
/// @retval KVCONN_BACKOFF      the last dial failed a moment ago. Not dialled; send again after retry_after_ms.
/// @retval KVCONN_DISCONNECTED also: the endpoint is fenced by a disconnect. Not dialled.
/// @retval KVCONN_NODE_FAILED  also: the endpoint is fenced because its node failed. Not dialled.
/// @retval KVCONN_LIMIT        also: max_endpoints or the process's descriptors are used up.
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
            Frames::separate(frames, frame_count),
            Out::new("conn", conn),
            Out::new("sequence", sequence),
            ErrorOut::new(error),
        )
    };
    error.guard_quick(|| send_to(m, endpoint, frames, timeout_ms, &conn, &sequence))
}

/// Like kvconn_send_to, with all frames one after the other in one buffer. Returns the statuses that all sends share,
/// and those of kvconn_send_to.
///
/// @param endpoint      as for kvconn_send_to.
/// @param buffer        the bytes of all frames; may be NULL if all sizes are 0.
/// @param sizes         the size of each frame in bytes.
/// @param frame_count   how many sizes (and frames): 1 to KVCONN_MAX_FRAMES.
/// @param timeout_ms    as for kvconn_send.
/// @param[out] conn     the connection that accepted the message; may be NULL.
/// @param[out] sequence the message's number on that connection; may be NULL.
/// @retval KVCONN_BACKOFF as for kvconn_send_to.
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
    error.guard_quick(|| send_to(m, endpoint, frames, timeout_ms, &conn, &sequence))
}

/// Waits until messages of this connection are acknowledged. "What arrived" says what an acknowledgement is worth.
///
/// @param sequence          the last message to wait for; 0 is the last one accepted so far.
/// @param timeout_ms        how long to wait; 0 only looks.
/// @param[out] acknowledged the sequence of the last acknowledged message, also set if the wait or the connection ended
///     first; KVCONN_UNKNOWN with KVCONN_UNSUPPORTED. May be NULL.
/// @retval KVCONN_OK           all messages up to sequence are acknowledged, or no message was accepted yet and
///     sequence is 0.
/// @retval KVCONN_INVALID      no message with this sequence was accepted yet.
/// @retval KVCONN_TIMEOUT      some are not acknowledged yet.
/// @retval KVCONN_PEER_LOST    the peer was lost before all of them were acknowledged.
/// @retval KVCONN_DISCONNECTED this process ended the connection before all of them were acknowledged.
/// @retval KVCONN_NODE_FAILED  the node failed before all of them were acknowledged.
/// @retval KVCONN_UNSUPPORTED  unknown: an ipc endpoint, or the option acknowledgement is off.
#[unsafe(no_mangle)]
#[must_use]
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
        // Not zero on failure: the count is known then too, or it is unknown.
        match result.as_ref().map_err(|e| e.status) {
            Err(Status::Invalid) => {}
            Err(Status::Unsupported) => acknowledged.set(KVCONN_UNKNOWN),
            _ => acknowledged.set(reached),
        }
        result
    })
}

#[inline(always)]
fn send_to(
    m: kvconn_manager_t,
    endpoint: Text,
    frames: Frames,
    timeout_ms: i64,
    conn: &Out<kvconn_conn_t>,
    sequence: &Out<u64>,
) -> Result<()> {
    if conn.is_aligned()
        && sequence.is_aligned()
        && timeout_ms >= i64::from(KVCONN_DEFAULT_TIMEOUT)
        && let Some(process) = Process::begun()
        && let Some(id) = endpoint.bytes().and_then(|text| recent::find(ManagerId(m), text))
        && let Some(gate) = process.gate(id)
    {
        let mut message = ShortMessage::new();
        if frames.copy_few(&mut message, Copies::ALWAYS_COPIED)
            && let Some(number) = send_short(gate, id, &mut message)
        {
            conn.set(id.0);
            sequence.set(number);
            return Ok(());
        }
    }
    send_to_any(m, endpoint, frames, timeout_ms, conn, sequence)
}

/// Sends a message that did not pass the shortest way.
#[cold]
#[inline(never)]
fn send_to_any(
    m: kvconn_manager_t,
    endpoint: Text,
    frames: Frames,
    timeout_ms: i64,
    conn: &Out<kvconn_conn_t>,
    sequence: &Out<u64>,
) -> Result<()> {
    uncancellable(|| {
        conn.optional()?;
        sequence.optional()?;
        let (endpoint, mut message) = (endpoint.required()?, frames.check()?);
        let timeout = timeout("timeout_ms", timeout_ms)?;
        let (id, number) = process()?.manager(ManagerId(m))?.send_to(endpoint, &mut message, timeout)?;
        conn.set(id.0);
        sequence.set(number);
        recent::remember(ManagerId(m), endpoint.as_bytes(), id);
        Ok(())
    })
}
