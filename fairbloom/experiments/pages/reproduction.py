"""The page of a reproduction: measured numbers next to the printed ones."""

from collections.abc import Mapping

from fairbloom.text import plural, text_if

from ..recipe import CLAIM
from ..render.page import Cell, Page, Section, Table, Tone
from ..results.differences import Difference
from ..results.measures import find_measure
from ..results.presentation import page_of
from ..results.reproduction import Reproduction
from .cells import NONE, Digits, about_worst
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
    files = files_of(folder, "tables and runs" if written else "runs")
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
    return Page(recipe.title, verdict, said, facts, sections, files=files)


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
