"""Managers and connections: the thin functions of those chapters of the header."""

from __future__ import annotations

from ctypes import byref

from . import _calls, _check, _ffi, types
from ._calls import Call, Options, get, lib, pins, run
from ._check import text, timeout, uint64
from ._ffi import DEFAULT, DEFAULT_TIMEOUT

# ---- Library and managers --------------------------------------------------------------------------------------------


def version() -> str:
    """The version of the loaded library, such as "0.1.0"."""
    return str(lib.kvconn_version(), "ascii")


def abi_version() -> int:
    """The number in the library's SONAME. It is ABI_VERSION, because the package loads no other."""
    number: int = lib.kvconn_abi_version()
    return number


def strerror(status: int) -> str:
    """What a status means, as one sentence or two."""
    return str(lib.kvconn_strerror(_check.int32("status", status)), "utf-8")


def status_name(status: int) -> str:
    """The C name of a status: status_name(-7) is "KVCONN_CONNECT_FAILED". STATUSES has its exception."""
    return str(lib.kvconn_status_name(_check.int32("status", status)), "ascii")


def status_errno(status: int) -> int:
    """The errno of a status, for code that knows only those; 0 for OK."""
    number: int = lib.kvconn_status_errno(_check.int32("status", status))
    return number


def has(feature: str) -> bool:
    """Whether the loaded library has a feature, a text: "curve", "ipc", "keepalive", "user_timeout", "acknowledgement"
    or "out_batch". An unknown name is False.
    """
    return bool(lib.kvconn_has(text("feature", feature)))


def configure(options: types.Options, manager: types.Id = DEFAULT) -> None:
    """Sets options of a manager; returns None. Those of connections are for later dials only.

        kvconn.configure({"send_timeout_ms": 200, "require_curve": True})

    Raises Conflict for a setting of the process after the first connection, or given to another manager.
    """
    manager, given = _check.manager(manager), Options(options)
    run(Call("kvconn_configure", (manager, given), ends=[given.free]))


def manager_create(options: types.Options | None = None) -> int:
    """Makes a manager: endpoints, nodes, events and settings of its own. Returns its id. Raises Limit."""
    given = Options(options)
    manager: int = get("kvconn_manager_create", _ffi.manager_t, given, ends=[given.free])
    return manager


def manager_destroy(manager: types.Id, timeout_ms: int = DEFAULT_TIMEOUT) -> None:
    """Ends a manager, its connections and its nodes, and waits for its sockets to close; returns None.

    Raises Timeout when the sockets close later. The manager ends in any case, also when a signal handler raises.
    """
    run(Call("kvconn_manager_destroy", (_check.manager(manager),)), timeout("timeout_ms", timeout_ms))


def disconnect_all(flush_ms: int = DEFAULT_TIMEOUT, manager: types.Id = DEFAULT) -> None:
    """Waits up to flush_ms until everything is acknowledged, then closes and fences all; returns None.

    Raises Timeout when something was not acknowledged in time; everything has ended all the same. When a signal
    handler raises, flushing goes on until flush_ms is over; then everything has ended.
    """
    run(Call("kvconn_disconnect_all", (_check.manager(manager),)), timeout("flush_ms", flush_ms))


def shutdown(flush_ms: int = DEFAULT_TIMEOUT) -> None:
    """Ends kvconn in this process, for good: disconnect_all for all managers; returns None.

    Raises Timeout as disconnect_all does. When a signal handler raises, flushing goes on until flush_ms is over,
    unless the process ends before.
    """
    released = lambda _: pins.unpin_all()  # noqa: E731: after OK everything is released
    run(Call("kvconn_shutdown", read=released), timeout("flush_ms", flush_ms))


# ---- Connections -----------------------------------------------------------------------------------------------------


def connect(
    endpoint: str, options: types.Options | None = None, wait_ms: int = DEFAULT_TIMEOUT, manager: types.Id = DEFAULT
) -> int:
    """The live connection to "tcp://host:port" or "ipc://path"; dials if there is none. Returns its id.

    Waits up to wait_ms until it is READY: 0 does not wait, DEFAULT_TIMEOUT is as long as one dial may take.
    Raises ConnectFailed, Backoff (call again after .retry_after_ms), Timeout (a dial goes on as .conn, if not 0),
    Conflict (it has other options), NodeFailed, PeerLost, Disconnected, Evicted or Limit.
    When a signal handler raises, the dial goes on; `kvconn_call.result()` gives the connection.
    """
    manager, wait_ms, name = _check.manager(manager), timeout("wait_ms", wait_ms), text("endpoint", endpoint)
    conn, given = _ffi.conn_t(), Options(options)
    call = Call("kvconn_connect", (manager, name, given), (byref(conn),), lambda _: conn.value, ends=[given.free])
    # A thread costs more than a connection that is READY.
    made: int = run(call, 0 if _calls.goes_aside(wait_ms) and _is_ready(manager, name) else wait_ms)
    return made


def current(manager: int, endpoint: bytes) -> int:
    """The live connection to an endpoint, or 0."""
    conn = _ffi.conn_t()
    lib.kvconn_find(manager, endpoint, byref(conn), None)
    return conn.value


def _is_ready(manager: int, endpoint: bytes) -> bool:
    """Whether the connection to an endpoint is READY."""
    conn, info = current(manager, endpoint), _ffi.kvconn_connection_info_t()
    return bool(conn and lib.kvconn_connection_info(conn, byref(info), None) == 0 and info.state == _ffi.STATE_READY)


def disconnect(conn: types.Id) -> None:
    """Ends a connection, now; returns None. Nothing is fenced: the next send_to dials."""
    conn = uint64("conn", conn)
    run(Call("kvconn_disconnect", (conn,), conn=conn))


def disconnect_endpoint(endpoint: str, manager: types.Id = DEFAULT) -> None:
    """Ends the connection to an endpoint, now, and fences it: only connect or node_add_endpoints dials there again.
    Threads that wait in a send to it get Disconnected. Returns None.
    """
    run(Call("kvconn_disconnect_endpoint", (_check.manager(manager), text("endpoint", endpoint))))


def connection_info(conn: types.Id) -> types.ConnectionInfo:
    """A dict: conn, endpoint, state (STATE_…), status (0 while it lives), os_errno, message, ended_by (ENDED_…),
    accepted, acknowledged, released (sequences), queued_bytes, waiting (threads), stalled, age_ms, ready_ms.
    """
    conn, info = uint64("conn", conn), _ffi.kvconn_connection_info_t()
    read: types.ConnectionInfo = run(
        Call("kvconn_connection_info", (conn, byref(info)), (), lambda _: _calls.fields(info), conn=conn)
    )
    return read


def connections(manager: types.Id = DEFAULT) -> list[int]:
    """A list of the live connections of a manager, oldest first."""
    conns: list[int] = _calls.array_of("kvconn_connections", _ffi.conn_t, _check.manager(manager))
    return conns


def find(endpoint: str, manager: types.Id = DEFAULT) -> int:
    """The live connection to an endpoint. Never dials. Raises NotFound."""
    conn: int = get("kvconn_find", _ffi.conn_t, _check.manager(manager), text("endpoint", endpoint))
    return conn
