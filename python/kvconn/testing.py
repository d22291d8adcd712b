"""Ranks for tests of an engine: Peer is a rank in a process of its own, and goodbye() is how a rank of pyzmq leaves.

    with kvconn.testing.Peer() as rank:
        conn = kvconn.connect(rank.endpoint, wait_ms=3000)
        kvconn.send(conn, [b"room", b"17"])
        rank.wait_for(1)
        assert rank.messages() == [[b"room", b"17"]]
        rank.refuse()  # and see what the engine does

A Peer is the program kvconn-peer: an ordinary libzmq PULL socket that knows nothing of kvconn. It is looked for in this
order: the argument `program`, the variable KVCONN_PEER, PATH, beside the library and in the `bin` of its prefix. The
wheel does not contain it: `make peer` in a checkout builds target/release/kvconn-peer, and `make install` installs it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import shutil
import signal
import socket as _socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from . import _calls
from ._keys import pair

if TYPE_CHECKING:
    import zmq

__all__ = ["KINDS", "Peer", "PeerError", "Report", "find_program", "goodbye"]

#: What may listen at a Peer's endpoint: a PULL socket, a REP socket, or something that speaks no ZMTP.
KINDS = ("pull", "rep", "mute", "http", "garbage")


class PeerError(RuntimeError):
    """kvconn-peer has ended, or it says what is wrong."""


class Report(NamedTuple):
    """The counts of a Peer, over all its lives in one process."""

    messages: int
    bytes: int
    #: Connections that are open now.
    connections: int
    #: Connections that it has accepted so far.
    accepted: int


def find_program(program: str | os.PathLike[str] | None = None) -> str:
    """The path of kvconn-peer. Raises FileNotFoundError, which says where it was looked for."""
    for given, name in ((program, "the argument `program`"), (os.environ.get("KVCONN_PEER"), "KVCONN_PEER")):
        if given:
            if found := shutil.which(given):
                return found
            raise FileNotFoundError(f"kvconn-peer: {name} is {os.fspath(given)!r}, and there is no such program")
    directory = pathlib.Path(_library()).parent
    beside = [directory, directory.parent / "bin", directory.parent.parent / "bin"]
    for path in (None, os.pathsep.join(map(str, beside))):
        if found := shutil.which("kvconn-peer", path=path):
            return found
    raise FileNotFoundError(
        "kvconn-peer is not on PATH, and not in "
        + ", ".join(map(str, beside))
        + ". Set KVCONN_PEER to its path. `make peer` in a checkout of kvconn builds target/release/kvconn-peer, and"
        " `make install` installs it."
    )


class Peer:
    """A rank in a process of its own, at `endpoint`. Use it as a context manager: at its end the process is killed.

    kind: what listens at the endpoint (KINDS). curve: True for a CURVE server with a new key pair, or its secret key in
    Z85; `public_key` is then for the option curve_server_key. record: keep the messages for messages(), in a temporary
    file. rcvhwm, rcvbuf, step_ms, last_step_ms: the options of kvconn-peer (`kvconn-peer --help`). timeout: how many
    seconds an answer may take.

    Each method returns when kvconn-peer has done it. It raises PeerError if the process has ended or says that it
    cannot, and TimeoutError if there is no answer in time, as from a frozen one.
    """

    #: Where it listens, such as tcp://127.0.0.1:40001. It stays the same over a restart.
    endpoint: str
    #: Its CURVE public key in Z85; None without CURVE.
    public_key: str | None

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:*",
        *,
        kind: str = "pull",
        curve: bool | str = False,
        record: bool = True,
        rcvhwm: int | None = None,
        rcvbuf: int | None = None,
        step_ms: int | None = None,
        last_step_ms: int | None = None,
        program: str | os.PathLike[str] | None = None,
        timeout: float = 20.0,
    ) -> None:
        self.timeout = timeout
        self.endpoint, self.public_key = endpoint, None
        self._kind, self._closed = kind, False
        self._directory = tempfile.TemporaryDirectory(prefix="kvconn-peer-")
        self._record = pathlib.Path(self._directory.name) / "record" if record else None
        self._command = [find_program(program)]
        options = {"rcvhwm": rcvhwm, "rcvbuf": rcvbuf, "step-ms": step_ms, "last-step-ms": last_step_ms}
        for name, value in {**options, "record": self._record}.items():
            if value is not None:
                self._command += [f"--{name}", str(value)]
        if curve:
            secret = pathlib.Path(self._directory.name) / "secret"
            secret.touch(0o600)
            secret.write_text(curve if isinstance(curve, str) else pair()[1])
            self._command += ["--curve-secret-file", str(secret)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvconn.testing.Peer {self.endpoint} pid={self._running().pid if self.alive else None}>"

    @property
    def pid(self) -> int:
        """The id of its process, or of the last one."""
        return self._running().pid

    @property
    def port(self) -> int:
        """The port of its TCP endpoint."""
        return int(self.endpoint.rpartition(":")[2])

    @property
    def alive(self) -> bool:
        """Whether its process lives. A frozen one does."""
        return self._process is not None and self._process.poll() is None

    def report(self) -> Report:
        """What it has received and accepted so far."""
        words = dict(word.split("=") for word in self.ask("report").split()[1:])
        return Report(*(int(words[name]) for name in Report._fields))

    def messages(self) -> list[list[bytes]]:
        """All messages that it has received, as lists of frames, in all its lives; also when it has ended."""
        if self._record is None:
            raise PeerError("it was made with record=False")
        return list(_messages(self._record.read_bytes() if self._record.exists() else b""))

    def wait_for(self, messages: int, timeout: float = 10.0) -> Report:
        """Waits until it has received so many messages in all. Raises TimeoutError, with its counts."""
        deadline = time.monotonic() + timeout
        while (report := self.report()).messages < messages:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{report.messages} of {messages} messages after {timeout} s: {report}")
            time.sleep(0.002)
        return report

    def pause(self) -> None:
        """It reads no more messages. Its libzmq goes on until its queue is full."""
        self.ask("pause")

    def resume(self) -> None:
        """It reads again."""
        self.ask("resume")

    def freeze(self) -> None:
        """Stops the process, as SIGSTOP does: its kernel answers, it does not. Every thread has stopped on return."""
        self.ask("freeze")
        self._wait_for_states("every thread has stopped", lambda states: states == {"T"})

    def thaw(self) -> None:
        """A frozen process continues."""
        os.kill(self.pid, signal.SIGCONT)
        self._wait_for_states("no thread is stopped", lambda states: "T" not in states)

    def die(self) -> None:
        """SIGKILL. The process and its port are gone when this returns."""
        process = self._running()
        process.kill()
        process.wait()

    def goodbye(self) -> None:
        """It leaves without loss: half-closes, reads until its senders have closed too, and exits. With rcvhwm=0 it has
        then received everything that was acknowledged. The senders must close within the timeout, as kvconn does.
        """
        self.ask("goodbye")
        process = self._running()
        try:
            status = process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            text = f"it has not left within {self.timeout} s: do its senders still have connections?"
            raise TimeoutError(text) from None
        if status != 0:
            raise PeerError(f"kvconn-peer has left with status {status}")

    def refuse(self) -> None:
        """Its connections end, and its endpoint refuses new ones. Nobody else can listen there until accept()."""
        self.ask("refuse")

    def accept(self, kind: str | None = None) -> None:
        """After refuse(): a new life at the same endpoint, of this kind or of the kind before."""
        self.ask(f"accept {kind or self._kind}")
        self._kind = kind or self._kind

    def restart(self, kind: str | None = None) -> None:
        """A new life at the same endpoint. Every connection ends. A process that has ended is followed by a new one,
        whose counts begin at 0; messages() still has those of all lives.
        """
        if self.alive:
            self.ask(f"restart {kind or self._kind}")
            self._kind = kind or self._kind
        else:
            self._kind = kind or self._kind
            self._start()

    def ask(self, command: str) -> str:
        """Sends one line to kvconn-peer and returns its answer."""
        with self._lock:
            process = self._running()
            if self._closed:
                raise PeerError("this Peer is closed")
            assert process.stdin is not None
            try:
                process.stdin.write(command.encode() + b"\n")
            except OSError:
                pass  # it has ended; the next line says so
            else:
                self._owed += 1
            answer = self._answer(process, command)
        if answer.startswith("error: "):
            raise PeerError(answer.removeprefix("error: "))
        return answer

    def close(self) -> None:
        """Kills the process, and removes what it has recorded. It may be called twice."""
        self._closed = True
        if self._process is not None:
            self.die()
            _close_pipes(self._process)
        self._directory.cleanup()

    def _start(self) -> None:
        if self._closed:
            raise PeerError("this Peer is closed")
        if self._process is not None:
            _close_pipes(self._process)
        self._rest, self._owed = b"", 1
        command = [*self._command, "--as", self._kind, self.endpoint]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        bound, _, key = self._answer(self._process, "its endpoint").removeprefix("bound ").partition(" ")
        self.endpoint, self.public_key = bound, key or None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise PeerError("kvconn-peer has not been started")
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], what: str) -> str:
        """The last of the lines that are owed. A command that was given up has left its answer."""
        assert process.stdout is not None
        deadline = time.monotonic() + self.timeout
        while True:
            while b"\n" in self._rest and self._owed:
                line, _, self._rest = self._rest.partition(b"\n")
                self._owed -= 1
                if not self._owed:
                    return line.decode()
            left = max(0.0, deadline - time.monotonic())
            if not select.select([process.stdout], [], [], left)[0]:
                raise TimeoutError(f"kvconn-peer did not answer within {self.timeout} s: {what}")
            block = os.read(process.stdout.fileno(), 65536)
            if not block:
                raise PeerError(_end(process))
            self._rest += block

    def _wait_for_states(self, what: str, condition: Callable[[set[str]], bool]) -> None:
        deadline = time.monotonic() + self.timeout
        while not condition({_state(task) for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir()}):
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {self.timeout} s in vain until {what}")
            time.sleep(0.001)


def _state(task: pathlib.Path) -> str:
    return (task / "stat").read_text().rpartition(") ")[2][0]


def _end(process: subprocess.Popen[bytes]) -> str:
    """How a process ended, and what it said last."""
    status = process.wait()
    assert process.stderr is not None
    said = process.stderr.read().decode(errors="replace").partition("\n")[0].removeprefix("kvconn-peer: ")
    return f"kvconn-peer has ended with status {status}" + (f": {said}" if said else "")


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _messages(record: bytes) -> Iterator[list[bytes]]:
    """The whole messages of a record."""
    at = 0
    while at + 4 <= len(record):
        (count,) = struct.unpack_from("=I", record, at)
        at += 4
        if at + 4 * count > len(record):
            return
        sizes: Sequence[int] = struct.unpack_from(f"={count}I", record, at)
        at += 4 * count
        if at + sum(sizes) > len(record):
            return  # it is being written
        frames = []
        for size in sizes:
            frames.append(record[at : at + size])
            at += size
        yield frames


def goodbye(socket: zmq.Socket[bytes], quiet_ms: int = 100) -> Iterator[list[bytes]]:
    """A rank of pyzmq leaves without loss. The connections of its bound socket are half-closed at once; the iterator
    gives the messages that still come, and ends when all senders have closed too and nothing has come for `quiet_ms`.

        for frames in kvconn.testing.goodbye(pull):
            handle(frames)
        pull.close()

    The socket must have ZMQ_RCVHWM 0: docs/liveness.md says why. Senders that dial again have to leave as well.
    """
    _half_close(socket)
    return _last_messages(socket, quiet_ms)


def _half_close(socket: zmq.Socket[bytes]) -> int:
    """Closes our direction of each connection to the socket's endpoint; how many libzmq has not closed yet."""
    import zmq  # who calls this has it

    endpoint, connections = socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0"), 0
    for link in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), _duplicate(int(link.name)) as connection:
            name = connection.getsockname()  # (host, port, ...), a path, or the bytes of an abstract name
            text = f":{name[1]}" if isinstance(name, tuple) else f"ipc://{_text(name)}"
            if endpoint.endswith(text) and not connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_ACCEPTCONN):
                connections += 1
                connection.shutdown(_socket.SHUT_WR)
    return connections


def _duplicate(descriptor: int) -> _socket.socket:
    """A duplicate of a socket, so that nothing else is closed by it. OSError if it is no socket."""
    duplicate = os.dup(descriptor)
    try:
        return _socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else "@" + name[1:].decode(errors="replace")


def _last_messages(socket: zmq.Socket[bytes], quiet_ms: int) -> Iterator[list[bytes]]:
    while True:
        connected = _half_close(socket)
        if not socket.poll(quiet_ms) and not connected:
            return
        while socket.poll(0):
            yield socket.recv_multipart()


def _library() -> str:
    """The file of the loaded library."""
    name = str(_calls.lib._name)
    if os.sep not in name:
        # Found by the system's loader: the maps of the process say where.
        for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
            if (path := line.partition("/")[2]).rpartition("/")[2].startswith("libkvconn.so"):
                return "/" + path
    return name
