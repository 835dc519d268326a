"""Rows that a client has twice, or that clients have in common, are counted in a remark, unless
they are equal by nature."""

from collections.abc import Callable

import numpy as np
import pytest

from fairbloom.protocol.settings import RunSettings
from fairbloom.tables.duplicates import FEWEST, ComparedRows, find_common, find_repeated
from fairbloom.tasks import check_data, describe_data

from .helpers import SCHEMA, Folder, config, csv_of

HEADER = "age,dose,ward,target"


def remarks(folder: object, every: bool = False, **settings: str) -> list[tuple[str, str]]:
    """Return the clients and the first words of each remark on whole rows."""
    found = describe_data(RunSettings.of(config(str(folder), **settings)), every=every)["remarks"]
    return [
        (str(row["client"]), str(row["remark"]).partition(" in every column")[0])
        for row in found
        if "in every column" in str(row["remark"])
    ]


def lines(rows: int, seed: int) -> list[str]:
    return csv_of(rows, seed).splitlines()[1:]


def table(*parts: list[str], header: str = HEADER) -> str:
    return "\n".join([header, *(row for part in parts for row in part)])


def rows_of(*columns: object) -> ComparedRows:
    arrays = {str(place): np.asarray(column) for place, column in enumerate(columns)}
    return ComparedRows(arrays, np.arange(len(arrays["0"])))


# What is found ------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [False, True])
def test_rows_at_two_clients_and_doubled_ones_are_counted(folder: Folder, every: bool) -> None:
    first = lines(300, 0)
    there = folder(a=table(first), b=table(lines(200, 1), first[:100]), c=table(lines(200, 2)))
    assert remarks(there, every) == [("a, b", "100 rows are the same at each")]
    there = folder(c=table(lines(200, 2), first[:30]))
    assert remarks(there, every) == [
        ("a, b", "70 rows are the same at each"),
        ("a, b, c", "30 rows are the same at each"),
    ]
    doubled = lines(200, 2)
    there = folder(c=table(doubled, doubled[:50]))
    assert remarks(there, every) == [
        ("c", "rows repeat others of their client"),
        ("a, b", "100 rows are the same at each"),
    ]


def test_one_file_under_several_names_is_seen(folder: Folder) -> None:
    there = folder(a=csv_of(80), b=csv_of(80), c=csv_of(80, 1), d=csv_of(80))
    assert remarks(there) == [("a, b, d", "all 80 rows are the same at each")]


def test_rows_are_counted_at_each_client_that_repeats_them(folder: Folder) -> None:
    second = lines(60, 1)
    there = folder(a=table(lines(60, 0) * 2), b=table(second, second[:9]), c=csv_of(40, 2))
    (remark,) = describe_data(RunSettings.of(config(there)))["remarks"]
    assert remark["client"] == "a, b"
    assert "(60 at a, 9 at b)" in str(remark["remark"])
    assert "say unit in the schema" in str(remark["remark"])


def test_clients_of_one_file_are_compared(folder: Folder) -> None:
    rows = [f"{row},{site}" for site in ("x", "y") for row in lines(40, 0)]
    rows += [f"{row},z" for row in lines(40, 1)]
    there = folder(a=table(rows, header=f"{HEADER},site"))
    assert remarks(there, client="site") == [("x, y", "all 40 rows are the same at each")]


def test_copies_in_another_notation_and_order_are_seen(folder: Folder) -> None:
    rows = lines(60, 0)
    other = [row.replace(",", ";").replace(".", ",").upper() for row in reversed(rows)]
    there = folder(a=table(rows), b=table(other, header=HEADER.replace(",", ";")))
    assert remarks(there) == [("a, b", "all 60 rows are the same at each")]


@pytest.mark.parametrize(("copies", "count"), [(4, 0), (5, 1)])
def test_fewer_than_five_equal_rows_are_no_remark(folder: Folder, copies: int, count: int) -> None:
    rows = lines(40, 0)
    assert len(remarks(folder(a=table(rows, rows[:copies])))) == count
    there = folder(a=table(rows), b=table(lines(40, 1), rows[:copies]))
    assert len(remarks(there)) == count


@pytest.mark.parametrize("missing", ["error", "fill"])
def test_rows_with_missing_cells_are_compared(folder: Folder, missing: str) -> None:
    gaps = [f"{30 + k}.5,{k * k}.5,NA,{k % 2}" for k in range(30)]
    there = folder(a=table(gaps, lines(20, 0)), b=table(gaps, lines(20, 1)))
    assert remarks(there, missing=missing) == [("a, b", "30 rows are the same at each")]


def test_rows_that_are_not_used_are_not_compared(folder: Folder) -> None:
    unknown, others = ([f"0.5,0.25,{site}{k},1" for k in range(10)] for site in ("old", "new"))
    assert remarks(folder(a=table(unknown), b=table(others)), schema=SCHEMA) == []
    gaps = [f"{30 + k}.5,{k * k}.5,NA,{k % 2}" for k in range(30)]
    there = folder(a=table(gaps, lines(20, 0)), b=table(gaps, lines(20, 1)))
    assert remarks(there, missing="drop") == []


