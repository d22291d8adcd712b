"""Signal handlers run during every wait, and a wait stays one call with one deadline (R14)."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from conftest import ROOT
from sharing import Stop, alarms, canonical, fill, kv, manager  # noqa: F401: fixtures are found by name

SLICE = 0.2
SLACK = 0.3  # for a loaded machine
DEADLINE_MS = 900
LONG_MS = 8000


class Stuck:
    """Everything that a call can wait for: a stopped peer, full and with an owned message in flight, and a mute one."""

    def __init__(self, kv, manager, peer, wrong_peer):
        self.kv, self.manager = kv, manager
        self.receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096, "--keep")
        self.conn = kv.connect(self.receiver.endpoint, {"send_hwm": 5}, 5000, manager)
        self.mute = wrong_peer("mute")
        gone = peer()
        self.refused = gone.endpoint
        gone.kill()
        self.quiet = kv.manager_create()
        self.receiver.stop()
        self.moved = time.monotonic()  # the last progress comes later, in `fill`
        kv.send_owned(self.conn, [bytearray(1 << 20)])
        fill(kv, self.conn)

    def wait(self, name, ms):
        """The call of that name; an error's name, or what it returns."""
        kv, conn = self.kv, self.conn
        try:
            return {
                "connect": lambda: kv.connect(self.mute.endpoint, None, ms, self.manager),
                "connect with retries": lambda: kv.connect(self.refused, {"connect_retry": 1}, ms, self.manager),
                "send": lambda: kv.send(conn, [b"late"], ms),
                "send_to": lambda: kv.send_to(self.receiver.endpoint, [b"late"], ms, self.manager),
                "send_to a new peer": lambda: kv.send_to(self.mute.endpoint, [b"late"], ms, self.manager),
                "send_owned": lambda: kv.send_owned(conn, [b"late"], ms),
                "send_batch": lambda: kv.STATUSES[kv.send_batch([(conn, [b"late"])], ms)[0][0].status].__name__,
                "flush": lambda: kv.flush(conn, 0, ms),
                "wait_released": lambda: kv.wait_released(conn, 0, ms),
                "next_event": lambda: kv.next_event(ms, self.quiet),
                "disconnect_all": lambda: kv.disconnect_all(ms, self.manager),
            }[name]()
        except kv.Error as error:
            return type(error).__name__


FULL = {"Timeout", "Stalled"}
ENDS = {
    "connect": {"Timeout"},
    "connect with retries": {"Timeout"},
    "send": FULL,
    "send_to": FULL,
    "send_to a new peer": FULL,
    "send_owned": FULL,
    "send_batch": FULL,
    "flush": {"Timeout"},
    "wait_released": {"Timeout"},
    "next_event": {None},
    "disconnect_all": {"Timeout"},
}


@pytest.fixture
def stuck(kv, manager, peer, wrong_peer):
    stuck = Stuck(kv, manager, peer, wrong_peer)
    yield stuck
    kv.disconnect(stuck.conn)  # whatever still waits ends
    kv.manager_destroy(stuck.quiet)


@pytest.mark.parametrize("name", ENDS)
def test_handlers_run_while_a_call_waits_and_its_deadline_holds(stuck, name):
    with alarms(0.1, 0.1) as handled:
        begun = time.monotonic()
        result = stuck.wait(name, DEADLINE_MS)
        ended = time.monotonic()
    assert result in ENDS[name]
    # STALLED comes when nothing has moved for so long, which may have begun in `fill`.
    waited_since = stuck.moved if result == "Stalled" or name == "send_batch" else begun
    assert ended - waited_since > DEADLINE_MS / 1000 - 0.01 and ended - begun < DEADLINE_MS / 1000 + SLACK
    moments = [begun, *(at for at in handled if begun <= at <= ended), ended]
    assert len(moments) >= 3
    assert max(later - earlier for earlier, later in zip(moments, moments[1:])) < 0.1 + SLICE + SLACK


