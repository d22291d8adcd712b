"""`kvconn probe`: what an engine will meet at an endpoint, step by step. No message is sent.

kvconn's own connect decides. A plain look (`_look`) is taken only when kvconn fails behind a TCP connection, to say what
listens there.
"""

import contextlib
import errno
import os
import queue
import socket
import threading
import time
from typing import Any, NamedTuple

from . import _connections, _keys, _look
from ._errors import ConnectFailed, Error, Invalid, NotFound, Timeout

# Each verdict, its exit code, and what it means. docs/operations.md shows them.
VERDICTS = {
    "live": (0, "a PULL socket that takes this connection"),
    "failed": (1, "kvconn cannot connect, for another reason"),
    "unresolved": (3, "the name has no address"),
    "refused": (4, "the host answers, and nothing listens at this port"),
    "filtered": (5, "no answer: the host is off, or something drops the packets"),
    "unreachable": (6, "there is no way to this host"),
    "not ZeroMQ": (7, "another service listens at this port"),
    "wrong type": (8, "it is no PULL socket"),
    "closed": (9, "it closes the connection without a word: it is stopping, or is another service"),
    "mute": (10, "it accepts connections and says nothing: it is stopped or stuck, or is another service"),
    "no key": (11, "the peer asks for encryption, and no key is given (--server-key)"),
    "wrong key": (12, "the peer has another key than the one given"),
    "not encrypted": (13, "a key is given, and the peer does not speak CURVE"),
    "client refused": (14, "the peer does not let this client in"),
}
# What an errno of kvconn means if there was no TCP connection. ENOENT: an ipc endpoint without a socket.
DIALS = dict.fromkeys((errno.ECONNREFUSED, errno.ENOENT), "refused") | {errno.ETIMEDOUT: "filtered", errno.ECONNRESET: "closed"}
DIALS |= dict.fromkeys((errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN), "unreachable")
# A peer that closes at once leaves kvconn no time to see why, and its text then has one of these. Another try may tell.
UNCLEAR = "or is stopping", "it is stopping, is no ZeroMQ PULL socket"
TRIES = 4


class Step(NamedTuple):
    """One step: whether it succeeded, how long it took, and what came of it."""

    step: str
    ok: bool
    ms: float
    text: str


class Result(NamedTuple):
    """What a probe found. The last fields are those of kvconn's error: 0 and "" if it has connected."""

    endpoint: str
    verdict: str
    text: str
    steps: list[Step]
    status: str = "KVCONN_OK"
    os_errno: int = 0
    message: str = ""

    @property
    def exit_code(self) -> int:
        """The number of the verdict."""
        return VERDICTS[self.verdict][0]


class Place(NamedTuple):
    """An address as a socket takes it, and as a text."""

    family: int
    address: Any
    text: str


def probe(endpoint: str, server_key: str | None = None, timeout: float = 3.0) -> Result:
    """Tries the endpoint; each step takes at most `timeout` seconds. Raises Invalid if kvconn refuses an argument."""
    with contextlib.suppress(NotFound):
        _connections.find(endpoint)  # Invalid, if it is malformed
    options, curve = _options(server_key), _is_curve(server_key)
    steps: list[Step] = []
    places = _resolve(endpoint, timeout, steps)
    reached = _dial(places, timeout, steps) if places else None
    error, took = _connect(endpoint, options, timeout)
    for _ in range(TRIES):
        if error is None or not any(words in error.message for words in UNCLEAR):
            break
        error, took = _connect(endpoint, options, timeout)
    if error is None:
        steps.append(Step("handshake", True, took, "READY, encrypted (CURVE)" if curve else "READY, not encrypted"))
        return Result(endpoint, "live", VERDICTS["live"][1], steps)
    text = f"{error.name}, {errno.errorcode.get(error.os_errno, error.os_errno)}: {error.message}"
    steps.append(Step("handshake" if reached else "kvconn", False, took, text))
    return _failed(endpoint, error, steps, places, reached, curve, timeout)


def _connect(endpoint: str, options: dict[str, str], timeout: float) -> tuple[Error | None, float]:
    """Connects as an engine does, in a manager of its own, and closes everything.

    Returns why it failed, or None; and how many milliseconds it took.
    """
    ms, why = max(1, round(timeout * 1000)), None
    manager = _connections.manager_create({"connect_timeout_ms": ms, "handshake_timeout_ms": ms})
    begun = time.monotonic()
    try:
        _connections.connect(endpoint, options, manager=manager)
    except Invalid:
        raise
    except Error as error:
        why = error
    finally:
        took = _since(begun)
        with contextlib.suppress(Timeout):  # libzmq closes the rest later
            _connections.manager_destroy(manager)
    return why, took


