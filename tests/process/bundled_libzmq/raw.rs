//! libzmq's C functions, as bare as they are.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::slice;

use zmq_sys as zmq;

use super::system::PATIENCE;

pub struct Context(pub *mut c_void);

impl Context {
    pub fn new() -> Self {
        // SAFETY: has no preconditions.
        let raw = unsafe { zmq::zmq_ctx_new() };
        assert!(!raw.is_null());
        Self(raw)
    }

    pub fn socket(&self, kind: u32) -> Socket<'_> {
        // SAFETY: the context is alive.
        let raw = unsafe { zmq::zmq_socket(self.0, kind as c_int) };
        assert!(!raw.is_null(), "zmq_socket: errno {}", errno());
        let socket = Socket { raw, context: self };
        socket.set(zmq::ZMQ_LINGER, 0);
        for option in [zmq::ZMQ_SNDTIMEO, zmq::ZMQ_RCVTIMEO] {
            socket.set(option, PATIENCE.as_millis() as c_int);
        }
        socket
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: sockets borrow the context, so all are closed.
        unsafe { zmq::zmq_ctx_term(self.0) };
    }
}

pub struct Socket<'context> {
    pub raw: *mut c_void,
    context: &'context Context,
}

impl<'context> Socket<'context> {
    pub fn set(&self, option: u32, value: c_int) {
        // SAFETY: the value is an int, and so is its size.
        check(unsafe { zmq::zmq_setsockopt(self.raw, option as c_int, (&raw const value).cast(), size_of::<c_int>()) });
    }

    pub fn set_string(&self, option: u32, value: &CStr) {
        // SAFETY: the value has as many bytes as are counted.
        check(unsafe { zmq::zmq_setsockopt(self.raw, option as c_int, value.as_ptr().cast(), value.count_bytes()) });
    }

    pub fn get(&self, option: u32) -> c_int {
        let (mut value, mut size) = (0, size_of::<c_int>());
        // SAFETY: `value` has `size` bytes.
        check(unsafe { zmq::zmq_getsockopt(self.raw, option as c_int, (&raw mut value).cast(), &mut size) });
        value
    }

    /// Binds, and returns where.
    pub fn bind(&self, endpoint: &str) -> String {
        let endpoint = CString::new(endpoint).unwrap();
        // SAFETY: the endpoint is a C string.
        check(unsafe { zmq::zmq_bind(self.raw, endpoint.as_ptr()) });
        self.last_endpoint()
    }

    pub fn last_endpoint(&self) -> String {
        let mut text = [0_u8; 256];
        let mut size = text.len();
        // SAFETY: `text` has `size` bytes.
        check(unsafe {
            zmq::zmq_getsockopt(self.raw, zmq::ZMQ_LAST_ENDPOINT as c_int, text.as_mut_ptr().cast(), &mut size)
        });
        CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned()
    }

    pub fn connect(&self, endpoint: &str) {
        let endpoint = CString::new(endpoint).unwrap();
        // SAFETY: the endpoint is a C string.
        check(unsafe { zmq::zmq_connect(self.raw, endpoint.as_ptr()) });
    }

    pub fn try_send(&self, message: &[u8]) -> Result<(), c_int> {
        // SAFETY: the message has as many bytes as are counted.
        let rc = unsafe { zmq::zmq_send(self.raw, message.as_ptr().cast(), message.len(), 0) };
        if rc < 0 { Err(errno()) } else { Ok(()) }
    }

    pub fn send(&self, message: &[u8]) {
        assert_eq!(self.try_send(message), Ok(()));
    }

    pub fn try_receive(&self) -> Result<Vec<u8>, c_int> {
        let mut frame = std::mem::MaybeUninit::uninit();
        // SAFETY: the first call initialises the frame, and the last one closes it. Its data have that size.
        unsafe {
            check(zmq::zmq_msg_init(frame.as_mut_ptr()));
            let received = match zmq::zmq_msg_recv(frame.as_mut_ptr(), self.raw, 0) {
                -1 => Err(errno()),
                _ => Ok(slice::from_raw_parts(
                    zmq::zmq_msg_data(frame.as_mut_ptr()).cast::<u8>(),
                    zmq::zmq_msg_size(frame.as_mut_ptr()),
                )
                .to_vec()),
            };
            check(zmq::zmq_msg_close(frame.as_mut_ptr()));
            received
        }
    }

    pub fn receive(&self) -> Vec<u8> {
        self.try_receive().unwrap()
    }

