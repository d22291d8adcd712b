#!/usr/bin/env python3
"""Builds and runs the benchmark: kvconn through its C API, in turns with raw libzmq, made from the same sources.

run.py [--quick] [--rounds N] [--cases A,B] [--also NAME=LIB]... [--python-sink SINK]

Prints tables, and writes target/bench/results.json (every measurement), table.md and, with matplotlib, bench.svg.
`--also` measures another libkvconn.so in the same run, for example one of the commit before. `--python-sink` names the
program made from benches/python/sink.c: sends from Python are measured as well, by benches/python/bench.py.

Fails if kvconn's safety net has found a lost wake-up.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import date
from pathlib import Path

import times

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
OUT = TARGET / "bench"
CASES = {
    "64": "64 B, 1 thread → 1 endpoint",
    "64-unbounded": "the same, the queue is never full",
    "64-packed": "64 B by kvconn_send_packed",
    "64-to": "64 B by kvconn_send_to",
    "12x43": "12 × 43 B",
    "25x100": "25 × 100 B",
    "10x200-8": "10 × 200 B, 1 thread → 8 endpoints",
    "4t-1": "64 B, 4 threads → 1 endpoint",
    "4t-64": "64 B, 4 threads → 64 endpoints",
    "64k": "64 KiB",
    "3x100-8": "3 × 100 B, 1 thread → 8 endpoints",
    "batch-8": "3 × 100 B, batches to 8 endpoints",
    "batch-64": "3 × 100 B, batches to 64 endpoints",
}
QUICK = ["64", "12x43", "10x200-8", "4t-1", "batch-8", *times.CASES]


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, **options)


def cargo(*arguments, **environment):
    """Builds, and returns the directories with what was linked."""
    command = ["cargo", "build", "--release", "--message-format=json", *arguments]
    # make's own flags would reach the make that builds libsodium inside cargo.
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    lines = run(*command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=inherited | environment).stdout.splitlines()
    messages = [json.loads(line) for line in lines if line.startswith("{")]
    linked = [path for message in messages for path in message.get("linked_paths", [])]
    return [Path(path.removeprefix("native=")) for path in linked]


def build_library():
    """The release library; the archives of raw libzmq, compiled the usual way, and of libsodium."""
    cargo()
    folders = cargo("--package", "zmq-sys", KVCONN_PLAIN_LIBZMQ="1", CARGO_TARGET_DIR=str(OUT / "plain"))
    archive = lambda name: next(folder / name for folder in folders if (folder / name).exists())
    return TARGET / "release" / "libkvconn.so", archive("libzmq.a"), archive("libsodium.a")


def build_programs(libzmq_archive, libsodium_archive):
    OUT.mkdir(parents=True, exist_ok=True)
    cc, cxx = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")
    exported = OUT / "libzmq.map"
    exported.write_text("{ global: zmq_*; local: *; };\n")
    # A shared library, as applications use libzmq, and with no detour through its own table of exported functions.
    run(cxx, "-shared", "-o", OUT / "libzmq.so", "-Wl,--whole-archive", libzmq_archive, "-Wl,--no-whole-archive",
        libsodium_archive, "-Wl,-Bsymbolic", f"-Wl,--version-script={exported}", "-pthread")
    common = [cc, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", ROOT / "benches/common.c"]
    run(*common, ROOT / "benches/sink.c", "-o", OUT / "sink", "-ldl")
    run(*common, ROOT / "benches/latency.c", "-o", OUT / "latency", "-ldl", "-pthread")
    # Its `send` counts the writes of every library that it loads.
    run(*common, "-rdynamic", ROOT / "benches/sender.c", "-o", OUT / "sender", "-ldl", "-pthread")


def measure(case, rounds, scale, libraries):
    named = [f"{name}={path}" for name, path in libraries.items()]
    program, anchors = "sender", ["stock", "same"]
    if case in times.CASES:
        program, anchors = "latency", times.CASES[case]
        # Throughput needs more and longer rounds: its ratios differ more from round to round.
        rounds, scale = rounds if case == "push-pull" else rounds // 2 + 1, min(scale, 1)
    anchors = [f"alone={libraries['kvconn']}" if anchor == "alone" else anchor for anchor in anchors]
    output = run(OUT / program, OUT / "sink", OUT / "libzmq.so", rounds, scale, case, *anchors, *named,
                 stdout=subprocess.PIPE, text=True).stdout
    print(".", end="", file=sys.stderr, flush=True)
    return [json.loads(line) for line in output.splitlines()]


def measure_python(sink, rounds):
    out = OUT / "python.json"
    run(sys.executable, ROOT / "benches/python/bench.py", sink, out, rounds, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def summary(rows, case, form):
    """Medians and minima of a form. Ratios are medians of the rounds' ratios: what else the machine did met both alike."""
    of = {name: [row for row in rows if row["case"] == case and row["form"] == name] for name in ("stock", "same", form)}
    median = lambda key, name: statistics.median(row[key] for row in of[name])
    ratio = lambda key, above, below: statistics.median(a[key] / b[key] for a, b in zip(of[above], of[below]))
    lowest = lambda key, name: min(row[key] for row in of[name])
    each = lambda key, name: statistics.median(1000 * row[key] / row["messages"] for row in of[name])
    walls = [row["wall_ns"] for row in of[form]]
    return {
        "case": case,
        "form": form,
        "raw_ns": [median("wall_ns", "stock"), median("wall_ns", "same")],
        "ns": median("wall_ns", form),
        "spread": [min(walls), max(walls)],
        "throughput_same": ratio("wall_ns", "same", form),
        "throughput_stock": ratio("wall_ns", "stock", form),
        "sender_ns": [lowest("sender_ns", "same"), lowest("sender_ns", form)],
        "sender_ratio": ratio("sender_ns", form, "same"),
        "sender_ratio_of_minima": lowest("sender_ns", form) / lowest("sender_ns", "same"),
        "process_ratio": ratio("process_ns", form, "same"),
        "process_ratio_of_minima": lowest("process_ns", form) / lowest("process_ns", "same"),
        "switches_per_1000": [each("switches", "same"), each("switches", form)],
        "writes_per_1000": [each("writes", "same"), each("writes", form)],
    }


