//! # Connections
//!
//! At most one connection to an endpoint lives in a manager at a time. It is CONNECTING until the peer's ZMTP handshake has
//! succeeded, then READY, until it has ENDED for a reason that every later call on its id returns. A new connection to
//! the same endpoint has a new id.

use std::ffi::c_char;

use super::guard::{ErrorOut, Filled, Out, OutArray, OutStruct, milliseconds, process, timeout};
use super::options::{OptionsIn, kvconn_options_t};
use super::strings::{Text, inline};
use super::types::{
    KVCONN_ENDPOINT_SIZE, KVCONN_TEXT_SIZE, acknowledged, kvconn_conn_t, kvconn_error_t, kvconn_manager_t,
    kvconn_status_t,
};
use crate::connection::ConnectionInfo;
use crate::error::Status;
use crate::ids::{ConnId, ManagerId};

/// What is known about a connection; start it with KVCONN_CONNECTION_INFO_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_connection_info_t {
    /// sizeof(kvconn_connection_info_t), set by the caller.
    pub struct_size: u32,
    /// One of KVCONN_STATE_….
    pub state: i32,
    /// KVCONN_OK while it lives, else why it ended.
    pub status: kvconn_status_t,
    /// The errno behind its end, or 0.
    pub os_errno: i32,
    /// The connection.
    pub conn: kvconn_conn_t,
    /// How many messages were accepted, which is also the sequence of the last.
    pub accepted: u64,
    /// The sequence of the last message that the peer's kernel has acknowledged whole; KVCONN_UNKNOWN where nobody can tell.
    pub acknowledged: u64,
    /// The buffers of every message up to this one that were lent by kvconn_send_owned are the caller's again.
    pub released: u64,
    /// Bytes on the wire of what was accepted and is not acknowledged (where nobody can tell: still held by libzmq): what counts
    /// against max_queued_bytes. 0 when it has ended.
    pub queued_bytes: u64,
    /// How many threads are waiting in a send on it.
    pub waiting: u32,
    /// 1 when nothing of what is on the way has moved for stall_ms, else 0.
    pub stalled: i32,
    /// How it ended: one of KVCONN_ENDED_….
    pub ended_by: i32,
    /// Always 0.
    pub reserved: u32,
    /// Milliseconds since its dial began.
    pub age_ms: i64,
    /// Milliseconds that it has been, or was, READY; 0 when it never was.
    pub ready_ms: i64,
    /// The endpoint, in its canonical form.
    pub endpoint: [c_char; KVCONN_ENDPOINT_SIZE],
    /// One line for a person: how it ended, or "".
    pub message: [c_char; KVCONN_TEXT_SIZE],
}

// SAFETY: repr(C), four 4-byte fields, five of 8, four of 4, two of 8, arrays of multiples of 8; integers only.
unsafe impl Filled for kvconn_connection_info_t {
    const FIRST_SIZE: usize = 608;
}

impl From<ConnectionInfo> for kvconn_connection_info_t {
    fn from(info: ConnectionInfo) -> Self {
        kvconn_connection_info_t {
            struct_size: 0,
            state: info.state as i32,
            status: info.status as kvconn_status_t,
            os_errno: info.os_errno,
            conn: info.conn.0,
            accepted: info.accepted,
            acknowledged: acknowledged(info.acknowledged),
            released: info.released,
            queued_bytes: info.queued_bytes,
            waiting: info.waiting,
            stalled: info.stalled.into(),
            ended_by: info.ended_by as i32,
            reserved: 0,
            age_ms: milliseconds(info.age),
            ready_ms: milliseconds(info.ready_for),
            endpoint: inline(&info.endpoint.to_string()),
            message: inline(&info.message),
        }
    }
}

/// Gives the live connection to an endpoint, and dials when there is none.
///
/// With wait_ms 0 it returns without waiting: the dial goes on, and a send on the connection waits for it inside its own
/// deadline. Else it waits until the connection is READY or the dial has failed. With the option connect_retry it dials again
/// after each backoff step until wait_ms is over, for a start-up in which peers come up in any order. It lifts the fence that a
/// disconnect has left, but not that of kvconn_handle_failure.
///
/// The endpoint remembers the options for all later dials to it.
///
/// @param m         the manager.
/// @param endpoint  "tcp://host:port", with an IPv6 address in brackets, or "ipc://path".
/// @param options   settings of this connection; NULL for those that the endpoint remembers, else the configured ones.
/// @param wait_ms   how long to wait until it is READY; 0 does not wait. KVCONN_DEFAULT_TIMEOUT: as long as one dial may take,
///     the options connect_timeout_ms and handshake_timeout_ms together.
/// @param[out] conn the connection. On KVCONN_TIMEOUT it is set as well while a dial goes on; it is 0 when connect_retry was
///     waiting for the next step.
/// @param error     details of a failure; may be NULL.
/// @retval KVCONN_OK             the connection is READY; with wait_ms 0, it exists.
/// @retval KVCONN_INVALID        the endpoint is malformed or cannot be dialled (port 0, a wildcard address), or an option
///     does not belong here; the message says why.
/// @retval KVCONN_STALE          there is no such manager.
/// @retval KVCONN_TIMEOUT        it was not READY in time; a dial that goes on is in conn.
/// @retval KVCONN_BACKOFF        the last dial failed, was given up, or its connection was lost within a step: retry_after_ms says how
///     long to wait. Not dialled.
/// @retval KVCONN_CONNECT_FAILED the dial has failed; os_errno and the message say why.
/// @retval KVCONN_PEER_LOST      it was READY and was lost before this call could return.
/// @retval KVCONN_DISCONNECTED   another thread disconnected it during the call.
/// @retval KVCONN_NODE_FAILED    the endpoint is fenced because its node failed: register it in a live node first.
/// @retval KVCONN_CONFLICT       the live connection has other options; the message names one.
/// @retval KVCONN_LIMIT          max_endpoints or the process's descriptors are used up; the message names the limit.
/// @retval KVCONN_EVICTED        it was READY, and was evicted before this call could return.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_connect(
    m: kvconn_manager_t,
    endpoint: *const c_char,
    options: *const kvconn_options_t,
    wait_ms: i64,
    conn: *mut kvconn_conn_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (endpoint, options, conn, error) = unsafe {
        (Text::new("endpoint", endpoint), OptionsIn::new(options), Out::new("conn", conn), ErrorOut::new(error))
    };
    error.guard(|| {
        conn.required()?;
        let (endpoint, wait) = (endpoint.required()?, timeout("wait_ms", wait_ms)?);
        let manager = process()?.manager(ManagerId(m))?;
        match manager.connect(endpoint, options.optional()?, wait) {
            Ok(id) => {
                conn.set(id.0);
                Ok(())
            }
            Err(error) => {
                // The one exception from zero on failure: the dial goes on.
                if error.status == Status::Timeout {
                    conn.set(error.conn.0);
                }
                Err(error)
            }
        }
    })
}

