"""The demo's picture: made from a run, small, and no condition of the demo."""

import importlib.util
import pathlib
import sys
import types
import xml.etree.ElementTree

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples_c"


def module(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def a_run():
    """A run of ten seconds: connections 1 to 4, then 5 and 6 for node B and 7 for rank A1."""
    first, second = {"A0": 1, "A1": 2, "B0": 3, "B1": 4}, {"A1": 7, "B0": 5, "B1": 6}
    reports = [
        {"failed": "B", "rooms": list(range(51))},
        {"unacknowledged": list(range(482)), "of": 2},
        {"started": 9000, "done": 9000, "rerouted": 51},
    ]
    for step in range(500):
        ms = 20.0 * step
        live = {"A0": 1} | {rank: conn for rank, conn in first.items() if ms < (6000 if rank == "A1" else 2000)}
        live |= {rank: conn for rank, conn in second.items() if ms > (8000 if rank == "A1" else 4000)}
        reports.append({"sample": ms, **{rank: [conn, 20 * step, 19 * step] for rank, conn in live.items()}})
    for rank, conn in [*first.items(), *second.items()]:
        reports.append({"conn": conn, "rank": rank, "accepted": 9980, "acknowledged": 9481, "ms": 10000.0})
    timeline = [
        (2003.2, "PEER_LOST", "B rank 1"),
        (2004.1, "REROUTED", "these 51 requests"),
        (4002.0, "SERVING", "node B"),
        (8002.0, "SERVING", "node A"),
    ]
    engine = types.SimpleNamespace(
        timeline=timeline, reports_with=lambda key: [report for report in reports if key in report]
    )
    samples = [(20.0 * step, 20 * step) for step in range(500)]
    lives = [types.SimpleNamespace(name=name, samples=samples) for name in first]
    lives.append(types.SimpleNamespace(name="A1", samples=[]))  # a process that ended before the first look
    when = {"KILL": 2000.0, "RESTART B": 4000.0, "BUSY": 5000.0, "SIGTERM": 6000.0, "RESTART A1": 8000.0}
    return engine, lives, when


def test_the_picture_says_what_happened_and_is_small(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "failover.svg"
    module("picture").draw(path, *a_run())
    assert path.stat().st_size < 150 * 1024
    texts = [element.text for element in xml.etree.ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    shown = " ".join(text for text in texts if text)
    for text in ["A0", "A1", "B0", "B1", "accepted", "acknowledged", "received", "KILL B0", "RESTART B1", "A1 LEAVES"]:
        assert text in shown, f"{text!r} is not in the picture: {shown}"
    for text in ["LOSS seen", "after 3.2 ms", "FAILOVER after 4.1 ms", "node B's 51 requests"]:
        assert text in shown, f"{text!r} is not in the picture: {shown}"
    for text in ["482 unacknowledged", "the 482 unacknowledged are sent again first", "9000 requests started, 9000 done"]:
        assert text in shown, f"{text!r} is not in the picture: {shown}"
    assert "messages since the connection began" in shown, f"the vertical axis has no name: {shown}"


def test_the_loss_is_marked_at_the_rank_whose_loss_was_seen_first():
    pytest.importorskip("matplotlib")
    engine, _, _ = a_run()
    first_lost = module("picture").first_lost
    assert first_lost(engine, 2000.0) == "B1"
    engine.timeline.insert(0, (2002.9, "PEER_LOST", "B rank 0, connection 3: 1017 messages accepted"))
    assert first_lost(engine, 2000.0) == "B0"


def test_without_matplotlib_the_demo_leaves_the_picture_out(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delitem(sys.modules, "picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it fails
    path = tmp_path / "failover.svg"
    module("run_failover").draw(path, *a_run())
    assert not path.exists()
    assert capsys.readouterr().out.startswith("The picture is left out: ")
