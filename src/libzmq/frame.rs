//! One frame of a message that is sent.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;

use zmq_sys::zmq_msg_t;

use super::{check, last_error};

/// Called once for each frame when libzmq has freed it: it no longer uses the frame's memory. The call comes from any
/// thread, mostly libzmq's own: it must not wait.
pub(crate) trait FreeCallback: Send + Sync + 'static {
    /// libzmq has freed one frame.
    fn freed(self: Arc<Self>);
}

/// One frame of a message.
#[repr(transparent)]
pub(crate) struct Frame(zmq_msg_t);

// SAFETY: a libzmq message is plain memory (or a pointer to reference-counted memory) bound to no thread.
unsafe impl Send for Frame {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Frame {}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: always initialised; libzmq leaves an empty message after a send.
        unsafe { zmq_sys::zmq_msg_close(&mut self.0) };
    }
}

impl Frame {
    /// A frame from what `init` initialises, unless it says that it failed.
    ///
    /// # Safety
    /// A result of 0 means that the message is initialised.
    unsafe fn initialised(init: impl FnOnce(*mut zmq_msg_t) -> c_int) -> io::Result<Frame> {
        let mut raw = MaybeUninit::uninit();
        check(init(raw.as_mut_ptr()))?;
        // SAFETY: the caller's promise; messages may be moved bitwise (zmq_msg_move does nothing else).
        Ok(Frame(unsafe { raw.assume_init() }))
    }

    /// A frame with a copy of these bytes; fails when memory cannot be had.
    pub(crate) fn copy_of(bytes: &[u8]) -> io::Result<Frame> {
        let mut place = MaybeUninit::uninit();
        match Frame::copy_into(&mut place, bytes) {
            // SAFETY: it says that it has initialised the frame.
            true => Ok(unsafe { place.assume_init() }),
            false => Err(last_error()),
        }
    }

    /// The same, made in place. Returns whether the place holds a frame now; if not, libzmq's errno says why.
    #[inline(always)]
    pub(crate) fn copy_into(place: &mut MaybeUninit<Frame>, bytes: &[u8]) -> bool {
        let raw = place.as_mut_ptr().cast::<zmq_msg_t>();
        // SAFETY: a frame is a zmq_msg_t. zmq_msg_init_size initialises it when it succeeds, and then it has room for
        // the bytes.
        unsafe {
            if zmq_sys::zmq_msg_init_size(raw, bytes.len()) != 0 {
                return false;
            }
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), zmq_sys::zmq_msg_data(raw).cast::<u8>(), bytes.len());
        }
        true
    }

    /// Another frame with the same bytes: from 34 on they are not copied, but counted and freed with the last.
    pub(crate) fn share(&mut self) -> io::Result<Frame> {
        // SAFETY: zmq_msg_init cannot fail, and both messages are initialised when the one is copied to the other.
        unsafe {
            let mut shared = Frame::initialised(|raw| zmq_sys::zmq_msg_init(raw))?;
            check(zmq_sys::zmq_msg_copy(&mut shared.0, &mut self.0))?;
            Ok(shared)
        }
    }

    /// A frame whose bytes stay where they are. The callback runs when libzmq has freed it, which may be at once; not
    /// when this fails.
    ///
    /// # Safety
    /// The bytes can be read and do not change until the callback runs.
    pub(crate) unsafe fn zero_copy<F: FreeCallback>(bytes: *const [u8], callback: Arc<F>) -> io::Result<Frame> {
        unsafe extern "C" fn freed<F: FreeCallback>(_bytes: *mut c_void, callback: *mut c_void) {
            // SAFETY: what `into_raw` gave below, and libzmq gives it back once.
            unsafe { Arc::from_raw(callback.cast_const().cast::<F>()) }.freed();
        }
        let (start, callback) = (bytes.cast::<c_void>().cast_mut(), Arc::into_raw(callback));
        let hint = callback.cast_mut().cast();
        // SAFETY: initialised when it succeeds. libzmq only reads the bytes of a message that is sent.
        unsafe {
            Frame::initialised(|raw| zmq_sys::zmq_msg_init_data(raw, start, bytes.len(), Some(freed::<F>), hint))
                .inspect_err(|_| drop(Arc::from_raw(callback)))
        }
    }

    /// The same frame with a free callback. On an error the frame comes back as it was.
    pub(crate) fn with_free_callback<F: FreeCallback>(
        self,
        callback: Arc<F>,
    ) -> Result<Frame, (Option<Frame>, io::Error)> {
        struct Wrapped<F> {
            frame: Frame,
            callback: Arc<F>,
        }
        impl<F: FreeCallback> FreeCallback for Wrapped<F> {
            fn freed(self: Arc<Self>) {
                self.callback.clone().freed();
            }
        }
        let wrapped = Arc::new(Wrapped { frame: self, callback });
        let bytes: *const [u8] = wrapped.frame.bytes();
        // SAFETY: the frame is as old as `wrapped`, which libzmq owns until it frees it; it does not move.
        let made = unsafe { Frame::zero_copy(bytes, wrapped.clone()) };
        // Nobody else has it after an error.
        made.map_err(|e| (Arc::into_inner(wrapped).map(|wrapped| wrapped.frame), e))
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        let raw = std::ptr::from_ref(&self.0).cast_mut();
        // SAFETY: the message is initialised; zmq_msg_data does not change it in spite of its signature.
        unsafe { std::slice::from_raw_parts(zmq_sys::zmq_msg_data(raw).cast::<u8>(), zmq_sys::zmq_msg_size(raw)) }
    }
}
