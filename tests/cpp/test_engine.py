"""examples_cpp/engine.cpp: eight ranks on two nodes; a rank is stopped, and a node is killed."""

import os
import pathlib
import re
import struct
import subprocess

import pytest
from conftest import ROOT, Peer, wait_until_true

SECONDS = 60
SEND_TIMEOUT_MS = 200
SLACK_MS = 200  # a loaded machine; the default timeout of kvconn would be 1000


class Rank(Peer):
    """A rank that logs each message at once, so that the log survives a SIGKILL."""

    def __init__(self, folder, name):
        self.log = folder / name
        super().__init__("--log", self.log, "--rcvhwm", 20, "--rcvbuf", 4096)
        self.address = f"tcp://127.0.0.1:{self.port}"

    def messages(self):
        """(kind, room) of each message that it has read whole, in order."""
        data, at, all_messages = self.log.read_bytes(), 0, []
        while at + 4 <= len(data):
            (count,) = struct.unpack_from("<I", data, at)
            if at + 4 + 4 * count > len(data):
                break
            sizes = struct.unpack_from(f"<{count}I", data, at + 4)
            begin = at + 4 + 4 * count
            at = begin + sum(sizes)
            if at > len(data):
                break
            kind, room = data[begin : begin + sizes[0]], data[begin + sizes[0] : begin + sizes[0] + sizes[1]]
            all_messages.append((kind.decode(), int(room)))
        return all_messages

    def rooms(self):
        return {room for kind, room in self.messages() if kind == "room"}


class Engine:
    def __init__(self, program, folder, nodes):
        self.out = folder / "engine.out"
        arguments = [str(program)]
        for name, ranks in nodes.items():
            arguments += [name, *(rank.address for rank in ranks)]
        # Small queues, so that a rank that does not read is full at once.
        environment = {**os.environ, "KVCONN_SEND_HWM": "4", "KVCONN_MAX_QUEUED_BYTES": "8192"}
        with self.out.open("w") as out:
            self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, env=environment)

    def lines(self, pattern):
        return re.findall(pattern, self.out.read_text(), re.MULTILINE)

    def wait_for(self, pattern, count=1):
        try:
            wait_until_true(f"the engine says {pattern}", lambda: len(self.lines(pattern)) >= count or self.ended(), SECONDS)
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}; it said:\n{self.out.read_text()}")
        assert len(self.lines(pattern)) >= count, self.out.read_text()

    def ended(self):
        return self.process.poll() is not None


@pytest.fixture
def program():
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    path = pathlib.Path(os.environ.get("KVCONN_CXX_EXAMPLES") or target / "examples_cpp") / "engine"
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make examples-cpp`")
    return path


def test_the_example_is_short():
    assert len((ROOT / "examples_cpp" / "engine.cpp").read_text().splitlines()) <= 200


def test_the_engine_survives_a_stopped_rank_and_a_killed_node(program, tmp_path):
    nodes = {name: [Rank(tmp_path, f"{name}{i}") for i in range(4)] for name in "AB"}
    engine = Engine(program, tmp_path, nodes)
    try:
        engine.wait_for("^JOINED", 2)
        for rank in nodes["A"] + nodes["B"]:
            rank.expect(20, SECONDS)

        # A rank that does not read: it is avoided, then its node is given up, and its requests go to the other node.
        stopped = nodes["A"][1]
        stopped.stop()
        engine.wait_for(f"^STALLED {stopped.address}")
        engine.wait_for("^FAILED A with .* a rank does not read")
        before = nodes["B"][0].report()["messages"]
        nodes["B"][0].expect(before + 50, SECONDS)  # the engine goes on with node B alone

        # It reads again: the engine joins node A anew.
        stopped.cont()
        engine.wait_for("^JOINED A", 2)
        before = stopped.report()["messages"]
        stopped.expect(before + 20, SECONDS)

        # All ranks of node B are killed. One of them does not read at that time, so there is something to lose.
        nodes["B"][2].stop()
        engine.wait_for(f"^STALLED {nodes['B'][2].address}")
        for rank in nodes["B"]:
            rank.process.kill()
        for rank in nodes["B"]:
            rank.kill()
        engine.wait_for("^FAILED B with ")
        before = stopped.report()["messages"]
        stopped.expect(before + 50, SECONDS)

        # The end of its input ends it, with everything acknowledged.
        engine.process.stdin.close()
        assert engine.process.wait(SECONDS) == 0, engine.out.read_text()
        check(engine, nodes, stopped)
    finally:
        engine.process.kill()
        engine.process.wait()
        for rank in nodes["A"] + nodes["B"]:
            rank.kill()
            rank.close_pipes()


def check(engine, nodes, stopped):
    said = engine.out.read_text()
    ((requests, done, waiting, rerouted, longest),) = engine.lines(
        r"^requests (\d+) done (\d+) waiting (\d+) rerouted (\d+) longest send (\d+) ms$"
    )
    assert int(done) + int(waiting) == int(requests), said

    # Senders were blocked, by the stopped rank, and never beyond their timeout.
    assert SEND_TIMEOUT_MS / 2 <= int(longest) <= SEND_TIMEOUT_MS + SLACK_MS, said

    # Every request that a failed node had is sent to the other one.
    failed = sum(map(int, engine.lines(r"^FAILED \w with (\d+) requests")))
    assert 0 < failed <= int(rerouted), said

    wait_until_true("nothing is missing", lambda: not missing(engine, nodes, int(requests), int(waiting)), SECONDS)

    # The connections to the ranks that did not read ended with messages that were not acknowledged.
    for rank in (stopped, nodes["B"][2]):
        ends = [(int(a), int(b)) for a, b in engine.lines(rf"^ENDED {rank.address} accepted (\d+) acknowledged (\d+)")]
        assert any(acknowledged < accepted for accepted, acknowledged in ends), said


def missing(engine, nodes, requests, waiting):
    """What was counted as done, and is not at any rank that had acknowledged it."""
    # The ranks of node A live, and read all that they have acknowledged. What they lack was finished on node B.
    on_a = set.intersection(*(rank.rooms() for rank in nodes["A"]))
    finished_on_b = set(range(1, requests + 1)) - on_a
    wrong = []
    for rank in nodes["B"]:
        ends = engine.lines(rf"^ENDED {rank.address} accepted ([1-9]\d*) acknowledged (\d+)")
        ((accepted, acknowledged),) = [(int(a), int(b)) for a, b in ends]
        received = rank.messages()
        if len(received) > accepted:
            wrong.append(f"{rank.log.name} has received {len(received)} of {accepted}")
        # What a dead rank has not acknowledged was not counted as done: it is on node A too.
        behind = {room for kind, room in received[acknowledged:] if kind == "room"} & finished_on_b
        # What was finished there and is not in its log was in its kernel, and that had no more than this.
        lost = len(finished_on_b - rank.rooms())
        if behind or lost > acknowledged - len(received[:acknowledged]) + waiting:
            wrong.append(f"{rank.log.name}: {behind} not acknowledged, {lost} lost, {acknowledged} of {accepted} acknowledged")
    if wrong:
        print(wrong)
    return wrong
