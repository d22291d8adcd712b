"""Push sockets for code that was written for pyzmq: it sends on them, and catches zmq.ZMQError and zmq.Again.

    socket = PushSocket("tcp://10.0.0.7:5557")  # instead of context.socket(zmq.PUSH) and socket.connect
    socket.send_multipart([b"room", b"17"])

Every thread may send: there is nothing to lock. A socket owns nothing, and garbage collection closes nothing.
"""

import contextlib
import operator
from typing import Any, Optional

import zmq

import kvconn
from kvconn.types import Frame, Frames, Id, Options
from kvconn.zmq import as_zmq_errors

__all__ = ["ConnectionSocket", "PushSocket", "Socket", "tcp"]


class Socket:
    """What both kinds share.

    timeout_ms  bounds the waiting of each send; a negative one is the option send_timeout_ms, never for ever
    linger      the milliseconds that `close` waits for acknowledgements; 0 drops what is not sent
    """

    def __init__(self, timeout_ms: int = -1) -> None:
        self.timeout_ms, self.linger = timeout_ms, 0

    def _send(self, parts: Frames, timeout_ms: int) -> object:
        raise NotImplementedError

    def _conn(self) -> Id:
        raise NotImplementedError

    def send_multipart(
        self, parts: Frames, flags: int = 0, copy: bool = True, track: bool = False
    ) -> Optional[zmq.MessageTracker]:
        """Sends one message, whole or not at all. zmq.NOBLOCK does not wait. The frames are copied, also with copy=False,
        so a tracker is done at once.
        """
        with as_zmq_errors():
            self._send(parts, 0 if flags & zmq.NOBLOCK else self.timeout_ms)
        return zmq.MessageTracker() if track else None

    def send(self, data: Frame, flags: int = 0, copy: bool = True, track: bool = False) -> Optional[zmq.MessageTracker]:
        """Sends a message of one frame."""
        return self.send_multipart([data], flags, copy, track)

    def setsockopt(self, option: int, value: Any) -> None:
        """Takes zmq.SNDTIMEO and zmq.LINGER. Other options are kvconn's to choose, and are ignored."""
        if option == zmq.SNDTIMEO:
            self.timeout_ms = max(int(value), -1)
        elif option == zmq.LINGER:
            self.linger = int(value)

    def close(self, linger: Optional[int] = None) -> None:
        """Ends the connection, after up to `linger` milliseconds for what is in flight. Later sends fail, or dial again."""
        linger = self.linger if linger is None else linger
        with contextlib.suppress(kvconn.Error):
            conn = self._conn()
            if linger:
                with contextlib.suppress(kvconn.Error):
                    kvconn.flush(conn, 0, linger)
            kvconn.disconnect(conn)

    def __enter__(self) -> "Socket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ConnectionSocket(Socket):
    """Sends on one connection, and to no later life of the peer: for messages that depend on earlier ones."""

    def __init__(self, conn: Id, timeout_ms: int = -1) -> None:
        super().__init__(timeout_ms)
        self.conn = conn

    def _send(self, parts: Frames, timeout_ms: int) -> object:
        return kvconn.send(self.conn, parts, timeout_ms)

    def _conn(self) -> Id:
        return self.conn


class PushSocket(Socket):
    """Sends to an endpoint, whichever life of the peer is there, and dials if needed: for messages that stand alone."""

    def __init__(
        self, endpoint: str, timeout_ms: int = -1, options: Optional[Options] = None, manager: Id = kvconn.DEFAULT
    ) -> None:
        super().__init__(timeout_ms)
        self.endpoint, self.manager = endpoint, operator.index(manager)
        if options is not None:
            with as_zmq_errors():
                try:
                    kvconn.connect(endpoint, options, 0, self.manager)
                except kvconn.Timeout as error:
                    if not error.conn:  # no dial has begun that keeps the options: the next one would be without CURVE
                        raise

    def _send(self, parts: Frames, timeout_ms: int) -> object:
        return kvconn.send_to(self.endpoint, parts, timeout_ms, self.manager)

    def _conn(self) -> Id:
        return kvconn.find(self.endpoint, self.manager)


def tcp(host: str, port: "int | str") -> str:
    """The endpoint of a host, which may be an IPv6 address, and a port."""
    return f"tcp://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"tcp://{host}:{port}"
