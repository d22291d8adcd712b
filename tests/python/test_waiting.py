"""Events and Failures: iterators that wait, with and without asyncio."""

import asyncio
import os
import threading
import time

import pytest

from sharing import Stop, alarms, kv, manager  # noqa: F401: fixtures are found by name

LONG = 20  # seconds: for a loaded machine


def in_thread(function):
    """Starts a thread; (the thread, a list that gets what the function returns)."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    return thread, results


def ended(thread, results):
    thread.join(LONG)
    assert not thread.is_alive()
    return results[0]


# ---- for -------------------------------------------------------------------------------------------------------------


async def collected(events):
    return [event async for event in events]


def test_events_come_in_order_and_the_loop_waits_for_the_next(kv, manager, peer):
    events = kv.Events(manager, timeout=LONG)
    waiting = in_thread(lambda: next(events))
    first = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    event = ended(*waiting)
    assert (event["kind"], event["conn"]) == (kv.EVENT_READY, first)
    second = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    kv.disconnect(first)
    seen = []
    for event in events:
        seen.append((event["kind"], event["conn"]))
        if event["kind"] == kv.EVENT_DISCONNECTED:
            break
    assert seen == [(kv.EVENT_READY, second), (kv.EVENT_DISCONNECTED, first)]


@pytest.mark.parametrize("kind", ["Events", "Failures"])
def test_the_loop_ends_after_its_timeout(kv, manager, kind):
    begun = time.monotonic()
    assert list(getattr(kv, kind)(manager, timeout=0.35)) == []
    assert 0.35 <= time.monotonic() - begun < 3
    begun = time.monotonic()
    assert list(getattr(kv, kind)(manager, timeout=0)) == []
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("kind", ["Events", "Failures"])
@pytest.mark.parametrize("how", ["close", "destroy"])
def test_a_loop_that_waits_for_ever_is_ended_by(kv, kind, how):
    number = kv.manager_create()
    items = getattr(kv, kind)(number)
    waiting = in_thread(lambda: list(items))
    time.sleep(0.05)
    begun = time.monotonic()
    items.close() if how == "close" else kv.manager_destroy(number)
    assert ended(*waiting) == []
    assert time.monotonic() - begun < 1.2
    if how == "close":
        kv.manager_destroy(number)


@pytest.mark.parametrize("kind", ["Events", "Failures"])
def test_with_closes(kv, manager, kind):
    with getattr(kv, kind)(manager) as items:
        assert iter(items) is items
    assert list(items) == []


@pytest.mark.parametrize("kind", ["Events", "Failures"])
def test_an_unknown_manager_is_stale_at_once(kv, kind):
    with pytest.raises(kv.Stale):
        getattr(kv, kind)(77)


def test_failures_come_once_each_and_the_loop_waits_for_the_next(kv, manager, peer):
    kv.configure({"node_loss": "any"}, manager)
    receivers = [peer() for _ in range(3)]
    nodes = []
    for number, receiver in enumerate(receivers):
        nodes.append(kv.node_open(f"node {number}", manager)[0])
        kv.node_add_endpoints(nodes[-1], [receiver.endpoint])
        kv.node_track_request(nodes[-1], number)
        kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    failures = kv.Manager.of(manager).failures(timeout=LONG)
    for number, receiver in enumerate(receivers):
        waiting = in_thread(lambda: next(failures))
        receiver.kill()
        failure = ended(*waiting)
        assert (failure.node, failure.requests) == (nodes[number], [number])
    assert kv.take_failure(manager=manager) is None


@pytest.mark.parametrize("kind", ["Events", "Failures"])
def test_a_handler_that_raises_comes_out_of_the_loop_at_once(kv, manager, kind):
    items = getattr(kv, kind)(manager, timeout=LONG)
    with alarms(0.3, raises=True) as handled:
        with pytest.raises(Stop):
            next(items)
        assert time.monotonic() - handled[0] < 1


@pytest.mark.parametrize("kind", ["Events", "Failures"])
def test_handlers_run_while_a_loop_waits(kv, manager, kind):
    items = getattr(kv, kind)(manager, timeout=0.9)
    with alarms(0.1, 0.1) as handled:
        begun = time.monotonic()
        assert list(items) == []
        ended_at = time.monotonic()
    moments = [begun, *(at for at in handled if begun <= at <= ended_at), ended_at]
    assert max(later - earlier for earlier, later in zip(moments, moments[1:])) < 0.1 + 0.2 + 0.3


# ---- async for -------------------------------------------------------------------------------------------------------


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, LONG))


def test_async_for_waits_without_a_thread_and_without_polling(kv, manager, peer, monkeypatch):
    from kvconn import _observe

    receiver, asks, real = peer(), [], _observe.next_event
    monkeypatch.setattr(_observe, "next_event", lambda *arguments: (asks.append(1), real(*arguments))[1])

    async def main():
        threads, seen = threading.active_count(), []
        asyncio.get_running_loop().call_later(0.4, kv.connect, receiver.endpoint, None, 0, manager)
        async for event in kv.Events(manager):
            seen.append(event["kind"])
            assert threading.active_count() == threads
            if len(seen) == 1:
                kv.disconnect(event["conn"])
            else:
                return seen

    assert run(main()) == [kv.EVENT_READY, kv.EVENT_DISCONNECTED]
    assert 3 <= len(asks) < 10


def test_each_event_wakes_its_task_at_once(kv, manager):
    async def main():
        events, waited = kv.Events(manager), 0.0
        for number in range(12):
            node = kv.node_open(f"n{number}", manager)[0]
            waiting = asyncio.ensure_future(events.__anext__())
            await asyncio.sleep(0.02)  # it waits through the descriptor
            begun = time.monotonic()
            kv.handle_failure(node)
            assert (await waiting)["node"] == node
            waited += time.monotonic() - begun
        return waited

    assert run(main()) < 2, "its look whether the manager lives, every 0.5 s, has found some of them"


def test_the_event_loop_is_free_while_it_waits(kv, manager):
    async def main():
        events = kv.Events(manager, timeout=0.5)

        async def ticks():
            count = 0
            while True:
                await asyncio.sleep(0.01)
                count += 1
                assert count < 10_000
                if waiting.done():
                    return count
        waiting = asyncio.ensure_future(collected(events))
        return await ticks(), await waiting

    count, events = run(main())
    assert count > 5 and events == []


def test_tasks_share_the_events_and_each_comes_once(kv, manager):
    nodes = [kv.node_open(f"n{number}", manager)[0] for number in range(300)]

    async def main():
        async def reader():
            return [event["node"] async for event in kv.Events(manager, timeout=1.0)]

        async def failing():
            for number, node in enumerate(nodes):
                kv.handle_failure(node)
                if number % 20 == 0:
                    await asyncio.sleep(0.01)

        *seen, _ = await asyncio.gather(reader(), reader(), reader(), failing())
        return seen

    seen = run(main())
    assert sorted(sum(seen, [])) == sorted(nodes)
    assert all(part == [node for node in nodes if node in set(part)] for part in seen), "in order"


def test_a_cancelled_wait_loses_no_event_and_leaves_no_descriptor(kv, manager):
    kv.event_fd(manager)

    async def main():
        events = kv.Events(manager)
        watched = asyncio.get_running_loop()._selector.get_map()  # what the loop polls
        before, polled = len(os.listdir("/proc/self/fd")), len(watched)
        seen = []
        for number in range(100):
            waiting = asyncio.ensure_future(events.__anext__())
            await asyncio.sleep(0)
            node = kv.node_open(f"n{number}", manager)[0]
            kv.handle_failure(node)
            if number % 2:
                await asyncio.sleep(0)  # the loop has seen the descriptor, the task has not run
            waiting.cancel()
            try:
                event = await waiting
            except asyncio.CancelledError:
                event = await events.__anext__()
            seen.append(event["node"] == node)
        assert (len(os.listdir("/proc/self/fd")), len(watched)) == (before, polled)
        return seen

    assert run(main()) == [True] * 100


@pytest.mark.parametrize("how", ["close", "destroy"])
def test_an_asynchronous_loop_that_waits_for_ever_is_ended_by(kv, how):
    number = kv.manager_create()

    async def main():
        events = kv.Events(number)
        waiting = asyncio.ensure_future(collected(events))
        await asyncio.sleep(0.1)
        events.close() if how == "close" else kv.manager_destroy(number)
        begun = time.monotonic()
        assert await waiting == []
        return time.monotonic() - begun

    assert run(main()) < 3
    if how == "close":
        kv.manager_destroy(number)


def test_close_is_heard_within_200_ms_also_by_an_asynchronous_loop(kv, manager):
    """The quickest of five: the others may wait for the processor."""

    async def one():
        events = kv.Events(manager)
        waiting = asyncio.ensure_future(collected(events))
        await asyncio.sleep(0.01)
        begun = time.monotonic()
        events.close()
        assert await waiting == []
        return time.monotonic() - begun

    async def main():
        return min([await one() for _ in range(5)])

    assert run(main()) < 0.3


def test_a_forked_child_reads_its_own_events(kv, lib):
    """The child of a process that has read events of the default manager has a queue of its own."""

    async def one(events):
        async for event in events:
            return event["kind"]

    events = kv.Events(timeout=LONG)
    child = os.fork()
    if child == 0:
        try:
            node = kv.node_open("child")[0]
            kv.handle_failure(node)
            os._exit(asyncio.run(one(events)))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == kv.EVENT_NODE_FAILED