    /// A reader of this socket's first events. Of no later ones: libzmq would wait for room to queue them for ever,
    /// were the reader closed first.
    pub fn monitor(&self) -> Monitor<'context> {
        let events = zmq::ZMQ_EVENT_CONNECTED | zmq::ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        let endpoint = CString::new(format!("inproc://monitor-{:p}", self.raw)).unwrap();
        // SAFETY: the endpoint is a C string.
        check(unsafe { zmq::zmq_socket_monitor(self.raw, endpoint.as_ptr(), events as c_int) });
        let reader = self.context.socket(zmq::ZMQ_PAIR);
        reader.connect(endpoint.to_str().unwrap());
        Monitor(reader)
    }
}

unsafe extern "C" {
    /// Not in zmq-sys: it comes with a patch.
    fn zmq_socket_monitor_call(
        socket: *mut c_void,
        function: MonitorFunction,
        hint: *mut c_void,
        events: c_int,
    ) -> c_int;

    fn zmq_msg_init_external(
        frame: *mut zmq::zmq_msg_t,
        content: *mut c_void,
        data: *mut c_void,
        size: usize,
        free: FreeFunction,
        hint: *mut c_void,
    ) -> c_int;

    fn zmq_msgs_send(frames: *mut zmq::zmq_msg_t, count: usize, socket: *mut c_void, more: c_int) -> usize;
}

pub type FreeFunction = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// `ZMQ_MSG_CONTENT_SIZE` bytes.
#[repr(C, align(8))]
pub struct Content(pub [u8; 40]);

/// A frame in the caller's memory.
///
/// # Safety
/// Memory and bytes stay where they are until the function was called.
pub unsafe fn external(
    content: &mut Content,
    bytes: &mut [u8],
    free: FreeFunction,
    hint: *mut c_void,
) -> zmq::zmq_msg_t {
    let mut frame = std::mem::MaybeUninit::uninit();
    let (notes, data) = (&raw mut content.0, bytes.as_mut_ptr());
    // SAFETY: the caller's promise.
    check(unsafe { zmq_msg_init_external(frame.as_mut_ptr(), notes.cast(), data.cast(), bytes.len(), free, hint) });
    // SAFETY: it says that it has initialised the frame.
    unsafe { frame.assume_init() }
}

pub type MonitorFunction = unsafe extern "C" fn(*mut c_void, u64, u64);

impl Socket<'_> {
    /// Has its events reported by calls.
    ///
    /// # Safety
    /// The function may be called with this argument until it was called with MONITOR_STOPPED.
    pub unsafe fn monitor_call(&self, function: MonitorFunction, hint: *mut c_void, events: u32) {
        // SAFETY: the caller's promise.
        check(unsafe { zmq_socket_monitor_call(self.raw, function, hint, events as c_int) });
    }
}

impl Socket<'_> {
    /// Hands over frames of a message. Returns how many were taken.
    pub fn send_frames(&self, frames: &mut [zmq::zmq_msg_t], more: bool) -> usize {
        // SAFETY: the frames are initialised, by `external`.
        unsafe { zmq_msgs_send(frames.as_mut_ptr(), frames.len(), self.raw, c_int::from(more)) }
    }
}

impl Drop for Socket<'_> {
    fn drop(&mut self) {
        // SAFETY: the socket is open, and nothing uses it after this.
        unsafe { zmq::zmq_close(self.raw) };
    }
}

pub struct Monitor<'context>(Socket<'context>);

impl Monitor<'_> {
    /// Waits for an event and returns its value.
    pub fn event(&self, wanted: u32) -> u32 {
        loop {
            let frame = self.0.receive();
            let _endpoint = self.0.receive();
            let event = u16::from_ne_bytes([frame[0], frame[1]]);
            if u32::from(event) == wanted {
                return u32::from_ne_bytes([frame[2], frame[3], frame[4], frame[5]]);
            }
        }
    }
}

pub fn curve_keys() -> (CString, CString) {
    let (mut public, mut secret) = ([0_u8; 41], [0_u8; 41]);
    // SAFETY: each key is written as 40 characters and a NUL.
    check(unsafe {
        zmq::zmq_curve_keypair(public.as_mut_ptr().cast::<c_char>(), secret.as_mut_ptr().cast::<c_char>())
    });
    [public, secret].map(|key| CStr::from_bytes_until_nul(&key).unwrap().to_owned()).into()
}

#[track_caller]
pub fn check(rc: c_int) {
    assert!(rc == 0, "libzmq: errno {}", errno());
}

pub fn errno() -> c_int {
    // SAFETY: has no preconditions.
    unsafe { zmq::zmq_errno() }
}
