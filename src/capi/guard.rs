//! The boundary between C and the core: panics stop here, and errors become statuses.
//!
//! Each exported function first wraps its pointers in one `unsafe` block: [`ErrorOut`] here, the types of
//! [`pointers`](super::pointers) and [`strings`](super::strings). From there on it is safe code.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::pointers::{Filled, is_size_of, write_struct};
use super::strings;
use super::types::{kvconn_error_t, kvconn_status_t};
use crate::error::{Error, Result, Scope, Status};
use crate::process::Process;
use crate::timeout::Timeout;

/// The process's state, checked for fork and shutdown.
#[inline(always)]
pub(super) fn process() -> Result<&'static Process> {
    Process::current()
}

/// A timeout in milliseconds as C passes it.
pub(super) fn timeout(name: &str, ms: i64) -> Result<Timeout> {
    /// Keeps every deadline inside what the clock can count.
    const YEAR_MS: u64 = 366 * 24 * 3600 * 1000;
    match u64::try_from(ms) {
        Ok(ms) => Ok(Timeout::After(Duration::from_millis(ms.min(YEAR_MS)))),
        Err(_) if ms == i64::from(super::KVCONN_DEFAULT_TIMEOUT) => Ok(Timeout::Default),
        Err(_) => Err(Error::invalid(format!("{name} is {ms}; it must be -1 (the default), 0 or more"))),
    }
}

/// A duration in milliseconds, for C to read.
pub(super) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A count as an `uint32_t`, for C to read.
pub(super) fn count32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Where the details of an error go.
pub(super) struct ErrorOut(*mut kvconn_error_t);

impl ErrorOut {
    /// # Safety
    /// `to` is NULL, not aligned, or may be read and written for the struct_size it begins with until the call ends.
    pub(super) unsafe fn new(to: *mut kvconn_error_t) -> ErrorOut {
        ErrorOut(to)
    }

    /// Runs the body of an exported function: its error is filled in, a panic becomes KVCONN_INTERNAL.
    pub(super) fn guard(self, body: impl FnOnce() -> Result<()>) -> kvconn_status_t {
        self.guard_quick(|| uncancellable(body))
    }

    /// The same for a body that itself holds off the cancellation of its thread, with [`uncancellable`], around all that
    /// a cancellation could interrupt: the C library's functions that are cancellation points.
    #[inline(always)]
    pub(super) fn guard_quick(self, body: impl FnOnce() -> Result<()>) -> kvconn_status_t {
        // The body's result, which is large, is turned into a status before it would have to be moved.
        let caught = caught(|| match body() {
            Ok(()) => {
                self.clear();
                Status::Ok as kvconn_status_t
            }
            Err(error) => self.fail(error),
        });
        caught.unwrap_or_else(|payload| self.fail(panicked(payload)))
    }

    #[cold]
    #[inline(never)]
    fn fail(&self, error: Error) -> kvconn_status_t {
        self.fill(&error);
        error.status as kvconn_status_t
    }

    /// Its struct_size, if it can be written.
    fn size(&self) -> Option<usize> {
        if self.0.is_null() || !self.0.is_aligned() {
            return None;
        }
        // SAFETY: it is readable by contract, and begins with a u32.
        let size = unsafe { self.0.cast::<u32>().read() as usize };
        is_size_of::<kvconn_error_t>(size).then_some(size)
    }

    /// No error. Every send takes this path, so it clears only the first byte of each text.
    fn clear(&self) {
        if self.size().is_none() {
            return;
        }
        // SAFETY: it may be written for at least the first version's size, which covers all these fields.
        unsafe {
            (&raw mut (*self.0).status).write(0);
            (&raw mut (*self.0).os_errno).write(0);
            (&raw mut (*self.0).scope).write(Scope::None as i32);
            (&raw mut (*self.0).retriable).write(0);
            (&raw mut (*self.0).retry_after_ms).write(0);
            (&raw mut (*self.0).conn).write(0);
            (&raw mut (*self.0).endpoint[0]).write(0);
            (&raw mut (*self.0).message[0]).write(0);
        }
    }

