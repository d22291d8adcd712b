"""Buffers that Python lends: they stay as they are until they are released, also at the interpreter's end."""

import ctypes
import pathlib
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from sharing import kv, manager  # noqa: F401: fixtures are found by name

PYTHON = pathlib.Path(__file__).resolve().parents[2] / "python"


def run(lib, script, *arguments, seconds=20):
    """Runs a script in an interpreter of its own; its output, and how long it took after it printed "leaving"."""
    prelude = f"import sys; sys.path.insert(0, {str(PYTHON)!r})\n"
    command = [sys.executable, "-c", prelude + textwrap.dedent(script), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={"KVCONN_LIB": str(lib)}) as child:
        output, left = "", None
        for line in child.stdout:
            output += line
            left = time.monotonic() if line == "leaving\n" else left
        assert child.wait(seconds) == 0, output
        assert left is not None, output
        return output, time.monotonic() - left


def test_lent_frames_arrive_and_are_given_back(kv, manager, peer):
    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    frames = [b"header", bytearray(b"x" * 100_000), memoryview((ctypes.c_uint64 * 3)(1, 2, 3)), b""]
    assert kv.send_owned(conn, frames) == 1
    with pytest.raises(BufferError):
        frames[1].clear()  # Python knows that it is lent
    kv.wait_released(conn, timeout_ms=5000)
    frames[1][:1] = b"y"
    frames[1].clear()
    receiver.expect(1)
    assert receiver.messages() == [[b"header", b"x" * 100_000, bytes((ctypes.c_uint64 * 3)(1, 2, 3)), b""]]
    assert kv.connection_info(conn)["released"] == 1


def test_what_was_refused_is_not_held(kv, manager, peer):
    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    buffer = bytearray(10)
    for frames in (["text"], [buffer, 17], [memoryview(b"abcdef")[::2]]):
        with pytest.raises((TypeError, BufferError)):
            kv.send_owned(conn, frames)
    for single in (b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc"):
        with pytest.raises(TypeError, match=r"write \[frame\]"):
            kv.send_owned(conn, single)
    with pytest.raises(kv.Invalid):
        kv.send_owned(conn, [])
    kv.disconnect(conn)
    with pytest.raises(kv.Disconnected):
        kv.send_owned(conn, [buffer])
    buffer.clear()
    before = sys.getrefcount(buffer)
    with pytest.raises(kv.Stale):
        kv.send_owned(conn + 1_000_000, [buffer])
    assert sys.getrefcount(buffer) == before


def test_a_stopped_peer_keeps_them_until_the_end_of_the_connection(kv, manager, peer):
    receiver = peer("--rcvhwm", 1)
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    receiver.stop()
    buffers = [bytearray(8 << 20) for _ in range(3)]
    for buffer in buffers:
        kv.send_owned(conn, [buffer])
    with pytest.raises(kv.Timeout):
        kv.wait_released(conn, timeout_ms=100)
    kv.disconnect(conn)
    kv.wait_released(conn, timeout_ms=5000)
    for buffer in buffers:
        buffer.clear()


def lent(_lent, released):
    """A Lent that is told by this dict what is released, and a list of the connections that it asked for."""
    asked = []

    def ask(conn):
        asked.append(conn)
        return released[conn]

    return _lent.Lent(ask), asked


def is_lent(buffer):
    try:
        buffer.append(0)
    except BufferError:
        return True
    return False


def test_loans_noted_in_another_order_are_given_back_in_order(kv):
    from kvconn import _lent

    released = {1: 2}
    loans, _ = lent(_lent, released)
    buffers = {sequence: bytearray(1) for sequence in range(1, 6)}
    for sequence in (3, 5, 1, 4, 2):
        loans.add(1, sequence, _lent.Loan([buffers[sequence]]))
    for released[1] in (2, 4, 5):
        loans.reclaim(1)
        assert [sequence for sequence, buffer in buffers.items() if is_lent(buffer)] == list(range(released[1] + 1, 6))


def test_reclaiming_looks_at_one_connection_and_now_and_then_at_all(kv):
    from kvconn import _lent

    loans, asked = lent(_lent, {1: 0, 2: 0, 3: None})
    buffers = {conn: bytearray(1) for conn in (1, 2, 3)}
    for conn, buffer in buffers.items():
        loans.add(conn, 1, _lent.Loan([buffer]))
    for _ in range(_lent.SWEEP - 1):
        loans.reclaim(1)
    assert set(asked) == {1} and is_lent(buffers[3])
    loans.reclaim(1)
    assert set(asked) == {1, 2, 3} and not is_lent(buffers[3]), "one that is not known any more lends nothing"
    asked.clear()
    loans.reclaim_all()
    assert asked == [1, 2]


def test_a_callback_needs_the_gil_while_a_send_holds_it(kv, manager, peer, lib):
    """A library loaded so that calls keep the GIL: the callback waits for it, and the send for nobody."""
    from kvconn import _ffi

    holding = ctypes.PyDLL(str(lib))
    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    told, done = [], threading.Event()

    @_ffi.release_fn_t
    def release(conn, sequence, outcome, _):
        told.append((conn, sequence, outcome, threading.current_thread().name))
        if len(told) == 200:
            done.set()

    data = bytes(100_000)
    frame = _ffi.kvconn_frame_t(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))
    error = _ffi.kvconn_error_t()
    send = holding.kvconn_send_owned
    send.argtypes = _ffi.FUNCTIONS["kvconn_send_owned"][1]
    for _ in range(200):
        assert send(conn, ctypes.byref(frame), 1, 5000, release, None, None, ctypes.byref(error)) == 0, error.message
    assert done.wait(10)
    assert [each[:3] for each in told] == [(conn, sequence, kv.OUTCOME_ACKNOWLEDGED) for sequence in range(1, 201)]
    kv.wait_released(conn, timeout_ms=5000)


