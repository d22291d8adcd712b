"""Attempts that keep the GIL: the extension and ctypes behave the same, lose nothing, and give up the GIL to wait."""

import ctypes
import gc
import os
import pathlib
import subprocess
import sys
import sysconfig
import threading
import time
import tracemalloc

import pytest

from conftest import ROOT
from sharing import fill, kv, manager  # noqa: F401: fixtures are found by name
from test_interrupted import HANDLERS_AFTER_RETURN, Storm

WAYS = ["extension", "ctypes", "none"]


@pytest.fixture
def ways(kv, monkeypatch):
    """ways(name): from here on, sends and polls are attempted in that way; "none" attempts nothing."""
    from kvconn import _attempts, _messages

    def use(way):
        if way == "extension" and _attempts._fast is None:
            pytest.skip("the extension is not in use: it was not built, or KVCONN_PYTHON_FAST=0")
        extension = _attempts._fast
        for name in ("send", "send_to", "send_batch", "track", "untrack", "poll_event"):
            ours = getattr(_attempts, f"_{name}")
            theirs = getattr(extension, {"poll_event": "next_event"}.get(name, name), None)
            chosen = {"extension": theirs, "ctypes": ours, "none": lambda *_: None}[way]
            monkeypatch.setattr(_attempts, name, chosen)
            if name.startswith("send"):
                monkeypatch.setattr(_messages, f"_attempt_{name}", chosen)

    return use


def test_the_way_is_the_one_that_was_asked_for(lib):
    """KVCONN_PYTHON_FAST=0 leaves the extension out. Where it was built, it is in use otherwise."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); from kvconn import _attempts; print(_attempts.PATH)"
    built = (ROOT / "python" / "kvconn" / "_fast.abi3.so").exists() and not sysconfig.get_config_var("Py_GIL_DISABLED")
    for setting, expected in (("0", "ctypes"), ("1", "extension" if built else "ctypes")):
        environment = {**os.environ, "KVCONN_LIB": str(lib), "KVCONN_PYTHON_FAST": setting}
        command = [sys.executable, "-c", script, ROOT / "python"]
        assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == f"{expected}\n"


class Number:
    """An integer that is no int."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def outcomes(kv, conn, node, endpoint, manager):
    """What calls with every kind of argument come to, without ids and times."""
    released = memoryview(bytearray(b"abc"))
    released.release()
    huge, dead = 10**30, 2**63 + 5
    frames = [[b"a"], (b"a", b""), [bytearray(b"a"), memoryview(b"bc")], [], [b""], [b"x"] * 129, [b"y" * 70_000]]
    frames += [[memoryview((ctypes.c_double * 3)(1, 2, 3))], [memoryview(b"abcd")[::2]], [released], ["text"], [None]]
    frames += [b"one", "one", None, 7, [b"x"] * 65_537, (frame for frame in (b"g",)), [kv.Error]]
    calls = [lambda frames=each: kv.send(conn, frames) for each in frames if not hasattr(each, "send")]
    calls += [lambda frames=each: kv.send_to(endpoint, frames, manager=manager)[1] for each in frames if each != [b""]]
    calls += [lambda frames=each: kv.send_batch([(conn, frames)]) for each in frames[:7]]
    for wrong in (-1, huge, None, True, 1.5, "7", Number(conn), dead, 0):
        calls += [
            lambda wrong=wrong: kv.send(wrong, [b"a"]),
            lambda wrong=wrong: kv.send_batch([(conn, [b"a"]), (wrong, [b"a"])]),
            lambda wrong=wrong: kv.node_track_request(wrong, 1),
            lambda wrong=wrong: kv.node_untrack_request(wrong, 1),
        ]
    for wrong in (-1, huge, None, True, 1.5, "7", Number(3), 2**64 - 1):
        calls += [lambda wrong=wrong: kv.node_track_request(node, wrong)]
        calls += [lambda wrong=wrong: kv.node_untrack_request(node, wrong)] * 2
    for wrong in (-2, huge, -huge, None, True, 1.5, "7", Number(0), -1, 0, 2**63 - 1):
        calls += [
            lambda wrong=wrong: kv.send(conn, [b"a"], wrong),
            lambda wrong=wrong: kv.send_to(endpoint, [b"a"], wrong, manager)[1],
            lambda wrong=wrong: kv.send_batch([(conn, [b"a"])], wrong),
        ]
    for wrong in ("a\0b", "\ud800", None, 7, b"tcp://127.0.0.1:9", "nonsense", "tcp://", ""):
        calls += [lambda wrong=wrong: kv.send_to(wrong, [b"a"], manager=manager)]
    for wrong in (-1, huge, None, "7", dead):
        calls += [lambda wrong=wrong: kv.send_to(endpoint, [b"a"], manager=wrong)]
        calls += [lambda wrong=wrong: kv.next_event(0, wrong)]
    calls += [lambda: kv.send_batch(7), lambda: kv.send_batch([7]), lambda: kv.send_batch([]), lambda: kv.send_batch(())]
    for call in calls:
        try:
            yield call()
        except Exception as error:
            fields = {**error.__dict__, "conn": None, "retry_after_ms": None}
            yield type(error), str(error), fields


