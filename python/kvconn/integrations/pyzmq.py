"""Push sockets for code that was written for pyzmq: it sends on them, and catches zmq.ZMQError and zmq.Again.

    socket = PushSocket("tcp://10.0.0.7:5557")  # instead of context.socket(zmq.PUSH) and socket.connect
    socket.send_multipart([b"room", b"17"])

Every thread may send: there is nothing to lock. A socket owns nothing, and garbage collection closes nothing.
"""

import contextlib
from typing import Optional

import zmq

import kvconn
from kvconn.types import Frame, Frames, Id, Options
from kvconn.zmq import as_zmq_errors

__all__ = ["ConnectionSocket", "PushSocket", "Socket", "tcp"]


class Socket:
    """What sends of both kinds share. `timeout_ms` bounds the waiting of each send; a negative one is the default."""

    def __init__(self, timeout_ms: int = -1) -> None:
        self.timeout_ms = timeout_ms

    def _send(self, parts: Frames, timeout_ms: int) -> object:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def send_multipart(self, parts: Frames, flags: int = 0, copy: bool = True, track: bool = False) -> None:
        """Sends one message, whole or not at all. zmq.NOBLOCK does not wait. It always copies."""
        with as_zmq_errors():
            self._send(parts, 0 if flags & zmq.NOBLOCK else self.timeout_ms)

    def send(self, data: Frame, flags: int = 0, copy: bool = True, track: bool = False) -> None:
        """Sends a message of one frame."""
        self.send_multipart([data], flags)

    def close(self, linger: Optional[int] = None) -> None:
        """Ends the connection, now. What is not sent is dropped; a kvconn.flush before it waits for that."""
        with contextlib.suppress(kvconn.Error):
            self._close()


class ConnectionSocket(Socket):
    """Sends on one connection, and to no later life of the peer: for messages that depend on earlier ones."""

    def __init__(self, conn: Id, timeout_ms: int = -1) -> None:
        super().__init__(timeout_ms)
        self.conn = conn

    def _send(self, parts: Frames, timeout_ms: int) -> object:
        return kvconn.send(self.conn, parts, timeout_ms)

    def _close(self) -> None:
        kvconn.disconnect(self.conn)


class PushSocket(Socket):
    """Sends to an endpoint, whichever life of the peer is there, and dials if needed: for messages that stand alone."""

    def __init__(
        self, endpoint: str, timeout_ms: int = -1, options: Optional[Options] = None, manager: Id = kvconn.DEFAULT
    ) -> None:
        super().__init__(timeout_ms)
        self.endpoint, self.manager = endpoint, manager
        if options is not None:
            with as_zmq_errors(), contextlib.suppress(kvconn.Timeout):  # the dial goes on, and keeps the options
                kvconn.connect(endpoint, options, 0, manager)

    def _send(self, parts: Frames, timeout_ms: int) -> object:
        return kvconn.send_to(self.endpoint, parts, timeout_ms, self.manager)

    def _close(self) -> None:
        kvconn.disconnect(kvconn.find(self.endpoint, self.manager))


def tcp(host: str, port: "int | str") -> str:
    """The endpoint of a host, which may be an IPv6 address, and a port."""
    return f"tcp://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"tcp://{host}:{port}"
