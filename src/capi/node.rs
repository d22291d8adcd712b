//! # Nodes
//!
//! A node is one life of a peer instance, and owns endpoints and requests. kvconn_node_open begins it. Its failure ends
//! it, and takes all of them away in one step; kvconn_disconnect_all ends it without a report. By default the loss of a
//! connection does not fail its node: call kvconn_handle_failure yourself. The option node_loss ("any", "all") does it
//! for you. A late call with the id of an ended life changes nothing. The next life of the name has a new id.
//!
//! ## Statuses that all node calls share
//!
//! ```text
//! KVCONN_DISCONNECTED   kvconn_disconnect_all has ended this life of the node. Nothing changed.
//! KVCONN_NODE_FAILED    this life of the node has failed. Nothing changed.
//! ```

use std::ffi::c_char;

use super::guard::{ErrorOut, count32, milliseconds, process, timeout};
use super::options::{OptionsIn, kvconn_options_t};
use super::pointers::{Array, Filled, Out, OutItems, OutStruct};
use super::strings::{Text, inline};
use super::types::{KVCONN_TEXT_SIZE, kvconn_conn_t, kvconn_error_t, kvconn_manager_t, kvconn_node_t, kvconn_status_t};
use crate::error::{Error, Result, Status};
use crate::ids::{ConnId, ManagerId, NodeId};
use crate::manager::nodes::NodeInfo;

/// The largest number of endpoints in one call.
pub const KVCONN_MAX_ENDPOINTS_PER_CALL: usize = 65536;

/// What is known about a node; start it with KVCONN_NODE_INFO_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_node_info_t {
    /// sizeof(kvconn_node_info_t), set by the caller.
    pub struct_size: u32,
    /// KVCONN_OK while it lives, else KVCONN_NODE_FAILED or KVCONN_DISCONNECTED.
    pub status: kvconn_status_t,
    /// The number of endpoints that it owns; 0 after its end.
    pub endpoints: u32,
    /// The number of unhealthy reports since the last healthy one.
    pub failures_in_row: u32,
    /// The node.
    pub node: kvconn_node_t,
    /// The number of requests tracked on it; 0 after its end.
    pub requests: u64,
    /// Milliseconds that it has lived, or lived until its end.
    pub age_ms: i64,
    /// Its name.
    pub name: [c_char; KVCONN_TEXT_SIZE],
    /// Why it failed. While it lives: the last report's reason if that was unhealthy, else "".
    pub reason: [c_char; KVCONN_TEXT_SIZE],
}

// SAFETY: repr(C), four 4-byte fields, three of 8, arrays of multiples of 8; integers only.
unsafe impl Filled for kvconn_node_info_t {
    const FIRST_SIZE: usize = 552;
}

impl From<NodeInfo> for kvconn_node_info_t {
    fn from(info: NodeInfo) -> Self {
        kvconn_node_info_t {
            struct_size: 0,
            status: info.status as kvconn_status_t,
            endpoints: count32(info.endpoints),
            failures_in_row: info.failures_in_row,
            node: info.node.0,
            requests: info.requests as u64,
            age_ms: milliseconds(info.age),
            name: inline(&info.name),
            reason: inline(&info.reason),
        }
    }
}

/// Returns the live node of a name. If there is none, begins a new life without endpoints and requests; no other call
/// does that.
///
/// @param name         the name of the instance: 1 to 255 bytes of UTF-8, compared exactly.
/// @param[out] node    the node.
/// @param[out] created 1 if this call began the life, else 0; may be NULL.
/// @retval KVCONN_OK      the node lives.
/// @retval KVCONN_INVALID the name is empty or too long.
/// @retval KVCONN_LIMIT   max_nodes is reached, by live nodes and failure reports that were not taken.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_node_open(
    m: kvconn_manager_t,
    name: *const c_char,
    node: *mut kvconn_node_t,
    created: *mut i32,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (name, node, created, error) = unsafe {
        (Text::new("name", name), Out::new("node", node), Out::new("created", created), ErrorOut::new(error))
    };
    error.guard(|| {
        node.required()?;
        created.optional()?;
        let name = name.required()?;
        let (id, new) = process()?.manager(ManagerId(m))?.node_open(name)?;
        node.set(id.0);
        created.set(new.into());
        Ok(())
    })
}

