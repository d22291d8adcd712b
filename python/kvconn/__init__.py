"""The outbound ZeroMQ connections of LLM inference engines: a thin layer over libkvconn.

Each function is the C function of that name (include/kvconn.h describes them); what C returns through pointers is
returned, and a status other than KVCONN_OK is raised as the exception of that name: `PeerLost` for KVCONN_PEER_LOST,
all of them an `Error`. Only `Partial` is not raised: send_batch returns it, with the result of each item. Calls release
the GIL. Timeouts are milliseconds; `DEFAULT_TIMEOUT` is the configured one. An argument that C would cut or cannot read
is a TypeError or ValueError that names the parameter.

    conn = kvconn.connect("tcp://10.0.0.7:5557", wait_ms=3000)
    kvconn.send(conn, [b"room", b"17"])

Signals. Every wait lets Python's signal handlers run, within 200 ms. If a handler returns, the call goes on and keeps
its deadline. If a handler raises (Ctrl-C raises KeyboardInterrupt), the exception comes out of the call at once. The
attribute `kvconn_call` of the exception, a `Call`, then says what the call has done; without the attribute the call had
not begun, and has done nothing.

    except KeyboardInterrupt as stop:
        call = getattr(stop, "kvconn_call", None)
        sequence = call and call.result(1000)  # what the call returned, or raises what it raised

A call that was still waiting goes on, without its caller, until its own timeout: a send may yet be accepted, a dial may
become READY, disconnect_all and shutdown end everything. `call.result()` waits for that. No result is lost: next_event,
take_failure, handle_failure and node_report_health return a result that an exception has hidden at the next such call
on the same manager or node, unless `Call.result` has returned it.

Buffers of send_owned that kvconn has released are unpinned by every later call of any function.
"""

import ctypes
import math
import os
import time
from ctypes import byref
from typing import NamedTuple

from . import _calls, _check, _ffi
from ._buffers import Pinned as _Pinned
from ._buffers import packed as _packed
from ._calls import STATUSES, Call, CopiedCall, Error
from ._calls import Options as _Options
from ._calls import get as _get
from ._calls import lib as _lib
from ._calls import pins as _pins
from ._calls import run as _run
from ._check import text as _text
from ._check import timeout as _timeout
from ._check import uint64 as _uint64
from ._ffi import DEFAULT, DEFAULT_TIMEOUT

globals().update(_ffi.CONSTANTS)  # KVCONN_EVENT_READY is EVENT_READY here
globals().update({kind.__name__: kind for kind in STATUSES.values()})
Call.__module__ = CopiedCall.__module__ = __name__

__version__ = _lib.kvconn_version().decode()


def _manager(manager):
    return _uint64("manager", manager)


# ---- Library and managers --------------------------------------------------------------------------------------------


def has(feature):
    return _lib.kvconn_has(_text("feature", feature)) != 0


def configure(options, manager=DEFAULT):
    """Sets options of a manager, for all that comes: a dict from names (docs/options.md) to numbers, flags, texts or
    CURVE keys.

        kvconn.configure({"send_timeout_ms": 200, "require_curve": True})
    """
    manager, given = _manager(manager), _Options(options)
    _run(Call("kvconn_configure", (manager, given), ends=[given.free]))


def manager_create(options=None):
    given = _Options(options)
    return _get("kvconn_manager_create", _ffi.manager_t, given, ends=[given.free])


def manager_destroy(manager, timeout_ms=DEFAULT_TIMEOUT):
    """The manager ends in any case, also when a signal handler raises; the timeout bounds the wait for its sockets."""
    _run(Call("kvconn_manager_destroy", (_manager(manager),)), _timeout("timeout_ms", timeout_ms))


def disconnect_all(flush_ms=DEFAULT_TIMEOUT, manager=DEFAULT):
    """When a signal handler raises, flushing goes on until flush_ms is over; then everything has ended."""
    _run(Call("kvconn_disconnect_all", (_manager(manager),)), _timeout("flush_ms", flush_ms))


