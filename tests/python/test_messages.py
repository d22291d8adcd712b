"""Messages and events through ctypes, against pyzmq PULL sockets in other processes and in this one."""

import ctypes
import errno
import gc
import select
import threading
import time

import pytest
import zmq

from sharing import BlockedSenders, canonical, fill, kv, manager  # noqa: F401: fixtures are found by name

MESSAGES = [
    [b"room", b"17"],
    [b""],
    [b"a\0b", b"", b"\0" * 300],
    [b"x" * 70_000],
    [bytes([n]) for n in range(64)],
    [b"s" * 512 * 1024, b"end"],
]


def test_messages_arrive_byte_for_byte(kv, manager, peer):
    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    for sequence, message in enumerate(MESSAGES, 1):
        assert kv.send(conn, message) == sequence
    for sequence, message in enumerate(MESSAGES, 1 + len(MESSAGES)):
        assert kv.send_to(receiver.endpoint, message, manager=manager) == (conn, sequence)
    receiver.expect(2 * len(MESSAGES))
    assert receiver.messages() == MESSAGES * 2
    info = kv.connection_info(conn)
    assert info["accepted"] == 2 * len(MESSAGES) and info["state"] == kv.STATE_READY and info["status"] == 0


def test_frames_that_lie_apart_arrive_as_well(kv, manager, peer):
    """kvconn_send and kvconn_send_to, which the Python layer itself does not use."""
    from kvconn import _ffi

    library = _ffi.load()
    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    for message in MESSAGES:
        frames = (_ffi.kvconn_frame_t * len(message))()
        for frame, data in zip(frames, message):
            frame.data, frame.size = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data)
        error = _ffi.kvconn_error_t()
        assert library.kvconn_send(conn, frames, len(frames), -1, None, ctypes.byref(error)) == 0, error.message
        endpoint = receiver.endpoint.encode()
        status = library.kvconn_send_to(manager, endpoint, frames, len(frames), -1, None, None, ctypes.byref(error))
        assert status == 0, error.message
    receiver.expect(2 * len(MESSAGES))
    assert receiver.messages() == [message for message in MESSAGES for _ in range(2)]


def test_a_pull_socket_of_pyzmq_in_the_same_process(kv, manager):
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        conn = kv.connect(f"tcp://127.0.0.1:{port}", wait_ms=5000, manager=manager)
        for message in MESSAGES:
            kv.send(conn, message)
            assert pull.poll(5000)
            assert pull.recv_multipart() == message


def test_bytes_like_frames_are_sent_as_their_bytes(kv, manager, peer):
    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    numbers = (ctypes.c_uint64 * 3)(1, 2, 3)
    kv.send(conn, [bytearray(b"a"), memoryview(b"bc"), memoryview(numbers)])
    receiver.expect(1)
    assert receiver.messages() == [[b"a", b"bc", bytes(numbers)]]


def events_until(kv, manager, kind, seconds=10):
    """Waits on the event descriptor as an event loop does; all events up to the first of this kind."""
    fd, found, deadline = kv.event_fd(manager), [], time.monotonic() + seconds
    while not found or found[-1]["kind"] != kind:
        ready, _, _ = select.select([fd], [], [], deadline - time.monotonic())
        assert ready, f"no event {kind} within {seconds} s, but {found}"
        event = kv.next_event(0, manager)
        assert event, "the descriptor is readable, and there is no event"
        found.append(event)
    return found


def test_a_killed_peer_is_an_event_and_fails_the_next_send(kv, manager, peer):
    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    kv.send(conn, [b"one"])
    receiver.expect(1)
    (ready,) = events_until(kv, manager, kv.EVENT_READY)
    assert (ready["conn"], ready["endpoint"], ready["status"]) == (conn, canonical(receiver), 0)
    assert select.select([kv.event_fd(manager)], [], [], 0)[0] == [], "readable without an event"

    receiver.kill()
    lost = events_until(kv, manager, kv.EVENT_PEER_LOST)[-1]
    assert (lost["conn"], lost["count"]) == (conn, 1)
    assert abs(lost["time_ms"] / 1000 - time.time()) < 60
    with pytest.raises(kv.PeerLost) as caught:
        kv.send(conn, [b"two"])
    error = caught.value
    assert (error.conn, error.endpoint, error.retriable, error.scope) == (conn, canonical(receiver), True, kv.SCOPE_PEER)
    assert kv.connection_info(conn)["state"] == kv.STATE_ENDED
    assert kv.connections(manager) == []
    with pytest.raises(kv.NotFound):
        kv.find(receiver.endpoint, manager)