/// Finds the live node of a name.
///
/// @param name      the name.
/// @param[out] node the node.
/// @retval KVCONN_OK        there is one.
/// @retval KVCONN_INVALID   the name is empty or too long.
/// @retval KVCONN_NOT_FOUND there is none now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_node_find(
    m: kvconn_manager_t,
    name: *const c_char,
    node: *mut kvconn_node_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (name, node, error) = unsafe { (Text::new("name", name), Out::new("node", node), ErrorOut::new(error)) };
    error.guard(|| {
        node.required()?;
        let name = name.required()?;
        node.set(process()?.manager(ManagerId(m))?.node_find(name)?.0);
        Ok(())
    })
}

/// Returns what is known about a node. The last 4096 ended nodes of a manager are remembered.
///
/// @param[out] info what is known. Set its struct_size before the call.
/// @retval KVCONN_OK      info is filled; info->status says whether and why the node has ended.
/// @retval KVCONN_INVALID info->struct_size is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_node_info(
    node: kvconn_node_t,
    info: *mut kvconn_node_info_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (info, error) = unsafe { (OutStruct::new("info", info), ErrorOut::new(error)) };
    error.guard(|| {
        info.required()?;
        info.set(&process()?.node(NodeId(node))?.node_info(NodeId(node))?.into());
        Ok(())
    })
}

/// Registers endpoints with a node: all of them, or none on an error. Dials nothing. Lifts every fence on them. Resets
/// their backoff if this life is newer than any that registered them before. An endpoint may belong to several nodes,
/// and may be registered again. Returns the statuses that all node calls share, and those below.
///
/// @param endpoints the endpoints; may be NULL if count is 0.
/// @param count     how many: 0 to KVCONN_MAX_ENDPOINTS_PER_CALL.
/// @param options   settings for later dials to them; NULL for those that they remember, else the configured ones.
/// @param error     its endpoint names the one that was refused.
/// @retval KVCONN_OK       the endpoints are registered.
/// @retval KVCONN_INVALID  an endpoint is malformed, or an option does not belong here.
/// @retval KVCONN_CONFLICT a live connection to one of them has other options.
/// @retval KVCONN_LIMIT    max_endpoints would be exceeded.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_node_add_endpoints(
    node: kvconn_node_t,
    endpoints: *const *const c_char,
    count: usize,
    options: *const kvconn_options_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (endpoints, options, error) =
        unsafe { (Array::new("endpoints", endpoints, count), OptionsIn::new(options), ErrorOut::new(error)) };
    error.guard(|| {
        // SAFETY: each is a C string or NULL, as the parameter says.
        let endpoints = unsafe { texts(&endpoints) }?;
        process()?.node(NodeId(node))?.node_add_endpoints(NodeId(node), &endpoints, options.optional()?)
    })
}

/// Takes endpoints away from a node, ends their connections and fences them, as kvconn_disconnect_endpoint does. If
/// another live node also owns an endpoint, it keeps its connection and gets no fence. An endpoint that the node does
/// not own is skipped. Returns the statuses that all node calls share, and those below.
///
/// @param endpoints the endpoints; may be NULL if count is 0.
/// @param count     how many: 0 to KVCONN_MAX_ENDPOINTS_PER_CALL.
/// @retval KVCONN_OK      the node owns none of them any more.
/// @retval KVCONN_INVALID an endpoint is malformed. None was taken away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_node_remove_endpoints(
    node: kvconn_node_t,
    endpoints: *const *const c_char,
    count: usize,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (endpoints, error) = unsafe { (Array::new("endpoints", endpoints, count), ErrorOut::new(error)) };
    error.guard(|| {
        // SAFETY: each is a C string or NULL, as the parameter says.
        let endpoints = unsafe { texts(&endpoints) }?;
        process()?.node(NodeId(node))?.node_remove_endpoints(NodeId(node), &endpoints)
    })
}

