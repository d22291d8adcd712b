//! libzmq's sockets and messages, made safe: the only file that calls its C functions on them.
//!
//! A [`Socket`] may move between threads, but two threads must never use one at the same time: it is not `Sync`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use zmq_sys::zmq_msg_t;

/// Draft option of libzmq 4.3.5: how many bytes the encoder gathers for one write to the kernel.
const ZMQ_OUT_BATCH_SIZE: u32 = 102;

fn last_error() -> io::Error {
    // SAFETY: reads a thread-local number.
    io::Error::from_raw_os_error(unsafe { zmq_sys::zmq_errno() })
}

fn check(rc: c_int) -> io::Result<()> {
    if rc == -1 { Err(last_error()) } else { Ok(()) }
}

/// libzmq's text for an errno, which may be one of its own.
pub(crate) fn error_text(e: &io::Error) -> String {
    let number = e.raw_os_error().unwrap_or(0);
    // SAFETY: zmq_strerror returns a static, NUL-terminated text for every number.
    unsafe { CStr::from_ptr(zmq_sys::zmq_strerror(number)) }.to_string_lossy().into_owned()
}

unsafe extern "C" {
    /// Part of libzmq's stable interface; zmq-sys leaves it out.
    fn zmq_curve_public(z85_public_key: *mut c_char, z85_secret_key: *const c_char) -> c_int;
}

/// Length of a CURVE key in Z85.
const CURVE_KEY: usize = 40;

/// Whether a text is a CURVE key in Z85.
pub(crate) fn is_curve_key(text: &str) -> bool {
    let mut bytes = [0; CURVE_KEY / 5 * 4];
    let Some(text) = curve_key_text(text) else { return false };
    // SAFETY: the text is NUL-terminated, and the bytes have room for what its 40 characters mean.
    !unsafe { zmq_sys::zmq_z85_decode(bytes.as_mut_ptr(), text.as_ptr()) }.is_null()
}

/// The public key that belongs to a secret one, both in Z85; `None` when that is no key.
pub(crate) fn curve_public_key(secret: &str) -> Option<String> {
    let mut public = [0_u8; CURVE_KEY + 1];
    let secret = curve_key_text(secret)?;
    // SAFETY: the key is NUL-terminated and of 40 characters; the other is written as 40 characters and a NUL.
    check(unsafe { zmq_curve_public(public.as_mut_ptr().cast(), secret.as_ptr()) }).ok()?;
    Some(CStr::from_bytes_until_nul(&public).ok()?.to_str().ok()?.to_owned())
}

/// libzmq looks for the end of the text, and trusts that it is not too long.
fn curve_key_text(text: &str) -> Option<CString> {
    (text.len() == CURVE_KEY).then(|| CString::new(text).ok()).flatten()
}

/// A libzmq context: its I/O threads and its sockets.
pub(crate) struct Context(NonNull<c_void>);

// SAFETY: libzmq documents contexts as thread safe.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// A context with no thread yet: the first socket makes them.
    pub(crate) fn new(io_threads: i32, max_sockets: i32) -> io::Result<Context> {
        // SAFETY: takes nothing.
        let raw = NonNull::new(unsafe { zmq_sys::zmq_ctx_new() }).ok_or_else(last_error)?;
        let context = Context(raw);
        for (option, value) in [(zmq_sys::ZMQ_IO_THREADS, io_threads), (zmq_sys::ZMQ_MAX_SOCKETS, max_sockets)] {
            // SAFETY: the context is live.
            if let Err(e) = check(unsafe { zmq_sys::zmq_ctx_set(raw.as_ptr(), option as c_int, value) }) {
                context.terminate();
                return Err(e);
            }
        }
        Ok(context)
    }

    /// Ends its threads and gives everything back. All of its sockets must be closed, or it waits for them.
    pub(crate) fn terminate(self) {
        // SAFETY: the context is live, and not used after this. EINTR: it is called again, as libzmq asks.
        while unsafe { zmq_sys::zmq_ctx_term(self.0.as_ptr()) } == -1
            && last_error().kind() == io::ErrorKind::Interrupted
        {}
    }

    /// A new socket. The first one of a context starts libzmq's threads.
    pub(crate) fn socket(&self, kind: u32) -> io::Result<Socket> {
        // SAFETY: the context is live as long as `self`.
        let raw = unsafe { zmq_sys::zmq_socket(self.0.as_ptr(), kind as c_int) };
        NonNull::new(raw).map(Socket).ok_or_else(last_error)
    }
}

