//! A whole multipart message, copied and ready to be handed to libzmq.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;

use smallvec::SmallVec;

use crate::connection::ledger::Mechanism;
use crate::error::{Error, Result};
use crate::libzmq::Frame;

/// The most frames one message takes. Far above any control message; it keeps an absurd count from being an
/// allocation.
pub const MAX_FRAMES: usize = 65_536;

/// A message of one or more frames. It is accepted whole or not at all.
pub struct Message {
    /// What it takes on the wire, plain and encrypted.
    wire: [u64; 2],
    // Control messages have about ten frames: those need no allocation of the list.
    frames: SmallVec<[Frame; 12]>,
}

impl Message {
    /// Copies the frames. INVALID for none or more than [`MAX_FRAMES`], LIMIT when memory cannot be had.
    pub fn from_frames<'a>(frames: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Message> {
        Message::copied(frames, None)
    }

    /// The same for one of several messages: what was copied for an earlier one is shared.
    pub fn copied<'a>(
        frames: impl ExactSizeIterator<Item = &'a [u8]>,
        mut copies: Option<&mut Copies>,
    ) -> Result<Message> {
        if frames.len() == 0 {
            return Err(Error::invalid("a message has at least one frame; frame_count is 0"));
        }
        if frames.len() > MAX_FRAMES {
            return Err(Error::invalid(format!("frame_count is {}; at most {MAX_FRAMES}", frames.len())));
        }
        let mut copied = SmallVec::with_capacity(frames.len());
        let mut wire = [0; 2];
        for bytes in frames {
            wire[0] += Mechanism::Null.frame(bytes.len() as u64);
            wire[1] += Mechanism::Curve.frame(bytes.len() as u64);
            let copy = match &mut copies {
                None => Frame::copy_of(bytes),
                Some(copies) => copies.frame(bytes),
            };
            copied.push(copy.map_err(|_| {
                Error::limit(format!("no memory for a frame of {} bytes", bytes.len())).errno(libc::ENOMEM)
            })?);
        }
        Ok(Message { wire, frames: copied })
    }

    /// What it takes on the wire.
    pub(crate) fn wire_bytes(&self, mechanism: Mechanism) -> u64 {
        match mechanism {
            Mechanism::Null => self.wire[0],
            Mechanism::Curve => self.wire[1],
        }
    }

    pub(crate) fn frames_mut(&mut self) -> &mut [Frame] {
        &mut self.frames
    }
}

/// What the messages of one call have copied so far. Frames of the same place and size are the same.
#[derive(Default)]
pub struct Copies(HashMap<(usize, usize), Frame>);

impl Copies {
    /// Less is copied as quickly as shared.
    const WORTH_SHARING: usize = 64;

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
