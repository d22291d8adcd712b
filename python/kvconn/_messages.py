"""Messages: the thin functions of those chapters of the header.

A send first makes an attempt without waiting, which keeps the GIL (see `_attempts`). If it must wait, a second call does
that, on the main thread on a thread of its own. The metrics count the attempt as refused (kvconn_sends_refused_total,
TIMEOUT).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from ctypes import byref
from typing import Any, NamedTuple

from . import _attempts, _calls, _check, _connections, _ffi, types
from ._brief import brief
from ._buffers import Pinned, packed
from ._calls import Call, Error, pins, run
from ._check import text, timeout, uint64
from ._ffi import DEFAULT, DEFAULT_TIMEOUT

_attempt_send, _attempt_send_to, _attempt_send_batch = _attempts.send, _attempts.send_to, _attempts.send_batch
_pinned = pins.accepted  # not empty while any buffer is pinned

_Tried = tuple[list[tuple[int, int]], bytes | None]  # what an attempt of a batch returns


def send(conn: types.Id, frames: types.Frames, timeout_ms: int = DEFAULT_TIMEOUT) -> int:
    """Sends one message on a connection, whole or not at all; returns its sequence: 1, 2, 3 …

    Waits up to timeout_ms for READY and for room. A frame that is not contiguous is copied in C order.
    When a signal handler raises, the message may be accepted, or may yet be until timeout_ms is over:
    `kvconn_call.result()` gives the sequence, or raises why it was not accepted.
    """
    cell: list[Any] = [None]
    try:
        sent = _attempt_send(cell, conn, frames, timeout_ms)
        if _pinned and cell[0] is not None:
            pins.sweep(uint64("conn", conn))
    except BaseException as exception:
        _attempts.interrupted(exception, cell, "kvconn_send")
        raise
    if sent:
        return sent
    if cell[0] is not None:
        raise _attempts.failure(cell)
    return _send(conn, frames, timeout_ms, sent is None)


# Functions of their own: the variables of a lambda cost time in every call, also in those that do not come so far.
def _send(conn: Any, frames: Any, timeout_ms: Any, tries: bool) -> int:
    """A send that must wait, or that could not be attempted: then it tries without waiting first."""
    conn, timeout_ms, sequence = uint64("conn", conn), timeout("timeout_ms", timeout_ms), ctypes.c_uint64()
    call = Call("kvconn_send_packed", (conn, *packed(frames)), (byref(sequence),), lambda _: sequence.value)
    number: int = run(call, timeout_ms, tries)
    return number


def send_to(
    endpoint: str, frames: types.Frames, timeout_ms: int = DEFAULT_TIMEOUT, manager: types.Id = DEFAULT
) -> tuple[int, int]:
    """Sends one message to whichever life of the peer is there, and dials if needed; returns (connection, sequence).

    Raises what a send raises, and Backoff. A signal handler that raises means the same as for send.
    """
    cell: list[Any] = [None]
    try:
        sent: Any = _attempt_send_to(cell, manager, endpoint, frames, timeout_ms)
        if _pinned and cell[0] is not None:
            pins.sweep()
    except BaseException as exception:
        _attempts.interrupted(exception, cell, "kvconn_send_to")
        raise
    if sent:
        accepted: tuple[int, int] = sent
        return accepted
    if cell[0] is not None:
        raise _attempts.failure(cell)
    return _send_to(endpoint, frames, timeout_ms, manager, sent is None)


def _send_to(endpoint: Any, frames: Any, timeout_ms: Any, manager: Any, tries: bool) -> tuple[int, int]:
    manager, timeout_ms, name = _check.manager(manager), timeout("timeout_ms", timeout_ms), text("endpoint", endpoint)
    conn, sequence = _ffi.conn_t(), ctypes.c_uint64()
    places = byref(conn), byref(sequence)
    head = manager, name, *packed(frames)
    call = Call("kvconn_send_packed_to", head, places, lambda _: (conn.value, sequence.value))
    # Without a connection the try would dial, and the second attempt could get BACKOFF for the end of that dial.
    tries = tries and _calls.goes_aside(timeout_ms) and _connections.current(manager, name) != 0
    result: tuple[int, int] = run(call, timeout_ms, tries)
    return result


@brief
class Sent(NamedTuple):
    """The result of one item of a batch: a tuple with names.

    status    0 when it is accepted or skipped, else STATUSES has its exception
    sequence  the message's number on its connection, or 0
    """

    status: int
    sequence: int


def send_batch(
    items: Iterable[tuple[types.Id, types.Frames]], timeout_ms: int = DEFAULT_TIMEOUT
) -> tuple[list[Sent], Error | None]:
    """Sends many messages, pairs (connection, frames), under one deadline; connection 0 is skipped.

    Returns (results, partial): a Sent for each item, in order; and None, or the Partial when at least one was not
    accepted. Partial is not raised, because the others were accepted; its message is about the first that failed.
    A frame that is the same object in several items is copied once. A signal handler that raises means the same as
    for send.
    """
    items = items[:] if type(items) is list else items  # they are read again if some must wait
    cell: list[Any] = [None]
    try:
        tried = _attempt_send_batch(cell, items, timeout_ms)
        if _pinned and cell[0] is not None:
            pins.sweep()
        if tried is None:
            failed = None if cell[0] is None else _attempts.failure(cell)
        elif timeout_ms == 0 or not any(status in (_calls.TIMEOUT, _calls.STALLED) for status, _ in tried[0]):
            return _sent(tried)
        else:
            return _send_batch(items, timeout_ms, tried)
    except BaseException as exception:
        _attempts.interrupted(exception, cell, "kvconn_send_batch", _sent)
        raise
    if failed is not None:
        raise failed
    return _send_batch(items, timeout_ms, None)


def _sent(tried: _Tried) -> tuple[list[Sent], Error | None]:
    """The result of a batch, from what its attempt returned."""
    results, error = tried
    return [Sent._make(one) for one in results], _attempts.partial(error)


def _send_batch(items: Any, timeout_ms: Any, tried: _Tried | None) -> tuple[list[Sent], Error | None]:
    """The rest of a batch; `tried` is what its attempt returned, if there was one."""
    timeout_ms, call = timeout("timeout_ms", timeout_ms), None
    messages: list[tuple[int, Pinned]] = []
    copied: dict[int, tuple[memoryview, memoryview]] = {}
    try:
        for place, item in enumerate(_check.iterated("items", items, "pairs")):
            try:
                conn, frames = item
            except (TypeError, ValueError):
                kind = type(item).__name__
                raise TypeError(f"items[{place}] must be a pair (connection, frames), not {kind}") from None
            messages.append((uint64(f"items[{place}]: conn", conn), Pinned()))
            messages[-1][1].pin(frames, f"items[{place}]: frames", copied)
        given = (_ffi.kvconn_batch_item_t * len(messages))()
        for slot, (conn, pinned) in zip(given, messages):
            slot.conn, slot.frames, slot.frame_count = conn, pinned.frames, pinned.count
        call = _Batch(given, [pinned.unpin for _, pinned in messages])
        if tried is not None and tried[1] is not None:
            for slot, (slot.status, slot.sequence) in zip(given, tried[0]):
                pass
            call.first = _attempts.error_of(tried[1])
            call._must_wait()
        result: tuple[list[Sent], Error | None] = run(call, timeout_ms, tried is None)
        return result
    except BaseException:
        if call is None or call.has_not_begun:
            for _, pinned in messages:
                pinned.unpin()
        raise


class _Batch(Call):
    """A batch. The attempt that waits is for what the one without waiting has not accepted."""

    __slots__ = "given", "rest"

    def __init__(self, given: Any, ends: list[Callable[[], object]]) -> None:
        super().__init__("kvconn_send_batch", (given, len(given)), (), self._result, ends=ends, partial=True)
        self.given, self.rest = given, given

    def _must_wait(self) -> bool:
        if not any(slot.status in (_calls.TIMEOUT, _calls.STALLED) for slot in self.given):
            return False
        rest = type(self.given).from_buffer_copy(self.given)
        for slot in rest:
            if slot.status == 0:
                slot.conn = 0
        self.rest, self.head = rest, (rest, len(rest))
        return True

    def _result(self, partial: Error | None) -> tuple[list[Sent], Error | None]:
        sent = [one if one.status == 0 else other for one, other in zip(self.given, self.rest)]
        return [Sent(slot.status, slot.sequence) for slot in sent], partial


def send_owned(conn: types.Id, frames: types.Frames, timeout_ms: int = DEFAULT_TIMEOUT) -> int:
    """Sends one message without copying it; returns its sequence.

    The frames are contiguous buffers (bytes, bytearray, a NumPy array). They are pinned until kvconn has released
    them, and must not be changed before: wait_released waits for that. Every later call of any function unpins what
    is released. An error means that they are the caller's again. A signal handler that raises means the same as for
    send; the frames stay pinned for as long as kvconn reads them.
    """
    conn, timeout_ms, sequence = uint64("conn", conn), timeout("timeout_ms", timeout_ms), ctypes.c_uint64()
    pinned, tail = Pinned(), (_ffi.release_fn_t(), None, byref(sequence))
    call = Call("kvconn_send_owned", (), tail, lambda _: sequence.value)
    try:
        pins.add(call, conn, sequence, pinned)
        pinned.pin(frames)
        call.head = conn, pinned.frames, pinned.count
        number: int = run(call, timeout_ms, True)
        return number
    except BaseException:
        if call.has_not_begun:
            call.cancelled = True
            pins.sweep()
        raise


def wait_released(conn: types.Id, sequence: int = 0, timeout_ms: int = DEFAULT_TIMEOUT) -> None:
    """Waits until the frames of every send_owned up to this sequence (0: all so far) may be changed; returns None.

    Raises Timeout.
    """
    conn, sequence = uint64("conn", conn), _check.number("sequence", sequence)
    run(Call("kvconn_wait_released", (conn, sequence), conn=conn), timeout("timeout_ms", timeout_ms), True)


def flush(conn: types.Id, sequence: int = 0, timeout_ms: int = DEFAULT_TIMEOUT) -> int:
    """Waits until the peer's kernel has acknowledged up to this sequence (0: all so far); returns the last one it has.

    Raises Timeout, PeerLost, Disconnected, NodeFailed, or Unsupported (ipc).
    """
    conn, sequence = uint64("conn", conn), _check.number("sequence", sequence)
    timeout_ms, acknowledged = timeout("timeout_ms", timeout_ms), ctypes.c_uint64()
    call = Call("kvconn_flush", (conn, sequence), (byref(acknowledged),), lambda _: acknowledged.value, conn=conn)
    last: int = run(call, timeout_ms, True)
    return last