@pytest.mark.parametrize("name", ENDS)
def test_a_handler_that_raises_ends_the_wait(stuck, name):
    kv = stuck.kv
    begun = time.monotonic()
    with alarms(0.3, raises=True), pytest.raises(Stop) as caught:
        stuck.wait(name, LONG_MS)
    assert time.monotonic() - begun < 0.3 + SLICE + SLACK
    if name == "next_event":
        return  # nothing goes on
    call = caught.value.kvconn_call
    assert isinstance(call, kv.Call) and call.name.startswith("kvconn_") and not call.done()
    with pytest.raises(TimeoutError):
        call.result(10)
    kv.disconnect(stuck.conn)
    kv.disconnect_endpoint(stuck.mute.endpoint, stuck.manager)
    kv.disconnect_endpoint(stuck.refused, stuck.manager)
    if name == "send_batch":
        assert kv.STATUSES[call.result(5000)[0][0].status] is kv.Disconnected
    elif name in ("wait_released", "disconnect_all"):
        call.result(5000)
    else:
        with pytest.raises(kv.Disconnected):
            call.result(5000)
    assert call.done()


@pytest.mark.parametrize("name", ["send", "send_owned", "send_batch", "send_to"])
def test_an_interrupted_send_can_still_be_accepted_and_its_sequence_is_known(stuck, name):
    kv = stuck.kv
    accepted = kv.connection_info(stuck.conn)["accepted"]
    with alarms(0.3, raises=True), pytest.raises(Stop) as caught:
        stuck.wait(name, 60_000)
    stuck.receiver.cont()
    result = caught.value.kvconn_call.result(20_000)
    sequence = accepted + 1
    assert result == {"send_batch": ([(0, sequence)], None), "send_to": (stuck.conn, sequence)}.get(name, sequence)
    assert kv.send(stuck.conn, [b"next"], 5000) == accepted + 2
    stuck.receiver.expect(accepted + 2, 20)
    assert stuck.receiver.messages()[-2:] == [[b"late"], [b"next"]]


def test_a_send_that_is_accepted_after_a_handler_has_returned(stuck):
    accepted = stuck.kv.connection_info(stuck.conn)["accepted"]
    timer = threading.Timer(0.6, stuck.receiver.cont)
    timer.start()
    with alarms(0.05, 0.05) as handled:
        assert stuck.kv.send(stuck.conn, [b"late"], 20_000) == accepted + 1
    timer.join()
    assert len(handled) >= 3


def test_a_signal_that_another_thread_gets_is_handled_as_well(stuck):
    """No system call of the main thread is interrupted then."""
    ends = threading.Event()
    other = threading.Thread(target=ends.wait)
    other.start()
    begun, handled = time.monotonic(), []
    timer = threading.Timer(0.3, lambda: signal.pthread_kill(other.ident, signal.SIGALRM))
    with alarms(None, raises=True), pytest.raises(Stop):
        timer.start()
        stuck.wait("send", LONG_MS)
    assert time.monotonic() - begun < 0.3 + SLICE + SLACK
    ends.set()
    other.join()
    assert handled == []


def test_stalled_is_judged_by_the_timeout_of_the_call(stuck):
    kv, conn = stuck.kv, stuck.conn

    def ends(ms):
        begun = time.monotonic()
        with pytest.raises((kv.Timeout, kv.Stalled)) as caught:
            kv.send(conn, [b"y"], ms)
        return caught.type, time.monotonic() - begun

    ends(1200)  # nothing has moved for so long from here on
    kind, took = ends(1100)
    assert kind is kv.Stalled and took < SLICE, "at once, not after a slice"
    begun = time.monotonic()
    with alarms(1.0, raises=True), pytest.raises(Stop):
        kv.send(conn, [b"y"], 20_000)
    assert time.monotonic() - begun >= 0.9, "patience is that of the call, not of a slice"


