//! A whole multipart message for libzmq, copied or zero-copy.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use smallvec::SmallVec;

use crate::connection::acknowledgement::buffers::ZeroCopyBuffers;
use crate::connection::acknowledgement::ledger::Mechanism;
use crate::connection::acknowledgement::release_tracker::{ReleaseQueue, ReleaseTracker};
use crate::error::{Error, Result};
use crate::libzmq::{Block, Frame};

/// The most frames of one message. Far above any control message. Without the limit, an absurd count would be
/// allocated.
pub const MAX_FRAMES: usize = 65_536;

/// A message of one or more frames. It is accepted whole or not at all.
pub struct Message {
    /// What it takes on the wire, with NULL and with CURVE.
    wire: Wire,
    // The list of one frame needs no allocation. A larger inline list would be moved with every message, which costs
    // more than it saves. See `ShortMessage`.
    frames: SmallVec<[Frame; 1]>,
    /// Reports when libzmq has freed the message, where that is needed.
    tracker: Option<Arc<ReleaseTracker>>,
}

/// Bytes on the wire, with NULL and with CURVE.
#[derive(Clone, Copy, Default)]
pub(super) struct Wire {
    null: u64,
    curve: u64,
}

impl Wire {
    fn of(frames: impl Iterator<Item = usize>) -> Wire {
        let mut wire = Wire::default();
        for bytes in frames {
            wire.add(bytes);
        }
        wire
    }

    #[inline(always)]
    fn add(&mut self, frame: usize) {
        self.null += Mechanism::Null.frame(frame as u64);
        self.curve += Mechanism::Curve.frame(frame as u64);
    }

    #[inline(always)]
    pub(super) fn bytes(self, mechanism: Mechanism) -> u64 {
        match mechanism {
            Mechanism::Null => self.null,
            Mechanism::Curve => self.curve,
        }
    }
}

fn check_count(frames: usize) -> Result<()> {
    match frames {
        0 => Err(Error::invalid("a message has at least one frame; frame_count is 0")),
        1..=MAX_FRAMES => Ok(()),
        _ => Err(Error::invalid(format!("frame_count is {frames}; at most {MAX_FRAMES}"))),
    }
}

fn no_memory(bytes: usize) -> Error {
    Error::limit(format!("no memory for a frame of {bytes} bytes")).errno(libc::ENOMEM)
}

impl Message {
    /// Copies the frames. INVALID for none or more than [`MAX_FRAMES`], LIMIT when there is no memory.
    pub fn from_frames<'a>(frames: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Message> {
        Message::copied(frames, None)
    }

    /// The same for one of several messages, which share copies of equal frames.
    pub fn copied<'a>(
        frames: impl ExactSizeIterator<Item = &'a [u8]>,
        mut copies: Option<&mut Copies>,
    ) -> Result<Message> {
        check_count(frames.len())?;
        let mut copied = SmallVec::with_capacity(frames.len());
        let mut wire = Wire::default();
        for bytes in frames {
            wire.add(bytes.len());
            let copy = match &mut copies {
                None => Frame::copy_of(bytes),
                Some(copies) => copies.frame(bytes),
            };
            copied.push(copy.map_err(|_| no_memory(bytes.len()))?);
        }
        Ok(Message { wire, frames: copied, tracker: None })
    }

    /// A message of frames that are not copied. `freed` counts the bytes that libzmq has freed of the accepted messages
    /// of the connection that has this mechanism; `queue` gets the message then. INVALID and LIMIT as for copied
    /// frames.
    ///
    /// The frames must be readable and must not change until the buffers are released, or
    /// [`ReleaseTracker::wait_freed`] has returned true. true.
    pub(crate) unsafe fn zero_copy(
        frames: &[*const [u8]],
        buffers: ZeroCopyBuffers,
        mechanism: Mechanism,
        freed: &Arc<AtomicU64>,
        queue: Arc<ReleaseQueue>,
    ) -> Result<Message> {
        check_count(frames.len())?;
        let wire = Wire::of(frames.iter().map(|bytes| bytes.len()));
        let tracker = ReleaseTracker::zero_copy(frames.len(), wire.bytes(mechanism), freed.clone(), buffers, queue);
        let mut uncopied = SmallVec::with_capacity(frames.len());
        for bytes in frames {
            // SAFETY: the same contract; the tracker releases the buffers only after libzmq has freed every frame.
            uncopied.push(unsafe { Frame::zero_copy(*bytes, tracker.clone()) }.map_err(|_| no_memory(bytes.len()))?);
        }
        Ok(Message { wire, frames: uncopied, tracker: Some(tracker) })
    }

    /// The bytes that it takes on the wire.
    pub(crate) fn wire_bytes(&self, mechanism: Mechanism) -> u64 {
        self.wire.bytes(mechanism)
    }

    /// Makes `freed` grow by `bytes` when the message was accepted and libzmq has freed it. After an error the message is
    /// as it was: the send may try again.
    pub(crate) fn track(&mut self, bytes: u64, freed: &Arc<AtomicU64>) -> io::Result<()> {
        let tracker = ReleaseTracker::copied(bytes, freed.clone());
        // libzmq frees frames in order: the last one stands for all.
        if let Some(last) = self.frames.pop() {
            match last.with_free_callback(tracker.clone()) {
                Ok(last) => self.frames.push(last),
                Err((last, e)) => {
                    self.frames.extend(last);
                    return Err(e);
                }
            }
        }
        self.tracker = Some(tracker);
        Ok(())
    }

    /// The message was accepted with this sequence. Returns the bytes that its tracker covers, if it has one.
    pub(crate) fn accepted(&mut self, sequence: u64) -> Option<u64> {
        let tracker = self.tracker.take()?;
        let bytes = tracker.bytes();
        tracker.accepted(sequence);
        Some(bytes)
    }

    /// Its tracker, if it has one.
    pub(crate) fn tracker(&self) -> Option<&Arc<ReleaseTracker>> {
        self.tracker.as_ref()
    }

    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    pub(crate) fn frames_mut(&mut self) -> &mut [Frame] {
        &mut self.frames
    }
}

