"""Buffers that kvconn reads in place: pinned until they are released, also at the interpreter's end."""

import ctypes
import pathlib
import re
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
    # Python 3.12 warns of every fork of a process with threads.
    command = [sys.executable, "-W", "ignore", "-c", prelude + textwrap.dedent(script), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, **pipes, text=True, env={"KVCONN_LIB": str(lib)}) as child:
        output, left = "", None
        for line in child.stdout:
            output += line
            left = time.monotonic() if line == "leaving\n" else left
        assert child.wait(seconds) == 0, output
        assert left is not None, output
        return output, time.monotonic() - left


def test_owned_frames_arrive_and_are_unpinned(kv, manager, peer):
    receiver = peer("--keep", "--rcvbuf", 4096)
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    frames = [b"header", bytearray(b"x" * 100_000), memoryview((ctypes.c_uint64 * 3)(1, 2, 3)), b""]
    receiver.stop()  # its kernel takes less than this
    assert kv.send_owned(conn, frames) == 1
    with pytest.raises(BufferError):
        frames[1].clear()  # it is pinned
    receiver.cont()
    kv.wait_released(conn, timeout_ms=5000)
    frames[1][:1] = b"y"
    frames[1].clear()
    receiver.expect(1)
    assert receiver.messages() == [[b"header", b"x" * 100_000, bytes((ctypes.c_uint64 * 3)(1, 2, 3)), b""]]
    assert kv.connection_info(conn)["released"] == 1


def test_what_was_refused_is_not_pinned(kv, manager, peer):
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


def test_what_libzmq_still_holds_after_a_refusal_stays_pinned(kv, manager, peer, monkeypatch):
    """INTERNAL of kvconn_send_owned: it has waited 10 s for libzmq to free the buffers. Freed memory would be read."""
    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)

    def refused(*arguments):
        arguments[-1]._obj.status = -14

    monkeypatch.setattr(kv._lib, "kvconn_send_owned", refused)
    buffer = bytearray(10)
    with pytest.raises(kv.Internal):
        kv.send_owned(conn, [buffer])
    monkeypatch.undo()
    assert kv.send_owned(conn, [b"next"]) == 1
    kv.wait_released(conn, timeout_ms=5000)
    kv.describe(manager)
    with pytest.raises(BufferError):
        buffer.clear()


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


def is_pinned(buffer):
    try:
        buffer.append(0)
    except BufferError:
        return True
    return False


def pins_of(released):
    """A Pins that is told by this dict up to which sequence each connection has released, and a list of those it asked
    for."""
    from kvconn import _buffers

    asked = []

    def ask(conn, sequence):
        asked.append(conn)
        return sequence <= released[conn]

    return _buffers.Pins(ask), asked


def pinned(pins, conn, sequence, status):
    """A buffer, and the call of its message, for which C wrote this."""
    from kvconn import _buffers, _calls

    buffer, call, frames = bytearray(1), _calls.Call("kvconn_send_owned"), _buffers.Pinned()
    frames.pin([buffer])
    pins.add(call, conn, ctypes.c_uint64(sequence), frames)
    call.error.status = status
    return buffer, call


def test_messages_in_another_order_are_unpinned_in_order(kv):
    released = {1: 2}
    pins, _ = pins_of(released)
    buffers = {sequence: pinned(pins, 1, sequence, 0)[0] for sequence in (3, 5, 1, 4, 2)}
    for released[1] in (2, 4, 5):
        pins.sweep(1)
        assert {sequence for sequence in buffers if is_pinned(buffers[sequence])} == set(range(released[1] + 1, 6))
    assert not pins


def test_a_message_whose_call_is_not_over_stays_pinned_and_a_refused_one_does_not(kv):
    from kvconn import _calls

    pins, asked = pins_of({1: 100})
    buffer, call = pinned(pins, 1, 0, _calls.TIMEOUT)  # of an attempt before the last
    pins.sweep(1)
    assert is_pinned(buffer) and asked == []
    call.last = True
    pins.sweep(1)
    assert not is_pinned(buffer) and asked == [] and not pins


@pytest.mark.parametrize("later", ["send", "send_to", "send_batch"])
def test_a_send_unpins_what_an_interrupted_call_has_left(kv, manager, peer, later):
    """Nothing else is pinned, and no call but sends comes after the one whose result was not taken."""
    from kvconn import _calls

    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    calls = {
        "send": lambda: kv.send(conn, [b"x"]),
        "send_to": lambda: kv.send_to(receiver.endpoint, [b"x"], manager=manager),
        "send_batch": lambda: kv.send_batch([(conn, [b"x"])]),
    }
    while _calls.pins:
        _calls.pins._due = 0
        _calls.pins.sweep()
    buffer, call = pinned(_calls.pins, conn, 1, _calls.UNFINISHED)
    for _ in range(3):
        calls[later]()
        assert is_pinned(buffer)
    _calls.pins.unpin_all()
    call.last, call.error.status = True, _calls.TIMEOUT
    calls[later]()
    assert not is_pinned(buffer)
    _calls.pins._due = 0
    _calls.pins.sweep()
    assert not _calls.pins


