"""Attempts: calls with timeout 0 that keep the GIL. Most sends need no more than one.

A call that gives up the GIL waits up to 5 ms for it afterwards if another thread is busy. Therefore a send or a poll
first makes an attempt, which cannot wait and takes a few microseconds. The call that waits comes after it, if it is
needed, and gives up the GIL.

Each attempt exists twice: in the C extension `_fast`, and here, through ctypes, for where no compiler has built it.
KVCONN_PYTHON_FAST=0 in the environment leaves the extension out. `PATH` says which of them is in use.

An attempt takes a "cell" first, a list of one None, and its arguments unchecked. It returns
    what the call returned
    False   if the call must wait
    None    if nothing was attempted, because of an unusual or wrong argument or of the size of the message, or if the
            call has failed. In the second case the cell has the reason.
What C wrote decides: the cell has the result before any signal handler can run. `interrupted` reads it there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any

from . import _check, _ffi
from ._calls import TIMEOUT, UNFINISHED, Call, Error, as_error, lib, note, pins

if TYPE_CHECKING:
    from types import ModuleType

LEVEL = 2  # of `_fast`: what its functions take and return

# ---- What an attempt has done ----------------------------------------------------------------------------------------


def failure(cell: list[Any]) -> Error:
    """The exception for an attempt that has failed."""
    return as_error(_error_in(cell))


def _error_in(cell: list[Any]) -> _ffi.kvconn_error_t:
    left = cell[0]
    if type(left) is _Slot:
        left = bytes(left.error)
    return error_of(left)


def error_of(left: bytes) -> _ffi.kvconn_error_t:
    """The error that an attempt has left."""
    return _ffi.kvconn_error_t.from_buffer_copy(left)


def partial(left: bytes | None) -> Error | None:
    """The error beside the results of a batch, if there is one."""
    return None if left is None else as_error(error_of(left))


def interrupted(
    exception: BaseException,
    cell: list[Any],
    name: str,
    read: Callable[[Any], Any] | None = None,
    again: object = None,
) -> None:
    """A signal handler has raised `exception`: gives it the call as its attribute, if the attempt has done anything."""
    left = cell[0]
    if left is None or "kvconn_call" in exception.__dict__:
        return
    call = Call(name, again=again)
    if type(left) is bytes:
        call.error = _error_in(cell)
    elif type(left) is not _Slot:
        call.error.status = 0
        call.value = left if read is None else read(left)
    elif left.error.status == UNFINISHED:
        return
    else:
        call.error = _error_in(cell)
        if call.error.status == 0:
            value = left.read(left)
            call.value = value if read is None or value is None else read(value)
    call.last = call.settled = True
    exception.__dict__["kvconn_call"] = call
    if again is not None and call.value is not None:
        note(call)


def run(
    attempt: Callable[..., Any],
    name: str,
    *arguments: object,
    read: Callable[[Any], Any] | None = None,
    again: object = None,
) -> Any:
    """Makes an attempt whose failures are final. Returns what the call returned, as `read` reads it; False or None."""
    cell: list[Any] = [None]
    failed = None
    try:
        result = attempt(cell, *arguments)
        if result is None:
            if cell[0] is not None:
                failed = failure(cell)
        elif result is not False and read is not None:
            result = read(result)
        if pins:
            pins.sweep()
    except BaseException as exception:
        interrupted(exception, cell, name, read, again)
        raise
    # Python handles no signal from here on.
    if failed is None:
        return result
    try:
        raise failed
    finally:
        del failed  # the exception would be part of a cycle


# ---- Through ctypes --------------------------------------------------------------------------------------------------

_MOST = 64 * 1024  # bytes of a message
_UINT64, _INT64 = _check.UINT64, _check.INT64
# For each number of frames: what makes an array of so many uint32_t, as bytes; and the number as an argument.
_counts = {count: (Struct(f"{count}I").pack, ctypes.c_size_t(count)) for count in range(1, 129)}
_join = b"".join
_no_wait = ctypes.c_int64(0)


class _Slot:
    """Memory for the results of one attempt. It stays alive and unchanged while its attempt's caller needs it: a signal
    handler that calls the package takes another one."""

    __slots__ = "error", "sequence", "conn", "flag", "event", "id", "number", "outs", "read"

    def __init__(self) -> None:
        self.error, self.event = _ffi.kvconn_error_t(), _ffi.kvconn_event_t()
        self.sequence, self.conn, self.flag = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int32()
        self.id, self.number = ctypes.c_uint64(), ctypes.c_uint64()  # arguments
        outs = self.sequence, self.conn, self.flag, self.event, self.error
        self.outs = tuple(map(ctypes.byref, outs))
        self.read: Callable[[_Slot], Any] = _sequence


def _sequence(slot: _Slot) -> int:
    return slot.sequence.value


def _conn_and_sequence(slot: _Slot) -> tuple[int, int]:
    return slot.conn.value, slot.sequence.value


def _nothing(_: _Slot) -> bool:
    return True


def _was_tracked(slot: _Slot) -> int:
    return slot.flag.value


def _event(slot: _Slot) -> bytearray | None:
    return None if slot.event.kind == _ffi.EVENT_NONE else bytearray(slot.event)


_spare = [_Slot()]


def _a_slot() -> _Slot:
    try:
        return _spare.pop()
    except IndexError:
        return _Slot()


def _keeping_the_gil(name: str) -> Callable[..., int]:
    """A function of the library that ctypes calls without giving up the GIL. ctypes checks and converts nothing: every
    argument must be bytes, None, or an object of exactly the C type."""
    address = ctypes.cast(getattr(lib, name), ctypes.c_void_p).value
    assert address is not None
    return ctypes.PYFUNCTYPE(_ffi.FUNCTIONS[name][0])(address)


_send_packed = _keeping_the_gil("kvconn_send_packed")
_send_packed_to = _keeping_the_gil("kvconn_send_packed_to")
_find = _keeping_the_gil("kvconn_find")
_track_request = _keeping_the_gil("kvconn_node_track_request")
_untrack_request = _keeping_the_gil("kvconn_node_untrack_request")
_next_event = _keeping_the_gil("kvconn_next_event")


def _is_uint64(value: object) -> bool:
    return type(value) is int and 0 <= value <= _UINT64


def _packed(frames: Any) -> tuple[bytes, bytes, ctypes.c_size_t] | None:
    """Frames that are all bytes, and not too many or too large: joined, sizes, count."""
    kind = type(frames)
    if kind is list:
        frames = tuple(frames)  # another thread may change the list between two of the next lines
    elif kind is not tuple:
        return None
    if len(frames) not in _counts:
        return None
    lengths = []
    for frame in frames:
        if type(frame) is not bytes:
            return None
        lengths.append(len(frame))
    data = _join(frames)
    if len(data) > _MOST:
        return None
    pack, count = _counts[len(lengths)]
    return data, pack(*lengths), count


def _send(cell: list[Any], conn: Any, frames: Any, timeout_ms: Any) -> Any:
    if type(conn) is not int or not 0 <= conn <= _UINT64 or type(timeout_ms) is not int:
        return None
    packed = _packed(frames)
    if packed is None or not -1 <= timeout_ms <= _INT64:
        return None
    data, sizes, count = packed
    slot = _a_slot()
    sequence, _, _, _, error = slot.outs
    slot.error.status, slot.id.value, slot.read = UNFINISHED, conn, _sequence
    cell[0] = slot
    status = _send_packed(slot.id, data, sizes, count, _no_wait, sequence, error)
    if status == 0:
        cell[0] = sent = slot.sequence.value
        _spare.append(slot)
        return sent
    if status == TIMEOUT and timeout_ms:
        cell[0] = None
        _spare.append(slot)
        return False
    return None


def _send_to(cell: list[Any], manager: Any, endpoint: Any, frames: Any, timeout_ms: Any) -> Any:
    if not _is_uint64(manager) or type(endpoint) is not str or type(timeout_ms) is not int:
        return None
    packed = _packed(frames)
    if packed is None or not -1 <= timeout_ms <= _INT64 or "\0" in endpoint:
        return None
    try:
        name = endpoint.encode()
    except UnicodeEncodeError:
        return None
    data, sizes, count = packed
    slot = _a_slot()
    sequence, conn, _, _, error = slot.outs
    slot.id.value = manager
    # Without a connection the attempt would dial, and the call after it could get BACKOFF for the end of that dial.
    if _find(slot.id, name, conn, None) != 0:
        _spare.append(slot)
        return None
    slot.error.status, slot.read = UNFINISHED, _conn_and_sequence
    cell[0] = slot
    status = _send_packed_to(slot.id, name, data, sizes, count, _no_wait, conn, sequence, error)
    if status == 0:
        cell[0] = sent = slot.conn.value, slot.sequence.value
        _spare.append(slot)
        return sent
    if status == TIMEOUT and timeout_ms:
        cell[0] = None
        _spare.append(slot)
        return False
    return None


def _send_batch(cell: list[Any], items: Any, timeout_ms: Any) -> Any:
    return None  # through ctypes, the arrays of structs cost more than giving up the GIL


def _request_slot(cell: list[Any], node: Any, request: Any, read: Callable[[_Slot], Any]) -> _Slot | None:
    if not _is_uint64(node) or not _is_uint64(request):
        return None
    slot = _a_slot()
    slot.id.value, slot.number.value = node, request
    slot.error.status, slot.read = UNFINISHED, read
    cell[0] = slot
    return slot


def _track(cell: list[Any], node: Any, request: Any) -> Any:
    slot = _request_slot(cell, node, request, _nothing)
    if slot is None or _track_request(slot.id, slot.number, slot.outs[4]) != 0:
        return None
    cell[0] = True
    _spare.append(slot)
    return True


def _untrack(cell: list[Any], node: Any, request: Any) -> Any:
    slot = _request_slot(cell, node, request, _was_tracked)
    if slot is None or _untrack_request(slot.id, slot.number, slot.outs[2], slot.outs[4]) != 0:
        return None
    cell[0] = tracked = _was_tracked(slot)
    _spare.append(slot)
    return tracked


def _poll_event(cell: list[Any], manager: Any) -> Any:
    if not _is_uint64(manager):
        return None
    slot = _a_slot()
    slot.id.value = manager
    slot.error.status, slot.read = UNFINISHED, _event
    cell[0] = slot
    if _next_event(slot.id, _no_wait, slot.outs[3], slot.outs[4]) != 0:
        return None
    cell[0] = event = _event(slot)
    _spare.append(slot)
    return False if event is None else event


# ---- Which of them ---------------------------------------------------------------------------------------------------


def _extension() -> ModuleType | None:
    """The extension, bound to the library; None where it was not built, or for another version of this file."""
    if os.environ.get("KVCONN_PYTHON_FAST") == "0":
        return None
    try:
        from . import _fast  # pyright: ignore[reportMissingModuleSource]  # where it was not built
    except ImportError:
        return None
    if _fast.LEVEL != LEVEL:
        return None
    needed = ["kvconn_send", "kvconn_send_to", "kvconn_send_batch", "kvconn_find"]
    needed += ["kvconn_node_track_request", "kvconn_node_untrack_request", "kvconn_next_event"]
    functions = {name: getattr(lib, name) for name in needed}
    for name in ("PyObject_GetBuffer", "PyBuffer_Release"):
        functions[name] = getattr(ctypes.pythonapi, name)
    _fast.bind({name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in functions.items()})
    return _fast


_fast = _extension()
PATH = "ctypes" if _fast is None else "extension"
send: Callable[..., int | None] = _send if _fast is None else _fast.send
send_to: Callable[..., Any] = _send_to if _fast is None else _fast.send_to
send_batch: Callable[..., Any] = _send_batch if _fast is None else _fast.send_batch
track: Callable[..., Any] = _track if _fast is None else _fast.track
untrack: Callable[..., Any] = _untrack if _fast is None else _fast.untrack
poll_event: Callable[..., Any] = _poll_event if _fast is None else _fast.next_event
