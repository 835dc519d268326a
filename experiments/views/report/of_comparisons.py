"""The report of several comparisons, each of another task: how the methods rank over all of them."""

from collections.abc import Mapping, Sequence

from ...results.comparison import Comparison
from ...results.ranks import Ranks, ranks_of
from . import charts
from .cells import Digits
from .charts import Series
from .page import Block, Cell, Chart, Charts, Page, Section, Table, slug

RANKED = ("worst_10", "mean")
"""The measures by which methods are ranked."""


def page_of_comparisons(comparisons: Mapping[str, Comparison]) -> Page:
    """Return the report of comparisons, by the names of their tasks."""
    ranked = {measure: ranks_of(comparisons, measure) for measure in RANKED}
    worst = ranked[RANKED[0]]
    sections = []
    bases = {each.baseline for each in comparisons.values()}
    series = charts.series_of(list(worst.average), bases.pop() if len(bases) == 1 else "")
    for measure, ranks in ranked.items():
        title = _title(ranks)
        intro = (
            "A bar joins methods whose mean ranks differ by less than the critical difference (Nemenyi's test, level "
        )
        intro += f"0.05): these do not differ significantly. {' '.join(_sentences(ranks)[0])}"
        blocks: list[Block] = [rank_charts(ranks, series), rank_table(ranks)]
        sections.append(Section(f"ranks-{slug(measure)}", f"Ranks by the {title}", intro, blocks))
    sections.append(_verdicts_section(comparisons))
    (headline, *others), left_out = _sentences(worst)
    facts = [("tasks", str(len(comparisons))), ("methods", str(len(worst.average)))]
    return Page(
        f"{len(worst.average)} methods over {len(comparisons)} tasks", headline, [*others, *left_out], facts, sections
    )


def rank_charts(ranks: Ranks, series: Sequence[Series] = ()) -> Charts:
    """Return the critical-difference diagram of ranks."""
    named = [each for each in series or charts.series_of(list(ranks.average)) if each.label in ranks.average]
    said = ", ".join(f"{method} {rank:.2f}" for method, rank in ranks.average.items())
    what = f"Mean ranks by the {_title(ranks)} over {len(ranks.by_task)} tasks: {said}."
    spec = charts.critical_difference(ranks.average, ranks.groups, named, ranks.critical_difference)
    return Charts([Chart(f"ranks-{slug(ranks.measure)}", f"Mean ranks by the {_title(ranks)}", what, spec)], named)


def rank_table(ranks: Ranks) -> Table:
    """Return the rank of each method by task, the best first."""
    cells = [
        [Cell(method), Digits(2).cell(rank), *(Cell(f"{by[method]:g}", by[method]) for by in ranks.by_task.values())]
        for method, rank in ranks.average.items()
    ]
    note = "Methods that are equally good share the mean of their ranks. Mean ranks that differ by "
    note += f"{ranks.critical_difference:.2f} or more are significant (Nemenyi, level 0.05)."
    caption = f"Ranks over {len(ranks.by_task)} tasks by the {_title(ranks)}; 1 is the best"
    return Table(f"ranks-{slug(ranks.measure)}", caption, ["method", "mean rank", *ranks.by_task], cells, note)


def _title(ranks: Ranks) -> str:
    return "mean over clients" if ranks.measure == "mean" else ranks.title


def _sentences(ranks: Ranks) -> tuple[list[str], list[str]]:
    """Return what ranks show, and which methods are left out."""
    said = ranks.sentences
    return (said[1:], said[:1]) if ranks.left_out else (said, [])


def _verdicts_section(comparisons: Mapping[str, Comparison]) -> Section:
    cells = [
        [*map(Cell.of, (task, each.verdict.headline, each.client_count, len(each.seeds)))]
        for task, each in comparisons.items()
    ]
    table = Table("verdicts", "The verdict of each comparison", ["task", "verdict", "clients", "seeds"], cells)
    return Section("verdicts", "Task by task", "The report of each comparison has the rest.", [table])
