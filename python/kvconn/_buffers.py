"""The frames of messages: what Python shows as bytes, for C to copy or to read in place.

kvconn_send_owned reads a buffer in place until kvconn has released it. Until then the buffer is *pinned*: Python keeps
the object and its size. `Pins` unpins it, and what C wrote decides when. What is still pinned when the interpreter ends
is never freed: libzmq may be reading it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from . import _check, _ffi

if TYPE_CHECKING:
    from ._calls import Call

_ssize_t = ctypes.c_ssize_t


class _Buffer(ctypes.Structure):
    """Py_buffer of the stable ABI. It owns a reference to the object whose bytes it shows."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", _ssize_t),
        ("itemsize", _ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_get.restype = ctypes.c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.POINTER(_Buffer)]
_release.restype = None

_SIMPLE = 0  # PyBUF_SIMPLE: contiguous bytes, read-only ones as well
_MOST = 2**32 - 1  # the largest frame of a packed message

# ---- Frames ----------------------------------------------------------------------------------------------------------


def _listed(frames: Any, where: str) -> Iterable[Any]:
    """The frames, unless they are a single buffer: its items would each become a frame."""
    if isinstance(frames, (list, tuple)):
        return frames
    one = isinstance(frames, str)
    if not one:
        try:
            memoryview(frames)
            one = True
        except (TypeError, ValueError, BufferError):
            pass
    if one:
        kind = type(frames).__name__
        raise TypeError(f"{where} must be a list of bytes, not {kind}: write [frame] for a single one")
    return _check.iterated(where, frames, "bytes")


def _view(frame: Any, name: str) -> memoryview:
    """A memoryview of a frame. A bytearray that is viewed keeps its size."""
    try:
        return memoryview(frame)
    except TypeError:
        raise TypeError(f"{name} must be bytes or another buffer, not {type(frame).__name__}") from None
    except (ValueError, BufferError) as error:
        raise TypeError(f"{name} cannot be read as bytes: {error}") from None


def packed(frames: Any) -> tuple[bytes, ctypes.Array[ctypes.c_uint32], int]:
    """The frames as kvconn_send_packed takes them: buffer, sizes, count. A frame that is not contiguous is copied in C
    order."""
    parts: list[bytes | memoryview] = []
    sizes = array("I")
    for place, frame in enumerate(_listed(frames, "frames")):
        if type(frame) is not bytes:
            view = _view(frame, f"frames[{place}]")
            frame = view if view.c_contiguous else view.tobytes()
        size: int = frame.nbytes if type(frame) is memoryview else len(frame)
        if size > _MOST:
            raise ValueError(f"frames[{place}] has {size} bytes; at most {_MOST} can be copied: use send_owned")
        parts.append(frame)
        sizes.append(size)
    return b"".join(parts), (ctypes.c_uint32 * len(sizes)).from_buffer(sizes), len(sizes)


class Pinned:
    """The frames of one message, and the array of them as C takes it. They are pinned from `pin` to `unpin`."""

    def __init__(self) -> None:
        self.buffers: Any = ()
        self.frames: ctypes.Array[_ffi.kvconn_frame_t] | None = None
        self.count = 0

    def pin(
        self,
        frames: Any,
        where: str = "frames",
        copied: dict[int, tuple[memoryview, memoryview]] | None = None,
    ) -> None:
        """`copied` has the copies of frames that are not contiguous; None refuses those."""
        views = []
        for place, frame in enumerate(_listed(frames, where)):
            view = _view(frame, f"{where}[{place}]")
            if not view.c_contiguous:
                if copied is None:
                    why = "is not contiguous, and send_owned copies nothing"
                    raise TypeError(f"{where}[{place}] {why}: pass bytes(frame), or use send")
                if id(frame) not in copied:
                    copied[id(frame)] = view, memoryview(view.tobytes())
                view = copied[id(frame)][1]
            views.append(view)
        self.count = len(views)
        self.buffers = (_Buffer * self.count)()
        for view, buffer in zip(views, self.buffers):
            _get(view, buffer, _SIMPLE)
        pairs: Any = [(buffer.buf, buffer.len) for buffer in self.buffers]
        self.frames = (_ffi.kvconn_frame_t * self.count)(*pairs)

    def unpin(self) -> None:
        """Gives the buffers back to Python. A second call does nothing."""
        for buffer in self.buffers:
            _release(buffer)


# ---- Buffers that kvconn reads in place ------------------------------------------------------------------------------

