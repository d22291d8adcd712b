//! # Failures
//!
//! A node fails when kvconn_handle_failure says so, when max_failures health probes in a row were bad, or when connections to it
//! are lost and the option node_loss says that this fails it. Then its endpoints and requests are taken
//! away in one step: connections end, endpoints are fenced, and what was taken is in exactly one report. The report goes to the
//! call that caused the failure; when that gave no place for it, or when no call did, it waits for kvconn_take_failure and is
//! never dropped.

use std::ffi::{CString, c_char};
use std::time::SystemTime;

use super::guard::{ErrorOut, Filled, Out, OutArray, is_size_of, process, write_struct};
use super::strings::{Text, inline};
use super::types::{
    KVCONN_ENDPOINT_SIZE, acknowledged, kvconn_conn_t, kvconn_error_t, kvconn_manager_t, kvconn_node_t, kvconn_status_t,
};
use crate::error::{Error, Result};
use crate::ids::{ManagerId, NodeId};
use crate::manager::Manager;
use crate::manager::nodes::{FailedEndpoint, Failure};

/// A report of a node's failure. It never changes, and belongs to the caller until kvconn_failure_free.
pub struct kvconn_failure_t {
    failure: Failure,
    name: CString,
    reason: CString,
}

/// One endpoint in a failure report.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_failed_endpoint_t {
    /// The size of this element, as it was given to kvconn_failure_endpoints.
    pub struct_size: u32,
    /// 1 when another live node owns it as well, so that its connection goes on; else it was closed and fenced.
    pub spared: i32,
    /// Its connection, or 0 when there was none.
    pub conn: kvconn_conn_t,
    /// How many messages that connection had accepted.
    pub accepted: u64,
    /// The last of them that the peer's kernel has acknowledged; KVCONN_UNKNOWN where nobody can tell.
    pub acknowledged: u64,
    /// The endpoint, in its canonical form.
    pub endpoint: [c_char; KVCONN_ENDPOINT_SIZE],
}

// SAFETY: repr(C), two 4-byte fields, three of 8, an array of a multiple of 8; integers only.
unsafe impl Filled for kvconn_failed_endpoint_t {
    const FIRST_SIZE: usize = 296;
}

impl From<&FailedEndpoint> for kvconn_failed_endpoint_t {
    fn from(failed: &FailedEndpoint) -> Self {
        kvconn_failed_endpoint_t {
            struct_size: 0,
            spared: failed.spared.into(),
            conn: failed.conn.0,
            accepted: failed.accepted,
            acknowledged: acknowledged(failed.acknowledged),
            endpoint: inline(&failed.endpoint.to_string()),
        }
    }
}

impl kvconn_failure_t {
    fn new(failure: Failure) -> *mut kvconn_failure_t {
        // A NUL cannot come in from C; a text with one is cut there, as C would read it.
        let text = |text: &str| CString::new(text.split('\0').next().unwrap_or("")).unwrap_or_default();
        let (name, reason) = (text(&failure.name), text(&failure.reason));
        Box::into_raw(Box::new(kvconn_failure_t { failure, name, reason }))
    }
}

/// The out-parameter for a failure report.
pub(super) struct FailureOut(Out<*mut kvconn_failure_t>);

impl FailureOut {
    /// Makes it NULL.
    ///
    /// # Safety
    /// As for [`Out::new`].
    pub(super) unsafe fn new(failure: *mut *mut kvconn_failure_t) -> FailureOut {
        // SAFETY: the same contract.
        FailureOut(unsafe { Out::with("failure", failure, std::ptr::null_mut()) })
    }

    pub(super) fn optional(&self) -> Result<()> {
        self.0.optional()
    }

    /// Gives the report to the caller, or leaves it with the manager for kvconn_take_failure.
    pub(super) fn give(&self, manager: &Manager, failure: Failure) {
        if self.0.wanted() {
            self.0.set(kvconn_failure_t::new(failure));
        } else {
            manager.leave_failure(failure);
        }
    }
}

/// A report that the caller gives, or NULL.
///
/// # Safety
/// `failure` is NULL, or came from this library and is not freed during `'a`.
unsafe fn report<'a>(failure: *const kvconn_failure_t) -> Option<&'a kvconn_failure_t> {
    // SAFETY: the same contract.
    unsafe { failure.as_ref() }
}

