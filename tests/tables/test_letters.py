"""What leaves a hospital in a letter, and attacks on it: with two floors, by rows and by persons."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.tables.inference import Wanted, draft, survey_files
from fairbloom.tables.letters import (
    MAX_BYTES,
    ROW,
    Letter,
    SiteTables,
    compare_letters,
    decode_letter,
    encode_letter,
    letter_of,
    stand_ins,
)
from fairbloom.tables.reading import read
from fairbloom.tables.schema import SchemaFile, parse_schema
from tests.tables.helpers import refused_with

FLOORS = (5, 20)
UNITS = (ROW, "patient")
SECRET = b"s" * 32

Rows = list[dict[str, str]]


def hospital(persons: int = 130, visits: int = 1, seed: int = 0) -> Rows:
    """Return rows with two kinds of numbers, categories, a free text, and persons."""
    random = np.random.default_rng(seed)
    return [
        {
            "patient": f"MRN-{number:05}",
            "age": f"{random.normal(60, 12):.1f}",
            "stage": str(1 + number % 4),
            "sex": "mf"[number % 2],
            "remark": f"seen by Dr. Who on visit {number} {visit}",
            "outcome": str(number % 3 % 2),
        }
        for number in range(1_000 * seed, 1_000 * seed + persons)
        for visit in range(visits)
    ]


def site_of(folder: Path, *files: Rows, formats: dict[str, Any] | None = None) -> SiteTables:
    """Return the tables of a hospital, a file each."""
    paths = [folder / f"{number}.csv" for number in range(len(files))]
    for path, rows in zip(paths, files, strict=True):
        path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]))
    tables, parts, _ = survey_files(
        {path: read(path, SchemaFile(**formats or {})) for path in paths}
    )
    return SiteTables.of([*tables.values()], parts)


def letter(folder: Path, *files: Rows, floor: int = 5, unit: str = ROW) -> Letter:
    return letter_of(site_of(folder, *files), "north", "2025-01-31", floor, unit)


def with_cells(rows: Rows, column: str, *cells: str) -> Rows:
    """Return rows of which the first have these cells of a column."""
    changed = [{**row, column: cell} for row, cell in zip(rows, cells, strict=False)]
    return changed + rows[len(cells) :]


def renamed(rows: Rows, **names: str) -> Rows:
    return [{names.get(key, key): row[key] for key in row} for row in rows]


def numbers_in(value: Any) -> Iterator[int]:
    """Yield all whole numbers in parsed JSON."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value


@pytest.fixture(params=[(floor, unit) for floor in FLOORS for unit in UNITS])
def asked(request: pytest.FixtureRequest) -> dict[str, Any]:
    floor, unit = request.param
    return {"floor": floor, "unit": unit}


# A letter -----------------------------------------------------------------------------------------


def test_a_letter_is_read_as_it_was_written(tmp_path: Path, asked: dict[str, Any]) -> None:
    made = letter(tmp_path, hospital(), hospital(seed=1), **asked)
    assert decode_letter(encode_letter(made)) == made
    assert {name: bool(each.identifier) for name, each in made.columns.items()} == {
        "patient": True,
        "age": False,
        "stage": False,
        "sex": False,
        "remark": True,
        "outcome": False,
    }
    assert made.rows == 260


def test_a_letter_says_how_files_are_written(tmp_path: Path) -> None:
    rows = [{"a": f'"{k},5"', "b": f'"1.{k:03},0"'} for k in range(100, 200)]
    assert letter(tmp_path, rows).formats == (
        {"encoding": "utf-8", "decimalChar": ",", "groupChar": "."},
    )
    assert len(letter(tmp_path, rows, hospital()).formats) == 2


def change(*path: str, to: Any) -> Callable[[Any], None]:
    """Return what replaces a value of a letter's JSON."""

    def replace(written: Any) -> None:
        for key in path[:-1]:
            written = written[key]
        written[path[-1]] = to

    return replace


