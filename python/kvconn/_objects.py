"""Objects over the functions: each holds an id and forwards to the function of that name."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _connections, _ffi, _messages, _nodes, _observe
from ._brief import Brief
from ._check import milliseconds, uint64
from ._errors import Error, Timeout, Unsupported
from ._ffi import DEFAULT
from ._nodes import Connected, Failure
from ._waiting import Events, Failures

if TYPE_CHECKING:
    from .types import ConnectionInfo, Frames, NodeInfo, Options

_POLL_SECONDS = 0.002


class Handle(metaclass=Brief):
    """What Connection, Node and Manager are: an object that stands for an id, as the functions take it.

    It owns nothing: when it is garbage, what the id names goes on. It is equal, hashed and pickled by the id.
    """

    __slots__ = "__weakref__", "_id"

    _stands_for_id = True  # _check refuses it as a timeout, a request or another number

    def __init__(self, id: Any) -> None:
        self._id = uint64("id", id)

    @property
    def id(self) -> int:
        """The id, a number."""
        return self._id

    def __index__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        return self._id == other._id if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"kvconn.{type(self).__name__}({self._id})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self._id)


def _again(kind: type[Handle], id: int) -> Handle:
    """A pickled object again: the same id, which names nothing in another process."""
    made = kind.__new__(kind)
    made._id = id
    return made


class Connection(Handle):
    """A connection, by its id. Manager.connect and Endpoint.connect make one.

    Each endpoint has one live connection: all that connect to it share it. `with` closes it at the end of the block:
    after a flush; at once when an exception leaves the block. `async with` does the same on a thread, and does not hold
    up the event loop. Garbage collection closes nothing.
    Equal, hashed and pickled by the id; in another process the id is Stale.
    """

    __slots__ = ()

    def send_multipart(self, frames: Frames, timeout: float | None = None) -> int:
        """Sends one message, whole or not at all; returns its sequence. kvconn.send says what it raises."""
        sequence: int = _messages.send(self._id, frames, -1 if timeout is None else milliseconds("timeout", timeout))
        return sequence

    def send_owned(self, frames: Frames, timeout: float | None = None) -> int:
        """Sends one message without copying it; returns its sequence. kvconn.send_owned says what it asks for."""
        sequence: int = _messages.send_owned(self._id, frames, milliseconds("timeout", timeout))
        return sequence

    def wait_released(self, sequence: int = 0, timeout: float | None = None) -> None:
        """Waits until the frames of every send_owned up to this sequence (0: all so far) may be changed."""
        _messages.wait_released(self._id, sequence, milliseconds("timeout", timeout))

    def flush(self, sequence: int = 0, timeout: float | None = None) -> int:
        """Waits until the peer's kernel has acknowledged up to this sequence (0: all so far); returns the last one."""
        acknowledged: int = _messages.flush(self._id, sequence, milliseconds("timeout", timeout))
        return acknowledged

    def info(self) -> ConnectionInfo:
        """State, counts and end: connection_info of this connection."""
        return _connections.connection_info(self._id)

    @property
    def endpoint(self) -> str:
        """The endpoint, in its canonical form."""
        return self.info()["endpoint"]

    def disconnect(self) -> None:
        """Ends the connection, now. What is not sent is dropped. Nothing is fenced."""
        _connections.disconnect(self._id)

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then disconnects, in any case. Raises what flush raises.

        Where the kernel gives no acknowledgement (ipc), it waits until everything is written to the kernel instead,
        for one second by default.
        """
        try:
            if self.info()["status"] == 0:
                self._flush(milliseconds("timeout", timeout))
        finally:
            self.disconnect()

    def _flush(self, timeout_ms: int) -> None:
        """Waits until everything is acknowledged, or written where that is unknown."""
        begun = time.monotonic()
        try:
            _messages.flush(self._id, 0, timeout_ms)
            return
        except Unsupported:
            pass
        seconds = 1.0 if timeout_ms < 0 else timeout_ms / 1000
        while (info := self.info())["status"] == 0 and info["queued_bytes"]:
            if time.monotonic() - begun >= seconds:
                raise _not_written(info)
            time.sleep(_POLL_SECONDS)

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        await _end(self.__exit__, kind, error, traceback)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.disconnect()


async def _end(exit: Callable[..., None], *given: Any) -> None:
    """Ends `with` on a thread, because it may wait. If the task is cancelled meanwhile, the thread goes on to the end."""
    import asyncio  # here, because a program without it need not load it

    await asyncio.to_thread(exit, *given)


def _not_written(info: ConnectionInfo) -> Timeout:
    """The Timeout of a close that has waited in vain."""
    given = _ffi.kvconn_error_t()
    given.status, given.scope, given.retriable, given.conn = -4, _ffi.SCOPE_PEER, 1, info["conn"]
    given.os_errno = errno.ETIMEDOUT
    given.endpoint = info["endpoint"].encode()
    given.message = b"%d bytes were not written in time" % info["queued_bytes"]
    return Timeout(given)


class Endpoint(metaclass=Brief):
    """Where a peer rank listens, in a manager, with the options to dial it with. Manager.endpoint makes one.

    It holds two texts and a dict, and dials nothing by itself. Equal and hashed by its text and manager. Two spellings
    of one address are different objects for the same connection: Connection.endpoint has the canonical form.
    """

    __slots__ = "__weakref__", "manager", "options", "text"

    text: str
    manager: Manager
    options: Options | None

    def __init__(
        self, text: str, options: Options | None = None, manager: Manager | None = None
    ) -> None:
        self.text, self.options = text, options
        self.manager = Manager.default() if manager is None else manager

    def connect(self, timeout: float | None = None) -> Connection:
        """The live connection; dials if there is none, and waits until it is READY. Lifts the fence of a disconnect."""
        return self.manager.connect(self.text, self.options, timeout)

    def send_multipart(self, frames: Frames, timeout: float | None = None) -> tuple[Connection, int]:
        """Sends one message to whichever life of the peer is there, and dials if needed: kvconn.send_to.

        Returns the connection and the sequence. It dials with the options that the endpoint was last connected or
        registered with.
        """
        return self.manager.send_to(self.text, frames, timeout)

    def find(self) -> Connection:
        """The live connection. Never dials. Raises NotFound."""
        return self.manager.find(self.text)

    def disconnect(self) -> None:
        """Ends the connection, now, and fences the endpoint."""
        self.manager.disconnect_endpoint(self.text)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, int]:
        """What makes two of them equal."""
        return self.text, self.manager.id

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"kvconn.Endpoint({self.text!r}, manager={self.manager!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.options, self.manager)


class Node(Handle):
    """One life of a peer instance, by its id. Manager.open_node makes one.

    Only `fail` (or max_failures bad health reports, or the loss of a rank) ends it: it is no context manager, and
    garbage collection fails nothing. Equal, hashed and pickled by the id; in another process the id is Stale.
    """

    __slots__ = ("_created",)

    _created: bool

    @property
    def created(self) -> bool:
        """Whether this object's open_node began the life. False if the node already lived."""
        return getattr(self, "_created", False)

    @property
    def name(self) -> str:
        """The name that it was opened with."""
        return self.info()["name"]

    def info(self) -> NodeInfo:
        """State and counts: node_info of this node."""
        return _nodes.node_info(self._id)

    def add_endpoints(self, endpoints: Iterable[str], options: Options | None = None) -> None:
        """Registers endpoints, all or none, and lifts their fences; dials nothing."""
        _nodes.node_add_endpoints(self._id, endpoints, options)

    def set_endpoints(self, endpoints: Iterable[str], options: Options | None = None) -> None:
        """Makes these its endpoints, in one step: registers new ones, takes the others away: node_set_endpoints."""
        _nodes.node_set_endpoints(self._id, endpoints, options)

    def connect(
        self, endpoints: Iterable[str], options: Options | None = None, timeout: float | None = None
    ) -> tuple[list[Connected], Error | None]:
        """Registers endpoints, all or none, and dials all of them at the same time, under one deadline.

        Returns a Connected for each, in order, and None, or the Partial when at least one failed: kvconn.node_connect.
        """
        return _nodes.node_connect(self._id, endpoints, options, milliseconds("timeout", timeout))

    def remove_endpoints(self, endpoints: Iterable[str]) -> None:
        """Takes endpoints away, ends their connections and fences them."""
        _nodes.node_remove_endpoints(self._id, endpoints)

    def track(self, request: int) -> None:
        """Notes that a request, an integer of yours, is in flight."""
        _nodes.node_track_request(self._id, request)

    def untrack(self, request: int) -> bool:
        """Notes that a request is done; returns whether it was tracked until now."""
        return _nodes.node_untrack_request(self._id, request)

    def report_health(self, healthy: bool, reason: str | None = None) -> Failure | None:
        """Reports the result of a health probe; returns the Failure when this report failed the node, else None."""
        return _nodes.node_report_health(self._id, healthy, reason)

    def fail(self, reason: str | None = None) -> Failure:
        """Ends this life: its endpoints and requests go in one step. Returns the Failure: kvconn.handle_failure."""
        return _nodes.handle_failure(self._id, reason)


