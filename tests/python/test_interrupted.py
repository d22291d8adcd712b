"""What C wrote decides, and not the exception of a signal handler that came after it (R26): nothing is lost, nothing
unpinned."""

import contextlib
import copy
import gc
import pickle
import random
import signal
import sys

import pytest

from sharing import Stop, canonical, kv, manager  # noqa: F401: fixtures are found by name

# Python 3.10 also runs handlers between a function's return and the caller's use of what it returned.
HANDLERS_AFTER_RETURN = sys.version_info < (3, 11)


@pytest.fixture
def interrupted(kv):
    """interrupted(name, function): calls the function; a signal handler raises when the C function of that name has
    returned, before Python has what it returned. Gives the Call."""

    def handler(*_):
        raise Stop

    def interrupt(name, function):
        real = getattr(kv._lib, name)

        def returned(*arguments):
            setattr(kv._lib, name, real)
            result = real(*arguments)
            signal.raise_signal(signal.SIGUSR1)
            return result

        setattr(kv._lib, name, returned)
        try:
            with pytest.raises(Stop) as caught:
                function()
        finally:
            setattr(kv._lib, name, real)
        return caught.value.kvconn_call

    before = signal.signal(signal.SIGUSR1, handler)
    yield interrupt
    signal.signal(signal.SIGUSR1, before)


def is_pinned(buffer):
    try:
        buffer.append(0)
    except BufferError:
        return True
    return False


def test_what_a_send_has_returned_is_in_the_exception(kv, manager, peer, interrupted):
    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    to = receiver.endpoint
    for number, (name, function, expected) in enumerate(
        (
            ("kvconn_send_packed", lambda: kv.send(conn, [b"1"]), 1),
            ("kvconn_send_packed", lambda: kv.send(conn, [b"2"], 0), 2),
            ("kvconn_send_packed_to", lambda: kv.send_to(to, [b"3"], manager=manager), (conn, 3)),
            ("kvconn_send_owned", lambda: kv.send_owned(conn, [b"4"]), 4),
            ("kvconn_send_batch", lambda: kv.send_batch([(conn, [b"5"]), (0, [])]), ([(0, 5), (0, 0)], None)),
        ),
        1,
    ):
        call = interrupted(name, function)
        assert (call.name, call.done(), call.result()) == (name, True, expected)
        assert kv.connection_info(conn)["accepted"] == number
    receiver.expect(5)
    assert receiver.messages() == [[b"%d" % number] for number in range(1, 6)]


def test_what_any_other_call_has_returned_is_in_the_exception(kv, manager, peer, interrupted):
    receiver = peer()
    connected = interrupted("kvconn_connect", lambda: kv.connect(receiver.endpoint, wait_ms=5000, manager=manager))
    conn = connected.result(5000)
    assert conn == kv.find(receiver.endpoint, manager)
    node, created = interrupted("kvconn_node_open", lambda: kv.node_open("n", manager)).result()
    assert created and kv.node_find("n", manager) == node
    interrupted("kvconn_node_track_request", lambda: kv.node_track_request(node, 7)).result()
    m = interrupted("kvconn_manager_create", kv.manager_create).result()
    kv.manager_destroy(m)
    for name, function, expected in (
        ("kvconn_node_untrack_request", lambda: kv.node_untrack_request(node, 7), 1),
        ("kvconn_node_find", lambda: kv.node_find("n", manager), node),
        ("kvconn_find", lambda: kv.find(receiver.endpoint, manager), conn),
        ("kvconn_event_fd", lambda: kv.event_fd(manager), kv.event_fd(manager)),
        ("kvconn_flush", lambda: kv.flush(conn), 0),
        ("kvconn_wait_released", lambda: kv.wait_released(conn), None),
    ):
        assert interrupted(name, function).result() == expected
    assert interrupted("kvconn_connection_info", lambda: kv.connection_info(conn)).result()["conn"] == conn
    assert interrupted("kvconn_node_info", lambda: kv.node_info(node)).result()["node"] == node
    interrupted("kvconn_disconnect", lambda: kv.disconnect(conn)).result()
    assert kv.connections(manager) == []