/// One libzmq socket; closed when dropped, lingering as its option says.
#[derive(Debug)]
pub(crate) struct Socket(NonNull<c_void>);

// SAFETY: libzmq allows a socket to move between threads with a full memory barrier, which whatever moves it
// (a lock, a channel) gives.
unsafe impl Send for Socket {}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: ours alone, and not used after this. It fails only for things that are no socket.
        unsafe { zmq_sys::zmq_close(self.0.as_ptr()) };
    }
}

impl Socket {
    fn set<T: Copy>(&self, option: u32, value: T) -> io::Result<()> {
        // SAFETY: value and length describe the same live memory; `self` is a live socket.
        check(unsafe {
            zmq_sys::zmq_setsockopt(self.0.as_ptr(), option as c_int, std::ptr::from_ref(&value).cast(), size_of::<T>())
        })
    }

    /// Sets an option that is an `int`.
    pub(crate) fn set_int(&self, option: u32, value: i32) -> io::Result<()> {
        self.set(option, value)
    }

    /// Sets an option that is a text.
    pub(crate) fn set_text(&self, option: u32, value: &str) -> io::Result<()> {
        // SAFETY: value and length describe the same live memory; `self` is a live socket.
        check(unsafe { zmq_sys::zmq_setsockopt(self.0.as_ptr(), option as c_int, value.as_ptr().cast(), value.len()) })
    }

    /// Sets the largest message it receives, in bytes.
    pub(crate) fn set_max_received(&self, bytes: i64) -> io::Result<()> {
        self.set(zmq_sys::ZMQ_MAXMSGSIZE, bytes)
    }

    /// Sets how many bytes it gathers for one write.
    pub(crate) fn set_out_batch(&self, bytes: i32) -> io::Result<()> {
        self.set(ZMQ_OUT_BATCH_SIZE, bytes)
    }

    fn get_int(&self, option: u32) -> io::Result<c_int> {
        let mut value: c_int = 0;
        let mut length = size_of::<c_int>();
        // SAFETY: value and length describe the same live memory; `self` is a live socket.
        check(unsafe {
            zmq_sys::zmq_getsockopt(
                self.0.as_ptr(),
                option as c_int,
                std::ptr::from_mut(&mut value).cast(),
                &mut length,
            )
        })?;
        Ok(value)
    }

    /// The descriptor that turns readable when a command waits for the socket (edge-like: read the events then).
    pub(crate) fn fd(&self) -> io::Result<RawFd> {
        self.get_int(zmq_sys::ZMQ_FD)
    }

    /// Works off waiting commands and tells whether a message would be accepted now.
    pub(crate) fn writable(&self) -> bool {
        self.get_int(zmq_sys::ZMQ_EVENTS).is_ok_and(|e| e as u32 & zmq_sys::ZMQ_POLLOUT != 0)
    }

    /// Starts to connect; the outcome comes through the monitor.
    pub(crate) fn connect(&self, address: &CStr) -> io::Result<()> {
        // SAFETY: both live for the call.
        check(unsafe { zmq_sys::zmq_connect(self.0.as_ptr(), address.as_ptr()) })
    }

    /// Reports its events (a mask) to whoever connects a PAIR to that inproc address.
    pub(crate) fn monitor(&self, address: &CStr, events: u32) -> io::Result<()> {
        // SAFETY: both live for the call.
        check(unsafe { zmq_sys::zmq_socket_monitor(self.0.as_ptr(), address.as_ptr(), events as c_int) })
    }

    /// One attempt to hand over a frame, without waiting.
    pub(crate) fn send(&self, frame: &mut Frame, more: bool) -> io::Result<()> {
        let flags = zmq_sys::ZMQ_DONTWAIT | if more { zmq_sys::ZMQ_SNDMORE } else { 0 };
        // SAFETY: both live for the call. On success libzmq takes the content and leaves an empty message.
        check(unsafe { zmq_sys::zmq_msg_send(&mut frame.0, self.0.as_ptr(), flags as c_int) })
    }

    /// One frame, without waiting; `None` when there is none.
    pub(crate) fn receive(&self) -> io::Result<Option<Frame>> {
        let mut frame = Frame::empty();
        loop {
            // SAFETY: both live for the call.
            let rc = unsafe { zmq_sys::zmq_msg_recv(&mut frame.0, self.0.as_ptr(), zmq_sys::ZMQ_DONTWAIT as c_int) };
            if rc != -1 {
                return Ok(Some(frame));
            }
            match last_error() {
                e if e.raw_os_error() == Some(libc::EINTR) => {}
                e if e.raw_os_error() == Some(libc::EAGAIN) => return Ok(None),
                e => return Err(e),
            }
        }
    }
}

