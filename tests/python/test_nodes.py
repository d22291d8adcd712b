"""Nodes and their failures through ctypes, against pyzmq PULL sockets in other processes."""

import errno
import select
import threading
import time
from ctypes import c_uint32, c_uint64

import pytest

from sharing import BlockedSenders, canonical, fill, kv, manager  # noqa: F401: fixtures are found by name


def test_a_failure_takes_endpoints_and_requests_of_that_life_only(kv, manager, peer):
    ranks = [peer() for _ in range(3)]
    first, second, shared = map(canonical, ranks)
    node, created = kv.node_open("prefill-0", manager)
    other, _ = kv.node_open("prefill-1", manager)
    assert created and kv.node_open("prefill-0", manager) == (node, False)
    kv.node_track_request(node, 7)  # before any endpoint is known
    kv.node_add_endpoints(node, [first, second, shared])
    kv.node_add_endpoints(other, [shared])
    for request in (3, 2**64 - 1, 3):
        kv.node_track_request(node, request)
    kv.node_track_request(other, 5)
    assert kv.node_untrack_request(node, 3) and not kv.node_untrack_request(node, 3)
    conns = {endpoint: kv.connect(endpoint, wait_ms=5000, manager=manager) for endpoint in (first, shared)}
    kv.send(conns[first], [b"x"])
    info = kv.node_info(node)
    assert (info["name"], info["status"], info["endpoints"], info["requests"]) == ("prefill-0", 0, 3, 2)

    failure = kv.handle_failure(node, "heartbeat lost")
    assert (failure.node, failure.name, failure.requests) == (node, "prefill-0", [7, 2**64 - 1])
    assert "heartbeat lost" in failure.reason and abs(failure.time_ms / 1000 - time.time()) < 60
    assert [(e.endpoint, e.conn, e.spared, e.accepted) for e in failure.endpoints] == [
        (first, conns[first], False, 1),
        (second, 0, False, 0),
        (shared, conns[shared], True, 0),
    ]
    # What is over stays over, and late calls change nothing.
    for call in (
        lambda: kv.send(conns[first], [b"x"]),
        lambda: kv.send_to(second, [b"x"], manager=manager),
        lambda: kv.connect(first, wait_ms=0, manager=manager),
        lambda: kv.handle_failure(node),
        lambda: kv.node_report_health(node, False),
        lambda: kv.node_track_request(node, 8),
        lambda: kv.node_add_endpoints(node, [first]),
    ):
        with pytest.raises(kv.NodeFailed):
            call()
    kv.send(conns[shared], [b"spared"])
    ranks[2].expect(1)
    assert kv.node_info(other)["requests"] == 1
    with pytest.raises(kv.NotFound):
        kv.node_find("prefill-0", manager)

    # The next life has another id, and only its registration lifts the fence.
    again, created = kv.node_open("prefill-0", manager)
    assert created and again != node and kv.node_find("prefill-0", manager) == again
    with pytest.raises(kv.NodeFailed):
        kv.connect(first, wait_ms=0, manager=manager)
    kv.node_add_endpoints(again, [first])
    kv.send(kv.connect(first, wait_ms=5000, manager=manager), [b"again"])
    ranks[0].expect(2)
    with pytest.raises(kv.NodeFailed):
        kv.node_report_health(node, False, "a probe of the first life")
    assert kv.node_info(again)["failures_in_row"] == 0


def test_bad_probes_in_a_row_fail_a_node(kv, manager):
    node, _ = kv.node_open("n", manager)
    kv.node_track_request(node, 1)
    assert kv.node_report_health(node, False) is None
    assert kv.node_report_health(node, True) is None
    assert kv.node_report_health(node, False) is None
    failure = kv.node_report_health(node, False, "no answer")
    assert failure.requests == [1] and "no answer" in failure.reason
    assert kv.take_failure(manager=manager) is None, "given out once already"


