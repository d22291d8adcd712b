//! # Batches
//!
//! One call sends a message to each of many ranks, on the caller's thread and under one deadline. A rank that is full
//! or not READY does not delay the others. Each item behaves like a kvconn_send: accepted whole or not at all, with its
//! own sequence or status. Items on one connection are accepted in the order of the array. If an item fails because its
//! connection is full, not READY or ended, the later items on that connection get the same status and are not tried, so
//! nothing overtakes it. An item that is KVCONN_INVALID or has no memory does not affect other items. Frames above
//! 1 KiB with the same data and size are copied once.
//!
//! ```c
//! kvconn_batch_item_t items[RANKS] = {0};
//! for (int i = 0; i < RANKS; i++) {
//!     items[i].conn = ranks[i]; // 0 is skipped
//!     items[i].frames = frames[i];
//!     items[i].frame_count = 2;
//! }
//! if (kvconn_send_batch(items, RANKS, 1000, &error) == KVCONN_PARTIAL) {
//!     // items[i].status says which failed. To send those again, set conn to 0 in the others.
//! }
//! ```

use std::ffi::c_void;

use super::guard::{ErrorOut, process, timeout};
use super::message::{Frames, bytes, kvconn_frame_t};
use super::pointers::{Array, OutItems, misaligned, null};
use super::types::{kvconn_conn_t, kvconn_error_t, kvconn_status_t};
use crate::connection::batch::{BatchMessage, BatchVerdict, MAX_BATCH};
use crate::connection::message::{Copies, MAX_FRAMES, Message, ShortMessage};
use crate::error::{Error, Result, Status};
use crate::ids::ConnId;

/// The largest number of items in one batch.
pub const KVCONN_MAX_BATCH: usize = 65536;
const _: () = assert!(KVCONN_MAX_BATCH == MAX_BATCH);

/// One message of a batch. The layout is frozen and has no struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_batch_item_t {
    /// The connection; 0 skips the item.
    pub conn: kvconn_conn_t,
    /// The frames, in order.
    pub frames: *const kvconn_frame_t,
    /// How many: 1 to KVCONN_MAX_FRAMES.
    pub frame_count: usize,
    /// Written: the message's number on its connection, or 0.
    pub sequence: u64,
    /// Written: KVCONN_OK if accepted or skipped, else why not.
    pub status: kvconn_status_t,
    /// Written: 0.
    pub reserved: u32,
}

/// The caller's items, which also receive the results.
struct Items {
    start: *mut kvconn_batch_item_t,
    count: usize,
}

impl Items {
    /// # Safety
    /// `start` is NULL, not aligned, or may be written for `count` items until the call ends; what is read of each is
    /// initialised, and its frames are as for [`Frames::separate`].
    unsafe fn new(start: *mut kvconn_batch_item_t, count: usize) -> Items {
        Items { start, count }
    }

    fn required(&self) -> Result<()> {
        if self.count > MAX_BATCH {
            let text = format!("items has {} elements; {MAX_BATCH} are allowed", self.count);
            Err(Error::invalid(text))
        } else if self.count == 0 {
            Ok(())
        } else if self.start.is_null() {
            Err(null("items"))
        } else if self.start.is_aligned() {
            Ok(())
        } else {
            Err(misaligned("items"))
        }
    }

    /// The connection and frames of each item. Call it only after [`required`](Self::required) returned OK.
    fn read(&self) -> impl ExactSizeIterator<Item = (ConnId, Frames<'_>)> {
        (0..self.count).map(|place| {
            // SAFETY: aligned and inside the array; what is read is initialised, by contract. The rest need not be.
            let (conn, frames, count) = unsafe {
                let item = self.start.add(place);
                ((&raw const (*item).conn).read(), (&raw const (*item).frames).read(), (*item).frame_count)
            };
            // SAFETY: an item's frames satisfy the contract of `separate`, by `new`'s contract.
            (ConnId(conn), unsafe { Frames::separate(frames, count) })
        })
    }

    /// Writes what became of one.
    fn set(&self, place: usize, status: Status, sequence: u64) {
        assert!(place < self.count);
        // SAFETY: aligned, inside the array and writable, by contract.
        unsafe {
            let item = self.start.add(place);
            (&raw mut (*item).sequence).write(sequence);
            (&raw mut (*item).status).write(status as kvconn_status_t);
            (&raw mut (*item).reserved).write(0);
        }
    }

