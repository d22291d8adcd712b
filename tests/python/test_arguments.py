"""What a caller passes is checked before C sees it: every integer of every function (R7), and frames of every form
(R24)."""

import ctypes
import enum
import inspect
import mmap
import subprocess
import sys
import uuid

import pytest

from conftest import ROOT
from sharing import kv, manager  # noqa: F401: fixtures are found by name

IDS = {"manager", "conn", "node", "request", "sequence"}
TIMEOUTS = {"timeout_ms", "wait_ms", "flush_ms"}
INT32 = {"fd", "kind", "level", "status"}
# Values for parameters that are no integers, and for integers that are not under test.
VALID = {
    "endpoint": "tcp://127.0.0.1:9",
    "endpoints": [],
    "frames": [b"x"],
    "items": [],
    "options": None,
    "feature": "curve",
    "function": None,
    "name": "n",
    "reason": None,
    "healthy": True,
    **dict.fromkeys(IDS, 1),
    **dict.fromkeys(TIMEOUTS, 0),
    "fd": 2,
    "level": 0,
    "kind": 1,
    "status": 0,
}
NO_INTEGERS = [1.0, True, "7", b"7", None, uuid.UUID(int=7), [7]]
TOO_LARGE = [2**64, 2**64 + 7, uuid.UUID("12345678123456781234567812345678").int, 10**5000]
WRONG = {
    **dict.fromkeys(IDS, [-1, -(2**64), *TOO_LARGE, *NO_INTEGERS]),
    **dict.fromkeys(TIMEOUTS, [2**63, -(2**63) - 1, *TOO_LARGE, *NO_INTEGERS]),
    **dict.fromkeys(INT32, [2**31, -(2**31) - 1, *TOO_LARGE, *NO_INTEGERS]),
}


def functions(kv):
    """{name: names of its parameters} of every public function."""
    found = inspect.getmembers(kv, inspect.isfunction)
    public = [f for name, f in found if f.__module__ == "kvconn" and not name.startswith("_")]
    return {f.__name__: list(inspect.signature(f).parameters) for f in public}


@pytest.mark.parametrize("parameter", sorted(WRONG))
def test_an_integer_that_does_not_fit_is_refused_by_its_name(kv, parameter):
    tried = 0
    for name, parameters in functions(kv).items():
        if parameter in parameters and name != "shutdown":
            for wrong in WRONG[parameter]:
                arguments = {each: VALID[each] for each in parameters} | {parameter: wrong}
                with pytest.raises((TypeError, ValueError), match=rf"\b{parameter}\b"):
                    getattr(kv, name)(**arguments)
                tried += 1
    assert tried or parameter == "flush_ms", "no function has it"


