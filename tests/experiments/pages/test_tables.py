"""Tables have all of their numbers at any width, and follow the score's direction."""

import dataclasses
import io
import re
import sys
from itertools import product

import pytest
from rich.cells import cell_len

from fairbloom.cli.lists import describe_method
from fairbloom.experiments.pages.cells import Digits
from fairbloom.experiments.pages.comparison import client_table, method_table
from fairbloom.experiments.render import terminal
from fairbloom.experiments.render.page import Cell, Table
from fairbloom.experiments.render.terminal import Output, show_table, tables_within
from fairbloom.experiments.results.caveats import SharedData
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.server.settings import default_config
from fairbloom.strategies import METHODS

from ..helpers import captured, compared_at_random, compared_by_hand

MAE = Score("mae", higher_is_better=False)
# Of the console; None: a pipe, whose reader has no width.
WIDTHS = (40, 60, 80, 200, None)

LONG = "FedFV (alpha={}, tau=3, order=random, proximal-mu=0.1)"

NOISE = (0.01, -0.02, 0.015, -0.01, 0.005)


def at_width(width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if width:
        monkeypatch.setenv("COLUMNS", str(width))


def printed(table: Table, monkeypatch: pytest.MonkeyPatch) -> str:
    file = io.StringIO()
    monkeypatch.setattr(terminal, "console", Output(file=file, highlight=False))
    show_table(table)
    return file.getvalue()


@pytest.mark.parametrize(("count", "score"), [(2, ACCURACY), (10, MAE)])
def test_tables_are_printed_whole_at_any_width(
    monkeypatch: pytest.MonkeyPatch, count: int, score: Score
) -> None:
    comparison = compared_at_random(count, score, LONG)
    for table in (
        method_table(comparison),
        dataclasses.replace(client_table(comparison), folded=False),
    ):
        for width in WIDTHS:
            at_width(width, monkeypatch)
            text = printed(table, monkeypatch)
            assert max(map(cell_len, text.splitlines())) <= (width or 100_000)
            # A name may be folded anywhere, so it is looked for without spaces and lines.
            together = re.sub(r"[\s─]", "", text)
            for cells in table.rows:
                assert all(word in text for cell in cells[1:] for word in cell.text.split())
                assert width not in (200, None) or re.sub(r"\s", "", cells[0].text) in together


def test_a_folded_table_is_printed_by_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[Cell(f"row-{k}"), Cell.of(k)] for k in range(20)]
    text = printed(Table("", "", ("row", "number"), rows, folded=True), monkeypatch)
    assert [k for k in range(20) if f"row-{k} " in text] == [*range(6), 17, 18, 19]
    assert "… 11 more rows" in text


def test_names_of_rows_are_folded_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = printed(
        Table("", "", ("method", "mean"), [(Cell("x" * 100), Cell("1.0", 1.0))]), monkeypatch
    )
    assert text.count("x") == 100


def test_a_wide_table_is_cut_into_parts_with_names() -> None:
    cells = [Cell("FedAvg"), *([Cell("12.3 ±4.5", 12.3)] * 8)]
    table = Table("", "", ("method", *(f"column {k}" for k in range(8))), [cells])
    assert len(tables_within(table, 200)) == 1
    parts = tables_within(table, 40)
    assert all(str(next(iter(part.columns[0].cells))) == "FedAvg" for part in parts)
    assert [len(part.columns) - 1 for part in parts] == [3, 3, 2]


