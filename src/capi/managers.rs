//! # Managers and shutdown
//!
//! One program rarely needs more than KVCONN_DEFAULT. A manager of its own keeps a component's endpoints, nodes, fences,
//! events and settings apart from those of others; managers share libzmq's threads and the budget of descriptors.

use super::guard::{ErrorOut, Out, process, timeout};
use super::options::{OptionsIn, kvconn_options_t};
use super::types::{kvconn_error_t, kvconn_manager_t, kvconn_status_t};
use crate::ids::ManagerId;

/// Makes a manager.
///
/// @param options      its settings; NULL for the environment's and the defaults.
/// @param[out] manager the new manager, to be given up with kvconn_manager_destroy.
/// @param error        details of a failure; may be NULL.
/// @retval KVCONN_OK      it is made.
/// @retval KVCONN_INVALID an option does not belong to a manager, or two contradict each other.
/// @retval KVCONN_LIMIT   a limit of the system does not allow it; the message names it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_manager_create(
    options: *const kvconn_options_t,
    manager: *mut kvconn_manager_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (options, manager, error) =
        unsafe { (OptionsIn::new(options), Out::new("manager", manager), ErrorOut::new(error)) };
    error.guard(|| {
        manager.required()?;
        manager.set(process()?.create_manager(options.optional()?)?.0);
        Ok(())
    })
}

/// Ends a manager: all its connections end, the calls that wait in it return KVCONN_DISCONNECTED or KVCONN_STALE, and its ids mean
/// nothing any more. What was accepted and not yet sent is dropped; kvconn_disconnect_all before it keeps that. Failure
/// reports that were taken stay valid.
///
/// @param m          the manager; KVCONN_DEFAULT cannot be destroyed.
/// @param timeout_ms how long to wait until libzmq has given up its sockets and descriptors; 0 does not wait.
///     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
/// @param error      details of a failure; may be NULL.
/// @retval KVCONN_OK      it is gone, with all it had.
/// @retval KVCONN_INVALID m is KVCONN_DEFAULT.
/// @retval KVCONN_STALE   there is no such manager.
/// @retval KVCONN_TIMEOUT it is gone, and libzmq will give up the rest of its sockets a little later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_manager_destroy(
    m: kvconn_manager_t,
    timeout_ms: i64,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let error = unsafe { ErrorOut::new(error) };
    error.guard(|| {
        let timeout = timeout("timeout_ms", timeout_ms)?;
        process()?.destroy_manager(ManagerId(m), timeout)
    })
}

/// Ends everything in a manager, for a change of role: closes and fences all endpoints and forgets all nodes, without failure
/// reports. The manager stays usable: kvconn_connect and kvconn_node_add_endpoints lift the fences.
///
/// @param m        the manager.
/// @param flush_ms how long the peers may take to acknowledge what was accepted (over ipc: libzmq to send it); then the rest
///     is dropped. With 0 nothing is waited for, and KVCONN_OK says nothing about what arrived.
///     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
/// @param error    details of a failure; may be NULL.
/// @retval KVCONN_OK      everything is closed, and what was accepted was acknowledged (over ipc: sent), unless its peer was gone.
/// @retval KVCONN_STALE   there is no such manager.
/// @retval KVCONN_TIMEOUT everything has ended, and something that was accepted was not acknowledged (over ipc: not sent) in time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_disconnect_all(
    m: kvconn_manager_t,
    flush_ms: i64,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let error = unsafe { ErrorOut::new(error) };
    error.guard(|| {
        let flush = timeout("flush_ms", flush_ms)?;
        process()?.manager(ManagerId(m))?.disconnect_all(flush)
    })
}

/// Ends kvconn in this process for good: closes every connection of every manager; from then on every call returns
/// KVCONN_SHUTDOWN, and so do those that wait. Only for the end of main(); a library must not call it, because it does not know
/// who else uses kvconn. A program may also just exit, unless release functions may still run that touch what its exit destroys.
///
/// On KVCONN_OK all buffers that were lent by kvconn_send_owned are released. On KVCONN_TIMEOUT those that are not must stay as they
/// are until the process ends; kvconn_wait_released now returns KVCONN_SHUTDOWN.
///
/// @param flush_ms how long the peers may take to acknowledge what was accepted (over ipc: libzmq to send it); then the rest
///     is dropped. With 0 nothing is waited for, and KVCONN_OK says nothing about what arrived.
///     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
/// @param error    details of a failure; may be NULL.
/// @retval KVCONN_OK      everything is closed, and what was accepted was acknowledged (over ipc: sent), unless its peer was gone.
/// @retval KVCONN_TIMEOUT everything has ended, and something that was accepted was not acknowledged (over ipc: not sent) in time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_shutdown(flush_ms: i64, error: *mut kvconn_error_t) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let error = unsafe { ErrorOut::new(error) };
    error.guard(|| {
        let flush = timeout("flush_ms", flush_ms)?;
        process()?.shutdown(flush)
    })
}
