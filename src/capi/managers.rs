//! # Managers and shutdown
//!
//! Most programs need KVCONN_DEFAULT only. A separate manager keeps the endpoints, nodes, fences, events and settings
//! of one component apart from those of others. Managers share libzmq's threads and the limits of the process.

use super::guard::{ErrorOut, process, timeout};
use super::options::{OptionsIn, kvconn_options_t};
use super::pointers::Out;
use super::types::{kvconn_error_t, kvconn_manager_t, kvconn_status_t};
use crate::ids::ManagerId;

/// Makes a manager.
///
/// @param options      its settings; NULL for the environment's and the defaults.
/// @param[out] manager the new manager. Destroy it with kvconn_manager_destroy.
/// @retval KVCONN_OK      the manager exists.
/// @retval KVCONN_INVALID an option does not belong to a manager, or two options contradict each other.
/// @retval KVCONN_LIMIT   a limit of the system is reached. The message names it.
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

/// Ends a manager. All its connections end, calls that wait in it return KVCONN_DISCONNECTED or KVCONN_STALE, and its
/// ids become KVCONN_STALE. Unsent messages are dropped; call kvconn_disconnect_all first to keep them. Failure reports
/// that were already taken stay valid.
///
/// @param m          the manager. KVCONN_DEFAULT cannot be destroyed.
/// @param timeout_ms how long to wait until libzmq has closed the sockets.
/// @retval KVCONN_OK      the manager is gone, and its descriptors are closed.
/// @retval KVCONN_INVALID m is KVCONN_DEFAULT.
/// @retval KVCONN_TIMEOUT the manager is gone. libzmq closes the rest of its sockets later.
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

/// Ends everything in a manager, for a change of role: closes and fences all endpoints, and forgets all nodes without
/// failure reports. The manager stays usable: kvconn_connect or a registration lifts a fence.
///
/// @param flush_ms how long to wait until the peers have acknowledged all accepted messages (ipc: until libzmq has sent
///     them). The rest is then dropped. 0 does not wait, and KVCONN_OK then says nothing about what arrived.
/// @retval KVCONN_OK      everything is closed, and each message was acknowledged (ipc: sent), unless its peer was
///     gone.
/// @retval KVCONN_TIMEOUT everything is closed, but some message was not acknowledged (ipc: not sent) in time.
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

/// Ends kvconn in this process for good: closes all connections of all managers. From then on calls return
/// KVCONN_SHUTDOWN, and so do calls that wait now. Call it only at the end of main(). A library must not call it,
/// because other code may use kvconn too. A program may also just exit, unless release functions may still run that
/// touch what exit destroys.
///
/// On KVCONN_OK all buffers of kvconn_send_owned are released. On KVCONN_TIMEOUT libzmq still holds some of them: do
/// not free or change those until the process ends.
///
/// @param flush_ms as for kvconn_disconnect_all.
/// @retval KVCONN_OK      everything is closed, and each message was acknowledged (ipc: sent), unless its peer was
///     gone.
/// @retval KVCONN_TIMEOUT everything is closed, but some message was not acknowledged (ipc: not sent) in time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_shutdown(flush_ms: i64, error: *mut kvconn_error_t) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let error = unsafe { ErrorOut::new(error) };
    error.guard(|| {
        let flush = timeout("flush_ms", flush_ms)?;
        process()?.shutdown(flush)
    })
}
