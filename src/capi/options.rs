//! # Options
//!
//! A setting has a name and a text value, so new settings need no new function. docs/options.md lists all settings with
//! units, ranges and defaults. kvconn takes the first value that it finds, in this order:
//!
//! 1. the options of the call,
//! 2. what the endpoint remembers from its last connect or registration, for each setting separately,
//! 3. what kvconn_configure set for the manager,
//! 4. the environment variable KVCONN_<NAME>,
//! 5. the default.
//!
//! CURVE encrypts a connection and proves that the peer holds the server's secret key. It needs curve_server_key, and
//! the client's curve_public_key and curve_secret_key. An endpoint with keys never falls back to plain: a plain peer is
//! CONNECT_FAILED, and a redial uses the keys again. curve_server_key "" asks for a plain connection; the option
//! require_curve forbids that. A failed dial has os_errno EACCES if the peer has another key or mechanism, or rejects
//! this client; EPROTO if it is not a PULL socket; ETIMEDOUT if it does not answer. No text, event or log line contains
//! a key.

use std::ffi::c_char;

use super::guard::{ErrorOut, process};
use super::strings::Text;
use super::types::{kvconn_error_t, kvconn_manager_t, kvconn_status_t};
use crate::error::{Error, Result};
use crate::ids::ManagerId;
use crate::options::Options;

/// A set of options. It is empty at first: it overrides nothing.
pub struct kvconn_options_t {
    options: Options,
}

/// The caller's set of options, or NULL.
pub(super) struct OptionsIn<'a>(Result<Option<&'a kvconn_options_t>>);

impl<'a> OptionsIn<'a> {
    /// # Safety
    /// `options` is NULL, not aligned, or from [`kvconn_options_new`] and neither changed nor freed during `'a`.
    pub(super) unsafe fn new(options: *const kvconn_options_t) -> OptionsIn<'a> {
        if !options.is_aligned() {
            return OptionsIn(Err(Error::invalid("options is not aligned for its type")));
        }
        // SAFETY: the same contract, and it is aligned.
        OptionsIn(Ok(unsafe { options.as_ref() }))
    }

    pub(super) fn optional(self) -> Result<Option<&'a Options>> {
        Ok(self.0?.map(|o| &o.options))
    }

    fn required(self) -> Result<&'a Options> {
        self.optional()?.ok_or_else(|| Error::invalid("options is NULL"))
    }
}

/// Makes an empty set of options.
///
/// @return the set, never NULL. Free it with kvconn_options_free.
#[unsafe(no_mangle)]
pub extern "C" fn kvconn_options_new() -> *mut kvconn_options_t {
    Box::into_raw(Box::new(kvconn_options_t { options: Options::default() }))
}

/// Sets one option. A second value for the same name replaces the first. Changes nothing on an error.
///
/// @param options the set to change.
/// @param name    the name of the option, such as "send_hwm".
/// @param value   the value as text: a number in digits, "0" or "1" for a flag, a word, an address, or a key in Z85. ""
///     means no address, no interface or no key.
/// @retval KVCONN_OK      the option is set.
/// @retval KVCONN_INVALID there is no such option, or it does not take this value. The message says which values it
///     takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_options_set(
    options: *mut kvconn_options_t,
    name: *const c_char,
    value: *const c_char,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say; no other thread uses the options meanwhile.
    let (options, name, value, error) =
        unsafe { (options.as_mut(), Text::new("name", name), Text::new("value", value), ErrorOut::new(error)) };
    error.guard(|| {
        let options = options.ok_or_else(|| Error::invalid("options is NULL"))?;
        options.options.set(name.required()?, value.required()?)
    })
}

/// Frees a set of options. What was configured or connected with it stays.
///
/// @param options the set, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_options_free(options: *mut kvconn_options_t) {
    if !options.is_null() {
        // SAFETY: from kvconn_options_new, and freed once, as the header's chapter on ownership says.
        drop(unsafe { Box::from_raw(options) });
    }
}

/// Changes a manager's settings. Settings of connections affect later dials only, and not endpoints that have options
/// of their own. Changes nothing on an error.
///
/// @param options the settings to change. The others stay as they are.
/// @retval KVCONN_OK       the settings are in force.
/// @retval KVCONN_INVALID  an option does not belong here, or two options contradict each other.
/// @retval KVCONN_CONFLICT a setting of the process was given to another manager than KVCONN_DEFAULT, or after the
///     first connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_configure(
    m: kvconn_manager_t,
    options: *const kvconn_options_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (options, error) = unsafe { (OptionsIn::new(options), ErrorOut::new(error)) };
    error.guard(|| {
        let options = options.required()?;
        process()?.manager(ManagerId(m))?.configure(options)
    })
}