AGE, SEX, HIDDEN = (("columns", name) for name in ("age", "sex", "patient"))
FOUND = {"kind": "far", "rows": 5, "number": 999.0, "column": "", "units": ""}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (change("floor", to=4), "the floor is at least 5"),
        (change("floor", to=0), "the floor is at least 5"),
        (change("rows", to=5 * 10**12), "at most 10^12 rows"),
        (change("columns", to={}), "it has columns"),
        (change("date", to="2025-02-30"), "out of range"),
        (change("date", to="20250131"), "its date is a day"),
        (change("client", to="../north"), "a client's name"),
        (change("client", to=".north"), "a client's name"),
        (change("client", to="north\nevil = 1"), "a client's name"),
        (change("client", to="n" * 64), "a client's name"),
        (change("client", to=""), "names have 1 to 200 characters"),
        (change("unit", to="u" * 201), "names have 1 to 200 characters"),
        (change("formats", to=[{"encoding": "utf-8"}]), "formats have their keys"),
        (change("formats", to=[{"encoding": "no-such"}]), "no such encoding"),
        (change(*AGE, "rows", to=125), "rows and floor are the letter's"),
        (change(*AGE, "floor", to=1), "rows and floor are the letter's"),
        (change(*SEX, "values", to={"m": 0}), "a count is at least the floor"),
        (change(*SEX, "values", to={"m": 6}), "a count is a multiple of the floor"),
        (change(*SEX, "missing", to={"NA": -5}), "a count is at least the floor"),
        (change(*SEX, "others", to=3), "a count is a multiple of the floor"),
        (change(*SEX, "others", to=-5), "counts add up to at most the rows"),
        (change(*SEX, "values", to={"m": 135}), "counts add up to at most the rows"),
        (change(*SEX, "patterns", to={str(k): 5 for k in range(101)}), "it lists at most 100"),
        (change(*SEX, "values", to={"m" * 201: 5}), "texts have at most 200 characters"),
        (change(*AGE, "patterns", to={"9" * 13: 5}), "patterns are short"),
        (change(*AGE, "quantiles", to=[1.0]), "there are seven quantiles, or none"),
        (change(*AGE, "values", to={"1": 5}), "it has quantiles or values"),
        (change(*AGE, "quantiles", to=[None] * 5 + [3.0, 2.0]), "quantiles ascend"),
        (change(*AGE, "quantiles", to=[None] * 6 + [0.1234]), "three digits"),
        (change(*AGE, "quantiles", to=[None] * 6 + [float("inf")]), "it is no profile"),
        (change(*AGE, "quantiles", to=[None] * 6 + ["3"]), "it is no profile"),
        (change(*AGE, "quantiles", to=[-1.01e100] + [None] * 6), "numbers are at most 1e+100"),
        (change(*AGE, "found", to=[FOUND | {"number": 1.01e100}]), "numbers are at most 1e+100"),
        (change(*AGE, "found", to=[FOUND | {"kind": "x"}]), "what rows show is of a kind"),
        (change(*AGE, "found", to=[FOUND | {"rows": 4}]), "a count is at least the floor"),
        (change(*AGE, "found", to=[FOUND | {"column": "c" * 201}]), "at most 200 characters"),
        (
            change(*AGE, "found", to=[FOUND | {"units": "2.1354"}]),
            "two units are a known conversion",
        ),
        (change(*HIDDEN, "others", to=5), "an identifier has nothing else"),
        (change(*AGE, "identifier", to=True), "an identifier has nothing else"),
        (change(*HIDDEN, "identifier", to="Anna Meier"), "should be a valid boolean"),
        (change("more", to=1), "other keys"),
        (change(*AGE, "rows", to="130"), "it is no profile"),
    ],
)
def test_a_letter_out_of_range_is_refused(
    tmp_path: Path, spoil: Callable[[Any], None], words: str
) -> None:
    written = json.loads(encode_letter(letter(tmp_path, hospital())))
    spoil(written)
    with refused_with("it is no profile as a device makes it", words):
        decode_letter(json.dumps(written).encode())


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[" * 100_000, b"\xff", b" " * (MAX_BYTES + 1), b'{"rows": 1e999}']
)
def test_what_is_no_letter_is_refused_in_words(content: bytes) -> None:
    with refused_with("it is no profile as a device makes it"):
        decode_letter(content)


def test_a_letter_at_its_bounds_is_taken(tmp_path: Path) -> None:
    written = json.loads(encode_letter(letter(tmp_path, hospital())))
    change(*SEX, "values", to={"m" * 200: 130})(written)
    change(*AGE, "patterns", to={"9" * 12: 5})(written)
    change("client", to="n" * 63)(written)
    change(*AGE, "quantiles", to=[None] * 4 + [-1e100, 1.0, 1e100])(written)
    assert decode_letter(json.dumps(written).encode()).columns["sex"].values == {"m" * 200: 130}


# Attacks ------------------------------------------------------------------------------------------


