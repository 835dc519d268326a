"""The figure of a sweep: its points on validation examples, from the best to the worst."""

import matplotlib
from matplotlib.figure import Figure

from ..results.sweep import Sweep, SweepPoint
from .figures import BASELINE, COLOURS, WIDTH

MOST = 40
"""So many points are drawn, the best ones."""


def draw_points(swept: Sweep) -> Figure:
    """Return mean and standard error of the criterion for each point that has one, the best on top."""
    found = [point for point in swept.points if point.values]
    shown = sorted(found, key=lambda point: -swept.score.better(point.mean, 0.0))[:MOST]
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(WIDTH, 1.2 + 0.22 * max(len(shown), 3)), layout="constrained")
        axes = figure.subplots()
        for place, point in enumerate(shown):
            chosen = point is swept.best
            axes.errorbar(
                point.mean,
                place,
                xerr=point.error if len(point.values) > 1 else None,
                fmt="o" if not point.planned.pruned else "x",
                color=COLOURS[1] if chosen else COLOURS[0],
                markersize=6 if chosen else 4,
                capsize=2,
            )
        if swept.baseline is not None:
            axes.axvline(swept.baseline.mean, color=BASELINE, linestyle="--", linewidth=1)
            axes.set_title(f"dashed: {swept.baseline.name}", fontsize=8, color=BASELINE, loc="right")
        axes.set_yticks(range(len(shown)), [_label(point, swept) for point in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel(f"{swept.measured} on validation examples, {swept.score.title}")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _label(point: SweepPoint, swept: Sweep) -> str:
    name = f"{point.name}, pruned" if point.planned.pruned else point.name
    return f"{name}, chosen" if point is swept.best else name