def test_what_a_call_has_raised_is_raised_by_its_result(kv, manager, peer, interrupted):
    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    kv.disconnect(conn)
    buffer = bytearray(10)
    for name, function in (
        ("kvconn_send_packed", lambda: kv.send(conn, [b"x"])),
        ("kvconn_send_owned", lambda: kv.send_owned(conn, [buffer])),
    ):
        call = interrupted(name, function)
        for _ in range(2):
            with pytest.raises(kv.Disconnected):
                call.result()
    kv.describe(manager)
    assert not is_pinned(buffer)


@pytest.mark.parametrize("name", ["send", "send_owned", "send_batch"])
def test_a_handler_that_raises_before_the_call_leaves_nothing_done(kv, manager, peer, monkeypatch, name):
    from kvconn import _messages

    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    buffer = bytearray(10)

    def interrupted(owner, attribute):
        real = getattr(owner, attribute)

        def function(*arguments):
            result = real(*arguments)
            signal.raise_signal(signal.SIGUSR1)
            return result

        monkeypatch.setattr(owner, attribute, function)

    def handler(*_):
        raise Stop

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        interrupted(_messages, "packed")
        interrupted(_messages.Pinned, "pin")
        with pytest.raises(Stop) as caught:
            kv.send_batch([(conn, [buffer])]) if name == "send_batch" else getattr(kv, name)(conn, [buffer])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not hasattr(caught.value, "kvconn_call")
    del caught  # its traceback has a view of the buffer
    assert not is_pinned(buffer)
    assert kv.connection_info(conn)["accepted"] == 0


def test_the_next_call_gives_the_event_that_an_exception_has_hidden(kv, manager, peer, interrupted):
    first, second = (kv.connect(peer().endpoint, wait_ms=5000, manager=manager) for _ in range(2))
    interrupted("kvconn_next_event", lambda: kv.next_event(0, manager))
    events = [kv.next_event(0, manager), kv.next_event(0, manager)]
    assert [event["conn"] for event in events] == [first, second]
    assert kv.next_event(0, manager) is None
    kv.disconnect(first)
    kv.disconnect(second)
    call = interrupted("kvconn_next_event", lambda: kv.next_event(5000, manager))
    assert call.result()["conn"] == first, "it was asked for here"
    assert kv.next_event(0, manager)["conn"] == second
    interrupted("kvconn_next_event", lambda: kv.next_event(0, manager))
    assert kv.next_event(0, manager) is None, "there was none to hide"


def test_the_next_call_gives_the_failure_that_an_exception_has_hidden(kv, manager, interrupted):
    kv.configure({"max_failures": 1}, manager)
    nodes = [kv.node_open(f"node {n}", manager)[0] for n in range(4)]
    for node in nodes:
        kv.node_track_request(node, node)
    interrupted("kvconn_handle_failure", lambda: kv.handle_failure(nodes[0], "gone"))
    with pytest.raises(kv.NodeFailed):
        kv.node_track_request(nodes[0], 8)
    failure = kv.handle_failure(nodes[0])
    assert (failure.requests, "gone" in failure.reason) == ([nodes[0]], True)
    with pytest.raises(kv.NodeFailed):
        kv.handle_failure(nodes[0])
    interrupted("kvconn_node_report_health", lambda: kv.node_report_health(nodes[1], False))
    assert kv.node_report_health(nodes[1], False).requests == [nodes[1]]
    for node in nodes[2:]:
        assert kv._lib.kvconn_handle_failure(node, None, None, None) == 0
    call = interrupted("kvconn_take_failure", lambda: kv.take_failure(manager=manager))
    assert [kv.take_failure(manager=manager).node for _ in range(2)] == nodes[2:]
    assert kv.take_failure(manager=manager) is None and call.result().node == nodes[2]


def test_a_handler_that_raises_while_a_report_is_read_loses_nothing(kv, manager, interrupted):
    node, _ = kv.node_open("n", manager)
    kv.node_track_request(node, 7)
    call = interrupted("kvconn_failure_requests", lambda: kv.handle_failure(node))
    assert call.name == "kvconn_handle_failure" and call.result().requests == [7]