def test_no_cell_that_fewer_units_hold_leaves(tmp_path: Path, asked: dict[str, Any]) -> None:
    floor = asked["floor"]
    rows = hospital(visits=1 if asked["unit"] == ROW else 3)
    for held, is_there in ((floor - 1, False), (floor, True)):
        persons = {row["patient"] for row in rows[:: 1 if asked["unit"] == ROW else 3][:held]}
        for column, cell in (("sex", "divers"), ("stage", "77"), ("outcome", "#N/A")):
            rare = [{**row, column: cell} if row["patient"] in persons else row for row in rows]
            written = encode_letter(letter(tmp_path, rare, **asked)).decode()
            assert (json.dumps(cell) in written) == is_there, (cell, held)


def test_each_listed_cell_has_as_many_holders(tmp_path: Path, asked: dict[str, Any]) -> None:
    random = np.random.default_rng(4)
    rows = [
        row
        | {
            "ward": str(min(9, int(random.geometric(0.15)))),
            "code": f"c{int(random.geometric(0.1))}",
        }
        for row in hospital(150, 3)
    ]
    made = letter(tmp_path, rows, **asked)
    holders: dict[tuple[str, str], set[Any]] = defaultdict(set)
    for number, row in enumerate(rows):
        for column, cell in row.items():
            holders[column, cell].add(number if asked["unit"] == ROW else row["patient"])
    listed = [(name, cell) for name, column in made.columns.items() for cell in column.values]
    assert {"ward", "code"} <= {name for name, _ in listed}
    assert all(len(holders[each]) >= asked["floor"] for each in listed)


def test_a_patient_with_six_visits_counts_once(tmp_path: Path) -> None:
    rows = hospital(visits=2)
    often = [{**rows[0], "sex": "divers", "age": "17.0"} for _ in range(6)]
    assert "divers" in letter(tmp_path, often + rows).columns["sex"].values
    made = letter(tmp_path, often + rows, unit="patient")
    assert "divers" not in made.columns["sex"].values
    assert made == letter(tmp_path, often[:1] + rows, unit="patient")
    assert made.rows == 130


def test_persons_of_any_name_are_not_listed(tmp_path: Path) -> None:
    rows = [row | {"ward": "abcdefghij"[k % 10]} for k, row in enumerate(hospital(200))]
    assert letter(tmp_path, rows).columns["ward"].values["a"] == 20
    made = letter(tmp_path, rows, unit="ward")
    assert (made.rows, made.columns["ward"].identifier) == (10, True)
    assert made.columns["ward"].values == {}


def test_rows_without_a_person_are_left_out(tmp_path: Path) -> None:
    rows = with_cells(hospital(), "patient", *[""] * 10)
    assert letter(tmp_path, rows, unit="patient").rows == 120
    assert letter(tmp_path, rows).rows == 130


@pytest.mark.parametrize("remark", ["Anna Meier was here", "call 030 1234567"])
def test_a_name_in_a_free_text_stays(tmp_path: Path, asked: dict[str, Any], remark: str) -> None:
    rows = with_cells(hospital(), "remark", remark)
    few = with_cells([{**row, "remark": "none"} for row in rows], "remark", remark)
    long = [{**row, "remark": "x" * 201} for row in few]
    for each in (rows, few, long):
        written = encode_letter(letter(tmp_path, each, **asked)).decode()
        assert remark not in written
        assert "xxx" not in written
    assert letter(tmp_path, few).columns["remark"].values == {"none": 125}


def test_a_file_without_a_header_is_refused(tmp_path: Path) -> None:
    rows = hospital()
    bare = {cell: cell for cell in rows[0].values()}
    headless = [dict(zip(bare, row.values(), strict=True)) for row in rows[1:]]
    with refused_with("looks like a cell", "write the names of the columns"):
        letter(tmp_path, headless)
    file = tmp_path / "0.csv"
    file.write_text("\n".join(["a,b,c,d,e,f", file.read_text()]))
    tables, parts, _ = survey_files({file: read(file, SchemaFile())})
    assert (
        letter_of(SiteTables.of([*tables.values()], parts), "n", "2025-01-31", 5, ROW).rows == 130
    )


@pytest.mark.parametrize("name", ["63.5", "63,5", "2025-01-31", "NA", "m"])
def test_a_name_that_looks_like_a_cell_is_refused(tmp_path: Path, name: str) -> None:
    rows = [{(f'"{name}"' if key == "sex" else key): row[key] for key in row} for row in hospital()]
    with refused_with(repr(name), "looks like a cell"):
        letter(tmp_path, rows)
    assert letter(tmp_path, hospital()).columns  # other names are not