    /// Writes the same for all.
    fn set_all(&self, status: Status) {
        (0..self.count).for_each(|place| self.set(place, status, 0));
    }
}

/// Sends many messages, each on its connection, under one deadline. Returns when every item is accepted or has failed.
/// A message that cannot be accepted at once is copied, and the copy is kept until its turn comes or the call ends: a
/// batch to full connections needs the memory of all its messages.
///
/// @param[in,out] items the messages. sequence and status are written, even if the whole call fails; status is then the
///     status of the call. May be NULL if count is 0.
/// @param count         how many: 0 to KVCONN_MAX_BATCH.
/// @param timeout_ms    how long to wait, in all, until the connections are READY and have room.
///     KVCONN_DEFAULT_TIMEOUT: option send_timeout_ms of each connection's manager.
/// @param error         for KVCONN_PARTIAL: how many items failed, and conn, endpoint, os_errno and message of the
///     first of them.
/// @retval KVCONN_OK      every item is accepted or skipped.
/// @retval KVCONN_INVALID items is NULL, or count or timeout_ms is out of range. No item was sent.
/// @retval KVCONN_PARTIAL at least one item failed, with a status that kvconn_send returns. The others are accepted.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_send_batch(
    items: *mut kvconn_batch_item_t,
    count: usize,
    timeout_ms: i64,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (items, error) = unsafe { (Items::new(items, count), ErrorOut::new(error)) };
    error.guard(|| {
        items.required()?;
        // What stays there if the call ends in a panic.
        items.set_all(Status::Internal);
        let (timeout, process) = timeout("timeout_ms", timeout_ms)
            .and_then(|timeout| Ok((timeout, process()?)))
            .inspect_err(|error| items.set_all(error.status))?;
        let mut verdict = BatchVerdict::default();
        process.send_items(items.read(), timeout, |place, result| {
            verdict.note(place, &result);
            match result {
                Ok(sequence) => items.set(place, Status::Ok, sequence),
                Err(error) => items.set(place, error.status, 0),
            }
        });
        verdict.result()
    })
}

/// The caller's messages as flat arrays.
struct PackedItems<'a> {
    conns: Array<'a, kvconn_conn_t>,
    frame_counts: Array<'a, u32>,
    sizes: *const u32,
    buffer: *const c_void,
}

/// One of them: its connection, the sizes of its frames, their bytes.
type PackedItem<'a> = (ConnId, &'a [u32], &'a [u8]);

impl<'a> PackedItems<'a> {
    /// # Safety
    /// The arrays are as for [`Array::new`], `sizes` with as many elements as the frame counts say together, and
    /// `buffer` is NULL or may be read for the sum of the sizes.
    unsafe fn new(
        conns: *const kvconn_conn_t,
        frame_counts: *const u32,
        count: usize,
        sizes: *const u32,
        buffer: *const c_void,
    ) -> PackedItems<'a> {
        // SAFETY: the same contract.
        let (conns, frame_counts) =
            unsafe { (Array::new("conns", conns, count), Array::new("frame_counts", frame_counts, count)) };
        PackedItems { conns, frame_counts, sizes, buffer }
    }

    /// Rejects what cannot be cut into messages. A message without a frame can, and is refused for itself.
    fn checked(&self) -> Result<Vec<PackedItem<'a>>> {
        let (conns, counts) = (self.conns.get(MAX_BATCH)?, self.frame_counts.get(MAX_BATCH)?);
        let mut frames = 0;
        for (place, count) in counts.iter().map(|count| *count as usize).enumerate() {
            if count > MAX_FRAMES {
                return Err(Error::invalid(format!("frame_counts[{place}] is {count}; at most {MAX_FRAMES}")));
            }
            // Cannot overflow: 65,536 counts of at most 65,536.
            frames += count;
        }
        // SAFETY: the array is as for `Array::new`, by `new`'s contract.
        let mut sizes = unsafe { Array::new("sizes", self.sizes, frames) }.get(frames)?;
        let total = sizes.iter().fold(0_usize, |total, size| total.saturating_add(*size as usize));
        // SAFETY: the buffer is NULL or may be read for this size, by `new`'s contract.
        let mut buffer = unsafe { bytes(|| "buffer".into(), self.buffer, total) }?;
        let cut = conns.iter().zip(counts).map(|(conn, count)| {
            let (of_item, data);
            (of_item, sizes) = sizes.split_at(*count as usize);
            (data, buffer) = buffer.split_at(of_item.iter().map(|size| *size as usize).sum());
            (ConnId(*conn), of_item, data)
        });
        Ok(cut.collect())
    }
}