/// Makes these the endpoints of a node, in one step, or changes nothing on an error: for a discovery that tells the whole
/// truth. Endpoints that the node does not own yet are registered, as kvconn_node_add_endpoints does. Those that it owns
/// and that are not in the list are taken away, as kvconn_node_remove_endpoints does. The others keep their connections
/// and their fences, so the same list twice changes nothing. Dials nothing. Returns the statuses that all node calls
/// share, and those below.
///
/// @param endpoints the endpoints; may be NULL if count is 0, which takes all endpoints away.
/// @param count     how many: 0 to KVCONN_MAX_ENDPOINTS_PER_CALL.
/// @param options   settings for later dials to all of them; NULL for those that they remember, else the configured
///     ones.
/// @param error     its endpoint names the one that was refused.
/// @retval KVCONN_OK       the node owns exactly these endpoints.
/// @retval KVCONN_INVALID  an endpoint is malformed, or an option does not belong here.
/// @retval KVCONN_CONFLICT a live connection to one of them has other options.
/// @retval KVCONN_LIMIT    max_endpoints would be exceeded, also without those that are taken away.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_node_set_endpoints(
    node: kvconn_node_t,
    endpoints: *const *const c_char,
    count: usize,
    options: *const kvconn_options_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (endpoints, options, error) =
        unsafe { (Array::new("endpoints", endpoints, count), OptionsIn::new(options), ErrorOut::new(error)) };
    error.guard(|| {
        // SAFETY: each is a C string or NULL, as the parameter says.
        let endpoints = unsafe { texts(&endpoints) }?;
        process()?.node(NodeId(node))?.node_set_endpoints(NodeId(node), &endpoints, options.optional()?)
    })
}