def test_a_client_without_usable_rows_is_compared_with_none(folder: Folder) -> None:
    there = folder(a=table([f"0.5,0.25,old{k},1" for k in range(9)]), b=csv_of(40), c=csv_of(40))
    assert remarks(there, schema=SCHEMA) == [("b, c", "all 40 rows are the same at each")]
    assert [*find_common({name: rows_of(np.zeros(0)) for name in "ab"})] == []


def test_a_run_counts_the_remark_on_rows(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    check_data(RunSettings.of(config(folder(a=csv_of(60), b=csv_of(60)))))
    assert "1 remark on the data" in caplog.text


# Units --------------------------------------------------------------------------------------------

OF_PERSONS = f'unit = "person"\n{SCHEMA}'


def visits(rows: list[str], times: int, prefix: str = "P") -> list[str]:
    """Return each row several times, as visits of one person."""
    return [f"{row},{prefix}{place}" for place, row in enumerate(rows) for _ in range(times)]


def test_visits_of_one_person_may_be_equal(folder: Folder) -> None:
    header = f"{HEADER},person"
    there = folder(a=table(visits(lines(40, 0), 3), header=header))
    assert remarks(there, schema=OF_PERSONS) == []
    twice = visits(lines(40, 0), 3) + visits(lines(40, 0)[:10], 3, "Q")
    assert remarks(folder(a=table(twice, header=header)), schema=OF_PERSONS) == [
        ("a", "rows, the first of each person, repeat others of their client")
    ]


def test_persons_in_common_count_once(folder: Folder) -> None:
    header = f"{HEADER},person"
    shared = lines(40, 0)
    there = folder(
        a=table(visits(shared, 3), header=header),
        b=table(visits([*lines(40, 1), *shared[:10]], 2, "Q"), header=header),
    )
    assert remarks(there, schema=OF_PERSONS) == [
        ("a, b", "10 rows, the first of each person, are the same at each")
    ]
    there = folder(b=table(visits([*lines(40, 1), *shared[:4]], 6, "Q"), header=header))
    assert remarks(there, schema=OF_PERSONS) == []


# What is equal by nature --------------------------------------------------------------------------

Draw = Callable[[np.random.Generator, int], list[object]]


def draw_answers(random: np.random.Generator, rows: int) -> list[object]:
    """Questions with a few answers, most of which depend on one opinion."""
    opinion = random.normal(size=(rows, 1))
    answers = np.round(0.8 * opinion + 0.6 * random.normal(size=(rows, 8))).clip(-2, 2)
    return [*answers.T]


def draw_flags(random: np.random.Generator, rows: int) -> list[object]:
    """Diagnoses that few have, with an age."""
    return [*(random.random((rows, 30)) < 0.03).astype(float).T, random.integers(20, 90, rows)]


def draw_groups(random: np.random.Generator, rows: int) -> list[object]:
    """Two codes, with the names and groups that follow from them, and a sex."""
    ages = random.integers(20, 90, rows)
    codes = random.integers(0, 40, rows)
    return [ages, ages // 10, ages // 20, codes, codes * 7, codes // 5, random.integers(0, 2, rows)]


@pytest.mark.parametrize("draw", [draw_answers, draw_flags, draw_groups])
@pytest.mark.parametrize("rows", [300, 2_000])
def test_rows_that_are_equal_by_nature_are_no_remark(draw: Draw, rows: int) -> None:
    random = np.random.default_rng(rows)
    clients = {name: rows_of(*draw(random, rows)) for name in "abcd"}
    assert max(len(each) - len(each.different) for each in clients.values()) >= FEWEST
    assert find_repeated(clients) == {}
    assert [*find_common(clients)] == []


@pytest.mark.parametrize("draw", [draw_answers, draw_flags, draw_groups])
def test_whole_tables_are_seen_also_where_rows_are_equal(draw: Draw) -> None:
    columns = draw(np.random.default_rng(0), 200)
    doubled = [np.concatenate([column, column]) for column in columns]
    once = rows_of(*columns)
    assert find_repeated({"once": once, "twice": rows_of(*doubled)}) == {
        "twice": 400 - len(once.different)
    }
    turned = rows_of(*(np.asarray(column)[::-1] for column in columns))
    assert [*find_common({"once": once, "copy": turned})] == [(["once", "copy"], 200, True)]


def test_copies_are_seen_among_rows_that_are_equal_by_nature() -> None:
    columns = [
        *draw_groups(np.random.default_rng(0), 400),
        np.random.default_rng(1).normal(size=400),
    ]
    some = np.arange(440) % 400
    assert find_repeated({"a": rows_of(*(np.asarray(each)[some] for each in columns))}) == {"a": 40}


def test_columns_that_follow_from_another_one_count_as_one() -> None:
    """Without this, one column of ages and its groups would look like three that agree."""
    random = np.random.default_rng(0)
    ages = random.integers(0, 60, 300)
    codes = random.integers(0, 40, 300)
    clients = {"a": rows_of(ages, ages // 7, ages * 2, codes, codes * 3)}
    assert len(clients["a"]) - len(clients["a"].different) > 10
    assert find_repeated(clients) == {}
