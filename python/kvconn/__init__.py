"""The outbound ZeroMQ connections of LLM inference engines: a thin layer over libkvconn.

Each function is the C function of that name (include/kvconn.h describes them); what C returns through pointers is
returned, and a status other than KVCONN_OK is raised as the exception of that name: `PeerLost` for KVCONN_PEER_LOST,
all of them an `Error`. Only `Partial` is not raised: send_batch returns it, with what became of each item. Calls release
the GIL. Timeouts are milliseconds; `DEFAULT_TIMEOUT` is the configured one.

    conn = kvconn.connect("tcp://10.0.0.7:5557", wait_ms=3000)
    kvconn.send(conn, [b"room", b"17"])
"""

import contextlib
import ctypes
from array import array
from collections.abc import Mapping
from ctypes import byref
from typing import NamedTuple

from . import _ffi, _lent
from ._ffi import DEFAULT, DEFAULT_TIMEOUT

_lib = _ffi.load()
globals().update(_ffi.CONSTANTS)  # KVCONN_EVENT_READY is EVENT_READY here


class Error(Exception):
    """What kvconn_error_t says. `status` is the number, `name` its C name."""

    def __init__(self, error):
        self.status = error.status
        self.name = _lib.kvconn_status_name(error.status).decode()
        self.os_errno = error.os_errno
        self.scope = error.scope
        self.retriable = bool(error.retriable)
        self.retry_after_ms = error.retry_after_ms
        self.conn = error.conn
        self.endpoint = error.endpoint.decode()
        self.message = error.message.decode()
        super().__init__(f"{self.name}: {self.message}" + (f" [{self.endpoint}]" if self.endpoint else ""))


def _exceptions():
    """One exception for each status but OK, from the library's own table: {-8: PeerLost, …}."""
    made = {}
    while True:
        status = -1 - len(made)
        name = _lib.kvconn_status_name(status).decode()
        if not name.startswith("KVCONN_"):
            return made
        short = name.removeprefix("KVCONN_").title().replace("_", "")
        about = {"__doc__": _lib.kvconn_strerror(status).decode(), "__module__": __name__}
        made[status] = type(short, (Error,), about)


STATUSES = _exceptions()
globals().update({kind.__name__: kind for kind in STATUSES.values()})

__version__ = _lib.kvconn_version().decode()


def _call(function, *arguments):
    error = _ffi.kvconn_error_t()
    if getattr(_lib, function)(*arguments, byref(error)) != 0:
        raise STATUSES.get(error.status, Error)(error)


def _text(text):
    """A text as C takes it. C would read one with a NUL only up to there."""
    if not isinstance(text, str):
        raise TypeError(f"a text must be a str, not {type(text).__name__}")
    if "\0" in text:
        raise ValueError("embedded NUL character")
    return text.encode()


def _get(function, kind, *arguments):
    """Calls a function whose one out-parameter comes last before the error."""
    out = kind()
    _call(function, *arguments, byref(out))
    return out.value


def _value(value):
    """An option's value as text: numbers and flags by themselves, pyzmq's CURVE keys from bytes."""
    if isinstance(value, bytes):
        if not value.isascii():
            raise ValueError("an option's value that is bytes must be ASCII")  # decode() would show it, and it may be a key
        return value.decode("ascii")
    return str(int(value) if isinstance(value, bool) else value)


class _Options:
    """A dict as kvconn_options_t, for one call; None stays NULL."""

    def __init__(self, options):
        self.options = options

    def __enter__(self):
        self.pointer = None
        if self.options is not None:
            if not isinstance(self.options, Mapping):
                kind = type(self.options).__name__
                raise TypeError(f'options must be a dict such as {{"send_hwm": 100}}, not {kind}; timeouts have names: wait_ms=3000')
            self.pointer = _lib.kvconn_options_new()
            try:
                for name, value in self.options.items():
                    _call("kvconn_options_set", self.pointer, _text(name), _text(_value(value)))
            except BaseException:
                self.__exit__()
                raise
        return self.pointer

    def __exit__(self, *_):
        _lib.kvconn_options_free(self.pointer)


# ---- Library and managers --------------------------------------------------------------------------------------------