/// Ends this connection, if it still lives; a newer one to the same endpoint is not touched. Does not fence: the next
/// kvconn_send_to dials. Never waits: what was accepted and not yet sent is dropped. Threads that wait in calls on it return
/// KVCONN_DISCONNECTED.
///
/// @param conn  the connection.
/// @param error details of a failure; may be NULL.
/// @retval KVCONN_OK    it has ended, now or before.
/// @retval KVCONN_STALE there is no such connection, or it ended too long ago to be remembered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_disconnect(conn: kvconn_conn_t, error: *mut kvconn_error_t) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let error = unsafe { ErrorOut::new(error) };
    error.guard(|| process()?.connection(ConnId(conn))?.disconnect())
}

/// Ends whichever connection to the endpoint is live, and fences the endpoint: nothing is dialled there until kvconn_connect or
/// kvconn_node_add_endpoints asks for it. Never waits, even while other threads are blocked in sends to it: they return
/// KVCONN_DISCONNECTED. What was accepted and not yet sent is dropped.
///
/// @param m        the manager.
/// @param endpoint the endpoint, in any spelling; one that is not known is fenced, too.
/// @param error    details of a failure; may be NULL.
/// @retval KVCONN_OK      it is fenced, and has no connection.
/// @retval KVCONN_INVALID the endpoint is malformed.
/// @retval KVCONN_STALE   there is no such manager.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_disconnect_endpoint(
    m: kvconn_manager_t,
    endpoint: *const c_char,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (endpoint, error) = unsafe { (Text::new("endpoint", endpoint), ErrorOut::new(error)) };
    error.guard(|| {
        let endpoint = endpoint.required()?;
        process()?.manager(ManagerId(m))?.disconnect_endpoint(endpoint)
    })
}

/// Tells what is known about a connection, also after it has ended: the last 4096 endings of a manager are remembered.
///
/// @param conn      the connection.
/// @param[out] info what is known; its struct_size is set by the caller.
/// @param error     details of a failure; may be NULL.
/// @retval KVCONN_OK      info is filled; info->status says whether and why it has ended.
/// @retval KVCONN_INVALID info->struct_size is not set.
/// @retval KVCONN_STALE   there is no such connection, or it ended too long ago to be remembered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_connection_info(
    conn: kvconn_conn_t,
    info: *mut kvconn_connection_info_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (info, error) = unsafe { (OutStruct::new("info", info), ErrorOut::new(error)) };
    error.guard(|| {
        info.required()?;
        info.set(&process()?.connection(ConnId(conn))?.info().into());
        Ok(())
    })
}

/// Lists the live connections of a manager, oldest first.
///
/// @param m          the manager.
/// @param[out] ids   the first of them, as many as fit; NULL when capacity is 0.
/// @param capacity   how many fit into ids.
/// @param[out] count how many there are; when that is more than capacity, call again with a larger array.
/// @param error      details of a failure; may be NULL.
/// @retval KVCONN_OK    ids and count are set, also when not all fit.
/// @retval KVCONN_STALE there is no such manager.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_connections(
    m: kvconn_manager_t,
    ids: *mut kvconn_conn_t,
    capacity: usize,
    count: *mut usize,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (ids, error) = unsafe { (OutArray::new("ids", ids, capacity, count), ErrorOut::new(error)) };
    error.guard(|| {
        ids.required()?;
        ids.set(process()?.manager(ManagerId(m))?.connections().into_iter().map(|id| id.0));
        Ok(())
    })
}

/// Finds the live connection to an endpoint, CONNECTING or READY. Never dials.
///
/// @param m         the manager.
/// @param endpoint  the endpoint, in any spelling.
/// @param[out] conn the connection.
/// @param error     details of a failure; may be NULL.
/// @retval KVCONN_OK        there is one.
/// @retval KVCONN_INVALID   the endpoint is malformed.
/// @retval KVCONN_STALE     there is no such manager.
/// @retval KVCONN_NOT_FOUND there is none now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_find(
    m: kvconn_manager_t,
    endpoint: *const c_char,
    conn: *mut kvconn_conn_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (endpoint, conn, error) =
        unsafe { (Text::new("endpoint", endpoint), Out::new("conn", conn), ErrorOut::new(error)) };
    error.guard(|| {
        conn.required()?;
        let endpoint = endpoint.required()?;
        conn.set(process()?.manager(ManagerId(m))?.find(endpoint)?.0);
        Ok(())
    })
}