/// The frames of one of several messages.
struct PackedFrames<'a> {
    sizes: &'a [u32],
    data: &'a [u8],
}

impl<'a> PackedFrames<'a> {
    fn each(&self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        let mut data = self.data;
        self.sizes.iter().map(move |size| {
            let frame;
            (frame, data) = data.split_at(*size as usize);
            frame
        })
    }
}

impl BatchMessage for PackedFrames<'_> {
    fn copy_short(&self, message: &mut ShortMessage) -> bool {
        if self.sizes.is_empty() || self.sizes.len() > ShortMessage::MOST {
            return false;
        }
        message.reserve(self.sizes.iter().map(|size| *size as usize));
        self.each().all(|frame| frame.len() <= Copies::ALWAYS_COPIED && message.push(frame))
    }

    fn copy(self, copies: &mut Copies) -> Result<Message> {
        Message::copied(self.each(), Some(copies))
    }
}

/// Like kvconn_send_batch, with flat arrays instead of structs, and all frames of all messages one after the other in
/// one buffer. This is easier and faster to call from other languages. A skipped message keeps its place in sizes and
/// buffer, so that the failed ones are sent again by setting the conns of the others to 0.
///
/// @param conns          the connection of each message; 0 skips it. May be NULL if count is 0, as all arrays.
/// @param frame_counts   how many frames each message has: 1 to KVCONN_MAX_FRAMES.
/// @param count          how many messages: 0 to KVCONN_MAX_BATCH.
/// @param buffer         the bytes of all frames; may be NULL if all sizes are 0.
/// @param sizes          the size of each frame in bytes: those of the first message, then those of the second ...
/// @param timeout_ms     as for kvconn_send_batch.
/// @param[out] sequences each message's number on its connection, or 0; may be NULL.
/// @param[out] statuses  KVCONN_OK for each message that is accepted or skipped, else why not; if the whole call fails,
///     its status. May be NULL.
/// @param error          as for kvconn_send_batch.
/// @retval KVCONN_OK      every message is accepted or skipped.
/// @retval KVCONN_INVALID an array is NULL, or count, a frame count or timeout_ms is out of range. No message was sent.
/// @retval KVCONN_PARTIAL at least one message failed, with a status that kvconn_send returns. The others are accepted.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_send_batch_packed(
    conns: *const kvconn_conn_t,
    frame_counts: *const u32,
    count: usize,
    buffer: *const c_void,
    sizes: *const u32,
    timeout_ms: i64,
    sequences: *mut u64,
    statuses: *mut kvconn_status_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (items, sequences, statuses, error) = unsafe {
        (
            PackedItems::new(conns, frame_counts, count, sizes, buffer),
            OutItems::new("sequences", sequences, count),
            OutItems::new("statuses", statuses, count),
            ErrorOut::new(error),
        )
    };
    error.guard(|| {
        if count > MAX_BATCH {
            return Err(Error::invalid(format!("conns has {count} elements; {MAX_BATCH} are allowed")));
        }
        sequences.fill(0);
        // What stays there if the call ends in a panic.
        statuses.fill(Status::Internal as kvconn_status_t);
        let prepared = sequences.optional().and_then(|()| {
            statuses.optional()?;
            Ok((items.checked()?, timeout("timeout_ms", timeout_ms)?, process()?))
        });
        let (items, timeout, process) = prepared.inspect_err(|error| statuses.fill(error.status as kvconn_status_t))?;
        let messages = items.into_iter().map(|(conn, sizes, data)| (conn, PackedFrames { sizes, data }));
        let mut verdict = BatchVerdict::default();
        process.send_items(messages, timeout, |place, result| {
            verdict.note(place, &result);
            sequences.set(place, *result.as_ref().unwrap_or(&0));
            statuses.set(place, result.map_or_else(|error| error.status, |_| Status::Ok) as kvconn_status_t);
        });
        verdict.result()
    })
}