def shutdown(flush_ms=DEFAULT_TIMEOUT):
    """When a signal handler raises, flushing goes on until flush_ms is over, unless the process ends before."""
    released = lambda _: _pins.unpin_all()  # noqa: E731: after OK everything is released
    _run(Call("kvconn_shutdown", read=released), _timeout("flush_ms", flush_ms))


# ---- Connections -----------------------------------------------------------------------------------------------------


def connect(endpoint, options=None, wait_ms=DEFAULT_TIMEOUT, manager=DEFAULT):
    """The connection. A raised Timeout has it in `.conn` while the dial goes on.

    When a signal handler raises, the dial goes on; `kvconn_call.result()` gives the connection.
    """
    manager, wait_ms, name = _manager(manager), _timeout("wait_ms", wait_ms), _text("endpoint", endpoint)
    conn, given = _ffi.conn_t(), _Options(options)
    call = Call("kvconn_connect", (manager, name, given), (byref(conn),), lambda _: conn.value, ends=[given.free])
    # A thread costs more than a connection that is READY.
    return _run(call, 0 if _calls.goes_aside(wait_ms) and _is_ready(manager, name) else wait_ms)


def _current(manager, endpoint):
    """The live connection to an endpoint, or 0."""
    conn = _ffi.conn_t()
    _lib.kvconn_find(manager, endpoint, byref(conn), None)
    return conn.value


def _is_ready(manager, endpoint):
    conn, info = _current(manager, endpoint), _ffi.kvconn_connection_info_t()
    return conn != 0 and _lib.kvconn_connection_info(conn, byref(info), None) == 0 and info.state == _ffi.STATE_READY


def disconnect(conn):
    conn = _uint64("conn", conn)
    _run(Call("kvconn_disconnect", (conn,), conn=conn))


def disconnect_endpoint(endpoint, manager=DEFAULT):
    _run(Call("kvconn_disconnect_endpoint", (_manager(manager), _text("endpoint", endpoint))))


def connection_info(conn):
    """A dict of the fields of kvconn_connection_info_t."""
    conn, info = _uint64("conn", conn), _ffi.kvconn_connection_info_t()
    return _run(Call("kvconn_connection_info", (conn, byref(info)), (), lambda _: _fields(info), conn))


def connections(manager=DEFAULT):
    return _list("kvconn_connections", _ffi.conn_t, _manager(manager))


def find(endpoint, manager=DEFAULT):
    return _get("kvconn_find", _ffi.conn_t, _manager(manager), _text("endpoint", endpoint))


# ---- Messages --------------------------------------------------------------------------------------------------------
#
# A send from the main thread first tries with timeout 0, and on a thread of its own if it must wait. The metrics count
# that try as refused (kvconn_sends_refused_total, TIMEOUT).


def send(conn, frames, timeout_ms=DEFAULT_TIMEOUT):
    """Sends one message, a list of bytes; returns its sequence. A frame that is not contiguous is copied in C order.

    When a signal handler raises, the message may be accepted, or may yet be until timeout_ms is over:
    `kvconn_call.result()` gives the sequence, or raises why it was not accepted.
    """
    conn, timeout_ms, sequence = _uint64("conn", conn), _timeout("timeout_ms", timeout_ms), ctypes.c_uint64()
    call = Call("kvconn_send_packed", (conn, *_packed(frames)), (byref(sequence),), lambda _: sequence.value)
    return _run(call, timeout_ms, True)


def send_to(endpoint, frames, timeout_ms=DEFAULT_TIMEOUT, manager=DEFAULT):
    """Sends one message to the life of the peer that is there, and dials if needed; returns (connection, sequence).

    A signal handler that raises means the same as for `send`.
    """
    manager, timeout_ms, name = _manager(manager), _timeout("timeout_ms", timeout_ms), _text("endpoint", endpoint)
    conn, sequence = _ffi.conn_t(), ctypes.c_uint64()
    places = byref(conn), byref(sequence)
    head = manager, name, *_packed(frames)
    call = Call("kvconn_send_packed_to", head, places, lambda _: (conn.value, sequence.value))
    # Without a connection the try would dial, and the second attempt could get BACKOFF for the end of that dial.
    return _run(call, timeout_ms, _calls.goes_aside(timeout_ms) and _current(manager, name) != 0)