    fn fill(&self, error: &Error) {
        let Some(size) = self.size() else { return };
        let row = error.status.row();
        // Rounded up: a caller that waits that long is not too early.
        let retry_after = error.retry_after.map_or(0, |wait| wait.as_micros().div_ceil(1000));
        let value = kvconn_error_t {
            struct_size: 0,
            status: error.status as kvconn_status_t,
            os_errno: error.os_errno,
            scope: row.scope as i32,
            retriable: row.retriable.into(),
            retry_after_ms: i32::try_from(retry_after).unwrap_or(i32::MAX),
            conn: error.conn.0,
            endpoint: strings::inline(&error.endpoint),
            message: strings::inline(if error.message.is_empty() { row.meaning } else { &error.message }),
        };
        // SAFETY: `size` was read from it, and it may be written for that size by contract.
        unsafe { write_struct(self.0, size, &value) }
    }
}

// SAFETY: repr(C), u32 first, six 4-byte fields before the 8-byte one, then arrays of multiples of 8; integers only.
unsafe impl Filled for kvconn_error_t {
    const FIRST_SIZE: usize = 552;
}

thread_local! {
    /// Whether this thread is inside an exported function, where a panic is caught.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The text and the location of the panic that is being caught.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `body`; a panic becomes an error, and prints nothing.
pub(super) fn catch<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    caught(|| uncancellable(body)).unwrap_or_else(|payload| Err(panicked(payload)))
}

/// Runs `body`; a panic becomes its payload, and prints nothing.
#[inline(always)]
fn caught<T>(body: impl FnOnce() -> T) -> std::thread::Result<T> {
    quieten_panics();
    let outer = INSIDE.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(body));
    INSIDE.set(outer);
    result
}

/// The error of a panic.
#[cold]
#[inline(never)]
fn panicked(payload: Box<dyn Any + Send>) -> Error {
    // Thread-locals may be gone when a thread's last destructors call.
    let noted = PANIC.try_with(|p| p.try_borrow_mut().ok().and_then(|mut p| p.take())).ok().flatten();
    let text = noted.unwrap_or_else(|| said(payload.as_ref()));
    Error::new(Status::Internal, format!("kvconn panicked: {text}"))
}

/// Runs `body` with the cancellation of the calling thread held off.
pub(super) fn uncancellable<T>(body: impl FnOnce() -> T) -> T {
    let _cancellable_at_return = NoCancellation::new();
    body()
}

/// Holds off the cancellation of the calling thread while it lives. `pthread_cancel` unwinds the thread's stack wherever it
/// waits, and Rust ends the process for an unwinding that is not its own. A cancellation stays pending: the thread's next
/// cancellation point after the call acts on it.
struct NoCancellation {
    before: c_int,
}

unsafe extern "C" {
    // Not in the crate `libc` for Linux.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

impl NoCancellation {
    fn new() -> NoCancellation {
        /// The same number in glibc and musl.
        const PTHREAD_CANCEL_DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: changes the calling thread alone, and writes to a live int.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        NoCancellation { before }
    }
}

impl Drop for NoCancellation {
    fn drop(&mut self) {
        // SAFETY: as above, with the state that the thread had. The pointer may be null on Linux.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

/// Keeps panics that [`catch`] catches off stderr, and notes their location. Other panics go to the previous hook.
#[inline(always)]
fn quieten_panics() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.load(Ordering::Relaxed) {
        quieten(&DONE);
    }
}

#[cold]
#[inline(never)]
fn quieten(done: &AtomicBool) {
    // A thread that panics cannot change the hook; a Drop in a Rust host may call us then. A flag, because a fork could
    // leave a Once locked for ever.
    if std::thread::panicking() || done.swap(true, Ordering::Relaxed) {
        return;
    }
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !INSIDE.get() {
            return previous(info);
        }
        let place = info.location().map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
        let text = format!("{}{place}", said(info.payload()));
        let _ = PANIC.try_with(|p| p.try_borrow_mut().map(|mut p| *p = Some(text)));
    }));
}

