//! Memory for the frames of one message: one block instead of an allocation for each.
//!
//! A block begins with a head, which counts the frames that were made in it and not freed yet. For each frame follow
//! libzmq's notes and the bytes.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use zmq_sys::zmq_msg_t;

use super::Frame;
use super::pool::{self, Head};

unsafe extern "C" {
    /// Makes a frame whose bytes stay where they are; `content` is memory for libzmq's own notes. libzmq calls `free`
    /// when it needs neither any more. Cannot fail. `patches/0040-frames-in-one-allocation.patch` of the
    /// bundled libzmq.
    fn zmq_msg_init_external(
        frame: *mut zmq_msg_t,
        content: *mut c_void,
        bytes: *mut c_void,
        size: usize,
        free: unsafe extern "C" fn(*mut c_void, *mut c_void),
        block: *mut c_void,
    ) -> c_int;
}

/// Memory for the frames of one message: room for those that are still to be made, or none. It is freed with the last frame
/// that was made in it.
pub(crate) struct Block {
    head: *mut Head,
    /// Where the next frame goes, and how many bytes there are.
    next: *mut u8,
    left: usize,
}

impl Block {
    /// Up to this size, libzmq keeps a frame's bytes in the frame itself.
    pub(crate) const IN_FRAME: usize = 33;
    /// The most bytes of one block. It is freed as a whole.
    const MOST: usize = 64 * 1024;
    /// `ZMQ_MSG_CONTENT_SIZE` bytes for libzmq's notes of a frame.
    const NOTES: usize = 40;

    /// No room.
    pub(crate) const fn none() -> Block {
        Block { head: ptr::null_mut(), next: ptr::null_mut(), left: 0 }
    }

    /// What a frame of this size takes in a block.
    #[inline(always)]
    pub(crate) const fn room_for(bytes: usize) -> usize {
        (bytes.saturating_add(7) / 8 * 8).saturating_add(Block::NOTES)
    }

    /// Makes a frame in place: a copy of these bytes. `all` is what this one and the following frames of the message take.
    /// Returns false if there is no memory, or the frame is so large that it should have memory of its own.
    ///
    /// # Safety
    /// No frame that was made in this block has left this thread yet.
    #[inline(always)]
    pub(crate) unsafe fn copy_into(&mut self, place: &mut MaybeUninit<Frame>, bytes: &[u8], all: usize) -> bool {
        let takes = Block::room_for(bytes.len());
        if takes > self.left && (takes > Block::MOST / 2 || !self.allocate(all.max(takes), all > takes)) {
            return false;
        }
        let notes = self.next;
        // SAFETY: there is room for the notes, which are aligned like the block, and for the bytes; nobody else uses it.
        // Only this thread counts users yet, by contract. The frame is one of them until `freed`.
        unsafe {
            let data = notes.add(Block::NOTES);
            ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len());
            let users = &(*self.head).users;
            users.store(users.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            zmq_msg_init_external(
                place.as_mut_ptr().cast(),
                notes.cast(),
                data.cast(),
                bytes.len(),
                freed,
                self.head.cast(),
            );
            self.next = notes.add(takes);
        }
        self.left -= takes;
        true
    }

    /// Begins a new block. Its first frame follows, and others if `is_shared`: a single one is better off with malloc than with
    /// a block that is malloc's.
    #[inline(always)]
    fn allocate(&mut self, room: usize, is_shared: bool) -> bool {
        let (head, size) = pool::take(room.saturating_add(size_of::<Head>()).min(Block::MOST), is_shared);
        if head.is_null() {
            return false;
        }
        // SAFETY: there is room for a head.
        *self = Block { head, next: unsafe { head.add(1).cast() }, left: size - size_of::<Head>() };
        true
    }
}

/// libzmq does not need a frame any more. Gives the block back with its last one.
unsafe extern "C" fn freed(_bytes: *mut c_void, head: *mut c_void) {
    let head = head.cast::<Head>();
    // SAFETY: the block lives for as long as it has users, and the frame was one; libzmq says it once. The last one sees
    // everything that the others did.
    unsafe {
        if (*head).users.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            pool::give(head);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn frame(block: &mut Block, bytes: &[u8], all: usize) -> Option<Frame> {
        let mut place = MaybeUninit::uninit();
        // SAFETY: no frame leaves this thread. It says that it has made the frame.
        unsafe { block.copy_into(&mut place, bytes, all).then(|| place.assume_init()) }
    }

    #[test]
    fn frames_keep_their_bytes_when_the_others_are_gone() {
        let texts: Vec<Vec<u8>> = (0..40_u8).map(|i| vec![i; 20 + 5 * usize::from(i)]).collect();
        let mut all: usize = texts.iter().map(|text| Block::room_for(text.len())).sum();
        let (mut block, mut frames) = (Block::none(), Vec::new());
        for text in &texts {
            frames.push(frame(&mut block, text, all).unwrap());
            all -= Block::room_for(text.len());
        }
        assert_eq!(all, 0);
        for i in [30, 7, 3, 0] {
            frames.remove(i);
        }
        let kept = texts.iter().enumerate().filter(|(i, _)| ![30, 7, 3, 0].contains(i)).map(|(_, text)| &text[..]);
        assert!(frames.iter().map(Frame::bytes).eq(kept));
    }

    #[test]
    fn a_large_frame_has_memory_of_its_own() {
        let large = vec![2; Block::MOST / 2];
        let mut block = Block::none();
        assert!(frame(&mut block, &large, usize::MAX).is_none());
        let small = frame(&mut block, &[1; 40], 160).unwrap();
        assert!(frame(&mut block, &large, 160).is_none());
        let last = frame(&mut block, &[3; 40], 80).unwrap();
        assert_eq!((small.bytes(), last.bytes()), (&[1; 40][..], &[3; 40][..]));
        assert!(frame(&mut block, &[], usize::MAX).is_some_and(|frame| frame.bytes().is_empty()));
    }
}