def test_every_way_gives_the_same_results_and_errors(kv, peer, ways):
    found = {}
    for way in WAYS:
        try:
            ways(way)
        except pytest.skip.Exception:
            continue
        receiver = peer("--keep")
        m = kv.manager_create()
        conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=m)
        node, _ = kv.node_open("n", m)
        names = {str(conn): "CONN", str(node): "NODE", receiver.endpoint: "PEER", str(receiver.port): "PORT"}
        found[way] = []
        for outcome in outcomes(kv, conn, node, receiver.endpoint, m):
            text = str(outcome)
            for name, plain in names.items():
                text = text.replace(name, plain)
            found[way].append(text)
        total = kv.connection_info(conn)["accepted"]
        receiver.expect(total)
        found[way].append(receiver.messages())
        kv.manager_destroy(m)
    expected = found.pop("none")
    assert len(expected) > 100 and found
    for way, outcome in found.items():
        for ours, theirs in zip(outcome, expected):
            assert ours == theirs, way
        assert len(outcome) == len(expected)


def test_the_extension_takes_an_object_for_its_id(kv, manager, peer, ways):
    """kvconn.send(Connection) is as fast as with the number."""
    from kvconn import _attempts

    ways("extension")
    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    node, _ = kv.node_open("n", manager)
    for sequence, given in enumerate((conn, kv.Connection(conn), Number(conn)), 1):
        assert _attempts.send([None], given, [b"a"], 0) == sequence
    assert _attempts.send_batch([None], [(kv.Connection(conn), [b"a"])], 0) == ([(0, 4)], None)
    # Another object as a request is left to the Python code, which refuses ids.
    assert _attempts.track([None], kv.Node(node), Number(7)) is None
    assert _attempts.track([None], kv.Node(node), 7) is True
    assert _attempts.untrack([None], Number(node), 7) == 1
    for wrong in (True, Number(-1), Number(2**64), Number("text"), Number(None)):
        cell = [None]
        assert _attempts.send(cell, wrong, [b"a"], 0) is None and cell == [None]

    class Interrupted:
        def __index__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kv.send(Interrupted(), [b"a"])


def test_the_end_of_a_connection_is_the_same_error_in_every_way(kv, manager, peer, ways):
    for way in WAYS:
        try:
            ways(way)
        except pytest.skip.Exception:
            continue
        receiver = peer()
        conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
        kv.disconnect_endpoint(receiver.endpoint, manager)
        for call in (
            lambda: kv.send(conn, [b"x"]),
            lambda: kv.send_to(receiver.endpoint, [b"x"], manager=manager),
        ):
            with pytest.raises(kv.Disconnected) as caught:
                call()
            error = caught.value
            assert (error.scope, error.retriable) == (kv.SCOPE_PEER, False) and error.endpoint and error.message
        sent, partial = kv.send_batch([(conn, [b"x"]), (0, [])])
        assert kv.STATUSES[sent[0].status] is kv.Disconnected and sent[1] == (0, 0) and partial.conn == conn


@pytest.mark.parametrize("way", WAYS)
def test_a_full_connection_is_the_same_in_every_way(kv, manager, peer, ways, way):
    ways(way)
    receivers = [peer("--rcvhwm", 1, "--rcvbuf", 4096), peer()]
    stopped, free = (kv.connect(receiver.endpoint, {"send_hwm": 5}, 5000, manager) for receiver in receivers)
    receivers[0].stop()
    fill(kv, stopped)
    for ms, least, kinds in ((0, 0, (kv.Timeout,)), (300, 0, (kv.Timeout, kv.Stalled))):
        for call in (
            lambda ms=ms: kv.send(stopped, [b"x"], ms),
            lambda ms=ms: kv.send_to(receivers[0].endpoint, [b"x"], ms, manager),
        ):
            with pytest.raises(kinds) as caught:
                call()
            assert caught.value.conn == stopped and caught.value.retriable
        (full, sent), partial = kv.send_batch([(stopped, [b"x"]), (free, [b"x"])], ms)
        assert kv.STATUSES[full.status] in kinds and sent.status == 0 and partial.conn == stopped
    assert kv.connection_info(free)["accepted"] == 2, "what the attempt has sent is not sent again"
    accepted = kv.connection_info(stopped)["accepted"]
    threading.Timer(0.3, receivers[0].cont).start()
    (late, again), partial = kv.send_batch([(stopped, [b"late"]), (free, [b"x"])], 20_000)
    assert (late, again, partial) == ((0, accepted + 1), (0, 3), None)
    receivers[1].expect(3)


