//! # The library
//!
//! Which library was loaded, and what its statuses mean. These functions never fail, and work at any time.

use std::ffi::{CStr, c_char};

use super::guard;
use super::strings::Text;
use super::types::kvconn_status_t;
use crate::error::{STATUSES, Status};

/// The number of the C ABI that this header describes.
pub const KVCONN_ABI_VERSION: i32 = 0;

/// The version of the loaded library, as "major.minor.patch". KVCONN_VERSION is the version of the header.
///
/// @return a static text.
#[unsafe(no_mangle)]
pub extern "C" fn kvconn_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The number of the loaded library's C ABI, which is also in its SONAME. Do not use a library whose number differs
/// from the KVCONN_ABI_VERSION that the program was built with.
///
/// @return the number.
#[unsafe(no_mangle)]
pub extern "C" fn kvconn_abi_version() -> i32 {
    KVCONN_ABI_VERSION
}

/// Says whether the loaded library has a feature, as it was built and on this machine: "curve" (encrypted connections),
/// "ipc" (ipc:// endpoints), "keepalive" (TCP keepalive takes effect), "user_timeout" (TCP_USER_TIMEOUT takes effect),
/// "acknowledgement" (acknowledged messages are counted), "out_batch" (small messages leave in large writes).
///
/// @param feature the name of the feature. NULL and unknown names return 0.
/// @return 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_has(feature: *const c_char) -> i32 {
    // SAFETY: a C string or NULL, as the description says.
    let feature = unsafe { Text::new("feature", feature) };
    guard::catch(|| Ok(has(feature.required()?))).unwrap_or(false).into()
}

fn has(feature: &str) -> bool {
    let libzmq = |name| zmq::has(name).unwrap_or(false);
    match feature {
        "curve" | "ipc" => libzmq(feature),
        // An option of libzmq's draft API.
        "out_batch" => libzmq("draft"),
        // libzmq cannot tell; build.rs refuses one without them, and tests read them back from a live descriptor.
        "keepalive" | "user_timeout" | "acknowledgement" => cfg!(target_os = "linux"),
        _ => false,
    }
}

/// The meaning of a status, in one sentence. The message in a kvconn_error_t says more about the case.
///
/// @param status any number.
/// @return a static text; "unknown status" if the number is not a status.
#[unsafe(no_mangle)]
pub extern "C" fn kvconn_strerror(status: kvconn_status_t) -> *const c_char {
    static MEANINGS: [Terminated; STATUSES.len()] = column(false);
    lookup(&MEANINGS, status, c"unknown status")
}

/// The errno of a status, for code that knows errnos only; docs/status.md lists them. A kvconn_error_t has it as its
/// os_errno if the operating system has given none.
///
/// @param status any number.
/// @return the errno; 0 for KVCONN_OK and for a number that is not a status.
#[unsafe(no_mangle)]
pub extern "C" fn kvconn_status_errno(status: kvconn_status_t) -> i32 {
    Status::from_number(status).map_or(0, |status| status.row().errno.0)
}

/// The name of a status as in this header, such as "KVCONN_TIMEOUT".
///
/// @param status any number.
/// @return a static text; "unknown" if the number is not a status.
#[unsafe(no_mangle)]
pub extern "C" fn kvconn_status_name(status: kvconn_status_t) -> *const c_char {
    static NAMES: [Terminated; STATUSES.len()] = column(true);
    lookup(&NAMES, status, c"unknown")
}

/// A text of the table of statuses, ended with NUL as C needs it.
type Terminated = [u8; 256];

/// The texts of one column, made while compiling, so that they can be had in every state of the process.
const fn column(names: bool) -> [Terminated; STATUSES.len()] {
    let mut column = [[0; 256]; STATUSES.len()];
    let mut i = 0;
    while i < STATUSES.len() {
        let row = &STATUSES[i];
        let text = if names { row.name.as_bytes() } else { row.meaning.as_bytes() };
        let mut k = 0;
        // A text that leaves no room for its NUL fails the compilation.
        while k < text.len() {
            assert!(k + 1 < column[i].len());
            column[i][k] = text[k];
            k += 1;
        }
        i += 1;
    }
    column
}

fn lookup(column: &'static [Terminated], status: kvconn_status_t, unknown: &'static CStr) -> *const c_char {
    let text = usize::try_from(i64::from(status).wrapping_neg()).ok().and_then(|place| column.get(place));
    text.map_or(unknown.as_ptr(), |text| text.as_ptr().cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_texts_and_no_other_number_has() {
        let read = |text: *const c_char| {
            // SAFETY: these functions return static C strings.
            unsafe { CStr::from_ptr(text) }.to_str().unwrap()
        };
        for row in STATUSES {
            assert_eq!(read(kvconn_status_name(row.status as i32)), row.name);
            assert_eq!(read(kvconn_strerror(row.status as i32)), row.meaning);
            assert_eq!(kvconn_status_errno(row.status as i32), row.errno.0);
        }
        for status in [1, i32::MAX, i32::MIN, -(STATUSES.len() as i32)] {
            assert_eq!(read(kvconn_status_name(status)), "unknown");
            assert_eq!(read(kvconn_strerror(status)), "unknown status");
            assert_eq!(kvconn_status_errno(status), 0);
        }
    }
}
