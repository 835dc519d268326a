"""Rows that clients have in common are counted in a remark."""

import time
from pathlib import Path

import numpy as np
import pytest

from fairbloom.protocol.settings import RunSettings
from fairbloom.tables.duplicates import hash_rows
from fairbloom.tasks import check_data, describe_data

from .helpers import SCHEMA, Folder, config, csv_of


def remarks(folder: Path, every: bool = False, **settings: str) -> list[tuple[str, str]]:
    """Return the clients and the first words of each remark on whole rows."""
    return [
        (str(row["client"]), str(row["remark"]).partition(" in every column")[0])
        for row in describe_data(RunSettings.of(config(folder, **settings)), every=every)["remarks"]
        if row["column"] == ""
    ]


def lines(rows: int, seed: int) -> list[str]:
    return csv_of(rows, seed).splitlines()[1:]


def table(*rows: list[str]) -> str:
    return "\n".join(["age,dose,ward,target", *(row for part in rows for row in part)])


@pytest.mark.parametrize("every", [False, True])
def test_rows_at_two_clients_are_counted(folder: Folder, every: bool) -> None:
    first = lines(300, 0)
    there = folder(a=table(first), b=table(lines(200, 1), first[:100]), c=table(lines(200, 2)))
    assert remarks(there, every) == [("a, b", "100 rows are the same at each")]
    # of these, c has some
    there = folder(c=table(lines(200, 2), first[:30]))
    assert remarks(there, every)[0] == ("a, b", "100 rows are the same at each")
    doubled = lines(200, 2)
    there = folder(c=table(doubled, doubled[:50]))
    assert remarks(there, every) == [("a, b", "100 rows are the same at each")]


def test_one_file_under_two_names_is_seen(folder: Folder) -> None:
    assert remarks(folder(a=csv_of(80), b=csv_of(80), c=csv_of(80, 1), d=csv_of(80))) == [
        ("a, b, d", "80 rows are the same at each")
    ]


def test_clients_of_one_file_are_compared(folder: Folder) -> None:
    rows = [f"{row},{site}" for site in ("x", "y") for row in lines(40, 0)]
    rows += [f"{row},z" for row in lines(40, 1)]
    assert remarks(folder(a="\n".join(["age,dose,ward,target,site", *rows])), client="site") == [
        ("x, y", "40 rows are the same at each")
    ]


def test_copies_in_another_notation_are_seen(folder: Folder) -> None:
    rows = lines(60, 0)
    assert remarks(
        folder(a=table(rows), b="age;dose;ward;target\n" + "\n".join(swap(row) for row in rows))
    ) == [("a, b", "60 rows are the same at each")]


def swap(row: str) -> str:
    """Return a row with semicolons, decimal commas, and upper case."""
    return row.replace(",", ";").replace(".", ",").upper()


def test_rows_equal_by_chance_are_no_remark(folder: Folder) -> None:
    random = np.random.default_rng(0)

    def answers() -> str:
        rows = random.integers(0, 2, (200, 6))
        return "\n".join(["a,b,c,d,e,target", *(",".join(map(str, row)) for row in rows)])

    assert remarks(folder(a=answers(), b=answers())) == []


@pytest.mark.parametrize(
    ("copies", "found"), [(4, []), (5, [("a, b", "5 rows are the same at each")])]
)
def test_a_few_equal_rows_are_no_remark(
    folder: Folder, copies: int, found: list[tuple[str, str]]
) -> None:
    rows = lines(40, 0)
    there = folder(a=table(rows), b=table(lines(40, 1), rows[:copies]))
    assert remarks(there) == found


@pytest.mark.parametrize("missing", ["error", "fill"])
def test_rows_with_missing_cells_are_compared(folder: Folder, missing: str) -> None:
    gaps = [f"{30 + k}.5,NA,north,{k % 2}" for k in range(30)]
    assert remarks(
        folder(a=table(gaps, lines(20, 0)), b=table(gaps, lines(20, 1))), missing=missing
    ) == [("a, b", "30 rows are the same at each")]


def test_cells_that_cannot_be_read_make_no_rows_equal(folder: Folder) -> None:
    first, second = ([f"0.5,0.25,{site}{k},1" for k in range(10)] for site in ("old", "new"))
    assert remarks(folder(a=table(first), b=table(second)), schema=SCHEMA) == []


def test_a_run_counts_the_remark_on_rows(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    check_data(RunSettings.of(config(folder(a=csv_of(60), b=csv_of(60)))))
    assert "1 remark on the data" in caplog.text


def test_rows_are_hashed_as_whole_columns() -> None:
    random = np.random.default_rng(0)
    columns = [random.normal(size=200_000) for _ in range(10)]
    columns[0][:3] = (0.0, -0.0, np.nan)
    columns[1][:3] = 1.0
    for column in columns[2:]:
        column[:3] = np.nan
    started = time.perf_counter()
    hashes = hash_rows(columns)
    assert time.perf_counter() - started < 2.0
    assert hashes[0] == hashes[1] != hashes[2]
    assert len(np.unique(hashes)) == 200_000 - 1
