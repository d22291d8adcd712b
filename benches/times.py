"""The times that benches/latency.c measures: from its lines to figures and tables."""

import math
import statistics

# Each case with its anchors. "alone" is kvconn as well, but without the peers that read nothing.
CASES = {
    "cold": ["stock", "same"],
    "push-pull": ["stock", "same"],
    "disconnect": ["eventfd"],
    "kill": ["pipe"],
    "stalled": ["alone"],
}
# What is timed, by case and field of a line.
TEXTS = {
    ("cold", "times_ns"): "a send now and then, 64 B, to each of 64 connections",
    ("push-pull", "times_ns"): "PUSH → PULL, 64 B, 10,000 messages/s",
    ("disconnect", "times_ns"): "kvconn_disconnect → a sender that waits returns",
    ("kill", "times_ns"): "SIGKILL of the peer → a sender that waits returns PEER_LOST",
    ("kill", "event_ns"): "SIGKILL of the peer → the event PEER_LOST",
}
ANCHOR_TEXTS = {
    "stock": "anchor: {} by raw libzmq, stock",
    "same": "anchor: {} by raw libzmq, same options",
    "eventfd": "anchor: write to an eventfd → a thread that waits in read returns",
    "pipe": "anchor: SIGKILL → the peer's standard output is closed",
}
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "longest": 1}


def percentiles(values):
    """{name: µs}: the smallest value that this share of all values does not exceed."""
    ordered = sorted(values)
    return {name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 1000 for name, share in SHARES.items()}


def summarize(rows):
    """Figures over all rounds. Replaces the single times in the rows by the round's figures."""
    found = {}
    for row in rows:
        for key in ("times_ns", "event_ns"):
            if key in row:
                found.setdefault((row["case"], row["form"], key), []).append(row[key])
                row[key.replace("_ns", "_us")] = percentiles(row.pop(key))
    summaries = []
    # What is measured stands before its anchors, as in TEXTS.
    order = sorted(found, key=lambda of: (list(TEXTS).index((of[0], of[2])), of[1] in ANCHOR_TEXTS))
    for case, form, key in order:
        rounds = found[case, form, key]
        of_rounds = [percentiles(values)["p99"] for values in rounds]
        every = [value for values in rounds for value in values]
        summaries.append({
            "case": case, "form": form, "what": key.removesuffix("_ns"), "count": len(every), "us": percentiles(every),
            "p99_of_rounds_us": [min(of_rounds), statistics.median(of_rounds), max(of_rounds)],
        })
    return summaries


def summarize_stalled(rows):
    of = {}
    for row in rows:
        if row["case"] == "stalled":
            of.setdefault(row["form"], []).append(row)
    summaries = []
    for form, mine in of.items():
        ratio = lambda key: statistics.median(row[key] / alone[key] for row, alone in zip(mine, of["alone"]))
        summaries.append({
            "form": form,
            "ns": statistics.median(row["wall_ns"] for row in mine),
            "sender_ns": statistics.median(row["sender_ns"] for row in mine),
            "throughput": 1 / ratio("wall_ns"),
            "sender_ratio": ratio("sender_ns"),
            "first_longest_ms": [pick(row["first_longest_ns"] for row in mine) / 1e6 for pick in (statistics.median, max)],
            "first_pass_ms": statistics.median(row["first_pass_ns"] for row in mine) / 1e6,
            "longest_ms": [pick(row["longest_ns"] for row in mine) / 1e6 for pick in (statistics.median, max)],
            "refused_us": statistics.median(row["refused_ns"] for row in mine) / 1e3,
        })
    return summaries


def label(summary):
    text = ANCHOR_TEXTS.get(summary["form"])
    if text:
        return text.format("such a send" if summary["case"] == "cold" else "the same")
    text = TEXTS[summary["case"], summary["what"] + "_ns"]
    return text if summary["form"] == "kvconn" else f"{text} ({summary['form']})"


def table(summaries):
    lines = [
        "Times in µs, over all rounds. The last column: the p99 of each round, least, median and largest.",
        "",
        "| time | count | " + " | ".join(SHARES) + " | p99 of the rounds |",
        "| --- " * (3 + len(SHARES)) + "|",
    ]
    for s in summaries:
        text = lambda value: f"{value:.0f}" if value >= 10 else f"{value:.2f}"
        cells = " | ".join(text(s["us"][name]) for name in SHARES)
        spread = " / ".join(text(value) for value in s["p99_of_rounds_us"])
        lines.append(f"| {label(s)} | {s['count']} | {cells} | {spread} |")
    return "\n".join(lines) + "\n"


def stalled_table(summaries):
    lines = [
        "12 × 43 B, one thread, round robin over 100 peers that read, and over 10 more that read nothing, with the default "
        "send_timeout_ms. First the thread finds out which peers are stalled, then it sends 1,000 rounds (--quick: 500). Times of "
        "a call: median / largest of the rounds.",
        "",
        "| peers | ns per message to a healthy peer | throughput to the healthy ones, against 100 alone | sender's CPU, ns | ratio "
        "| longest call, finding out | finding out, in all | longest call, later | a refused call |",
        "| --- " * 9 + "|",
    ]
    for s in summaries:
        name = "100" if s["form"] == "alone" else "100 + 10 stalled" + ("" if s["form"] == "kvconn" else f" ({s['form']})")
        pair = lambda values: " / ".join(f"{value:.1f}" for value in values) + " ms"
        refused = "–" if s["form"] == "alone" else f"{s['refused_us']:.2f} µs"
        lines.append(
            f"| {name} | {s['ns']:.0f} | {s['throughput']:.2f} | {s['sender_ns']:.0f} | {s['sender_ratio']:.2f} "
            f"| {pair(s['first_longest_ms'])} | {s['first_pass_ms']:.1f} ms | {pair(s['longest_ms'])} | {refused} |")
    return "\n".join(lines) + "\n"


def plot(axes, summaries):
    for place, s in enumerate(summaries):
        axes.plot([s["us"]["p50"], s["us"]["p99.9"]], [place, place], color="lightgray", zorder=1)
    for name, marker in (("p50", "o"), ("p99", "s"), ("p99.9", "^")):
        axes.scatter([s["us"][name] for s in summaries], range(len(summaries)), marker=marker, label=name, zorder=2)
    axes.set_xscale("log")
    axes.set_yticks(range(len(summaries)), [label(s) for s in summaries])
    axes.invert_yaxis()
    axes.set_xlabel("µs")
    axes.legend()