class Sent(NamedTuple):
    """The result of one item of a batch: `status` is 0 when it is accepted or skipped, else `STATUSES` has its
    exception."""

    status: int
    sequence: int


def send_batch(items, timeout_ms=DEFAULT_TIMEOUT):
    """Sends many messages, pairs (connection, list of bytes), under one deadline; connection 0 is skipped.

    Returns ([Sent for each item, in order], None), or the Partial in place of None when at least one was not accepted:
    it is not raised, because the others were. Its message is about the first that failed. A frame that is the same
    object in several items is copied once. A signal handler that raises means the same as for `send`.
    """
    timeout_ms, messages, copied, call = _timeout("timeout_ms", timeout_ms), [], {}, None
    try:
        for place, item in enumerate(_check.iterated("items", items, "pairs")):
            try:
                conn, frames = item
            except (TypeError, ValueError):
                kind = type(item).__name__
                raise TypeError(f"items[{place}] must be a pair (connection, frames), not {kind}") from None
            messages.append((_uint64(f"items[{place}]: conn", conn), _Pinned()))
            messages[-1][1].pin(frames, f"items[{place}]: frames", copied)
        given = (_ffi.kvconn_batch_item_t * len(messages))()
        for slot, (conn, pinned) in zip(given, messages):
            slot.conn, slot.frames, slot.frame_count = conn, pinned.frames, pinned.count
        call = _Batch(given, [pinned.unpin for _, pinned in messages])
        return _run(call, timeout_ms, True)
    except BaseException:
        if call is None or call.has_not_begun:
            for _, pinned in messages:
                pinned.unpin()
        raise


class _Batch(Call):
    """A batch. The attempt that waits is for what the one without waiting has not accepted."""

    __slots__ = "given", "rest"

    def __init__(self, given, ends):
        super().__init__("kvconn_send_batch", (given, len(given)), (), self._result, ends=ends, partial=True)
        self.given, self.rest = given, given

    def _must_wait(self):
        if not any(slot.status in (_calls.TIMEOUT, _calls.STALLED) for slot in self.given):
            return False
        rest = type(self.given).from_buffer_copy(self.given)
        for slot in rest:
            if slot.status == 0:
                slot.conn = 0
        self.rest, self.head = rest, (rest, len(rest))
        return True

    def _result(self, partial):
        sent = [one if one.status == 0 else other for one, other in zip(self.given, self.rest)]
        return [Sent(slot.status, slot.sequence) for slot in sent], partial


def send_owned(conn, frames, timeout_ms=DEFAULT_TIMEOUT):
    """Sends one message without copying it; returns its sequence.

    The frames are contiguous buffers (bytes, bytearray, a NumPy array). They are pinned until kvconn has released them,
    and must not be changed before: `wait_released` waits for that. An error means that they are the caller's again.

    A signal handler that raises means the same as for `send`. The frames stay pinned for as long as kvconn reads them.
    """
    conn, timeout_ms, sequence = _uint64("conn", conn), _timeout("timeout_ms", timeout_ms), ctypes.c_uint64()
    pinned, tail = _Pinned(), (_ffi.release_fn_t(), None, byref(sequence))
    call = Call("kvconn_send_owned", (), tail, lambda _: sequence.value)
    try:
        _pins.add(call, conn, sequence, pinned)
        pinned.pin(frames)
        call.head = conn, pinned.frames, pinned.count
        return _run(call, timeout_ms, True)
    except BaseException:
        if call.has_not_begun:
            call.cancelled = True
            _pins.sweep()
        raise


def wait_released(conn, sequence=0, timeout_ms=DEFAULT_TIMEOUT):
    """Waits until the frames of every message up to this one (0: all so far) can be changed again."""
    conn, sequence = _uint64("conn", conn), _uint64("sequence", sequence)
    _run(Call("kvconn_wait_released", (conn, sequence), conn=conn), _timeout("timeout_ms", timeout_ms), True)


