"""The adapter for SGLang, over the real, unmodified disaggregation/common/conn.py from PyPI (make sglang).

Every story runs in a process of its own, because the unmodified SGLang may abort it. `make test` runs the contracts, a
few faults with kvconn, and one with stock code. `make check-sglang` runs everything and prints the table of
docs/sglang.md.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

from conftest import ROOT

FOLDER = ROOT / "tests" / "sglang"
ALL = os.environ.get("KVCONN_SGLANG") == "all"
FEW = {"accepted_into_nothing", "neighbour", "predecessors_queue"}
TABLE = {}


def stories(file):
    return re.findall(r"^def ([a-z]\w+)\(", (FOLDER / file).read_text(), re.M)


FAULTS = [name for name in stories("faults.py") if name != "main"]


@pytest.fixture(autouse=True, scope="module")
def sglang(lib):
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    folder = pathlib.Path(os.environ.get("SGLANG") or target / "sglang").absolute()
    if not (folder / "ready").exists():
        pytest.skip("SGLang was not downloaded from PyPI (make sglang)")
    os.environ["SGLANG"] = str(folder)


def run(file, *arguments, seconds=120):
    """(JSON that the story printed or None, its exit status, what it said on standard error, seconds)."""
    begun = time.monotonic()
    command = [sys.executable, FOLDER / file, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    told = json.loads(result.stdout) if result.returncode == 0 and result.stdout else None
    return told, result.returncode, result.stderr[-2000:], time.monotonic() - begun


@pytest.mark.parametrize("name", stories("contracts.py"))
def test_contract(name):
    _, status, said, _ = run("contracts.py", name)
    assert status == 0, said


@pytest.mark.parametrize("name", FAULTS if ALL else [name for name in FAULTS if name in FEW])
def test_kvconn_has_no_fault(name):
    told, status, said, _ = run("faults.py", name, "kvconn")
    assert status == 0, said
    TABLE.setdefault(name, {})["kvconn"] = told["measured"]
    assert told["ok"], (told, said)


@pytest.mark.parametrize("name", FAULTS if ALL else ["accepted_into_nothing"])
def test_the_unmodified_sglang_has_it(name):
    """Otherwise the story proves nothing."""
    told, status, said, _ = run("faults.py", name, "stock")
    measured = told["measured"] if told else f"the process dies: {said.strip().splitlines()[-1]}"
    TABLE.setdefault(name, {})["stock"] = measured
    assert told is None or not told["ok"], told
    assert status in (0, -6), said  # -6 is SIGABRT


def test_table():
    """Prints what was measured."""
    text = ["", "| fault | stock | kvconn |", "| --- | --- | --- |"]
    text += [f"| {name} | {row.get('stock', '–')} | {row.get('kvconn', '–')} |" for name, row in TABLE.items()]
    print("\n".join(text))
    assert ALL <= (set(TABLE) == set(FAULTS))


def test_restarts():
    """A rank restarts under requests: no life gets metadata before its registration, and every room ends."""
    told, status, said, _ = run("runs.py", "restarts", "kvconn", *([] if ALL else ["4"]), seconds=300)
    assert status == 0, said
    print(told)
    assert told["limbo"] == 0 and told["before registration"] == 0 and told["tracked"] == 0, told
    assert told["Success"] > told["restarts"] and told["longest outage"] < 3, told


@pytest.mark.parametrize("name", ["silent_host", "mute_host"] if ALL else ["silent_host"])
def test_a_silent_host_stalls_the_scheduler_once(name):
    told, status, said, _ = run("runs.py", name, "kvconn")
    assert status == 0, said
    print(told)
    assert told["sum"] < 2.1 and told["over 0.1 s"] <= 2, told


def test_the_health_watch_finds_a_stopped_prefill():
    """SGLang's own heartbeat needs 16 s."""
    told, status, said, _ = run("runs.py", "stopped_prefill", "watch")
    assert status == 0, said
    print(told)
    assert told["seconds"] < 3.5 and "health probe" in told["reason"], told  # 2.9 s on an idle machine


@pytest.mark.skipif(not ALL, reason="only in make check-sglang: they take minutes")
@pytest.mark.parametrize("name", ["restarts", "stopped_prefill"])
def test_the_long_runs_of_the_unmodified_sglang(name):
    told, status, said, _ = run("runs.py", name, "stock", seconds=300)
    assert status == 0, said
    print(told)
    assert told.get("limbo", 1) > 0 and told.get("seconds", 9) > 5, told


def test_the_adapter_is_short():
    text = (ROOT / "python" / "kvconn" / "integrations" / "sglang.py").read_text()
    assert len(text.splitlines()) <= 150
