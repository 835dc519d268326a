"""The page of a search: each method's best arm, as promised and tested, and all arms."""

from functools import partial

from fairbloom.protocol.settings import SETTINGS
from fairbloom.text import plural, text_if

from ..render.page import Block, Cell, Chart, Charts, Page, Section, Table
from ..render.theme import Series
from ..results.presentation import page_of
from ..results.search import ArmScore, Search
from . import charts
from .cells import NONE, Digits, about_worst
from .comparison import brief_sections, detailed_sections, lines_of
from .sections import files_of, present

# The names of the two gains of an arm in the chart.
PROMISED = "promised by validation"
TESTED = "on test examples"


@page_of.register
def page_of_search(search: Search) -> Page:
    """Return the page of a search; while runs are missing, as far as it is."""
    headline, *sentences = search.sentences
    facts = [
        ("variants tried", str(len(search.judged))),
        ("criterion", _title(search)),
        ("seeds", f"{len(search.found.judged)} to choose by, {len(search.found.fresh)} fresh ones"),
    ]
    compared = search.comparison
    blocks: list[Block] = [] if compared is None else [chosen_charts(search)]
    blocks += [chosen_table(search)] if search.best else [arms_table(search)]
    chosen = Section("chosen", "The best of each method", "", blocks)
    figure = None if compared is None else partial(chosen_charts, search)
    task = search.study.settings.get("task", SETTINGS["task"].default)

    # all arms, and the comparison on test examples, which had no part in the choice
    def details() -> list[Section]:
        arms = [Section("arms", "What was tried", "", [arms_table(search)])] if search.best else []
        if compared is None:
            return arms
        return present(
            [*arms, *brief_sections(compared), *detailed_sections(compared, lines_of(compared))]
        )

    return Page(
        f"Search on {task}",
        headline,
        sentences,
        facts,
        [chosen],
        details,
        files_of(search.folder, "tables and runs"),
        figure,
    )


def chosen_table(search: Search) -> Table:
    """Return each method's best arm, the best first, with its gain over the baseline."""
    digits = _digits(search)
    title = _title(search)
    cells = []
    for label in search.found.best:
        found = search.difference(label)
        base = label == search.baseline
        promised = NONE if base else digits.spread(search.promise(label), None, sign="+")
        gained = NONE if found is None else digits.difference(found)
        cells.append([Cell(label), digits.cell(search.of(label).mean), promised, gained])
    note = (
        f"gain: by how much better than {search.baseline}; promised: on validation examples, seeds:"
        f" {len(search.found.judged)}; tested: on test examples, fresh seeds:"
        f" {len(search.found.fresh)}.{about_worst(title, len(search.found.judged))}"
    )
    return Table(
        "chosen",
        f"Chosen by the {title} of {search.score.title}",
        ["best of each method", f"{title}, validation", "gain promised", "gain tested"],
        cells,
        note,
    )


def chosen_charts(search: Search) -> Charts:
    """Return a chart of the gains of each chosen arm: as promised, and as tested."""
    rows: list[charts.Row] = []
    tested = {
        label: found
        for label in search.found.best
        if (found := search.difference(label)) is not None
    }
    for label, found in tested.items():
        promised = search.promise(label)
        low, high = (found.mean, found.mean) if found.low != found.low else (found.low, found.high)
        rows += [
            {
                "row": label,
                "method": PROMISED,
                "value": promised,
                "low": promised,
                "high": promised,
            },
            {"row": label, "method": TESTED, "value": found.mean, "low": low, "high": high},
        ]
    series = [Series(PROMISED, "series-0", "square"), Series(TESTED, "series-1")]
    what = f"gain in the {_title(search)} over {search.baseline}"
    spec = charts.clients_by_method(rows, series, [*tested], what, of="row", zero=True)
    said = (
        f"The {what} of {len(tested)} arms, as validation promised it and as test examples show it."
    )
    return Charts([Chart("gains", "Promised and tested", said, spec)], series)


def arms_table(search: Search) -> Table:
    """Return the value of each arm on validation examples, the best first."""
    digits = _digits(search)
    title = _title(search)
    measure = search.measure
    score = search.score

    def order(each: ArmScore) -> tuple[bool, float]:
        return not each.values, measure.better(0.0, each.mean, score) if each.values else 0.0

    cells = []
    for each in sorted(search.judged, key=order):
        state = (
            "chosen"
            if each.arm.label in search.found.best
            else each.fault or text_if(not each.values, "unfinished")
        )
        numbers = [digits.cell(each.mean), digits.cell(each.error)] if each.values else [NONE, NONE]
        cells.append(
            [Cell(each.arm.label), *numbers, Cell(state, tone="worse" if each.fault else "")]
        )
    seeds = len(search.found.judged)
    note = (
        f"Mean over {seeds} seed{plural(seeds, '', 's')} on validation examples."
        f"{about_worst(title, seeds)}"
    )
    caption = f"Arms by the {title} of {search.score.title}"
    return Table("arms", caption, ["arm", title, "standard error", "state"], cells, note)


def _digits(search: Search) -> Digits:
    return Digits.of(search.score, (each.mean for each in search.judged if each.values))


def _title(search: Search) -> str:
    return search.measure.title(search.comparison.client_count if search.comparison else 0)
