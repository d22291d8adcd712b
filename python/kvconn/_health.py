"""Asks the HTTP address of every node whether it is healthy, and reports the answers to the node's life."""

from __future__ import annotations

import logging
import random
import re
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from ._brief import Brief
from ._check import milliseconds, uint64
from ._errors import Disconnected, NodeFailed, Shutdown, Stale
from ._nodes import Failure, node_report_health

if TYPE_CHECKING:
    import asyncio

    from .types import Id

_logger = logging.getLogger("kvconn")
_JITTER = 0.1  # the part of an interval by which it is longer or shorter


class _Target(NamedTuple):
    """Where and what a probe asks."""

    host: str
    port: int
    tls: bool
    request: bytes


def _target(url: str) -> _Target:
    """What a URL says; ValueError names what is wrong with it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url must be http://host:port/path or https://…, not {url!r}")
    tls = parts.scheme == "https"
    path = (parts.path or "/health") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: kvconn\r\nConnection: close\r\n\r\n"
    if re.search(r"[^\x21-\x7e]", path + host):
        raise ValueError(f"url must be ASCII without blanks, not {url!r}")
    return _Target(parts.hostname, parts.port or (443 if tls else 80), tls, request.encode())


class HealthWatch(metaclass=Brief):
    """Probes the HTTP health address of many nodes, all in parallel, and reports each answer to the node.

    A node that gets max_failures bad answers in a row (2 by default) fails: kvconn.node_report_health. Its Failure goes
    to `failed`, and nowhere else. A good answer is a status from 200 to 299 within `timeout`. Refused, no answer in time
    and any other status are bad. A probe belongs to one life of a node: if that life ends while the probe waits, its
    answer changes nothing, and a later life of the same name must be added by itself.

        with HealthWatch(lambda failure: print(failure.requests)) as watch:  # a thread
            watch.add(node, "http://10.0.0.7:8998/health")

    With asyncio, `await watch.run()` in a task does the same without a thread. Cancel the task, or close the watch, to
    end it. `failed` runs in the thread, or in the loop: it must not wait long.

    interval  seconds from the begin of one probe of a node to the next, plus or minus a tenth at random, so that not
              all nodes are asked at once; the next also waits for the end of this one
    timeout   seconds for a whole probe: resolve, connect, ask, answer
    """

    __slots__ = (
        "__weakref__", "_closing", "_failed", "_interval", "_lock", "_loop", "_targets", "_tasks",
        "_thread", "_timeout",
    )

    def __init__(
        self,
        failed: Callable[[Failure], object],
        *,
        interval: float = 0.75,
        timeout: float = 1.0,
    ) -> None:
        if min(milliseconds("interval", interval), milliseconds("timeout", timeout)) <= 0:
            raise ValueError("interval and timeout must be more than 0 seconds")
        self._failed, self._interval, self._timeout = failed, interval, timeout
        self._lock = threading.Lock()  # guards _targets, _loop and _thread; nothing waits while it is held
        self._targets: dict[int, _Target] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}  # only the loop's thread uses it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def add(self, node: Id, url: str) -> None:
        """Watches a node until it ends. The URL's path is /health if it has none. A second URL replaces the first."""
        number, target = uint64("node", node), _target(url)
        with self._lock:
            self._targets[number] = target
        self._tell(self._begin, number)

    def remove(self, node: Id) -> None:
        """Watches a node no more. A probe that waits for its answer reports nothing."""
        number = uint64("node", node)
        with self._lock:
            self._targets.pop(number, None)
        self._tell(self._end, number)

    @property
    def nodes(self) -> list[int]:
        """The nodes that are watched. One that has ended leaves within an interval."""
        with self._lock:
            return list(self._targets)

    def start(self) -> HealthWatch:
        """Begins a thread that watches; returns the watch. `with` does it, and closes at the end."""
        import asyncio  # here, because a program without a HealthWatch need not load it

        with self._lock:
            if self._thread is not None or self._loop is not None:
                raise RuntimeError("this HealthWatch runs already")
            self._thread = threading.Thread(target=lambda: asyncio.run(self.run()), name="kvconn-health", daemon=True)
        self._thread.start()
        return self

    async def run(self) -> None:
        """Watches in this task until it is cancelled, or `close` is called."""
        import asyncio

        loop, closing = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if self._loop is not None or self._thread not in (None, threading.current_thread()):
                raise RuntimeError("this HealthWatch runs already")
            self._loop, self._closing, numbers = loop, closing, list(self._targets)
        for number in numbers:
            self._begin(number)
        try:
            await closing.wait()
        finally:
            with self._lock:
                self._loop = self._closing = self._thread = None
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.clear()

    def close(self) -> None:
        """Ends the watch. When it returns, `failed` is not called any more (unless `failed` itself calls it)."""
        with self._lock:
            thread, loop, closing = self._thread, self._loop, self._closing
        while thread is not None and loop is None and thread.is_alive():  # it has just begun
            thread.join(0.001)
            with self._lock:
                loop, closing = self._loop, self._closing
        if loop is not None and closing is not None:
            self._tell(closing.set)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> HealthWatch:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.close()

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function in the loop's thread, if there is a loop."""
        with self._lock:
            loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:
                pass  # the loop has just been closed

    def _begin(self, number: int) -> None:
        """Begins to probe a node, or begins again with its new address."""
        import asyncio

        self._end(number)
        target = self._targets.get(number)
        if target is not None:
            self._tasks[number] = asyncio.get_running_loop().create_task(self._watch(number, target))

    def _end(self, number: int) -> None:
        """Ends the task of a node."""
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()

    async def _watch(self, number: int, target: _Target) -> None:
        """Probes one life until it ends."""
        import asyncio

        loop = asyncio.get_running_loop()
        await asyncio.sleep(random.uniform(0, self._interval))
        while True:
            begun = loop.time()
            bad = await self._probe(target)
            try:
                failure = node_report_health(number, bad is None, bad)
            except (NodeFailed, Disconnected, Stale, Shutdown):
                break  # this life is over: the answer is no one's
            if failure is not None:
                self._report(failure)
                break
            next_one = begun + self._interval * (1 + random.uniform(-_JITTER, _JITTER))
            await asyncio.sleep(max(0, next_one - loop.time()))
        with self._lock:
            if self._targets.get(number) is target:
                del self._targets[number]
        if self._tasks.get(number) is asyncio.current_task():
            del self._tasks[number]

    def _report(self, failure: Failure) -> None:
        """Gives a failure to the caller's function."""
        try:
            self._failed(failure)
        except Exception:
            _logger.exception("the function of a HealthWatch raised, for node %s", failure.name)

    async def _probe(self, target: _Target) -> str | None:
        """Asks once: None when the answer is good, else what was wrong."""
        import asyncio

        # No wait_for: until Python 3.12 it loses a cancellation that comes together with the answer.
        asking = asyncio.get_running_loop().create_task(self._ask(target))
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is asked for, always
        try:
            await asyncio.wait({asking}, timeout=self._timeout)
        finally:
            in_time = asking.done() or not asking.cancel()
        if not in_time:
            return f"health probe: no answer within {self._timeout:g} s"
        try:
            line = asking.result()
        except (OSError, ValueError) as error:
            return f"health probe: {error}"
        status = re.match(rb"HTTP/\d\.\d (\d{3})\b", line)
        if status is None:
            return "health probe: the answer is not HTTP"
        return None if 200 <= int(status[1]) < 300 else f"health probe: HTTP status {int(status[1])}"

    async def _ask(self, target: _Target) -> bytes:
        """The first line of the answer."""
        import asyncio

        context = None
        if target.tls:
            import ssl  # here, because most health addresses are plain

            context = ssl.create_default_context()
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
        try:
            writer.write(target.request)
            return await reader.readline()
        finally:
            writer.close()
