"""Events, descriptions, metrics and the log: the thin functions of those chapters of the header."""

import ctypes
import math
import os
import time
from ctypes import byref

from . import _attempts, _calls, _check, _ffi
from ._calls import STATUSES, Call, fields, get, run
from ._check import timeout
from ._ffi import DEFAULT, DEFAULT_TIMEOUT


def event_fd(manager=DEFAULT):
    """A descriptor for poll or an event loop: readable while an event waits. Do not read or close it. Raises Limit."""
    return get("kvconn_event_fd", ctypes.c_int, _check.manager(manager))


def next_event(timeout_ms=0, manager=DEFAULT):
    """The oldest event as a dict, or None when none came within timeout_ms (by default it does not wait).

    The dict: kind (EVENT_…), status, os_errno, message, conn, endpoint, node, node_name, count, acknowledged,
    ended_by (ENDED_…), time_ms (since 1970).
    """
    manager, timeout_ms = _check.manager(manager), timeout("timeout_ms", timeout_ms)
    if timeout_ms >= DEFAULT_TIMEOUT and not _calls.is_left_over():
        again = "event", manager
        event = _attempts.run(_attempts.poll_event, "kvconn_next_event", manager, read=_read_event, again=again)
        if event:
            return event
        if event is False and timeout_ms == 0:
            return None
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


def _read_event(left):
    return fields(_ffi.kvconn_event_t.from_buffer(left))


def _event(timeout_ms, manager):
    event = _ffi.kvconn_event_t()

    def read(_):
        return None if event.kind == _ffi.EVENT_NONE else fields(event)

    return run(Call("kvconn_next_event", (manager,), (byref(event),), read, again=("event", manager)), timeout_ms)


def _written(function, manager):
    """The text that a function writes; it may have grown since it told its size."""
    needed = ctypes.c_size_t(16 * 1024)
    while True:
        buffer = ctypes.create_string_buffer(needed.value)
        run(Call(function, (manager, buffer, len(buffer), byref(needed))))
        if needed.value <= len(buffer):
            return buffer.value.decode()


def describe(manager=DEFAULT):
    """A text for people: settings, connections, nodes, fences and the last losses of a manager."""
    return _written("kvconn_describe", _check.manager(manager))


METRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def metrics_text(manager=DEFAULT):
    """The metrics of a manager as OpenMetrics text, to be served as METRICS_CONTENT_TYPE."""
    return _written("kvconn_metrics_text", _check.manager(manager))


def dump(fd=2):
    """Writes the descriptions of all managers to a descriptor; waits for no lock. Raises Timeout if nobody reads."""
    fd = _check.int32("fd", fd)
    try:
        own = os.dup(fd)  # the caller may close its own while an interrupted call goes on
    except OSError:
        run(Call("kvconn_dump", (fd,)))  # raises
        return
    opened = [own]
    run(Call("kvconn_dump", (own,), ends=[lambda: opened and os.close(opened.pop())]), waits=True)


_logs = []  # pairs: a function that the library may call, kept as long as it may, and the set_log that gave it


def set_log(function, level):
    """Calls function(level, line) for each line of the log up to that level (LOG_…); None ends it. Returns None.

    Raises Timeout when the function is in place and the one before has not returned within a second; that one is not
    called again. When a signal handler raises, the change may have happened, or happens while `kvconn_call` is not
    done.
    """
    if function is not None and not callable(function):
        raise TypeError(f"function must be callable or None, not {type(function).__name__}")
    new = _ffi.log_fn_t() if function is None else _ffi.log_fn_t(lambda level, line, _: function(level, line.decode()))
    before = [pair for pair in _logs if pair[1].done()]  # these it replaces; one that is not done may come after it
    call = Call("kvconn_set_log", (new, None, _check.int32("level", level)))
    _logs.append((new, call))
    run(call, waits=True)
    _logs[:] = [pair for pair in _logs if pair not in before]
