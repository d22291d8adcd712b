//! # Events
//!
//! Each manager queues what happens to its connections and nodes, in order. Every connection raises exactly one ending
//! event: CONNECT_FAILED, PEER_LOST, DISCONNECTED, EVICTED or NODE_FAILED. It is queued before the call that caused it
//! returns. The surviving connections of a failed node end as NODE_FAILED, not as PEER_LOST.
//!
//! The queue is bounded (option max_events): events that do not fit are counted, and OVERFLOW says how many are missing at
//! its place. Ending events have places of their own. Only the ending of a connection that began while max_events
//! endings were unread can be missing.
//!
//! To find your rank from an event, keep the id from kvconn_connect (with wait_ms 0 it is set at once) and compare it
//! with event.conn. Do not compare endpoint texts: event.endpoint is canonical.

use std::ffi::{CStr, c_char, c_int};

use super::connection::kvconn_ended_by_t;
use super::failure::unix_ms;
use super::guard::{ErrorOut, process, timeout};
use super::pointers::{Filled, Out, OutStruct};
use super::strings::inline;
use super::types::{
    KVCONN_ENDPOINT_SIZE, KVCONN_TEXT_SIZE, acknowledged, kvconn_conn_t, kvconn_error_t, kvconn_manager_t,
    kvconn_node_t, kvconn_status_t,
};
use crate::events::{Event, EventKind};
use crate::ids::ManagerId;

/// The kinds of events.
pub type kvconn_event_kind_t = i32;

/// The names that C reads.
static KINDS: [(EventKind, &CStr); 10] = [
    (EventKind::None, c"KVCONN_EVENT_NONE"),
    (EventKind::Ready, c"KVCONN_EVENT_READY"),
    (EventKind::ConnectFailed, c"KVCONN_EVENT_CONNECT_FAILED"),
    (EventKind::PeerLost, c"KVCONN_EVENT_PEER_LOST"),
    (EventKind::Disconnected, c"KVCONN_EVENT_DISCONNECTED"),
    (EventKind::Evicted, c"KVCONN_EVENT_EVICTED"),
    (EventKind::Stalled, c"KVCONN_EVENT_STALLED"),
    (EventKind::Recovered, c"KVCONN_EVENT_RECOVERED"),
    (EventKind::NodeFailed, c"KVCONN_EVENT_NODE_FAILED"),
    (EventKind::Overflow, c"KVCONN_EVENT_OVERFLOW"),
];

/// The name of an event kind as in this header, such as "KVCONN_EVENT_READY".
///
/// @param kind any number.
/// @return a static text; "unknown" if the number is not a kind.
#[unsafe(no_mangle)]
pub extern "C" fn kvconn_event_name(kind: kvconn_event_kind_t) -> *const c_char {
    let known = KINDS.iter().find(|(each, _)| *each as kvconn_event_kind_t == kind);
    known.map_or(c"unknown", |(_, name)| name).as_ptr()
}

/// One event; start it with KVCONN_EVENT_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvconn_event_t {
    /// sizeof(kvconn_event_t), set by the caller.
    pub struct_size: u32,
    /// What happened.
    pub kind: kvconn_event_kind_t,
    /// Ending events and NODE_FAILED: the status that calls on the connection or node get from now on. STALLED:
    /// KVCONN_STALLED, but the connection lives, and a send on it may still succeed. Others: KVCONN_OK.
    pub status: kvconn_status_t,
    /// The errno behind it, or 0.
    pub os_errno: i32,
    /// The connection, or 0.
    pub conn: kvconn_conn_t,
    /// The node, or 0. Always 0 for the end of a connection: its endpoint may belong to several nodes, or to none.
    pub node: kvconn_node_t,
    /// Ending events: messages accepted. OVERFLOW: events lost. NODE_FAILED of a node: requests failed. Else 0.
    pub count: u64,
    /// The sequence of the connection's last acknowledged message, or KVCONN_UNKNOWN. Final in ending events: the
    /// messages after it, up to count, are unacknowledged.
    pub acknowledged: u64,
    /// Ending events: how it ended.
    pub ended_by: kvconn_ended_by_t,
    /// Always 0.
    pub reserved: u32,
    /// When it happened, in milliseconds since 1970 on the wall clock.
    pub time_ms: i64,
    /// The endpoint in its canonical form, or "".
    pub endpoint: [c_char; KVCONN_ENDPOINT_SIZE],
    /// The name of the node, or "". Always "" for the end of a connection.
    pub node_name: [c_char; KVCONN_TEXT_SIZE],
    /// One line for a person, or "" if there is nothing to add (READY).
    pub message: [c_char; KVCONN_TEXT_SIZE],
}