def test_the_default_timeout_is_the_configured_one(stuck):
    kv = stuck.kv
    for m in (stuck.manager, stuck.quiet):
        kv.configure({"send_timeout_ms": 700}, m)
    for wait, most in (
        (lambda: kv.flush(stuck.conn), 0.7),
        (lambda: kv.wait_released(stuck.conn), 0.7),
        (lambda: kv.next_event(-1, stuck.quiet), 0.7),
    ):
        with alarms(0.1, 0.1) as handled:
            begun = time.monotonic()
            with contextlib.suppress(kv.Timeout):
                assert wait() is None
            took = time.monotonic() - begun
        assert most - 0.01 < took < most + SLACK and len(handled) >= 3


def test_an_event_that_comes_after_an_interrupted_wait_is_not_taken_by_it(kv, manager, peer):
    for ms in (LONG_MS, -1):
        with alarms(0.1, raises=True), pytest.raises(Stop):
            kv.next_event(ms, manager)
        conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
        event = kv.next_event(5000, manager)
        assert (event["kind"], event["conn"]) == (kv.EVENT_READY, conn)
        assert kv.next_event(0, manager) is None


def test_a_manager_that_is_destroyed_ends_a_wait_for_its_events(kv):
    m = kv.manager_create()
    timer = threading.Timer(0.5, kv.manager_destroy, (m,))
    timer.start()
    begun = time.monotonic()
    assert kv.next_event(LONG_MS, m) is None
    assert time.monotonic() - begun < 0.5 + SLICE + SLACK
    timer.join()
    with pytest.raises(kv.Stale):
        kv.next_event(LONG_MS, m)


def test_destroying_a_manager_and_changing_the_log_let_handlers_run(kv, peer):
    """Both wait for the host's own code: here a release function and a log function that take their time."""
    from kvconn import _ffi

    m, entered, leave = kv.manager_create(), threading.Event(), threading.Event()
    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=m)

    @_ffi.release_fn_t
    def release(*_):
        entered.set()
        leave.wait(10)

    data = bytes(1000)
    frame = _ffi.kvconn_frame_t(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))
    assert kv._lib.kvconn_send_owned(conn, ctypes.byref(frame), 1, 5000, release, None, None, None) == 0
    assert entered.wait(10)
    begun = time.monotonic()
    with alarms(0.3, raises=True), pytest.raises(Stop) as caught:
        kv.manager_destroy(m, LONG_MS)
    assert time.monotonic() - begun < 0.3 + SLICE + SLACK
    leave.set()
    caught.value.kvconn_call.result(5000)
    with pytest.raises(kv.Stale):
        kv.connections(m)

    entered.clear()
    leave.clear()

    def log(level, line):
        entered.set()
        leave.wait(10)

    kv.set_log(log, kv.LOG_DEBUG)
    kv.manager_destroy(kv.manager_create())
    with contextlib.suppress(kv.Error):
        kv.connect("tcp://127.0.0.1:9", wait_ms=1000)
    assert entered.wait(10)
    begun = time.monotonic()
    with alarms(0.1, 0.1, raises=False) as handled:
        threading.Timer(0.6, leave.set).start()
        kv.set_log(None, kv.LOG_OFF)
    assert 0.5 < time.monotonic() - begun < 5 and len(handled) >= 3


def test_a_dump_that_nobody_reads_lets_handlers_run(kv, manager):
    readable, writable = os.pipe()
    try:
        os.set_blocking(writable, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writable, bytes(4096))
        os.set_blocking(writable, True)
        begun = time.monotonic()
        with alarms(0.2, raises=True), pytest.raises(Stop) as caught:
            kv.dump(writable)
        assert time.monotonic() - begun < 0.2 + SLICE + SLACK
        with pytest.raises(kv.Timeout):
            caught.value.kvconn_call.result(5000)
    finally:
        os.close(readable)
        os.close(writable)
    with pytest.raises(kv.Invalid):
        kv.dump(writable)


def test_a_storm_of_signals_changes_no_deadline(stuck):
    with alarms(0.001, 0.001) as handled:
        begun = time.monotonic()
        assert stuck.wait("flush", DEADLINE_MS) == "Timeout"
        took = time.monotonic() - begun
    assert len(handled) > 100 and DEADLINE_MS / 1000 - 0.01 < took < DEADLINE_MS / 1000 + SLACK


