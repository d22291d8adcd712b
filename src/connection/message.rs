//! A whole multipart message, copied or lent, ready to be handed to libzmq.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use smallvec::SmallVec;

use crate::connection::acknowledgement::held::Held;
use crate::connection::acknowledgement::ledger::Mechanism;
use crate::connection::acknowledgement::loans::Loan;
use crate::error::{Error, Result};
use crate::libzmq::Frame;

/// The most frames one message takes. Far above any control message; it keeps an absurd count from being an
/// allocation.
pub const MAX_FRAMES: usize = 65_536;

/// A message of one or more frames. It is accepted whole or not at all.
pub struct Message {
    /// What it takes on the wire, plain and encrypted.
    wire: Wire,
    // One frame needs no allocation of the list. Room for more would be moved with every message, and cost more than it
    // spares.
    frames: SmallVec<[Frame; 1]>,
    /// Tells when libzmq has let it go, if somebody wants to know.
    held: Option<Arc<Held>>,
}

/// Bytes on the wire, plain and encrypted.
#[derive(Clone, Copy, Default)]
struct Wire {
    null: u64,
    curve: u64,
}

impl Wire {
    fn of(frames: impl Iterator<Item = usize>) -> Wire {
        let mut wire = Wire::default();
        for bytes in frames {
            wire.null += Mechanism::Null.frame(bytes as u64);
            wire.curve += Mechanism::Curve.frame(bytes as u64);
        }
        wire
    }

    fn bytes(self, mechanism: Mechanism) -> u64 {
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
    /// Copies the frames. INVALID for none or more than [`MAX_FRAMES`], LIMIT when memory cannot be had.
    pub fn from_frames<'a>(frames: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Message> {
        Message::copied(frames, None)
    }

    /// The same for one of several messages: what was copied for an earlier one is shared.
    pub fn copied<'a>(
        frames: impl ExactSizeIterator<Item = &'a [u8]>,
        mut copies: Option<&mut Copies>,
    ) -> Result<Message> {
        check_count(frames.len())?;
        let mut copied = SmallVec::with_capacity(frames.len());
        let mut wire = Wire::default();
        for bytes in frames {
            wire.null += Mechanism::Null.frame(bytes.len() as u64);
            wire.curve += Mechanism::Curve.frame(bytes.len() as u64);
            let copy = match &mut copies {
                None => Frame::copy_of(bytes),
                Some(copies) => copies.frame(bytes),
            };
            copied.push(copy.map_err(|_| no_memory(bytes.len()))?);
        }
        Ok(Message { wire, frames: copied, held: None })
    }

    /// Frames that are not copied. `let_go` counts what libzmq has let go of accepted messages of the connection whose
    /// mechanism this is. INVALID and LIMIT as for copied ones.
    ///
    /// # Safety
    /// The frames can be read and do not change until the loan is given back, or [`Held::taken_back`] has said true.
    pub(crate) unsafe fn lending(
        frames: &[*const [u8]],
        loan: Loan,
        mechanism: Mechanism,
        let_go: &Arc<AtomicU64>,
    ) -> Result<Message> {
        check_count(frames.len())?;
        let wire = Wire::of(frames.iter().map(|bytes| bytes.len()));
        let held = Held::new(frames.len(), wire.bytes(mechanism), let_go.clone(), Some(loan));
        let mut lent = SmallVec::with_capacity(frames.len());
        for bytes in frames {
            // SAFETY: the same contract; `held` gives the loan back after it was told of every frame, and only then.
            lent.push(unsafe { Frame::zero_copy(*bytes, held.clone()) }.map_err(|_| no_memory(bytes.len()))?);
        }
        Ok(Message { wire, frames: lent, held: Some(held) })
    }

    /// What it takes on the wire.
    pub(crate) fn wire_bytes(&self, mechanism: Mechanism) -> u64 {
        self.wire.bytes(mechanism)
    }

    /// Sees to it that `let_go` grows by that many bytes when it was accepted and libzmq has let it go. After an error it must
    /// not be sent.
    pub(crate) fn tell(&mut self, bytes: u64, let_go: &Arc<AtomicU64>) -> io::Result<()> {
        let held = Held::new(1, bytes, let_go.clone(), None);
        // libzmq lets frames go in order: the last one speaks for all.
        if let Some(last) = self.frames.pop() {
            self.frames.push(last.with_free_callback(held.clone())?);
        }
        self.held = Some(held);
        Ok(())
    }

    /// It was accepted as this sequence: so many bytes will be told of, if any.
    pub(crate) fn accepted(&mut self, sequence: u64) -> Option<u64> {
        let held = self.held.take()?;
        let bytes = held.bytes();
        held.accepted(sequence);
        Some(bytes)
    }

    /// Who tells when libzmq has let it go, if somebody does.
    pub(crate) fn held(&self) -> Option<&Arc<Held>> {
        self.held.as_ref()
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
