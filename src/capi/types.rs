//! # Basic types and errors

use std::ffi::c_char;

/// The result of a call: KVCONN_OK, or one of the negative numbers above.
pub type kvconn_status_t = i32;

/// A manager. KVCONN_DEFAULT is the process's own, which is always there.
pub type kvconn_manager_t = u64;

/// A connection: one life of one PUSH socket to one endpoint. Never reused; 0 is none.
pub type kvconn_conn_t = u64;

/// A node: one life of a peer instance. Never reused; 0 is none.
pub type kvconn_node_t = u64;

/// The process's own manager.
pub const KVCONN_DEFAULT: u64 = 0;

/// As a timeout: the configured default, which each function names.
pub const KVCONN_DEFAULT_TIMEOUT: i32 = -1;

/// In a count of acknowledged messages: nobody can tell.
pub const KVCONN_UNKNOWN: u64 = u64::MAX;

/// The size of an array that holds the text of any endpoint, with its NUL.
pub const KVCONN_ENDPOINT_SIZE: usize = 264;

/// The size of an array that holds any name of a node, or one line for a person, with its NUL.
pub const KVCONN_TEXT_SIZE: usize = 256;

/// What went wrong in a call, given as its last argument; start it with KVCONN_ERROR_INIT. A call that succeeds sets the
/// numbers to 0 and the texts to "".
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_error_t {
    /// sizeof(kvconn_error_t), set by the caller.
    pub struct_size: u32,
    /// The status, the same as the call's return value.
    pub status: kvconn_status_t,
    /// The operating system's errno behind it, or 0.
    pub os_errno: i32,
    /// How far it reaches: one of KVCONN_SCOPE_….
    pub scope: i32,
    /// 1 when the same call can succeed later without the caller changing anything, else 0.
    pub retriable: i32,
    /// Milliseconds until the same call can help: with KVCONN_BACKOFF, and with the end of a dial in kvconn_connect and
    /// kvconn_send_to, until the endpoint may be dialled again. 0 when that is not known, or at once.
    pub retry_after_ms: i32,
    /// The connection it is about, or 0.
    pub conn: kvconn_conn_t,
    /// The endpoint it is about, or "".
    pub endpoint: [c_char; KVCONN_ENDPOINT_SIZE],
    /// One line for a person: what happened, and with what.
    pub message: [c_char; KVCONN_TEXT_SIZE],
}

/// An acknowledged sequence, for C to read.
pub(super) fn acknowledged(sequence: Option<u64>) -> u64 {
    sequence.unwrap_or(KVCONN_UNKNOWN)
}