def test_a_report_without_a_place_is_kept(kv, manager):
    """Scenario 39: the caller gives NULL, and the event queue is full."""
    from kvconn import _ffi

    library = _ffi.load()
    kv.configure({"max_events": 2, "max_failures": 1}, manager)
    nodes = [kv.node_open(f"node {n}", manager)[0] for n in range(5)]
    for node in nodes:
        kv.node_track_request(node, node)
        assert library.kvconn_node_report_health(node, 0, None, None, None) == 0
    taken = [kv.take_failure(manager=manager) for _ in nodes]
    assert [(f.node, f.requests) for f in taken] == [(node, [node]) for node in nodes]
    assert kv.take_failure(manager=manager) is None
    kinds = []
    while event := kv.next_event(0, manager):
        kinds.append(event["kind"])
    assert kv.EVENT_OVERFLOW in kinds


def test_a_lost_peer_fails_its_node_when_told_to(kv, manager, peer):
    kv.configure({"node_loss": "any"}, manager)
    rank = peer()
    node, _ = kv.node_open("n", manager)
    kv.node_add_endpoints(node, [rank.endpoint])
    kv.node_track_request(node, 42)
    conn = kv.connect(rank.endpoint, wait_ms=5000, manager=manager)
    rank.kill()
    fd, kinds = kv.event_fd(manager), []
    while kv.EVENT_NODE_FAILED not in kinds:
        assert select.select([fd], [], [], 10)[0], kinds
        event = kv.next_event(0, manager)
        kinds.append(event["kind"])
    assert kinds == [kv.EVENT_READY, kv.EVENT_PEER_LOST, kv.EVENT_NODE_FAILED]
    assert (event["node"], event["node_name"], event["count"]) == (node, "n", 1)
    failure = kv.take_failure(manager=manager)
    assert (failure.node, failure.requests) == (node, [42])
    assert [(lost.conn, lost.accepted) for lost in failure.endpoints] == [(conn, 0)]  # the rank that died
    assert kv.event_name(event["kind"]) == "KVCONN_EVENT_NODE_FAILED" and kv.event_name(-1) == "unknown"
    with pytest.raises(kv.PeerLost):
        kv.send(conn, [b"x"])


def test_a_failure_wakes_blocked_senders(kv, manager, peer):
    rank = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    node, _ = kv.node_open("n", manager)
    kv.node_add_endpoints(node, [rank.endpoint], {"send_hwm": 5})
    conn = kv.connect(rank.endpoint, wait_ms=5000, manager=manager)
    rank.stop()
    fill(kv, conn)
    blocked = BlockedSenders(kv, conn, 8)
    begun = time.monotonic()
    kv.handle_failure(node)
    assert time.monotonic() - begun < 0.1
    assert blocked.join(0.2) == ["KVCONN_NODE_FAILED"] * 8


def test_endpoints_can_be_taken_away(kv, manager, peer):
    first, second = peer(), peer()
    node, _ = kv.node_open("n", manager)
    kv.node_add_endpoints(node, [first.endpoint, second.endpoint])
    conn = kv.connect(first.endpoint, wait_ms=5000, manager=manager)
    kv.node_remove_endpoints(node, [first.endpoint, "tcp://127.0.0.1:9"])
    assert kv.node_info(node)["endpoints"] == 1
    with pytest.raises(kv.Disconnected):
        kv.send(conn, [b"x"])
    with pytest.raises(kv.Disconnected):
        kv.send_to(first.endpoint, [b"x"], manager=manager)
    with pytest.raises(kv.Invalid):
        kv.node_add_endpoints(node, [first.endpoint, "tcp://127.0.0.1:0"])
    assert kv.node_info(node)["endpoints"] == 1, "all or nothing"


def test_a_change_of_role_sends_what_was_accepted_and_starts_afresh(kv, manager, peer):
    """Scenario 45."""
    rank = peer("--keep")
    node, _ = kv.node_open("n", manager)
    kv.node_add_endpoints(node, [rank.endpoint])
    conn = kv.connect(rank.endpoint, wait_ms=5000, manager=manager)
    kv.send(conn, [b"ABORT"])
    kv.disconnect_all(1000, manager)
    rank.expect(1)
    assert rank.messages() == [[b"ABORT"]] and kv.connections(manager) == []
    with pytest.raises(kv.Disconnected):
        kv.node_track_request(node, 1)
    with pytest.raises(kv.Disconnected):
        kv.send_to(rank.endpoint, [b"x"], manager=manager)
    kv.send(kv.connect(rank.endpoint, wait_ms=5000, manager=manager), [b"new role"])
    rank.expect(2)


