"""The report of a sweep: its points on validation examples, and the chosen one on test examples."""

import math

from ...results.comparison import Plan
from ...results.sweep import Sweep, SweepPoint
from ..tables import Digits
from . import charts
from .charts import Series
from .lines import NAMED, spanned
from .of_comparison import page_of_comparison
from .page import Block, Cell, Chart, Charts, Page, Section, Table
from .sections import caveats_section, number_cell


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
    """Return what each point is worth by the criterion, the best first."""
    order = sorted(swept.points, key=lambda point: _order(swept, point))
    what = f"{swept.measured} of {swept.score.title} on validation examples"
    blocks: list[Block] = [points_charts(swept)] if any(point.values for point in order) else []
    blocks.append(_points_table(swept, [*order, *swept.bases], what))
    intro = f"By the {what}." + (" Lines span the seeds." if len(swept.plan.searched) > 1 else "")
    return Section("points", "What was tried", intro, blocks)


def points_charts(swept: Sweep) -> Charts:
    """Return a chart of the best points and of the baseline, each with the seeds that it was tried with."""
    order = sorted((point for point in swept.points if point.values), key=lambda point: _order(swept, point))
    shown = [*order[:NAMED], *([swept.baseline] if swept.baseline is not None else [])]
    kinds = {id(swept.best): "chosen", id(swept.baseline): "baseline"}
    names = {id(point): f"{point.name}, pruned" if point.planned.pruned else point.name for point in shown}
    rows = [
        {"client": names[id(point)], "method": kinds.get(id(point), "other points"), **spanned(point.values)}
        for point in shown
    ]
    series = [Series("chosen", "better"), Series("other points", "series-1"), Series("baseline", "series-0", "square")]
    what = f"{swept.measured} of {swept.score.title} on validation examples"
    spec = charts.clients_by_method(rows, series, list(names.values()), what, apart=False)
    said = ", ".join(f"{point.name} {swept.score.written(point.mean)}" for point in shown[:5])
    return Charts([Chart("points", "The points", f"The {what} of {len(shown)} points: {said}.", spec)], series)


def _order(swept: Sweep, point: SweepPoint) -> tuple[bool, float]:
    return point is not swept.best, -swept.score.better(point.mean, 0.0) if point.values else math.inf


def _points_table(swept: Sweep, points: list[SweepPoint], what: str) -> Table:
    """Return what each point is worth, and how far the chosen one is ahead of it."""
    digits = Digits.of(swept.score, (point.mean for point in points if point.values))
    places = {id(point): i for i, point in enumerate(swept.points)}
    cells = []
    for point in points:
        ahead = swept.behind.get(places.get(id(point), -1))
        ends = (math.nan,) * 3 if ahead is None else (ahead.mean, ahead.low, ahead.high)
        state = "chosen" if point in (swept.best, swept.baseline) else point.fault or point.state
        numbers = [number_cell(number, digits) for number in (point.mean, point.error, *ends)]
        cells.append([Cell(point.name), *numbers, Cell(state or "–")])
    headings = ["point", swept.measured, "standard error", "chosen is ahead by", "95 % from", "to", "state"]
    note = "The last rows are of the baseline, which is chosen among its own points." if swept.bases else ""
    return Table("points", f"Points by the {what}", headings, cells, note)
