#!/usr/bin/env python3
"""Counts the instructions of one kvconn_send, by valgrind's callgrind: a figure that a busy machine does not change.

instructions.py [--write]: prints the counts beside the baseline in instructions.json; --write makes them the baseline.

Only instructions of libkvconn.so count, libzmq's included: those of the C library's malloc depend on what was freed before.
"""

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import run as bench

BASELINE = Path(__file__).with_name("instructions.json")
CASES = ["64-unbounded", "12x43"]
WARM = 6400  # as in sender.c


def first_line(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[0]


def compilers():
    """What the counts depend on."""
    return {"machine": platform.machine(), "rustc": first_line("rustc", "--version"), "c++": first_line("c++", "--version")}


def why_not():
    """Why nothing can be counted here; None if it can."""
    return None if shutil.which("valgrind") and shutil.which("callgrind_annotate") else "valgrind is not installed"


def count(library, case):
    """Instructions of libkvconn.so for each message of a case."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.%p"
        output = bench.run(
            "valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=kvconn_send",
            bench.OUT / "sender", bench.OUT / "sink", bench.OUT / "libzmq.so", 1, 0.05, case, f"kvconn={library}",
            stdout=subprocess.PIPE, text=True).stdout
        messages = json.loads(output.splitlines()[-1])["messages"]
        largest = max(Path(folder).iterdir(), key=lambda file: file.stat().st_size)
        rows = bench.run("callgrind_annotate", "--threshold=100", "--auto=no", largest, stdout=subprocess.PIPE, text=True)
    total = 0
    for row in rows.stdout.splitlines():
        # "1,234 ( 5.6%)  file:function [object]"; no object for what was inlined, and "./" for the C library's files.
        match = re.match(r"\s*([\d,]+) \([^)]*\)  (\S*:.*?)(?: \[(.*)\])?$", row)
        if match and (match[3] or Path(library).name).endswith(Path(library).name) and not match[2].startswith("./"):
            total += int(match[1].replace(",", ""))
    return round(total / (messages + min(messages, WARM)))


def counts():
    library, *archives = bench.build_library()
    bench.build_programs(*archives)
    return {case: count(library, case) for case in CASES}


def main():
    if why_not():
        sys.exit(f"instructions.py: {why_not()}")
    measured = {"compilers": compilers(), "instructions": counts()}
    if "--write" in sys.argv:
        BASELINE.write_text(json.dumps(measured, indent=1) + "\n")
    before = json.loads(BASELINE.read_text())
    for case, number in measured["instructions"].items():
        print(f"{bench.CASES[case]}: {number} (baseline: {before['instructions'].get(case)})")


if __name__ == "__main__":
    main()
