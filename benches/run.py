#!/usr/bin/env python3
"""Builds and runs the benchmark: kvconn through its C API, in turns with raw libzmq as a program without kvconn has it.

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
# The receivers: one that costs little, which shows the sender, and libzmq's PULL socket.
RECEIVERS = ["reader", "sink"]
# What is measured with each case: the receiver, what follows the case's name, and how many of the rounds.
SETTINGS = {"reader": ("reader", "", 1), "apart": ("reader", ":apart", 0.5), "sink": ("sink", "", 0.7)}
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
    for receiver in RECEIVERS:
        run(*common, ROOT / f"benches/{receiver}.c", "-o", OUT / receiver, "-ldl")
    run(*common, ROOT / "benches/latency.c", "-o", OUT / "latency", "-ldl", "-pthread")
    # Its `send` counts the writes of every library that it loads.
    run(*common, "-rdynamic", ROOT / "benches/sender.c", "-o", OUT / "sender", "-ldl", "-pthread")


def rounds_of(rounds, share):
    return max(min(rounds, 3), round(share * rounds))


def measure(case, rounds, scale, libraries):
    named = [f"{name}={path}" for name, path in libraries.items()]
    program, anchors, settings = "sender", ["stock", "same"], SETTINGS
    if case in times.CASES:
        share = 1 if case in ("push-pull", "cold") else 0.5
        program, anchors, settings = "latency", times.CASES[case], {"": ("reader" if case == "cold" else "sink", "", share)}
    anchors = [f"alone={libraries['kvconn']}" if anchor == "alone" else anchor for anchor in anchors]
    rows = []
    for setting, (receiver, suffix, share) in settings.items():
        output = run(OUT / program, OUT / receiver, OUT / "libzmq.so", rounds_of(rounds, share), scale, case + suffix,
                     *anchors, *named, stdout=subprocess.PIPE, text=True).stdout
        rows += [json.loads(line) | {"setting": setting} for line in output.splitlines()]
    print(".", end="", file=sys.stderr, flush=True)
    return rows


def measure_python(sink, rounds):
    out = OUT / "python.json"
    run(sys.executable, ROOT / "benches/python/bench.py", sink, out, rounds, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def summary(rows, case, form):
    """Medians and minima of a form, by setting. Ratios of throughput are of one round each: what else the machine did met both."""
    result = {"case": case, "form": form}
    for setting in SETTINGS:
        mine = [row for row in rows if row["case"] == case and row["setting"] == setting]
        of = {name: [row for row in mine if row["form"] == name] for name in ("stock", "same", form)}
        median = lambda key, name: statistics.median(row[key] for row in of[name])
        lowest = lambda key, name: min(row[key] for row in of[name])
        each = lambda key, name: statistics.median(1000 * row[key] / row["messages"] for row in of[name])
        result[setting] = {
            "ns": {name: median("wall_ns", name) for name in of},
            # Median, first and third quartile.
            "throughput": {name: quartiles(a["wall_ns"] / b["wall_ns"] for a, b in zip(of[name], of[form]))
                           for name in ("stock", "same")},
            "sender_ns": {name: lowest("sender_ns", name) for name in of},
            "process_ns": {name: lowest("process_ns", name) for name in of},
            "receiver_ns": {name: lowest("receiver_ns", name) for name in of},
            "switches_per_1000": {name: each("switches", name) for name in of},
            "writes_per_1000": {name: each("writes", name) for name in of},
        }
    return result


def quartiles(values):
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return median, first, third


def heading(rounds, load_before):
    machine = f"{os.cpu_count()} processors ({platform.machine()}), Linux {platform.release()}"
    load = f"Load of the machine: {load_before:.1f} before, {os.getloadavg()[0]:.1f} at the end."
    apart, pull = (rounds_of(rounds, SETTINGS[setting][2]) for setting in ("apart", "sink"))
    return f"{date.today()}, {machine}, {rounds} rounds ({apart} with libzmq's thread apart, {pull} with a PULL socket). {load}\n"


def name_of(s):
    return CASES[s["case"]] + ("" if s["form"] == "kvconn" else f" ({s['form']})")


def ratio_text(values):
    median, first, third = values
    return f"{median:.2f} ({first:.2f} – {third:.2f})"


def rows_of(summaries, setting, more):
    """Rows of a table: what every setting shows, and what `more` makes of its figures and the form."""
    for s in summaries:
        r, form = s[setting], s["form"]
        cells = [
            name_of(s),
            f"{r['ns']['stock']:.0f} / {r['ns']['same']:.0f}",
            f"{r['ns'][form]:.0f}",
            *(ratio_text(r["throughput"][anchor]) for anchor in ("stock", "same")),
            *more(r, form),
        ]
        yield f"| {' | '.join(cells)} |"


COMMON = "| case | ns per message: raw stock / same | kvconn | throughput: against stock | same "


def sender_table(summaries, setting, text):
    def more(r, form):
        pair = lambda key, digits=0: f"{r[key]['same']:.{digits}f} → {r[key][form]:.{digits}f}"
        ratio = lambda key: f"{r[key][form] / r[key]['same']:.2f}"
        return (pair("sender_ns"), ratio("sender_ns"), ratio("process_ns"),
                pair("switches_per_1000", 1), pair("writes_per_1000", 1))

    lines = [
        text,
        "",
        f"{COMMON}| sender's CPU, ns: same → kvconn | ratio | process CPU, ratio | switches per 1000 | writes per 1000 |",
        "| --- " * 10 + "|",
        *rows_of(summaries, setting, more),
    ]
    return "\n".join(lines) + "\n"


def table(summaries):
    return sender_table(
        summaries, "reader",
        "The receiver costs little (benches/reader.c), and libzmq's thread shares the sender's processor. "
        "Medians of the rounds; in brackets the quartiles of a round's ratio. \"stock\" is raw "
        "libzmq with its own options, \"same\" has kvconn's OUT_BATCH_SIZE. Processor time of the sending threads, and of their whole process: "
        "minima, and kvconn's divided by that of \"same\". Context switches of that process and writes to its sockets: for 1,000 messages. "
        "An arrow leads from \"same\" to kvconn.",
    )


def apart_table(summaries):
    return sender_table(
        summaries, "apart", "The same receiver, and libzmq's thread shares its processor: every message passes from one processor to another.",
    )


def pull_table(summaries):
    def more(r, form):
        process, receiver = r["process_ns"], r["receiver_ns"]
        return f"{process['same']:.0f} → {process[form]:.0f}", f"{receiver['same']:.0f} / {receiver[form]:.0f}"

    lines = [
        "The same with a PULL socket of libzmq as the receiver. Processor time: minima; the receiver's is that of both its threads.",
        "",
        f"{COMMON}| process CPU, ns: same → kvconn | receiver's CPU, ns: same / kvconn |",
        "| --- " * 7 + "|",
        *rows_of(summaries, "sink", more),
    ]
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
    for offset, key, label in ((-0.2, "stock", "raw libzmq, stock"), (0.2, "same", "same options")):
        medians, first, third = zip(*(s["reader"]["throughput"][key] for s in summaries))
        errors = [[m - f for m, f in zip(medians, first)], [t - m for m, t in zip(medians, third)]]
        axes.barh([place + offset for place in places], medians, xerr=errors, height=0.38, label=label)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(list(places), [name_of(s) for s in summaries])
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
    rows = [row for case in cases for row in measure(case, rounds, 0.5 if arguments.quick else 1, libraries)]
    python = measure_python(arguments.python_sink, 7 if arguments.quick else 31) if arguments.python_sink else None
    print(file=sys.stderr)
    summaries = [summary(rows, case, form) for case in cases if case in CASES for form in libraries]
    timed, stalled = times.summarize(rows), times.summarize_stalled(rows)
    rescued = sum(row["rescues"] for row in rows)
    parts = [
        heading(rounds, load),
        table(summaries) if summaries else None,
        apart_table(summaries) if summaries else None,
        pull_table(summaries) if summaries else None,
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
