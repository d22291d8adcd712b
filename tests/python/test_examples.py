"""The example programs do what they say, and the demo's proof can fail."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest
from sharing import ROOT, SECONDS, canonical, nobody, run  # noqa: F401: fixtures are found by name


@pytest.fixture
def example(lib):
    """The path of a compiled example (`make examples`)."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    directory = pathlib.Path(os.environ.get("KVCONN_C_EXAMPLES") or target / "examples_c")

    def path(name):
        if not (directory / name).exists():
            pytest.fail(f"{directory / name} is missing: run `make examples`")
        return directory / name

    return path


# ---- Quickstarts -----------------------------------------------------------------------------------------------------


def python_example(name, *arguments):
    return run(sys.executable, ROOT / "examples_python" / name, *arguments, PYTHONPATH=str(ROOT / "python"))


@pytest.mark.parametrize("program", ["quickstart", "quickstart.py", "node.py"])
def test_the_quickstart_sends_one_message(example, peer, program):
    receiver = peer("--keep")
    endpoint = canonical(receiver)
    result = python_example(program, endpoint) if program.endswith(".py") else run(example(program), endpoint)
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(rf"connection \d+ accepted message 1 for {endpoint}\n", result.stdout)
    receiver.expect(1)
    assert receiver.messages() == [[b"room", b"17"]]


def test_the_objects_example_reports_its_events(lib, peer, nobody):
    receiver = peer("--keep")
    endpoint = canonical(receiver)
    result = python_example("objects.py", endpoint)
    assert (result.returncode, result.stderr) == (0, "")
    # The events come in between; that of the end may be seen before the manager is destroyed.
    said = [line for line in result.stdout.splitlines() if not line.startswith(f"ENDED {endpoint}: ")]
    accepted, ready = sorted(said, key=str.casefold)
    assert ready == f"READY {endpoint}" and re.fullmatch(rf"connection \d+ accepted message 1 for {endpoint}", accepted)
    receiver.expect(1)
    assert receiver.messages() == [[b"room", b"17"]]
    result = python_example("objects.py", nobody)
    said = {f"ENDED {nobody}: Connection refused", "FAILED prefill-0"}  # events come until the manager is destroyed
    assert result.returncode == 1 and set(result.stdout.splitlines()) <= said
    assert "prefill-0 failed with requests [17]: KVCONN_CONNECT_FAILED: Connection refused" in result.stderr
    result = python_example("objects.py")
    assert (result.returncode, result.stderr[:20]) == (1, "usage: objects.py EN")


def test_the_objects_example_reports_a_node_that_its_rank_has_taken_away(lib, peer, monkeypatch):
    """The rank dies after the connect; node_loss has failed the node before the send says so."""
    import asyncio
    import time

    import kvconn

    receiver = peer()
    specification = importlib.util.spec_from_file_location("objects", ROOT / "examples_python" / "objects.py")
    program = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(program)
    nodes, open_node, send = [], kvconn.Manager.open_node, kvconn.Connection.send_multipart

    def open_and_note(self, name):
        nodes.append(open_node(self, name))
        return nodes[0]

    def send_late(self, *arguments, **named):
        receiver.kill()
        deadline = time.monotonic() + SECONDS
        while nodes[0].info()["status"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return send(self, *arguments, **named)

    monkeypatch.setattr(kvconn.Manager, "open_node", open_and_note)
    monkeypatch.setattr(kvconn.Connection, "send_multipart", send_late)
    with pytest.raises(SystemExit) as ended:
        asyncio.run(program.main(canonical(receiver)))
    assert str(ended.value).startswith("prefill-0 failed with requests [17]: "), ended.value


def test_the_python_quickstart_has_a_default_endpoint(lib):
    result = python_example("quickstart.py")
    assert "tcp://127.0.0.1:5557" in result.stdout + result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("program", ["quickstart", "quickstart.py"])
def test_the_quickstart_says_why_nothing_was_accepted(example, nobody, program):
    result = python_example(program, nobody) if program.endswith(".py") else run(example(program), nobody)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"{nobody}: Connection refused")
    assert "(KVCONN_CONNECT_FAILED)" in result.stderr


def test_the_python_node_without_an_endpoint_says_how_it_is_used(lib):
    result = python_example("node.py")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("usage: node.py ENDPOINT")


def test_the_python_node_reports_the_failed_request(lib, nobody):
    result = python_example("node.py", nobody)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("prefill-0 failed with requests [17]: KVCONN_CONNECT_FAILED: Connection refused")


# ---- Event loop ------------------------------------------------------------------------------------------------------


