"""The objects over the functions: they forward, they are their ids, and garbage collection ends nothing."""

import copy
import gc
import inspect
import os
import pickle
import time

import pytest

from sharing import canonical, fill, kv  # noqa: F401: fixtures are found by name

DISCONNECTED = -9


@pytest.fixture
def managed(kv):
    """A Manager that is destroyed after the test."""
    m = kv.Manager()
    yield m
    try:
        m.destroy()
    except kv.Stale:
        pass  # the test has done it


def test_a_message_goes_from_every_object_that_sends(managed, peer):
    receiver = peer("--keep")
    conn = managed.connect(receiver.endpoint, timeout=5)
    assert conn.send_multipart([b"1", b"a"]) == 1
    assert conn.send_multipart([b"2"], timeout=0) == 2
    assert conn.send_owned([b"3"], timeout=2.5) == 3
    assert managed.send_to(receiver.endpoint, [b"4"], timeout=5) == (conn, 4)
    assert managed.endpoint(receiver.endpoint).send_multipart([b"5"]) == (conn, 5)
    conn.wait_released(timeout=5)
    assert conn.flush(timeout=5) == 5
    receiver.expect(5)
    assert receiver.messages() == [[b"1", b"a"], [b"2"], [b"3"], [b"4"], [b"5"]]
    assert conn.endpoint == canonical(receiver)
    assert conn.info()["accepted"] == 5
    assert managed.connections() == [conn] == [managed.find(receiver.endpoint)]
    assert canonical(receiver) in managed.describe() and "kvconn_" in managed.metrics_text()
    conn.disconnect()
    assert managed.connections() == []


def test_an_endpoint_connects_with_its_options_disconnects_and_fences(kv, managed, peer):
    endpoint = managed.endpoint(peer().endpoint, {"send_hwm": 7})
    with pytest.raises(kv.NotFound):
        endpoint.find()
    conn = endpoint.connect(timeout=5)
    assert endpoint.find() == conn
    with pytest.raises(kv.Conflict):
        managed.connect(endpoint.text, {"send_hwm": 8})
    endpoint.disconnect()
    with pytest.raises(kv.Disconnected):
        endpoint.send_multipart([b"x"])
    assert endpoint.connect(timeout=5) != conn


def test_a_node_is_one_life(kv, managed, peer):
    node = managed.open_node("prefill-0")
    again = managed.open_node("prefill-0")
    assert node == again == managed.find_node("prefill-0")
    assert node.created and not again.created and node.name == "prefill-0"
    rank, other = peer().endpoint, peer().endpoint
    node.add_endpoints([rank, other])
    node.remove_endpoints([other])
    conn = managed.connect(rank, timeout=5)
    node.track(17)
    node.track(18)
    assert node.untrack(18) and not node.untrack(18)
    assert node.report_health(True) is None
    info = node.info()
    assert (info["endpoints"], info["requests"], info["status"]) == (1, 1, 0)
    failure = node.fail("test")
    assert failure.node == node.id and failure.requests == [17]
    assert [each.conn for each in failure.endpoints] == [conn.id]
    with pytest.raises(kv.NodeFailed):
        node.track(19)
    assert managed.open_node("prefill-0") != node


def test_a_health_report_returns_the_failure(managed):
    managed.configure({"max_failures": 1})
    node = managed.open_node("n")
    assert node.report_health(False, "no answer").node == node.id


def test_the_functions_take_the_objects(kv, managed, peer):
    endpoint = peer().endpoint
    conn = managed.connect(endpoint, timeout=5)
    node = managed.open_node("n")
    assert kv.find(endpoint, managed) == conn.id
    assert kv.send(conn, [b"x"]) == 1
    assert kv.connection_info(conn)["conn"] == conn.id == int(conn.__index__())
    kv.node_track_request(node, 5)
    assert kv.node_info(node)["requests"] == 1
    assert kv.connections(managed) == [conn.id]