def has(feature):
    return _lib.kvconn_has(_text(feature)) != 0


def configure(options, manager=DEFAULT):
    """Sets options of a manager, for all that comes: a dict from names (docs/options.md) to numbers, flags, texts or CURVE keys.

        kvconn.configure({"send_timeout_ms": 200, "require_curve": True})
    """
    with _Options(options) as pointer:
        _call("kvconn_configure", manager, pointer)


def manager_create(options=None):
    with _Options(options) as pointer:
        return _get("kvconn_manager_create", _ffi.manager_t, pointer)


def manager_destroy(manager, timeout_ms=DEFAULT_TIMEOUT):
    _call("kvconn_manager_destroy", manager, timeout_ms)


def disconnect_all(flush_ms=DEFAULT_TIMEOUT, manager=DEFAULT):
    _call("kvconn_disconnect_all", manager, flush_ms)


def shutdown(flush_ms=DEFAULT_TIMEOUT):
    _call("kvconn_shutdown", flush_ms)


# ---- Connections -----------------------------------------------------------------------------------------------------


def connect(endpoint, options=None, wait_ms=DEFAULT_TIMEOUT, manager=DEFAULT):
    """The connection. A raised Timeout has it in `.conn` while the dial goes on."""
    with _Options(options) as pointer:
        return _get("kvconn_connect", _ffi.conn_t, manager, _text(endpoint), pointer, wait_ms)


def disconnect(conn):
    _call("kvconn_disconnect", conn)


def disconnect_endpoint(endpoint, manager=DEFAULT):
    _call("kvconn_disconnect_endpoint", manager, _text(endpoint))


def connection_info(conn):
    """A dict of the fields of kvconn_connection_info_t."""
    info = _ffi.kvconn_connection_info_t()
    _call("kvconn_connection_info", conn, byref(info))
    return _fields(info)


def connections(manager=DEFAULT):
    return _list("kvconn_connections", _ffi.conn_t, manager)


def find(endpoint, manager=DEFAULT):
    return _get("kvconn_find", _ffi.conn_t, manager, _text(endpoint))


# ---- Messages --------------------------------------------------------------------------------------------------------


def _listed(frames):
    """The frames, unless they are a single one: its bytes would each be a frame."""
    if isinstance(frames, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"frames must be a list of bytes, not {type(frames).__name__}: write [frame] for a single one")
    return frames


def _views(frames):
    """Views of the frames, because a bytearray that is viewed keeps its size, and an iterator is read only once."""
    return [_view(frame) for frame in _listed(frames)]


def _packed(frames):
    """The frames as kvconn_send_packed takes them: buffer, sizes, count."""
    views = _views(frames)
    # An array raises where a size does not fit in 32 bits; ctypes would cut it.
    sizes = array("I", [view.nbytes for view in views])
    return b"".join(views), (ctypes.c_uint32 * len(sizes)).from_buffer(sizes), len(sizes)


def _view(frame):
    try:
        return memoryview(frame)
    except TypeError:
        raise TypeError(f"a frame must be bytes or another buffer, not {type(frame).__name__}") from None


def send(conn, frames, timeout_ms=DEFAULT_TIMEOUT):
    """Sends one message, a list of bytes; returns its sequence."""
    return _get("kvconn_send_packed", ctypes.c_uint64, conn, *_packed(frames), timeout_ms)


def send_to(endpoint, frames, timeout_ms=DEFAULT_TIMEOUT, manager=DEFAULT):
    """Sends one message to whichever life is there, and dials if need be; returns (connection, sequence)."""
    conn, sequence = _ffi.conn_t(), ctypes.c_uint64()
    places = byref(conn), byref(sequence)
    _call("kvconn_send_packed_to", manager, _text(endpoint), *_packed(frames), timeout_ms, *places)
    return conn.value, sequence.value


class Sent(NamedTuple):
    """What became of one item of a batch: `status` is 0 when it is accepted or skipped, else `STATUSES` has its exception."""

    status: int
    sequence: int


