"""Figures of runs and comparisons. Colours are Okabe and Ito's, which colour-blind people tell apart."""

import io
import itertools
import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import matplotlib
import numpy as np
from matplotlib import figure as matplotlib_figure
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fairbloom.protocol.scores import Score
from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.system.files import write_whole

from ..recipes.recipe import ROUND
from ..results.measured import in_title, measure_title
from .report.lines import sorted_scores

if TYPE_CHECKING:
    from fairbloom.tasks.split import Split

    from ..results.comparison import Comparison
    from ..results.outcome import Outcome
    from ..results.ranks import Ranks
    from ..results.reproduction import Reproduction
    from ..results.run import Run

BASELINE = "#666666"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKERS = ("s", "^", "D", "v", "P")
TOGETHER = 1 + len(COLOURS)
"""The most lines that one panel has; more methods have a panel each, with the baseline in it."""

LineStyle = Literal["-", "--", "-.", ":"]
"""The kinds of lines."""

WIDTH = 7.2
"""Of a figure, in inches: that of a page's text."""

MANY = 40
"""From so many clients on, single ones are not marked."""


class Figure(matplotlib_figure.Figure):
    """A figure that a notebook shows by itself; matplotlib's own needs %matplotlib inline."""

    def _repr_png_(self) -> bytes:
        """Return the picture."""
        return encode_png(self)


def encode_png(figure: matplotlib_figure.Figure) -> bytes:
    """Return a figure as the PNG file that notebooks show."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    return drawn.getvalue()


def draw_sorted_clients(comparison: "Comparison") -> Figure:
    """Return each method's clients from the worst served to the best: mean and range of their score over the seeds."""
    with matplotlib.rc_context({"font.size": 9}):
        return _together(comparison) if len(comparison.methods) <= TOGETHER else _apart(comparison)