def test_shutdown_checks_its_timeout_too(lib):
    script = """
import sys; sys.path.insert(0, sys.argv[1])
import kvconn
for wrong in (2**63, 2**64, 1.5, True, None):
    try:
        kvconn.shutdown(wrong)
    except (TypeError, ValueError) as error:
        assert "flush_ms" in str(error), error
    else:
        raise SystemExit(f"{wrong} was taken")
kvconn.manager_create()
"""
    result = subprocess.run([sys.executable, "-c", script, ROOT / "python"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_parameter_of_every_function_is_in_these_tables(kv):
    assert len(functions(kv)) >= 30
    for name, parameters in functions(kv).items():
        assert set(parameters) <= set(VALID), (name, parameters)


def test_a_request_that_is_too_long_touches_no_other(kv, manager):
    node, _ = kv.node_open("n", manager)
    kv.node_track_request(node, 7)
    with pytest.raises(ValueError, match="request"):
        kv.node_untrack_request(node, 2**64 + 7)
    with pytest.raises(ValueError, match="request"):
        kv.node_track_request(node, uuid.uuid4().int | 2**100)
    assert kv.node_info(node)["requests"] == 1
    assert kv.node_untrack_request(node, 7)


def test_objects_that_are_integers_are_taken(kv, manager):
    class Room(enum.IntEnum):
        FIRST = 2**64 - 1

    class Number:
        def __index__(self):
            return 5

    node, _ = kv.node_open("n", manager)
    for request in (Room.FIRST, Number()):
        kv.node_track_request(node, request)
    assert kv.handle_failure(node).requests == [5, 2**64 - 1]


@pytest.mark.parametrize("wrong", [-1, 2**64, 1.0, True, None, uuid.uuid4()])
def test_ids_inside_a_batch_are_checked_and_the_item_is_named(kv, manager, peer, wrong):
    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    buffer = bytearray(10)
    with pytest.raises((TypeError, ValueError), match=r"items\[1\]: conn"):
        kv.send_batch([(conn, [buffer]), (wrong, [b"x"])])
    buffer.clear()
    assert kv.connection_info(conn)["accepted"] == 0


@pytest.mark.parametrize("items", [7, None, [7], [(1,)], [(1, [b"x"], 3)], [None]])
def test_a_batch_of_no_pairs_is_refused(kv, items):
    with pytest.raises(TypeError, match="items"):
        kv.send_batch(items)


@pytest.mark.parametrize("healthy", [None, "no", 0.0, []])
def test_health_is_a_bool(kv, manager, healthy):
    node, _ = kv.node_open("n", manager)
    with pytest.raises(TypeError, match="healthy"):
        kv.node_report_health(node, healthy)
    assert kv.node_info(node)["failures_in_row"] == 0


def test_health_may_be_a_number_as_in_c(kv, manager):
    node, _ = kv.node_open("n", manager)
    for healthy, failures in ((0, 1), (2, 0), (False, 1), (True, 0)):
        kv.node_report_health(node, healthy)
        assert kv.node_info(node)["failures_in_row"] == failures


@pytest.mark.parametrize("value", [1.5, None, [1], uuid.uuid4()])
def test_an_option_of_another_type_is_refused_by_its_name(kv, manager, value):
    with pytest.raises(TypeError, match="option interface must be"):
        kv.connect("tcp://127.0.0.1:9", {"interface": value}, 0, manager)


def test_texts_are_refused_by_their_names(kv, manager):
    node, _ = kv.node_open("n", manager)
    for call, match in (
        (lambda: kv.node_open("a\0b", manager), "name"),
        (lambda: kv.node_open("\udc80", manager), "name"),
        (lambda: kv.handle_failure(node, b"gone"), "reason"),
        (lambda: kv.has(7), "feature"),
        (lambda: kv.node_add_endpoints(node, ["tcp://127.0.0.1:9", None]), r"endpoints\[1\]"),
        (lambda: kv.node_add_endpoints(node, 7), "endpoints"),
        (lambda: kv.connect("tcp://127.0.0.1:9", {7: 1}, 0, manager), "option"),
        (lambda: kv.set_log(7, 1), "function"),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            call()
    assert kv.node_info(node)["status"] == 0 and kv.node_info(node)["endpoints"] == 0


# ---- Frames ----------------------------------------------------------------------------------------------------------

LETTERS = b"abcdefghijkl"
TABLE = memoryview(LETTERS).cast("B", (3, 4))
DOUBLES = memoryview((ctypes.c_double * 4)(1, 2, 3, 4))
PAIRS = ((ctypes.c_uint16 * 2) * 2)((1, 2), (3, 4))

NOT_CONTIGUOUS = {
    "every second byte": (memoryview(LETTERS)[::2], b"acegik"),
    "backwards": (memoryview(LETTERS)[::-1], LETTERS[::-1]),
    "every second row": (TABLE[::2], b"abcdijkl"),
    "every second double": (DOUBLES[::2], bytes((ctypes.c_double * 2)(1, 3))),
}
CONTIGUOUS = {
    "a table": (TABLE, LETTERS),
    "rows of a table": (TABLE[1:], LETTERS[4:]),
    "doubles": (DOUBLES, bytes(DOUBLES)),
    "one number": (memoryview(ctypes.c_uint32(7)), bytes(ctypes.c_uint32(7))),
    "a ctypes array of two dimensions": (PAIRS, bytes(PAIRS)),
    "nothing": (memoryview(LETTERS)[3:3], b""),
    "one of every second byte": (memoryview(LETTERS)[0:1:2], b"a"),
}


@pytest.mark.parametrize("form", [*NOT_CONTIGUOUS, *CONTIGUOUS])
def test_frames_of_every_form_are_sent_as_their_bytes(kv, manager, peer, form):
    frame, expected = (NOT_CONTIGUOUS | CONTIGUOUS)[form]
    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    kv.send(conn, [b"room", frame])
    kv.send_to(receiver.endpoint, [b"room", frame], manager=manager)
    assert kv.send_batch([(conn, [b"room", frame]), (conn, [frame, frame])])[1] is None
    if form in CONTIGUOUS:
        kv.send_owned(conn, [b"room", frame])
    else:
        with pytest.raises(TypeError, match=r"frames\[1\] is not contiguous.*pass bytes\(frame\), or use send"):
            kv.send_owned(conn, [b"room", frame])
        kv.send_owned(conn, [b"room", bytes(frame)])
    receiver.expect(5)
    plain = [b"room", expected]
    assert receiver.messages() == [plain, plain, plain, [expected, expected], plain]


def test_a_frame_that_cannot_be_read_is_named(kv, manager, peer):
    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    released = memoryview(bytearray(b"abc"))
    released.release()
    for frame in (released, "text", 7, None):
        for call, match in (
            (lambda: kv.send(conn, [b"room", frame]), r"frames\[1\]"),
            (lambda: kv.send_to("tcp://127.0.0.1:9", [b"room", frame]), r"frames\[1\]"),
            (lambda: kv.send_owned(conn, [b"room", frame]), r"frames\[1\]"),
            (lambda: kv.send_batch([(conn, [b"x"]), (conn, [b"room", frame])]), r"items\[1\]: frames\[1\]"),
        ):
            with pytest.raises(TypeError, match=match):
                call()
    assert kv.connection_info(conn)["accepted"] == 0


@pytest.mark.parametrize("frames", [7, None, mmap.mmap(-1, 4096), TABLE, ctypes.c_uint64(7)])
def test_what_is_no_list_of_frames_is_refused(kv, manager, peer, frames):
    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    for call in (kv.send, kv.send_owned):
        with pytest.raises(TypeError, match=f"frames must be a list of bytes, not {type(frames).__name__}"):
            call(conn, frames)
    with pytest.raises(TypeError, match=r"items\[0\]: frames must be a list of bytes"):
        kv.send_batch([(conn, frames)])


def test_a_frame_too_large_to_be_packed_is_named(kv, manager, peer):
    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    with mmap.mmap(-1, 2**32) as large:  # no byte of it is touched
        with pytest.raises(ValueError, match=r"frames\[1\] has 4294967296 bytes.*send_owned"):
            kv.send(conn, [b"room", large])
