"""A look at what listens at an address: a plain TCP connection, and the ZMTP greeting of a client without a key.

The peer's greeting names its mechanism. With NULL, its READY command follows without being asked for, and names the type
of its socket. This side never sends a READY, so the peer takes it for no client.
"""

import errno
import socket
import time
from typing import Any, NamedTuple

# Signature, ZMTP 3.0, mechanism, not a server, filler.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
VERSION = 12  # bytes up to the end of the version
COMMAND = 0x04
READY = b"\x05READY"
FEW_BYTES = 512
REST_SECONDS = 0.2  # for the rest of a service's first words


class Look(NamedTuple):
    """What was found. kind: zmtp, other (another service), silent, closed, or gone (no TCP connection)."""

    kind: str
    text: str
    mechanism: str = ""
    socket_type: str = ""


def dial(family: int, address: Any, timeout: float) -> socket.socket:
    """A TCP (or ipc) connection. Raises OSError."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(max(timeout, 0.001))
        made.connect(address)
        if family != socket.AF_UNIX and _is_own(made):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nothing listens there, and the connection led to itself")
    except BaseException:
        made.close()
        raise
    return made


def _is_own(made: socket.socket) -> bool:
    """Whether TCP has connected a free port of this host to itself."""
    try:
        return bool(made.getsockname() == made.getpeername())
    except OSError:  # the peer has reset it meanwhile
        return False


def look(family: int, address: Any, timeout: float) -> Look:
    """Looks for at most `timeout` seconds, and as long again if the peer says nothing."""
    try:
        found = _greeting(family, address, timeout)
        if found.kind == "silent":  # servers of lines and requests wait for one
            said = _first_words(family, address, b"GET / HTTP/1.0\r\n\r\n", timeout)
            return _described(said) if said else found
        return found
    except ConnectionResetError:
        return Look("closed", "it resets the connection")
    except OSError as error:
        return Look("gone", error.strerror or str(error))


def _greeting(family: int, address: Any, timeout: float) -> Look:
    """What a ZeroMQ client hears."""
    deadline = time.monotonic() + timeout
    with dial(family, address, timeout) as peer:
        said, closed = b"", False
        try:
            # The version is enough for the peer's whole greeting. It would close before that if the mechanism did not fit.
            peer.sendall(GREETING[:VERSION])
            while more := _missing(said):
                block = _receive(peer, more, deadline)
                if not block:
                    closed = block is not None
                    break
                said += block
                if len(said) == len(GREETING) and _mechanism(said) == "NULL":
                    peer.sendall(GREETING[VERSION:])
            if said and not _is_greeting(said):
                said += _rest(peer)
        except ConnectionError:
            closed = True
        if not said:
            return Look("closed" if closed else "silent", "it closed the connection" if closed else "it says nothing")
        return _zmtp(said, closed) if _is_greeting(said) else _described(said)


def _is_greeting(said: bytes) -> bool:
    """Whether this begins as the greeting of ZMTP 2 or later."""
    return said[:1] == b"\xff" and (len(said) < 10 or said[9:10] == b"\x7f")


def _missing(said: bytes) -> int:
    """How many bytes to read next; 0 if nothing more is of interest."""
    if not _is_greeting(said):
        return 0 if said else 64
    if len(said) < 64:
        return 64 - len(said)
    if _mechanism(said) != "NULL":
        return 0
    head = said[64:66]
    if len(head) < 2:
        return 2 - len(head)
    return max(0, 66 + head[1] - len(said)) if head[0] == COMMAND else 0


def _receive(peer: socket.socket, count: int, deadline: float) -> bytes | None:
    """Some bytes; none if the peer has closed; None if the time is over."""
    peer.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        return peer.recv(count)
    except TimeoutError:
        return None


def _rest(peer: socket.socket) -> bytes:
    """What else comes soon."""
    said, deadline = b"", time.monotonic() + REST_SECONDS
    while len(said) < FEW_BYTES and (block := _receive(peer, FEW_BYTES, deadline)):
        said += block
    return said


def _first_words(family: int, address: Any, question: bytes, timeout: float) -> bytes:
    """What the peer answers to a line."""
    with dial(family, address, timeout) as peer:
        try:
            peer.sendall(question)
            said = _receive(peer, FEW_BYTES, time.monotonic() + timeout)
            return said + _rest(peer) if said else b""
        except ConnectionError:
            return b""


def _mechanism(said: bytes) -> str:
    return said[12:32].rstrip(b"\0").decode("ascii", "replace")


def _zmtp(said: bytes, closed: bool) -> Look:
    """What a greeting tells."""
    then = "and closed the connection" if closed else "and then nothing"
    if len(said) > 10 and said[10] < 3:
        return Look("zmtp", f"it speaks ZMTP {said[10]}, which is older than 3")
    if len(said) < 64:
        return Look("zmtp", f"it sent {len(said)} bytes of a ZMTP greeting, {then}")
    mechanism, kind = _mechanism(said), _socket_type(said[64:])
    if kind:
        return Look("zmtp", f"a ZeroMQ {kind} socket, mechanism {mechanism}", mechanism, kind)
    if mechanism == "NULL":
        return Look("zmtp", f"it sent a ZMTP greeting, {then}", mechanism)
    return Look("zmtp", f"a ZeroMQ socket that asks for the mechanism {mechanism}", mechanism)


def _socket_type(frame: bytes) -> str:
    """The property Socket-Type of a READY command, or ""."""
    if len(frame) < 2 or frame[0] != COMMAND or not frame[2:].startswith(READY):
        return ""
    rest = frame[2 + len(READY) :]
    while rest:
        name, rest = rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
        size = int.from_bytes(rest[:4], "big")
        value, rest = rest[4 : 4 + size], rest[4 + size :]
        if name.lower() == b"socket-type":
            return value.decode("ascii", "replace")
    return ""


def _described(said: bytes) -> Look:
    """Another service, by its first words."""
    line = said.split(b"\n", 1)[0].strip().decode("ascii", "backslashreplace")[:80]
    if said.startswith(b"HTTP/") or b"<html" in said[:200].lower() or b"<!doctype html" in said[:200].lower():
        return Look("other", f"an HTTP server: {line}")
    if said.startswith(b"SSH-"):
        return Look("other", f"an SSH server: {line}")
    if said[:2] in (b"\x15\x03", b"\x16\x03"):
        return Look("other", "a TLS server")
    shown = line if line.isprintable() and line else repr(said[:40])
    return Look("other", f"a service that says {shown}")
