"""What may follow what has left: by snapshots, by blocks, and by the sums of a letter and a table."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from fairbloom.tables.audit import NONE, OTHER, Coded, Printed
from fairbloom.tables.counts import Counts
from fairbloom.tables.letters import ROW
from fairbloom.tables.profiles import Cells, ColumnProfile, profile
from fairbloom.tables.releases import (
    LETTER,
    TABLE,
    Release,
    Snapshot,
    choose_snapshot,
    count_other,
    find_free,
    find_parted,
    groups_of,
)
from fairbloom.tables.schema import Field, fold
from tests.tables.test_letters import Rows, hospital, renamed, site_of, with_cells

SECRET = b"s" * 32
DAY = "2025-01-31"


def snapshot(
    folder: Path, rows: Rows, *, number: int = 1, day: str = DAY, floor: int = 5
) -> Snapshot:
    site = site_of(folder, rows)
    written, read = site.digest(np.arange(len(rows)), SECRET)
    names = tuple(sorted(map(fold, site.columns)))
    return Snapshot(number, day, floor, ROW, names, written, read)


def letter_of(made: Snapshot) -> Release:
    """Return a letter with all columns of a snapshot."""
    sources = tuple((name,) for name in made.names)
    return Release(LETTER, "{}", made.names, sources, made.read)


def sent(made: Snapshot) -> Snapshot:
    return replace(made, releases=(letter_of(made),))


def changed(before: Rows, after: Rows, folder: Path) -> int:
    return snapshot(folder, after).count_changed(snapshot(folder, before))


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (lambda rows: rows[::-1], 0),
        (lambda rows: [dict(reversed(row.items())) for row in rows], 0),
        (lambda rows: [row | {"more": str(k)} for k, row in enumerate(rows)], 0),
        (lambda rows: renamed(rows, age="AGE"), 0),
        (lambda rows: renamed(rows, age="years"), 0),
        (lambda rows: renamed(rows[1:], age="years", patient="id", remark="note"), 1),
        (lambda rows: [row | {"age": f"{row['age']}0"} for row in rows], 0),
        (lambda rows: [row | {"age": f"{row['age']}0"} for row in rows[1:]], 1),
        # a year later all are older, and one is gone
        (lambda rows: [row | {"age": f"{float(row['age']) + 100}"} for row in rows[1:]], 1),
        (lambda rows: with_cells(with_cells(rows, "age", *"123456789"), "sex", "x"), 9),
        (lambda rows: rows[1:], 1),
        (lambda rows: with_cells(rows, "age", "17.0", "18.0"), 2),
        (lambda rows: with_cells(rows, "sex", "x", "x", "x"), 3),
        (lambda rows: rows + rows[:4], 4),
        (lambda rows: rows[3:] + hospital(seed=1)[:2], 3),
    ],
)
def test_changed_rows_are_counted(
    tmp_path: Path, change: Callable[[Rows], Rows], count: int
) -> None:
    rows = hospital()
    assert changed(rows, change(rows), tmp_path) == count
    assert changed(change(rows), rows, tmp_path) == count


@pytest.mark.parametrize("cell", ["<5", "1.234,5", "NA", ""])
def test_a_cell_that_changes_how_all_are_read_is_one(tmp_path: Path, cell: str) -> None:
    rows = [{"a": f"{k / 7:.4f}" if k % 9 else "", "b": str(k % 3)} for k in range(1_500)]
    other = with_cells(rows[::-1], "a", f'"{cell}"')[::-1]
    assert changed(rows, other, tmp_path) == 1
    before = sent(snapshot(tmp_path, rows))
    after = snapshot(tmp_path, other, number=2)
    every, _ = find_free([before], after, letter_of(after))
    assert every == ("b",)


def test_digests_need_the_secret_and_join_files(tmp_path: Path) -> None:
    rows = hospital()
    every = np.arange(130)
    one = site_of(tmp_path, rows).digest(every, SECRET)
    other = site_of(tmp_path, rows).digest(every, b"t" * 32)
    assert not any((first == second).any() for first, second in zip(one, other, strict=True))
    two = site_of(tmp_path, rows[:60], rows[60:]).digest(every, SECRET)
    assert all((first == second).all() for first, second in zip(one, two, strict=True))
    wider = site_of(tmp_path, rows[:60], [row | {"more": "x"} for row in rows[60:]])
    more = wider.digest(every, SECRET)[1][sorted(wider.columns, key=fold).index("more")]
    assert (more != 0).tolist() == [False] * 60 + [True] * 70


# Snapshots ----------------------------------------------------------------------------------------


def test_the_same_cells_are_one_snapshot(tmp_path: Path) -> None:
    rows = hospital()
    before = sent(snapshot(tmp_path, rows))
    anew = renamed([row | {"age": f"{row['age']}0 "} for row in rows[::-1]], age="AGE")
    now = snapshot(tmp_path, anew, number=2, day="2025-02-01")
    chosen = choose_snapshot([before], now, 4)
    assert chosen.snapshot is before
    assert chosen.held == ""
    assert chosen.units is not None
    assert (now.read[:, chosen.units] == before.read).all()


@pytest.mark.parametrize(("came", "is_new"), [(1, False), (9, False), (10, True)])
def test_a_new_snapshot_needs_twice_the_floor(tmp_path: Path, came: int, is_new: bool) -> None:
    rows = hospital()
    before = sent(snapshot(tmp_path, rows))
    now = snapshot(tmp_path, rows + hospital(came, seed=1), number=2, day="2025-02-01")
    chosen = choose_snapshot([before], now, 4)
    assert (chosen.snapshot is now) == is_new
    if not is_new:
        assert chosen.held == (
            f"Only {came} rows changed, or came or went, since what left on 2025-01-31, and a"
            " difference would show so few: something new may leave once 10 have."
        )


def test_each_earlier_snapshot_counts(tmp_path: Path) -> None:
    rows = hospital()
    book = [
        sent(snapshot(tmp_path, each, number=number))
        for number, each in enumerate((rows, rows + hospital(10, seed=1)), 1)
    ]
    now = snapshot(tmp_path, rows + hospital(3, seed=2), number=3)
    chosen = choose_snapshot(book, now, 4)
    assert chosen.snapshot is book[1]
    assert "Only 3 rows changed" in chosen.held


def test_four_snapshots_leave_in_twelve_months(tmp_path: Path) -> None:
    rows = [hospital(seed=seed) for seed in range(5)]
    days = ("2024-02-02", "2024-05-01", "2024-08-01", "2024-11-01")
    book = [
        sent(snapshot(tmp_path, each, number=number, day=day))
        for number, (each, day) in enumerate(zip(rows, days, strict=False), 1)
    ]
    now = snapshot(tmp_path, rows[4], number=5)
    chosen = choose_snapshot(book, now, 4)
    assert chosen.snapshot is book[3]
    assert "limits.snapshots = 4 in twelve months, and of 4 something has left" in chosen.held
    assert chosen.held.endswith("a new one may leave on 2025-02-01.")
    later = replace(now, day="2025-02-01")
    assert choose_snapshot(book, later, 4).snapshot is later
    assert choose_snapshot([], now, 0).held.startswith("limits.snapshots = 0")


def test_the_floor_rises_to_a_multiple_with_a_new_snapshot(tmp_path: Path) -> None:
    rows = hospital()
    book = [sent(snapshot(tmp_path, rows))]
    more = rows + hospital(40, seed=1)
    for floor, each in ((10, rows), (6, more), (4, more)):
        now = snapshot(tmp_path, each, number=2, floor=floor)
        with pytest.raises(ValueError, match=rf"limits.rows is {floor}: two floors"):
            choose_snapshot(book, now, 4)
    risen = snapshot(tmp_path, more, number=2, floor=10)
    assert choose_snapshot(book, risen, 4).snapshot is risen
    fewer = snapshot(tmp_path, rows + hospital(19, seed=1), number=2, floor=10)
    assert choose_snapshot(book, fewer, 4).held  # twice the new floor
    with pytest.raises(ValueError, match="Set it back"):
        choose_snapshot(book, replace(risen, unit="patient"), 4)


# Blocks -------------------------------------------------------------------------------------------


def free(before: Rows, after: Rows, folder: Path) -> set[str]:
    """Return the columns that may leave in a second letter."""
    first = sent(snapshot(folder, before))
    now = snapshot(folder, after, number=2)
    return {*find_free([first], now, letter_of(now))[0]}


def test_a_column_with_few_other_cells_is_absent(tmp_path: Path) -> None:
    rows = hospital()
    every = {*rows[0]}
    stages = with_cells(rows, "stage", *["9"] * 10)
    assert free(rows, stages, tmp_path) == every
    for cells in (["x"], ["x"] * 4):
        assert free(rows, with_cells(stages, "sex", *cells), tmp_path) == every - {"sex"}
    assert free(rows, with_cells(stages, "sex", *["x"] * 5), tmp_path) == every


def test_a_column_that_is_read_anew_hides_no_cell(tmp_path: Path) -> None:
    """One cell was written in another way, and all are read as other values."""
    rows = hospital()
    first = sent(snapshot(tmp_path, rows))
    for count in (1, 4, 5):
        other = with_cells(rows, "age", *["99.5"] * count)
        now = snapshot(tmp_path, other, number=2)
        now = replace(now, read=now.read + np.uint32(2))
        assert ("age" in find_free([first], now, letter_of(now))[0]) == (count == 5)


def test_a_renamed_column_is_compared_with_those_that_are_gone(tmp_path: Path) -> None:
    rows = hospital()
    other = renamed(with_cells(rows, "age", "99.5"), age="years", sex="gender")
    assert free(rows, other, tmp_path) == {"patient", "stage", "remark", "outcome", "gender"}
    names = {"patient": "a", "age": "b", "stage": "c", "sex": "d", "remark": "e", "outcome": "f"}
    all_renamed = renamed(with_cells(rows, "age", "99.5"), **names)
    assert free(rows, all_renamed, tmp_path) == {"a", "c", "d", "e", "f"}


def table_of(made: Snapshot, cells: np.ndarray, classes: list[str]) -> Release:
    """Return a table with the first column of a snapshot, read as these cells."""
    name = made.names[0]
    return Release(
        TABLE,
        "{}",
        ("field",),
        ((name,),),
        cells[None].astype(np.uint32),
        by_class=("field",),
        target="outcome",
        classes=np.array(classes),
    )


def test_a_class_of_which_few_units_changed_is_held(tmp_path: Path) -> None:
    rows = [{"a": str(k % 7), "b": str(k)} for k in range(200)]
    first = snapshot(tmp_path, rows)
    classes = ["x"] * 100 + ["y"] * 100
    first = replace(first, releases=(table_of(first, first.read[0], classes),))
    more = rows + [{"a": "9", "b": str(k)} for k in range(1_000, 1_010)]
    now = snapshot(tmp_path, more, number=2)
    for ends, by_class in ((["x"] * 5 + ["y"] * 5, ("field",)), (["x"] + ["y"] * 9, ())):
        table = table_of(now, now.read[0], classes + ends)
        assert find_free([first], now, table) == (("field",), by_class)


def test_two_tables_of_a_snapshot_read_a_column_alike(tmp_path: Path) -> None:
    made = snapshot(tmp_path, [{"a": str(k % 7), "b": "1"} for k in range(200)])
    classes = ["x"] * 100 + ["y"] * 100
    made = replace(made, releases=(table_of(made, made.read[0], classes),))
    assert find_parted(made, table_of(made, made.read[0], classes)) == set()
    other = np.where(np.arange(200) == 3, 7, made.read[0])
    assert find_parted(made, table_of(made, other, classes)) == {"field"}
    assert find_parted(made, table_of(made, made.read[0], classes[::-1])) == {"field"}


def test_a_class_is_not_compared_with_all_units(tmp_path: Path) -> None:
    """They differ by the two units of another class; and each class has its own cells."""
    made = snapshot(tmp_path, [{"a": str(k), "b": "1"} for k in range(200)])
    made = replace(made, releases=(letter_of(made),))
    classes = ["x"] * 2 + ["y"] * 198
    table = table_of(made, made.read[0], classes)
    assert find_free([made], made, table) == (("field",), ("field",))
    sizes = {group: int(units.sum()) for group, units in groups_of(made, table).items()}
    assert sizes == {"": 200, "outcome=x": 2, "outcome=y": 198}


@given(
    before=st.lists(st.integers(1, 5), max_size=30), after=st.lists(st.integers(1, 5), max_size=30)
)
def test_blocks_differ_by_what_came_or_went(before: list[int], after: list[int]) -> None:
    first, second = (np.array(sorted(each), np.uint32) for each in (before, after))
    counts = [(before.count(value), after.count(value)) for value in range(1, 6)]
    came = sum(max(0, later - earlier) for earlier, later in counts)
    went = sum(max(0, earlier - later) for earlier, later in counts)
    assert count_other(first, second) == max(came, went)


# Sums ---------------------------------------------------------------------------------------------


@given(cells=st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3), min_size=2, max_size=4))
def test_ranges_hold_the_counts_and_tell_what_sums_tell(cells: list[list[int]]) -> None:
    """Each range has the count, and a told one cannot be 0 with any counts that print the same."""
    made = Counts(5, sum(map(sum, cells)))
    made.know("n", made.most)
    for row, counts in enumerate(cells):
        made.know(("row", row), sum(counts))
        for place, count in enumerate(counts):
            made.show((row, place), count, count // 5 * 5)
        made.add_sum(("row", row), [(row, place) for place in range(3)])
    made.add_sum("n", [("row", row) for row in range(len(cells))])
    told = {*made.find_told()}
    for key, count in made.true.items():
        low, high = made.ranges[key]
        assert low <= count <= high
    for row, counts in enumerate(cells):
        for place, count in enumerate(counts):
            least = sum(counts) - sum(
                each // 5 * 5 + 4 for other, each in enumerate(counts) if other != place
            )
            assert ((row, place) in told) == (0 < count < 5 and least > 0)


@pytest.mark.parametrize(
    ("words", "tells"),
    [
        # 75 of 79 "male" are printed, and 80 of 81 male: "m" is there
        ({"male": 79, "m": 2, "female": 60}, True),
        ({"male": 78, "m": 2, "female": 60}, True),
        ({"male": 77, "m": 2, "female": 60}, False),  # 75 to 79 of both
        # 10 of 11 are missing, and 9 of them "-" at most: another word, or another value, is there
        ({"male": 80, "female": 60, "-": 9, "?": 2}, False),
        # no range tells: 54 of 103 are female, or 53 and one is missing, and at most 53 by words
        ({"male": 23, "man": 26, "female": 28, "woman": 24, "w": 2}, True),
        ({"male": 23, "man": 26, "female": 29, "woman": 23, "w": 0}, False),
    ],
)
def test_a_letters_words_and_a_tables_values_are_one_sum(
    words: dict[str, int], tells: bool
) -> None:
    """Neither tells alone; a table joins the words of one category, and those for missing."""
    letter = profile({"f": words_of(words)}, 5)["f"]
    names = [*letter.values, *letter.missing]
    categories = {"male": 0, "m": 0, "man": 0, "female": 1, "woman": 1, "w": 1}
    codes = list[int]()
    values = list[int]()
    for word, count in words.items():
        gone = OTHER if word not in MISSING_WORDS else NONE
        codes += [names.index(word) if word in names else gone] * count
        values += [categories.get(word, -1)] * count
    about = Field(type="string", categories=("male", "female"))
    read = np.array(values, np.int32)
    table = profile({"f": Cells.of(about, read)}, 5)["f"]
    of_letter = [(letter, Coded(np.array(codes), names))]
    of_table = {"": table}, Coded.of_table(about, read, table)
    classes = np.full(len(read), "")
    assert Printed(5, of_letter, of_table, classes).tells == tells


@pytest.mark.parametrize(
    ("first", "second", "tells"),
    [
        # at least 110 of the table, of which the letter has 75, by n, and at most 34: "M" is there
        ({"m": 75, "f": 60}, {"m": 34, "M": 2, "f": 29}, True),
        ({"m": 75, "f": 60}, {"m": 32, "M": 2, "f": 31}, False),  # at least 105
        # 65 have a value in the second, as the first has none there; 34 and 29 are 63
        ({"m": 74, "f": 61}, {"m": 34, "M": 2, "f": 29}, True),
        ({"m": 75, "f": 60}, {"m": 36, "f": 29}, False),  # nothing is hidden
    ],
)
def test_two_columns_of_a_letter_and_a_tables_are_one_sum(
    first: dict[str, int], second: dict[str, int], tells: bool
) -> None:
    """Of two files, with a column each; neither column alone tells with the table."""
    printed = of_two_files(first, second)
    assert printed.tells == tells
    for one in printed.letters:
        assert not replace(printed, letters=[one]).tells


def of_two_files(first: dict[str, int], second: dict[str, int]) -> Printed:
    """Return what is printed of a column that two files call by two names, with these words."""
    sizes = (sum(first.values()), sum(second.values()))
    values = np.concatenate(
        [np.repeat([word != "f" for word in words], [*words.values()]) for words in (first, second)]
    ).astype(np.int32)
    letters = list[tuple[ColumnProfile, Coded]]()
    for words, before, after in ((first, 0, sizes[1]), (second, sizes[0], 0)):
        column = profile({"f": words_of(words | {"?": before + after})}, 5)["f"]
        names = [*column.values, *column.missing]
        own = [names.index(word) if word in names else OTHER for word in words]
        codes = np.repeat(own, [*words.values()])
        gone = names.index("?")
        codes = np.concatenate([np.full(before, gone), codes, np.full(after, gone)])
        letters.append((column, Coded(codes, names)))
    about = Field(type="string", categories=("f", "m"))
    table = profile({"f": Cells.of(about, values)}, 5)["f"]
    of_table = {"": table}, Coded.of_table(about, values, table)
    classes = np.full(len(values), "")
    return Printed(5, letters, of_table, classes)


@given(
    files=st.lists(st.tuples(*[st.integers(5, 30)] * 2, st.integers(0, 4)), min_size=2, max_size=2)
)
@settings(max_examples=300)
def test_no_hidden_word_of_two_columns_is_known_by_bounds(
    files: list[tuple[int, int, int]],
) -> None:
    """Of each file m, f, and M, which no letter lists; the least by a linear program.

    The variables are m, f, and others that the table reads as m or f, of either file.
    """
    words = [dict(zip("mfM", each, strict=True)) for each in files]
    assume(not of_two_files(*words).tells)
    males = sum(m + other for m, _, other in files)
    every = sum(map(sum, files))
    read_as_m = np.tile([1.0, 0.0, 1.0, 0.0], 2)
    known = [
        (every, 0, np.ones(8)),  # n, of which nothing is rounded
        (males, 4, read_as_m),
        (every - males, 4, 1.0 - read_as_m),
    ]
    for place, (m, f, other) in enumerate(files):
        # those of a file have no value in the other's column
        for count, columns in ((m + f + other, range(4)), (m, [0]), (f, [1]), (other, [2, 3])):
            weights = np.zeros((2, 4))
            weights[place, columns] = 1.0
            known.append((count, 4, weights.ravel()))
    rows = np.array([weights for _, _, weights in known])
    lows = np.array([total // 5 * 5 if slack else total for total, slack, _ in known])
    highs = lows + np.array([slack for _, slack, _ in known])
    for place, (_, _, other) in enumerate(files):
        weights = np.zeros((2, 4))
        weights[place, 2:] = 1.0
        least = linprog(weights.ravel(), np.vstack([rows, -rows]), np.concatenate([highs, -lows]))
        assert not other or least.fun < 1e-6


@pytest.mark.parametrize(("different", "tells"), [(24, True), (20, False)])
def test_quantiles_and_counts_are_not_of_one_column(different: int, tells: bool) -> None:
    """Of 3,064 such columns 21 had a count below the floor that both showed not to be 0."""
    numbers = np.arange(240.0) % different
    letter = profile({"f": Cells(numbers, np.full(240, -1), (), {})}, 5)["f"]
    assert any(letter.quantiles) == tells
    names = [*letter.values]
    codes = [names.index(f"{each:g}") if names else OTHER for each in numbers.tolist()]
    about = Field(type="integer", categories=(*map(str, range(24)),))
    read = numbers.astype(np.int32)
    table = profile({"f": Cells.of(about, read)}, 5)["f"]
    of_table = {"": table}, Coded.of_table(about, read, table)
    of_letter = [(letter, Coded(np.array(codes), names))]
    assert Printed(5, of_letter, of_table, np.full(240, "")).tells == tells


def test_cells_are_coded_by_the_words_of_a_letter(tmp_path: Path) -> None:
    sexes = [*["f"] * 9, *["m"] * 8, "x", *["NA"] * 7, "", *["."] * 6]
    ages = [f"{30 + place % 25}.5" for place in range(30)] + ["NA", "NA"]
    rows = [{"sex": sex, "age": age} for sex, age in zip(sexes, ages, strict=True)]
    site = site_of(tmp_path, rows)
    columns = site.profile(floor=5)
    for name, cells in (("sex", sexes), ("age", ages)):
        coded = Coded.of_letter(site.columns[name], columns[name])
        printed = [*columns[name].values, *columns[name].missing]
        assert [*coded.names] == printed
        for cell, code in zip(cells, coded.codes.tolist(), strict=True):
            gone = NONE if cell in ("NA", "", ".") else OTHER
            assert code == (printed.index(cell) if cell in printed else gone)
    assert [*columns["sex"].values, *columns["sex"].missing] == ["f", "m", "NA", "."]


MISSING_WORDS = ("-", "?")


def words_of(words: dict[str, int]) -> Cells:
    """Return the cells of a column in which so many rows have each of these words."""
    texts = [word for word in words if word not in MISSING_WORDS]
    codes = [place for place, text in enumerate(texts) for _ in range(words[text])]
    gone = {word: words[word] for word in words if word in MISSING_WORDS}
    codes += [-1] * sum(gone.values())
    return Cells(np.full(len(codes), np.nan), np.array(codes), texts, gone)


# Sequences ----------------------------------------------------------------------------------------

# A year of a hospital: columns by name, as numbers of which 0 is none.
Table = dict[str, NDArray[np.int64]]


def drawn(random: np.random.Generator, count: int) -> Table:
    """Return patients with a number, a code, a rare answer, and a column that is often empty."""
    return {
        "age": random.integers(20, 90, count),
        "ward": random.integers(1, 5, count),
        "rare": 1 + (random.random(count) < 0.03),
        "lab": random.integers(1, 400, count) * (random.random(count) < 0.3),
    }


def with_changes(random: np.random.Generator, table: Table, place: int) -> Table:
    """Return a table with newcomers, deaths, corrections, and perhaps a column under a new name."""
    came = drawn(random, int(random.integers(0, 14)))
    stay = random.random(len(next(iter(table.values())))) > random.choice([0.0, 0.01, 0.05])
    after = {}
    for name, cells in table.items():
        new = came[name.rstrip("0123456789")]
        after[name] = np.concatenate([cells[stay], new])
    name = str(random.choice([*after]))
    for row in random.integers(0, len(after[name]), random.choice([0, 1, 3, 12])):
        after[name][row] = random.integers(1, 90)
    if random.random() < 0.2:
        after[f"{name.rstrip('0123456789')}{place}"] = after.pop(name)
    return after


def taken(table: Table, number: int, day: int, floor: int) -> Snapshot:
    names = tuple(sorted(table))
    cells = np.stack([table[name] for name in names]).astype(np.uint32)
    text = str(date(2025, 1, 1) + timedelta(days=30 * day))
    return Snapshot(number, text, floor, ROW, names, cells, cells)


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 10_000), marks=pytest.mark.slow)]
)
def test_no_column_leaves_twice_with_few_differences(seeds: range) -> None:
    """Whatever comes, goes, is corrected or renamed, in six months: by each column's own cells."""
    new = few = 0
    for seed in seeds:
        random = np.random.default_rng(seed)
        floor = int(random.choice([5, 10]))
        table = drawn(random, 150)
        book = list[Snapshot]()
        left = list[Table]()
        for day in range(6):
            now = taken(table, len(book) + 1, day, floor)
            chosen = choose_snapshot(book, now, 6)
            if chosen.snapshot is now:
                every, _ = find_free(book, now, letter_of(now))
                few += len(every) < len(table)
                letter = letter_of(now).keep(every, ())
                book.append(replace(now, releases=(letter,)))
                left.append({name: table[name] for name in every})
                new += 1
            table = with_changes(random, table, day)
        for first, second in combinations(left, 2):
            for name in first.keys() & second.keys():
                difference = count_other(
                    *(each[name][each[name] > 0].astype(np.uint32) for each in (first, second))
                )
                assert not 0 < difference < floor
    assert new > 2 * len(seeds)
    assert few > 0


