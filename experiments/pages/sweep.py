"""The page of a sweep: its points on validation examples, and the chosen one on test examples."""

import math
from functools import partial

from ..render.page import Block, Cell, Chart, Charts, Page, Section, Table
from ..render.theme import Series
from ..results.comparison import Plan
from ..results.presentation import page_of
from ..results.run import REPORT
from ..results.sweep import Sweep, SweepPoint
from . import charts
from .cells import Digits
from .comparison import brief_sections, detailed_sections, lines_of
from .rows import NAMED, mean_and_range
from .sections import caveats_section, present


@page_of.register
def page_of_sweep(swept: Sweep) -> Page:
    """Return the page of a sweep; while runs are missing, as far as it is."""
    headline, *sentences = swept.sentences()
    facts = [("points", str(len(swept.points))), ("criterion", swept.measured), ("seeds", str(len(swept.plan.seeds)))]
    files = [("tables, figure and runs", str(swept.folder))]
    files += [("report", str(swept.folder / REPORT))] if (swept.folder / REPORT).exists() else []
    sections, figure = [_points_section(swept)], partial(points_charts, swept)
    if swept.test is None:
        whole = present([*sections, caveats_section(swept.notes)])
        return Page(swept.plan.title, headline, sentences, facts, whole, list, files, figure)
    tested = {point.name: point.planned.runs(swept.plan.seeds) for point in (*swept.points, *swept.bases)}
    runs = {name: tested[name] for name in swept.test.methods if name in tested}
    lines = lines_of(swept.test, Plan(runs, swept.plan.seeds, swept.test.baseline))
    verdict = swept.test.verdict
    found = [verdict.headline, *verdict.sentences] if swept.baseline is not None else []
    said = [*sentences, *found, "Test examples had no part in the choice; what follows is of them."]
    details = partial(detailed_sections, swept.test, lines)
    return Page(
        swept.plan.title, headline, said, facts, [*sections, *brief_sections(swept.test)], details, files, figure
    )


def _points_section(swept: Sweep) -> Section:
    what = f"{swept.measured} of {swept.score.title} on validation examples"
    blocks: list[Block] = [points_charts(swept)] if any(point.values for point in swept.points) else []
    blocks.append(points_table(swept))
    intro = f"By the {what}." + (" Lines span the seeds." if len(swept.plan.searched) > 1 else "")
    return Section("points", "What was tried", intro, blocks)


def points_charts(swept: Sweep) -> Charts:
    """Return a chart of the best points and of the baseline, each with the seeds that it was tried with."""
    order = sorted((point for point in swept.points if point.values), key=lambda point: _order(swept, point))
    shown = [*order[:NAMED], *([swept.baseline] if swept.baseline is not None else [])]
    kinds = {id(swept.best): "chosen", id(swept.baseline): "baseline"}
    rows = [
        {"client": point.name, "method": kinds.get(id(point), "other points"), **mean_and_range(point.values)}
        for point in shown
    ]
    series = [Series("chosen", "better"), Series("other points", "series-1"), Series("baseline", "series-0", "square")]
    what = f"{swept.measured} of {swept.score.title} on validation examples"
    spec = charts.clients_by_method(rows, series, [point.name for point in shown], what, apart=False)
    said = ", ".join(f"{point.name} {swept.score.written(point.mean)}" for point in shown[:5])
    return Charts([Chart("points", "The points", f"The {what} of {len(shown)} points: {said}.", spec)], series)


def _order(swept: Sweep, point: SweepPoint) -> tuple[bool, float]:
    worth = -swept.score.better(point.mean, 0.0) if point.values else math.inf
    return point not in (swept.best, swept.baseline), worth


def points_table(swept: Sweep) -> Table:
    """Return what each point is worth, the best first, and the baseline's."""
    digits = Digits.of(swept.score, (point.mean for point in (*swept.points, *swept.bases) if point.values))
    cells = []
    for points in (swept.points, swept.bases):
        for place in sorted(range(len(points)), key=lambda i: _order(swept, points[i])):
            point = points[place]
            role = "chosen" if point is swept.best else "baseline" if point is swept.baseline else point.state
            state = Cell(f"{point.state}: {point.fault}", tone="worse") if point.fault else Cell(role)
            error = point.error if len(point.values) > 1 else None
            number = digits.cell(point.mean if point.values else None)
            cells.append([Cell(point.name), number, digits.cell(error), state])
    seeds = len(swept.plan.searched)
    note = f"Mean over {seeds} seeds." if seeds > 1 else "With one seed."
    note += " The last rows are of the baseline, which is chosen among its own points." if swept.bases else ""
    headings = ["point", swept.measured, "standard error", "state"]
    caption = f"Points by the {swept.measured} of {swept.score.title} on validation examples"
    return Table("points", caption, headings, cells, note)
