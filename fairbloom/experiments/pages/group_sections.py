"""Groups of examples: their scores over all clients and inside each, and their gaps."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fairbloom.protocol.scores import GroupScore, words_of_group
from fairbloom.text import join_first, text_if

from ..render.page import Block, Cell, Note, Section, Table
from ..results.caveats import join_ends
from ..results.differences import mean_and_deviation
from ..results.group_scores import ALL, ALL_CLIENTS, Group, GroupReport
from .cells import Digits
from .chart_rows import Scene

# Marks a score over all clients that some of them leave out.
LEFT_OUT = " †"

# The mark's meaning.
PARTIAL = (
    "† without clients whose positive, or other, examples of a group are none, or too few to be"
    " reported"
)

# What clients report of groups under each method's final models, a report a seed.
Reports = Mapping[str, Sequence[GroupReport]]


def subgroups_section(scene: Scene, reports: Reports, *more: Table) -> Section | None:
    """Return each group's scores over all clients and inside each client."""
    reports = {line.label: reports[line.label] for line in scene.lines if reports.get(line.label)}
    if not reports:
        return None
    first = next(iter(reports.values()))[0]
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
    every = [report for by_seed in reports.values() for report in by_seed]
    # The mark of a score is explained with the clients, unless all are among them.
    names = set[str]()
    for report in every:
        for grouping in report.grouped.groupings:
            for group in report.of(ALL, grouping):
                names.update(*group.without.values())
    some = any(names < {*report.clients} for report in every)
    note += text_if(names, f" {PARTIAL}{text_if(some, f' ({join_first(sorted(names))})')}.")
    blocks: list[Block] = [
        Table(
            "groups",
            "Groups over all clients",
            ["method", "grouping", "group", "examples", *scores],
            [[row[0], *row[2:]] for row in cells],
            note,
            folded=len(cells) > 12,
            keys=3,
        ),
        *more,
    ]
    inside = [
        row
        for label, by_seed in reports.items()
        for row in _group_rows(label, by_seed, scene.shown, first)
    ]
    if inside and not scene.first_only:  # else each seed has clients of its own
        blocks.append(
            Table(
                "groups-by-client",
                "Groups inside each client",
                ["method", "client", "grouping", "group", "examples", *scores],
                inside,
                folded=True,
                keys=4,
            )
        )
    of_first = next(iter(reports.values()))
    blocks.append(Note([_left_out(of_first, grouping) for grouping in first.grouped.groupings]))
    intro = "Scores of groups of the clients' test examples under the final models."
    if any(len(by_seed) > 1 for by_seed in reports.values()):
        intro += " Means over the seeds."
    return Section("groups", "Subgroups", intro, blocks)


def _by_name(
    by_seed: Sequence[GroupReport], client: str | None, grouping: str
) -> dict[str | None, list[Group]]:
    """Return the groups of one grouping by their names, with each seed that has it."""
    found: dict[str | None, list[Group]] = {}
    for report in by_seed:
        for group in report.of(client, grouping):
            found.setdefault(group.group, []).append(group)
    return found


def _left_out(by_seed: Sequence[GroupReport], grouping: str) -> str:
    """Return how many test examples are in groups that are too small to be reported."""
    counts = sorted(report.left_out(grouping) for report in by_seed)
    tested = sorted(sum(report.tested.values()) for report in by_seed)
    if not counts[-1]:
        return f"By {grouping}, all test examples are in groups that are reported."
    return (
        f"By {grouping}, {join_ends(counts)} of {join_ends(tested)} test examples are left out, in"
        " groups that are too small to be reported."
    )


def gaps_table(reports: Reports, baseline: str) -> Table:
    """Return the gaps over all clients under the baseline, and the smallest under any method.

    A method is compared that has a gap with the same seeds as the baseline.
    """
    rows = []
    columns = 5
    if len(reports) > 1:  # of one method, the smallest gap is its own
        columns += 2
    of_baseline = reports[baseline][0]
    for grouping, score in itertools.product(of_baseline.grouped.groupings, of_baseline.scores):
        gaps = {
            method: [report.gap(ALL, grouping, score) for report in by_seed]
            for method, by_seed in reports.items()
        }
        with_seeds = [gap is not None for gap in gaps[baseline]]
        if not any(with_seeds):
            continue
        sizes = {}
        for method, of_method in gaps.items():
            if [gap is not None for gap in of_method] == with_seeds:
                sizes[method] = mean_and_deviation([gap.size for gap in of_method if gap])
        smallest = min(sizes, key=lambda method: sizes[method])
        digits = Digits.of(score, sizes[baseline])
        rows.append(
            [
                Cell(grouping),
                Cell(score.title),
                digits.cell(sizes[baseline][0], sizes[baseline][1] or None),
                *_ends(reports[baseline], grouping, score),
                digits.cell(sizes[smallest][0]),
                Cell(smallest),
            ][:columns]
        )
    return Table(
        "gaps",
        "Gaps between groups over all clients",
        [
            "grouping",
            "score",
            f"gap under {baseline}",
            "lowest",
            "highest",
            "smallest gap",
            "method",
        ][:columns],
        rows,
        "The highest of the groups less the lowest, with the examples of each; mean ± standard"
        " deviation over the seeds that have it. Not tested; gaps.csv and groups.csv have all.",
        keys=2,
    )


def _ends(by_seed: Sequence[GroupReport], grouping: str, score: GroupScore) -> list[Cell]:
    """Return the lowest and the highest group, with their mean numbers of examples."""
    values = dict[str | None, float]()
    sizes = dict[str | None, float]()
    for name, groups in _by_name(by_seed, ALL, grouping).items():
        scored = [group for group in groups if score.name in group.values]
        if scored:
            values[name] = statistics.fmean(group.values[score.name] for group in scored)
            sizes[name] = statistics.fmean(group.overs[score.name] for group in scored)
    ends = (min(values, key=lambda name: values[name]), max(values, key=lambda name: values[name]))
    return [Cell(f"{words_of_group(name)} ({sizes[name]:.0f} examples)") for name in ends]


def without_gaps(reports: Reports) -> str:
    """Return in a sentence which groupings have no gap over all clients with any method, or ""."""
    every = [report for by_seed in reports.values() for report in by_seed]
    found = {gap.grouping for report in every for gap in report.gaps([ALL])}
    # All reports declare the same groupings.
    declared = every[0].grouped.groupings if every else ()
    lacking = [grouping for grouping in declared if grouping not in found]
    return text_if(
        lacking,
        f"No gap by {join_first(lacking)}: over all clients, fewer than two groups have enough test"
        " examples to be reported.",
    )


def _group_rows(
    label: str, by_seed: Sequence[GroupReport], clients: Iterable[str | None], first: GroupReport
) -> list[list[Cell]]:
    rows = []
    for client, grouping in itertools.product(clients, first.grouped.groupings):
        for name, groups in _by_name(by_seed, client, grouping).items():
            row = [
                Cell(label),
                Cell(ALL_CLIENTS if client is ALL else client),
                Cell(grouping),
                Cell(words_of_group(name)),
                Digits(0).cell(statistics.fmean(group.count for group in groups)),
            ]
            for score in first.scores:
                values = [
                    group.values[score.name] for group in groups if score.name in group.values
                ]
                cell = Digits.of(score, values).cell(statistics.fmean(values) if values else None)
                if any(score.name in group.without for group in groups):
                    cell = replace(cell, text=f"{cell.text}{LEFT_OUT}")
                row.append(cell)
            rows.append(row)
    return rows