def test_a_handler_may_call_kvconn(stuck):
    """On the thread whose call it interrupts, also while that one sweeps buffers."""
    kv = stuck.kv
    done = []

    def handler(*_):
        done.append(kv.connection_info(stuck.conn)["accepted"])
        with contextlib.suppress(kv.Timeout, kv.Stalled):
            kv.send_owned(stuck.conn, [b"from a handler"], 0)

    with alarms(0.05, 0.05, handler):
        assert stuck.wait("send", DEADLINE_MS) in FULL
        for _ in range(2000):
            kv.connection_info(stuck.conn)
    assert len(done) >= 3


def script(lib, text, *arguments, seconds=60):
    """Runs a program in an interpreter of its own; what it prints."""
    prelude = f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r})\nimport kvconn, os, signal, threading, time\n"
    # Python 3.12 warns of every fork of a process with threads.
    command = [sys.executable, "-W", "ignore", "-c", prelude + textwrap.dedent(text), *map(str, arguments)]
    environment = {**os.environ, "KVCONN_LIB": str(lib)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


STOPPED = """
    conn = kvconn.connect(sys.argv[1], {"send_hwm": 5}, 5000)
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
    try:
        while True:
            kvconn.send(conn, [b"x" * 100_000], 200)
    except (kvconn.Timeout, kvconn.Stalled):
        pass
"""


def test_a_shutdown_lets_handlers_run_and_goes_on(lib, peer):
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    text = STOPPED + """
    class Stop(Exception):
        pass

    def handler(*_):
        raise Stop

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    begun = time.monotonic()
    try:
        kvconn.shutdown(3000)
    except Stop as stop:
        call = stop.kvconn_call
    assert time.monotonic() - begun < 1
    assert not call.done()
    try:
        kvconn.manager_create()
    except kvconn.Shutdown:
        print("shut down")
    try:
        call.result()
    except kvconn.Timeout:
        print("not all was acknowledged")
    assert 2.9 < time.monotonic() - begun < 4
    """
    assert script(lib, text, receiver.endpoint, receiver.pid) == "shut down\nnot all was acknowledged\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_a_program_that_waits(lib, peer, number):
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    text = STOPPED + """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("waiting", flush=True)
    try:
        kvconn.send(conn, [b"y"], 30_000)
    except KeyboardInterrupt as stop:
        assert not stop.kvconn_call.done()
        sys.exit(0)
    """
    prelude = f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r})\nimport kvconn, os, signal, time\n"
    command = [sys.executable, "-c", prelude + textwrap.dedent(text), receiver.endpoint, str(receiver.pid)]
    environment = {**os.environ, "KVCONN_LIB": str(lib)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout.readline() == "waiting\n"
        time.sleep(0.3)
        begun = time.monotonic()
        child.send_signal(number)
        assert child.wait(20) == 0
        assert time.monotonic() - begun < 3, "the interpreter's end does not wait for the send"


def test_a_handler_that_forks(lib, peer):
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    text = STOPPED + """
    children = []
    signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        kvconn.send_owned(conn, [b"y"], 1000)
    except kvconn.Stale as error:  # in the child
        os._exit(7 if children == [0] and "forked" in error.message else 8)
    except (kvconn.Timeout, kvconn.Stalled):
        print("parent", os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
    """
    assert script(lib, text, receiver.endpoint, receiver.pid) == "parent 7\n"


def test_a_wait_for_which_no_thread_can_be_made_waits_all_the_same(lib, peer):
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    text = STOPPED + """
    threading.stack_size(1 << 46)
    begun = time.monotonic()
    try:
        kvconn.send(conn, [b"y"], 1000)
    except (kvconn.Timeout, kvconn.Stalled):
        print(0.6 < time.monotonic() - begun < 1.5)
    """
    assert script(lib, text, receiver.endpoint, receiver.pid) == "True\n"