@pytest.mark.parametrize("width", [40, 80])
def test_each_part_of_a_wide_table_has_all_keys(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """At 40 and 80 columns no part leaves a reader to guess the group, and no line is wider."""
    keys = (Cell("FedAvg (weighting=uniform)"), Cell("Genève"), Cell("sex"), Cell("female"))
    headings = ("method", "client", "grouping", "group", *(f"score {k}" for k in range(9)))
    table = Table("", "", headings, [[*keys, *([Cell("12.3 ±4.5", 12.3)] * 9)]], keys=4)
    at_width(width, monkeypatch)
    parts = tables_within(table, width)
    assert len(parts) > 1
    for part in parts:
        assert [str(next(iter(column.cells))) for column in part.columns[:4]] == [
            each.text for each in keys
        ]
    assert max(map(cell_len, printed(table, monkeypatch).splitlines())) <= width


def test_hidden_clients_are_counted_as_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 58 clients a page has 30, of which a terminal shows nine."""
    text = printed(
        client_table(compared_by_hand(FedAvg=[{f"client-{k:02}": float(k) for k in range(58)}])),
        monkeypatch,
    )
    assert "… 49 more clients" in text
    assert "rows" not in text


@pytest.mark.parametrize(
    ("scale", "expected"), [(0.004, "0.00300"), (0.4, "0.300"), (40.0, "30.0"), (4000.0, "3000")]
)
def test_numbers_have_the_decimals_that_three_digits_take(scale: float, expected: str) -> None:
    assert method_table(compared_at_random(2)).rows[0][1].text.count(".") == 1
    comparison = compared_by_hand(
        Score("rmse", higher_is_better=False), FedAvg=[{"a": 0.5 * scale, "b": scale}]
    )
    assert method_table(comparison).rows[0][1].text == expected


def in_five_seeds(score: Score) -> Comparison:
    """Return a comparison in which a gains for sure, b loses for sure, and c now gains and now
    loses."""
    fair = [{"a": 2.0 + each, "b": 1.0 + each, "c": 3.0 + 10.0 * each} for each in NOISE]
    return compared_by_hand(score, FedAvg=[{"a": 1.0, "b": 2.0, "c": 3.0}] * 5, FedFV=fair)


@pytest.mark.parametrize(("score", "tone"), [(Score("auc"), "better"), (MAE, "worse")])
def test_significant_gains_are_green_and_losses_red(score: Score, tone: str) -> None:
    """The mean and the worst served have a mark, and rows of clients have none."""
    more = [{"a": 2.0 + each, "b": 3.0 + each} for each in NOISE]
    comparison = compared_by_hand(score, FedAvg=[{"a": 1.0, "b": 2.0}] * 5, FedFV=more)
    marked = method_table(comparison).rows[1][5:7]
    assert [cell.tone for cell in marked] == [tone, tone]
    assert all(cell.text.startswith("* ") for cell in marked)
    assert not any(
        cell.tone or "*" in cell.text for row in client_table(comparison).rows for cell in row
    )


def test_a_single_seed_has_no_colours_and_no_intervals() -> None:
    comparison = compared_by_hand(FedAvg=[{"a": 1.0, "b": 2.0}], FedFV=[{"a": 9.0, "b": 8.0}])
    assert not {
        cell.tone for cell in [*method_table(comparison).rows[1], *client_table(comparison).rows[1]]
    } & {"better", "worse"}
    assert method_table(comparison).rows[1][5].text == "+7.0"
    assert "interval" not in method_table(comparison).note


def test_clients_that_seeds_deal_are_those_of_the_first() -> None:
    table = client_table(
        dataclasses.replace(in_five_seeds(Score("auc")), shared=SharedData(clients_differ=True))
    )
    assert [row[0].text for row in table.rows] == ["a", "b", "c"]  # the worst served comes first
    assert [row[0].text for row in client_table(in_five_seeds(MAE)).rows] == ["c", "b", "a"]
    assert "lower is better" in method_table(in_five_seeds(MAE)).caption
    assert "the first seed" in table.caption
    assert [row[2].text for row in table.rows] == ["2.01", "1.01", "3.10"]


def test_the_table_of_methods_has_differences_with_intervals() -> None:
    comparison = in_five_seeds(Score("auc"))
    table = method_table(comparison)
    base, fair = ([cell.text for cell in row] for row in table.rows)
    assert table.headings[1:] == [
        "mean",
        "std",
        "worst client",
        "best client",
        "gain, mean",
        "gain, worst client",
    ]
    assert base == ["FedAvg", "2.00", "0.82", "1.00", "3.00", "–", "–"]
    found = comparison.difference("FedFV", "mean")
    assert fair[5] == f"+0.00 ({found.low:.2f} to {found.high:.2f})"


@pytest.mark.parametrize("width", [60, 100])
def test_a_comparison_of_three_methods_is_brief(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    """What is printed is wrapped, begins with what was found, and has at most 500 words."""
    comparison = compared_at_random(3, name=LONG)
    monkeypatch.setenv("COLUMNS", str(width))
    comparison.show()
    said = capsys.readouterr().out
    assert max(map(cell_len, said.split("tables and runs")[0].splitlines())) <= width
    words = " ".join(said.split())
    assert words.index(comparison.verdict.headline) < words.index("Final models over clients")
    assert len(words.split()) <= 500


@pytest.mark.parametrize(
    ("command", "width"), [*product(("settings", "methods", "tasks"), (40, None))]
)
def test_lists_are_printed_whole_at_any_width(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    width: int | None,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    at_width(width, monkeypatch)
    text = captured(capsys, command).out
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= (width or 100_000)
    together = re.sub(r"\s", "", text)
    if command == "settings":
        for key, value in default_config().items():
            assert re.search(
                rf"^ *{re.escape(key)}(?: =)?\s+{re.escape(repr(value))}",
                text,
                re.MULTILINE,
            ), key
    if command == "methods":
        for each in (each for name in METHODS for each in describe_method(name)["parameters"]):
            about = (
                f"{each['key']} ({each['range']}, default {each['default'] or repr('')})"
                f" {each['description']}"
            )
            assert re.sub(r"\s", "", about) in together
    if command == "tasks":
        assert "digits.rotated-clients(intatleast0,default0)Numberofclientswithimages" in together


def test_a_terminal_has_the_width_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert Output(file=io.StringIO()).width > 10_000
    assert Output(file=sys.stdout, force_terminal=True).width < 10_000


def test_tiny_numbers_are_powers_of_ten() -> None:
    assert [
        (largest, value, text)
        for largest, value, text in (
            (1.79e-60, 1.79e-60, "1.79e-60"),
            (1.79e-60, -1.79e-60, "-1.79e-60"),
            (1.79e-60, 0.0, "0.000000000"),
            (3e-7, 3e-7, "0.000000300"),
            (0.5, 1.79e-60, "0.000"),
        )
        if Digits.of(MAE, [largest]).number(value) != text
    ] == []
    assert Digits.of(MAE, [2e-60]).cell(2e-60, 1e-61).text == "2e-60 ±1e-61"