def _options(server_key: str | None) -> dict[str, str]:
    """The keys: the server's, and this client's from the environment, or else fresh ones."""
    if not _is_curve(server_key):
        return {}
    options = {"curve_server_key": server_key} if server_key else {}
    if not (_from_environment("curve_public_key") and _from_environment("curve_secret_key")):
        options["curve_public_key"], options["curve_secret_key"] = _keys.pair()
    return options


def _is_curve(server_key: str | None) -> bool:
    return bool(server_key or _from_environment("curve_server_key"))


def _from_environment(name: str) -> str:
    return os.environ.get(f"KVCONN_{name.upper()}", "")


def _since(begun: float) -> float:
    return (time.monotonic() - begun) * 1000


def _resolve(endpoint: str, timeout: float, steps: list[Step]) -> list[Place]:
    """The addresses of an endpoint that kvconn accepts, within the time: the system's resolver has no deadline."""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc":
        path = "\0" + rest[1:] if rest.startswith("@") else rest
        return [Place(socket.AF_UNIX, path, rest)]
    host, _, port = rest.rpartition(":")
    answer: queue.SimpleQueue[list[Place] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            answer.put([Place(family, address, _shown(address)) for family, _, _, _, address in found])
        except OSError as error:
            answer.put(error)

    begun = time.monotonic()
    threading.Thread(target=ask, daemon=True).start()
    try:
        places = answer.get(timeout=timeout)
    except queue.Empty:
        places = TimeoutError(errno.ETIMEDOUT, "the resolver did not answer in time")
    if isinstance(places, OSError):
        steps.append(Step("resolve", False, _since(begun), f"{host}: {places.strerror or places}"))
        return []
    steps.append(Step("resolve", True, _since(begun), ", ".join(place.address[0] for place in places)))
    return places


def _shown(address: Any) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def _dial(places: list[Place], timeout: float, steps: list[Step]) -> Place | None:
    """The first address that takes a connection. They share the time."""
    begun, said = time.monotonic(), []
    for number, place in enumerate(places):
        share = (timeout - (time.monotonic() - begun)) / (len(places) - number)
        try:
            _look.dial(place.family, place.address, share).close()
        except OSError as error:
            said.append(f"{place.text}: {'no answer' if isinstance(error, TimeoutError) else error.strerror or error}")
        else:
            steps.append(Step("dial", True, _since(begun), "; ".join([*said, f"{place.text}: connected"])))
            return place
    steps.append(Step("dial", False, _since(begun), "; ".join(said)))
    return None


def _failed(
    endpoint: str,
    error: Error,
    steps: list[Step],
    places: list[Place],
    reached: Place | None,
    curve: bool,
    timeout: float,
) -> Result:
    """The verdict on what kvconn could not connect to."""
    seen = None
    if isinstance(error, ConnectFailed) and reached and error.os_errno != errno.ECONNREFUSED:
        begun = time.monotonic()
        seen = _look.look(reached.family, reached.address, timeout)
        steps.append(Step("look", seen.kind == "zmtp", _since(begun), seen.text))
    verdict = _verdict(error, bool(places), seen, curve) if isinstance(error, ConnectFailed) else "failed"
    text = VERDICTS[verdict][1]
    if seen and verdict in ("not ZeroMQ", "wrong type", "mute") and seen.kind != "silent":
        text += f": {seen.text}"
    elif verdict == "failed":
        text += f": {error.message}"
    return Result(endpoint, verdict, text, steps, error.name, error.os_errno, error.message)


def _verdict(error: Error, resolved: bool, seen: _look.Look | None, curve: bool) -> str:
    """What kvconn's errno means, with what a look has shown."""
    code = error.os_errno
    if not resolved:
        return "unresolved"
    if seen is None or seen.kind == "gone":
        return DIALS.get(code, "failed")
    if seen.kind == "zmtp":
        if seen.socket_type and seen.socket_type != "PULL":
            return "wrong type"
        if not curve and seen.mechanism not in ("NULL", ""):
            return "no key"
        if curve and seen.mechanism == "NULL":
            return "not encrypted"
        if code == errno.ETIMEDOUT:
            return "mute"
        if curve and seen.mechanism == "CURVE":
            return "client refused" if any(words in error.message for words in ("ZAP", "the right key")) else "wrong key"
        return "wrong type" if code == errno.EPROTO else "failed"
    return {"other": "not ZeroMQ", "closed": "closed", "silent": "mute"}[seen.kind]