class Manager(Handle):
    """An independent set of endpoints, nodes, fences, events and settings. Manager(options) makes a new one.

    Manager.default() is the process's own, which always exists. `with` ends everything at the end of the block: after a
    flush, which may wait; at once when an exception leaves the block. In a coroutine write `async with`, which does the
    same on a thread and does not hold up the event loop. The default manager cannot be destroyed: `with` only
    disconnects it. Garbage collection ends nothing. Equal, hashed and pickled by the id; in another process the id is
    Stale, except that of the default manager.
    """

    __slots__ = ()

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(_connections.manager_create(options))

    @classmethod
    def default(cls) -> Manager:
        """The process's own manager."""
        return cls.of(DEFAULT)

    @classmethod
    def of(cls, id: int) -> Manager:
        """The manager of that id."""
        made = cls.__new__(cls)
        made._id = uint64("id", id)
        return made

    def configure(self, options: Options) -> None:
        """Sets options. Those of connections are for later dials only."""
        _connections.configure(options, self._id)

    def connect(self, endpoint: str, options: Options | None = None, timeout: float | None = None) -> Connection:
        """The live connection to an endpoint; dials if there is none, and waits until it is READY: kvconn.connect."""
        return Connection(_connections.connect(endpoint, options, milliseconds("timeout", timeout), self._id))

    def endpoint(self, text: str, options: Options | None = None) -> Endpoint:
        """An endpoint of this manager. Dials nothing."""
        return Endpoint(text, options, self)

    def send_to(self, endpoint: str, frames: Frames, timeout: float | None = None) -> tuple[Connection, int]:
        """Sends one message to whichever life of the peer is there; returns the connection and the sequence."""
        conn, sequence = _messages.send_to(endpoint, frames, milliseconds("timeout", timeout), self._id)
        return Connection(conn), sequence

    def find(self, endpoint: str) -> Connection:
        """The live connection to an endpoint. Never dials. Raises NotFound."""
        return Connection(_connections.find(endpoint, self._id))

    def connections(self) -> list[Connection]:
        """The live connections, oldest first."""
        return [Connection(conn) for conn in _connections.connections(self._id)]

    def disconnect_endpoint(self, endpoint: str) -> None:
        """Ends the connection to an endpoint, now, and fences it."""
        _connections.disconnect_endpoint(endpoint, self._id)

    def disconnect_all(self, timeout: float | None = None) -> None:
        """Waits up to `timeout` until everything is acknowledged, then closes and fences all. Raises Timeout."""
        _connections.disconnect_all(milliseconds("timeout", timeout), self._id)

    def open_node(self, name: str) -> Node:
        """The live node of that name. If there is none, this begins a life; Node.created tells."""
        id, created = _nodes.node_open(name, self._id)
        node = Node(id)
        node._created = created
        return node

    def find_node(self, name: str) -> Node:
        """The live node of that name. Raises NotFound."""
        return Node(_nodes.node_find(name, self._id))

    def events(self, timeout: float | None = None) -> Events:
        """The events, for `for` and `async for`."""
        return Events(self._id, timeout)

    def failures(self, timeout: float | None = None) -> Failures:
        """The failures that no call has returned, for `for`, which waits for each."""
        return Failures(self._id, timeout)

    def describe(self) -> str:
        """A text for people: settings, connections, nodes, fences and the last losses."""
        return _observe.describe(self._id)

    def metrics_text(self) -> str:
        """The metrics as OpenMetrics text."""
        return _observe.metrics_text(self._id)

    def destroy(self, timeout: float | None = None) -> None:
        """Ends the manager, its connections and its nodes. Raises Timeout when sockets close later."""
        _connections.manager_destroy(self._id, milliseconds("timeout", timeout))

    async def __aenter__(self) -> Manager:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        await _end(self.__exit__, kind, error, traceback)

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        try:
            self.disconnect_all(None if kind is None else 0)
        except Timeout:
            if kind is None:
                raise
        finally:
            if self._id != DEFAULT:
                self.destroy()