// SAFETY: repr(C), four 4-byte fields, four of 8, two of 4, one of 8, arrays of multiples of 8; integers only.
unsafe impl Filled for kvconn_event_t {
    const FIRST_SIZE: usize = 840;
}

impl From<Event> for kvconn_event_t {
    fn from(event: Event) -> Self {
        kvconn_event_t {
            struct_size: 0,
            kind: event.kind as kvconn_event_kind_t,
            status: event.status as kvconn_status_t,
            os_errno: event.os_errno,
            conn: event.conn.0,
            node: event.node.0,
            count: event.count,
            acknowledged: event.delivery.map_or(0, |delivery| acknowledged(delivery.acknowledged)),
            ended_by: event.delivery.map_or(0, |delivery| delivery.ended_by as kvconn_ended_by_t),
            reserved: 0,
            time_ms: unix_ms(event.at),
            endpoint: inline(&event.endpoint.map_or(String::new(), |e| e.to_string())),
            node_name: inline(event.node_name.as_deref().unwrap_or("")),
            message: inline(&event.message),
        }
    }
}

/// Returns a descriptor for poll, epoll or an event loop. It is readable exactly while an event waits
/// (level-triggered). With an edge-triggered poller, call kvconn_next_event with timeout 0 until KVCONN_EVENT_NONE. The
/// descriptor belongs to the manager: do not read, write or close it, and stop watching it before the manager is
/// destroyed.
///
/// @param[out] fd the descriptor; -1 on failure.
/// @retval KVCONN_OK    the descriptor stays valid as long as the manager.
/// @retval KVCONN_LIMIT there is no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvconn_event_fd(
    m: kvconn_manager_t,
    fd: *mut c_int,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (fd, error) = unsafe { (Out::with("fd", fd, -1), ErrorOut::new(error)) };
    error.guard(|| {
        fd.required()?;
        fd.set(process()?.manager(ManagerId(m))?.event_fd()?);
        Ok(())
    })
}

/// Takes the oldest event, and waits for one if there is none. Several threads may call it; each event goes to one of
/// them.
///
/// @param timeout_ms how long to wait for an event. KVCONN_DEFAULT_TIMEOUT (-1): send_timeout_ms, not for ever.
/// @param[out] event the event. Its kind is KVCONN_EVENT_NONE if none came in time, or if the manager was destroyed
///     meanwhile. Set its struct_size before the call.
/// @retval KVCONN_OK      event is filled.
/// @retval KVCONN_INVALID event->struct_size is not set.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn kvconn_next_event(
    m: kvconn_manager_t,
    timeout_ms: i64,
    event: *mut kvconn_event_t,
    error: *mut kvconn_error_t,
) -> kvconn_status_t {
    // SAFETY: pointers as the header's chapters and parameters say.
    let (event, error) = unsafe { (OutStruct::new("event", event), ErrorOut::new(error)) };
    error.guard(|| {
        event.required()?;
        let timeout = timeout("timeout_ms", timeout_ms)?;
        event.set(&process()?.manager(ManagerId(m))?.next_event(timeout)?.into());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_name_and_no_other_number_has() {
        // SAFETY: the function returns static C strings.
        let read = |kind| unsafe { CStr::from_ptr(kvconn_event_name(kind)) }.to_str().unwrap();
        for (number, (kind, name)) in (0..).zip(&KINDS) {
            assert_eq!(*kind as i32, number);
            assert_eq!(read(number), format!("KVCONN_EVENT_{}", kind.name()));
            assert_eq!(read(number), name.to_str().unwrap());
        }
        for number in [-1, KINDS.len() as i32, i32::MIN, i32::MAX] {
            assert_eq!(read(number), "unknown");
        }
    }
}
