"""The page of a search: the arms that were tried, and the comparison of the chosen ones."""

from dataclasses import replace

from fairbloom.protocol.settings import SETTINGS
from fairbloom.text import plural, text_if

from ..render.page import Cell, Page, Section, Table
from ..results.presentation import page_of
from ..results.search import ArmScore, Search
from .cells import NONE, Digits, about_worst
from .comparison import page_of_comparison
from .sections import files_of


@page_of.register
def page_of_search(search: Search) -> Page:
    """Return the page of a search; while runs are missing, as far as it is."""
    headline, *sentences = search.sentences
    facts = [
        ("variants tried", str(len(search.judged))),
        ("criterion", _title(search)),
        ("seeds", f"{len(search.found.judged)} to choose by, {len(search.found.fresh)} fresh ones"),
    ]
    arms = Section("arms", "What was tried", "", [arms_table(search)])
    page = Page(
        f"Search on {search.study.settings.get('task', SETTINGS['task'].default)}",
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


def arms_table(search: Search) -> Table:
    """Return the arms, the best first: their values on validation examples, and their gains."""
    digits = Digits.of(search.score, (judged.mean for judged in search.judged if judged.values))
    title = _title(search)

    def order(judged: ArmScore) -> tuple[bool, float]:
        value = search.measure.better(0.0, judged.mean, search.score) if judged.values else 0.0
        return not judged.values, value

    cells = []
    for judged in sorted(search.judged, key=order):
        label = judged.arm.label
        is_chosen = label in search.found.best
        promised = is_chosen and label != search.baseline
        found = search.difference(label)
        numbers = [
            digits.cell(judged.mean if judged.values else None),
            digits.cell(judged.error),
            digits.spread(search.promise(label), None, sign="+") if promised else NONE,
            NONE if found is None else digits.difference(found),
        ]
        state = (
            text_if(is_chosen, "chosen") or judged.fault or text_if(not judged.values, "unfinished")
        )
        cells.append([Cell(label), *numbers, Cell(state, tone="worse" if judged.fault else "")])
    seeds = len(search.found.judged)
    note = (
        f"Mean over {seeds} seed{plural(seeds, '', 's')} on validation examples."
        f"{about_worst(title, seeds)}"
    ) + text_if(
        search.baseline,
        f" Gain: by how much better than {search.baseline}; promised: on validation examples;"
        f" tested: on test examples, fresh seeds: {len(search.found.fresh)}.",
    )
    return Table(
        "arms",
        f"Arms by the {title} of {search.score.title}",
        ["arm", f"{title}, validation", "standard error", "gain promised", "gain tested", "state"],
        cells,
        note,
        folded=len(cells) > 12,
    )


def _title(search: Search) -> str:
    return search.measure.title(search.comparison.client_count if search.comparison else 0)