/// A message of a few frames, copied in place and never moved: moving what was just written makes the processor wait
/// until all of it is in its cache. It passes at once, or becomes a [`Message`].
pub struct ShortMessage {
    wire: Wire,
    /// How many frames there are.
    count: usize,
    /// Memory for frames, and what those that follow take of it.
    block: Block,
    reserved: usize,
    frames: [MaybeUninit<Frame>; ShortMessage::MOST],
}

impl ShortMessage {
    /// The most frames.
    pub(crate) const MOST: usize = 32;

    /// A message without frames. More must follow.
    #[inline(always)]
    pub(crate) fn new() -> ShortMessage {
        ShortMessage {
            wire: Wire::default(),
            count: 0,
            block: Block::none(),
            reserved: 0,
            frames: [const { MaybeUninit::uninit() }; ShortMessage::MOST],
        }
    }

    /// Frames of these sizes follow. They share memory.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, sizes: impl ExactSizeIterator<Item = usize>) {
        let shared = sizes.filter(|size| *size > Block::IN_FRAME).map(Block::room_for);
        self.reserved = shared.fold(0, usize::saturating_add);
    }

    /// Adds a copy of these bytes as its next frame. Returns false, and adds nothing, if there is no memory, or no room
    /// for one more frame.
    #[inline(always)]
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        let Some(place) = self.frames.get_mut(self.count) else { return false };
        let all = self.reserved;
        let copied = if all > 0 && bytes.len() > Block::IN_FRAME {
            self.reserved = all.saturating_sub(Block::room_for(bytes.len()));
            // SAFETY: the frames are in this message; `taken` and `take`, after which they are not, end it.
            (unsafe { self.block.copy_into(place, bytes, all) }) || Frame::copy_into(place, bytes)
        } else {
            Frame::copy_into(place, bytes)
        };
        if copied {
            self.wire.add(bytes.len());
            self.count += 1;
        }
        copied
    }

    #[inline(always)]
    pub(super) fn wire(&self) -> Wire {
        self.wire
    }

    #[inline(always)]
    pub(super) fn frames_mut(&mut self) -> &mut [Frame] {
        // SAFETY: so many of the array's were initialised.
        unsafe { std::slice::from_raw_parts_mut(self.frames.as_mut_ptr().cast::<Frame>(), self.count) }
    }

    /// libzmq has taken every frame: what is left are empty ones, which need not be closed.
    #[inline(always)]
    pub(super) fn taken(&mut self) {
        self.count = 0;
    }

    #[cold]
    #[inline(never)]
    fn close(&mut self) {
        let frames: *mut [Frame] = self.frames_mut();
        self.count = 0;
        // SAFETY: they were initialised, and are not this message's any more.
        unsafe { frames.drop_in_place() };
    }

    /// The same message, which can wait.
    #[cold]
    #[inline(never)]
    pub(crate) fn take(&mut self) -> Message {
        let count = std::mem::take(&mut self.count);
        // SAFETY: so many were initialised, and they are not this message's any more.
        let frames = self.frames[..count].iter().map(|frame| unsafe { frame.assume_init_read() }).collect();
        Message { wire: self.wire, frames, tracker: None }
    }
}

impl Drop for ShortMessage {
    #[inline(always)]
    fn drop(&mut self) {
        if self.count > 0 {
            self.close();
        }
    }
}

/// The frames that the messages of one call have copied so far. Frames with the same address and size share one copy.
#[derive(Default)]
pub struct Copies(HashMap<(usize, usize), Frame>);

impl Copies {
    /// Below this size, copying is as fast as sharing.
    const WORTH_SHARING: usize = 64;
    /// Up to this size, frames of messages that pass at once are copied: that is faster than looking for equal ones, and
    /// the memory is small.
    pub(crate) const ALWAYS_COPIED: usize = 1024;

    fn frame(&mut self, bytes: &[u8]) -> io::Result<Frame> {
        if bytes.len() < Copies::WORTH_SHARING {
            return Frame::copy_of(bytes);
        }
        match self.0.entry((bytes.as_ptr().addr(), bytes.len())) {
            Entry::Occupied(mut copy) => copy.get_mut().share(),
            Entry::Vacant(place) => place.insert(Frame::copy_of(bytes)?).share(),
        }
    }
}
