//! # Failures
//!
//! A node fails when kvconn_handle_failure is called, when max_failures health probes in a row were bad, or by the
//! option node_loss. Then its endpoints and requests are taken away in one step: connections end, endpoints are fenced,
//! and exactly one report lists what was taken. The call that failed the node returns the report through `failure`. If
//! that was NULL, or node_loss failed the node, take it with kvconn_take_failure: on a thread that waits, or with timeout
//! 0 after a NODE_FAILED event whose conn is 0. NULL then means that a call has already returned it. A report is never
//! dropped and never changes; several threads may read it. Functions that take a report and return no status accept NULL.

use std::ffi::{CString, c_char};
use std::time::SystemTime;

use super::guard::{ErrorOut, process, timeout};
use super::pointers::{Filled, Out, OutArray, is_size_of, write_struct};
use super::strings::{Text, inline};
use super::types::{
    KVCONN_ENDPOINT_SIZE, acknowledged, kvconn_conn_t, kvconn_error_t, kvconn_manager_t, kvconn_node_t, kvconn_status_t,
};
use crate::error::{Error, Result};
use crate::ids::{ManagerId, NodeId};
use crate::manager::Manager;
use crate::manager::nodes::{FailedEndpoint, Failure};

/// A report of a node's failure. Free it with kvconn_failure_free.
pub struct kvconn_failure_t {
    failure: Failure,
    name: CString,
    reason: CString,
}

/// One endpoint in a failure report.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_failed_endpoint_t {
    /// The size of this element, as given to kvconn_failure_endpoints.
    pub struct_size: u32,
    /// 1 if another live node owns it too, so its connection goes on; 0 if it was closed and fenced.
    pub spared: i32,
    /// The connection that ended with the node, or goes on. If there was none: the last one that was lost while the
    /// node owned the endpoint, whose status in kvconn_connection_info is KVCONN_PEER_LOST. Else 0, and the counts are 0.
    pub conn: kvconn_conn_t,
    /// The number of messages that this connection had accepted.
    pub accepted: u64,
    /// The sequence of the last acknowledged message, or KVCONN_UNKNOWN.
    pub acknowledged: u64,
    /// The endpoint in its canonical form.
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
        // C cannot pass a NUL inside a text. A text with one is cut there, as C reads it.
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

/// The caller's report, or NULL.
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

/// Fails a node. Takes away all its endpoints and requests in one step, ends and fences the endpoints that no other
/// live node owns, and wakes all threads that wait in a call on them, with KVCONN_NODE_FAILED. Never waits, whatever
/// those threads do. Returns the statuses that all node calls share, so a late call does not harm the next life.
///
/// @param reason       one line for people; later errors on these endpoints repeat it. May be NULL. Cut after 200
///     bytes.
/// @param[out] failure the report; free it with kvconn_failure_free. If the parameter is NULL, kvconn_take_failure
///     returns the report.
/// @retval KVCONN_OK the node has failed, by this call.
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

/// Reports the result of a health probe. max_failures unhealthy reports in a row fail the node, as
/// kvconn_handle_failure does. A healthy report sets the count to 0. Returns the statuses that all node calls share.
///
/// @param healthy      0 for unhealthy, any other number for healthy.
/// @param reason       one line for people. May be NULL. Cut after 200 bytes.
/// @param[out] failure the report if this call failed the node, else NULL; free it with kvconn_failure_free. If the
///     parameter is NULL, kvconn_take_failure returns the report.
/// @retval KVCONN_OK the result is noted.
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

/// Takes the oldest failure report that no call has returned yet, and waits for one if there is none. Several threads
/// may call it; each report goes to one of them.
///
/// @param timeout_ms   how long to wait for a report; 0 only looks. KVCONN_DEFAULT_TIMEOUT (-1): the longest wait, a
///     year. kvconn_disconnect_all does not end the wait.
/// @param[out] failure the report; NULL if none came in time. Free it with kvconn_failure_free.
/// @retval KVCONN_OK    the report is the caller's, or none came in time.
/// @retval KVCONN_STALE also: the manager was destroyed during the call.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_take_failure(
    m: kvconn_manager_t,
    timeout_ms: i64,
    failure: *mut *mut kvconn_failure_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (failure, error) = unsafe { (FailureOut::new(failure), ErrorOut::new(error)) };
    error.guard(|| {
        failure.0.required()?;
        let timeout = timeout("timeout_ms", timeout_ms)?;
        if let Some(report) = process()?.manager(ManagerId(m))?.wait_for_failure(timeout)? {
            failure.0.set(kvconn_failure_t::new(report));
        }
        Ok(())
    })
}

/// @return the node that failed; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_node(failure: *const kvconn_failure_t) -> kvconn_node_t {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(0, |f| f.failure.node.0)
}

/// @return the name of the node that failed, a text that lives as long as the report; "" for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_name(failure: *const kvconn_failure_t) -> *const c_char {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(c"".as_ptr(), |f| f.name.as_ptr())
}

/// @return the given reason, or what kvconn observed, a text that lives as long as the report; "" for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_reason(failure: *const kvconn_failure_t) -> *const c_char {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(c"".as_ptr(), |f| f.reason.as_ptr())
}

/// @return when the node failed, in milliseconds since 1970 on the wall clock; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_time_ms(failure: *const kvconn_failure_t) -> i64 {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(0, |f| unix_ms(f.failure.at))
}

/// A wall-clock time for C to read.
pub(super) fn unix_ms(time: SystemTime) -> i64 {
    // 0 if the clock is before 1970.
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, super::guard::milliseconds)
}

/// @return how many endpoints the node owned; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_endpoint_count(failure: *const kvconn_failure_t) -> usize {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(0, |f| f.failure.endpoints.len())
}

/// @return how many requests were in flight; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_request_count(failure: *const kvconn_failure_t) -> usize {
    // SAFETY: NULL or a live report, as the header's chapter on ownership says.
    unsafe { report(failure) }.map_or(0, |f| f.failure.requests.len())
}

/// Copies the endpoints that the node owned, in the order of their registration.
///
/// @param[out] endpoints the first of them, as many as fit; need not be initialised. May be NULL if capacity is 0.
/// @param element_size   sizeof(kvconn_failed_endpoint_t), the distance from one element to the next.
/// @param capacity       how many elements fit.
/// @param[out] count     how many there are.
/// @retval KVCONN_OK      endpoints and count are set, even if not all fit.
/// @retval KVCONN_INVALID element_size is not the size of any version of the struct.
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
/// @param[out] requests the first of them, as many as fit. May be NULL if capacity is 0.
/// @param capacity      how many fit.
/// @param[out] count    how many there are.
/// @retval KVCONN_OK      requests and count are set, even if not all fit.
/// @retval KVCONN_INVALID a required argument is NULL.
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
/// @param failure the report, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_failure_free(failure: *mut kvconn_failure_t) {
    if !failure.is_null() {
        // SAFETY: from this library, and freed once, as the header's chapter on ownership says.
        drop(unsafe { Box::from_raw(failure) });
    }
}
