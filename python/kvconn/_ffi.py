"""include/kvconn.h for ctypes: every struct and every function with its types, and nothing else.

tests/python/test_ffi.py compares this file with the header and with abi/, so neither can change alone.
"""

import ctypes
import os
import pathlib
from ctypes import CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32
from ctypes import c_uint64, c_void_p
from typing import Any

# ---- Constants -------------------------------------------------------------------------------------------------------

ABI_VERSION = 0
DEFAULT = 0
DEFAULT_TIMEOUT = -1
ENDPOINT_SIZE = 264
TEXT_SIZE = 256
MAX_FRAMES = 65536
MAX_BATCH = 65536
MAX_ENDPOINTS_PER_CALL = 65536
UNKNOWN = 2**64 - 1

STATE_CONNECTING, STATE_READY, STATE_ENDED = 1, 2, 3
ENDED_UNKNOWN, ENDED_FIN, ENDED_RESET, ENDED_TIMEOUT, ENDED_LOCAL = 0, 1, 2, 3, 4

EVENT_NONE = 0
EVENT_READY = 1
EVENT_CONNECT_FAILED = 2
EVENT_PEER_LOST = 3
EVENT_DISCONNECTED = 4
EVENT_EVICTED = 5
EVENT_STALLED = 6
EVENT_RECOVERED = 7
EVENT_NODE_FAILED = 8
EVENT_OVERFLOW = 9

OUTCOME_ACKNOWLEDGED, OUTCOME_UNACKNOWLEDGED, OUTCOME_UNKNOWN = 1, 2, 3

SCOPE_NONE, SCOPE_CALL, SCOPE_PEER, SCOPE_NODE, SCOPE_PROCESS = 0, 1, 2, 3, 4

LOG_OFF, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG = 0, 1, 2, 3, 4

CONSTANTS = {name: value for name, value in dict(vars()).items() if name.isupper() and isinstance(value, int)}

# ---- Types -----------------------------------------------------------------------------------------------------------

status_t = c_int32
manager_t = c_uint64
conn_t = c_uint64
node_t = c_uint64
options_p = c_void_p  # kvconn_options_t *
failure_p = c_void_p  # kvconn_failure_t *
release_fn_t = CFUNCTYPE(None, conn_t, c_uint64, c_int32, c_void_p)
log_fn_t = CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


class _Sized(Structure):
    """A struct that begins with its own size."""

    def __init__(self) -> None:
        super().__init__(ctypes.sizeof(self))


class kvconn_error_t(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("status", status_t),
        ("os_errno", c_int32),
        ("scope", c_int32),
        ("retriable", c_int32),
        ("retry_after_ms", c_int32),
        ("conn", conn_t),
        ("endpoint", c_char * ENDPOINT_SIZE),
        ("message", c_char * TEXT_SIZE),
    ]


class kvconn_connection_info_t(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("state", c_int32),
        ("status", status_t),
        ("os_errno", c_int32),
        ("conn", conn_t),
        ("accepted", c_uint64),
        ("acknowledged", c_uint64),
        ("released", c_uint64),
        ("queued_bytes", c_uint64),
        ("waiting", c_uint32),
        ("stalled", c_int32),
        ("ended_by", c_int32),
        ("reserved", c_uint32),
        ("age_ms", c_int64),
        ("ready_ms", c_int64),
        ("endpoint", c_char * ENDPOINT_SIZE),
        ("message", c_char * TEXT_SIZE),
    ]


class kvconn_frame_t(Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t)]


class kvconn_batch_item_t(Structure):
    _fields_ = [
        ("conn", conn_t),
        ("frames", POINTER(kvconn_frame_t)),
        ("frame_count", c_size_t),
        ("sequence", c_uint64),
        ("status", status_t),
        ("reserved", c_uint32),
    ]


class kvconn_node_info_t(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("status", status_t),
        ("endpoints", c_uint32),
        ("failures_in_row", c_uint32),
        ("node", node_t),
        ("requests", c_uint64),
        ("age_ms", c_int64),
        ("name", c_char * TEXT_SIZE),
        ("reason", c_char * TEXT_SIZE),
    ]


class kvconn_failed_endpoint_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("spared", c_int32),
        ("conn", conn_t),
        ("accepted", c_uint64),
        ("acknowledged", c_uint64),
        ("endpoint", c_char * ENDPOINT_SIZE),
    ]