def test_objects_are_equal_hashed_copied_and_pickled_by_their_ids(kv, managed, peer):
    conn = managed.connect(peer().endpoint, timeout=5)
    node, endpoint = managed.open_node("n"), managed.endpoint("tcp://127.0.0.1:9", {"send_hwm": 7})
    for each in (managed, conn, node, endpoint):
        copies = [copy.copy(each), copy.deepcopy(each)]
        copies += [pickle.loads(pickle.dumps(each, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        for copied in copies:
            assert type(copied) is type(each) and copied == each and hash(copied) == hash(each)
            assert repr(copied) == repr(each)
        assert len({each, *copies}) == 1 and each != object()
    assert pickle.loads(pickle.dumps(endpoint)).options == {"send_hwm": 7}
    assert conn != node and kv.Connection(conn.id) == conn
    assert kv.Connection(node.id) != node, "an id of another kind"
    assert endpoint != kv.Manager.default().endpoint(endpoint.text)
    assert kv.Endpoint(endpoint.text).manager == kv.Manager.default() == kv.Manager.of(0)


def test_an_unpickled_id_of_another_process_is_stale(kv, managed, peer):
    conn = managed.connect(peer().endpoint, timeout=5)
    made = pickle.dumps(conn)
    child = os.fork()
    if child == 0:
        try:
            pickle.loads(made).send_multipart([b"x"])
        except kv.Stale:
            os._exit(7)
        finally:
            os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert conn.send_multipart([b"x"]) == 1


def test_garbage_collection_ends_nothing(kv, peer):
    managed = kv.Manager()
    receiver = peer()
    conn = managed.connect(receiver.endpoint, timeout=5).id
    node = managed.open_node("n").id
    number = managed.id
    events = managed.events()
    del managed, events
    gc.collect()
    assert kv.connections(number) == [conn] and kv.send(conn, [b"x"]) == 1
    assert kv.node_info(node)["status"] == 0
    kv.manager_destroy(number)


def test_with_a_connection_flushes_then_closes(kv, managed, peer):
    receiver = peer()
    with managed.connect(receiver.endpoint, timeout=5) as conn:
        for _ in range(500):
            conn.send_multipart([b"x" * 10_000])
    info = conn.info()
    assert (info["status"], info["acknowledged"]) == (DISCONNECTED, 500)
    receiver.expect(500)


def test_with_a_connection_that_does_not_read_ends_in_time_and_says_so(kv, managed, peer):
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    conn = managed.connect(receiver.endpoint, {"send_hwm": 5}, timeout=5)
    receiver.stop()
    fill(kv, conn)
    begun = time.monotonic()
    with pytest.raises(kv.Timeout):
        conn.close(timeout=0.3)
    assert 0.29 < time.monotonic() - begun < 3
    assert conn.info()["status"] == DISCONNECTED


def test_an_exception_ends_a_connection_at_once(kv, managed, peer):
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    begun = None
    with pytest.raises(ZeroDivisionError):
        managed.configure({"send_timeout_ms": 20_000})
        with managed.connect(receiver.endpoint, {"send_hwm": 5}, timeout=5) as conn:
            receiver.stop()
            fill(kv, conn)
            begun = time.monotonic()
            raise ZeroDivisionError
    assert time.monotonic() - begun < 3
    assert conn.info()["status"] == DISCONNECTED


def test_with_an_ipc_connection_waits_until_all_is_written(kv, managed, peer, tmp_path):
    receiver = peer(bind=f"ipc://{tmp_path}/s")
    with managed.connect(receiver.endpoint, timeout=5) as conn:
        for _ in range(200):
            conn.send_multipart([b"x" * 100_000], timeout=10)
    receiver.expect(200)


def test_an_ipc_connection_that_does_not_read_is_closed_in_time(kv, managed, peer, tmp_path):
    receiver = peer("--rcvhwm", 1, bind=f"ipc://{tmp_path}/s")
    conn = managed.connect(receiver.endpoint, {"send_hwm": 5}, timeout=5)
    receiver.stop()
    fill(kv, conn)
    with pytest.raises(kv.Timeout, match="not written in time") as caught:
        conn.close(timeout=0.3)
    assert caught.value.conn == conn.id and caught.value.retriable
    assert conn.info()["status"] == DISCONNECTED


def test_closing_twice_is_no_error(managed, peer):
    conn = managed.connect(peer().endpoint, timeout=5)
    conn.close()
    conn.close()


def test_with_a_manager_flushes_then_destroys(kv, peer):
    receiver = peer()
    with kv.Manager({"send_hwm": 2000}) as managed:
        conn = managed.connect(receiver.endpoint, timeout=5)
        for _ in range(500):
            conn.send_multipart([b"x" * 10_000])
    receiver.expect(500)
    with pytest.raises(kv.Stale):
        managed.connections()


def test_an_exception_destroys_a_manager_at_once(kv, peer):
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    with pytest.raises(ZeroDivisionError):
        with kv.Manager({"send_timeout_ms": 20_000}) as managed:
            conn = managed.connect(receiver.endpoint, {"send_hwm": 5}, timeout=5)
            receiver.stop()
            fill(kv, conn)
            begun = time.monotonic()
            raise ZeroDivisionError
    assert time.monotonic() - begun < 5
    with pytest.raises(kv.Stale):
        managed.connections()


def test_timeouts_of_objects_are_seconds_and_are_checked(kv, managed):
    for wrong in (True, "1", b"1", [1], 1j):
        with pytest.raises(TypeError, match="timeout"):
            managed.connect("tcp://127.0.0.1:9", timeout=wrong)
    for wrong in (-1, -0.001, float("nan"), float("inf"), 1e300, 10**30):
        with pytest.raises(ValueError, match="timeout"):
            managed.connect("tcp://127.0.0.1:9", timeout=wrong)
    from kvconn import _check

    for seconds, ms in ((None, -1), (0, 0), (0.0, 0), (1, 1000), (0.0001, 1), (2.5, 2500), (0.0015, 2)):
        assert _check.milliseconds("timeout", seconds) == ms


def test_every_method_with_a_timeout_means_seconds(kv):
    for kind in (kv.Connection, kv.Endpoint, kv.Events, kv.Failures, kv.Manager, kv.Node):
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            parameters = inspect.signature(function).parameters
            assert not any(each.endswith("_ms") for each in parameters), (kind, name)


def test_ids_are_checked(kv):
    for kind in (kv.Connection, kv.Node, kv.Manager.of):
        for wrong in (-1, 2**64, 1.0, "1", True, None):
            with pytest.raises((TypeError, ValueError), match=r"\bid\b"):
                kind(wrong)


def test_an_object_is_its_id_and_no_other_number(kv, managed):
    """take_failure(m) would otherwise wait as many milliseconds as the manager's id says."""
    node = managed.open_node("n")
    for call in (
        lambda: kv.take_failure(managed),
        lambda: kv.next_event(managed),
        lambda: kv.disconnect_all(managed),
        lambda: kv.shutdown(managed),
        lambda: kv.connect("tcp://127.0.0.1:9", None, managed),
        lambda: kv.send(kv.Connection(1), [b"x"], managed),
        lambda: kv.send_to("tcp://127.0.0.1:9", [b"x"], managed),
        lambda: kv.send_owned(kv.Connection(1), [b"x"], managed),
        lambda: kv.send_batch([(kv.Connection(1), [b"x"])], managed),
        lambda: kv.flush(kv.Connection(1), managed),
        lambda: kv.wait_released(kv.Connection(1), managed),
        lambda: kv.manager_destroy(managed, managed),
        lambda: kv.node_connect(node, ["tcp://127.0.0.1:9"], None, managed),
        lambda: kv.node_track_request(node, managed),
        lambda: kv.node_untrack_request(node, managed),
        lambda: kv.dump(managed),
        lambda: kv.set_log(None, managed),
        lambda: kv.configure({"send_hwm": managed}),
        lambda: kv.status_name(managed),
    ):
        with pytest.raises(TypeError, match="not Manager"):
            call()


def test_async_with_a_manager_flushes_while_the_loop_goes_on(kv, peer):
    import asyncio

    async def main():
        receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        with pytest.raises(kv.Timeout):
            async with kv.Manager({"send_hwm": 5}) as managed:
                conn = await asyncio.to_thread(managed.connect, receiver.endpoint, timeout=5)
                receiver.stop()
                await asyncio.to_thread(fill, kv, conn)
                ticking, ticks = asyncio.create_task(tick()), 0
        ticking.cancel()
        assert ticks > 5  # in the second that the flush took
        with pytest.raises(kv.Stale):
            managed.connections()
        with pytest.raises(ZeroDivisionError):
            async with kv.Manager() as managed:
                raise ZeroDivisionError
        with pytest.raises(kv.Stale):
            managed.connections()

    asyncio.run(main())


def test_async_with_a_connection_flushes_then_closes(kv, managed, peer):
    import asyncio

    receiver = peer("--keep")

    async def main():
        async with managed.connect(receiver.endpoint, timeout=5) as conn:
            conn.send_multipart([b"x"])
        assert conn.info()["status"] == DISCONNECTED and conn.info()["acknowledged"] == 1

    asyncio.run(main())


def test_a_node_connects_all_its_ranks_and_follows_discovery(kv, managed, peer):
    receivers, gone = [peer() for _ in range(3)], peer()
    gone.kill()
    node = managed.open_node("n")
    ranks = [receiver.endpoint for receiver in receivers]
    results, partial = node.connect([*ranks, gone.endpoint], timeout=5)
    assert [kv.STATUSES[each.status] for each in results if each.status] == [kv.ConnectFailed]
    assert isinstance(partial, kv.Partial)
    assert [each.conn for each in results[:3]] == [managed.find(rank).id for rank in ranks]
    node.set_endpoints(ranks[:2])
    assert node.info()["endpoints"] == 2 and len(managed.connections()) == 2
    assert node.connect(ranks[:2], timeout=5) == (results[:2], None)
