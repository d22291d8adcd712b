"""Nodes and their failures: the thin functions of those chapters of the header."""

import ctypes
import math
import time
from collections.abc import Iterable
from ctypes import byref
from typing import Any, NamedTuple

from . import _attempts, _calls, _check, _ffi, types
from ._brief import brief
from ._calls import Call, Options, fields, get, lib, run
from ._check import text, timeout, uint64
from ._errors import Error
from ._ffi import DEFAULT, DEFAULT_TIMEOUT


@brief
class FailedEndpoint(NamedTuple):
    """An endpoint that a failed node owned: a tuple with names.

    endpoint      in its canonical form
    conn          its connection; if it had none, the last one that the node lost (its status is PeerLost's); else 0
    spared        whether another live node owns it too, so that its connection goes on
    accepted      the number of messages that this connection had accepted
    acknowledged  the sequence of the last acknowledged message, or UNKNOWN
    """

    endpoint: str
    conn: int
    spared: bool
    accepted: int
    acknowledged: int


@brief
class Failure(NamedTuple):
    """What a node's failure took away: a tuple with names.

    node       the node
    name       its name
    reason     the given reason, or what kvconn observed
    time_ms    when it failed, in milliseconds since 1970
    endpoints  a list of FailedEndpoint, in the order of their registration
    requests   a list of the requests that were in flight, in ascending order
    """

    node: int
    name: str
    reason: str
    time_ms: int
    endpoints: list[FailedEndpoint]
    requests: list[int]


def _report(
    name: str, head: tuple[Any, ...], again: tuple[str, int], timeout_ms: "int | None" = None
) -> "Failure | None":
    """Makes a call that may give a report; the Failure, or None."""
    report = _ffi.failure_p()
    call = _Reporting(name, head, (byref(report),), lambda _: _failure(report), again=again)
    made: "Failure | None" = run(call, timeout_ms)
    return made


class _Reporting(Call):
    """A call that may give a report. The report is freed when the Failure is made."""

    __slots__ = ()

    def _settle(self) -> None:
        """Also frees the report."""
        super()._settle()
        report = self.tail[0]._obj
        pointer, report.value = report.value, None
        lib.kvconn_failure_free(pointer)


def _failure(report: ctypes.c_void_p) -> "Failure | None":
    """The Failure of a report; None without one."""
    if not report:
        return None
    size = ctypes.sizeof(_ffi.kvconn_failed_endpoint_t)
    endpoints = (_ffi.kvconn_failed_endpoint_t * lib.kvconn_failure_endpoint_count(report))()
    requests = (ctypes.c_uint64 * lib.kvconn_failure_request_count(report))()
    count = byref(ctypes.c_size_t())
    run(Call("kvconn_failure_endpoints", (report, endpoints, size, len(endpoints), count)))
    run(Call("kvconn_failure_requests", (report, requests, len(requests), count)))
    return Failure(
        lib.kvconn_failure_node(report),
        lib.kvconn_failure_name(report).decode(),
        lib.kvconn_failure_reason(report).decode(),
        lib.kvconn_failure_time_ms(report),
        [FailedEndpoint(e.endpoint.decode(), e.conn, bool(e.spared), e.accepted, e.acknowledged) for e in endpoints],
        list(requests),
    )


def node_open(name: str, manager: "types.Id" = DEFAULT) -> tuple[int, bool]:
    """Opens a node, one life of a peer instance: returns (node, created). `created` is False if it already lived.
    Raises Limit.
    """
    node, created = _ffi.node_t(), ctypes.c_int32()
    head, places = (_check.manager(manager), text("name", name)), (byref(node), byref(created))
    opened: tuple[int, bool] = run(
        Call("kvconn_node_open", head, places, lambda _: (node.value, bool(created.value)))
    )
    return opened


def node_find(name: str, manager: "types.Id" = DEFAULT) -> int:
    """The live node of that name. Raises NotFound."""
    node: int = get("kvconn_node_find", _ffi.node_t, _check.manager(manager), text("name", name))
    return node


def node_info(node: "types.Id") -> types.NodeInfo:
    """A dict: node, name, status (0 while it lives), reason, endpoints, requests, failures_in_row, age_ms."""
    info = _ffi.kvconn_node_info_t()
    head = uint64("node", node), byref(info)
    read: types.NodeInfo = run(Call("kvconn_node_info", head, (), lambda _: fields(info)))
    return read


def _endpoints(endpoints: "Iterable[str]") -> tuple[Any, int]:
    """A list of endpoints as C takes it: array, count."""
    names = _check.texts("endpoints", endpoints)
    return (ctypes.c_char_p * len(names))(*names), len(names)


def node_add_endpoints(node: "types.Id", endpoints: "Iterable[str]", options: "types.Options | None" = None) -> None:
    """Registers a list of endpoints with a node, all or none, and lifts their fences; dials nothing; returns None.

    `options` are for later dials to them. Raises Conflict, Limit, NodeFailed or Disconnected.
    """
    head = uint64("node", node), *_endpoints(endpoints)
    given = Options(options)
    run(Call("kvconn_node_add_endpoints", (*head, given), ends=[given.free]))


def node_remove_endpoints(node: "types.Id", endpoints: "Iterable[str]") -> None:
    """Takes a list of endpoints away from a node, ends their connections and fences them; returns None.
    Raises NodeFailed or Disconnected.
    """
    run(Call("kvconn_node_remove_endpoints", (uint64("node", node), *_endpoints(endpoints))))


