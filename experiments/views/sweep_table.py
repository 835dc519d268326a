"""What the command line prints of a sweep: its points on validation examples, then the chosen one on test examples."""

import math

from rich.markup import escape

from ..results.differences import FEWEST_SEEDS, Difference
from ..results.sweep import Sweep, SweepPoint
from .tables import CLEAR, STD, Digits, Grid, console, mark_clear, method_grid, show_grid, show_report_place


def show_sweep(swept: Sweep) -> None:
    """Print the points, what was chosen and how sure that is, and the test numbers of the chosen point."""
    console.print(f"[b]{escape(swept.plan.title)}[/]", soft_wrap=True)
    show_grid(points_grid(swept))
    console.print()
    for line in swept.sentences():
        console.print(escape(line))
    if swept.test is not None:
        console.print()
        show_grid(method_grid(swept.test, STD))
        if swept.baseline is not None:
            verdict = swept.test.verdict
            console.print(f"[b]{escape(verdict.headline)}[/] {escape(' '.join(verdict.sentences))}")
        for line in (*swept.test.caveats, "Test examples had no part in the choice."):
            console.print(escape(line))
    console.print(f"\ntables, figure and runs: {escape(str(swept.folder))}", soft_wrap=True)
    show_report_place(swept.folder)


def points_grid(swept: Sweep) -> Grid:
    """Return the table of the points, the best by the criterion first, and then those of the baseline."""
    digits = Digits.of(swept.score, (point.mean for point in (*swept.points, *swept.bases) if point.values))
    rows = []
    for points, chosen in ((swept.points, swept.best), (swept.bases, swept.baseline)):
        order = sorted(range(len(points)), key=lambda i: _order(swept, points[i], points[i] is chosen))
        for i in order:
            behind = swept.behind.get(i) if points is swept.points else None
            role = "" if points[i] is not chosen else "chosen" if points is swept.points else "baseline"
            rows.append(_row(points[i], role, behind, digits))
    seeds = len(swept.plan.searched)
    caption = "with one seed; ahead: by how much the chosen point is better"
    if seeds > 1:
        caption = f"mean ±standard error over {seeds} seeds; ahead: by how much the chosen point is better"
    if seeds >= FEWEST_SEEDS:
        caption += f", with its 95 % interval; {CLEAR} marks what is clear: p < 0.05 by the paired t test with Holm's "
        caption += "correction over points"
    title = f"{swept.measured} of {swept.score.title} on validation examples"
    return Grid(("point", swept.measured, "ahead", ""), rows, escape(title), caption, words=("",))


def _order(swept: Sweep, point: SweepPoint, chosen: bool) -> tuple[bool, bool, float]:
    worth = -swept.score.better(point.mean, 0.0) if point.values else math.inf
    return not chosen, point.planned.pruned or not point.values, worth


def _row(point: SweepPoint, role: str, behind: Difference | None, digits: Digits) -> list[str]:
    state = f"[red]{point.state}[/]" if point.fault else role or point.state
    if not point.values:
        return [escape(point.name), "–", "–", state]
    number = digits.spread(point.mean, point.error) if len(point.values) > 1 else digits.number(point.mean)
    ahead = "–" if behind is None else mark_clear(digits.difference(behind), behind)
    return [escape(point.name), number, ahead, state]
