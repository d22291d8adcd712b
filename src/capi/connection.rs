//! # Connections
//!
//! A manager has at most one live connection to an endpoint. It is CONNECTING until the peer's ZMTP handshake has
//! succeeded, and READY until it has ENDED. Later calls on its id return the reason of its end. A new connection to the
//! same endpoint has a new id.

use std::ffi::c_char;

use super::guard::{ErrorOut, milliseconds, process, timeout};
use super::options::{OptionsIn, kvconn_options_t};
use super::pointers::{Filled, Out, OutArray, OutStruct};
use super::strings::{Text, inline};
use super::types::{
    KVCONN_ENDPOINT_SIZE, KVCONN_TEXT_SIZE, acknowledged, kvconn_conn_t, kvconn_error_t, kvconn_manager_t,
    kvconn_status_t,
};
use crate::connection::ConnectionInfo;
use crate::error::Status;
use crate::ids::{ConnId, ManagerId};

/// The state of a connection.
pub type kvconn_state_t = i32;

/// How a connection ended. This decides what an acknowledgement is worth; see "What arrived".
pub type kvconn_ended_by_t = i32;

/// What is known about a connection; start it with KVCONN_CONNECTION_INFO_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_connection_info_t {
    /// sizeof(kvconn_connection_info_t), set by the caller.
    pub struct_size: u32,
    /// Its state.
    pub state: kvconn_state_t,
    /// KVCONN_OK while it lives, else why it ended.
    pub status: kvconn_status_t,
    /// The errno behind its end, or 0.
    pub os_errno: i32,
    /// The connection.
    pub conn: kvconn_conn_t,
    /// The number of accepted messages, which is also the sequence of the last one.
    pub accepted: u64,
    /// The sequence of the last acknowledged message, or KVCONN_UNKNOWN.
    pub acknowledged: u64,
    /// The buffers of kvconn_send_owned are the caller's again, for all messages up to this sequence.
    pub released: u64,
    /// Bytes on the wire in flight, which count against max_queued_bytes; 0 after its end.
    pub queued_bytes: u64,
    /// The number of threads that wait in a send on it.
    pub waiting: u32,
    /// 1 if messages are in flight and made no progress for stall_ms, else 0.
    pub stalled: i32,
    /// How it ended.
    pub ended_by: kvconn_ended_by_t,
    /// Always 0.
    pub reserved: u32,
    /// Milliseconds since its dial began.
    pub age_ms: i64,
    /// Milliseconds for which it has been, or was, READY; 0 if it never was.
    pub ready_ms: i64,
    /// The endpoint in its canonical form.
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
            state: info.state as kvconn_state_t,
            status: info.status as kvconn_status_t,
            os_errno: info.os_errno,
            conn: info.conn.0,
            accepted: info.accepted,
            acknowledged: acknowledged(info.acknowledged),
            released: info.released,
            queued_bytes: info.queued_bytes,
            waiting: info.waiting,
            stalled: info.stalled.into(),
            ended_by: info.ended_by as kvconn_ended_by_t,
            reserved: 0,
            age_ms: milliseconds(info.age),
            ready_ms: milliseconds(info.ready_for),
            endpoint: inline(&info.endpoint.to_string()),
            message: inline(&info.message),
        }
    }
}

/// Returns the live connection to an endpoint. Dials if there is none.
///
/// With wait_ms 0 it returns at once, and the dial goes on; a send on the connection waits for it, within its own
/// timeout. Else it waits until the connection is READY or the dial has failed. With the option connect_retry it dials
/// again after each backoff step until wait_ms is over: for a start-up in which peers come up in any order. It lifts
/// the fence of a disconnect, but not the fence of kvconn_handle_failure. The endpoint remembers the options for all
/// later dials.
///
/// @param endpoint  "tcp://host:port" (an IPv6 address in brackets) or "ipc://path".
/// @param options   settings of this connection; NULL for those that the endpoint remembers, else the configured ones.
/// @param wait_ms   how long to wait until READY. KVCONN_DEFAULT_TIMEOUT: as long as one dial may take, which is
///     connect_timeout_ms plus handshake_timeout_ms.
/// @param[out] conn the connection. Also set on KVCONN_TIMEOUT if the dial goes on; 0 if connect_retry waits for the
///     next step, or if so many sockets to this endpoint are still being closed that no dial has begun.
/// @retval KVCONN_OK             the connection is READY; with wait_ms 0, it exists.
/// @retval KVCONN_INVALID        the endpoint is malformed or cannot be dialled (port 0, a wildcard address), or an
///     option does not belong here.
/// @retval KVCONN_TIMEOUT        the connection was not READY in time. A dial that goes on is in conn.
/// @retval KVCONN_BACKOFF        the last dial failed a moment ago. Not dialled; call again after retry_after_ms.
/// @retval KVCONN_CONNECT_FAILED the dial failed; os_errno and the message say why.
/// @retval KVCONN_PEER_LOST      the connection was READY, and was lost before this call returned.
/// @retval KVCONN_DISCONNECTED   another thread disconnected it during the call.
/// @retval KVCONN_NODE_FAILED    the endpoint is fenced because its node failed. Register it in a live node first.
/// @retval KVCONN_CONFLICT       the live connection has other options; the message names one.
/// @retval KVCONN_LIMIT          max_endpoints or the process's descriptors are used up; the message names the limit.
/// @retval KVCONN_EVICTED        the connection was READY, and was evicted before this call returned.
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
                // The one exception from zero on failure: a dial goes on.
                if error.status == Status::Timeout {
                    conn.set(error.conn.0);
                }
                Err(error)
            }
        }
    })
}

/// Ends this connection, if it still lives. A newer connection to the same endpoint is not affected. Does not fence:
/// the next kvconn_send_to dials. Never waits: unsent messages are dropped. Threads that wait in calls on it return
/// KVCONN_DISCONNECTED.
///
/// @retval KVCONN_OK the connection has ended, now or before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_disconnect(conn: kvconn_conn_t, error: *mut kvconn_error_t) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let error = unsafe { ErrorOut::new(error) };
    error.guard(|| process()?.connection(ConnId(conn))?.disconnect())
}

/// Ends the live connection to an endpoint, and fences the endpoint: nothing is dialled there until kvconn_connect, or
/// registering it in a live node, lifts the fence. Never waits, even while other threads are blocked in sends to it: they
/// return KVCONN_DISCONNECTED. Unsent messages are dropped.
///
/// @param endpoint the endpoint in any spelling. An unknown endpoint is fenced too.
/// @retval KVCONN_OK      the endpoint is fenced, and has no connection.
/// @retval KVCONN_INVALID the endpoint is malformed.
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

/// Returns what is known about a connection. The last 4096 ended connections of a manager are remembered.
///
/// @param[out] info what is known. Set its struct_size before the call.
/// @retval KVCONN_OK      info is filled; info->status says whether and why the connection has ended.
/// @retval KVCONN_INVALID info->struct_size is not set.
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
/// @param[out] ids   the first of them, as many as fit. May be NULL if capacity is 0.
/// @param capacity   how many elements ids has.
/// @param[out] count how many connections there are. If this is more than capacity, call again with a larger array.
/// @retval KVCONN_OK ids and count are set, even if not all fit.
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
/// @param endpoint  the endpoint in any spelling.
/// @param[out] conn the connection.
/// @retval KVCONN_OK        there is one.
/// @retval KVCONN_INVALID   the endpoint is malformed.
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
