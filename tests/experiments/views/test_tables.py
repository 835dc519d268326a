"""Tables that have all of their numbers at any width, and that follow the score's direction."""

import dataclasses
import io
import re
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from rich.cells import cell_len

from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.presentation import page_of, show_page
from fairbloom.experiments.results.shared_data import SharedData
from fairbloom.experiments.views import terminal
from fairbloom.experiments.views.catalogue import default_of, describe
from fairbloom.experiments.views.report.page import Cell, Table
from fairbloom.experiments.views.summary import client_table, method_table
from fairbloom.experiments.views.terminal import Output, show_table, tables_within
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.server.settings import default_config
from fairbloom.strategies import METHODS

from ..helpers import compared_by_hand, fairbloom

MAE = Score("mae", higher_is_better=False)
WIDTHS = (40, 60, 80, 200, None)
"""Of the console; None: a pipe, whose reader has no width."""


@pytest.fixture(params=WIDTHS, ids=lambda width: f"{width} columns" if width else "piped")
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    chosen: int | None = request.param
    monkeypatch.delenv("COLUMNS", raising=False)
    if chosen:
        monkeypatch.setenv("COLUMNS", str(chosen))
    return chosen


def made_up(count: int, score: Score = ACCURACY, clients: int = 20, seeds: int = 3) -> Comparison:
    """Return a comparison of so many methods, most of them with long names."""
    rng = np.random.default_rng(count)
    methods = ["FedAvg", *(f"FedFV (alpha={k / 100}, tau={k}, order=random, proximal-mu=0.1)" for k in range(1, count))]
    scale = 100.0 if score.percent else 0.01
    return compared_by_hand(
        score,
        **{
            method: [
                {f"hospital-{k}": float(v) for k, v in enumerate(rng.uniform(0, scale, clients))} for _ in range(seeds)
            ]
            for method in methods
        },
    )