fn required(failure: Option<&kvconn_failure_t>) -> Result<&Failure> {
    failure.map(|f| &f.failure).ok_or_else(|| Error::invalid("failure is NULL"))
}

/// Fails a node: takes away all its endpoints and requests in one step, ends and fences the endpoints that no other live node
/// owns, and wakes every thread that waits in a call on them, with KVCONN_NODE_FAILED. Never waits, whatever those threads do.
///
/// @param node         the node.
/// @param reason       one line for people, which later errors on these endpoints repeat; NULL is allowed, and what is longer
///     than 200 bytes is cut.
/// @param[out] failure the report, to be freed with kvconn_failure_free. The parameter may be NULL: then kvconn_take_failure
///     gives the report out.
/// @param error        details of a failure of this call; may be NULL.
/// @retval KVCONN_OK           the node has failed, by this call.
/// @retval KVCONN_STALE        there is no such node.
/// @retval KVCONN_DISCONNECTED kvconn_disconnect_all has forgotten the node.
/// @retval KVCONN_NODE_FAILED  this life of the node was over before; nothing has changed, the next life goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_handle_failure(
    node: kvconn_node_t,
    reason: *const c_char,
    failure: *mut *mut kvconn_failure_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (reason, failure, error) =
        unsafe { (Text::new("reason", reason), FailureOut::new(failure), ErrorOut::new(error)) };
    error.guard(|| {
        failure.optional()?;
        let (node, reason) = (NodeId(node), reason.remark());
        let manager = process()?.node(node)?;
        failure.give(&manager, manager.handle_failure(node, reason.as_deref())?);
        Ok(())
    })
}

/// Reports what a health probe found. max_failures unhealthy reports in a row fail the node, as kvconn_handle_failure does; a
/// healthy one begins the count anew.
///
/// @param node         the node.
/// @param healthy      0 for unhealthy, any other number for healthy.
/// @param reason       one line for people; NULL is allowed, and what is longer than 200 bytes is cut.
/// @param[out] failure the report, when this call failed the node, to be freed with kvconn_failure_free; else NULL. The
///     parameter may be NULL: then kvconn_take_failure gives the report out.
/// @param error        details of a failure; may be NULL.
/// @retval KVCONN_OK           it is noted.
/// @retval KVCONN_STALE        there is no such node.
/// @retval KVCONN_DISCONNECTED kvconn_disconnect_all has forgotten the node.
/// @retval KVCONN_NODE_FAILED  this life of the node was over before: a late probe changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_node_report_health(
    node: kvconn_node_t,
    healthy: i32,
    reason: *const c_char,
    failure: *mut *mut kvconn_failure_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (reason, failure, error) =
        unsafe { (Text::new("reason", reason), FailureOut::new(failure), ErrorOut::new(error)) };
    error.guard(|| {
        failure.optional()?;
        let (node, reason) = (NodeId(node), reason.remark());
        let manager = process()?.node(node)?;
        if let Some(report) = manager.node_report_health(node, healthy != 0, reason.as_deref())? {
            failure.give(&manager, report);
        }
        Ok(())
    })
}

/// Takes the oldest failure report that nobody got yet.
///
/// @param m            the manager.
/// @param[out] failure the report, to be freed with kvconn_failure_free; NULL when there is none.
/// @param error        details of a failure of this call; may be NULL.
/// @retval KVCONN_OK    the report is the caller's, or there is none.
/// @retval KVCONN_STALE there is no such manager.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_take_failure(
    m: kvconn_manager_t,
    failure: *mut *mut kvconn_failure_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (failure, error) = unsafe { (FailureOut::new(failure), ErrorOut::new(error)) };
    error.guard(|| {
        failure.0.required()?;
        if let Some(report) = process()?.manager(ManagerId(m))?.take_failure() {
            failure.0.set(kvconn_failure_t::new(report));
        }
        Ok(())
    })
}

/// Which node failed.
///
/// @param failure the report; NULL is allowed.
/// @return the node, 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_node(failure: *const kvconn_failure_t) -> kvconn_node_t {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(0, |f| f.failure.node.0)
}