def test_neither_end_of_the_numbers_leaves(tmp_path: Path, asked: dict[str, Any]) -> None:
    plain = letter(tmp_path, hospital(500), **asked)
    ends = with_cells(hospital(500), "age", "1.7", "117.3")
    made = letter(tmp_path, ends, **asked)
    given = [each for each in made.columns["age"].quantiles if each is not None]
    cells = sorted(float(row["age"]) for row in ends)
    beyond = asked["floor"]
    assert len(given) == 7
    assert cells[beyond] <= given[0] <= given[-1] <= cells[-beyond - 1]
    far = letter(tmp_path, with_cells(ends, "age", "-1e9", "1e9"), **asked)
    assert far == made
    assert plain.rows == made.rows


@pytest.mark.parametrize("count", [131, 134])
def test_no_count_beside_an_exact_number(tmp_path: Path, asked: dict[str, Any], count: int) -> None:
    written = json.loads(encode_letter(letter(tmp_path, hospital(count), **asked)))
    assert Counter(number % asked["floor"] for number in numbers_in(written)).keys() == {0}
    assert all(not (each["values"] and each["quantiles"]) for each in written["columns"].values())


def test_columns_that_name_somebody_say_nothing_else(tmp_path: Path, asked: dict[str, Any]) -> None:
    rows = [
        row | {"day": f"2024-03-{1 + k % 28:02}", "case number": str(k), "dense": str(k)}
        for k, row in enumerate(hospital())
    ]
    made = letter(tmp_path, rows, **asked)
    named = ("patient", "remark", "day", "case number", "dense")
    assert {json.dumps(vars(made.columns[name]), default=list) for name in named} == {
        json.dumps(vars(made.columns["patient"]), default=list)
    }
    assert made.columns["patient"].identifier


def alike(share: float, cells: list[str]) -> list[str]:
    """Return cells of which this share differ, and the others are as the first."""
    different = round(share * len(cells))
    return cells[:different] + cells[:1] * (len(cells) - different)


NAMES = [f"Who {'abcdefghij'[k // 13]}{'nopqrstuvwxyz'[k % 13]}" for k in range(130)]
CASES = [*map(str, range(1_000, 1_130))]
CODES = [str(k * k) for k in range(1_000, 1_130)]


@pytest.mark.parametrize(
    ("name", "cells", "hidden"),
    [
        ("who", NAMES, True),
        ("who", alike(0.96, NAMES), True),  # two of the same name
        ("who", alike(0.9, NAMES), False),
        ("who", ["x" * 201, *["a", "b"] * 65], False),  # one row
        ("who", [*["x" * 201] * 10, *["a", "b"] * 60], True),
        ("count", CASES, True),  # dense
        ("count", alike(0.96, CASES), True),
        ("count", ["", *CASES[1:]], True),
        ("count", ["7.5", *CASES[1:]], True),
        ("count", ["9999999", *CASES[1:]], True),
        ("count", alike(0.9, CASES), False),
        ("case id", CODES, True),  # by its name
        ("case id", alike(0.96, CODES), True),
        ("case id", alike(0.9, CODES), False),
        ("count", CODES, False),
    ],
)
def test_no_single_row_decides_whether_a_column_names(
    tmp_path: Path, name: str, cells: list[str], hidden: bool
) -> None:
    rows = [row | {name: cell} for row, cell in zip(hospital(), cells, strict=False)]
    made = letter(tmp_path, rows).columns[name]
    assert made.identifier == hidden
    assert decode_letter(encode_letter(letter(tmp_path, rows))).columns[name] == made


DAYS = [f"2024-03-{day:02}" for day in range(1, 6)]


@pytest.mark.parametrize(
    ("name", "rest", "cells"),
    [
        ("died", "", DAYS),
        ("remark", "ok", DAYS),
        ("remark", "ok", [f"MRN-{number:06}" for number in range(5)]),
        ("death date", "", ["45300", "45301", "45302", "45303", "45304"]),
    ],
)
def test_few_rows_decide_not_whether_a_column_names(
    tmp_path: Path, name: str, rest: str, cells: list[str]
) -> None:
    """That one has died would be seen by a date among empty cells."""
    rows = [row | {name: rest} for row in hospital()]
    made = [
        letter(tmp_path, with_cells(rows, name, *cells[:count])).columns[name].identifier
        for count in range(6)
    ]
    assert made == [False] * 5 + [True]


def test_one_long_text_of_few_rows_names_nobody(tmp_path: Path) -> None:
    rows = [row | {"note": "ok"} for row in hospital(19)]
    for count in (1, 4, 5):
        long = with_cells(rows, "note", *["x" * 201] * count)
        assert letter(tmp_path, long).columns["note"].identifier == (count == 5)