def test_a_refused_dial_says_why_and_when_to_try_again(kv, manager, rank):
    receiver = rank()
    endpoint = receiver.endpoint
    receiver.refuse()
    with pytest.raises(kv.ConnectFailed) as refused:
        kv.connect(endpoint, wait_ms=5000, manager=manager)
    assert refused.value.os_errno == errno.ECONNREFUSED and refused.value.endpoint == endpoint
    with pytest.raises(kv.Backoff) as later:
        kv.send_to(endpoint, [b"x"], manager=manager)
    assert later.value.os_errno == errno.ECONNREFUSED and 0 < later.value.retry_after_ms <= 200

    receiver.accept()
    time.sleep(later.value.retry_after_ms / 1000)
    kv.send_to(endpoint, [b"x"], timeout_ms=5000, manager=manager)
    receiver.wait_for(1)


def test_connect_retry_waits_for_a_peer_that_comes_up_later(kv, manager, rank):
    receiver = rank()
    receiver.refuse()
    result = []
    options = {"connect_retry": True}
    thread = threading.Thread(target=lambda: result.append(kv.connect(receiver.endpoint, options, 10_000, manager)))
    thread.start()
    time.sleep(0.3)
    receiver.accept()
    thread.join(10)
    kv.send(result[0], [b"x"])
    receiver.wait_for(1)


def test_a_disconnect_fences_until_connect(kv, manager, peer):
    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    kv.disconnect_endpoint(receiver.endpoint, manager)
    with pytest.raises(kv.Disconnected):
        kv.send(conn, [b"x"])
    with pytest.raises(kv.Disconnected):
        kv.send_to(receiver.endpoint, [b"x"], manager=manager)
    again = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    assert again != conn
    assert kv.send_to(receiver.endpoint, [b"x"], manager=manager) == (again, 1)
    receiver.expect(1)


def test_a_stopped_peer_blocks_only_who_sends_to_it(kv, manager, peer):
    """The calls release the GIL; a disconnect from another thread wakes the sender (scenario 1)."""
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    conn = kv.connect(receiver.endpoint, {"send_hwm": 10}, 5000, manager)
    receiver.stop()
    fill(kv, conn)
    blocked = BlockedSenders(kv, conn, 5)
    begun = time.monotonic()
    kv.disconnect_endpoint(receiver.endpoint, manager)
    assert time.monotonic() - begun < 0.1
    assert blocked.join(0.2) == ["KVCONN_DISCONNECTED"] * 5


def test_options_are_checked_and_conflicts_named(kv, manager, peer):
    receiver = peer()
    kv.connect(receiver.endpoint, {"send_hwm": 7}, 5000, manager)
    with pytest.raises(kv.Invalid, match="no_such"):
        kv.connect(receiver.endpoint, {"no_such": 1}, 0, manager)
    with pytest.raises(kv.Invalid, match="send_hwm"):
        kv.connect(receiver.endpoint, {"send_hwm": "many"}, 0, manager)
    with pytest.raises(kv.Conflict, match="send_hwm"):
        kv.connect(receiver.endpoint, {"send_hwm": 8}, 0, manager)
    with pytest.raises(kv.Invalid, match="max_nodes"):
        kv.connect(receiver.endpoint, {"max_nodes": 8}, 0, manager)
    kv.configure({"send_timeout_ms": 50}, manager)


def test_a_manager_that_is_gone_takes_its_ids_with_it(kv, peer):
    receiver = peer()
    m = kv.manager_create({"max_endpoints": 1})
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=m)
    with pytest.raises(kv.Limit, match="max_endpoints"):
        kv.connect("tcp://127.0.0.1:9", wait_ms=0, manager=m)
    kv.manager_destroy(m)
    for call in (
        lambda: kv.send(conn, [b"x"]),
        lambda: kv.connection_info(conn),
        lambda: kv.next_event(0, m),
        lambda: kv.manager_destroy(m),
    ):
        with pytest.raises(kv.Stale):
            call()


