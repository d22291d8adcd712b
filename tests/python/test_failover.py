"""The engine of the demo without its proof: it sees a SIGKILL, moves the requests and takes the node back. It needs no
counts of acknowledged messages, so it runs under an emulator too (`make check-aarch64`)."""

import os
import pathlib
import struct
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = pathlib.Path(os.environ.get("KVCONN_C_EXAMPLES") or ROOT / "target" / "examples_c")
MESSAGE_BYTES = struct.calcsize("=QQQ")
SECONDS = 120


class Rank:
    """A process of examples_c/rank.py: a PULL socket, which notes each message in a file."""

    def __init__(self, log, endpoint="tcp://127.0.0.1:*"):
        self.log = log
        program = [sys.executable, ROOT / "examples_c" / "rank.py", endpoint, log]
        self.process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.endpoint = self.process.stdout.readline().strip()
        assert self.endpoint, "the rank did not start"

    def received(self):
        return self.log.stat().st_size // MESSAGE_BYTES

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_a_killed_node_fails_over_and_comes_back(lib, wait_until, tmp_path):
    if not (EXAMPLES / "failover").exists():
        pytest.fail(f"{EXAMPLES / 'failover'} is missing: run `make examples`")
    names = ["A0", "A1", "B0", "B1"]
    ranks = {name: Rank(tmp_path / name) for name in names}
    endpoints = {name: rank.endpoint for name, rank in ranks.items()}
    arguments = ["A", endpoints["A0"], endpoints["A1"], "B", endpoints["B0"], endpoints["B1"]]
    environment = {**os.environ, "TIMELINE_ZERO_MS": repr(time.monotonic() * 1000)}
    output = tmp_path / "output"
    with output.open("wb") as file:
        pipes = {"stdin": subprocess.PIPE, "stdout": file, "stderr": subprocess.STDOUT}
        engine = subprocess.Popen([EXAMPLES / "failover", *arguments], env=environment, **pipes)

    def story():
        assert engine.poll() is None, output.read_text()
        return output.read_text()

    def more(name):
        goal = ranks[name].received() + 200
        wait_until(f"{name} has received more", lambda: story() and ranks[name].received() >= goal, SECONDS)

    try:
        more("B1")
        for name in ("B0", "B1"):
            ranks[name].kill()
        wait_until("the requests are on node A", lambda: "  REROUTED " in story(), SECONDS)
        assert "  PEER_LOST " in story() and "  FAILED        node B" in story()
        more("A0")
        for name in ("B0", "B1"):
            ranks[name] = Rank(tmp_path / f"{name}-again", endpoints[name])
        engine.stdin.write(b"back B\n")
        engine.stdin.flush()
        more("B0")
        engine.stdin.write(b"stop\n")
        engine.stdin.close()
        assert engine.wait(SECONDS) == 0, output.read_text()
        assert '"started"' in output.read_text()
    finally:
        engine.kill()
        engine.wait()
        for rank in ranks.values():
            rank.kill()