/// Who is told, once for each frame, that libzmq has no use for its memory any more. That happens on any thread, mostly
/// libzmq's own: it must not wait.
pub(crate) trait Lender: Send + Sync + 'static {
    /// libzmq has let one frame go.
    fn let_go(self: Arc<Self>);
}

/// One frame of a message.
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
    fn empty() -> Frame {
        let mut raw = MaybeUninit::<zmq_msg_t>::uninit();
        // SAFETY: zmq_msg_init initialises it whole and cannot fail; messages may be moved bitwise (zmq_msg_move
        // does nothing else).
        unsafe {
            zmq_sys::zmq_msg_init(raw.as_mut_ptr());
            Frame(raw.assume_init())
        }
    }

    /// A frame with a copy of these bytes; fails when memory cannot be had.
    pub(crate) fn copy_of(bytes: &[u8]) -> io::Result<Frame> {
        let mut raw = MaybeUninit::<zmq_msg_t>::uninit();
        // SAFETY: initialised by zmq_msg_init_size when it succeeds, and then of that size.
        unsafe {
            check(zmq_sys::zmq_msg_init_size(raw.as_mut_ptr(), bytes.len()))?;
            let mut frame = Frame(raw.assume_init());
            let data = zmq_sys::zmq_msg_data(&mut frame.0).cast::<u8>();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len());
            Ok(frame)
        }
    }

    /// Another frame with the same bytes: from 34 on they are not copied, but counted and freed with the last.
    pub(crate) fn share(&mut self) -> io::Result<Frame> {
        let mut shared = Frame::empty();
        // SAFETY: both are initialised.
        check(unsafe { zmq_sys::zmq_msg_copy(&mut shared.0, &mut self.0) })?;
        Ok(shared)
    }

    /// A frame whose bytes stay where they are. The lender is told when libzmq has let them go, which may be at once; not when
    /// this fails.
    ///
    /// # Safety
    /// The bytes can be read and do not change until the lender is told.
    pub(crate) unsafe fn lent<L: Lender>(bytes: *const [u8], lender: Arc<L>) -> io::Result<Frame> {
        unsafe extern "C" fn let_go<L: Lender>(_bytes: *mut c_void, lender: *mut c_void) {
            // SAFETY: what `into_raw` gave below, and libzmq gives it back once.
            unsafe { Arc::from_raw(lender.cast_const().cast::<L>()) }.let_go();
        }
        let mut raw = MaybeUninit::<zmq_msg_t>::uninit();
        let (start, lender) = (bytes.cast::<c_void>().cast_mut(), Arc::into_raw(lender));
        // SAFETY: initialised when it succeeds. libzmq only reads the bytes of a message that is sent.
        unsafe {
            let made = zmq_sys::zmq_msg_init_data(
                raw.as_mut_ptr(),
                start,
                bytes.len(),
                Some(let_go::<L>),
                lender.cast_mut().cast(),
            );
            match check(made) {
                Ok(()) => Ok(Frame(raw.assume_init())),
                Err(e) => {
                    drop(Arc::from_raw(lender));
                    Err(e)
                }
            }
        }
    }

    /// The same frame, with somebody who is told when libzmq has let it go.
    pub(crate) fn told<L: Lender>(self, lender: Arc<L>) -> io::Result<Frame> {
        struct Told<L> {
            frame: Frame,
            lender: Arc<L>,
        }
        impl<L: Lender> Lender for Told<L> {
            fn let_go(self: Arc<Self>) {
                self.lender.clone().let_go();
            }
        }
        let told = Arc::new(Told { frame: self, lender });
        let bytes: *const [u8] = told.frame.bytes();
        // SAFETY: the frame is as old as `told`, which libzmq owns until it lets go; it does not move.
        unsafe { Frame::lent(bytes, told) }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        let raw = std::ptr::from_ref(&self.0).cast_mut();
        // SAFETY: the message is initialised; zmq_msg_data does not change it in spite of its signature.
        unsafe { std::slice::from_raw_parts(zmq_sys::zmq_msg_data(raw).cast::<u8>(), zmq_sys::zmq_msg_size(raw)) }
    }

    /// Whether another frame of the same message follows.
    pub(crate) fn more(&self) -> bool {
        // SAFETY: the message is initialised.
        unsafe { zmq_sys::zmq_msg_more(&self.0) != 0 }
    }
}
