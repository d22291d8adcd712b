"""Python's buffers, lent to kvconn_send_owned: each is held, as Python holds it for C, until it is given back.

What is still lent when the interpreter ends is never freed: libzmq may be reading it.
"""

import ctypes
import os
import threading
from collections import deque

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


class Loan:
    """The frames of one message: anything that shows its bytes in one piece, such as bytes, bytearray, a NumPy array."""

    def __init__(self, frames):
        self.buffers = []
        try:
            for frame in frames:
                buffer = _Buffer()
                _get(frame, buffer, _SIMPLE)  # raises TypeError or BufferError
                self.buffers.append(buffer)
        except BaseException:
            self.give_back()
            raise

    def give_back(self):
        while self.buffers:
            _release(self.buffers.pop())


SWEEP = 64  # how many looks at one connection go by until all are looked at


class Lent:
    """What is lent to each connection, oldest first."""

    def __init__(self, released):
        self._released = released  # connection → up to which sequence, None for one that is not known any more
        self._begin()
        # A forked child has lent nothing, and its parent's lock may be held by a thread that it does not have.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self):
        self._lock = threading.Lock()
        self._loans = {}
        self._looks = 0

    def add(self, conn, sequence, loan):
        """Notes a loan. The sequences are in order: two threads may come here in another order than they were accepted in."""
        with self._lock:
            loans = self._loans.setdefault(conn, deque())
            later = []
            while loans and loans[-1][0] > sequence:
                later.append(loans.pop())
            loans.append((sequence, loan))
            loans.extend(reversed(later))

    def reclaim(self, conn):
        """Gives back what the library says is released to this connection; it costs what is given back, not what is lent. Of the
        others now and then."""
        with self._lock:
            self._looks = (self._looks + 1) % SWEEP
            if self._looks == 0:
                self._look_at_all()
            else:
                self._look_at(conn)

    def reclaim_all(self):
        with self._lock:
            self._look_at_all()

    def _look_at_all(self):
        for conn in list(self._loans):
            self._look_at(conn)

    def _look_at(self, conn):
        loans = self._loans.get(conn)
        if loans is None:
            return
        released = self._released(conn)
        # One that the library does not know any more lends nothing.
        while loans and (released is None or loans[0][0] <= released):
            loans.popleft()[1].give_back()
        if not loans:
            del self._loans[conn]