@given(
    cells=st.lists(st.integers(0, 14), min_size=9, max_size=9),
    none=st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
def test_no_hidden_count_is_known_by_linear_bounds(cells: list[int], none: list[int]) -> None:
    """Of a letter and a table by class: the least that each count may be, by a linear program."""
    values = np.repeat(np.tile([0, 1, -1], 4), [*cells, *none]).astype(np.int32)
    classes = np.repeat(["x", "x", "x", "y", "y", "y", "z", "z", "z", "", "", ""], [*cells, *none])
    about = Field(type="string", categories=("a", "b"))

    def column(rows: NDArray[np.bool_]) -> ColumnProfile:
        return profile({"f": Cells.of(about, values[rows])}, 5)["f"]

    every = np.ones(len(values), bool)
    printed = {"": column(every)} | {name: column(classes == name) for name in "xyz"}
    coded = Coded.of_table(about, values, printed[""])
    if Printed(5, [], (printed, coded), classes).tells:
        return
    groups = np.array([*cells, *none]).reshape(4, 3)
    bounds = [
        (0, 4) if each < 5 else (each // 5 * 5, each // 5 * 5 + 4) for each in groups[:3].flat
    ]
    bounds += [(0, sum(none))] * 3
    sums = [(groups.sum(), np.ones((4, 3)), 0)]  # n, of which nothing is rounded
    for place in range(3):
        sums.append((groups[:, place].sum(), np.arange(3) == place + np.zeros((4, 1)), 4))
    for row in range(3):
        sums.append((groups[row].sum(), (np.arange(4) == row)[:, None] + np.zeros((1, 3)), 4))
    sums.append((sum(none), (np.arange(4) == 3)[:, None] + np.zeros((1, 3)), 0))
    weights = [np.asarray(of, float).ravel() for _, of, _ in sums]
    lows = [total if not slack else total // 5 * 5 for total, _, slack in sums]
    highs = [low + slack for low, (_, _, slack) in zip(lows, sums, strict=True)]
    for place, count in enumerate(groups.flat):
        if not 0 < count < 5:
            continue
        found = linprog(
            np.arange(12) == place,
            A_ub=np.concatenate([weights, -np.array(weights)]),
            b_ub=np.concatenate([highs, -np.array(lows)]),
            bounds=bounds,
        )
        assert found.fun < 1.0 - 1e-6
