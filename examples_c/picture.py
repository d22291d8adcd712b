"""Draws one run of the demo: for each rank the messages accepted, acknowledged and received over time.

Needs matplotlib. run_failover.py imports it when it is given the path of a picture.
"""

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

SERIES = {  # in drawing order: equal counts stay visible as one line on top of a wider one
    "accepted": {"color": "#a6c8ee", "linewidth": 5.0},
    "acknowledged": {"color": "#e8862e", "linewidth": 2.4},
    "received": {"color": "#1a7f37", "linewidth": 1.0},
}
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
    """(connection, [(ms, accepted, acknowledged)]) for each connection of a rank, in order; the last point is its end."""
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


def first_after(engine, step, ms=0.0, text=""):
    """When the engine first took a step after a moment."""
    return next((at for at, name, details in engine.timeline if name == step and at >= ms and text in details), None)


def draw(path, engine, lives, when):
    with matplotlib.rc_context(STYLE):
        figure, panels = plt.subplots(4, 1, figsize=(10, 6.6), sharex=True)
        axes = dict(zip(("A0", "A1", "B0", "B1"), panels))
        for rank in axes:
            draw_rank(axes[rank], engine, lives, rank)
        mark(figure, axes, engine, when)
        figure.savefig(path, metadata={"Date": None, "Creator": None}, bbox_inches="tight")
        plt.close(figure)


def mark(figure, axes, engine, when):
    """Says what happens where."""
    kill, restart_b = when["KILL"], when["RESTART B"]
    serving_b = first_after(engine, "SERVING", restart_b, "node B")
    serving_a = first_after(engine, "SERVING", when["RESTART A1"], "node A")
    lost, rerouted = (first_after(engine, step, kill) - kill for step in ("PEER_LOST", "REROUTED"))
    failed = sum(len(report["rooms"]) for report in engine.reports_with("failed"))
    (unacknowledged,) = engine.reports_with("unacknowledged")
    unacknowledged = len(unacknowledged["unacknowledged"])
    (totals,) = engine.reports_with("started")

    def band(rank, begin, end, how):
        axes[rank].axvspan(begin / 1000, end / 1000, **how)

    def note(rank, ms, height, text, **how):
        axes[rank].text(ms / 1000, height, text, transform=axes[rank].get_xaxis_transform(), **{**NOTE, **how})

    for rank in ("B0", "B1"):
        band(rank, kill, serving_b, DOWN)
    band("A1", when["BUSY"], when["SIGTERM"], STOPPED)
    band("A1", when["SIGTERM"], serving_a, DOWN)

    for ms, text, align in [
        (kill, "KILL node B", "right"),
        (restart_b, "RESTART node B", "left"),
        (when["BUSY"], "STOP A1", "right"),
        (when["SIGTERM"], "A1 leaves", "left"),
        (when["RESTART A1"], "RESTART A1", "left"),
    ]:
        for one in axes.values():
            one.axvline(ms / 1000, color="#666666", linewidth=0.8, linestyle=(0, (3, 2)))
        note("A0", ms, 1.12, text, ha=align, fontweight="bold", color="#b71c1c" if "KILL" in text else "#222222")

    note("A0", kill + 40, 0.30, f"FAILOVER: {failed} requests of node B\nmoved here {rerouted:.1f} ms after the kill")
    note("B0", kill + 40, 0.55, f"LOSS seen {lost:.1f} ms after the kill:\n1 s later still not one message accepted")
    note("A1", when["SIGTERM"] + 40, 0.20, f"{unacknowledged} messages unacknowledged:\nsent again, as A1's first")
    figure.suptitle("A node is killed and a rank restarted under load", fontsize=14, fontweight="bold", x=0.08, y=1.02, ha="left")
    figure.text(0.08, 0.955, f"{totals['started']} requests started, {totals['done']} done. Messages on each connection:", fontsize=10)
    for x, series in zip((0.62, 0.71, 0.83), SERIES):
        figure.text(x, 0.955, series, fontsize=10, fontweight="bold", color=SERIES[series]["color"])
    axes["B1"].set_xlabel("seconds", fontsize=9)
