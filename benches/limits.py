#!/usr/bin/env python3
"""limits.py LIBRARY: what a process with 100 to 6000 connections costs. Writes the table in docs/limits.md, and docs/limits.svg.

Each measurement is a process of its own. The connections belong to one node, and their peers are PULL sockets of one other
process. Figures are medians of the rounds.
"""

import argparse
import ctypes
import glob
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time
from datetime import date

import scale

COUNTS = (100, 1000, 3000, 6000)
# kvconn's timers of a dial end by then: connect_timeout_ms and handshake_timeout_ms, and a second.
DIAL_TIME = 7
PAGE = scale.ROOT / "docs/limits.md"
PICTURE = scale.ROOT / "docs/limits.svg"
BEGIN, END = "<!-- begin: make limits -->\n", "<!-- end: make limits -->\n"
# What is measured, in the order of the table: its name, and how it is written.
COLUMNS = {
    "descriptors": "{:.0f}",
    "resident memory, MiB": "{:.1f}",
    "all READY, s": "{:.2f}",
    "idle CPU, % of a core": "{:.2f}",
    "threads": "{:.0f}",
    "kvconn_handle_failure, ms": "{:.1f}",
    "of it CPU, ms": "{:.1f}",
    "descriptors back, s": "{:.2f}",
}


def threads():
    return len(glob.glob("/proc/self/task/*"))


def measure(path, count):
    """One life of a node with so many endpoints."""
    library = scale.Library(path)
    peers = scale.Peers()
    first, *endpoints = peers.endpoints(count + 1)
    own_threads = threads()
    library.connect_all([first])
    descriptors, memory = scale.descriptors(), scale.resident_kib()
    node, opened = ctypes.c_uint64(), ctypes.c_int32()
    library.check("kvconn_node_open", 0, b"node", ctypes.byref(node), ctypes.byref(opened))
    texts = (ctypes.c_char_p * count)(*(endpoint.encode() for endpoint in endpoints))
    begun = time.monotonic()
    library.check("kvconn_node_add_endpoints", node, texts, count, None)
    library.connect_all(endpoints)
    ready = time.monotonic() - begun
    values = [scale.descriptors() - descriptors, (scale.resident_kib() - memory) / 1024, ready]
    time.sleep(DIAL_TIME)
    (cpu, _), begun = scale.others(), time.monotonic()
    time.sleep(3)
    values += [(scale.others()[0] - cpu) / 10 / (time.monotonic() - begun), threads() - own_threads]
    begun, cpu = time.monotonic(), time.thread_time()
    library.check("kvconn_handle_failure", node, b"limits.py", None)
    values += [1000 * (time.monotonic() - begun), 1000 * (time.thread_time() - cpu)]
    scale.wait_descriptors(descriptors)
    values.append(time.monotonic() - begun)
    peers.kill()
    return dict(zip(COLUMNS, values))


def table(results, rounds, load):
    release = platform.release().split("-")[0]
    machine = f"{os.cpu_count()} processors ({platform.machine()}), Linux {release}, load {load}"
    lines = [f"{date.today()}, {machine}, medians of {rounds} rounds.", "", "| connections | " + " | ".join(COLUMNS) + " |"]
    lines.append("| --- " * (len(COLUMNS) + 1) + "|")
    for count, values in results.items():
        cells = (form.format(values[name]) for name, form in COLUMNS.items())
        lines.append(f"| {count:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(results):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "limits", "font.size": 8})
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(2, 4, figsize=(11, 5))
    for axes, name in zip(all_axes.flat, COLUMNS):
        axes.plot(list(results), [values[name] for values in results.values()], marker="o", markersize=3)
        axes.set_title(name, fontsize=9)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    for axes in all_axes[1]:
        axes.set_xlabel("connections")
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        os.environ["KVCONN_MAX_ENDPOINTS"] = "10000"
        print(json.dumps(measure(given.library, given.one)))
        return
    rounds = {count: [] for count in COUNTS}
    loads = []
    for _ in range(given.rounds):
        for count in COUNTS:
            loads.append(os.getloadavg()[0])
            command = [sys.executable, __file__, given.library, "--one", str(count)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
            rounds[count].append(json.loads(done.stdout))
    results = {
        count: {name: statistics.median(values[name] for values in measured) for name in COLUMNS}
        for count, measured in rounds.items()
    }
    text = table(results, given.rounds, f"{min(loads):.0f} to {max(loads):.0f}")
    print(text)
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + text + END + rest.split(END)[1])
    plot(results)


if __name__ == "__main__":
    main()