# ---- The GIL ---------------------------------------------------------------------------------------------------------


class Busy:
    """A thread that computes, and keeps the GIL for 30 s if it gets it."""

    def __enter__(self):
        self.before, self.stop, self.rounds, self.go = sys.getswitchinterval(), False, 0, threading.Event()
        self.thread = threading.Thread(target=self._compute)
        self.thread.start()
        time.sleep(0.01)  # it waits for `go`, most likely
        sys.setswitchinterval(30)  # a thread that waits for the GIL asks for it after this time
        self.go.set()
        return self

    def _compute(self):
        self.go.wait()
        while not self.stop:
            self.rounds += 1

    def __exit__(self, *_):
        self.stop = True
        sys.setswitchinterval(self.before)
        self.thread.join()


@pytest.mark.parametrize("way", ["extension", "ctypes"])
def test_sends_and_polls_keep_the_gil(kv, manager, peer, ways, way):
    ways(way)
    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    node, _ = kv.node_open("n", manager)
    while kv.next_event(0, manager):
        pass
    frames, endpoint = [b"x" * 64, b"y" * 60_000], receiver.endpoint
    calls = [
        lambda: kv.send(conn, frames),
        lambda: kv.send_to(endpoint, frames, manager=manager),
        lambda: kv.node_track_request(node, 7),
        lambda: kv.node_untrack_request(node, 7),
        lambda: kv.next_event(0, manager),
    ]
    if way == "extension":
        calls.append(lambda: kv.send_batch([(conn, [b"x"]), (0, [b"y"])]))
    with Busy() as busy:
        seen, rounds = busy.rounds, {}
        for number, call in enumerate(calls * 20):
            call()
            if busy.rounds != seen:
                rounds[number % len(calls)], seen = busy.rounds - seen, busy.rounds
                break
    assert rounds == {}, "the other thread ran during a call"


@pytest.mark.parametrize("way", ["extension", "ctypes"])
def test_a_send_that_waits_gives_up_the_gil(kv, manager, peer, ways, way):
    ways(way)
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    conn = kv.connect(receiver.endpoint, {"send_hwm": 5}, 5000, manager)
    receiver.stop()
    fill(kv, conn)
    time.sleep(0.01)
    ran = []
    thread = threading.Thread(target=lambda: [ran.append(time.sleep(0.01)) for _ in range(20)])
    thread.start()
    for call in (lambda: kv.send(conn, [b"x"], 600), lambda: kv.send_batch([(conn, [b"x"])], 600)):
        try:
            call()
        except (kv.Timeout, kv.Stalled):
            pass
    thread.join(10)
    assert len(ran) == 20


# ---- Signal handlers that raise, memory ------------------------------------------------------------------------------


@pytest.mark.skipif(HANDLERS_AFTER_RETURN, reason="a result can be lost in the frame of the caller")
@pytest.mark.parametrize("way", ["extension", "ctypes"])
def test_sends_in_a_storm_of_handlers_that_raise(kv, manager, peer, ways, way):
    """Each message that was accepted is known: by what the call returned, or by the exception."""
    ways(way)
    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    sequences, interrupted = {}, 0
    with Storm() as storm:
        for number in range(6000):
            content, kind = b"%d" % number, number % 3
            if kind == 0:
                sequence, call = storm.run(lambda: kv.send(conn, [content]))
            elif kind == 1:
                result, call = storm.run(lambda: kv.send_to(receiver.endpoint, [content], manager=manager))
                sequence = result and result[1]
            else:
                result, call = storm.run(lambda: kv.send_batch([(conn, [content])]))
                sequence = result and result[0][0].sequence
            if call is not None:
                interrupted += 1
                try:
                    result = call.result(10_000)
                    sequence = result if kind == 0 else result[1] if kind == 1 else result[0][0].sequence
                except (kv.Timeout, kv.Stalled):
                    sequence = None  # full, and interrupted before it waited
            if sequence:
                assert sequence not in sequences
                sequences[sequence] = content
    total = kv.connection_info(conn)["accepted"]
    assert sorted(sequences) == list(range(1, total + 1))
    receiver.expect(total, 20)
    assert receiver.messages() == [[sequences[number]] for number in range(1, total + 1)]
    assert interrupted > 5


