"""The page of each result: what the command line prints and a notebook shows, with tables and charts of its report.

Importing this module makes the methods `show`, `chart` and `_repr_html_` of results work.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.server.run_folder.files import CLIENTS

from ..results.caveats import caveats_of_run
from ..results.comparison import Comparison
from ..results.differences import FEWEST_SEEDS
from ..results.evaluation import Evaluation
from ..results.measures import measure_title
from ..results.plans import RECOMMENDATION
from ..results.presentation import page_of
from ..results.recommendation import Recommendation
from ..results.reproduction import Reproduction
from ..results.run import REPORT, Run
from ..results.sweep import Sweep
from ..results.verdict import MEAN, WORST
from .report.cells import CLEAR, NONE, SHOWN, Digits, mark_clear
from .report.lines import worst_first
from .report.of_comparison import by_name, failed_rows, left_out, names_table, sorted_charts
from .report.of_reproduction import notes_section, rows_charts, rows_table, verdict
from .report.of_run import measures_table
from .report.of_sweep import points_charts, points_table
from .report.page import Block, Cell, Note, Page, Section, Table
from .report.sections import run_rounds_charts
from .report.subgroups import gaps_table, group_blocks

NEGLECTED, SERVED = 6, 3
"""Number of clients that are shown of those that the baseline serves worst, and best."""

INTERVAL, STD = "interval", "std"
SPREADS = (INTERVAL, STD)
"""What tables of a comparison have beside means: differences with intervals, or standard deviations over the seeds."""

INTERVALS = ", with its 95 % interval over the seeds; where single seeds decide a difference, it is too narrow"
"""What notes say of differences to the baseline over three seeds or more."""


def _section(*blocks: Block | None) -> Section:
    return Section("", "", "", [block for block in blocks if block is not None])


def _report_place(folder: Path) -> list[tuple[str, str]]:
    return [("report", str(folder / REPORT))] if (folder / REPORT).exists() else []


# Runs ---------------------------------------------------------------------------------------------------------------


@page_of.register(Run)
def _of_run(run: Run) -> Page:
    """Return how the final model serves the clients, and which of them it serves worst."""
    task = f" on {run.settings['task']}" if "task" in run.settings else ""
    title = f"{run.label}{task}: {run.rounds_done} of {run.num_rounds} rounds, {run.state}"
    final, blocks = run.final(), list[Block]()
    if final:
        shares = {name: f" ({share:.0f} % in one class)" for name, share in run.larger_classes().items()}
        shown = worst_first(final, run.score)[:NEGLECTED]
        worst = ", ".join(f"{name} {run.score.written(final[name])}{shares.get(name, '')}" for name in shown)
        blocks = [measures_table(run), Note([f"worst served: {worst}"]), *_groups(run)]
        blocks += [Note([*_describe_left_out(run), *caveats_of_run(run)])]
    figure = partial(run_rounds_charts, run) if final else None
    return Page(title, "", (), [("run folder", str(run.folder))], [_section(*blocks)], figure)


def _describe_left_out(run: Run) -> list[str]:
    """Return whom the defence left out, and in how many rounds; nothing where it left nobody out."""
    found = run.left_out()
    shown = ", ".join(f"{name} {count}" for name, count in found[:NEGLECTED])
    more = f", and {len(found) - NEGLECTED} more" if len(found) > NEGLECTED else ""
    defence = run.settings.get("defence")
    return [f"left out by the defence {defence}, in rounds of {run.rounds_done}: {shown}{more}"] if found else []


def _groups(run: Run) -> list[Block]:
    """Return how the groups are served by each kind of model."""
    reports = {what: run.by_group(model) for model, what in (("global", ""), ("personal", " (personal models)"))}
    return [
        block
        for what, report in reports.items()
        if report is not None
        for grouping in report.grouped.groupings
        for block in group_blocks(report, grouping, report.clients, what)
    ]


def details_of(run: Run) -> Page:
    """Return a run as `fairbloom show` prints it: its summary, metrics, absences and settings."""
    page, blocks, said = _of_run(run), list[Block](), list[str]()
    if metrics := run.last_metrics():
        rows = [
            [Cell(row["phase"]), Cell(row["metric"]), Cell(f"{float(row['value']):.6g}", float(row["value"]))]
            for row in metrics
        ]
        blocks.append(Table("metrics", f"Metrics of round {metrics[0]['round']}", ["phase", "metric", "value"], rows))
    for what, names in run.absences().items():
        if names:
            counts = ", ".join(f"{name} in {count} round{'s' if count > 1 else ''}" for name, count in names)
            said.append(f"{what}: {counts}")
    if run.engine is not None:
        said.append(f"computed by {describe_engine(run.engine)}")
    if differing := run.differing():
        listed = ", ".join(f"{key} = {value!r}" for key, value in differing.items())
        said.append(f"settings other than the defaults: {listed}")
    return Page(page.title, "", (), page.facts, [*page.sections, _section(*blocks, Note(said))])


def describe_engine(engine: Mapping[str, Any]) -> str:
    """Return in words how the clients of a run are computed, as its engine.json has it."""
    processes = f" in {engine['workers']} processes" if engine.get("workers", 1) > 1 else ""
    return f"the engine {engine.get('engine')}{processes}: {engine.get('reason')}"


# Comparisons --------------------------------------------------------------------------------------------------------


@page_of.register(Comparison)
def _of_comparison(comparison: Comparison, spread: str = INTERVAL) -> Page:
    """Return the table of methods, the clients that the baseline neglects, the verdict, and what limits the numbers."""
    tables = [method_table(comparison, spread), client_table(comparison), *gap_tables(comparison, spread)]
    files = [path for end in ("png", "svg") if (path := comparison.folder / f"clients.{end}").exists()]
    facts = [("tables and runs", str(comparison.folder))]
    facts += [("figure", ", ".join(map(str, files)))] if files else []
    notes = Note([*left_out(comparison), *comparison.caveats])
    verdict = comparison.verdict
    sections = [_section(*tables), _section(notes)]
    facts += _report_place(comparison.folder)
    return Page("", verdict.headline, verdict.sentences, facts, sections, partial(sorted_charts, comparison))


def method_table(comparison: Comparison, spread: str = INTERVAL) -> Table:
    """Return the table with a row per method: measures over clients, and the differences to the baseline."""
    if spread not in SPREADS:
        raise FairbloomError(f"spread = {spread!r}: it must be one of {', '.join(SPREADS)}")
    seeds, titles, std = len(comparison.seeds), titles_over(comparison.client_count), spread == STD
    spreads = {method: [comparison.spread(method, key) for key in SHOWN] for method in comparison.methods}
    digits = Digits.of(comparison.score, (mean for each in spreads.values() for mean, _ in each))
    headings, gains, note = (_deviations if std else _differences)(comparison, digits, titles["worst_10"])
    rows = [
        [
            Cell(method),
            *(digits.spread(mean, deviation if std else None) for mean, deviation in each),
            *gains.get(method, [NONE] * len(headings)),
        ]
        for method, each in spreads.items()
    ]
    rows += failed_rows(comparison, len(SHOWN) + len(headings))
    caption = f"Final model over clients: test {comparison.score.title}"
    over = f"mean {'±standard deviation ' if std else ''}over {seeds} seed{'s' if seeds > 1 else ''}"
    return Table("methods", caption, ["method", *titles.values(), *headings], rows, over + note)


Gains = tuple[list[str], dict[str, list[Cell]], str]
"""The headings of columns, what methods other than the baseline have there, and what is said of them."""


def _differences(comparison: Comparison, digits: Digits, worst: str) -> Gains:
    """Return the differences to the baseline with their intervals."""
    base, many = comparison.baseline, len(comparison.seeds) >= FEWEST_SEEDS
    of_mean, of_worst = comparison.differences(MEAN), comparison.differences(WORST)
    gains = {
        method: [
            mark_clear(digits.difference(of_mean[method]), of_mean[method]),
            mark_clear(digits.difference(found), found),
            Cell(f"{found.better}, {found.worse}", found.better),
        ]
        for method, found in of_worst.items()
    }
    note = f"; gain: by how much better than {base}, seed by seed" + (INTERVALS if many else "")
    if many:
        note += (
            f"\n{CLEAR} marks what is significant: p < 0.05 by the paired t test with Holm's correction over the mean "
        )
        note += f"and the {worst} of all methods"
    note += f"\nbetter, worse: number of seeds with which the {worst} is better, and worse, than under {base}"
    return ["gain, mean", f"gain, {worst}", "better, worse"], gains, note


def _deviations(comparison: Comparison, digits: Digits, worst: str) -> Gains:
    """Return the gain of the worst tenth and the share of clients that gain, as mean ± deviation over the seeds."""
    base, gains = comparison.baseline, {}
    for method in comparison.methods:
        if method != base:
            better, deviation = comparison.percent_better(method)
            gain = digits.spread(*comparison.gain(method, "worst_10"), sign="+")
            gains[method] = [gain, Cell(f"{better:.0f} ±{deviation:.0f}", better)]
    note = f"\ngain: by how much the {worst} is better than under {base}; "
    note += f"% better: share of the clients with a better score than under {base}; both are taken seed by seed"
    return ["gain", "% better"], gains, note


def titles_over(clients: int) -> dict[str, str]:
    """Return what tables call the measures that they show, over so many clients."""
    return {measure: measure_title(measure, clients) for measure in SHOWN}


def client_table(comparison: Comparison) -> Table:
    """Return the clients that the baseline serves worst and best, in rows, or in columns where methods are more."""
    ascending = worst_first(by_name(comparison, comparison.baseline), comparison.score)
    hidden = max(0, len(ascending) - NEGLECTED - SERVED)
    shown = [*ascending[:NEGLECTED], *ascending[-SERVED:]] if hidden else ascending
    table = names_table(comparison, shown)
    note = f"{hidden} clients between these are in {CLIENTS.name}" if hidden else ""
    note = "\n".join(filter(None, (note, table.note)))
    if len(comparison.methods) > len(shown):
        headings, *rows = zip([Cell(heading) for heading in table.headings], *table.rows, strict=True)
        turned = [Cell("method"), *headings[1:]]
        return Table(table.name, table.caption, [cell.text for cell in turned], rows, note)
    cells = [*table.rows]
    if hidden:
        cells.insert(NEGLECTED, [Cell(f"… {hidden} more"), *[Cell("")] * (len(table.headings) - 1)])
    return Table(table.name, table.caption, table.headings, cells, note)


def gap_tables(comparison: Comparison, spread: str = INTERVAL) -> list[Table]:
    """Return the table of the gaps between groups over all clients, and that of their differences to the baseline.

    There is none without groups, and no differences without another method or where deviations are asked for.
    """
    if not comparison.by_group:
        return []
    gaps = gaps_table(comparison.by_group)
    found = {gap: comparison.differences(gap) for gap in comparison.gaps_compared}
    methods = [method for method in comparison.methods if method != comparison.baseline]
    if not gaps.rows:
        return []
    if spread == STD or not found or not methods:
        return [gaps]
    digits = {
        gap: Digits.of(score, (each.mean for each in found[gap].values()))
        for gap, score in comparison.gaps_compared.items()
    }
    grouping = next(iter(next(iter(comparison.by_group.values()))[0].grouped.groupings))
    rows = [[Cell(method), *(digits[gap].difference(found[gap][method]) for gap in found)] for method in methods]
    caption = f"Gaps by {grouping}: how much narrower than under {comparison.baseline}"
    note = "positive is better, taken with each seed that has both gaps; not tested"
    note += INTERVALS if len(comparison.seeds) >= FEWEST_SEEDS else ""
    return [gaps, Table("narrower", caption, ["method", *(measure_title(gap, 0) for gap in found)], rows, note)]


# Studies ------------------------------------------------------------------------------------------------------------


@page_of.register(Reproduction)
def _of_reproduction(done: Reproduction) -> Page:
    """Return what was printed and measured, row by row, and in words what is known of the differences."""
    recipe = done.recipe
    about = Note([line for line in (recipe.what, recipe.source) if line])
    notes = notes_section(done)
    written = done.whole and (done.folder / "results.csv").exists()
    facts = [("table, figure and runs" if written else "runs", str(done.folder)), *_report_place(done.folder)]
    sections = [_section(about, rows_table(done)), *([notes] if notes else [])]
    return Page(recipe.title, verdict(done), (), facts, sections, partial(rows_charts, done))


@page_of.register(Sweep)
def _of_sweep(swept: Sweep) -> Page:
    """Return the points, what was chosen and how sure that is, and the test numbers of the chosen point."""
    headline, *sentences = swept.sentences()
    blocks: list[Block] = []
    if swept.test is not None:
        blocks.append(method_table(swept.test, STD))
        verdict = swept.test.verdict
        found = [verdict.headline, *verdict.sentences] if swept.baseline is not None else []
        blocks.append(Note([" ".join(found), *swept.test.caveats, "Test examples had no part in the choice."]))
    facts = [("tables, figure and runs", str(swept.folder)), *_report_place(swept.folder)]
    sections = [_section(points_table(swept)), _section(*blocks)]
    return Page(swept.plan.title, headline, sentences, facts, sections, partial(points_charts, swept))


@page_of.register(Recommendation)
def _of_recommendation(found: Recommendation) -> Page:
    """Return the answer, how far the candidates came, and the commands that run it."""
    digits = Digits.of(found.judged, (each.value for each in found.tried))
    rows = [
        [*map(Cell.of, (each.method, each.rounds, each.seeds)), *map(digits.cell, (each.value, each.misses or None))]
        for each in found.tried
    ]
    headings = ("method", "rounds", "seeds", found.gain.measure, "misses by")
    caption = f"{found.judged.title} on validation examples, by which candidates were chosen"
    note = "Numbers after different rounds, or with different seeds, are not comparable."
    tried = Table("tried", caption, headings, rows, note) if rows else None
    headline, *sentences = found.sentences
    facts = [("run it", found.command), ("deploy it", found.deploy), ("all of it", str(found.folder / RECOMMENDATION))]
    return Page("", headline, sentences, facts, [_section(), _section(tried)])


@page_of.register(Evaluation)
def _of_evaluation(found: Evaluation) -> Page:
    """Return the scores of the site, before and after, above those of the run's clients."""
    shown = [score for score in found.scores if score.name in found.before or score.name in found.others]
    rows = [
        [Cell(name), Cell("" if count is None else str(count), count), *_written(shown, values)]
        for name, count, values in found.rows()
    ]
    caption = f"{found.run} at {found.client}, {found.train_examples} examples to train on"
    table = Table("evaluation", caption, ["", "test examples", *(score.name for score in shown)], rows)
    said = [*found.sentences()]
    if found.kept is not None:
        personal = ", its personal model by --model personal" if found.after else ""
        said.append(f"kept: {found.kept}, which fairbloom predict reads{personal}")
    return Page("", "", (), (), [_section(table, Note(said))])


def _written(scores: Sequence[Any], values: Mapping[str, float]) -> list[Cell]:
    return [Cell(s.written(values[s.name]), values[s.name]) if s.name in values else Cell("-") for s in scores]
