"""The same exceptions for code that knows only pyzmq: each is also a zmq.ZMQError, with an errno that such code handles.

    from kvconn.zmq import as_zmq_errors

    with as_zmq_errors():
        kvconn.send(conn, frames, timeout_ms=1000)  # raises kvconn.zmq.Timeout: a kvconn.Timeout and a zmq.Again

Such code tells few errors apart. The errno is chosen by what it then does:

    zmq.Again (EAGAIN)  Timeout, Stalled: the peer is slow. It tries again later, or gives the message up.
    EHOSTUNREACH        ConnectFailed, Backoff, PeerLost, NodeFailed: the peer is gone. It must not try again in a loop,
                        so Backoff is no Again. os_errno says why, such as ECONNREFUSED.
    ENOTSOCK            Disconnected, Evicted, Stale: this process has closed it. It makes a new one, or ends.
    ETERM               Shutdown, which is a zmq.ContextTerminated: it ends its thread.
    EMFILE              Limit: a limit is reached, as when zmq_socket finds no free socket.
    EINVAL …            the call is wrong. Trying again cannot help.

This module needs pyzmq; the rest of the package does not.
"""

from __future__ import annotations

import errno as _errno
from types import TracebackType
from typing import Any

import kvconn

try:
    import zmq
except ImportError as missing:
    raise ImportError("kvconn.zmq needs pyzmq (pip install pyzmq); the rest of kvconn does not") from missing

__all__ = [
    "ERRNO",
    "Error",
    "Invalid",
    "Stale",
    "NotFound",
    "Timeout",
    "Stalled",
    "Backoff",
    "ConnectFailed",
    "PeerLost",
    "Disconnected",
    "NodeFailed",
    "Conflict",
    "Limit",
    "Shutdown",
    "Internal",
    "Unsupported",
    "Partial",
    "WouldDeadlock",
    "Evicted",
    "as_zmq_errors",
    "zmq_error",
]


class Error(kvconn.Error, zmq.ZMQError):
    """A kvconn.Error that is a zmq.ZMQError as well: errno, strerror and str() are as pyzmq's."""

    def __init__(self, error: Any) -> None:
        kvconn.Error.__init__(self, error)
        self.errno, self.strerror = ERRNO.get(self.status, _errno.EIO), str(self.args[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class Invalid(kvconn.Invalid, Error):
    """kvconn.Invalid, also a zmq.ZMQError (EINVAL)."""


class Stale(kvconn.Stale, Error):
    """kvconn.Stale, also a zmq.ZMQError (ENOTSOCK)."""


class NotFound(kvconn.NotFound, Error):
    """kvconn.NotFound, also a zmq.ZMQError (ENOENT)."""


class Timeout(kvconn.Timeout, Error, zmq.Again):
    """kvconn.Timeout, also a zmq.Again (EAGAIN)."""


class Stalled(kvconn.Stalled, Error, zmq.Again):
    """kvconn.Stalled, also a zmq.Again (EAGAIN)."""


class Backoff(kvconn.Backoff, Error):
    """kvconn.Backoff, also a zmq.ZMQError (EHOSTUNREACH)."""


class ConnectFailed(kvconn.ConnectFailed, Error):
    """kvconn.ConnectFailed, also a zmq.ZMQError (EHOSTUNREACH)."""


class PeerLost(kvconn.PeerLost, Error):
    """kvconn.PeerLost, also a zmq.ZMQError (EHOSTUNREACH)."""


class Disconnected(kvconn.Disconnected, Error):
    """kvconn.Disconnected, also a zmq.ZMQError (ENOTSOCK)."""


class NodeFailed(kvconn.NodeFailed, Error):
    """kvconn.NodeFailed, also a zmq.ZMQError (EHOSTUNREACH)."""


class Conflict(kvconn.Conflict, Error):
    """kvconn.Conflict, also a zmq.ZMQError (EINVAL)."""


class Limit(kvconn.Limit, Error):
    """kvconn.Limit, also a zmq.ZMQError (EMFILE)."""


class Shutdown(kvconn.Shutdown, Error, zmq.ContextTerminated):
    """kvconn.Shutdown, also a zmq.ContextTerminated (ETERM)."""


class Internal(kvconn.Internal, Error):
    """kvconn.Internal, also a zmq.ZMQError (EIO)."""


class Unsupported(kvconn.Unsupported, Error):
    """kvconn.Unsupported, also a zmq.ZMQError (ENOTSUP)."""


class Partial(kvconn.Partial, Error):
    """kvconn.Partial, also a zmq.ZMQError (EIO)."""


class WouldDeadlock(kvconn.WouldDeadlock, Error):
    """kvconn.WouldDeadlock, also a zmq.ZMQError (EDEADLK)."""


class Evicted(kvconn.Evicted, Error):
    """kvconn.Evicted, also a zmq.ZMQError (ENOTSOCK)."""


#: The errno of each status. zmq.ETERM is a number of ZeroMQ's own.
ERRNO: dict[int, int] = {
    -1: _errno.EINVAL,
    -2: _errno.ENOTSOCK,
    -3: _errno.ENOENT,
    -4: _errno.EAGAIN,
    -5: _errno.EAGAIN,
    -6: _errno.EHOSTUNREACH,
    -7: _errno.EHOSTUNREACH,
    -8: _errno.EHOSTUNREACH,
    -9: _errno.ENOTSOCK,
    -10: _errno.EHOSTUNREACH,
    -11: _errno.EINVAL,
    -12: _errno.EMFILE,
    -13: int(zmq.ETERM),
    -14: _errno.EIO,
    -15: _errno.ENOTSUP,
    -16: _errno.EIO,
    -17: _errno.EDEADLK,
    -18: _errno.ENOTSOCK,
}

# The exceptions above have the names of kvconn's.
_KINDS: dict[int, type[Error]] = {status: globals()[kind.__name__] for status, kind in kvconn.STATUSES.items()}


def zmq_error(error: kvconn.Error) -> Error:
    """The error again, as the exception of this module, with all fields and its traceback."""
    if isinstance(error, Error):
        return error
    kind = _KINDS.get(error.status, Error)
    made = kind.__new__(kind, *error.args)
    vars(made).update(vars(error), errno=ERRNO.get(error.status, _errno.EIO), strerror=str(error.args[0]))
    return made.with_traceback(error.__traceback__)


class as_zmq_errors:
    """`with as_zmq_errors():` every kvconn.Error that leaves the block does so as the exception of this module."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, kvconn.Error) and not isinstance(error, Error):
            raise zmq_error(error) from None
