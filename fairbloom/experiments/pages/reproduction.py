"""The page of a reproduction: measured numbers next to the printed ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from fairbloom.protocol.scores import Score
from fairbloom.text import plural, text_if

from ..recipe import CLAIM
from ..render.page import Cell, Chart, Charts, Page, Section, Table, Tone, slug
from ..results.differences import Difference
from ..results.measures import find_measure
from ..results.presentation import page_of
from ..results.reproduction import Reproduction, measures_by_round
from ..results.tables import is_shown
from . import charts
from .cells import NONE, Digits, about_worst
from .chart_rows import CURVE_ROUNDS, curve
from .sections import files_of, in_seconds, notes_section, present

# The tone of a measured number by whether it agrees with the printed one; None: not judged.
TONES: Mapping[bool | None, Tone] = {None: "", True: "better", False: "worse"}


@page_of.register
def page_of_reproduction(done: Reproduction) -> Page:
    """Return the page of a reproduction."""
    recipe = done.recipe
    folder = done.folder
    facts = [
        ("recipe", recipe.name),
        ("rows", str(len(done.outcomes))),
        ("seeds", str(len(done.study.seeds))),
        ("time of the rounds", in_seconds(sum(outcome.seconds for outcome in done.outcomes))),
        *((key, str(value)) for key, value in done.study.overrides.items() if key != "data-dir"),
    ]
    written = done.whole and (folder / "results.csv").exists()
    files = files_of(folder, "table, figure and runs" if written else "runs")
    said = [line for line in (recipe.what, recipe.source) if line]
    intro = text_if(
        done.printed and done.comparable,
        "A row agrees where it is within two combined standard errors of what was printed, or one"
        " point where no ± is printed.",
    )
    shown = "Printed and measured" if done.printed else "What was measured"
    claims = [f"{claim}: {_holds(claim, found)}." for claim, found in done.claims.items()]
    faults = [f"{outcome.name}: {outcome.fault}" for outcome in done.outcomes if outcome.fault]
    notes = [
        f"{recipe.name_of(outcome.row)}: {outcome.row.note}"
        for outcome in done.outcomes
        if outcome.row.note
    ]
    sections = present(
        [
            Section("rows", shown, intro, [_rows_table(done)]),
            notes_section("claims", "What the source claims", claims),
            notes_section(
                "notes",
                "What is known of the differences",
                list(dict.fromkeys([*faults, *notes, *recipe.notes])),
            ),
        ]
    )
    verdict = _agreement(done)
    if unfinished := {folder for outcome in done.outcomes for folder in outcome.unfinished}:
        finished = sum(not outcome.unfinished for outcome in done.outcomes)
        verdict = (
            f"Rows finished: {finished} of {len(done.outcomes)}; runs missing: {len(unfinished)}."
            f" The same command runs them. {verdict}"
        ).strip()
    page = Page(recipe.title, verdict, said, facts, sections, files=files)
    if not _drawn(done):
        return page
    return replace(page, details=lambda: [_figure_section(done)], figure=partial(_charts, done))


def _holds(claim: str, found: Difference | None) -> str:
    """Return whether a claim holds, with the difference that it claims; None: runs are missing."""
    if found is None:
        return "runs are missing"
    verb = "holds" if found.mean > 0.0 else "does not hold here"
    number = Digits(find_measure(CLAIM.findall(claim)[0][2]).decimals).difference(found).text
    return f"{verb}, by {number} with {plural(found.seeds, 'one seed', f'{found.seeds} seeds')}"


def _agreement(done: Reproduction) -> str:
    """Return how many of the finished rows agree, or why none can; "" where nothing was printed."""
    if not done.printed:
        return text_if(done.study.quick, "These runs are cut short by --quick.")
    if not done.comparable:
        cut = (
            "cut short by --quick"
            if done.study.quick
            else "made with other settings than the recipe's"
        )
        return f"These runs are {cut}: the numbers cannot be compared with the printed ones."
    judged = [agrees for outcome in done.outcomes if (agrees := done.agrees(outcome)) is not None]
    if not judged:
        return ""
    within = "two combined standard errors, or one point where no ± is printed" + "".join(
        f", or {value:g} in {find_measure(m).title()}" for m, value in done.recipe.tolerance.items()
    )
    verb = plural(len(judged), "agrees", "agree")
    return f"{sum(judged)} of {len(judged)} rows {verb} with what was printed: within {within}."


def _rows_table(done: Reproduction) -> Table:
    """Return the rows: for each measure what was printed and what was measured."""
    recipe = done.recipe
    printed = [
        measure for measure in recipe.measures if any(measure in o.published for o in done.outcomes)
    ]
    headings = ["row"]
    for measure in recipe.measures:
        title = find_measure(measure).title()
        headings += [f"{title}, printed", f"{title}, measured"] if measure in printed else [title]
    cells = []
    for outcome in done.outcomes:
        row = [Cell(outcome.name)]
        for measure in recipe.measures:
            digits = Digits(find_measure(measure).decimals)
            if measure in printed:
                number = outcome.published.get(measure)
                row.append(digits.cell(number.mean, number.spread) if number else NONE)
            if measure not in outcome.measured:
                row.append(Cell("failed") if outcome.fault else NONE)
                continue
            mean, spread = outcome.measured[measure]
            agrees = done.agreements(outcome).get(measure)
            text = digits.cell(mean, spread if len(outcome.runs) > 1 else None).text
            row.append(Cell(f"≠ {text}" if agrees is False else text, mean, TONES[agrees]))
        if done.printed:
            judged = {True: "yes", False: "no", None: "–"}[done.agrees(outcome)]
            row.append(Cell("unfinished" if outcome.unfinished else judged))
        count = len(outcome.runs)
        runs = f"{count}{text_if(outcome.unfinished, f' of {len(done.study.seeds)}')}"
        cells.append([*row, Cell(runs, count)])
    titles = " ".join(find_measure(measure).title() for measure in recipe.measures)
    note = (
        f"Mean ±standard deviation over the seeds.{about_worst(titles, len(done.study.seeds))}"
    ) + text_if(
        printed,
        f" What was printed is over {recipe.published_seeds or 'an unknown number of'} seeds.",
    )
    headings += ["agrees", "seeds"] if done.printed else ["seeds"]
    return Table("rows", "Each row", headings, cells, note)


# The figure ---------------------------------------------------------------------------------------


def _drawn(done: Reproduction) -> list[str]:
    """Return the measures that the figure shows: those with a number, and a place on its axis."""
    found = []
    for measure in done.recipe.measures:
        means = [each.measured[measure][0] for each in done.outcomes if measure in each.measured]
        has_place = done.recipe.x == "row" or find_measure(measure).by_round
        if has_place and any(map(is_shown, means)):
            found.append(measure)
    return found


def _figure_section(done: Reproduction) -> Section:
    """Return the figure with a sentence on its lines."""
    drawn = _charts(done)
    if done.recipe.x == "row":
        intro = "Lines across the ends of bars are ± the standard deviation over the seeds."
        return Section("figure", "Side by side", intro, [drawn])
    intro = "The measures after each evaluated round. Lines are means over the seeds" + text_if(
        len(drawn.legend) <= charts.MOST_BANDS,
        ", bands span them from the lowest to the highest",
    )
    return Section("figure", "Over the rounds", f"{intro}.", [drawn])


def _charts(done: Reproduction) -> Charts:
    return _rounds_charts(done) if done.recipe.x == "round" else _bar_charts(done)


def _rounds_charts(done: Reproduction) -> Charts:
    """Return the measures over the rounds, with a line for each row that was measured."""
    rows = _curves(done, _drawn(done))
    rows_of = {outcome.name: outcome.row for outcome in done.outcomes if outcome.measured}
    names = [*rows_of]
    personal = [name for name, row in rows_of.items() if row.evaluated == "personal"]
    series = charts.series_of(names, names[0], personal)
    score = _score_of(done)
    panels = []
    for measure, of_measure in rows.items():
        found = find_measure(measure)
        said = f"{found.title()} of {len(names)} rows over the rounds. The table has the last one."
        spec = charts.over_rounds(of_measure, series, found.axis(score))
        panels.append(Chart(f"rounds-{slug(measure)}", found.title().capitalize(), said, spec))
        if measure in done.recipe.logarithmic:
            positive = [row for row in of_measure if row["low"] > 0.0]
            spec = charts.over_rounds(positive, series, found.axis(score), logarithmic=True)
            title = f"{found.title()}, logarithmic".capitalize()
            panels.append(Chart(f"rounds-{slug(measure)}-log", title, said, spec))
    return Charts(panels, series)


def _curves(done: Reproduction, measures: Sequence[str]) -> dict[str, list[charts.Row]]:
    """Return the lines of each measure over the rounds that all runs of a row have evaluated."""
    rows: dict[str, list[charts.Row]] = {measure: [] for measure in measures}
    for outcome in done.outcomes:
        if not outcome.measured:
            continue
        runs = [*outcome.runs.values()]
        shared = set.intersection(*(set(run.clients["round"]) for run in runs))
        numbers = charts.thin(sorted(shared), CURVE_ROUNDS)
        by_run = [measures_by_round(run, measures, outcome.row.evaluated, numbers) for run in runs]
        for measure, lines in rows.items():
            values = [
                {number: found[measure] for number, found in of_run.items()} for of_run in by_run
            ]
            lines += curve(outcome.name, values)
    return rows


def _bar_charts(done: Reproduction) -> Charts:
    """Return what was printed beside what was measured, a chart a measure."""
    series = charts.PRINTED_AND_MEASURED if done.printed else charts.PRINTED_AND_MEASURED[1:]
    names = [outcome.name for outcome in done.outcomes]
    score = _score_of(done)
    panels = []
    for measure in _drawn(done):
        rows = list[charts.Row]()
        for outcome in done.outcomes:
            printed = outcome.published.get(measure)
            if printed is not None:
                rows.append(_bar(outcome.name, "printed", printed.mean, printed.spread or 0.0))
            if measure in outcome.measured:
                rows.append(_bar(outcome.name, "measured", *outcome.measured[measure]))
        found = find_measure(measure)
        said = f"{found.title()} of {len(names)} rows. The table has the numbers."
        spec = charts.bars(rows, series, names, found.axis(score))
        panels.append(Chart(f"bars-{slug(measure)}", found.title().capitalize(), said, spec))
    return Charts(panels, series)


def _score_of(done: Reproduction) -> Score:
    """Return the score that the runs of the first finished row are judged by."""
    return next(run.score for outcome in done.outcomes for run in outcome.runs.values())


def _bar(name: str, kind: str, mean: float, spread: float) -> charts.Row:
    ends = {"low": charts.short(mean - spread), "high": charts.short(mean + spread)}
    return {"name": name, "method": kind, "value": charts.short(mean), **ends}
