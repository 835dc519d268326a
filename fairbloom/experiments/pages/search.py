"""The page of a search: the arms that were tried, and the comparison of the chosen ones."""

import statistics
from dataclasses import replace
from pathlib import Path

from fairbloom.protocol.settings import SETTINGS
from fairbloom.text import plural, text_if

from ..render.page import Cell, Page, Section, Table
from ..results.presentation import page_of
from ..results.search import ArmScore, Search
from ..study import Study
from .cells import Digits, about_worst
from .comparison import page_of_comparison
from .sections import files_of


@page_of.register
def page_of_search(search: Search) -> Page:
    """Return the page of a search; while runs are missing, as far as it is."""
    headline, *sentences = search.sentences
    facts = [
        ("variants tried", str(len(search.judged))),
        ("criterion", search.title),
        (
            "seeds",
            f"{len(search.study.seeds)} to choose by, {len(search.study.found.fresh)} fresh ones",
        ),
    ]
    arms = Section("arms", "What was tried", "", [arms_table(search)])
    page = Page(
        f"Search {_where(search.study)}",
        headline,
        sentences,
        facts,
        [arms],
        files=files_of(search.folder, "tables and runs"),
    )
    if search.comparison is None:
        return page
    # the comparison on test examples, which had no part in the choice
    compared = page_of_comparison(search.comparison)
    return replace(
        page,
        sections=[arms, *compared.sections],
        details=compared.details,
        figure=compared.figure,
        about=compared.about,
    )


def _where(study: Study) -> str:
    """Return the end of a search's title: its task, or its app."""
    if study.app is not None:
        return f"in {Path(study.app.folder).name}"
    return f"on {study.settings.get('task', SETTINGS['task'].default)}"


def arms_table(search: Search) -> Table:
    """Return the arms, the best first: their values on validation examples."""
    digits = Digits.of(search.score, (judged.mean for judged in search.judged if judged.values))

    def order(judged: ArmScore) -> tuple[bool, float]:
        value = search.measure.better(0.0, judged.mean, search.score) if judged.values else 0.0
        return not judged.values, value

    near = {judged.arm.label for judged in search.near}
    headings = ["arm", f"{search.title}, validation", "standard error", "state"]
    if search.bound:
        headings.insert(1, "mean, validation")
    cells = []
    for judged in sorted(search.judged, key=order):
        label = judged.arm.label
        state = (
            text_if(label in search.study.found.best, "chosen")
            or judged.fault
            or text_if(not judged.values, "unfinished")
            or text_if(label not in near, "mean too far from the best")
        )
        row = [
            Cell(label),
            digits.cell(judged.mean if judged.values else None),
            digits.cell(judged.error),
            Cell(state, tone="worse" if judged.fault else ""),
        ]
        if search.bound:
            row.insert(1, digits.cell(statistics.fmean(judged.means) if judged.means else None))
        cells.append(row)
    seeds = len(search.study.seeds)
    note = (
        f"Mean over {seeds} seed{plural(seeds, '', 's')} on validation examples."
        f"{about_worst(search.title, seeds)}"
    )
    return Table(
        "arms",
        f"Arms by the {search.title} of {search.score.title}",
        headings,
        cells,
        note,
        folded=len(cells) > 12,
    )
