"""Draws one run of the demo: for each rank the messages accepted, acknowledged and received over time.

Needs matplotlib. run_failover.py imports it when it is given the path of a picture.
"""

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

SERIES = {  # in drawing order: equal counts stay visible as one line on top of a wider one
    "accepted": {"color": "#93bdea", "linewidth": 5.0},
    "acknowledged": {"color": "#e8862e", "linewidth": 2.4},
    "received": {"color": "#1a7f37", "linewidth": 1.0},
}
RANKS = ("A0", "A1", "B0", "B1")
RED = "#b71c1c"
DOWN = {"color": "#c62828", "alpha": 0.10, "linewidth": 0}
STOPPED = {"color": "#555555", "alpha": 0.12, "linewidth": 0}
NOTE = {"fontsize": 9, "color": "#222222", "va": "center"}
POINTS = 110  # for each line: keeps the file small
STYLE = {
    "svg.fonttype": "none",  # text stays text: small, and it can be searched
    "svg.hashsalt": "kvconn",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "path.simplify_threshold": 0.5,
}


def thinned(points):
    """At most POINTS of them, always with the last."""
    step = -(-len(points) // POINTS)
    return points[::step] + points[-1:] if step > 1 else points


def per_connection(engine, rank):
    """[(connection, [(ms, accepted, acknowledged)])] of a rank, in order. The last point of each is its end."""
    connections = {}
    for report in engine.reports_with("sample"):
        if rank in report:
            conn, accepted, acknowledged = report[rank]
            connections.setdefault(conn, []).append((report["sample"], accepted, acknowledged))
    for end in engine.reports_with("conn"):
        if end["rank"] == rank:
            connections.setdefault(end["conn"], []).append((end["ms"], end["accepted"], end["acknowledged"]))
    return list(connections.items())


def line(axes, series, points):
    if points:
        seconds, counts = zip(*((ms / 1000, count) for ms, count in thinned(points)))
        axes.plot(seconds, counts, solid_capstyle="butt", **SERIES[series])


def draw_rank(axes, engine, lives, rank):
    for _, points in per_connection(engine, rank):
        line(axes, "accepted", [(ms, accepted) for ms, accepted, _ in points])
        line(axes, "acknowledged", [(ms, acknowledged) for ms, _, acknowledged in points])
    for life in (life for life in lives if life.name == rank):
        # Nothing changes after its last message.
        final = life.samples[-1][1] if life.samples else 0
        first_final = next((i for i, (_, count) in enumerate(life.samples) if count == final), 0)
        line(axes, "received", life.samples[: first_final + 1])
    axes.set_ylabel(rank, rotation=0, ha="right", va="center", fontsize=12, fontweight="bold")
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def first_after(engine, step, ms, text=""):
    """When the engine first took a step after a moment."""
    return next((at for at, name, details in engine.timeline if name == step and at >= ms and text in details), None)


def first_lost(engine, ms):
    """The rank whose loss was seen first after a moment: "B rank 1, connection ..." is B1."""
    details = next(details for at, step, details in engine.timeline if step == "PEER_LOST" and at >= ms)
    return "".join(details.split(",")[0].split(" rank "))


def draw(path, engine, lives, when):
    with matplotlib.rc_context(STYLE):
        figure, panels = plt.subplots(4, 1, figsize=(10.5, 6.6), sharex=True)
        axes = dict(zip(RANKS, panels))
        for rank in RANKS:
            draw_rank(axes[rank], engine, lives, rank)
        mark(axes, engine, lives, when)
        figure.supylabel("messages since the connection began", x=0.03, fontsize=9)
        head(figure, engine)
        figure.savefig(path, metadata={"Date": None, "Creator": None}, bbox_inches="tight")
        plt.close(figure)


def head(figure, engine):
    (totals,) = engine.reports_with("started")
    summary = f"{totals['started']} requests started, {totals['done']} done. Messages on each connection:"
    figure.text(0.08, 0.97, "A node is killed and a rank is restarted, under load", fontsize=14, fontweight="bold")
    figure.text(0.08, 0.93, summary, fontsize=10)
    for x, series in zip((0.60, 0.69, 0.82), SERIES):
        figure.text(x, 0.93, series, fontsize=10, fontweight="bold", color=SERIES[series]["color"])


def mark(axes, engine, lives, when):
    """Says what happens where, above the lines."""
    kill, stop, leave = when["KILL"], when["BUSY"], when["SIGTERM"]
    restart_a, restart_b = when["RESTART A1"], when["RESTART B"]
    serving_a = first_after(engine, "SERVING", restart_a, "node A")
    serving_b = first_after(engine, "SERVING", restart_b, "node B")
    lost, rerouted = (first_after(engine, step, kill) - kill for step in ("PEER_LOST", "REROUTED"))
    failed = sum(len(report["rooms"]) for report in engine.reports_with("failed"))
    unacknowledged = sum(len(report["unacknowledged"]) for report in engine.reports_with("unacknowledged"))

    def event(rank, ms, color="#555555"):
        axes[rank].axvline(ms / 1000, color=color, linewidth=1.0, linestyle=(0, (3, 2)))

    def band(rank, begin, end, how):
        axes[rank].axvspan(begin / 1000, end / 1000, **how)

    def note(rank, ms, height, text, side="left", **how):
        place = {"textcoords": "offset points", "xytext": (4 if side == "left" else -4, 0), "ha": side}
        how = {**NOTE, **how, **place, "xycoords": axes[rank].get_xaxis_transform()}
        axes[rank].annotate(text, (ms / 1000, height), **how)

    for rank in ("B0", "B1"):
        band(rank, kill, serving_b, DOWN)
        event(rank, kill, RED)
        event(rank, restart_b)
        note(rank, kill, 0.80, f"KILL {rank}", side="right", fontweight="bold", color=RED)
        note(rank, restart_b, 0.80, f"RESTART {rank}: a new connection begins at 1", fontweight="bold")
        accepted = per_connection(engine, rank)[0][1][-1][1]
        received = next(life.samples[-1][1] for life in lives if life.name == rank)
        note(rank, kill, 0.30, f"{accepted - received} of {accepted}\nnot received")
    note(first_lost(engine, kill), kill, 0.80, f"LOSS seen first\nafter {lost:.1f} ms", fontweight="bold", color=RED)

    event("A0", kill, RED)
    note("A0", kill, 0.86, f"FAILOVER after {rerouted:.1f} ms:", fontweight="bold", color=RED)
    note("A0", kill, 0.69, f"node A runs node B's {failed} requests")
    note("A0", leave, 0.45, "node A waits for A1,\nnode B takes all requests")

    band("A1", stop, leave, STOPPED)
    band("A1", leave, serving_a, DOWN)
    for ms in (stop, leave, restart_a):
        event("A1", ms)
    note("A1", stop, 0.25, "A1 STOPS reading", side="right", fontweight="bold")
    # At the right edge of the area between the two lines.
    top = per_connection(engine, "A1")[0][1][-1][1] / axes["A1"].get_ylim()[1]
    note("A1", leave, min(top + 0.05, 0.94), f"{unacknowledged} unacknowledged", fontsize=8)
    note("A1", leave, 0.50, "A1 LEAVES:", fontweight="bold")
    note("A1", leave, 0.25, "FIN, reads\nthe rest, exits")
    note("A1", restart_a, 0.80, "RESTART A1:", fontweight="bold")
    note("A1", restart_a, 0.55, f"the {unacknowledged} unacknowledged\nare sent again first")
    axes["B1"].set_xlim(right=axes["B1"].get_xlim()[1] + 0.5)  # room for the last note
    axes["B1"].set_xlabel("seconds", fontsize=9)
