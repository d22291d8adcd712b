//! # Observing

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

/// Describes a manager as text: settings and their sources, connections with states and ages, nodes, the last losses
/// with their counts, fences, backoff. The form may change.
///
/// @param[out] buffer the text with a NUL, cut if it does not fit. May be NULL if capacity is 0.
/// @param capacity    the size of buffer in bytes.
/// @param[out] needed the size of the whole text with its NUL. If this is more than capacity, the text is cut. May be
///     NULL.
/// @retval KVCONN_OK buffer and needed are set, even if the text was cut.
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

/// Writes the metrics of a manager as OpenMetrics text, for Prometheus and others to scrape as
/// "application/openmetrics-text; version=1.0.0; charset=utf-8". docs/metrics.md lists them. Metrics of the process,
/// such as descriptors, are in the text of KVCONN_DEFAULT only. The option metrics_endpoints adds series for single
/// endpoints.
///
/// Made for one scrape every few seconds: it takes some microseconds for each live connection. It waits for no peer and
/// delays no other call.
///
/// @param[out] buffer the text with a NUL, cut if it does not fit. May be NULL if capacity is 0. A whole text ends with
///     "# EOF".
/// @param capacity    the size of buffer in bytes.
/// @param[out] needed the size of the whole text with its NUL. If this is more than capacity, the text is cut. The next
///     text may need more. May be NULL.
/// @retval KVCONN_OK buffer and needed are set, even if the text was cut.
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

/// Writes the descriptions of all managers to a descriptor, for a debugger on a process that hangs. In gdb (14 or later
/// on a processor with AMX; the cast is needed): call ((int(*)(int, void*))kvconn_dump)(2, (void*)0)
/// Waits for no lock and leaves out what it cannot get without waiting. Works after kvconn_shutdown. Raises no SIGPIPE.
///
/// @param fd a descriptor that can be written.
/// @retval KVCONN_OK      the text is written.
/// @retval KVCONN_INVALID fd cannot be written; os_errno says why (EPIPE: its reader is gone).
/// @retval KVCONN_TIMEOUT nothing read from fd for a second. The rest of the text is cut.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_dump(fd: c_int, error: *mut kvconn_error_t) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let error = unsafe { ErrorOut::new(error) };
    error.guard(|| describe::dump(fd))
}

/// The levels of the log.
pub type kvconn_log_level_t = i32;

/// A function that receives the lines of the log: the level; the line without a newline, valid only during the call;
/// and the pointer given to kvconn_set_log.
pub type kvconn_log_fn_t =
    Option<unsafe extern "C-unwind" fn(level: kvconn_log_level_t, line: *const c_char, user_data: *mut c_void)>;

/// Sends the log to a function. Without a function kvconn is silent, unless the environment variable KVCONN_LOG names a
/// level and a file ("info:/var/log/kvconn.log", or "-" for standard error). The first call of kvconn_set_log overrides
/// KVCONN_LOG for good. If KVCONN_LOG cannot be used, one line on standard error says so, and the log stays off. A
/// renamed file (logrotate) is opened again under its old name with the next line.
///
/// The function is called on the thread "kvconn-log", one line at a time, with no lock held. It may call kvconn. While
/// it is slow, lines are dropped and counted. It is not called in a forked child. It must return: after a C++ exception
/// out of it, or pthread_exit, no line comes any more. A longjmp out of it is undefined.
///
/// @param function  the function; NULL for no log.
/// @param user_data a pointer for the function. It must stay valid until another kvconn_set_log has returned KVCONN_OK.
/// @param level     the least important level that the function gets.
/// @retval KVCONN_OK      the function gets every line from now on. The old function has got its last line and is not
///     called again; the call waits up to 1 s for that, unless the old function itself makes this call.
/// @retval KVCONN_INVALID there is no such level.
/// @retval KVCONN_TIMEOUT the same, but the old function has not returned from its last call within 1 s: it may need this
///     thread, or a lock of the caller. It is not called again. Another kvconn_set_log waits for it again.
/// @retval KVCONN_LIMIT   the thread could not be started. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_set_log(
    function: kvconn_log_fn_t,
    user_data: *mut c_void,
    level: kvconn_log_level_t,
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
                // SAFETY: the caller promised such a function, and user_data that lives until it is replaced.
                unsafe { function(level as kvconn_log_level_t, line.as_ptr(), user_data.get()) }
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