LEAVE_LENDING = """
    import kvconn
    import os, signal
    conn = kvconn.connect(sys.argv[1], wait_ms=5000)
    if len(sys.argv) > 2:
        os.kill(int(sys.argv[2]), signal.SIGSTOP)
    sent = 0
    try:
        while sent < 50:
            kvconn.send_owned(conn, [bytes([sent]) * (4 << 20)], timeout_ms=100)
            sent += 1
    except (kvconn.Timeout, kvconn.Stalled):
        pass
    assert sent > 0
    print("leaving", flush=True)
"""


LEAVE_CALLED_BACK = """
    import ctypes, time
    import kvconn
    from kvconn import _ffi
    conn = kvconn.connect(sys.argv[1], wait_ms=5000)
    data = bytes(10_000)
    frame = _ffi.kvconn_frame_t(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))
    release = _ffi.release_fn_t(lambda *_: time.sleep(0.0001))
    library = _ffi.load()
    for _ in range(500):
        assert library.kvconn_send_owned(conn, ctypes.byref(frame), 1, 5000, release, None, None, None) == 0
    print("leaving", flush=True)
"""


LEAVE_LOGGING = """
    import kvconn
    from kvconn import _ffi
    lines = []
    kvconn.set_log(lambda level, line: lines.append(line), _ffi.LOG_DEBUG)
    conn = kvconn.connect(sys.argv[1], wait_ms=5000)
    manager = kvconn.manager_create()
    for _ in range(500):
        kvconn.disconnect(kvconn.connect("tcp://127.0.0.1:9", wait_ms=0, manager=manager))
        kvconn.manager_destroy(manager, 5000)
        manager = kvconn.manager_create()
    print("leaving", flush=True)
"""


@pytest.mark.parametrize("script", [LEAVE_LENDING, LEAVE_CALLED_BACK, LEAVE_LOGGING])
def test_an_interpreter_leaves_in_order(peer, lib, script):
    """With buffers out; while a release or a line of the log is called on a thread that then waits for a GIL it never gets."""
    receiver = peer()
    for _ in range(5):
        output, took = run(lib, script, receiver.endpoint)
        assert took < 2 and output == "leaving\n"


def test_an_interpreter_leaves_with_buffers_that_a_stopped_peer_keeps(peer, lib):
    receiver = peer("--rcvhwm", 1)
    output, took = run(lib, LEAVE_LENDING + "    assert kvconn.connection_info(conn)['released'] < sent", receiver.endpoint, receiver.pid)
    assert took < 2 and output == "leaving\n"
