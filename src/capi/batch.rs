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

use super::guard::{ErrorOut, process, timeout};
use super::message::{Frames, kvconn_frame_t};
use super::pointers::{misaligned, null};
use super::types::{kvconn_conn_t, kvconn_error_t, kvconn_status_t};
use crate::connection::batch::{BatchVerdict, MAX_BATCH};
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