@pytest.mark.parametrize("way", ["extension", "ctypes"])
def test_attempts_leak_nothing(kv, manager, peer, ways, way):
    ways(way)
    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    ended = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    kv.disconnect(ended)
    node, _ = kv.node_open("n", manager)
    array, released = bytearray(b"z" * 100), memoryview(bytearray(3))
    released.release()
    data, endpoint = b"unique" * 20, "tcp://127.0.0.1:%d" % receiver.port
    messages = [[data], (data, array), [data] * 40, [data, memoryview(array)], [data, released], [data, "text"]]
    messages += [[data, memoryview(array)[::2]], [data] * 200, [], [data, bytes(70_000)]]

    def everything():
        for target in (conn, ended, 2**60, -1):
            for frames in messages:
                for call in (
                    lambda: kv.send(target, frames),
                    lambda: kv.send_batch([(target, frames), (conn, [data])]),
                    lambda: kv.send_to(endpoint, frames, manager=manager),
                ):
                    try:
                        call()
                    except (kv.Error, TypeError, ValueError):
                        pass
        for request in (7, 2**64, None):
            try:
                kv.node_track_request(node, request)
                kv.node_untrack_request(node, request)
            except (TypeError, ValueError):
                pass
        kv.next_event(0, manager)

    def count():
        gc.collect()
        return [sys.getrefcount(each) for each in (data, array, endpoint, messages, None.__class__, kv.send)]

    for _ in range(20):
        everything()
    before, blocks = count(), sys.getallocatedblocks()
    tracemalloc.start()
    for _ in range(5):
        everything()
    traced = tracemalloc.get_traced_memory()[0]
    for _ in range(100):
        everything()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - traced
    tracemalloc.stop()
    assert count() == before
    # Four thousand calls: a lost object in each would be some 200,000 bytes.
    assert grown < 20_000 and sys.getallocatedblocks() - blocks < 1000, (grown, sys.getallocatedblocks() - blocks)
    messages.clear()
    array.append(0)  # no view of it is left


class Unreadable:
    """Its bytes cannot be had. Python 3.12 asks such a method."""

    def __init__(self, error):
        self.error = error

    def __buffer__(self, flags):
        raise self.error


@pytest.mark.skipif(sys.version_info < (3, 12), reason="buffers made in Python came with Python 3.12")
@pytest.mark.parametrize("way", WAYS)
def test_a_buffer_that_raises(kv, manager, peer, ways, way):
    ways(way)
    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    for error, expected in ((ValueError("v"), TypeError), (BufferError("b"), TypeError), (KeyError("k"), KeyError)):
        with pytest.raises(expected):
            kv.send(conn, [b"x", Unreadable(error)])
    with pytest.raises(KeyboardInterrupt):
        kv.send(conn, [b"x", Unreadable(KeyboardInterrupt())])
    assert kv.connection_info(conn)["accepted"] == 0


@pytest.mark.skipif(sys.version_info < (3, 12), reason="buffers made in Python came with Python 3.12")
def test_a_buffer_that_changes_the_list_of_frames(kv, manager, peer, ways):
    """While its own bytes are asked for."""
    ways("extension")

    class Emptying:
        def __init__(self, frames):
            self.frames = frames

        def __buffer__(self, flags):
            self.frames.clear()
            return memoryview(b"emptying")

    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    frames = [b"a" * 100]
    frames += [Emptying(frames), b"c" * 100]
    try:
        kv.send(conn, frames)
    except (kv.Invalid, TypeError):
        pass
    kv.send(conn, [b"end"])
    receiver.expect(kv.connection_info(conn)["accepted"])
    assert receiver.messages()[-1] == [b"end"]


def test_the_extension_refuses_calls_that_are_not_the_packages(lib):
    script = """
import sys; sys.path.insert(0, sys.argv[1])
import kvconn
from kvconn import _attempts
fast = _attempts._fast
for name in ("send", "send_to", "send_batch", "track", "untrack", "next_event"):
    function = getattr(fast, name)
    for wrong in ((), (None,), ([None],), ((None,), 1, 2, 3), (1, 2, 3, 4, 5, 6)):
        try:
            function(*wrong)
        except TypeError:
            continue
        raise SystemExit(f"{name}{wrong}")
for wrong in ({}, {"PyObject_GetBuffer": 0}, None, 7):
    try:
        fast.bind(wrong)
    except Exception:
        continue
    raise SystemExit(f"bind({wrong})")
try:
    fast.send([None], 1, [b"x"], 0)
except RuntimeError as error:
    assert "bind" in str(error)
"""
    from kvconn import _attempts

    if _attempts._fast is None:
        pytest.skip("the extension is not in use: it was not built, or KVCONN_PYTHON_FAST=0")
    environment = {**os.environ, "KVCONN_LIB": str(lib)}
    command = [sys.executable, "-c", script, pathlib.Path(ROOT / "python")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
