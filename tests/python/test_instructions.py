"""A small message costs no more than it did: instructions of one kvconn_send, counted, against a committed baseline."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches"))
import instructions  # noqa: E402


def test_a_small_message_takes_as_many_instructions_as_before():
    if why := instructions.why_not():
        pytest.skip(f"SKIPPED: {why}")
    baseline = json.loads(instructions.BASELINE.read_text())
    if (compilers := instructions.compilers()) != baseline["compilers"]:
        pytest.skip(f"SKIPPED: the baseline is of {baseline['compilers']}, and this is {compilers}")
    for case, number in instructions.counts().items():
        before = baseline["instructions"][case]
        change = number / before - 1
        assert abs(change) < 0.05, (
            f"{case}: {number} instructions, {before} before ({change:+.1%}). "
            "If that is right, write the new baseline: benches/instructions.py --write"
        )