def flush(conn, sequence=0, timeout_ms=DEFAULT_TIMEOUT):
    """Waits until the peer's kernel has acknowledged up to this message (0: all so far); returns the last one it has.
    """
    conn, sequence = _uint64("conn", conn), _uint64("sequence", sequence)
    timeout_ms, acknowledged = _timeout("timeout_ms", timeout_ms), ctypes.c_uint64()
    call = Call("kvconn_flush", (conn, sequence), (byref(acknowledged),), lambda _: acknowledged.value, conn)
    return _run(call, timeout_ms, True)


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


def _report(name, head, again):
    """Makes a call that may give a report; the Failure, or None."""
    report = _ffi.failure_p()
    return _run(_Reporting(name, head, (byref(report),), lambda _: _failure(report), again=again))


class _Reporting(Call):
    """A call that may give a report. The report is freed when the Failure is made."""

    __slots__ = ()

    def _settle(self):
        super()._settle()
        report = self.tail[0]._obj
        pointer, report.value = report.value, None
        _lib.kvconn_failure_free(pointer)


def _failure(report):
    if not report:
        return None
    size = ctypes.sizeof(_ffi.kvconn_failed_endpoint_t)
    endpoints = (_ffi.kvconn_failed_endpoint_t * _lib.kvconn_failure_endpoint_count(report))()
    requests = (ctypes.c_uint64 * _lib.kvconn_failure_request_count(report))()
    count = byref(ctypes.c_size_t())
    _run(Call("kvconn_failure_endpoints", (report, endpoints, size, len(endpoints), count)))
    _run(Call("kvconn_failure_requests", (report, requests, len(requests), count)))
    return Failure(
        _lib.kvconn_failure_node(report),
        _lib.kvconn_failure_name(report).decode(),
        _lib.kvconn_failure_reason(report).decode(),
        _lib.kvconn_failure_time_ms(report),
        [FailedEndpoint(e.endpoint.decode(), e.conn, bool(e.spared), e.accepted, e.acknowledged) for e in endpoints],
        list(requests),
    )


def node_open(name, manager=DEFAULT):
    """(the node, whether this call began its life)"""
    node, created = _ffi.node_t(), ctypes.c_int32()
    head, places = (_manager(manager), _text("name", name)), (byref(node), byref(created))
    return _run(Call("kvconn_node_open", head, places, lambda _: (node.value, bool(created.value))))


def node_find(name, manager=DEFAULT):
    return _get("kvconn_node_find", _ffi.node_t, _manager(manager), _text("name", name))


def node_info(node):
    """A dict of the fields of kvconn_node_info_t."""
    info = _ffi.kvconn_node_info_t()
    return _run(Call("kvconn_node_info", (_uint64("node", node), byref(info)), (), lambda _: _fields(info)))


def _endpoints(endpoints):
    """A list of endpoints as C takes it: array, count."""
    names = _check.texts("endpoints", endpoints)
    return (ctypes.c_char_p * len(names))(*names), len(names)


def node_add_endpoints(node, endpoints, options=None):
    head = _uint64("node", node), *_endpoints(endpoints)
    given = _Options(options)
    _run(Call("kvconn_node_add_endpoints", (*head, given), ends=[given.free]))


def node_remove_endpoints(node, endpoints):
    _run(Call("kvconn_node_remove_endpoints", (_uint64("node", node), *_endpoints(endpoints))))


def node_track_request(node, request):
    _run(Call("kvconn_node_track_request", (_uint64("node", node), _uint64("request", request))))


def node_untrack_request(node, request):
    """Whether it was tracked until now."""
    return bool(_get("kvconn_node_untrack_request", ctypes.c_int32, _uint64("node", node), _uint64("request", request)))


def node_report_health(node, healthy, reason=None):
    """The Failure when this report failed the node, else None."""
    node, healthy = _uint64("node", node), _check.flag("healthy", healthy)
    return _report("kvconn_node_report_health", (node, healthy, _reason(reason)), ("failure of", node))


def handle_failure(node, reason=None):
    """The Failure.

    When a signal handler raises, the node has failed all the same: `kvconn_call.result()` gives the Failure, and so
    does the next handle_failure of this node.
    """
    node = _uint64("node", node)
    return _report("kvconn_handle_failure", (node, _reason(reason)), ("failure of", node))


