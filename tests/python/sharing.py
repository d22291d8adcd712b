"""What the tests that drive kvconn share: a manager of their own, a full connection, senders that block."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 120  # for a whole program on a loaded machine


@pytest.fixture
def kv(lib):
    """The module, loaded from the library under test."""
    import kvconn

    return kvconn


@pytest.fixture
def manager(kv):
    """A manager of the test's own, so that tests do not see each other's events and fences."""
    m = kv.manager_create()
    yield m
    kv.manager_destroy(m)


def run(*arguments, **environment):
    """A whole program, with what it printed."""
    environment = {**os.environ, **environment}
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture
def nobody():
    """An endpoint where nobody listens, kept from everybody else."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{bound.getsockname()[1]}"


def canonical(peer):
    """The endpoint as kvconn writes it: a dual-stack listener calls 127.0.0.1 [::ffff:127.0.0.1]."""
    return f"tcp://127.0.0.1:{peer.port}"


def fill(kv, conn):
    """Sends to a stopped peer until there is no room."""
    with pytest.raises((kv.Timeout, kv.Stalled)):
        for _ in range(10_000):
            kv.send(conn, [b"x" * 100_000], 200)


class BlockedSenders:
    """Threads that wait in a send of 30 s; each leaves the name of the error that it gets."""

    def __init__(self, kv, conn, count):
        self.names = []
        self.threads = [threading.Thread(target=self._send, args=(kv, conn), daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()
        deadline = time.monotonic() + 5
        while kv.connection_info(conn)["waiting"] != count:
            assert time.monotonic() < deadline, self.names
            time.sleep(0.001)

    def _send(self, kv, conn):
        try:
            kv.send(conn, [b"y"], 30_000)
            self.names.append("accepted")
        except kv.Error as error:
            self.names.append(error.name)

    def join(self, seconds):
        """The names, when all threads have ended in that time."""
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"still blocked after {seconds} s"
        return self.names


class Stop(Exception):
    """What a signal handler raises."""


@contextlib.contextmanager
def alarms(first, every=0, handler=None, raises=False):
    """SIGALRM after so many seconds (None: not by itself), and again; the moments when Python's handler ran."""
    handled = []

    def note(*_):
        handled.append(time.monotonic())
        if raises:
            raise Stop

    before = signal.signal(signal.SIGALRM, handler or note)
    try:
        signal.setitimer(signal.ITIMER_REAL, first or 0, every)
        yield handled
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