def test_an_interrupted_exception_pickles_and_copies(kv, manager, peer, interrupted):
    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    call = interrupted("kvconn_send_packed", lambda: kv.send(conn, [b"x"]))
    stop = KeyboardInterrupt()
    stop.kvconn_call = call
    for copied in (pickle.loads(pickle.dumps(stop)), copy.copy(stop), copy.deepcopy(stop)):
        assert copied.kvconn_call.done() and copied.kvconn_call.result() == 1


def test_a_log_function_lives_as_long_as_it_may_be_called(kv, manager, peer, interrupted, wait_until):
    lines = []
    interrupted("kvconn_set_log", lambda: kv.set_log(lambda _, line: lines.append(line), kv.LOG_DEBUG))
    try:
        endpoint = canonical(peer())
        kv.connect(endpoint, wait_ms=5000, manager=manager)
        wait_until("the log names the endpoint", lambda: any(endpoint in line for line in lines))
    finally:
        kv.set_log(None, kv.LOG_OFF)


class Storm:
    """Signals in quick succession, whose handler raises once each time it is armed."""

    def __enter__(self):
        gc.collect()
        gc.disable()  # a finalizer would swallow what the handler raises
        self.armed = False
        self.before = signal.signal(signal.SIGALRM, self._handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        return self

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)
        gc.enable()

    def _handle(self, *_):
        if self.armed:
            self.armed = False
            raise Stop

    def run(self, function):
        """(what the function returned, None) or (None, the call that was interrupted); (None, None) when none had
        begun."""
        result = None
        try:
            self.armed = True
            for _ in range(random.randrange(60)):  # so that the moment of the next signal is anywhere
                pass
            result = function()
            self.armed = False
        except Stop as stop:
            return (result, None) if result is not None else (None, getattr(stop, "kvconn_call", None))
        return result, None


def test_owned_messages_in_a_storm_of_handlers_that_raise(kv, manager, peer):
    """The smallest input of R26, many times: memory that is no longer pinned is written to at once."""
    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    accepted, interrupted = {}, 0
    with Storm() as storm:
        for number in range(4000):
            content = b"%08d" % number * 200
            buffer = bytearray(content)
            sequence, call = storm.run(lambda: kv.send_owned(conn, [buffer], 5000))
            if call is not None:
                interrupted += 1
                with contextlib.suppress(kv.Error):
                    sequence = call.result(10_000)
            if sequence is not None:
                assert sequence not in accepted
                accepted[sequence] = content
            if not is_pinned(buffer):
                buffer[:] = b"!" * len(buffer)
    total = kv.connection_info(conn)["accepted"]
    assert sorted(accepted) == list(range(1, total + 1)) or HANDLERS_AFTER_RETURN
    kv.wait_released(conn, timeout_ms=10_000)
    receiver.expect(total)
    received = receiver.messages()
    assert all(received[sequence - 1] == [content] for sequence, content in accepted.items())
    assert not is_pinned(buffer)
    assert interrupted > 50


@pytest.mark.skipif(HANDLERS_AFTER_RETURN, reason="a result can be lost in the frame of the caller")
def test_failures_in_a_storm_of_handlers_that_raise(kv, manager):
    """Each request is reported exactly once."""
    reported, interrupted = [], 0
    with Storm() as storm:
        for number in range(1500):
            node, _ = kv.node_open(f"node {number}", manager)
            kv.node_track_request(node, number)
            failure = None
            while failure is None:
                failure, call = storm.run(lambda: kv.handle_failure(node))
                interrupted += call is not None
                if call is not None and number % 2:
                    failure = call.result()
            reported += failure.requests
    assert reported == list(range(1500)) and kv.take_failure(manager=manager) is None
    assert interrupted > 20


@pytest.mark.skipif(HANDLERS_AFTER_RETURN, reason="a result can be lost in the frame of the caller")
def test_events_in_a_storm_of_handlers_that_raise(kv, manager):
    """Each comes once, in order."""
    nodes, seen, interrupted = [], [], 0
    for number in range(2000):
        nodes.append(kv.node_open(f"node {number}", manager)[0])
        kv.handle_failure(nodes[-1])
    with Storm() as storm:
        quiet = 0
        while quiet < 5:
            event, call = storm.run(lambda: kv.next_event(0, manager))
            interrupted += call is not None
            quiet = quiet + 1 if event is None and call is None else 0
            seen += [] if event is None else [event["node"]]
    assert seen == nodes
    assert interrupted > 5
