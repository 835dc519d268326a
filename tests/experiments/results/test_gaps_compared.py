"""Gaps between groups in comparisons: rows, tables and sentences agree with the formulas."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest

from fairbloom.experiments.pages.comparison import brief_sections, gap_tables
from fairbloom.experiments.render.page import Note
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.group_scores import Group, GroupReport
from fairbloom.protocol.scores import GroupScore
from fairbloom.server.run_folder.group_rows import Grouped

from ..helpers import compared_by_hand

T = 4.302652729911275
"""The 97.5th percentile of Student's t with two degrees of freedom."""

RATE = GroupScore("selection-rate", percent=True)
ERROR = GroupScore("mae", higher_is_better=False)


def report(gap: float, score: GroupScore = RATE) -> GroupReport:
    """Return what one client reports of two groups that are so far apart; with NaN it reports but
    one of them."""
    groups = [Group("a", "sex", "F", 10, {score.name: 10}, {score.name: 40.0})]
    if math.isfinite(gap):
        groups.append(Group("a", "sex", "M", 10, {score.name: 10}, {score.name: 40.0 + gap}))
    return GroupReport(Grouped({"sex": ("F", "M")}, (score,)), tuple(groups), {"a": 20})


def compared(score: GroupScore = RATE, **gaps: Sequence[float]) -> Comparison:
    """Return a comparison in which methods differ in nothing but the gaps between groups, one a
    seed."""
    scores = {method: [{"a": 70.0, "b": 80.0}] * len(each) for method, each in gaps.items()}
    by_group = {method: [report(gap, score) for gap in each] for method, each in gaps.items()}
    return dataclasses.replace(compared_by_hand(**scores), by_group=by_group)


BY_HAND = compared(FedAvg=[30.0, 32.0, 34.0], FairFed=[10.0, 13.0, 12.0], FedFV=[31.0, 30.0, 36.0])
NARROWER = {"FairFed": np.array([20.0, 19.0, 22.0]), "FedFV": np.array([-1.0, 2.0, -2.0])}


@pytest.mark.parametrize(("method", "each"), NARROWER.items())
def test_a_narrower_gap_is_better_with_the_interval_of_others(method: str, each: object) -> None:
    rows = {(row["method"], row["measure"]): row for row in BY_HAND.difference_rows()}
    mean = each.mean()
    error = each.std(ddof=1) / math.sqrt(3.0)
    row = rows[method, "group-gap:selection-rate"]
    assert (row["better"], row["worse"], row["seeds"]) == (
        (each > 0).sum(),
        (each < 0).sum(),
        3,
    )
    expected = (mean, error, mean - T * error, mean + T * error)
    assert [row[key] for key in ("mean", "error", "low", "high")] == pytest.approx(expected)
    assert row["p_value"] is None  # the one family of tests is of the worst served and the mean
    assert rows["FairFed", "group-gap:selection-rate:a"]["mean"] == pytest.approx(
        NARROWER["FairFed"].mean()
    )
    assert ("FairFed", "group-gap:selection-rate:b") not in rows  # who reports no groups


def test_of_dealt_clients_only_gaps_over_all_have_rows() -> None:
    dealt = dataclasses.replace(
        BY_HAND, shared=dataclasses.replace(BY_HAND.shared, clients_differ=True)
    )
    measures = {row["measure"] for row in dealt.difference_rows()}
    assert {measure for measure in measures if measure.startswith("group-gap:")} == {
        "group-gap:selection-rate"
    }


def test_the_terminal_has_gaps_with_intervals() -> None:
    sizes, differences = gap_tables(BY_HAND)
    assert [row[0].text for row in sizes.rows] == ["FedAvg", "FairFed", "FedFV"]
    assert differences.headings == ["method", "selection rate gap"]
    assert differences.caption == "How much narrower the gaps by sex are than under FedAvg"
    fair, other = ([cell.text for cell in row] for row in differences.rows)
    assert fair == ["FairFed", "+20.3 (16.5 to 24.1)"]
    assert other == ["FedFV", "-0.3 (-5.5 to 4.8)"]
    assert "not tested" in differences.note


def test_gaps_in_an_error_are_in_its_unit() -> None:
    comparison = compared(ERROR, FedAvg=[0.30, 0.32, 0.34], FairFed=[0.10, 0.13, 0.12])
    (cells,) = gap_tables(comparison)[1].rows
    assert "+0.203 (0.165 to 0.241)" in cells[1].text


def test_a_gap_counts_with_the_seeds_that_have_it() -> None:
    some = compared(FedAvg=[30.0, math.nan, 34.0], FairFed=[10.0, 13.0, 12.0])
    assert some.difference("FairFed", "group-gap:selection-rate").seeds == 2
    none = compared(FedAvg=[30.0, math.nan], FairFed=[math.nan, 13.0])
    assert none.gaps_compared == {}
    assert [each.caption for each in gap_tables(none)] == [gap_tables(BY_HAND)[0].caption]
    assert not any(row["measure"].startswith("group-gap:") for row in none.difference_rows())


def test_a_grouping_without_a_gap_is_named() -> None:
    """Of two groups, one is too small to be reported: the table of gaps has no row for it."""
    small = compared(FedAvg=[math.nan], FairFed=[math.nan])
    sentence = "No gap by sex: over all clients, fewer than two groups have enough test examples"
    assert any(sentence in text for text in texts_of(small))
    assert not any("No gap" in text for text in texts_of(BY_HAND))


def texts_of(comparison: Comparison) -> list[str]:
    """Return the sentences below the tables of a comparison in the terminal."""
    blocks = [block for section in brief_sections(comparison) for block in section.blocks]
    return [text for block in blocks if isinstance(block, Note) for text in block.sentences]


def test_without_groups_or_methods_no_gaps_are_compared() -> None:
    alone = compared(FedAvg=[30.0, 32.0])
    assert len(gap_tables(alone)) == 1
    assert alone.difference_rows() == []
    without = dataclasses.replace(BY_HAND, by_group={})
    assert gap_tables(without) == []
    assert without.verdict == BY_HAND.verdict
    rows = [row for row in BY_HAND.difference_rows() if not row["measure"].startswith("group-gap:")]
    assert without.difference_rows() == rows