def _reason(reason):
    return None if reason is None else _text("reason", reason)


def take_failure(manager=DEFAULT):
    """The oldest Failure that was not given out yet, or None."""
    manager = _manager(manager)
    return _report("kvconn_take_failure", (manager,), ("failure in", manager))


# ---- Events and observing --------------------------------------------------------------------------------------------


def event_fd(manager=DEFAULT):
    return _get("kvconn_event_fd", ctypes.c_int, _manager(manager))


def next_event(timeout_ms=0, manager=DEFAULT):
    """A dict of the fields of kvconn_event_t, or None when nothing happened in time."""
    manager, timeout_ms = _manager(manager), _timeout("timeout_ms", timeout_ms)
    if timeout_ms == DEFAULT_TIMEOUT or not _calls.goes_aside(timeout_ms):
        return _event(timeout_ms, manager)
    # Slices, so that no call goes on without its caller and takes an event meanwhile.
    begun = now = time.monotonic()
    while True:
        left = begun + timeout_ms / 1000 - now
        part = min(math.ceil(left * 1000), _calls.SLICE_MS)
        try:
            event = _event(part, manager)
        except STATUSES[_calls.STALE]:
            if now == begun:
                raise
            return None  # destroyed between two slices
        before, now = now, time.monotonic()
        # None before its time: the manager was destroyed meanwhile.
        if event is not None or now >= begun + timeout_ms / 1000 or (now - before) * 1000 < part:
            return event


def _event(timeout_ms, manager):
    event = _ffi.kvconn_event_t()

    def read(_):
        return None if event.kind == _ffi.EVENT_NONE else _fields(event)

    return _run(Call("kvconn_next_event", (manager,), (byref(event),), read, again=("event", manager)), timeout_ms)


def _written(function, manager):
    """The text that a function writes; it may have grown since it told its size."""
    needed = ctypes.c_size_t(16 * 1024)
    while True:
        buffer = ctypes.create_string_buffer(needed.value)
        _run(Call(function, (manager, buffer, len(buffer), byref(needed))))
        if needed.value <= len(buffer):
            return buffer.value.decode()


def describe(manager=DEFAULT):
    return _written("kvconn_describe", _manager(manager))


METRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def metrics_text(manager=DEFAULT):
    """The metrics, to be served as METRICS_CONTENT_TYPE."""
    return _written("kvconn_metrics_text", _manager(manager))


def dump(fd=2):
    fd = _check.int32("fd", fd)
    try:
        own = os.dup(fd)  # the caller may close its own while an interrupted call goes on
    except OSError:
        _run(Call("kvconn_dump", (fd,)))  # raises
        return
    opened = [own]
    _run(Call("kvconn_dump", (own,), ends=[lambda: opened and os.close(opened.pop())]), waits=True)


_logs = []  # pairs: a function that the library may call, kept as long as it may, and the set_log that gave it


def set_log(function, level):
    """Calls function(level, line) for each line of the log; None ends it. When a signal handler raises, the change may
    have happened, or happens while `kvconn_call` is not done.

    Raises Timeout when the function is in place and the one before has not returned within a second; that one is not called
    again."""
    if function is not None and not callable(function):
        raise TypeError(f"function must be callable or None, not {type(function).__name__}")
    new = _ffi.log_fn_t() if function is None else _ffi.log_fn_t(lambda level, line, _: function(level, line.decode()))
    before = [pair for pair in _logs if pair[1].done()]  # these it replaces; one that is not done may come after it
    call = Call("kvconn_set_log", (new, None, _check.int32("level", level)))
    _logs.append((new, call))
    _run(call, waits=True)
    _logs[:] = [pair for pair in _logs if pair not in before]


def _fields(struct):
    """A struct as a dict: texts decoded, without its size."""
    values = {name: getattr(struct, name) for name, _ in struct._fields_[1:]}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def _list(function, kind, owner):
    """An array whose length may grow between asking and copying."""
    count = ctypes.c_size_t(0)
    while True:
        array = (kind * count.value)()
        _run(Call(function, (owner, array, len(array), byref(count))))
        if count.value <= len(array):
            return array[: count.value]