/// The text of a panic.
fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text").to_string()
}

#[cfg(test)]
mod tests {
    use super::super::pointers::ABSURD_SIZE;
    use super::*;
    use std::ffi::CStr;

    fn empty() -> kvconn_error_t {
        kvconn_error_t { struct_size: size_of::<kvconn_error_t>() as u32, ..kvconn_error_t::zero() }
    }

    fn text(array: &[std::ffi::c_char]) -> &str {
        // SAFETY: the arrays of an error always end with NUL, which is what the tests are about.
        unsafe { CStr::from_ptr(array.as_ptr()) }.to_str().unwrap()
    }

    fn guard(error: &mut kvconn_error_t, body: impl FnOnce() -> Result<()>) -> i32 {
        // SAFETY: a live reference.
        unsafe { ErrorOut::new(error) }.guard(body)
    }

    #[test]
    fn a_panic_is_internal_and_says_where() {
        let mut error = empty();
        let status = guard(&mut error, || panic!("seven {}", 7));
        assert_eq!((status, error.status), (Status::Internal as i32, Status::Internal as i32));
        let text = text(&error.message);
        assert!(text.contains("seven 7") && text.contains("guard.rs:"), "{text}");
    }

    #[test]
    fn success_clears_what_an_error_left() {
        let mut error = empty();
        let failing = || Err(Error::invalid("bad").at("tcp://a:1").errno(5).retry_after(Duration::from_micros(1500)));
        assert_eq!(guard(&mut error, failing), Status::Invalid as i32);
        assert_eq!((error.os_errno, error.scope, error.retry_after_ms), (5, Scope::Call as i32, 2));
        assert_eq!((text(&error.endpoint), text(&error.message)), ("tcp://a:1", "bad"));
        assert_eq!(guard(&mut error, || Ok(())), 0);
        assert_eq!((error.status, error.os_errno, error.scope, error.retry_after_ms), (0, 0, 0, 0));
        assert_eq!((text(&error.endpoint), text(&error.message)), ("", ""));
    }

    #[test]
    fn an_error_of_the_wrong_size_is_not_touched() {
        for size in [0, 4, 551, ABSURD_SIZE as u32 + 1, u32::MAX] {
            let mut error = kvconn_error_t { struct_size: size, os_errno: 77, ..kvconn_error_t::zero() };
            assert_eq!(guard(&mut error, || Err(Error::invalid("bad"))), Status::Invalid as i32);
            assert_eq!((error.status, error.os_errno), (0, 77));
        }
    }

    #[test]
    fn a_newer_callers_struct_is_not_written_beyond_what_is_known() {
        #[repr(C)]
        struct Newer(kvconn_error_t, u64);
        let mut newer = Newer(empty(), 99);
        newer.0.struct_size = size_of::<Newer>() as u32;
        assert_eq!(guard(&mut newer.0, || Err(Error::invalid("bad"))), Status::Invalid as i32);
        assert_eq!((newer.0.status, newer.1), (Status::Invalid as i32, 99));
    }

    #[test]
    fn timeouts_below_the_default_are_refused_and_huge_ones_bounded() {
        assert!(matches!(timeout("t", -1), Ok(Timeout::Default)));
        assert!(matches!(timeout("t", 0), Ok(Timeout::After(Duration::ZERO))));
        assert!(matches!(timeout("t", i64::MAX), Ok(Timeout::After(d)) if d < Duration::from_secs(400 * 24 * 3600)));
        for ms in [-2, i64::MIN] {
            assert_eq!(timeout("t", ms).err().map(|e| e.status), Some(Status::Invalid));
        }
    }
}
