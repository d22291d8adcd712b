"""The exceptions: one for each status but OK, written out for type checkers and readers.

Each docstring is the library's own text of that status; tests/python/test_errors.py compares them.
"""

from typing import Any, Callable

from . import _ffi
from ._brief import Brief

lib = _ffi.load()


class Error(Exception, metaclass=Brief):
    """A call has failed. Each status is a subclass: KVCONN_PEER_LOST is PeerLost. It pickles and copies with all fields:

    status          the number, such as -8
    name            its C name, such as "KVCONN_PEER_LOST"
    message         one line for people: what happened, and with what
    endpoint        the endpoint that it is about, or ""
    conn            the connection that it is about, or 0
    os_errno        the operating system's errno, else that of the status (docs/status.md)
    scope           how far it reaches: SCOPE_CALL, SCOPE_PEER, SCOPE_NODE or SCOPE_PROCESS
    retriable       whether the same call can succeed later without a change
    retry_after_ms  milliseconds until the endpoint may be dialled again; 0 if unknown, or now
    kvconn_call     only if a signal handler raised it: the Call that it has interrupted
    """

    status: int
    name: str
    message: str
    endpoint: str
    conn: int
    os_errno: int
    scope: int
    retriable: bool
    retry_after_ms: int

    def __init__(self, error: Any) -> None:
        self.status = error.status
        self.name = lib.kvconn_status_name(error.status).decode()
        self.os_errno = error.os_errno
        self.scope = error.scope
        self.retriable = bool(error.retriable)
        self.retry_after_ms = error.retry_after_ms
        self.conn = error.conn
        self.endpoint = error.endpoint.decode()
        self.message = error.message.decode()
        super().__init__(f"{self.name}: {self.message}" + (f" [{self.endpoint}]" if self.endpoint else ""))

    def __reduce__(self) -> tuple[Callable[..., "Error"], tuple[Any, ...]]:
        return _error_again, (type(self), self.args, self.__dict__)


def _error_again(kind: type[Error], arguments: tuple[Any, ...], fields: dict[str, Any]) -> Error:
    """A copy of an error, from its pickled parts."""
    error = kind.__new__(kind, *arguments)
    vars(error).update(fields)
    return error


class Invalid(Error):
    """KVCONN_INVALID (-1): An argument is not valid. Nothing was done."""


class Stale(Error):
    """KVCONN_STALE (-2): The id is 0, was never given out, belongs to a destroyed manager or to the process before a
    fork, or ended too long ago to be remembered.
    """


class NotFound(Error):
    """KVCONN_NOT_FOUND (-3): It does not exist now: no connection to that endpoint, or no live node of that name."""


class Timeout(Error):
    """KVCONN_TIMEOUT (-4): The call's deadline passed. A send returns it at once if an earlier send with the same or a
    longer timeout ran out here and nothing has moved since. A send was not accepted; a dial goes on.
    """


class Stalled(Error):
    """KVCONN_STALLED (-5): The queue to the peer is full and made no progress for at least this call's own timeout, or
    the dial has had no answer for so long. The call did not wait longer.
    """


class Backoff(Error):
    """KVCONN_BACKOFF (-6): Less than one backoff step ago the last dial failed or was given up, or its connection was
    lost within one backoff step of READY. This call did not dial.
    """


class ConnectFailed(Error):
    """KVCONN_CONNECT_FAILED (-7): The dial failed: refused, unreachable, name not resolved, timed out, or the peer is
    not a ZeroMQ PULL socket.
    """


class PeerLost(Error):
    """KVCONN_PEER_LOST (-8): The connection was READY and has ended: the peer closed it, died, or stopped answering."""


class Disconnected(Error):
    """KVCONN_DISCONNECTED (-9): This process ended the connection. If it did so by endpoint, the endpoint is fenced:
    nothing is dialled.
    """


class NodeFailed(Error):
    """KVCONN_NODE_FAILED (-10): This life of the node has ended. The endpoints that it alone owned are fenced."""


class Conflict(Error):
    """KVCONN_CONFLICT (-11): The options differ from those of the live connection, or a setting can no longer be
    changed.
    """


class Limit(Error):
    """KVCONN_LIMIT (-12): A limit is reached. The message names it and its current value. Nothing was created."""


class Shutdown(Error):
    """KVCONN_SHUTDOWN (-13): kvconn_shutdown was called: kvconn has ended in this process for good."""


class Internal(Error):
    """KVCONN_INTERNAL (-14): kvconn or libzmq is in a state that should not exist. The message says where."""


class Unsupported(Error):
    """KVCONN_UNSUPPORTED (-15): Not possible here: on this kind of endpoint, with these options, or on this platform.
    """


class Partial(Error):
    """KVCONN_PARTIAL (-16): Some items of the call failed, or all: messages of a batch, or endpoints of
    kvconn_node_connect. The others succeeded.
    """


class WouldDeadlock(Error):
    """KVCONN_WOULD_DEADLOCK (-17): The call would wait for its own thread: a release function waits for a later
    release.
    """


class Evicted(Error):
    """KVCONN_EVICTED (-18): The connection was idle, with all messages acknowledged, and was closed to free its
    descriptors.
    """


STATUSES: dict[int, type[Error]] = {
    -1: Invalid,
    -2: Stale,
    -3: NotFound,
    -4: Timeout,
    -5: Stalled,
    -6: Backoff,
    -7: ConnectFailed,
    -8: PeerLost,
    -9: Disconnected,
    -10: NodeFailed,
    -11: Conflict,
    -12: Limit,
    -13: Shutdown,
    -14: Internal,
    -15: Unsupported,
    -16: Partial,
    -17: WouldDeadlock,
    -18: Evicted,
}

for _kind in (Error, *STATUSES.values()):
    _kind.__module__ = "kvconn"


def as_error(given: _ffi.kvconn_error_t) -> Error:
    """The exception of an error that C has written. A status that only a newer library has is an Error."""
    return STATUSES.get(given.status, Error)(given)