def test_the_event_loop_serves_the_living_until_the_last_is_lost(example, peer, nobody):
    first, last = peer(), peer()
    arguments = [example("event_loop"), canonical(first), nobody, canonical(last)]
    loop = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        begun = sorted(loop.stdout.readline() for _ in range(3))
        assert begun[0].startswith(f"CONNECT_FAILED {nobody} after 0 messages: Connection refused")
        assert begun[1:] == sorted(f"READY {canonical(p)}\n" for p in (first, last))
        first.expect(2)
        first.kill()
        assert re.match(rf"PEER_LOST {canonical(first)} after \d+ messages: ", loop.stdout.readline())
        last.expect(last.report()["messages"] + 3)  # heartbeats go on
        last.kill()
        assert loop.stdout.readline().startswith(f"PEER_LOST {canonical(last)} after ")
        assert loop.wait(SECONDS) == 0
    finally:
        loop.kill()
        loop.wait()
        loop.stdout.close()


# ---- Embedding -------------------------------------------------------------------------------------------------------


def test_an_embedding_of_100_mb_is_flushed_and_released(example, peer):
    receiver = peer()
    result = run(example("embedding"), canonical(receiver))
    assert (result.returncode, result.stderr) == (0, "")
    steps = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
    assert sorted(step for _, step, _ in steps) == ["ACCEPTED", "FLUSHED", "RELEASED"]
    assert "message 1 of connection" in result.stdout and "was acknowledged" in result.stdout
    receiver.expect(1)
    assert receiver.report()["bytes"] == 100_000_006


def test_an_embedding_for_nobody_is_not_accepted(example, nobody):
    result = run(example("embedding"), nobody)
    assert (result.returncode, result.stdout) == (1, "")
    assert "(KVCONN_CONNECT_FAILED)" in result.stderr


