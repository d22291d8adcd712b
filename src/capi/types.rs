//! # Basic types and errors

use std::ffi::c_char;

/// The result of a call: KVCONN_OK or a negative number. docs/status.md shows these as a table.
pub type kvconn_status_t = i32;

/// How far an error reaches: what is affected.
pub type kvconn_scope_t = i32;

/// A manager. KVCONN_DEFAULT is the process's own manager, which always exists.
pub type kvconn_manager_t = u64;

/// A connection: one PUSH socket to one endpoint, from its dial to its end. Never reused; 0 is none.
pub type kvconn_conn_t = u64;

/// A node: one life of a peer instance. Never reused; 0 is none.
pub type kvconn_node_t = u64;

/// The process's own manager.
pub const KVCONN_DEFAULT: u64 = 0;

/// As a timeout: the option send_timeout_ms, unless the function names another default.
pub const KVCONN_DEFAULT_TIMEOUT: i32 = -1;

/// As a count of acknowledged messages: unknown.
pub const KVCONN_UNKNOWN: u64 = u64::MAX;

/// The size in bytes of an array for the text of any endpoint, with its NUL.
pub const KVCONN_ENDPOINT_SIZE: usize = 264;

/// The size in bytes of an array for any node name or message, with its NUL.
pub const KVCONN_TEXT_SIZE: usize = 256;

/// The details of an error; start it with KVCONN_ERROR_INIT. Every call that gets it overwrites it: read it before the
/// next call. A successful call sets the numbers to 0 and the texts to "".
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_error_t {
    /// sizeof(kvconn_error_t), set by the caller.
    pub struct_size: u32,
    /// The status that the call returned.
    pub status: kvconn_status_t,
    /// The operating system's errno, or else that of the status (kvconn_status_errno). Never 0 in an error.
    pub os_errno: i32,
    /// What is affected.
    pub scope: kvconn_scope_t,
    /// 1 if the same endpoint may be tried again without a change by the caller, else 0. A call with the id of an ended
    /// connection never succeeds: get a new id with kvconn_connect.
    pub retriable: i32,
    /// Milliseconds until the endpoint may be dialled again. 0: now, or not known. The next kvconn_connect may still
    /// return KVCONN_BACKOFF.
    pub retry_after_ms: i32,
    /// The connection that the error is about, or 0.
    pub conn: kvconn_conn_t,
    /// The endpoint that the error is about, or "".
    pub endpoint: [c_char; KVCONN_ENDPOINT_SIZE],
    /// One line for a person: what happened, and with what.
    pub message: [c_char; KVCONN_TEXT_SIZE],
}

/// An acknowledged sequence, for C to read.
pub(super) fn acknowledged(sequence: Option<u64>) -> u64 {
    sequence.unwrap_or(KVCONN_UNKNOWN)
}