def send_batch(items, timeout_ms=DEFAULT_TIMEOUT):
    """Sends many messages, pairs (connection, list of bytes), under one deadline; connection 0 is skipped.

    Returns ([Sent for each item, in order], None), or the Partial in place of None when at least one was not accepted: it
    is not raised, because the others were. Its message is about the first that failed. A frame that is the same object in
    several items is copied once.
    """
    items = [(conn, _views(frames)) for conn, frames in items]
    given, partial = (_ffi.kvconn_batch_item_t * len(items))(), None
    with contextlib.ExitStack() as held:
        for slot, (conn, frames) in zip(given, items):
            loan = _lent.Loan(frames)  # shows where the bytes are, until the call has copied them
            held.callback(loan.give_back)
            slot.conn, slot.frame_count = conn, len(frames)
            slot.frames = (_ffi.kvconn_frame_t * len(frames))(*[(buffer.buf, buffer.len) for buffer in loan.buffers])
        try:
            _call("kvconn_send_batch", given, len(given), timeout_ms)
        except STATUSES[-16] as error:
            partial = error
    return [Sent(slot.status, slot.sequence) for slot in given], partial


def send_owned(conn, frames, timeout_ms=DEFAULT_TIMEOUT):
    """Sends one message without copying it; returns its sequence.

    The frames are objects that show their bytes in one piece (bytes, bytearray, a NumPy array). They are held until they are
    released, and must not be changed before: `wait_released` waits for that.
    """
    _loans.reclaim(conn)
    loan = _lent.Loan(_listed(frames))
    try:
        count = len(loan.buffers)
        array = (_ffi.kvconn_frame_t * count)(*[(buffer.buf, buffer.len) for buffer in loan.buffers])
        sequence = _get("kvconn_send_owned", ctypes.c_uint64, conn, array, count, timeout_ms, _ffi.release_fn_t(), None)
    except BaseException:
        loan.give_back()
        raise
    _loans.add(conn, sequence, loan)
    return sequence


def wait_released(conn, sequence=0, timeout_ms=DEFAULT_TIMEOUT):
    """Waits until the frames of every message up to this one (0: all so far) can be changed again."""
    try:
        _call("kvconn_wait_released", conn, sequence, timeout_ms)
    finally:
        _loans.reclaim_all()


def _released(conn):
    try:
        return connection_info(conn)["released"]
    except STATUSES[-2]:  # STALE: it is remembered as long as it has lent buffers
        return None


_loans = _lent.Lent(_released)


def flush(conn, sequence=0, timeout_ms=DEFAULT_TIMEOUT):
    """Waits until the peer's kernel has acknowledged up to this message (0: all so far); returns the last one it has."""
    return _get("kvconn_flush", ctypes.c_uint64, conn, sequence, timeout_ms)


# ---- Nodes and failures ----------------------------------------------------------------------------------------------


class FailedEndpoint(NamedTuple):
    endpoint: str
    conn: int
    spared: bool
    accepted: int
    acknowledged: int


class Failure(NamedTuple):
    """What a node's failure took away."""

    node: int
    name: str
    reason: str
    time_ms: int
    endpoints: list
    requests: list


def _failure(pointer):
    """Reads a report and frees it; None for NULL."""
    if not pointer:
        return None
    try:
        count = _lib.kvconn_failure_endpoint_count(pointer)
        endpoints = (_ffi.kvconn_failed_endpoint_t * count)()
        size = ctypes.sizeof(_ffi.kvconn_failed_endpoint_t)
        _call("kvconn_failure_endpoints", pointer, endpoints, size, count, byref(ctypes.c_size_t()))
        return Failure(
            _lib.kvconn_failure_node(pointer),
            _lib.kvconn_failure_name(pointer).decode(),
            _lib.kvconn_failure_reason(pointer).decode(),
            _lib.kvconn_failure_time_ms(pointer),
            [FailedEndpoint(e.endpoint.decode(), e.conn, bool(e.spared), e.accepted, e.acknowledged) for e in endpoints],
            _list("kvconn_failure_requests", ctypes.c_uint64, pointer),
        )
    finally:
        _lib.kvconn_failure_free(pointer)