def node_set_endpoints(node: "types.Id", endpoints: "Iterable[str]", options: "types.Options | None" = None) -> None:
    """Makes a list of endpoints those of a node, in one step: registers new ones, takes the others away; returns None.

    Those in both lists keep their connections and fences. `options` are for later dials to all of them. Raises
    Conflict, Limit, NodeFailed or Disconnected, and then nothing has changed.
    """
    head = uint64("node", node), *_endpoints(endpoints)
    given = Options(options)
    run(Call("kvconn_node_set_endpoints", (*head, given), ends=[given.free]))


@brief
class Connected(NamedTuple):
    """The result of one endpoint of node_connect: a tuple with names.

    status  0 when it is READY (with wait_ms 0: when it has a connection), else STATUSES has its exception
    conn    the connection; 0 when there is none. With the status of Timeout, the connection if its dial goes on
    """

    status: int
    conn: int


def node_connect(
    node: "types.Id",
    endpoints: "Iterable[str]",
    options: "types.Options | None" = None,
    wait_ms: int = DEFAULT_TIMEOUT,
) -> "tuple[list[Connected], Error | None]":
    """Registers a list of endpoints with a node, all or none, and dials all of them at the same time.

    Waits up to wait_ms, in all, until each is READY or has failed; 0 does not wait, DEFAULT_TIMEOUT is as long as one
    dial may take. With the option connect_retry those that failed are dialled again until then. Returns (results,
    partial): a Connected for each endpoint, in order; and None, or the Partial when at least one failed. They stay
    registered. Raises Conflict, Limit, NodeFailed or Disconnected, also when the node ends during the call. When a
    signal handler raises, the dials go on.
    """
    array, count = _endpoints(endpoints)
    head, wait_ms = (uint64("node", node), array, count), timeout("wait_ms", wait_ms)
    conns, statuses, given = (_ffi.conn_t * count)(), (_ffi.status_t * count)(), Options(options)

    def read(partial: "Error | None") -> "tuple[list[Connected], Error | None]":
        return [Connected(*result) for result in zip(statuses, conns)], partial

    call = Call("kvconn_node_connect", (*head, given), (conns, statuses), read, ends=[given.free], partial=True)
    made: "tuple[list[Connected], Error | None]" = run(call, wait_ms)
    return made


def node_track_request(node: "types.Id", request: int) -> None:
    """Notes that a request, an integer of yours, is in flight on a node; returns None.

    Raises NodeFailed (no report lists the request: the caller must fail it), Disconnected or Limit.
    """
    if _attempts.run(_attempts.track, "kvconn_node_track_request", node, request) is None:
        run(Call("kvconn_node_track_request", (uint64("node", node), _check.number("request", request))))


def node_untrack_request(node: "types.Id", request: int) -> bool:
    """Notes that a request is done; returns whether it was tracked until now. Raises NodeFailed or Disconnected."""
    tracked = _attempts.run(_attempts.untrack, "kvconn_node_untrack_request", node, request)
    if tracked is None:
        tracked = get("kvconn_node_untrack_request", ctypes.c_int32, uint64("node", node), _check.number("request", request))
    return bool(tracked)


def node_report_health(node: "types.Id", healthy: bool, reason: str | None = None) -> "Failure | None":
    """Reports the result of a health probe, a bool; max_failures bad ones in a row fail the node.

    Returns the Failure when this report failed the node, else None. Raises NodeFailed or Disconnected.
    """
    node, healthy = uint64("node", node), _check.flag("healthy", healthy)
    return _report("kvconn_node_report_health", (node, healthy, _reason(reason)), ("failure of", node))


def handle_failure(node: "types.Id", reason: str | None = None) -> Failure:
    """Fails a node: ends and fences its endpoints, and takes its requests away, in one step. Returns the Failure.

    Raises NodeFailed or Disconnected when it had ended before. When a signal handler raises, the node has failed all
    the same: `kvconn_call.result()` gives the Failure, and so does the next handle_failure of this node.
    """
    node = uint64("node", node)
    failure = _report("kvconn_handle_failure", (node, _reason(reason)), ("failure of", node))
    assert failure is not None  # C gives a report or an error
    return failure


def _reason(reason: str | None) -> bytes | None:
    """A reason as C takes it; None is none."""
    return None if reason is None else text("reason", reason)


def take_failure(timeout_ms: int = 0, manager: "types.Id" = DEFAULT) -> "Failure | None":
    """The oldest Failure of a manager that no call has returned yet, or None when none came within timeout_ms (by
    default it does not wait). DEFAULT_TIMEOUT has no deadline: it waits until there is one. Raises Stale when the
    manager is destroyed, Shutdown when kvconn is; disconnect_all does not end the wait.
    """
    number, timeout_ms = _check.manager(manager), timeout("timeout_ms", timeout_ms)
    until = math.inf if timeout_ms == DEFAULT_TIMEOUT else time.monotonic() + timeout_ms / 1000
    while True:
        part: float = timeout_ms
        if _calls.goes_aside(timeout_ms):
            # Slices, so that no call goes on without its caller and takes a report meanwhile.
            part = min(max(until - time.monotonic(), 0) * 1000, _calls.SLICE_MS)
        failure = _report("kvconn_take_failure", (number,), ("failure in", number), math.ceil(part))
        if failure is not None or time.monotonic() >= until:
            return failure
