"""Events, descriptions, metrics and the log: the thin functions of those chapters of the header."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import os
import time
from ctypes import byref
from typing import Any, Callable

from . import _attempts, _calls, _check, _ffi, types
from ._calls import STATUSES, Call, fields, get, run
from ._check import timeout
from ._ffi import DEFAULT, DEFAULT_TIMEOUT


def event_fd(manager: types.Id = DEFAULT) -> int:
    """A descriptor for poll or an event loop: readable while an event waits. Do not read or close it. Raises Limit."""
    fd: int = get("kvconn_event_fd", ctypes.c_int, _check.manager(manager))
    return fd


def event_name(kind: int) -> str:
    """The name of an event kind as in kvconn.h, such as "KVCONN_EVENT_READY"; "unknown" for another number."""
    return str(_calls.lib.kvconn_event_name(_check.int32("kind", kind)), "ascii")


def next_event(timeout_ms: int = 0, manager: types.Id = DEFAULT) -> types.Event | None:
    """The oldest event as a dict, or None when none came within timeout_ms (by default it does not wait).

    The dict: kind (EVENT_…), status, os_errno, message, conn, endpoint, node, node_name, count, acknowledged,
    ended_by (ENDED_…), time_ms (since 1970).
    """
    manager, timeout_ms = _check.manager(manager), timeout("timeout_ms", timeout_ms)
    if timeout_ms >= DEFAULT_TIMEOUT and not _calls.is_left_over():
        again = "event", manager
        polled = _attempts.run(_attempts.poll_event, "kvconn_next_event", manager, read=_read_event, again=again)
        if polled:
            taken: types.Event = polled
            return taken
        if polled is False and timeout_ms == 0:
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


def _read_event(left: Any) -> Any:
    """The event that an attempt has left."""
    return fields(_ffi.kvconn_event_t.from_buffer(left))


def _event(timeout_ms: int, manager: int) -> types.Event | None:
    """One call of C."""
    event = _ffi.kvconn_event_t()

    def read(_: object) -> types.Event | None:
        made: Any = None if event.kind == _ffi.EVENT_NONE else fields(event)
        taken: types.Event | None = made
        return taken

    call = Call("kvconn_next_event", (manager,), (byref(event),), read, again=("event", manager))
    event_or_none: types.Event | None = run(call, timeout_ms)
    return event_or_none


def _written(function: str, manager: int) -> str:
    """The text that a function writes; it may have grown since it told its size."""
    needed = ctypes.c_size_t(16 * 1024)
    while True:
        buffer = ctypes.create_string_buffer(needed.value)
        run(Call(function, (manager, buffer, len(buffer), byref(needed))))
        if needed.value <= len(buffer):
            return buffer.value.decode()


def describe(manager: types.Id = DEFAULT) -> str:
    """A text for people: settings, connections, nodes, fences and the last losses of a manager."""
    return _written("kvconn_describe", _check.manager(manager))


METRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def metrics_text(manager: types.Id = DEFAULT) -> str:
    """The metrics of a manager as OpenMetrics text, to be served as METRICS_CONTENT_TYPE."""
    return _written("kvconn_metrics_text", _check.manager(manager))


def dump(fd: int = 2) -> None:
    """Writes the descriptions of all managers to a descriptor; waits for no lock. Raises Timeout if nobody reads."""
    fd = _check.int32("fd", fd)
    try:
        own = os.dup(fd)  # the caller may close its own while an interrupted call goes on
    except OSError:
        run(Call("kvconn_dump", (fd,)))  # raises
        return
    opened = [own]

    def close() -> None:
        if opened:
            os.close(opened.pop())

    run(Call("kvconn_dump", (own,), ends=[close]), waits=True)


# Pairs: a function that the library may call, kept for as long as it may, and the set_log that gave it.
_logs: list[tuple[Any, Call]] = []


def _is_main_interpreter() -> bool:
    """Whether this is not a subinterpreter. Both functions belong to the stable ABI; the main one has the number 0."""
    current, number = ctypes.pythonapi.PyInterpreterState_Get, ctypes.pythonapi.PyInterpreterState_GetID
    current.restype, number.restype, number.argtypes = ctypes.c_void_p, ctypes.c_int64, [ctypes.c_void_p]
    return bool(number(current()) == 0)


def _end_log() -> None:
    """Runs at the end of a subinterpreter: its function is gone then, and the library must not call it any more."""
    with contextlib.suppress(_calls.Error):
        set_log(None, _ffi.LOG_OFF)


def set_log(function: Callable[[int, str], object] | None, level: int) -> None:
    """Calls function(level, line) for each line of the log up to that level (LOG_…); None ends it. Returns None.

    Raises Timeout when the function is in place and the one before has not returned within a second; that one is not
    called again. When a signal handler raises, the change may have happened, or happens while `kvconn_call` is not
    done. The log belongs to the process. A subinterpreter that has set a function ends the log when it ends.
    """
    if function is not None and not callable(function):
        raise TypeError(f"function must be callable or None, not {type(function).__name__}")
    new = _ffi.log_fn_t() if function is None else _ffi.log_fn_t(lambda level, line, _: function(level, line.decode()))
    before = [pair for pair in _logs if pair[1].done()]  # these it replaces; one that is not done may come after it
    call = Call("kvconn_set_log", (new, None, _check.int32("level", level)))
    if function is not None and not _is_main_interpreter():
        atexit.unregister(_end_log)
        atexit.register(_end_log)
    _logs.append((new, call))
    run(call, waits=True)
    _logs[:] = [pair for pair in _logs if pair not in before]
