"""The outbound ZeroMQ connections of LLM inference engines: a thin layer over libkvconn.

    conn = kvconn.connect("tcp://10.0.0.7:5557", wait_ms=3000)
    kvconn.send(conn, [b"room", b"17"])

The functions of kvconn.h exist without their prefix `kvconn_`. What C returns through pointers is returned, optional
arguments have defaults, and structs are dicts or small objects. The header says more about each call. Not needed here,
and therefore not there: options_* (options are a dict), failure_* (a report is a Failure), and the packed sends
send_packed, send_packed_to and send_batch_packed (the sends take frames of any kind).

Arguments
    conn, node and manager are ids: integers that are never reused; 0 is none. `manager` comes last in each function:
    leave it out for the process's own. A node or connection belongs to one manager, so calls with its id take none.
    Times are milliseconds. A timeout of 0 does not wait; DEFAULT_TIMEOUT is the setting send_timeout_ms, unless the
    function names another. `options` is a dict of names (docs/options.md) to numbers, bools, texts or CURVE keys.
    `frames` is a list of bytes, bytearrays, NumPy arrays or other buffers: one message.

Errors
    A status other than KVCONN_OK is raised as the exception of that name: PeerLost for KVCONN_PEER_LOST. All of them
    are an Error, which lists them. Any call may raise Invalid, Shutdown and Internal; a call with an id also Stale.
    The functions below name what else they raise. An argument that C would cut or cannot read is a TypeError or
    ValueError that names the parameter. A send that raises has not sent, now or later: sending again is safe.
    Any send may raise Timeout, Stalled, ConnectFailed, PeerLost, Disconnected, NodeFailed and Limit, and
    with the id of a connection Evicted.

Objects
    Manager, Endpoint, Connection and Node hold an id and forward to the functions, which take the objects as well. Their
    `timeout` is seconds. When such an object is garbage, nothing ends. In a coroutine use a Manager and a Connection by
    `async with`: a plain `with` waits for a flush at its end, and so holds up the event loop. Events and Failures are
    iterators that wait, and Events is for `async for` too. HealthWatch probes nodes over HTTP. kvconn.types has types
    for annotations, kvconn.zmq the exceptions of pyzmq, kvconn.integrations sockets like pyzmq's and adapters for
    engines, kvconn.testing ranks for tests.

Constants
    EVENT_…: the "kind" of an event. STATE_… and ENDED_…: the "state" and "ended_by" of a connection. SCOPE_…: the
    scope of an Error. LOG_…: the levels of set_log. UNKNOWN: an unknown "acknowledged". DEFAULT: the process's manager.
    OUTCOME_…, ABI_VERSION, …_SIZE and MAX_… are as in C. STATUSES: {status: its exception}; status_name is for texts.

Threads and signals
    Every function may be called from any thread. A call that waits releases the GIL. Every wait lets Python's signal
    handlers run, within 200 ms. If a handler returns, the call goes on and keeps its deadline. If a handler raises
    (Ctrl-C raises KeyboardInterrupt), the exception comes out of the call at once. Its attribute `kvconn_call`, a Call,
    then says what the call has done; without the attribute the call had not begun, and has done nothing.

        except KeyboardInterrupt as stop:
            call = getattr(stop, "kvconn_call", None)
            sequence = call and call.result(1000)  # what the call returned, or raises what it raised

    A call that was still waiting goes on, without its caller, until its own timeout: a send may yet be accepted, a dial
    may become READY, disconnect_all and shutdown end everything. `call.result()` waits for that. No result is lost:
    next_event, take_failure, handle_failure and node_report_health return a result that an exception has hidden at the
    next such call on the same manager or node, unless `Call.result` has returned it.
"""