class kvconn_event_t(_Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("status", status_t),
        ("os_errno", c_int32),
        ("conn", conn_t),
        ("node", node_t),
        ("count", c_uint64),
        ("acknowledged", c_uint64),
        ("ended_by", c_int32),
        ("reserved", c_uint32),
        ("time_ms", c_int64),
        ("endpoint", c_char * ENDPOINT_SIZE),
        ("node_name", c_char * TEXT_SIZE),
        ("message", c_char * TEXT_SIZE),
    ]


# ---- Functions: what each returns, and what it takes -----------------------------------------------------------------

_error = POINTER(kvconn_error_t)
_endpoints = POINTER(c_char_p)
_frames = POINTER(kvconn_frame_t)
_sizes = POINTER(c_uint32)
_conns = POINTER(conn_t)

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "kvconn_version": (c_char_p, []),
    "kvconn_abi_version": (c_int32, []),
    "kvconn_has": (c_int32, [c_char_p]),
    "kvconn_strerror": (c_char_p, [status_t]),
    "kvconn_status_name": (c_char_p, [status_t]),
    "kvconn_status_errno": (c_int32, [status_t]),
    "kvconn_options_new": (options_p, []),
    "kvconn_options_set": (status_t, [options_p, c_char_p, c_char_p, _error]),
    "kvconn_options_free": (None, [options_p]),
    "kvconn_configure": (status_t, [manager_t, options_p, _error]),
    "kvconn_manager_create": (status_t, [options_p, POINTER(manager_t), _error]),
    "kvconn_manager_destroy": (status_t, [manager_t, c_int64, _error]),
    "kvconn_disconnect_all": (status_t, [manager_t, c_int64, _error]),
    "kvconn_shutdown": (status_t, [c_int64, _error]),
    "kvconn_connect": (status_t, [manager_t, c_char_p, options_p, c_int64, POINTER(conn_t), _error]),
    "kvconn_disconnect": (status_t, [conn_t, _error]),
    "kvconn_disconnect_endpoint": (status_t, [manager_t, c_char_p, _error]),
    "kvconn_connection_info": (status_t, [conn_t, POINTER(kvconn_connection_info_t), _error]),
    "kvconn_connections": (status_t, [manager_t, POINTER(conn_t), c_size_t, POINTER(c_size_t), _error]),
    "kvconn_find": (status_t, [manager_t, c_char_p, POINTER(conn_t), _error]),
    "kvconn_send": (status_t, [conn_t, _frames, c_size_t, c_int64, POINTER(c_uint64), _error]),
    "kvconn_send_packed": (status_t, [conn_t, c_void_p, _sizes, c_size_t, c_int64, POINTER(c_uint64), _error]),
    "kvconn_send_to": (
        status_t,
        [manager_t, c_char_p, _frames, c_size_t, c_int64, POINTER(conn_t), POINTER(c_uint64), _error],
    ),
    "kvconn_send_packed_to": (
        status_t,
        [manager_t, c_char_p, c_void_p, _sizes, c_size_t, c_int64, POINTER(conn_t), POINTER(c_uint64), _error],
    ),
    "kvconn_flush": (status_t, [conn_t, c_uint64, c_int64, POINTER(c_uint64), _error]),
    "kvconn_send_batch": (status_t, [POINTER(kvconn_batch_item_t), c_size_t, c_int64, _error]),
    "kvconn_send_batch_packed": (
        status_t,
        [_conns, _sizes, c_size_t, c_void_p, _sizes, c_int64, POINTER(c_uint64), POINTER(status_t), _error],
    ),
    "kvconn_send_owned": (
        status_t,
        [conn_t, _frames, c_size_t, c_int64, release_fn_t, c_void_p, POINTER(c_uint64), _error],
    ),
    "kvconn_wait_released": (status_t, [conn_t, c_uint64, c_int64, _error]),
    "kvconn_node_open": (status_t, [manager_t, c_char_p, POINTER(node_t), POINTER(c_int32), _error]),
    "kvconn_node_find": (status_t, [manager_t, c_char_p, POINTER(node_t), _error]),
    "kvconn_node_info": (status_t, [node_t, POINTER(kvconn_node_info_t), _error]),
    "kvconn_node_add_endpoints": (status_t, [node_t, _endpoints, c_size_t, options_p, _error]),
    "kvconn_node_remove_endpoints": (status_t, [node_t, _endpoints, c_size_t, _error]),
    "kvconn_node_set_endpoints": (status_t, [node_t, _endpoints, c_size_t, options_p, _error]),
    "kvconn_node_connect": (
        status_t,
        [node_t, _endpoints, c_size_t, options_p, c_int64, _conns, POINTER(status_t), _error],
    ),
    "kvconn_node_track_request": (status_t, [node_t, c_uint64, _error]),
    "kvconn_node_untrack_request": (status_t, [node_t, c_uint64, POINTER(c_int32), _error]),
    "kvconn_handle_failure": (status_t, [node_t, c_char_p, POINTER(failure_p), _error]),
    "kvconn_node_report_health": (status_t, [node_t, c_int32, c_char_p, POINTER(failure_p), _error]),
    "kvconn_take_failure": (status_t, [manager_t, c_int64, POINTER(failure_p), _error]),
    "kvconn_failure_node": (node_t, [failure_p]),
    "kvconn_failure_name": (c_char_p, [failure_p]),
    "kvconn_failure_reason": (c_char_p, [failure_p]),
    "kvconn_failure_time_ms": (c_int64, [failure_p]),
    "kvconn_failure_endpoint_count": (c_size_t, [failure_p]),
    "kvconn_failure_request_count": (c_size_t, [failure_p]),
    "kvconn_failure_endpoints": (
        status_t,
        [failure_p, POINTER(kvconn_failed_endpoint_t), c_size_t, c_size_t, POINTER(c_size_t), _error],
    ),
    "kvconn_failure_requests": (status_t, [failure_p, POINTER(c_uint64), c_size_t, POINTER(c_size_t), _error]),
    "kvconn_failure_free": (None, [failure_p]),
    "kvconn_event_fd": (status_t, [manager_t, POINTER(c_int), _error]),
    "kvconn_next_event": (status_t, [manager_t, c_int64, POINTER(kvconn_event_t), _error]),
    "kvconn_describe": (status_t, [manager_t, c_void_p, c_size_t, POINTER(c_size_t), _error]),
    "kvconn_metrics_text": (status_t, [manager_t, c_void_p, c_size_t, POINTER(c_size_t), _error]),
    "kvconn_dump": (status_t, [c_int, _error]),
    "kvconn_set_log": (status_t, [log_fn_t, c_void_p, c_int32, _error]),
}

