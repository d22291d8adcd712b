//! # Batches
//!
//! A batch sends one message to each of many ranks with one call, on the caller's thread and under one deadline: a rank that is
//! full or not there yet does not delay the others. Each item is as if sent by kvconn_send: accepted whole or not at all,
//! with a sequence or a status of its own. Items on one connection are accepted in the order of the array; when one is refused (for
//! want of room, say), those behind it get the same status untried, so that nothing overtakes it. An item that cannot be tried
//! (KVCONN_INVALID, no memory) holds up no other. Frames that several items have in common (the same data and size) are copied once.
//!
//! ```c
//! kvconn_batch_item_t items[RANKS] = {0};
//! for (int i = 0; i < RANKS; i++) {
//!     items[i].conn = ranks[i]; // 0 is skipped
//!     items[i].frames = frames[i];
//!     items[i].frame_count = 2;
//! }
//! if (kvconn_send_batch(items, RANKS, 1000, &error) == KVCONN_PARTIAL) {
//!     // items[i].status says which; with conn 0 in the others, the same array can be sent again.
//! }
//! ```

use super::guard::{ErrorOut, misaligned, null, process, timeout};
use super::message::{Frames, kvconn_frame_t};
use super::types::{kvconn_conn_t, kvconn_error_t, kvconn_status_t};
use crate::connection::batch::{MAX_BATCH, verdict};
use crate::connection::message::Copies;
use crate::error::{Error, Result, Status};
use crate::ids::ConnId;

/// The most items that one batch takes.
pub const KVCONN_MAX_BATCH: usize = 65536;
const _: () = assert!(KVCONN_MAX_BATCH == MAX_BATCH);

/// One message of a batch. The layout is frozen, and has no struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_batch_item_t {
    /// The connection; 0 skips the item, whatever its frames are.
    pub conn: kvconn_conn_t,
    /// The message's frames, in order.
    pub frames: *const kvconn_frame_t,
    /// How many: 1 to KVCONN_MAX_FRAMES.
    pub frame_count: usize,
    /// Written: the message's number on its connection, or 0.
    pub sequence: u64,
    /// Written: KVCONN_OK when it is accepted or skipped, else why it is not.
    pub status: kvconn_status_t,
    /// Written: 0.
    pub reserved: u32,
}

/// The items that the caller gives, with the places for what became of them.
struct Items {
    start: *mut kvconn_batch_item_t,
    count: usize,
}

impl Items {
    /// # Safety
    /// `start` is NULL, not aligned, or may be written for `count` items until the call ends; what is read of each is
    /// initialised, and its frames are as for [`Frames::apart`].
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

    /// Each one's connection and frames. Only after [`required`](Self::required) has agreed, as the next.
    fn read(&self) -> impl ExactSizeIterator<Item = (ConnId, Frames<'_>)> {
        (0..self.count).map(|place| {
            // SAFETY: aligned and inside the array; what is read is initialised, by contract. The rest need not be.
            let (conn, frames, count) = unsafe {
                let item = self.start.add(place);
                ((&raw const (*item).conn).read(), (&raw const (*item).frames).read(), (*item).frame_count)
            };
            // SAFETY: an item's frames are as `apart` wants them, by contract.
            (ConnId(conn), unsafe { Frames::apart(frames, count) })
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

/// Sends many messages, each on its connection, under one deadline and without a thread for each.
///
/// The call returns when every item is accepted or has failed. One whose connection ends gets its status at that moment, and
/// the call goes on with the others. A message that cannot be accepted at once is copied, and its copy is held until its turn comes or
/// the call ends: a batch to full connections needs the memory of all its messages.
///
/// @param[in,out] items the messages; sequence and status are written, also when the call as a whole fails, then with
///     its status. May be NULL when count is 0.
/// @param count         how many: 0 to KVCONN_MAX_BATCH.
/// @param timeout_ms    how long to wait, in all, until the connections are READY and have room; 0 does not wait.
///     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms of each connection's manager.
/// @param error         details of a failure; may be NULL. For KVCONN_PARTIAL: how many failed, and conn, endpoint, os_errno and
///     message of the first item that did.
/// @retval KVCONN_OK      every item is accepted or skipped.
/// @retval KVCONN_INVALID items is NULL, or count or timeout_ms cannot be; no item was sent.
/// @retval KVCONN_PARTIAL at least one item failed; its status is one that kvconn_send returns. The others are accepted, an
///     exception from what errors mean.
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
        let messages = items.read().map(|(conn, frames)| (conn, move |copies: &mut Copies| frames.copy(copies)));
        let results = process.send_batch(messages, timeout);
        for (place, result) in results.iter().enumerate() {
            match result {
                Ok(sequence) => items.set(place, Status::Ok, *sequence),
                Err(error) => items.set(place, error.status, 0),
            }
        }
        verdict(&results)
    })
}