def test_the_log_and_the_descriptions_are_text(kv, manager, peer, tmp_path, wait_until):
    lines = []
    kv.set_log(lambda level, line: lines.append((level, line)), kv.LOG_DEBUG)
    try:
        receiver = peer()
        conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
        assert canonical(receiver) in kv.describe(manager) and "READY" in kv.describe(manager)
        with open(tmp_path / "dump", "w+") as file:
            kv.dump(file.fileno())
            file.seek(0)
            assert canonical(receiver) in file.read()
        kv.disconnect(conn)
        wait_until("the log names the endpoint", lambda: any(canonical(receiver) in line for _, line in lines))
    finally:
        kv.set_log(None, kv.LOG_OFF)
    count = len(lines)
    kv.send_to(receiver.endpoint, [b"x"], timeout_ms=5000, manager=manager)
    assert len(lines) == count, "the log goes on after it was ended"


def test_a_log_function_that_needs_a_lock_of_the_caller_is_waited_for_with_a_bound(kv, wait_until):
    lock, entered, left = threading.Lock(), [], []

    def needs_the_lock(level, line):
        entered.append(line)
        with lock:
            left.append(line)

    kv.set_log(needs_the_lock, kv.LOG_DEBUG)
    with lock:
        with pytest.raises(kv.ConnectFailed):
            kv.connect("tcp://127.0.0.1:9", wait_ms=5000)
        wait_until("the function is called", lambda: entered)
        begun = time.monotonic()
        with pytest.raises(kv.Timeout):
            kv.set_log(None, kv.LOG_OFF)
        assert time.monotonic() - begun < 5
        gc.collect()  # the function that still runs must not go
    kv.set_log(None, kv.LOG_OFF)
    assert len(entered) == len(left) == 1


def test_flush_tells_what_the_peers_kernel_has(kv, manager, peer):
    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    for _ in range(100):
        kv.send(conn, [b"room", b"x" * 1000])
    assert kv.flush(conn, timeout_ms=5000) == 100
    assert kv.connection_info(conn)["acknowledged"] == 100
    with pytest.raises(kv.Invalid):
        kv.flush(conn, 101)
    receiver.kill()
    event = events_until(kv, manager, kv.EVENT_PEER_LOST)[-1]
    assert event["count"] == event["acknowledged"] == 100


def test_a_batch_to_eight_ranks_with_the_third_stopped(kv, manager, peer):
    """Scenario 23; what failed is sent again with the same frames, and nothing else is."""
    receivers = [peer("--keep") for _ in range(8)]
    receivers[2] = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    conns = [kv.connect(receiver.endpoint, {"send_hwm": 4}, 5000, manager) for receiver in receivers]
    receivers[2].stop()
    fill(kv, conns[2])
    common = b"common" * 1000
    items = [(conn, [common, b"for rank %d" % rank]) for rank, conn in enumerate(conns)]
    begun = time.monotonic()
    sent, partial = kv.send_batch(items, 500)
    assert time.monotonic() - begun < 1.5
    assert isinstance(partial, kv.Partial) and not partial.retriable
    assert partial.message.startswith("1 of 8 items failed; items[2]: KVCONN_")
    assert (partial.conn, partial.endpoint) == (conns[2], canonical(receivers[2]))
    assert kv.STATUSES[sent[2].status] in (kv.Stalled, kv.Timeout) and sent[2].sequence == 0
    assert [result for rank, result in enumerate(sent) if rank != 2] == [(0, 1)] * 7
    for rank, receiver in enumerate(receivers):
        if rank != 2:
            receiver.expect(1)
            assert receiver.messages() == [items[rank][1]]

    receivers[2].cont()
    accepted = kv.connection_info(conns[2])["accepted"]
    left = [(conn if result.status else 0, frames) for (conn, frames), result in zip(items, sent)]
    sent, partial = kv.send_batch(left, 10_000)
    assert partial is None and [result.status for result in sent] == [0] * 8
    assert [result.sequence for result in sent] == [0, 0, accepted + 1, 0, 0, 0, 0, 0]


