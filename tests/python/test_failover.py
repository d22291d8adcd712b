"""The engine of the demo without its proof: it sees a SIGKILL, moves the requests and takes the node back. It needs no
counts of acknowledged messages, so it runs under an emulator too (`make check-aarch64`)."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = pathlib.Path(os.environ.get("KVCONN_C_EXAMPLES") or ROOT / "target" / "examples_c")
SECONDS = 120


@pytest.fixture
def start(tmp_path):
    """Starts a rank as the demo does, by pyzmq; kills all of them at the end."""
    spec = importlib.util.spec_from_file_location("run_failover", ROOT / "examples_c" / "run_failover.py")
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    ranks = []

    def start_rank(name, *endpoint):
        ranks.append(demo.Rank(name, tmp_path, [sys.executable, demo.RANK_PROGRAM], *endpoint))
        return ranks[-1]

    yield start_rank
    for rank in ranks:
        kill(rank)


def kill(rank):
    rank.process.kill()
    rank.process.wait()
    rank.process.stdin.close()
    rank.process.stdout.close()


def test_a_killed_node_fails_over_and_comes_back(lib, start, wait_until, tmp_path):
    if not (EXAMPLES / "failover").exists():
        pytest.fail(f"{EXAMPLES / 'failover'} is missing: run `make examples`")
    names = ["A0", "A1", "B0", "B1"]
    ranks = {name: start(name) for name in names}
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
        goal = ranks[name].count() + 200
        wait_until(f"{name} has received more", lambda: story() and ranks[name].count() >= goal, SECONDS)

    try:
        more("B1")
        for name in ("B0", "B1"):
            kill(ranks[name])
        wait_until("the requests are on node A", lambda: "  REROUTED " in story(), SECONDS)
        assert "  PEER_LOST " in story() and "  FAILED        node B" in story()
        more("A0")
        for name in ("B0", "B1"):
            ranks[name] = start(name, endpoints[name])
        story()
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