def printed(table: Table, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what is printed of a table."""
    file = io.StringIO()
    monkeypatch.setattr(terminal, "console", Output(file=file, highlight=False))
    show_table(table)
    return file.getvalue()


def texts(table: Table) -> list[list[str]]:
    """Return what the cells of a table say."""
    return [[cell.text for cell in row] for row in table.rows]


def words_of(table: Table) -> Iterator[str]:
    for row in [table.headings, *texts(table)]:
        for cell in row:
            yield from cell.split()


@pytest.mark.slow
@pytest.mark.parametrize("score", [ACCURACY, MAE], ids=["accuracy", "an error"])
@pytest.mark.parametrize("count", [2, 10, 30])
def test_a_comparison_is_printed_whole_at_any_width(
    count: int, score: Score, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = made_up(count, score)
    for grid in (method_table(comparison), method_table(comparison, "std"), client_table(comparison)):
        text = printed(grid, monkeypatch)
        assert "…" not in text.replace("… 11 more", "")
        assert max(map(cell_len, text.splitlines())) <= (width or 100_000)
        for cells in texts(grid):
            for cell in cells[1:]:
                assert all(word in text for word in cell.split())
        # A name may be folded anywhere, so its words are looked for in the text without spaces and edges.
        together = re.sub(r"[\s─]", "", text)
        if width in (200, None):
            assert all(word in together for word in words_of(grid))


def test_names_of_rows_are_folded_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = printed(Table("", "", ("method", "mean"), [(Cell("x" * 100), Cell("1.0", 1.0))]), monkeypatch)
    assert text.count("x") == 100


def test_a_table_that_fits_is_one_and_a_wide_one_has_the_names_of_rows_in_each_part() -> None:
    cells = [Cell("FedAvg"), *([Cell("12.3 ±4.5", 12.3)] * 8)]
    table = Table("", "", ("method", *(f"column {k}" for k in range(8))), [cells])
    assert len(tables_within(table, 200)) == 1
    parts = tables_within(table, 40)
    assert len(parts) > 1
    assert all(str(next(iter(part.columns[0].cells))) == "FedAvg" for part in parts)
    assert sum(len(part.columns) - 1 for part in parts) == 8


def test_more_methods_than_clients_are_rows() -> None:
    assert client_table(made_up(5)).headings[0] == "client"
    assert client_table(made_up(15)).headings[0] == "method"


def test_numbers_have_the_decimals_that_three_digits_take() -> None:
    assert method_table(made_up(2)).rows[0][1].text.count(".") == 1
    for scale, expected in ((0.004, "0.00300"), (0.4, "0.300"), (40.0, "30.0"), (4000.0, "3000")):
        comparison = compared_by_hand(Score("rmse", higher_is_better=False), FedAvg=[{"a": 0.5 * scale, "b": scale}])
        assert method_table(comparison).rows[0][1].text == expected


def in_five_seeds(score: Score) -> Comparison:
    """Return a comparison in which a gains for sure, b loses for sure, and c now gains and now loses."""
    noise = (0.01, -0.02, 0.015, -0.01, 0.005)
    base = [{"a": 1.0, "b": 2.0, "c": 3.0}] * 5
    fair = [{"a": 2.0 + each, "b": 1.0 + each, "c": 3.0 + 10.0 * each} for each in noise]
    return compared_by_hand(score, FedAvg=base, FedFV=fair)


def test_significant_gains_are_green_and_losses_red() -> None:
    """The mean and the worst served have a mark, and rows of clients have none."""
    noise = (0.01, -0.02, 0.015, -0.01, 0.005)
    base, more = [{"a": 1.0, "b": 2.0}] * 5, [{"a": 2.0 + each, "b": 3.0 + each} for each in noise]
    for score, tone in ((Score("auc"), "better"), (MAE, "worse")):
        comparison = compared_by_hand(score, FedAvg=base, FedFV=more)
        marked = method_table(comparison).rows[1][5:7]
        assert [cell.tone for cell in marked] == [tone, tone]
        assert all(cell.text.startswith("* ") for cell in marked)
        assert not any(cell.tone or "*" in cell.text for row in client_table(comparison).rows for cell in row)


def test_a_single_seed_has_no_colours_and_no_intervals() -> None:
    values = {"FedAvg": [{"a": 1.0, "b": 2.0}], "FedFV": [{"a": 9.0, "b": 8.0}]}
    comparison = compared_by_hand(**values)
    cells = [*method_table(comparison).rows[1], *client_table(comparison).rows[1]]
    assert not {cell.tone for cell in cells} & {"better", "worse"}
    assert method_table(comparison).rows[1][5].text == "+7.0"
    assert "interval" not in method_table(comparison).note


def test_clients_that_a_seed_deals_are_shown_with_the_first_seed_and_without_colours() -> None:
    comparison = dataclasses.replace(in_five_seeds(Score("auc")), shared=SharedData(dealt=True))
    grid = client_table(comparison)
    assert "of the first seed, which deals the data in its own way" in grid.caption
    assert not any(cell.tone for row in grid.rows for cell in row)
    assert [row[2].text for row in grid.rows] == ["2.01", "1.01", "3.10"]


def test_the_table_of_methods_has_differences_with_intervals_and_marks_the_clear_ones() -> None:
    comparison = in_five_seeds(Score("auc"))
    headings, (base, fair) = method_table(comparison).headings, texts(method_table(comparison))
    assert tuple(headings) == (
        *("method", "mean", "std", "worst client", "best client", "gain, mean", "gain, worst client"),
        "better, worse",
    )
    assert base == ["FedAvg", "2.00", "0.82", "1.00", "3.00", "–", "–", "–"]
    found = comparison.difference("FedFV", "mean")
    assert abs(found.mean) < 0.005
    assert fair[5] == f"+0.00 ({found.low:.2f} to {found.high:.2f})"
    assert fair[7] == "3, 2"


def test_the_spread_can_be_that_of_the_seeds_as_before() -> None:
    comparison = made_up(2)
    grid = method_table(comparison, "std")
    assert list(grid.headings) == ["method", "mean", "std", "worst 10 %", "best 10 %", "gain", "% better"]
    mean, deviation = comparison.spread("FedAvg", "mean")
    assert grid.rows[0][1].text == f"{mean:.1f} ±{deviation:.1f}"
    with pytest.raises(FairbloomError, match="spread = 'sem': it must be one of interval, std"):
        method_table(comparison, "sem")


def test_the_closing_sentences_are_wrapped_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = dataclasses.replace(made_up(2), caveats=("A caveat of words. " * 20,))
    for width, longest in ((60, 60), (100, 100)):
        monkeypatch.setenv("COLUMNS", str(width))
        show_page(page_of(comparison))
        said = capsys.readouterr().out
        assert max(map(cell_len, said.split("tables and runs")[0].splitlines())) <= longest
        assert comparison.verdict.headline in " ".join(said.split())


def test_the_worst_served_client_comes_first_whatever_the_direction() -> None:
    values = [{"a": 1.0, "b": 3.0, "c": 2.0}]
    assert [row[0].text for row in client_table(compared_by_hand(Score("auc"), FedAvg=values)).rows] == ["a", "c", "b"]
    assert [row[0].text for row in client_table(compared_by_hand(MAE, FedAvg=values)).rows] == ["b", "c", "a"]


def test_tables_say_what_was_measured_and_which_way_is_better() -> None:
    assert method_table(made_up(2)).caption == "Final model over clients: test accuracy, %"
    assert method_table(made_up(2, MAE)).caption == "Final model over clients: test mae, lower is better"


@pytest.mark.parametrize("command", ["settings", "methods", "tasks"])
def test_lists_are_printed_whole_at_any_width(
    command: str, width: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert fairbloom(command) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= (width or 100_000)
    together = re.sub(r"\s", "", text)
    if command == "settings":
        for key, value in default_config().items():
            assert re.search(rf"^ *{re.escape(key)}(?: =)? +{re.escape(repr(value))}", text, re.MULTILINE), key
    if command == "methods":
        for name in METHODS:
            for parameter in describe(name).parameters:
                told = f"{parameter.key} ({parameter.range}, default {default_of(parameter)}) {parameter.description}"
                assert re.sub(r"\s", "", told) in together
    if command == "tasks":
        assert "digits.rotated-clients(intatleast0,default0)Numberofclientswithimages" in together


def test_a_terminal_has_the_width_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert Output(file=io.StringIO()).width > 10_000
    assert Output(file=sys.stdout, force_terminal=True).width < 10_000