def test_a_batch_takes_any_bytes_and_raises_what_concerns_the_call(kv, manager, peer):
    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    large = bytearray(b"x" * 100_000)
    numbers = memoryview((ctypes.c_uint64 * 3)(1, 2, 3))
    messages = [[large, numbers], [large, b"", b"a\0b"], [b""], []]
    sent, partial = kv.send_batch(((conn, message) for message in messages), 5000)
    assert sent == [(0, 1), (0, 2), (0, 3), (-1, 0)]
    assert "1 of 4 items failed; items[3]: KVCONN_INVALID" in str(partial)
    receiver.expect(3)
    assert receiver.messages() == [[bytes(frame) for frame in message] for message in messages[:3]]
    assert kv.send_batch([]) == ([], None)
    with pytest.raises(kv.Invalid, match="timeout_ms"):
        kv.send_batch([(conn, [b"x"])], -2)
    with pytest.raises(TypeError):
        kv.send_batch([(conn, ["text"])])
    assert kv.connection_info(conn)["accepted"] == 3


def test_a_batch_that_waits_releases_the_gil(kv, manager, peer):
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    conn = kv.connect(receiver.endpoint, {"send_hwm": 10}, 5000, manager)
    receiver.stop()
    fill(kv, conn)
    results = []
    thread = threading.Thread(target=lambda: results.append(kv.send_batch([(conn, [b"y"])] * 2, 30_000)), daemon=True)
    thread.start()
    deadline = time.monotonic() + 5
    while kv.connection_info(conn)["waiting"] != 1:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    kv.disconnect(conn)
    thread.join(5)
    ((sent, partial),) = results
    assert [kv.STATUSES[result.status] for result in sent] == [kv.Disconnected] * 2 and "2 of 2" in partial.message


class NoBuffer:
    pass


@pytest.mark.parametrize("frames", ["text", b"one frame", bytearray(b"one frame"), memoryview(b"one frame")])
def test_frames_that_are_one_frame_are_refused_and_the_error_says_what_to_write(kv, manager, peer, frames):
    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    with pytest.raises(TypeError, match=rf"not {type(frames).__name__}: write \[frame\]"):
        kv.send(conn, frames)
    with pytest.raises(TypeError, match=r"write \[frame\]"):
        kv.send_to(receiver.endpoint, frames, manager=manager)
    assert kv.connection_info(conn)["accepted"] == 0


@pytest.mark.parametrize("frame", ["text", 17, None, NoBuffer()])
def test_a_frame_that_is_no_bytes_is_refused_by_its_type(kv, manager, peer, frame):
    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    with pytest.raises(TypeError, match=rf"frames\[1\] must be bytes or another buffer, not {type(frame).__name__}"):
        kv.send(conn, [b"room", frame])
    assert kv.connection_info(conn)["accepted"] == 0


def test_frames_may_come_from_an_iterator_and_be_any_buffer(kv, manager, peer):
    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    kv.send(conn, (frame for frame in (b"a" * 1000, bytearray(b"b"), memoryview(b"xcx")[1:2])))
    kv.send(conn, [memoryview(b"abcdefgh").cast("I")])
    receiver.expect(2)
    assert receiver.messages() == [[b"a" * 1000, b"b", b"c"], [b"abcdefgh"]]


def test_texts_and_lists_of_texts_are_not_taken_for_each_other(kv, manager):
    node, _ = kv.node_open("n", manager)
    for call in (kv.node_add_endpoints, kv.node_remove_endpoints):
        with pytest.raises(TypeError, match=r"not str: write \[endpoint\]"):
            call(node, "tcp://127.0.0.1:9")
    for text in (b"tcp://127.0.0.1:9", 9, None):
        with pytest.raises(TypeError, match=f"endpoint must be a str, not {type(text).__name__}"):
            kv.connect(text, wait_ms=0, manager=manager)
        with pytest.raises(TypeError, match=r"endpoints\[0\] must be a str"):
            kv.node_add_endpoints(node, [text])


def test_a_flush_over_ipc_is_unsupported_because_the_outcome_is_unknown(kv, manager, peer, tmp_path):
    from kvconn import _ffi

    receiver = peer(bind=f"ipc://{tmp_path}/rank")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    assert kv.flush(conn, timeout_ms=5000) == 0, "nothing was accepted, nothing is unknown"
    kv.send(conn, [b"x"])
    with pytest.raises(kv.Unsupported):
        kv.flush(conn)
    acknowledged = ctypes.c_uint64(5)
    _ffi.load().kvconn_flush(conn, 0, 0, ctypes.byref(acknowledged), None)
    assert acknowledged.value == kv.UNKNOWN
    assert kv.connection_info(conn)["acknowledged"] == kv.UNKNOWN