def _texts(texts):
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"endpoints must be a list of str, not {type(texts).__name__}: write [endpoint] for a single one")
    return (ctypes.c_char_p * len(texts))(*[_text(text) for text in texts]), len(texts)


def _reason(reason):
    return None if reason is None else _text(reason)


def node_open(name, manager=DEFAULT):
    """(the node, whether this call began its life)"""
    node, created = _ffi.node_t(), ctypes.c_int32()
    _call("kvconn_node_open", manager, _text(name), byref(node), byref(created))
    return node.value, bool(created.value)


def node_find(name, manager=DEFAULT):
    return _get("kvconn_node_find", _ffi.node_t, manager, _text(name))


def node_info(node):
    """A dict of the fields of kvconn_node_info_t."""
    info = _ffi.kvconn_node_info_t()
    _call("kvconn_node_info", node, byref(info))
    return _fields(info)


def node_add_endpoints(node, endpoints, options=None):
    with _Options(options) as pointer:
        _call("kvconn_node_add_endpoints", node, *_texts(endpoints), pointer)


def node_remove_endpoints(node, endpoints):
    _call("kvconn_node_remove_endpoints", node, *_texts(endpoints))


def node_track_request(node, request):
    _call("kvconn_node_track_request", node, request)


def node_untrack_request(node, request):
    """Whether it was tracked until now."""
    return bool(_get("kvconn_node_untrack_request", ctypes.c_int32, node, request))


def node_report_health(node, healthy, reason=None):
    """The Failure when this report failed the node, else None."""
    return _failure(_get("kvconn_node_report_health", _ffi.failure_p, node, bool(healthy), _reason(reason)))


def handle_failure(node, reason=None):
    """The Failure."""
    return _failure(_get("kvconn_handle_failure", _ffi.failure_p, node, _reason(reason)))


def take_failure(manager=DEFAULT):
    """The oldest Failure that nobody got yet, or None."""
    return _failure(_get("kvconn_take_failure", _ffi.failure_p, manager))


# ---- Events and observing --------------------------------------------------------------------------------------------


def event_fd(manager=DEFAULT):
    return _get("kvconn_event_fd", ctypes.c_int, manager)


def next_event(timeout_ms=0, manager=DEFAULT):
    """A dict of the fields of kvconn_event_t, or None when nothing happened in time."""
    event = _ffi.kvconn_event_t()
    _call("kvconn_next_event", manager, timeout_ms, byref(event))
    return None if event.kind == _ffi.EVENT_NONE else _fields(event)


def _written(function, manager):
    """The text that a function writes; it may have grown since it told its size."""
    needed = ctypes.c_size_t(16 * 1024)
    while True:
        buffer = ctypes.create_string_buffer(needed.value)
        _call(function, manager, buffer, len(buffer), byref(needed))
        if needed.value <= len(buffer):
            return buffer.value.decode()


def describe(manager=DEFAULT):
    return _written("kvconn_describe", manager)


METRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def metrics_text(manager=DEFAULT):
    """The metrics, to be served as METRICS_CONTENT_TYPE."""
    return _written("kvconn_metrics_text", manager)


def dump(fd=2):
    _call("kvconn_dump", fd)


_logs = []  # what the library may call; kept as long as it may


def set_log(function, level):
    """Calls function(level, line) for each line of the log; None ends it.

    Raises Timeout when the function is in place and the one before has not returned within a second; that one is not called again.
    """
    new = _ffi.log_fn_t() if function is None else _ffi.log_fn_t(lambda level, line, _: function(level, line.decode()))
    _logs.append(new)
    try:
        _call("kvconn_set_log", new, None, level)
    except Error as error:
        if error.name != "KVCONN_TIMEOUT":  # nothing has changed
            _logs.remove(new)
        raise
    _logs[:] = [new]  # the others have returned


def _fields(struct):
    """A struct as a dict: texts decoded, without its size."""
    values = {name: getattr(struct, name) for name, _ in struct._fields_[1:]}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def _list(function, kind, owner):
    """An array whose length may grow between asking and copying."""
    count = ctypes.c_size_t(0)
    while True:
        array = (kind * count.value)()
        _call(function, owner, array, len(array), byref(count))
        if count.value <= len(array):
            return array[: count.value]
