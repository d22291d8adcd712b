//! # Observing
//!
//! For people and debuggers; programs use the functions above.

use std::ffi::{CString, c_char, c_int, c_void};

use super::guard::{ErrorOut, process};
use super::strings::Buffer;
use super::types::{kvconn_error_t, kvconn_manager_t, kvconn_status_t};
use crate::error::{Error, Result};
use crate::ids::ManagerId;
use crate::log;
use crate::log::{Level, Sink};
use crate::manager::Manager;
use crate::observe::describe;

/// Describes a manager in text: connections with states and ages, nodes, last errors, fences, backoff. The form may change.
///
/// @param m           the manager.
/// @param[out] buffer the text, ended with NUL, cut when it does not fit; NULL when capacity is 0.
/// @param capacity    the size of buffer in bytes.
/// @param[out] needed the size that the whole text needs, its NUL included; when that is more than capacity, the text is cut.
///     May be NULL.
/// @param error       details of a failure; may be NULL.
/// @retval KVCONN_OK    buffer and needed are set, also when the text was cut.
/// @retval KVCONN_STALE there is no such manager.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_describe(
    m: kvconn_manager_t,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (buffer, error) = unsafe { (Buffer::new(buffer, capacity, needed), ErrorOut::new(error)) };
    error.guard(|| give(m, &buffer, |manager| Ok(manager.describe())))
}

/// Writes the metrics of a manager as OpenMetrics text, to be served to Prometheus and the like as
/// "application/openmetrics-text; version=1.0.0; charset=utf-8". docs/metrics.md lists them. What the process has one of, such
/// as descriptors, is in the text of manager KVCONN_DEFAULT only. Option metrics_endpoints adds series for single endpoints.
///
/// Made for one scrape every few seconds. It takes some microseconds for each live connection, waits for no peer, and holds
/// up no other call.
///
/// @param m           the manager.
/// @param[out] buffer the text, ended with NUL, cut when it does not fit; NULL when capacity is 0. A whole text ends with
///     "# EOF".
/// @param capacity    the size of buffer in bytes.
/// @param[out] needed the size that the whole text needs, its NUL included; when that is more than capacity, the text is cut.
///     The next text may need more. May be NULL.
/// @param error       details of a failure; may be NULL.
/// @retval KVCONN_OK    buffer and needed are set, also when the text was cut.
/// @retval KVCONN_STALE there is no such manager.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_metrics_text(
    m: kvconn_manager_t,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (buffer, error) = unsafe { (Buffer::new(buffer, capacity, needed), ErrorOut::new(error)) };
    error.guard(|| give(m, &buffer, Manager::metrics_text))
}

/// Gives a text about a manager.
fn give(m: kvconn_manager_t, buffer: &Buffer, text: impl FnOnce(&Manager) -> Result<String>) -> Result<()> {
    buffer.required()?;
    let manager = process()?.manager(ManagerId(m))?;
    buffer.set(&text(&manager)?);
    Ok(())
}

/// Writes the descriptions of all managers to a descriptor. Made for a debugger on a process that hangs ("call
/// kvconn_dump(2, 0)"): it waits for no lock, leaves out what it could not get without waiting, and works after kvconn_shutdown too.
///
/// @param fd    a descriptor that can be written.
/// @param error details of a failure; may be NULL.
/// @retval KVCONN_OK      it is written.
/// @retval KVCONN_INVALID fd cannot be written; os_errno says why.
/// @retval KVCONN_TIMEOUT nobody read from fd for a second; what was written until then is cut.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_dump(fd: c_int, error: *mut kvconn_error_t) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let error = unsafe { ErrorOut::new(error) };
    error.guard(|| describe::dump(fd))
}

/// A function that takes lines of the log: the level (one of KVCONN_LOG_…), the line without a newline, valid during the call
/// only, and the pointer that was given to kvconn_set_log.
pub type kvconn_log_fn_t = Option<unsafe extern "C-unwind" fn(level: i32, line: *const c_char, user_data: *mut c_void)>;

/// Sends the log to a function. Without one kvconn is silent, unless the environment variable KVCONN_LOG names a level and a
/// file ("info:/var/log/kvconn.log", or "-" for standard error); after the first call of this function that has no say.
///
/// The function is called on the thread "kvconn-log", one line at a time, under no lock of kvconn's, and may call kvconn. While
/// it is slow, lines are dropped and counted. In a forked child it is not called. It must return: a C++ exception out
/// of it, or pthread_exit, stops the thread, and no line comes any more; a longjmp out of it is undefined.
///
/// @param function  the function; NULL to be silent again.
/// @param user_data a pointer that it gets; must stay valid until another kvconn_set_log has returned.
/// @param level     the least important level that it gets: one of KVCONN_LOG_….
/// @param error     details of a failure; may be NULL.
/// @retval KVCONN_OK      it gets every line from now on. The function before it has got its last line and will not be called
///     again; the call waits for that, unless it comes from that very function.
/// @retval KVCONN_INVALID there is no such level.
/// @retval KVCONN_LIMIT   the thread could not be started; nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_set_log(
    function: kvconn_log_fn_t,
    user_data: *mut c_void,
    level: i32,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let error = unsafe { ErrorOut::new(error) };
    error.guard(|| {
        let level = [Level::Off, Level::Error, Level::Warn, Level::Info, Level::Debug]
            .into_iter()
            .find(|l| *l as i32 == level)
            .ok_or_else(|| Error::invalid(format!("level is {level}; the levels are 0 to 4")))?;
        let user_data = UserData(user_data);
        let sink = function.map(|function| -> Sink {
            Box::new(move |level, line| {
                // A NUL inside a line would end it early.
                let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
                // SAFETY: the caller promised a function that takes these, and user_data that lives until it is replaced.
                unsafe { function(level as i32, line.as_ptr(), user_data.get()) }
            })
        });
        log::set(sink, level)
    })
}

/// The caller's pointer, which only the caller's function looks at.
#[derive(Clone, Copy)]
struct UserData(*mut c_void);

// SAFETY: never dereferenced here; that the function may use it on the thread "kvconn-log" is what the parameter says.
unsafe impl Send for UserData {}
// SAFETY: the same.
unsafe impl Sync for UserData {}

impl UserData {
    fn get(self) -> *mut c_void {
        self.0
    }
}