/// The name of the node that failed.
///
/// @param failure the report; NULL is allowed.
/// @return a text that lives as long as the report, "" for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_name(failure: *const kvconn_failure_t) -> *const c_char {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(c"".as_ptr(), |f| f.name.as_ptr())
}

/// Why the node failed: the reason that was given, or what kvconn saw.
///
/// @param failure the report; NULL is allowed.
/// @return a text that lives as long as the report, "" for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_reason(failure: *const kvconn_failure_t) -> *const c_char {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(c"".as_ptr(), |f| f.reason.as_ptr())
}

/// When the node failed.
///
/// @param failure the report; NULL is allowed.
/// @return milliseconds since 1970 on the wall clock, 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_time_ms(failure: *const kvconn_failure_t) -> i64 {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(0, |f| unix_ms(f.failure.at))
}

/// A wall-clock time for C to read.
pub(super) fn unix_ms(time: SystemTime) -> i64 {
    // A clock before 1970 is no time worth telling.
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, super::guard::milliseconds)
}

/// How many endpoints the node owned.
///
/// @param failure the report; NULL is allowed.
/// @return the number, 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_endpoint_count(failure: *const kvconn_failure_t) -> usize {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(0, |f| f.failure.endpoints.len())
}

/// How many requests were in flight.
///
/// @param failure the report; NULL is allowed.
/// @return the number, 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_request_count(failure: *const kvconn_failure_t) -> usize {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(0, |f| f.failure.requests.len())
}

/// Copies the endpoints that the node owned, in the order in which they were registered, with what became of each.
///
/// @param failure        the report.
/// @param[out] endpoints the first of them, as many as fit; needs no initialisation. NULL when capacity is 0.
/// @param element_size   sizeof(kvconn_failed_endpoint_t), by which one element follows the other.
/// @param capacity       how many elements fit.
/// @param[out] count     how many there are.
/// @param error          details of a failure of this call; may be NULL.
/// @retval KVCONN_OK      endpoints and count are set, also when not all fit.
/// @retval KVCONN_INVALID element_size is not that of any version of the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_endpoints(
    failure: *const kvconn_failure_t,
    endpoints: *mut kvconn_failed_endpoint_t,
    element_size: usize,
    capacity: usize,
    count: *mut usize,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (failure, array, error) =
        unsafe { (report(failure), OutArray::new("endpoints", endpoints, capacity, count), ErrorOut::new(error)) };
    error.guard(|| {
        array.required()?;
        let all = &required(failure)?.endpoints;
        if !is_size_of::<kvconn_failed_endpoint_t>(element_size) || !element_size.is_multiple_of(align_of::<u64>()) {
            return Err(Error::invalid(format!(
                "element_size is {element_size}; give sizeof(kvconn_failed_endpoint_t)"
            )));
        }
        for (place, failed) in all.iter().take(capacity).enumerate() {
            // SAFETY: the array may be written for `capacity` elements of `element_size`, as the parameters say; each is
            // aligned because the first is and the size is a multiple of it.
            unsafe {
                let to = endpoints.byte_add(place * element_size);
                to.cast::<u32>().write(element_size as u32);
                write_struct(to, element_size, &failed.into());
            }
        }
        array.set_count(all.len());
        Ok(())
    })
}

/// Copies the requests that were in flight, in ascending order.
///
/// @param failure       the report.
/// @param[out] requests the first of them, as many as fit. NULL when capacity is 0.
/// @param capacity      how many fit.
/// @param[out] count    how many there are.
/// @param error         details of a failure of this call; may be NULL.
/// @retval KVCONN_OK      requests and count are set, also when not all fit.
/// @retval KVCONN_INVALID an argument is NULL that must not be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_requests(
    failure: *const kvconn_failure_t,
    requests: *mut u64,
    capacity: usize,
    count: *mut usize,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (failure, array, error) =
        unsafe { (report(failure), OutArray::new("requests", requests, capacity, count), ErrorOut::new(error)) };
    error.guard(|| {
        array.required()?;
        array.set(required(failure)?.requests.iter().copied());
        Ok(())
    })
}

/// Frees a report.
///
/// @param failure the report; NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_free(failure: *mut kvconn_failure_t) {
    if !failure.is_null() {
        // SAFETY: from this library, and freed once, as the header's chapter on ownership says.
        drop(unsafe { Box::from_raw(failure) });
    }
}
