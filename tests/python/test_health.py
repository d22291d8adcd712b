"""HealthWatch: HTTP probes of nodes, each bound to one life."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from conftest import ROOT, Process, _factory
from load import Stopwatch
from sharing import kv, manager  # noqa: F401: fixtures are found by name


class Health(Process):
    def __init__(self, *arguments):
        super().__init__("health.py", *arguments)

    def __str__(self):
        return self.endpoint


@pytest.fixture
def health():
    yield from _factory(Health)


def opened(kv, manager, name, *requests):
    node, created = kv.node_open(name, manager)
    assert created
    for request in requests:
        kv.node_track_request(node, request)
    return node


def test_one_server_dies_and_one_is_stopped(kv, manager, health, wait_until):
    """The third is well, and is left alone. A dead one is found within two intervals, a silent one within 3 s."""
    servers, failures, moments = [health(), health(), health()], [], {}

    def failed(failure):
        moments[failure.name] = time.monotonic()
        failures.append(failure)

    with kv.HealthWatch(failed) as watch:
        nodes = [opened(kv, manager, name, number) for number, name in enumerate(("dead", "stopped", "well"))]
        for node, server in zip(nodes, servers):
            watch.add(node, str(server))
        wait_until("all were asked twice", lambda: all(server.report()["requests"] >= 2 for server in servers))
        assert failures == [] and watch.nodes == nodes
        servers[0].kill()
        servers[1].stop()
        clock = Stopwatch()
        wait_until("both have failed", lambda: len(failures) == 2)
        # 1.7 s and 2.8 s on an idle machine.
        clock.at_most(2.5, "the dead one", moments["dead"] - clock.begun)
        clock.at_most(4, "the stopped one", moments["stopped"] - clock.begun)
        by_name = {failure.name: failure for failure in failures}
        assert by_name["dead"].requests == [0] and "Connect call failed" in by_name["dead"].reason
        assert by_name["stopped"].requests == [1] and "no answer within 1 s" in by_name["stopped"].reason
        wait_until("only the third is watched", lambda: watch.nodes == [nodes[2]])
        before = servers[2].report()["requests"]
        wait_until("the third is asked on", lambda: servers[2].report()["requests"] > before + 1)
        # On a loaded machine one of its answers may have been late.
        wait_until("the third has answered", lambda: kv.node_info(nodes[2])["failures_in_row"] == 0)
        assert len(failures) == 2
    assert servers[2].report()["paths"] == ["/health"]
    after = servers[2].report()["requests"]
    time.sleep(1)
    assert servers[2].report()["requests"] == after
    assert kv.take_failure(0, manager) is None  # the function got them, and nothing else does
    servers[1].cont()


def test_a_probe_that_spans_a_restart_does_not_hurt_the_successor(kv, manager, health, wait_until):
    stopped, successor, failures = health(), health(), []
    with kv.HealthWatch(failures.append, interval=0.05, timeout=1.5) as watch:
        first = opened(kv, manager, "prefill")
        watch.add(first, str(stopped))
        wait_until("it was asked", lambda: stopped.report()["requests"])
        stopped.stop()
        time.sleep(0.2)  # a probe waits for its answer
        kv.handle_failure(first, "restarted")
        second = opened(kv, manager, "prefill")
        watch.add(second, str(successor))
        wait_until("the answer of the first life has come", lambda: watch.nodes == [second])
        assert kv.node_info(second)["failures_in_row"] == 0 and kv.node_find("prefill", manager) == second
    assert failures == []
    stopped.cont()


@pytest.mark.parametrize("status, well", [(200, True), (204, True), (503, False), (302, False)])
def test_statuses(kv, manager, health, wait_until, status, well):
    server, failures = health("--status", status), []
    with kv.HealthWatch(failures.append, interval=0.05) as watch:
        node = opened(kv, manager, "prefill")
        watch.add(node, f"{server}/ready?deep=1")
        wait_until("it was asked three times or has failed", lambda: failures or server.report()["requests"] > 2)
        assert well != bool(failures)
    assert well or f"HTTP status {status}" in failures[0].reason
    assert server.report()["paths"] == ["/ready?deep=1"]


def test_a_port_that_speaks_no_http(kv, manager, wrong_peer, wait_until):
    failures = []
    with kv.HealthWatch(failures.append, interval=0.05) as watch:
        watch.add(opened(kv, manager, "prefill"), f"http://127.0.0.1:{wrong_peer('ssh').port}")
        wait_until("it has failed", lambda: failures)
    assert "not HTTP" in failures[0].reason or "no answer" in failures[0].reason


def test_a_silent_server_delays_no_other(kv, manager, health, wait_until):
    """50 nodes share a stopped server; the one beside them is asked on in its interval."""
    stopped, well, failures = health(), health(), []
    stopped.stop()
    with kv.HealthWatch(failures.append, interval=0.1, timeout=3) as watch:
        for number in range(50):
            watch.add(opened(kv, manager, f"silent-{number}"), str(stopped))
        watch.add(opened(kv, manager, "well"), str(well))
        clock = Stopwatch()
        wait_until("the other was asked ten times", lambda: well.report()["requests"] >= 10)
        clock.at_most(3)
        assert failures == []  # before the first silent probe has ended
    stopped.cont()


def test_asyncio(kv, manager, health, wait_until):
    server = health()

    async def main():
        failed = asyncio.get_running_loop().create_future()
        watch = kv.HealthWatch(failed.set_result, interval=0.05)
        watch.add(opened(kv, manager, "prefill", 7), str(server))
        task = asyncio.create_task(watch.run())
        while server.report()["requests"] < 2:
            await asyncio.sleep(0.01)
        server.kill()
        failure = await asyncio.wait_for(failed, 10)
        with pytest.raises(RuntimeError):
            await watch.run()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return failure, threading.active_count()

    before = threading.active_count()
    failure, during = asyncio.run(main())
    assert failure.requests == [7] and during == before


def test_a_function_that_raises_or_closes(kv, manager, wait_until, caplog):
    """A raising function is logged, and the watch goes on. The function may close the watch."""
    calls = []

    def failed(failure):
        calls.append(failure.name)
        if failure.name == "second":
            watch.close()
        raise ZeroDivisionError

    watch = kv.HealthWatch(failed, interval=0.02).start()
    with pytest.raises(RuntimeError):
        watch.start()
    for name in ("first", "second"):
        watch.add(opened(kv, manager, name), "http://127.0.0.1:9")
        wait_until(f"{name} has failed", lambda: name in calls)
    watch.close()
    assert "ZeroDivisionError" in caplog.text
    with watch:  # and again
        pass


def test_remove_and_a_node_that_ended(kv, manager, health, wait_until):
    server = health()
    with kv.HealthWatch(lambda failure: None, interval=0.02) as watch:
        node, other = opened(kv, manager, "removed"), opened(kv, manager, "ended")
        watch.add(node, str(server))
        watch.add(other, str(server))
        watch.remove(node)
        assert watch.nodes == [other]
        kv.handle_failure(other)
        wait_until("it is watched no more", lambda: watch.nodes == [])


def test_it_closes_at_any_moment(kv, manager, health):
    """Also when an answer comes at the same moment."""
    server = health()
    node = opened(kv, manager, "prefill")
    for number in range(60):
        watch = kv.HealthWatch(lambda failure: None, interval=0.001).start()
        watch.add(node, str(server))
        time.sleep(0.0005 * number)
        watch.close()


def test_what_it_refuses(kv):
    with pytest.raises(ValueError, match="url"):
        kv.HealthWatch(print).add(1, "10.0.0.7:8998")
    with pytest.raises(ValueError, match="url"):
        kv.HealthWatch(print).add(1, "http://a/b c")
    for wrong in ({"interval": -1}, {"interval": 0}, {"timeout": 0}):
        with pytest.raises(ValueError):
            kv.HealthWatch(print, **wrong)
    with pytest.raises(TypeError):
        kv.HealthWatch(print, timeout="1")


def test_the_package_loads_no_asyncio_without_need(lib):
    script = "import sys; sys.path.insert(0, sys.argv[1]); import kvconn; print('asyncio' in sys.modules); kvconn.shutdown()"
    run = [sys.executable, "-c", textwrap.dedent(script), ROOT / "python"]
    assert subprocess.run(run, check=True, timeout=60, capture_output=True, text=True).stdout == "False\n"


def test_the_example(lib, health):
    servers = [health(), health("--status", 503)]
    command = [sys.executable, ROOT / "examples_python" / "health.py", f"one={servers[0]}", f"two={servers[1]}/health"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as watching:
        said = watching.stdout.readline()
        assert "LOST two, requests [1]: 2 unhealthy reports in a row: health probe: HTTP status 503" in said
        assert watching.poll() is None
        servers[0].kill()
        assert "LOST one, requests [0]" in watching.stdout.readline()
        assert watching.wait(20) == 0
