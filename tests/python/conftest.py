"""What the Python tests share: the library's path, peers in their own processes, waiting with a deadline."""

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

import pytest

# A shell ignores SIGINT in what it starts in the background, and so would the programs that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "tests" / "peers"
ANSWER_SECONDS = 20

sys.path.insert(0, str(ROOT / "python"))


def library_path():
    """KVCONN_LIB, else the release build."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or "target")
    path = pathlib.Path(os.environ.get("KVCONN_LIB") or ROOT / target / "release" / "libkvconn.so")
    if not path.exists():
        pytest.exit(f"{path} is missing: run `make lib`, or set KVCONN_LIB", returncode=2)
    return path


def pytest_report_header():
    os.environ["KVCONN_LIB"] = str(library_path())
    from kvconn import _attempts

    return f"kvconn: sends and polls go through {'the C extension' if _attempts.PATH == 'extension' else 'ctypes'}"


@pytest.fixture(scope="session")
def lib():
    """The path of libkvconn.so; python/kvconn finds it through KVCONN_LIB as well."""
    path = library_path()
    os.environ["KVCONN_LIB"] = str(path)
    return path


def wait_until_true(what, condition, seconds=10.0):
    """Polls every millisecond; fails with `what` after the deadline; returns what the condition returned."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s in vain until {what}")
        time.sleep(0.001)
    return result


@pytest.fixture
def wait_until():
    return wait_until_true


class Process:
    """A program of tests/peers, driven by lines on its standard input and JSON lines on its standard output."""

    def __init__(self, program, *arguments):
        self.program = program
        self.process = subprocess.Popen(
            [sys.executable, PEERS / program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._buffer = b""
        self.endpoint = self.event("bound")["endpoint"]

    @property
    def pid(self):
        return self.process.pid

    @property
    def port(self):
        return int(self.endpoint.rsplit(":", 1)[1])

    def event(self, name, seconds=ANSWER_SECONDS):
        """The next event, which must have this name."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                pytest.fail(f"{self.program} said no {name} within {seconds} s")
            block = os.read(self.process.stdout.fileno(), 1 << 20)
            if not block:
                pytest.fail(f"{self.program} ended ({self.process.wait()}) before it said {name}")
            self._buffer += block
        line, self._buffer = self._buffer.split(b"\n", 1)
        event = json.loads(line)
        assert event["event"] == name, event
        return event

    def ask(self, command, answer, seconds=ANSWER_SECONDS):
        self.process.stdin.write(command.encode() + b"\n")
        return self.event(answer, seconds)

    def report(self):
        return self.ask("report", "report")

    def stop(self):
        """SIGSTOP; every thread has stopped when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until_true("every thread of the peer has stopped", lambda: set(self._states()) == {"T"})

    def cont(self):
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        wait_until_true("no thread of the peer is stopped", lambda: "T" not in self._states())

    def _states(self):
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            yield (task / "stat").read_text().rpartition(") ")[2][0]

    def kill(self):
        """SIGKILL; the process and its port are gone when this returns."""
        self.process.kill()
        self.process.wait()

    def terminate(self):
        """SIGTERM: it reads what has arrived, closes and exits 0. Returns its last totals."""
        self.process.terminate()
        totals = self.event("terminated")
        assert self.process.wait(ANSWER_SECONDS) == 0
        return totals

    def close_pipes(self):
        self.process.stdin.close()
        self.process.stdout.close()


class Peer(Process):
    """A pyzmq PULL socket in its own process (tests/peers/pull.py)."""

    def __init__(self, *arguments, bind="tcp://127.0.0.1:0"):
        super().__init__("pull.py", "--bind", bind, *arguments)

    def expect(self, messages, seconds=10.0):
        """Waits until so many messages have arrived in all."""
        answer = self.ask(f"expect {messages} {seconds * 1000:.0f}", "expected", seconds + ANSWER_SECONDS)
        assert answer["reached"], f"{answer['messages']} of {messages} messages after {seconds} s"

    def messages(self):
        """Every message, as lists of bytes. The peer must have been started with --keep."""
        answer = self.ask("messages", "messages")
        return [[bytes.fromhex(frame) for frame in frames] for frames in answer["messages"]]

    def pause(self):
        self.ask("pause", "paused")

    def resume(self):
        self.ask("resume", "resumed")

    def close(self):
        """Closes the socket; the process lives on."""
        self.ask("close", "closed")


class WrongPeer(Process):
    """A TCP listener that is no PULL socket (tests/peers/tcp.py)."""

    def __init__(self, mode="mute", port=0, host="127.0.0.1"):
        super().__init__("tcp.py", "--mode", mode, "--port", port, "--host", host)

    @property
    def connections(self):
        return self.report()["connections"]


def _factory(kind):
    started = []

    def start(*arguments, **options):
        started.append(kind(*arguments, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.close_pipes()


@pytest.fixture
def rank(lib):
    """Starts ranks as a user's test does: `rank(rcvhwm=1)` is a kvconn.testing.Peer."""
    from kvconn.testing import Peer

    with contextlib.ExitStack() as started:
        yield lambda *arguments, **options: started.enter_context(Peer(*arguments, **options))


@pytest.fixture
def peer():
    """Starts PULL peers: `peer()`, `peer("--keep", "--rcvhwm", 1, bind="tcp://127.0.0.1:0")`."""
    yield from _factory(Peer)


@pytest.fixture
def wrong_peer():
    """Starts wrong peers: `wrong_peer("http")`."""
    yield from _factory(WrongPeer)
