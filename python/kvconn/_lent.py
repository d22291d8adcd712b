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

    def add(self, conn, sequence, loan):
        with self._lock:
            self._loans.setdefault(conn, deque()).append((sequence, loan))

    def reclaim(self):
        """Gives back what the library says is released. One that it does not know any more lends nothing."""
        with self._lock:
            for conn, loans in list(self._loans.items()):
                released = self._released(conn)
                # Two threads may have noted their messages in another order than they were accepted in.
                left = deque(each for each in loans if released is not None and each[0] > released)
                for sequence, loan in loans:
                    if released is None or sequence <= released:
                        loan.give_back()
                if left:
                    self._loans[conn] = left
                else:
                    del self._loans[conn]