def draw_rounds(run: "Run") -> Figure:
    """Return the score of a run after each evaluated round: of the worst tenth of clients, their mean, the best."""
    score, clients = run.score, len(run.final())
    lines = [(measure, measure_title(measure, clients)) for measure in ("best_10", "mean", "worst_10")]
    column = score.column(run.serves)
    rows = [row for row in run.rows_of_rounds() if row.get(f"{column}_mean")]
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        axes = _axes(figure.subplots(), score)
        rounds = [int(row["round"]) for row in rows]
        last = {}
        for (measure, label), colour, marker in zip(lines, COLOURS, MARKERS, strict=False):
            values = np.array([float(row[f"{column}_{measure}"]) for row in rows])
            axes.plot(rounds, values, color=colour, marker=marker, markersize=3.5, markevery=max(1, len(rounds) // 12))
            if rounds:
                last[label] = (values[-1], colour)
        axes.set_xlabel(f"round, {run.label}{' (personal models)' if run.serves == 'personal' else ''}")
        _label_lines(axes, last, at=rounds[-1] if rounds else 0.0, left=False)
    return figure


def draw_reproduction(done: "Reproduction") -> Figure:
    """Return the figure of a reproduction, a panel a measure.

    A table becomes dots with error bars, printed and measured, a line a row; a figure is drawn over what its recipe has
    on the x-axis.
    """
    drawing = done.recipe.figure
    with matplotlib.rc_context({"font.size": 9}):
        if drawing is None:
            return _dots(done)
        return _curves(done) if drawing.x == ROUND else _against(done, drawing.x)


def draw_split(split: "Split") -> Figure:
    """Return a picture of who has how many examples of each class: a row a client, a column a class."""
    counts = split.counts()
    with matplotlib.rc_context({"font.size": 9}):
        height = min(max(2.0, 0.18 * len(counts) + 1.0), 9.0)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(np.where(counts > 0, counts, np.nan), aspect="auto", cmap="viridis_r", interpolation="none")
        axes.set(xlabel="class", ylabel="client" if len(counts) > MANY else "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(counts) <= MANY:
            axes.set_yticks(range(len(counts)), split.clients)
        figure.colorbar(image, ax=axes, label="examples; empty where there are none")
    return figure


def draw_ranks(ranks: "Ranks") -> Figure:
    """Return the average rank of each method, the best on top; two whose bars do not overlap are told apart."""
    methods = [*ranks.average][::-1]
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(WIDTH, 0.28 * len(methods) + 1.0), layout="constrained")
        axes = figure.subplots()
        half = ranks.critical_difference / 2.0
        average = [ranks.average[method] for method in methods]
        axes.errorbar(average, range(len(methods)), xerr=half, fmt="o", color=COLOURS[0], markersize=4)
        axes.set_yticks(range(len(methods)), methods)
        axes.set_xlabel(f"average rank over {len(ranks.by_task)} tasks by {ranks.title} (1 is the best)")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def write_figure(figure: matplotlib_figure.Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and SVG, the same figure as the same bytes.

    Returns
    -------
    list
        The files written: `path` with the endings .png and .svg.
    """
    files = [path.with_name(f"{path.name}{ending}") for ending in (".png", ".svg")]
    with matplotlib.rc_context({"svg.hashsalt": "fairbloom"}):
        for file in files:
            drawn = io.BytesIO()
            metadata = {"Date": None} if file.suffix == ".svg" else {}
            figure.savefig(drawn, format=file.suffix[1:], dpi=160, metadata=metadata)
            with explain_write_errors("the figure", path.parent):
                write_whole(file, drawn.getvalue())
    return files


def _dots(done: "Reproduction") -> Figure:
    """Return a figure with a line a row, on which what was printed and what was measured stand above each other."""
    measures, outcomes = done.recipe.measures, done.outcomes
    figure = Figure(figsize=(2.4 + 1.5 * len(measures), 1.2 + 0.26 * len(outcomes)), layout="constrained")
    panels = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for panel, measure in zip(panels, measures, strict=True):
        axes = _plain(panel, in_title(measure, done.recipe.unit))
        printed = [(i, outcome.case.published.get(measure)) for i, outcome in enumerate(outcomes)]
        found = [(i, *outcome.measured[measure]) for i, outcome in enumerate(outcomes) if outcome.measured]
        dots = [
            ("printed", BASELINE, "s", -0.15, [(i, n.mean, n.spread or 0.0) for i, n in printed if n is not None]),
            ("measured", COLOURS[0], "o", 0.15, found),
        ]
        for label, colour, marker, away, points in dots:
            places, means, spreads = [i + away for i, *_ in points], [m for _, m, _ in points], [s for *_, s in points]
            axes.errorbar(means, places, xerr=spreads, fmt=marker, color=colour, markersize=4, capsize=2, label=label)
    panels[0].set_yticks(range(len(outcomes)), [outcome.full_name for outcome in outcomes])
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _curves(done: "Reproduction") -> Figure:
    """Return a figure of measures over the rounds: a line a row, the mean over the seeds in a band of a deviation."""
    figure, panels = _panels(done)
    for panel, measure in zip(panels, done.recipe.measures, strict=True):
        axes = _plain(panel, in_title(measure, done.recipe.unit))
        axes.set_xlabel("round")
        for outcome, (colour, kind) in zip(done.outcomes, _styles(), strict=False):
            if not outcome.measured:
                continue
            curve = outcome.curve(measure)
            rounds, mean = [*curve], np.array([mean for mean, _ in curve.values()])
            away = np.array([deviation for _, deviation in curve.values()])
            axes.fill_between(rounds, mean - away, mean + away, color=colour, alpha=0.15, linewidth=0.0)
            axes.plot(rounds, mean, label=outcome.full_name, linewidth=1.3, color=colour, linestyle=kind)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _against(done: "Reproduction", setting: str) -> Figure:
    """Return a figure of final measures against a setting; rows without it are level lines."""
    figure, panels = _panels(done)
    lines: dict[str, list[Outcome]] = {}
    for outcome in done.outcomes:
        if outcome.measured:
            label = ", ".join(filter(None, (outcome.case.row.label, outcome.case.variant)))
            lines.setdefault(label, []).append(outcome)
    for panel, measure in zip(panels, done.recipe.measures, strict=True):
        axes = _plain(panel, in_title(measure, done.recipe.unit))
        axes.set_xlabel(setting)
        for (label, rows), (colour, kind) in zip(lines.items(), _styles(), strict=False):
            points = [(float(row.case.config[setting]), row) for row in rows if setting in row.case.config]
            if points:
                ascending = sorted(points, key=lambda point: point[0])
                x, measured = [x for x, _ in ascending], [row.measured[measure] for _, row in ascending]
                means, spreads = [mean for mean, _ in measured], [spread for _, spread in measured]
                axes.errorbar(
                    x, means, spreads, label=label, color=colour, linestyle=kind, marker="o", markersize=4, capsize=2
                )
            else:
                axes.axhline(rows[0].measured[measure][0], label=label, color=colour, linestyle=kind)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _panels(done: "Reproduction") -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each measure, at most three beside each other."""
    count = len(done.recipe.measures)
    across, legend = min(3, count), 0.11 * len(done.outcomes)
    figure = Figure(figsize=(WIDTH, 0.6 + legend + 2.6 * math.ceil(count / across)), layout="constrained")
    panels = list(figure.subplots(math.ceil(count / across), across, squeeze=False).flat)
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, panels[:count]


def _plain(axes: Axes, title: str) -> Axes:
    """Return axes in our style, with a title."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_title(title, fontsize=9)
    return axes


def _styles() -> Iterator[tuple[str, LineStyle]]:
    """Yield a colour and a kind of line for each line, without end: all colours first, then the next kind of line."""
    kinds: tuple[LineStyle, ...] = ("-", "--", "-.", ":")
    return ((colour, kind) for kind in itertools.cycle(kinds) for colour in (BASELINE, *COLOURS))


def _together(comparison: "Comparison") -> Figure:
    """Return a figure with all lines in one panel, each named where it begins."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = _axes(figure.subplots(), comparison.score)
    others = [method for method in comparison.methods if method != comparison.baseline]
    styles = dict(zip(others, zip(COLOURS, MARKERS, strict=True), strict=False))
    first = {}
    for number, method in enumerate((comparison.baseline, *others)):
        colour, marker = styles.get(method, (BASELINE, "o"))
        lines = sorted_scores(comparison.values[method], comparison.score)
        rank, mean = np.arange(1, lines.shape[1] + 1), lines.mean(axis=0)
        axes.fill_between(rank, lines.min(axis=0), lines.max(axis=0), alpha=0.1, color=colour, linewidth=0.0)
        # Where lines coincide, the wider one below shows at both sides of the one above, and markers take turns.
        axes.plot(
            rank,
            mean,
            color=colour,
            linestyle="--" if method in comparison.personal else "-",
            linewidth=2.8 - 1.6 * number / max(1, len(others)),
            marker=marker if len(rank) < MANY else "none",
            markersize=4.5,
            markerfacecolor="white" if method in comparison.personal else colour,
            markevery=(number % 2 if len(rank) > 2 else 0, 2) if len(others) > 1 and len(rank) > 8 else None,
        )
        first[method] = (float(mean[0]), colour)
    axes.set_xlabel("clients, from the worst served to the best")
    _label_lines(axes, first, at=1.0, left=True)
    return figure


def _apart(comparison: "Comparison") -> Figure:
    """Return a figure with a panel for each method, and the baseline's line in each."""
    others = [method for method in comparison.methods if method != comparison.baseline]
    across = 3 if len(others) <= 6 else 4 if len(others) <= 16 else 5
    down = math.ceil(len(others) / across)
    titles = {method: textwrap.fill(method, 96 // across, break_on_hyphens=False) for method in others}
    tallest = max(title.count("\n") + 1 for title in titles.values())
    figure = Figure(figsize=(WIDTH, 0.75 + down * (1.8 - 0.16 * across + 0.16 * tallest)), layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    base = sorted_scores(comparison.values[comparison.baseline], comparison.score)
    rank = np.arange(1, base.shape[1] + 1)
    for panel, method in zip(panels.flat, others, strict=False):
        lines = sorted_scores(comparison.values[method], comparison.score)
        axes = _axes(panel, None)
        personal = method in comparison.personal
        colour = COLOURS[1] if personal else COLOURS[0]
        axes.plot(rank, base.mean(axis=0), color=BASELINE, linewidth=2.6, alpha=0.55, solid_capstyle="butt")
        axes.fill_between(rank, lines.min(axis=0), lines.max(axis=0), alpha=0.18, color=colour, linewidth=0.0)
        axes.plot(rank, lines.mean(axis=0), color=colour, linewidth=1.3, linestyle="--" if personal else "-")
        axes.set_title(titles[method], fontsize=8, loc="left", color=colour)
    for panel in panels.flat[len(others) :]:
        panel.set_visible(False)
    for column in range(across):  # the lowest panel of a column may stand above the last row
        lowest = max(row for row in range(down) if row * across + column < len(others) or row == 0)
        panels[lowest, column].tick_params(labelbottom=True)
    figure.supylabel(_axis_label(comparison.score), fontsize=9)
    figure.supxlabel(
        f"clients, from the worst served to the best; grey: {comparison.baseline}"
        + ("; dashed: personal models" if comparison.personal else ""),
        fontsize=9,
    )
    return figure


def _axes(axes: Axes, score: Score | None) -> Axes:
    """Return axes in our style."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4 if score is None else 10, steps=[1, 2, 5, 10]))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    if score is not None:
        axes.set_ylabel(_axis_label(score))
    return axes


def _axis_label(score: Score) -> str:
    """Return what an axis says of a score: its name, unit and direction."""
    unit = " in %" if score.percent else ""
    return f"test {score.name}{unit} ({'higher' if score.higher_is_better else 'lower'} is better)"


def _label_lines(axes: Axes, ends: dict[str, tuple[float, str]], *, at: float, left: bool) -> None:
    """Write each line's name beside its end, in its colour; names that would meet are moved apart."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    names = sorted(ends, key=lambda name: ends[name][0])
    lines = {name: textwrap.wrap(name, 24, break_on_hyphens=False) for name in names}
    places = _apart_from_each_other(
        [ends[name][0] for name in names], [(high - low) * 0.06 * len(lines[name]) for name in names], low, high
    )
    begin, end = axes.get_xlim()
    room = (end - begin) * (0.0155 * max((len(line) for each in lines.values() for line in each), default=0) + 0.07)
    axes.set_xlim(*((at - room, end) if left else (begin, at + room)))
    away = (end - begin) * 0.05 * (-1 if left else 1)
    for name, place in zip(names, places, strict=True):
        value, colour = ends[name]
        axes.annotate(
            "\n".join(lines[name]),
            xy=(at, value),
            xytext=(at + away, place),
            color=colour,
            ha="right" if left else "left",
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.6,
                "relpos": (1.0 if left else 0.0, 0.5),
                "shrinkA": 1,
                "shrinkB": 4,
            },
        )
    axes.set_xticks([tick for tick in axes.get_xticks() if (1 <= tick <= end if left else begin <= tick <= at)])


def _apart_from_each_other(wanted: list[float], heights: list[float], low: float, high: float) -> list[float]:
    """Return where labels are put that want to be at ascending places: near them, between bounds, none over another.

    Those that would meet stand together as one block, whose middle is the mean of where they want to be.
    """
    blocks: list[tuple[list[float], list[float]]] = []
    for place, height in zip(wanted, heights, strict=True):
        blocks.append(([place], [height]))
        while len(blocks) > 1 and _bottom(*blocks[-1], low, high) < sum(_span(*blocks[-2], low, high)):
            places, block_heights = blocks.pop()
            blocks[-1] = (blocks[-1][0] + places, blocks[-1][1] + block_heights)
    found = []
    for places, block_heights in blocks:
        floor = _bottom(places, block_heights, low, high)
        for height in block_heights:
            found.append(floor + height / 2)
            floor += height
    return found


def _bottom(places: list[float], heights: list[float], low: float, high: float) -> float:
    """Return where a block of labels begins."""
    middle, height = sum(places) / len(places), sum(heights)
    return max(low, min(middle - height / 2, high - height))


def _span(places: list[float], heights: list[float], low: float, high: float) -> tuple[float, float]:
    return _bottom(places, heights, low, high), sum(heights)
