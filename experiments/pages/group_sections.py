"""Groups of examples: their scores over all clients and inside each, and their gaps."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fairbloom.protocol.scores import GroupScore
from fairbloom.text import join_first, text_if

from ..render.page import Block, Cell, Chart, Charts, Note, Section, Table, slug
from ..results.differences import mean_and_deviation
from ..results.group_scores import ALL, Group, GroupReport
from . import charts
from .cells import Digits
from .chart_rows import Scene, mean_and_range

# Marks a score over all clients that some of them leave out.
LEFT_OUT = " †"

# Scores of groups that a note names, of those that leave clients out.
MAX_SHOWN = 6

PARTIAL = (
    "† without clients whose positive, or other, examples of a group are none, or too few to be"
    " reported:"
)

# What clients report of groups under each method's final models, a report a seed.
Reports = Mapping[str, Sequence[GroupReport]]


def subgroups_section(scene: Scene, reports: Reports, *more: Table) -> Section | None:
    """Return each group's scores over all clients and inside each client."""
    reports = {line.label: reports[line.label] for line in scene.lines if reports.get(line.label)}
    if not reports:
        return None
    first = next(iter(reports.values()))[0]
    blocks: list[Block] = [
        _group_charts(scene, reports, grouping, first.scores, f"groups-{place}")
        for place, grouping in enumerate(first.grouped.groupings, 1)
    ]
    scores = [score.title for score in first.scores]
    cells = [
        row
        for label, by_seed in reports.items()
        for row in _group_rows(label, by_seed, [ALL], first)
    ]
    note = (
        "Over the examples of all clients that report the group; means over the seeds with which"
        " some client does."
    )
    partial = {
        f"{grouping}, {sentence}"
        for by_seed in reports.values()
        for report in by_seed
        for grouping in report.grouped.groupings
        for sentence in report.partial_scores(grouping)
    }
    if partial:
        shown = sorted(partial)[:MAX_SHOWN]
        others = text_if(len(partial) > MAX_SHOWN, f"; and {len(partial) - MAX_SHOWN} more")
        note += f" {PARTIAL} {'; '.join(shown)}{others}."
    headings = ["method", "grouping", "group", "examples", *scores]
    rows = [[row[0], *row[2:]] for row in cells]
    blocks.append(
        Table(
            "groups", "Groups over all clients", headings, rows, note, folded=len(rows) > 12, keys=3
        )
    )
    blocks += more
    inside = [
        row
        for label, by_seed in reports.items()
        for row in _group_rows(label, by_seed, scene.shown, first)
    ]
    if inside and not scene.first_only:  # else each seed has clients of its own
        headings = ["method", "client", "grouping", "group", "examples", *scores]
        blocks.append(
            Table(
                "groups-by-client",
                "Groups inside each client",
                headings,
                inside,
                folded=True,
                keys=4,
            )
        )
    left_out = {
        f"By {grouping}, {report.left_out(grouping)}."
        for grouping in first.grouped.groupings
        for report in next(iter(reports.values()))
    }
    blocks.append(Note(sorted(left_out)))
    intro = "Scores of groups of the clients' test examples under the final models."
    if any(len(each) > 1 for each in reports.values()):
        intro += " Means over the seeds; lines span them from the lowest to the highest."
    return Section("groups", "Subgroups", intro, blocks)


def _group_charts(
    scene: Scene, reports: Reports, grouping: str, scores: Sequence[GroupScore], name: str
) -> Charts:
    """Return a chart, named `name` + score, of each score by group and method."""
    drawn = []
    for score in scores:
        rows: list[charts.Row] = [
            {"client": name, "method": label, **mean_and_range(values)}
            for label, by_seed in reports.items()
            for name, groups in _by_name(by_seed, ALL, grouping).items()
            if (
                values := [
                    group.values[score.name] for group in groups if score.name in group.values
                ]
            )
        ]
        if not rows:
            continue
        series = [each for each in scene.series if each.label in reports]
        spec = charts.clients_by_method(
            rows, series, list(dict.fromkeys(row["client"] for row in rows)), score.title
        )
        said = "; ".join(
            f"{row['client']} under {row['method']} {score.written(row['value'])}" for row in rows
        )
        title = f"{score.words[0].upper()}{score.words[1:]} by {grouping}, over all clients"
        drawn.append(Chart(f"{name}-{slug(score.name)}", title, f"{title}: {said}.", spec))
    return Charts(drawn, scene.series)


def _by_name(by_seed: Sequence[GroupReport], client: str, grouping: str) -> dict[str, list[Group]]:
    """Return the groups of one grouping by their names, with each seed that has it."""
    found: dict[str, list[Group]] = {}
    for report in by_seed:
        for group in report.of(client, grouping):
            found.setdefault(group.group, []).append(group)
    return found


def gaps_table(reports: Reports) -> Table:
    """Return the gaps between groups over all clients."""
    rows = []
    is_partial = False
    first = next(iter(reports.values()))[0]
    for label, by_seed in reports.items():
        for grouping in first.grouped.groupings:
            for score in first.scores:
                gaps = [
                    each
                    for report in by_seed
                    if (each := report.gap(ALL, grouping, score)) is not None
                ]
                if not gaps:
                    continue
                size, deviation = mean_and_deviation([gap.size for gap in gaps])
                lowest = ", ".join(dict.fromkeys(gap.lowest for gap in gaps))
                gap = Digits.of(score, [size]).spread(size, deviation if len(gaps) > 1 else None)
                if any(each.without for each in gaps):
                    gap = replace(gap, text=f"{gap.text}{LEFT_OUT}")
                    is_partial = True
                rows.append(
                    [
                        Cell(label),
                        Cell(grouping),
                        Cell(score.title),
                        gap,
                        Cell.of(len(gaps)),
                        Cell(lowest),
                    ]
                )
    headings = ["method", "grouping", "score", "gap", "seeds", "lowest group"]
    note = (
        "The highest of the groups less the lowest; mean ± standard deviation over the seeds that"
        " have it."
    )
    if is_partial:
        note += f" {PARTIAL} the table of groups names them."
    return Table("gaps", "Gaps between groups over all clients", headings, rows, note, keys=3)


def without_gaps(reports: Reports) -> list[str]:
    """Return a sentence on the groupings that have no gap over all clients with any method."""
    every = [report for by_seed in reports.values() for report in by_seed]
    found = {gap.grouping for report in every for gap in report.gaps(ALL)}
    # All reports declare the same groupings.
    declared = every[0].grouped.groupings if every else ()
    lacking = [grouping for grouping in declared if grouping not in found]
    if not lacking:
        return []
    return [
        f"No gap by {join_first(lacking)}: over all clients, fewer than two groups have enough test"
        " examples to be reported."
    ]


def _group_rows(
    label: str, by_seed: Sequence[GroupReport], clients: Iterable[str], first: GroupReport
) -> list[list[Cell]]:
    rows = []
    for client in clients:
        for grouping in first.grouped.groupings:
            for name, groups in _by_name(by_seed, client, grouping).items():
                count = statistics.fmean(group.count for group in groups)
                row = [Cell(label), Cell(client), Cell(grouping), Cell(name), Digits(0).cell(count)]
                for score in first.scores:
                    values = [
                        group.values[score.name] for group in groups if score.name in group.values
                    ]
                    cell = Digits.of(score, values).cell(
                        statistics.fmean(values) if values else None
                    )
                    if any(score.name in group.without for group in groups):
                        cell = replace(cell, text=f"{cell.text}{LEFT_OUT}")
                    row.append(cell)
                rows.append(row)
    return rows