def heading(rounds, load_before):
    machine = f"{os.cpu_count()} processors ({platform.machine()}), Linux {platform.release()}"
    load = f"Load of the machine: {load_before:.1f} before, {os.getloadavg()[0]:.1f} at the end."
    return f"{date.today()}, {machine}, {rounds} rounds. {load}\n"


def table(summaries):
    lines = [
        "Medians. \"same\" is raw libzmq with kvconn's OUT_BATCH_SIZE. "
        "Processor time: of the sending threads, minima, and the ratio of the minima.",
        "",
        "| case | ns per message: raw stock / same | kvconn | throughput: against stock | same "
        "| sender's CPU, ns: same → kvconn | ratio | process CPU, ratio | switches per 1000 | writes per 1000 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for s in summaries:
        name = CASES[s["case"]] + ("" if s["form"] == "kvconn" else f" ({s['form']})")
        pair = lambda values, digits=0: f"{values[0]:.{digits}f} → {values[1]:.{digits}f}"
        lines.append(
            f"| {name} | {s['raw_ns'][0]:.0f} / {s['raw_ns'][1]:.0f} | {s['ns']:.0f} "
            f"| {s['throughput_stock']:.2f} | {s['throughput_same']:.2f} | {pair(s['sender_ns'])} "
            f"| {s['sender_ratio_of_minima']:.2f} | {s['process_ratio_of_minima']:.2f} "
            f"| {pair(s['switches_per_1000'], 1)} | {pair(s['writes_per_1000'], 1)} |"
        )
    return "\n".join(lines) + "\n"


def python_table(result):
    ways = [way for way in ("extension", "ctypes") if way in result["busy"]]
    columns = " | ".join(f"{way} | ratio" for way in ways)
    lines = [
        f"Python {result['python']}, pyzmq {result['pyzmq']}. CPU of the sending thread for one message, µs; "
        "the ratio is pyzmq's time over kvconn's. Last: wall time of one send beside a busy thread, median / p99 in ms.",
        "",
        f"| send from Python | pyzmq | {columns} |",
        "| --- " * (2 + 2 * len(ways)) + "|",
    ]
    for row in result["cpu"]:
        cells = " | ".join(f"{row['us'][way]:.2f} | {row['pyzmq_over'][way]:.1f}" for way in ways)
        lines.append(f"| {row['frames']} × {row['bytes']} B | {row['us']['pyzmq']:.2f} | {cells} |")
    busy = {way: f"{waits['median_ms']:.2f} / {waits['p99_ms']:.2f}" for way, waits in result["busy"].items()}
    lines.append(f"| 64 B, one busy thread beside it | {busy['pyzmq']} | " + " | ".join(f"{busy[way]} | –" for way in ways) + " |")
    return "\n".join(lines) + "\n"


def plot(summaries, timed):
    try:
        import matplotlib
        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not installed (make venv)", file=sys.stderr)
        return
    charts = [(rows, draw) for rows, draw in ((summaries, plot_throughput), (timed, times.plot)) if rows]
    if not charts:
        return
    heights = [len(rows) for rows, _ in charts]
    figure, axes = pyplot.subplots(len(charts), squeeze=False, figsize=(10, 2 + 0.5 * sum(heights)), height_ratios=heights)
    for (rows, draw), its in zip(charts, axes.flat):
        draw(its, rows)
    figure.tight_layout()
    figure.savefig(OUT / "bench.svg")


def plot_throughput(axes, summaries):
    places = range(len(summaries))
    for offset, key, label in ((-0.2, "throughput_stock", "raw libzmq, stock"), (0.2, "throughput_same", "same options")):
        axes.barh([place + offset for place in places], [s[key] for s in summaries], height=0.38, label=label)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(list(places), [f"{CASES[s['case']]} [{s['form']}]" for s in summaries])
    axes.invert_yaxis()
    axes.set_xlabel("throughput of kvconn divided by that of raw libzmq")
    axes.legend()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds: under a minute")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--cases", type=lambda text: text.split(","))
    parser.add_argument("--also", action="append", default=[], metavar="NAME=LIB", help="another libkvconn.so")
    parser.add_argument("--python-sink", metavar="SINK", help="measure sends from Python as well, to this program")
    arguments = parser.parse_args()
    cases = arguments.cases or (QUICK if arguments.quick else [*CASES, *times.CASES])
    rounds = arguments.rounds or (3 if arguments.quick else 13)
    load = os.getloadavg()[0]
    library, *archives = build_library()
    build_programs(*archives)
    libraries = {"kvconn": library, **dict(also.split("=", 1) for also in arguments.also)}
    rows = [row for case in cases for row in measure(case, rounds, 0.5 if arguments.quick else 2, libraries)]
    python = measure_python(arguments.python_sink, 7 if arguments.quick else 31) if arguments.python_sink else None
    print(file=sys.stderr)
    summaries = [summary(rows, case, form) for case in cases if case in CASES for form in libraries]
    timed, stalled = times.summarize(rows), times.summarize_stalled(rows)
    rescued = sum(row["rescues"] for row in rows)
    parts = [
        heading(rounds, load),
        table(summaries) if summaries else None,
        times.table(timed) if timed else None,
        times.stalled_table(stalled) if stalled else None,
        python_table(python) if python else None,
        f"Lost wake-ups that the safety net found (`kvconn_wakeups_rescued_total`), all cases: {rescued}.\n",
    ]
    text = "\n".join(part for part in parts if part)
    print(text)
    results = {"summaries": summaries, "times": timed, "stalled": stalled, "python": python, "rescues": rescued}
    (OUT / "results.json").write_text(json.dumps(results | {"measurements": rows}, indent=1))
    (OUT / "table.md").write_text(text)
    plot(summaries, timed)
    if rescued:
        sys.exit("run.py: kvconn lost a wake-up")


if __name__ == "__main__":
    main()
