#!/usr/bin/env python3
"""Many threads send 64 bytes to one connection, as fast as they can, for a while: kvconn_send in turns with raw libzmq
behind a mutex. Both have the same options.

threads.py [--rounds N] [--seconds N] [--threads N,N] [--also NAME=LIB]...

Prints a table: messages per second (median), the worst round as a share of the median, and how many messages the busiest
thread has sent for each one of the least busy (median, and the worst round). Writes target/bench/threads.json.
"""

import argparse
import json
import os
import statistics
import subprocess
from datetime import date

import run

COLUMNS = "| threads | form | messages/s, median | worst round | worst ÷ median | most ÷ least, median | worst | switches per 1000 |"


def row(threads, form, rounds):
    rates = [1e9 / measured["wall_ns"] for measured in rounds]
    median, worst = statistics.median(rates), min(rates)
    shares = [measured["most"] / max(measured["least"], 1) for measured in rounds]
    switches = statistics.median(1000 * measured["switches"] / measured["messages"] for measured in rounds)
    return (
        f"| {threads} | {form} | {median / 1e6:.2f} M | {worst / 1e6:.2f} M | {worst / median:.2f} "
        f"| {statistics.median(shares):.2f} | {max(shares):.2f} | {switches:.0f} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1, help="of each round; more of them share the processors more evenly")
    parser.add_argument("--threads", type=lambda text: text.split(","), default=["2", "8", "32", "64", "256"])
    parser.add_argument("--also", action="append", default=[], metavar="NAME=LIB", help="another libkvconn.so")
    given = parser.parse_args()
    library, *archives = run.build_library()
    run.build_programs(*archives)
    forms = ["same", f"kvconn={library}", *given.also]
    measured = []
    print(f"{date.today()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, {given.rounds} rounds of {given.seconds:g} s\n\n{COLUMNS}")
    print("| --- " * (COLUMNS.count("|") - 1) + "|", flush=True)
    for threads in given.threads:
        command = [run.OUT / "sender", run.OUT / "sink", run.OUT / "libzmq.so", given.rounds, given.seconds, f"{threads}t", *forms]
        output = run.run(*command, stdout=subprocess.PIPE, text=True).stdout
        measured += (lines := [json.loads(line) for line in output.splitlines()])
        for form in (form.split("=")[0] for form in forms):
            name = "raw, mutex" if form == "same" else form
            print(row(threads, name, [line for line in lines if line["form"] == form]), flush=True)
    (run.OUT / "threads.json").write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