from ._calls import Call
from ._calls import lib as _lib  # for tests
from ._connections import abi_version, configure, connect, connection_info, connections, disconnect, disconnect_all
from ._connections import disconnect_endpoint, find, has, manager_create, manager_destroy, shutdown, status_errno
from ._connections import status_name, strerror, version
from ._errors import Backoff, Conflict, ConnectFailed, Disconnected, Error, Evicted, Internal, Invalid, Limit
from ._errors import NodeFailed, NotFound, Partial, PeerLost, STATUSES, Shutdown, Stale, Stalled, Timeout, Unsupported
from ._errors import WouldDeadlock
from ._ffi import ABI_VERSION, DEFAULT, DEFAULT_TIMEOUT, ENDED_FIN, ENDED_LOCAL, ENDED_RESET, ENDED_TIMEOUT
from ._ffi import ENDED_UNKNOWN, ENDPOINT_SIZE, EVENT_CONNECT_FAILED, EVENT_DISCONNECTED, EVENT_EVICTED
from ._ffi import EVENT_NODE_FAILED, EVENT_NONE, EVENT_OVERFLOW, EVENT_PEER_LOST, EVENT_READY, EVENT_RECOVERED
from ._ffi import EVENT_STALLED, LOG_DEBUG, LOG_ERROR, LOG_INFO, LOG_OFF, LOG_WARN, MAX_BATCH, MAX_ENDPOINTS_PER_CALL
from ._ffi import MAX_FRAMES, OUTCOME_ACKNOWLEDGED, OUTCOME_UNACKNOWLEDGED, OUTCOME_UNKNOWN, SCOPE_CALL, SCOPE_NODE
from ._ffi import SCOPE_NONE, SCOPE_PEER, SCOPE_PROCESS, STATE_CONNECTING, STATE_ENDED, STATE_READY, TEXT_SIZE, UNKNOWN
from ._health import HealthWatch
from ._messages import Sent, flush, send, send_batch, send_owned, send_to, wait_released
from ._nodes import Connected, FailedEndpoint, Failure, handle_failure, node_add_endpoints, node_connect, node_find
from ._nodes import node_info, node_open, node_remove_endpoints, node_report_health, node_set_endpoints
from ._nodes import node_track_request, node_untrack_request, take_failure
from ._objects import Connection, Endpoint, Handle, Manager, Node
from ._observe import METRICS_CONTENT_TYPE, describe, dump, event_fd, event_name, metrics_text, next_event, set_log
from ._waiting import Events, Failures

__version__ = version()

__all__ = [
    # Functions of kvconn.h
    "abi_version", "configure", "connect", "connection_info", "connections", "describe", "disconnect", "disconnect_all",
    "disconnect_endpoint", "dump", "event_fd", "event_name", "find", "flush", "handle_failure", "has", "manager_create",
    "manager_destroy", "metrics_text", "next_event", "node_add_endpoints", "node_connect", "node_find", "node_info",
    "node_open", "node_remove_endpoints", "node_report_health", "node_set_endpoints", "node_track_request",
    "node_untrack_request", "send", "send_batch", "send_owned", "send_to", "set_log", "shutdown", "status_errno",
    "status_name", "strerror", "take_failure", "version", "wait_released",
    # Objects over them
    "Connection", "Endpoint", "Events", "Failures", "Handle", "HealthWatch", "Manager", "Node",
    # What functions return and raise
    "Call", "Connected", "Error", "FailedEndpoint", "Failure", "Sent", "STATUSES", "METRICS_CONTENT_TYPE",
    "Invalid", "Stale", "NotFound", "Timeout", "Stalled", "Backoff", "ConnectFailed", "PeerLost", "Disconnected",
    "NodeFailed", "Conflict", "Limit", "Shutdown", "Internal", "Unsupported", "Partial", "WouldDeadlock", "Evicted",
    # Constants
    "ABI_VERSION", "DEFAULT", "DEFAULT_TIMEOUT", "ENDPOINT_SIZE", "TEXT_SIZE", "MAX_FRAMES", "MAX_BATCH",
    "MAX_ENDPOINTS_PER_CALL", "UNKNOWN", "STATE_CONNECTING", "STATE_READY", "STATE_ENDED", "ENDED_UNKNOWN", "ENDED_FIN",
    "ENDED_RESET", "ENDED_TIMEOUT", "ENDED_LOCAL", "EVENT_NONE", "EVENT_READY", "EVENT_CONNECT_FAILED",
    "EVENT_PEER_LOST", "EVENT_DISCONNECTED", "EVENT_EVICTED", "EVENT_STALLED", "EVENT_RECOVERED", "EVENT_NODE_FAILED",
    "EVENT_OVERFLOW", "OUTCOME_ACKNOWLEDGED", "OUTCOME_UNACKNOWLEDGED", "OUTCOME_UNKNOWN", "SCOPE_NONE", "SCOPE_CALL",
    "SCOPE_PEER", "SCOPE_NODE", "SCOPE_PROCESS", "LOG_OFF", "LOG_ERROR", "LOG_WARN", "LOG_INFO", "LOG_DEBUG",
]

for _name in __all__:
    if hasattr(globals()[_name], "__module__"):
        globals()[_name].__module__ = __name__