# ---- The demo --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", ["pyzmq", "kvconn-peer"])
def test_the_demo_tells_its_story_and_proves_it(example, ranks):
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    peer = pathlib.Path(os.environ.get("KVCONN_PEER") or target / "release" / "kvconn-peer")
    options = [] if ranks == "pyzmq" else ["--peer", peer, "--no-pyzmq"]
    result = run(sys.executable, ROOT / "examples_c" / "run_failover.py", *options, example("failover"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"\nRank 0 of each node was {ranks}, rank 1 {ranks}.\n" in result.stdout
    timeline, table, findings, _ = result.stdout.split("\n\n")

    lines = [line.split(maxsplit=2) for line in timeline.splitlines()[1:]]
    steps = [step for _, step, _ in lines if step != "STREAMING"]
    opened = ["OPENED", "READY", "READY", "SERVING"]
    assert sorted(steps[:8]) == sorted(opened + opened)
    assert steps[8:10] == ["KILL", "PEER_LOST"]
    # The second rank's end is seen before or after the first one's has failed the node.
    middle = sorted(steps[10:13])
    assert middle == ["FAILED", "NODE_FAILED", "REROUTED"] or middle == ["FAILED", "PEER_LOST", "REROUTED"], steps
    assert steps[13:18] == ["RESTART", *opened]
    # Rank A1 is busy, then leaves; node A does not fail.
    assert steps[18:23] == ["BUSY", "LEAVING", "SIGTERM", "PEER_LOST", "UNACKED"]
    assert steps[23:27] == ["RESTART", "READY", "RESENT", "SERVING"]
    assert steps[27:] == ["STOP", *["DISCONNECTED"] * 4, "STOPPED"]

    rows = [line.split(maxsplit=6) for line in table.splitlines()[1:]]
    assert [row[0] for row in rows] == ["A0", "A1", "A1", "B0", "B0", "B1", "B1"]
    for rank, _, accepted, acknowledged, received, missing, ended in rows:
        assert int(accepted) - int(received) == int(missing) >= 0
        assert int(accepted) >= int(acknowledged)
        assert int(accepted) >= 1000, f"{rank} was not under load"
        assert missing == "0" or ended != "DISCONNECTED"
    _, _, accepted, acknowledged, received, missing, ended = rows[1]
    assert ended == "PEER_LOST by FIN" + ("; all sent again to the next connection" if int(missing) else "")
    assert int(acknowledged) <= int(received), "what was acknowledged was received"
    assert int(accepted) - int(acknowledged) >= 100, "there was little to send again"
    assert [line.split()[0] for line in findings.splitlines()] == ["proved"] * 9


def test_two_threads_that_print_the_timeline_do_not_mix_their_lines():
    """The engine's lines are printed by a thread of their own."""
    code = """
import importlib.util, io, sys, threading, types
spec = importlib.util.spec_from_file_location("run_failover", sys.argv[1])
run_failover = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_failover)
sys.setswitchinterval(1e-6)
lines = "".join(f"{number:9.1f}  STEP  of the engine\\n" for number in range(2000))
reader = run_failover.Engine.__new__(run_failover.Engine)
reader.process, reader.timeline, reader.reports = types.SimpleNamespace(stdout=io.StringIO(lines)), [], []
thread = threading.Thread(target=reader._read)
thread.start()
while thread.is_alive():
    run_failover.say("SAID", "by the main thread")
"""
    result = run(sys.executable, "-c", code, ROOT / "examples_c" / "run_failover.py", PYTHONUNBUFFERED="1")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    mixed = [line for line in lines if not re.fullmatch(r" *[0-9.]+  (STEP  of the engine|SAID +by the main thread)", line)]
    assert len(lines) > 2000 and mixed == []


# A story as run_failover.py sees it (connection, sequence, room), and what may be wrong with it.

WHOLE = {
    "A0": [(1, 1, 0), (1, 2, 1), (1, 3, 2), (1, 4, 4), (1, 5, 6)],
    "A1": [(2, 1, 0), (2, 2, 1), (2, 3, 2)],
    "B0": [(3, 1, 1)],
    "B1": [(4, 1, 1), (4, 2, 3)],
    "B0 again": [(5, 1, 5)],
    "B1 again": [(6, 1, 5)],
    "A1 again": [(7, 1, 2), (7, 2, 4), (7, 3, 6)],
}
REPORTS = {
    "B0": {"conn": 3, "rank": "B0", "accepted": 2, "acknowledged": 2, "ended": "PEER_LOST", "by": "FIN"},
    "B1": {"conn": 4, "rank": "B1", "accepted": 2, "acknowledged": 2, "ended": "NODE_FAILED", "by": "LOCAL"},
    "failed": {"failed": "B", "rooms": [1]},
    "A1": {"conn": 2, "rank": "A1", "accepted": 4, "acknowledged": 2, "ended": "PEER_LOST", "by": "FIN"},
    "unacknowledged": {"unacknowledged": [2, 4], "of": 2},
    "A0": {"conn": 1, "rank": "A0", "accepted": 5, "acknowledged": 5, "ended": "DISCONNECTED", "by": "LOCAL"},
    "B0 again": {"conn": 5, "rank": "B0", "accepted": 1, "acknowledged": 1, "ended": "DISCONNECTED", "by": "LOCAL"},
    "B1 again": {"conn": 6, "rank": "B1", "accepted": 1, "acknowledged": 1, "ended": "DISCONNECTED", "by": "LOCAL"},
    "A1 again": {"conn": 7, "rank": "A1", "accepted": 3, "acknowledged": 3, "ended": "DISCONNECTED", "by": "LOCAL"},
    "totals": {"started": 4, "done": 4, "rerouted": 1},
}
LOST, IN_ORDER, TO_ITS_OWN = "accepted messages were not received", "without a gap", "reached the next without"
FAILED, DONE = "requests failed with node B", "requests were started"
ACKNOWLEDGED, RESENT = "rank A1 left by", "reached its second life"
TWICE, SAME = "only what was reported arrived twice", "the same reached rank A1"
WRONG_LOGS = {  # the finding that must break, and the wrong part
    "a loss on a connection that lived": (LOST, {"B1 again": []}),
    "more than was accepted": (LOST, {"B0 again": [(5, 1, 5), (5, 2, 7)]}),
    "a message received twice": (IN_ORDER, {"B1": [(4, 1, 1), (4, 2, 3), (4, 2, 3)]}),
    "a gap": (IN_ORDER, {"B1": [(4, 2, 3)]}),
    "messages out of order": (IN_ORDER, {"A1": [(2, 2, 1), (2, 1, 0), (2, 3, 2)]}),
    "the dead one's message with its successor": (TO_ITS_OWN, {"B0": [], "B0 again": [(3, 1, 1), (5, 1, 5)]}),
    "one rank's message with another": (TO_ITS_OWN, {"B0": [], "B1": [(4, 1, 1), (4, 2, 3), (3, 1, 1)]}),
    "a message of no known connection": (TO_ITS_OWN, {"B0": [(3, 1, 1), (9, 1, 1)]}),
    "a failed request that never came to rank A0": (FAILED, {"A0": [(1, 1, 0), (1, 2, 7), *WHOLE["A0"][2:]]}),
    "a failed request that never came to rank A1": (FAILED, {"A1": [(2, 1, 0), (2, 2, 7), (2, 3, 2)]}),
    "an acknowledged message that the first life lacks": (ACKNOWLEDGED, {"A1": [(2, 1, 0)]}),
    "a message that was not sent again": (RESENT, {"A1 again": [(7, 1, 2), (7, 2, 6)]}),
    "messages sent again behind new ones": (RESENT, {"A1 again": [(7, 1, 6), (7, 2, 2), (7, 3, 4)]}),
    "a late message of another room than reported": (RESENT, {"A1": [(2, 1, 0), (2, 2, 1), (2, 3, 4)]}),
    "a message sent again that was acknowledged": (TWICE, {"A1 again": [(7, 1, 2), (7, 2, 4), (7, 3, 1)]}),
    "a message three times": (TWICE, {"A1": [(2, 1, 0), (2, 2, 1), (2, 3, 2), (2, 4, 2)]}),
    "a message twice for rank A0": (TWICE, {"A0": [*WHOLE["A0"], (1, 6, 6)]}),
    "a request of which rank A1 was never told": (SAME, {"A1 again": [(7, 1, 2), (7, 2, 4)]}),
    "a request of which rank A0 was never told": (SAME, {"A1 again": [*WHOLE["A1 again"], (7, 4, 8)]}),
}
WRONG_REPORTS = {
    "a request failed twice": (FAILED, {"failed": {"rooms": [1, 1]}}),
    "a request that was never done": (DONE, {"totals": {"started": 5}}),
    "an end that promises nothing": (ACKNOWLEDGED, {"A1": {"by": "RESET"}}),
    "an acknowledgement of what never arrived": (ACKNOWLEDGED, {"A1": {"acknowledged": 4}}),
    "a report that leaves one out": (RESENT, {"unacknowledged": {"unacknowledged": [2]}}),
    "a report of other rooms": (RESENT, {"unacknowledged": {"unacknowledged": [2, 6]}}),
    "a report of nothing": (RESENT, {"unacknowledged": {"unacknowledged": []}, "A1": {"accepted": 2}}),
    "a third loss with node B": (LOST, {"B0 again": {"ended": "PEER_LOST"}}),
}


def judge(capsys, logs=(), reports=()):
    """Whether the proof holds for the whole story with these changes, and the lines that it prints."""
    spec = importlib.util.spec_from_file_location("run_failover", ROOT / "examples_c" / "run_failover.py")
    run_failover = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run_failover)

    class Life:
        def __init__(self, name, messages):
            self.name = name.removesuffix(" again")
            self.messages = [run_failover.Message(*fields) for fields in messages]

        def received(self):
            return self.messages

    changes = dict(reports)
    changed = [report | changes.get(name, {}) for name, report in REPORTS.items()]
    engine = types.SimpleNamespace(
        steps={"PEER_LOST": 3.0, "REROUTED": 4.0},
        reports_with=lambda key: [report for report in changed if key in report],
    )
    lives = [Life(name, messages) for name, messages in (WHOLE | dict(logs)).items()]
    holds = run_failover.prove(engine, lives, 1.0)
    return holds, capsys.readouterr().out.splitlines()


def test_the_proof_holds_when_nothing_is_wrong(capsys):
    holds, lines = judge(capsys)
    assert holds, lines
    assert "proved  1 accepted messages were not received, all on the 2 connections that died with node B" in lines
    assert "proved  the 2 after them, 3 to 4, reached its second life, before all others" in lines
    assert any(line.endswith(" 1  PEER_LOST by FIN; all sent again to the next connection") for line in lines), lines
    assert "proved  1 of these had reached the first late as well: only what was reported arrived twice" in lines


def test_the_table_does_not_claim_what_was_not_sent_again(capsys):
    holds, lines = judge(capsys, logs={"A1 again": [(7, 1, 2), (7, 2, 6)]})  # message 4 of A1 has room 4
    assert not holds and not any("sent again to the next connection" in line for line in lines), lines


def broken(lines, finding):
    (line,) = (line for line in lines if finding in line and line.split()[0] in ("proved", "BROKEN"))
    return line.startswith("BROKEN")


@pytest.mark.parametrize("what", WRONG_LOGS)
def test_the_proof_fails_for_a_log_with(capsys, what):
    finding, logs = WRONG_LOGS[what]
    holds, lines = judge(capsys, logs=logs)
    assert not holds and broken(lines, finding), lines


@pytest.mark.parametrize("what", WRONG_REPORTS)
def test_the_proof_fails_for_an_engine_that_tells_of(capsys, what):
    finding, reports = WRONG_REPORTS[what]
    holds, lines = judge(capsys, reports=reports)
    assert not holds and broken(lines, finding), lines