INTERNAL = -14  # the status of a send_owned that libzmq has refused without freeing the buffers
TURN = 64  # how many connections one sweep looks at
SHARE = 20  # sweeps of other connections may take one part in so many of the time


class _Owned:
    """A message of kvconn_send_owned: its call, which C writes to, and its buffers."""

    __slots__ = "call", "conn", "sequence", "pinned"

    def __init__(self, call: Call, conn: int, sequence: ctypes.c_uint64, pinned: Pinned) -> None:
        self.call, self.conn, self.sequence, self.pinned = call, conn, sequence, pinned


class Pins:
    """Every message whose buffers are pinned.

    A message is added before its call, so no exception can come between acceptance and the note of it. A signal handler
    may interrupt any line here, and may call any function of the package: each step can be done twice.
    """

    def __init__(self, released: Callable[[int, int], bool]) -> None:
        self._released = released  # (connection, sequence): whether the buffers up to that message are released
        self.in_flight: dict[int, _Owned] = {}  # messages whose call is not known to be over
        # Connection: heap of (sequence, message). It is not empty while any buffer is pinned, also of a call that is not
        # over: every send looks only at this dict, without a call. So it is the same dict for ever.
        self.accepted: dict[int, list[tuple[int, int, _Owned]]] = {}
        self._begin()
        os.register_at_fork(after_in_child=self._in_child)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # the thread's own signal handlers may come in
        self.in_flight.clear()
        self.accepted.clear()
        self._turn: list[int] = []  # connections that the present round has not looked at
        self._due = 0.0

    def __bool__(self) -> bool:
        return bool(self.in_flight or self.accepted)

    def add(self, call: Call, conn: int, sequence: ctypes.c_uint64, pinned: Pinned) -> None:
        """To be called before the call begins."""
        message = _Owned(call, conn, sequence, pinned)
        key = id(message)
        # No call in these lines: neither a handler nor another thread comes between them.
        self.in_flight[key] = message
        if conn not in self.accepted:
            self.accepted[conn] = []

    def sweep(self, conn: Any = None) -> None:
        """Unpins what is released on this connection, if one is named, and on others in turn, as often as SHARE allows.
        """
        with self._lock:
            for message in list(self.in_flight.values()):
                self._sort(message)
            if conn is not None:
                self._look_at(conn)
            begun = time.monotonic()
            if begun >= self._due:
                self._look_at_some()
                now = time.monotonic()
                self._due = now + SHARE * (now - begun)

    def unpin_all(self) -> None:
        """For the moment when kvconn has released everything. What is in flight stays."""
        with self._lock:
            for message in list(self.in_flight.values()):
                self._sort(message)
            for conn in list(self.accepted):
                for *_, message in self.accepted.pop(conn, ()):
                    message.pinned.unpin()
            for message in list(self.in_flight.values()):
                self.accepted.setdefault(message.conn, [])

    def _sort(self, message: _Owned) -> None:
        """What C wrote decides: accepted, refused, or not over."""
        call = message.call
        if call.error.status == 0:
            heap = self.accepted.setdefault(message.conn, [])
            heappush(heap, (message.sequence.value, id(message), message))
        elif call.last and call.error.status == INTERNAL:
            pass  # libzmq still reads the refused message's buffers: they stay pinned for ever
        elif call.cancelled or call.last and call.error.status < 0:
            message.pinned.unpin()
        else:
            return
        self.in_flight.pop(id(message), None)

    def _look_at_some(self) -> None:
        if not self._turn:
            self._turn = list(self.accepted)
        for _ in range(min(TURN, len(self._turn))):
            if self._turn:
                self._look_at(self._turn.pop())

    def _look_at(self, conn: int) -> None:
        heap = self.accepted.get(conn)
        while heap:
            first = heap[0]
            if not self._released(conn, first[0]):
                return
            first[-1].pinned.unpin()
            # A handler may have come in between, so the question again. Python handles no signal between it and the
            # removal.
            if heap and heap[0] is first:
                heappop(heap)
        if heap is not None and self.accepted.get(conn) is heap and not heap and not self.in_flight:
            del self.accepted[conn]

    def _in_child(self) -> None:
        """A forked child has no connection, so nothing reads its memory. Its parent's lock may be held by a thread that
        it does not have."""
        messages = [*self.in_flight.values(), *(entry[-1] for heap in self.accepted.values() for entry in heap)]
        self._begin()
        for message in messages:
            message.pinned.unpin()
