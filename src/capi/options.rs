//! # Options
//!
//! Settings are given by name and as text, so that new ones need no new function. docs/options.md lists each with its unit,
//! range and default. A setting is looked for in the options of the call, then in what its endpoint was last connected or
//! registered with, then in what kvconn_configure set for the manager, then in the environment variable KVCONN_<NAME>, then
//! the default holds. An endpoint remembers each setting for itself: options that leave one out do not take it away.
//!
//! With curve_server_key and the client's own curve_public_key and curve_secret_key a connection is encrypted by CURVE, and
//! the peer proves that it holds the server's secret key. It is never plain instead: not when the peer talks plain, which is
//! CONNECT_FAILED, and not when kvconn_send_to dials it again. curve_server_key "" asks for a plain connection, which
//! require_curve forbids. A dial whose peer is not the one meant fails with os_errno EACCES (its key, its mechanism, or it
//! does not let this client in), EPROTO (it is no PULL socket) or ETIMEDOUT (it does not answer). No text, event or log line
//! of kvconn's contains a key.

use std::ffi::c_char;

use super::guard::{ErrorOut, process};
use super::strings::Text;
use super::types::{kvconn_error_t, kvconn_manager_t, kvconn_status_t};
use crate::error::{Error, Result};
use crate::ids::ManagerId;
use crate::options::Options;

/// A set of options that were given explicitly. Empty at first: nothing in it overrides anything.
pub struct kvconn_options_t {
    options: Options,
}

/// A set of options that the caller gives, or NULL.
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
/// @return the set, to be freed with kvconn_options_free; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kvconn_options_new() -> *mut kvconn_options_t {
    Box::into_raw(Box::new(kvconn_options_t { options: Options::default() }))
}

/// Sets one option; a second value for the same name replaces the first. Nothing changes on an error.
///
/// @param options the set to change.
/// @param name    the option's name, such as "send_hwm".
/// @param value   its value as text: a number in digits, "0" or "1" for a flag, a word, an address, a key in Z85. The empty text
///                is no address, no interface and no key.
/// @param error   details of a failure; may be NULL.
/// @retval KVCONN_OK      it is set.
/// @retval KVCONN_INVALID there is no option of that name, or it does not take that value; the message says which it takes,
///     and never repeats a key.
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
/// @param options the set; NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_options_free(options: *mut kvconn_options_t) {
    if !options.is_null() {
        // SAFETY: from kvconn_options_new, and freed once, as the header's chapter on ownership says.
        drop(unsafe { Box::from_raw(options) });
    }
}

/// Changes a manager's settings. Those of a connection act on dials to come; endpoints that were connected or registered with
/// options of their own keep those. Nothing changes on an error.
///
/// @param m       the manager.
/// @param options the settings to change; others stay as they are.
/// @param error   details of a failure; may be NULL.
/// @retval KVCONN_OK       they are in force.
/// @retval KVCONN_INVALID  an option does not belong here, or two contradict each other.
/// @retval KVCONN_STALE    there is no such manager.
/// @retval KVCONN_CONFLICT a setting of the process was given for another manager than KVCONN_DEFAULT, or after the first
///     connection.
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
