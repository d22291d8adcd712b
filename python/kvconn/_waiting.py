"""Iterators that wait: for the events of a manager, and for its failures."""

from __future__ import annotations

import errno
import math
import os
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _calls, _connections, _nodes, _observe
from ._brief import Brief
from ._check import manager as manager_id
from ._check import milliseconds
from ._errors import Shutdown, Stale
from ._ffi import DEFAULT

if TYPE_CHECKING:
    from typing import SupportsIndex

    from .types import Event

_LOOK_SECONDS = _calls.SLICE_MS / 1000  # how often an asynchronous wait looks for `close` and the end of its manager


def _next(waiting: Events | Failures) -> Any:
    """The next item, in slices: `close` is noticed between two of them."""
    deadline = _deadline(waiting._timeout)
    while not waiting._closed:
        left = deadline - time.monotonic()
        try:
            item = waiting._take(math.ceil(min(max(left, 0) * 1000, _calls.SLICE_MS)))
        except (Stale, Shutdown):
            break  # the manager has ended
        if item is not None:
            return item
        if time.monotonic() >= deadline:
            break
    raise StopIteration


def _deadline(timeout: float | None) -> float:
    """The end of a wait that begins now, in monotonic time."""
    return float("inf") if timeout is None else time.monotonic() + timeout


def _seconds(timeout: float | None) -> float | None:
    """A timeout that is checked. None is none here: the next item may be hours away."""
    return None if timeout is None else milliseconds("timeout", timeout) / 1000


class Events(metaclass=Brief):
    """The events of a manager, as dicts (kvconn.types.Event): `for event in events` and `async for event in events`.

    Each step waits: for ever, or up to `timeout` seconds, after which the loop ends. The loop also ends when the manager
    is destroyed and after `close`. Each event goes to one reader: a manager has one queue. `async for` waits through the
    event descriptor; it needs no thread, and cancelling it loses no event. Several tasks and loops may wait.
    It holds no resource between two steps.
    """

    __slots__ = "__weakref__", "_closed", "_manager", "_timeout"

    def __init__(self, manager: SupportsIndex = DEFAULT, timeout: float | None = None) -> None:
        self._closed, self._manager, self._timeout = False, manager_id(manager), _seconds(timeout)
        _observe.event_fd(self._manager)  # raises Stale now, not in the loop

    def _take(self, timeout_ms: int) -> Event | None:
        """The next event, or None after the timeout."""
        return _observe.next_event(timeout_ms, self._manager)

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Event:
        event: Event = _next(self)
        return event

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        deadline = _deadline(self._timeout)
        while not self._closed:
            try:
                event = self._take(0)
                if event is not None:
                    return event
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                await self._readable(min(left, _LOOK_SECONDS))
            except (Stale, Shutdown):
                break
        raise StopAsyncIteration

    async def _readable(self, seconds: float) -> None:
        """Waits until the descriptor is readable, or the time is over."""
        import asyncio  # here, because a program without it need not load it

        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        # A descriptor of this wait's own: a loop has one reader for each, and several tasks may wait.
        try:
            fd = os.dup(_observe.event_fd(self._manager))
        except OSError as error:
            if error.errno == errno.EBADF:
                return  # the manager was destroyed meanwhile
            raise
        try:
            loop.add_reader(fd, wake)
            timer = loop.call_later(seconds, wake)
            try:
                await woken
            finally:
                timer.cancel()
                loop.remove_reader(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Ends the iteration within 200 ms, in whatever thread it waits. Nothing else ends."""
        self._closed = True

    def __enter__(self) -> Events:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.close()


class Failures(metaclass=Brief):
    """The failures of a manager that no call has returned: `for failure in failures`.

    Each step waits: for ever, or up to `timeout` seconds, after which the loop ends. The loop also ends when the manager
    is destroyed and after `close`. Each Failure goes to one reader. With asyncio, wait for EVENT_NODE_FAILED in Events,
    and call take_failure then.
    """

    __slots__ = "__weakref__", "_closed", "_manager", "_timeout"

    def __init__(self, manager: SupportsIndex = DEFAULT, timeout: float | None = None) -> None:
        self._closed, self._manager, self._timeout = False, manager_id(manager), _seconds(timeout)
        _connections.connections(self._manager)  # raises Stale now, not in the loop

    def _take(self, timeout_ms: int) -> _nodes.Failure | None:
        """The next failure, or None after the timeout."""
        return _nodes.take_failure(timeout_ms, self._manager)

    def __iter__(self) -> Failures:
        return self

    def __next__(self) -> _nodes.Failure:
        failure: _nodes.Failure = _next(self)
        return failure

    def close(self) -> None:
        """Ends the iteration within 200 ms, in whatever thread it waits. Nothing else ends."""
        self._closed = True

    def __enter__(self) -> Failures:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.close()