def test_visits_of_one_person_decide_not_whether_a_column_names(tmp_path: Path) -> None:
    rows = [row | {"seen": ""} for row in hospital()]
    seen = [rows[0] | {"seen": f"2024-03-{day:02}"} for day in range(1, 7)]
    assert not letter(tmp_path, rows + seen, unit="patient").columns["seen"].identifier


def test_texts_that_are_too_long_are_not_listed(tmp_path: Path) -> None:
    cells = [*["x" * 201] * 6, *["a", "b"] * 62]
    rows = [row | {"who": cell} for row, cell in zip(hospital(), cells, strict=True)]
    made = letter(tmp_path, rows).columns["who"]
    assert (dict(made.values), made.others) == ({"a": 60, "b": 60}, 5)
    decode_letter(encode_letter(letter(tmp_path, rows)))


# The table that stands for a letter ---------------------------------------------------------------


def test_a_stand_in_has_the_profile_of_its_letter(tmp_path: Path) -> None:
    rows = with_cells(hospital(400), "sex", *["NA"] * 100)
    made = letter(tmp_path, rows, unit="patient")
    (table,) = stand_ins([made], "person")
    tables, parts, _ = survey_files({table.path: table})
    again = letter_of(SiteTables.of([*tables.values()], parts), "north", "2025-01-31", 5, ROW)
    assert [*again.columns] == ["person", *[*made.columns][1:]]
    assert again.columns["sex"] == made.columns["sex"]
    assert again.columns["remark"] == made.columns["remark"]
    near = zip(again.columns["age"].quantiles, made.columns["age"].quantiles, strict=True)
    assert all(abs(one - other) < 2.0 for one, other in near if one is not None and other)


def test_stand_ins_of_one_or_too_few_rows_are_drafted(tmp_path: Path) -> None:
    letters = [letter(tmp_path, hospital(count, seed=count), floor=20) for count in (400, 60)]
    tables = stand_ins(letters, "")
    drafted = draft(
        {Path(str(k)): table for k, table in enumerate(tables)},
        {Path("0"): "north", Path("1"): "south"},
        Wanted(positive_words=(), target="outcome"),
    )
    schema = parse_schema(drafted.text)
    assert schema.model_dump() == drafted.schema.model_dump()
    assert {name: each.type for name, each in schema.fields.items()} == {
        "age": "number",
        "stage": "number",
        "sex": "string",
        "outcome": "integer",
    }
    assert drafted.left_out.keys() == {"patient", "remark"}
    assert "determines" not in drafted.text
    assert schema.target == "outcome"


def test_columns_are_joined_by_name_and_lacking_ones_are_said(tmp_path: Path) -> None:
    names = {"north": "age", "south": "Age", "west": "years", "east": "age"}
    letters = []
    for client, name in names.items():
        rows = renamed(hospital(), age=name)
        letters.append(letter_of(site_of(tmp_path, rows), client, "2025-01-31", 5, ROW))
    fields, findings = compare_letters(letters)
    assert {*fields["age"]} == {"north", "south", "east"}
    assert [*fields["years"]] == ["west"]
    assert {(each.kind, each.field, each.sites) for each in findings} == {
        ("absent", "age", ("west",)),
        ("name", "age", ("west",)),
    }
    (named,) = [each for each in findings if each.kind == "name"]
    assert named.column == "years"


def test_a_site_that_has_two_columns_of_a_name_keeps_both(tmp_path: Path) -> None:
    """Units in brackets join columns of sites, unless one of them has two."""
    both = [row | {"bp (kPa)": "16.1"} for row in renamed(hospital(), age="bp (mmHg)")]
    one = renamed(hospital(), age="BP (mmHg)")
    kilo = renamed(hospital(), age="bp (kPa)")
    sites = {"north": both, "south": one, "west": kilo}
    letters = {
        name: letter_of(site_of(tmp_path, rows), name, "2025-01-31", 5, ROW)
        for name, rows in sites.items()
    }
    fields, _ = compare_letters([*letters.values()])
    assert {*fields["bp (mmHg)"]} == {"north", "south"}
    assert {*fields["bp (kPa)"]} == {"north", "west"}
    fields, _ = compare_letters([letters["south"], letters["west"]])
    assert {*fields["BP (mmHg)"]} == {"south", "west"}


def test_a_missing_unit_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="no column 'person', the unit: name one of patient"):
        letter(tmp_path, hospital(), unit="person")
    assert letter(tmp_path, hospital(), unit="PATIENT").rows == 130