def test_a_wait_for_a_report_ends_with_it_or_in_time(kv, manager):
    begun = time.monotonic()
    assert kv.take_failure(450, manager) is None
    assert 0.45 <= time.monotonic() - begun < 2
    node, _ = kv.node_open("n", manager)
    kv.node_track_request(node, 7)

    def fail():
        assert kv._lib.kvconn_handle_failure(node, None, None, None) == 0

    for wait in (lambda: kv.take_failure(20_000, manager), lambda: kv.take_failure(kv.DEFAULT_TIMEOUT, manager)):
        timer = threading.Timer(0.5, fail)
        timer.start()
        assert wait().requests == [7]
        timer.join()
        node, _ = kv.node_open("n", manager)
        kv.node_track_request(node, 7)
    with pytest.raises(kv.Invalid):
        kv.take_failure(-2, manager)


@pytest.mark.parametrize("main", [True, False])
def test_the_managers_end_ends_a_wait_for_a_report(kv, main):
    mine = kv.manager_create()
    timer = threading.Timer(0.5, lambda: kv.manager_destroy(mine))
    timer.start()
    outcome = []

    def wait():
        with pytest.raises(kv.Stale):
            kv.take_failure(kv.DEFAULT_TIMEOUT, mine)
        outcome.append("stale")

    if main:
        wait()
    else:
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(20)
    timer.join()
    assert outcome == ["stale"]


def test_all_ranks_are_connected_in_one_call(kv, manager, peer):
    ranks = [peer() for _ in range(3)]
    gone = peer()
    gone.kill()
    node, _ = kv.node_open("n", manager)
    endpoints = [rank.endpoint for rank in ranks]
    results, partial = kv.node_connect(node, [*endpoints, gone.endpoint, endpoints[0]], wait_ms=5000)
    assert [result.status for result in results] == [0, 0, 0, -7, 0] and kv.STATUSES[-7] is kv.ConnectFailed
    assert results[3].conn == 0 and results[4] == results[0] and len({result.conn for result in results}) == 4
    assert isinstance(partial, kv.Partial) and partial.os_errno == errno.ECONNREFUSED
    assert "1 of 5 endpoints failed; endpoints[3]" in partial.message
    for result, rank in zip(results, ranks):
        kv.send(result.conn, [b"x"])
        rank.expect(1)
    results, partial = kv.node_connect(node, endpoints, {"send_hwm": 1000}, wait_ms=0)
    assert partial is None and kv.node_connect(node, [], wait_ms=0) == ([], None)

    # What the discovery says now: the second is gone.
    kv.node_set_endpoints(node, [endpoints[0], endpoints[2]])
    with pytest.raises(kv.Disconnected):
        kv.send(results[1].conn, [b"x"])
    kv.send(results[0].conn, [b"x"])
    assert kv.node_info(node)["endpoints"] == 2
    with pytest.raises(kv.Invalid):
        kv.node_set_endpoints(node, ["nowhere"])
    kv.handle_failure(node)
    for call in (kv.node_connect, kv.node_set_endpoints):
        with pytest.raises(kv.NodeFailed):
            call(node, endpoints)
        with pytest.raises(TypeError):
            call(node, "tcp://127.0.0.1:1")


def test_a_packed_batch_goes_through_ctypes(kv, manager, peer):
    from kvconn import _ffi

    rank = peer()
    conn = kv.connect(rank.endpoint, wait_ms=5000, manager=manager)
    conns, counts, sizes = (_ffi.conn_t * 3)(conn, 0, conn), (c_uint32 * 3)(2, 1, 1), (c_uint32 * 4)(4, 2, 7, 1)
    sequences, statuses, error = (c_uint64 * 3)(), (_ffi.status_t * 3)(), _ffi.kvconn_error_t()
    sent = kv._lib.kvconn_send_batch_packed(conns, counts, 3, b"room17skippedx", sizes, 5000, sequences, statuses, error)
    assert (sent, list(sequences), list(statuses)) == (0, [1, 0, 2], [0, 0, 0])
    rank.expect(2)
