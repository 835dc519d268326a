"""The report of a sweep: its points on validation examples, and the chosen one on test examples."""

import math

from ...results.comparison import Plan
from ...results.sweep import Sweep, SweepPoint
from . import charts
from .cells import Digits
from .charts import Series
from .lines import NAMED, spanned
from .of_comparison import page_of_comparison
from .page import Block, Cell, Chart, Charts, Page, Section, Table
from .sections import caveats_section


def page_of_sweep(swept: Sweep) -> Page:
    """Return the report of a sweep; while runs are missing, as far as it is."""
    headline, *sentences = swept.sentences()
    sections = [_points_section(swept)]
    facts = [("points", str(len(swept.points))), ("criterion", swept.measured), ("seeds", str(len(swept.plan.seeds)))]
    if swept.test is None:
        return Page(swept.plan.title, headline, sentences, facts, [*sections, caveats_section(swept.notes)])
    tested = {point.name: point.planned.runs(swept.plan.seeds) for point in (*swept.points, *swept.bases)}
    runs = {name: tested[name] for name in swept.test.methods if name in tested}
    page = page_of_comparison(swept.test, Plan(runs, swept.plan.seeds, swept.test.baseline))
    found = [page.headline, *page.sentences] if swept.baseline is not None else []
    said = [*sentences, *found, "Test examples had no part in the choice; what follows is of them."]
    known = [fact for fact in page.facts if fact[0] in ("task", "clients", "rounds")]
    return Page(swept.plan.title, headline, said, [*known, *facts], [*sections, *page.sections])


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
        {"client": point.name, "method": kinds.get(id(point), "other points"), **spanned(point.values)}
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