def test_a_sweep_looks_at_its_connection_and_at_some_others(kv):
    from kvconn import _buffers

    count = 3 * _buffers.TURN
    pins, asked = pins_of({conn: 0 for conn in range(1, count + 1)})
    buffers = [pinned(pins, conn, 1, 0)[0] for conn in range(1, count + 1)]
    pins.sweep(7)
    assert asked[0] == 7 and len(asked) == 1 + _buffers.TURN
    asked.clear()
    pins.sweep(7)
    assert asked == [7], "the last sweep of others was a moment ago"
    for _ in range(3):
        pins._due = 0
        pins.sweep()
    assert set(asked) == set(range(1, count + 1)), "all of them in turn"
    assert all(map(is_pinned, buffers))


def memory_kb():
    """What the process has in memory."""
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1])


@pytest.mark.parametrize("later", ["flush", "connection_info", "disconnect", "send", "next_event", "describe"])
def test_released_buffers_are_unpinned_by_any_later_call(kv, manager, peer, wait_until, later):
    """R10: nobody calls wait_released."""
    receivers = [peer() for _ in range(3)]
    conns = [kv.connect(receiver.endpoint, wait_ms=5000, manager=manager) for receiver in receivers]
    other = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    before, buffers = memory_kb(), []
    for conn in conns:
        buffers.append(bytearray(b"x") * (32 << 20))
        kv.send_owned(conn, [buffers[-1]])
    for conn in conns[1:]:
        kv.flush(conn, timeout_ms=10_000)
    receivers[2].kill()
    calls = {
        "flush": lambda: kv.flush(other),
        "connection_info": lambda: kv.connection_info(other),
        "disconnect": lambda: kv.disconnect(other),
        "send": lambda: kv.send(other, [b"x"]),
        "next_event": lambda: kv.next_event(0, manager),
        "describe": lambda: kv.describe(manager),
    }
    while buffers:
        wait_until(f"{later} has unpinned a buffer", lambda: calls[later]() and False or not is_pinned(buffers[-1]))
        buffers.pop()
    assert memory_kb() < before + (16 << 10)


def test_what_info_calls_released_is_unpinned_by_then(kv, manager, peer, wait_until):
    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    for sequence in range(1, 20):
        buffer = bytearray(1000)
        kv.send_owned(conn, [buffer])
        wait_until("it is released", lambda: kv.connection_info(conn)["released"] >= sequence)
        assert not is_pinned(buffer)


def test_a_shutdown_unpins_what_it_has_released(peer, lib):
    script = """
        import kvconn
        conn = kvconn.connect(sys.argv[1], wait_ms=5000)
        buffer = bytearray(1000)
        kvconn.send_owned(conn, [buffer])
        kvconn.shutdown(5000)
        buffer.clear()
        print("leaving", flush=True)
    """
    assert run(lib, script, peer().endpoint)[0] == "leaving\n"


def test_a_forked_child_has_nothing_pinned(peer, lib):
    receiver = peer("--rcvhwm", 1)
    script = """
        import kvconn, os, signal
        conn = kvconn.connect(sys.argv[1], wait_ms=5000)
        os.kill(int(sys.argv[2]), signal.SIGSTOP)
        buffer = bytearray(8 << 20)
        kvconn.send_owned(conn, [buffer])
        child = os.fork()
        if child == 0:
            buffer.clear()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        try:
            buffer.clear()
        except BufferError:
            print("leaving", flush=True)
    """
    assert run(lib, script, receiver.endpoint, receiver.pid)[0] == "leaving\n"


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


LEAVE_PINNED = """
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


@pytest.mark.parametrize("script", [LEAVE_PINNED, LEAVE_CALLED_BACK, LEAVE_LOGGING])
def test_an_interpreter_leaves_in_order(peer, lib, script):
    """With buffers out; while a release or a line of the log is called on a thread that then waits for a GIL it never
    gets."""
    receiver = peer()
    for _ in range(5):
        output, took = run(lib, script, receiver.endpoint)
        assert took < 2 and output == "leaving\n"


def test_an_interpreter_leaves_with_buffers_that_a_stopped_peer_keeps(peer, lib):
    receiver = peer("--rcvhwm", 1)
    script = LEAVE_PINNED + "    assert kvconn.connection_info(conn)['released'] < sent"
    output, took = run(lib, script, receiver.endpoint, receiver.pid)
    assert took < 2 and output == "leaving\n"