# ---- The library -----------------------------------------------------------------------------------------------------


SONAME = "libkvconn.so.0"


def find() -> str:
    """The shared object: KVCONN_LIB, else beside this file (a wheel), else where cargo has built it (a checkout), else
    the system's, by its SONAME."""
    named = os.environ.get("KVCONN_LIB")
    if named:
        return named
    here = pathlib.Path(__file__).resolve().parent
    places = [here / SONAME, here / "libkvconn.so"]
    checkout = here.parents[1]
    if here.parent.name == "python" and (checkout / "Cargo.toml").exists():
        target = checkout / (os.environ.get("CARGO_TARGET_DIR") or "target")
        places += [target / profile / "libkvconn.so" for profile in ("release", "debug")]
    for place in places:
        if place.exists():
            return str(place)
    try:
        ctypes.CDLL(SONAME)
    except OSError as error:
        looked = ", ".join(map(str, places))
        advice = f"install the wheel or the library, set KVCONN_LIB, or run `make lib`. Looked at {looked}"
        raise OSError(f"kvconn: there is no {SONAME}: {advice}, and asked the system's loader: {error}") from None
    return SONAME


def load(path: str | None = None, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """The library with every function declared."""
    path = path or find()
    library = ctypes.CDLL(path, mode=mode)
    for name, (returns, takes) in FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise OSError(f"kvconn: {path} has no {name}: it is older than this Python package") from None
        function.restype = returns
        function.argtypes = takes
    if library.kvconn_abi_version() != ABI_VERSION:
        raise OSError(f"kvconn: {path} has C ABI {library.kvconn_abi_version()}, not {ABI_VERSION}")
    return library