/// Registers endpoints with a node, as kvconn_node_add_endpoints does, and dials all of them at the same time: for the
/// ranks of an instance. Waits until each is READY or has failed, under one deadline. With the option connect_retry it
/// dials those that failed again after each backoff step, until wait_ms is over. Returns the statuses that all node
/// calls share, and those below.
///
/// Registered endpoints stay registered, whatever their dials came to. If the node ends during the call, the call fails
/// as a whole with the reason, and all its connections have ended with the node, unless another node owns them. An
/// endpoint that is in the list twice has one connection.
///
/// @param endpoints     the endpoints; may be NULL if count is 0.
/// @param count         how many: 0 to KVCONN_MAX_ENDPOINTS_PER_CALL.
/// @param options       as for kvconn_node_add_endpoints; and connect_retry.
/// @param wait_ms       how long to wait, in all. With 0 it returns when all dials have begun; KVCONN_DEFAULT_TIMEOUT:
///     as long as one dial may take.
/// @param[out] conns    the connection of each endpoint; 0 if its status is not KVCONN_OK. With KVCONN_TIMEOUT, the
///     connection if its dial goes on. May be NULL if count is 0.
/// @param[out] statuses KVCONN_OK for each endpoint that is READY (with wait_ms 0: that has a connection), else a status
///     that kvconn_connect returns; if the whole call fails, its status. May be NULL.
/// @param error         for KVCONN_PARTIAL: how many endpoints failed, and conn, endpoint, os_errno and message of the
///     first of them.
/// @retval KVCONN_OK       all statuses are KVCONN_OK.
/// @retval KVCONN_INVALID  conns is NULL, an endpoint is malformed, or an option does not belong here. Nothing was done.
/// @retval KVCONN_CONFLICT a live connection to one of them has other options. Nothing was done.
/// @retval KVCONN_LIMIT    max_endpoints would be exceeded. Nothing was done.
/// @retval KVCONN_PARTIAL  at least one endpoint failed. All are registered.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_node_connect(
    node: kvconn_node_t,
    endpoints: *const *const c_char,
    count: usize,
    options: *const kvconn_options_t,
    wait_ms: i64,
    conns: *mut kvconn_conn_t,
    statuses: *mut kvconn_status_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (endpoints, options, conns, statuses, error) = unsafe {
        (
            Array::new("endpoints", endpoints, count),
            OptionsIn::new(options),
            OutItems::new("conns", conns, count),
            OutItems::new("statuses", statuses, count),
            ErrorOut::new(error),
        )
    };
    error.guard(|| {
        if count > KVCONN_MAX_ENDPOINTS_PER_CALL {
            let text = format!("endpoints has {count} elements; {KVCONN_MAX_ENDPOINTS_PER_CALL} are allowed");
            return Err(Error::invalid(text));
        }
        conns.fill(0);
        // What stays there if the call ends in a panic.
        statuses.fill(Status::Internal as kvconn_status_t);
        let connect = || {
            conns.required()?;
            statuses.optional()?;
            // SAFETY: each is a C string or NULL, as the parameter says.
            let endpoints = unsafe { texts(&endpoints) }?;
            let (options, wait, node) = (options.optional()?, timeout("wait_ms", wait_ms)?, NodeId(node));
            process()?.node(node)?.node_connect(node, &endpoints, options, wait)
        };
        let results = connect().inspect_err(|error| statuses.fill(error.status as kvconn_status_t))?;
        for (place, result) in results.iter().enumerate() {
            let (conn, status) = match result {
                Ok(conn) => (*conn, Status::Ok),
                Err(error) if error.status == Status::Timeout => (error.conn, Status::Timeout),
                Err(error) => (ConnId::NONE, error.status),
            };
            conns.set(place, conn.0);
            statuses.set(place, status as kvconn_status_t);
        }
        Error::partial("endpoints", &results)
    })
}

/// # Safety
/// Each element is NULL or a C string that lives for `'a`.
unsafe fn texts<'a>(array: &Array<'a, *const c_char>) -> Result<Vec<&'a str>> {
    let array = array.get(KVCONN_MAX_ENDPOINTS_PER_CALL)?;
    // SAFETY: the same contract.
    array.iter().map(|start| unsafe { Text::new("an element of endpoints", *start) }.required()).collect()
}

/// Notes that a request is in flight on a node. If the node fails before kvconn_node_untrack_request, the failure
/// report lists the request. The node needs no endpoint for this. Tracking a request twice is tracking it once. Returns
/// the statuses that all node calls share, and those below.
///
/// @param request any number of the caller's.
/// @retval KVCONN_OK          the request is tracked.
/// @retval KVCONN_NODE_FAILED the node has failed. No report lists this request: the caller must fail it.
/// @retval KVCONN_LIMIT       max_requests is reached, by live nodes and failure reports that were not taken.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_node_track_request(
    node: kvconn_node_t,
    request: u64,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let error = unsafe { ErrorOut::new(error) };
    error.guard(|| process()?.node(NodeId(node))?.node_track_request(NodeId(node), request))
}

/// Notes that a request is done. Look at was_tracked, so that no request is both done and failed. Returns the statuses
/// that all node calls share.
///
/// @param request          the number.
/// @param[out] was_tracked 1: done, no report will list it. 0 or an error: a report lists it, or it was never tracked; do
///     not report it as done. May be NULL.
/// @retval KVCONN_OK the request is not tracked any more.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_node_untrack_request(
    node: kvconn_node_t,
    request: u64,
    was_tracked: *mut i32,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (was_tracked, error) = unsafe { (Out::new("was_tracked", was_tracked), ErrorOut::new(error)) };
    error.guard(|| {
        was_tracked.optional()?;
        was_tracked.set(process()?.node(NodeId(node))?.node_untrack_request(NodeId(node), request)?.into());
        Ok(())
    })
}
