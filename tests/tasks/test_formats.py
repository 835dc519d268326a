"""Tables in Parquet, Feather and spreadsheets, and CSV files as programs in other languages write them."""

import csv
import datetime
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest
from pyarrow import parquet

from fairbloom.errors import FairbloomError
from fairbloom.tasks import Task, load_task
from fairbloom.tasks.files.reading import columnar, reader
from fairbloom.tasks.files.reading.sheets import letters
from fairbloom.tasks.files.reading.table import ColumnHints, Table
from fairbloom.tasks.files.reasons import DataError, raise_faults

from .tables import agreed, config, csv_of, told_by
from .workbooks import FormulaError, write_workbook

NAMES = ("a", "b", "c", "d")


def frame_of(rows: int = 30, seed: int = 0) -> pandas.DataFrame:
    """Return a table with a column of every kind that a task takes."""
    random = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "age": random.normal(50, 10, rows),
            "visits": random.integers(0, 9, rows),
            "ward": [("north", "söuth", "west")[k % 3] for k in range(rows)],
            "insured": [k % 4 > 0 for k in range(rows)],
            "target": [float(k % 2) for k in range(rows)],
        }
    )


def as_workbook(frame: pandas.DataFrame, path: Path, **others: Any) -> None:
    rows = [[None if value != value else value for value in row] for row in frame.astype(object).values.tolist()]
    write_workbook(path, {"Patients": [list(frame.columns), *rows]}, **others)


WRITERS: dict[str, Callable[[pandas.DataFrame, Path], None]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
    ".feather": lambda frame, path: frame.to_feather(path),
    ".xlsx": as_workbook,
}


def write(frame: pandas.DataFrame, path: Path) -> Path:
    if path.suffix == ".xlsx":
        pytest.importorskip("python_calamine")
    WRITERS[path.suffix](frame, path)
    return path


def read(path: Path, **hints: Any) -> Table:
    table = reader.read(path, ColumnHints(**hints))
    raise_faults(table.faults)
    return table


def bits(task: Task) -> list[bytes]:
    found = []
    for client in task.clients:
        splits = task.splits(client)
        for examples in (splits.train, splits.test):
            inputs, targets = examples[slice(0, len(examples))]
            found += [inputs.numpy().tobytes(), targets.numpy().tobytes()]
    return found


@pytest.mark.parametrize("endings", [(".parquet",), (".feather",), (".xlsx",), tuple(WRITERS)], ids=str)
@pytest.mark.parametrize("settings", [{}, {"missing": "fill", "categories": "visits"}, {"target": "age"}], ids=str)
def test_a_folder_of_any_formats_is_to_the_bit_that_of_csv_files(
    tmp_path: Path, endings: tuple[str, ...], settings: dict[str, Any]
) -> None:
    for folder in ("plain", "mixed"):
        (tmp_path / folder).mkdir()
    for k, name in enumerate(NAMES):
        frame = frame_of(seed=k)
        if settings.get("missing"):
            frame.loc[3, "age"] = frame.loc[5, "ward"] = None
        write(frame, tmp_path / "plain" / f"{name}.csv")
        write(frame, tmp_path / "mixed" / f"{name}{endings[k % len(endings)]}")
    plain, mixed = (config(tmp_path / folder, **settings) for folder in ("plain", "mixed"))
    assert told_by(mixed) == told_by(plain)
    (task, what), (as_csv, what_csv) = agreed(mixed), agreed(plain)
    assert task.clients == NAMES
    assert what == what_csv
    assert bits(task) == bits(as_csv)


@pytest.mark.parametrize("ending", [*WRITERS])
def test_a_single_file_of_any_format_has_a_client_column(tmp_path: Path, ending: str) -> None:
    frame = pandas.concat([frame_of(seed=k).assign(site=k) for k in range(3)])
    given = config(write(frame.reset_index(drop=True), tmp_path / f"all{ending}"), client="site")
    assert load_task(given).clients == ("0", "1", "2")
    describe = load_task(given).describe
    assert describe is not None
    assert [row["train"] for row in describe()["clients"]] == [24, 24, 24]


@pytest.mark.parametrize("ending", [".parquet", ".feather", ".xlsx"])
def test_values_become_the_texts_and_numbers_that_a_csv_file_has(tmp_path: Path, ending: str) -> None:
    frame = pandas.DataFrame(
        {
            "whole": [1.0, 2.0, None, 4.0],
            "big": [2**53 + 0.0, 1e99, -0.5, 1e-7],
            "grade": [1.0, 2.5, 3.0, None],
            "flag": [True, False, True, True],
            "word": ["x ", None, "NA", "ä"],
            "day": [datetime.date(2024, 3, 17)] * 3 + [datetime.date(1999, 12, 31)],
            "text number": ["007", "1.50", "2", "3"],
        }
    )
    table = read(write(frame, tmp_path / f"a{ending}"), as_texts=frozenset({"grade"}))
    columns = table.columns
    numbers = {name: column.numbers for name, column in columns.items() if column.numbers is not None}
    assert [*numbers] == ["whole", "big", "text number"]
    np.testing.assert_array_equal(numbers["whole"], [1, 2, np.nan, 4])
    np.testing.assert_array_equal(numbers["big"], [2**53, 1e99, -0.5, 1e-7])
    np.testing.assert_array_equal(numbers["text number"], [7, 1.5, 2, 3])
    assert columns["grade"].texts == ("1", "2.5", "3")
    assert columns["flag"].texts == ("True", "False")
    assert columns["word"].texts == ("x", "ä")
    assert columns["day"].texts == ("2024-03-17", "1999-12-31")
    assert [columns[name].missing.tolist() for name in ("whole", "grade")] == [[0, 0, 1, 0], [0, 0, 0, 1]]


ERRORS: dict[str, tuple[Callable[[pandas.DataFrame], pandas.DataFrame], dict[str, str]]] = {
    "a text among numbers": (
        lambda frame: frame.assign(age=[*frame.age[:6].astype(str), "forty", *frame.age[7:].astype(str)]),
        {
            ".parquet": "row 7, column 'age' holds 'forty'",
            ".xlsx": "sheet 'Patients', row 8, column 'age' holds 'forty'",
        },
    ),
    "a missing value": (
        lambda frame: frame.assign(age=frame.age.where(frame.index != 4)),
        {".parquet": "row 5, column 'age' has no value", ".xlsx": "sheet 'Patients', row 6, column 'age' has no value"},
    ),
    "an infinite number": (
        lambda frame: frame.assign(age=frame.age.where(frame.index != 4, 1e200)),
        {".parquet": "row 5, column 'age' holds 1e+200", ".xlsx": "row 6, column 'age' holds 1e+200"},
    ),
    "dates": (
        lambda frame: frame.assign(day=[datetime.date(2024, 3, 1 + k) for k in range(len(frame))]),
        {".parquet": "column 'day' holds dates, as '2024-03-01'", ".xlsx": "column 'day' holds dates, as '2024-03-01'"},
    ),
    "a strange class": (
        lambda frame: frame.assign(target=frame.target.where(frame.index != 4, 7.0)),
        {".parquet": "row 5, column 'target' holds '7'", ".xlsx": "row 6, column 'target' holds '7'"},
    ),
    "names that are values": (
        lambda frame: frame.set_axis(["51.5", "3", "3", "True", "1"], axis=1),
        {".xlsx": "sheet 'Patients', row 1 holds values"},
    ),
}


@pytest.mark.parametrize("ending", [".parquet", ".xlsx"])
@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_row_and_column_as_the_program_shows_them(tmp_path: Path, case: str, ending: str) -> None:
    change, said = ERRORS[case]
    if ending not in said:
        pytest.skip("the format has no such file")
    path = write(change(frame_of()), tmp_path / f"a{ending}")
    with pytest.raises(DataError) as caught:
        agreed(config(path, classes="0,1"))
    assert f"{path}" in str(caught.value)
    assert said[ending] in str(caught.value)
    if case == "a missing value":
        assert caught.value.reportable.startswith("row " + ("5" if ending == ".parquet" else "6"))
    assert "forty" not in caught.value.reportable


def test_a_workbook_without_its_package_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(frame_of(), tmp_path / "a.xlsx")
    for name in ["python_calamine", *(each for each in sys.modules if each.startswith("python_calamine."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match=r".xlsx file.*pip install 'fairbloom\[excel\]'") as caught:
        read(path)
    assert "not installed on the device" in caught.value.reportable


# Parquet ----------------------------------------------------------------------------------------------------------


def test_parquets_categories_and_decimals_are_texts_and_numbers(tmp_path: Path) -> None:
    table = pa.table(
        {
            "ward": pa.array(["a", None, "b", "a"]).dictionary_encode(),
            "code": pa.array([10, 20, 10, None]).dictionary_encode(),
            "price": pa.array(["1.10", "2.00", None, "0.1"]).cast(pa.string()).cast(pa.decimal128(9, 2)),
            "small": pa.array([1, 2, 3, None], pa.uint8()),
            "half": pa.array([0.5, float("nan"), None, 2.0], pa.float32()),
            "seen": pa.array([0, 1_500_000, 2_000_000, None], pa.timestamp("us")),
            "nothing": pa.nulls(4),
            "__index_level_0__": pa.array([4, 3, 2, 1]),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    columns = read(tmp_path / "a.parquet").columns
    assert [*columns] == ["ward", "code", "price", "small", "half", "seen", "nothing"]
    assert columns["ward"].texts == ("a", "b")
    assert columns["seen"].texts == ("1970-01-01 00:00:00", "1970-01-01 00:00:01.500000", "1970-01-01 00:00:02")
    assert columns["nothing"].kind == "empty"
    for name, values in {
        "code": [10, 20, 10, np.nan],
        "price": [1.1, 2.0, np.nan, 0.1],
        "small": [1, 2, 3, np.nan],
        "half": [0.5, np.nan, np.nan, 2.0],
    }.items():
        np.testing.assert_array_equal(columns[name].numbers, values)


def test_a_column_of_lists_is_refused_unless_it_is_left_out(tmp_path: Path) -> None:
    frame = frame_of().assign(scans=[[1, 2]] * 30)
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet, column 'scans' holds values of the type list.*csv.ignore=scans"):
        agreed(config(tmp_path))
    assert agreed(config(tmp_path, ignore="scans"))[0].clients == ("a",)


def test_rows_are_told_apart_whatever_is_left_out(tmp_path: Path) -> None:
    """Columns of lists do not count; all others do, so that a run that leaves some out sees no other rows."""
    frame_of().assign(scans=[[1, 2]] * 30).to_parquet(tmp_path / "a.parquet")

    def digests(ignored: str) -> list[int]:
        task = load_task(config(tmp_path, ignore=ignored))
        assert task.behind is not None
        return task.behind("a").identify(lambda content: int.from_bytes(content[-8:], "little")).tolist()

    assert digests("scans") == digests("scans,age,ward")


def test_a_file_with_absurdly_many_rows_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    batch = pa.record_batch({"x": np.zeros(2**20), "y": np.zeros(2**20)})
    with parquet.ParquetWriter(path, batch.schema) as writer:
        for _ in range(8):
            writer.write_batch(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "MAX_CELLS", 2**24 - 1)
        with pytest.raises(DataError, match=r"8,388,608 rows of 2 columns, and 16,777,215 values are the most"):
            read(path)
    assert len(read(path)) == 2**23


@pytest.mark.parametrize("ending", [".parquet", ".feather", ".xlsx", ".xls", ".ods"])
@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"age,target\n1,0\n", b"PK\x03\x04", b"\xd0\xcf\x11\xe0" * 900], ids=str
)
def test_what_is_no_such_file_is_refused_by_name(tmp_path: Path, ending: str, content: bytes) -> None:
    pytest.importorskip("python_calamine")
    path = tmp_path / f"a{ending}"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"a{ending} cannot be read") as caught:
        read(path)
    assert str(tmp_path) not in caught.value.reportable


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    path = write(frame_of(200), tmp_path / "a.parquet")
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    refused = []
    for _ in range(60):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            damaged[place] = int(random.integers(0, 256))
        path.write_bytes(damaged)
        try:
            read(path)
        except DataError as error:
            refused.append(str(error))
    assert len(refused) > 10
    assert all("a.parquet" in error for error in refused)


# Spreadsheets -----------------------------------------------------------------------------------------------------


def workbook(path: Path, *rows: list[object], **others: Any) -> Path:
    pytest.importorskip("python_calamine")
    write_workbook(path, {"Patients": rows}, **others)
    return path


def test_empty_rows_and_columns_are_passed_over(tmp_path: Path) -> None:
    path = workbook(
        tmp_path / "a.xlsx",
        [],
        [None, None, "age", None, "ward", None, ""],
        [None, None, 1, None, "x"],
        [None, " ", None, None, ""],
        [None, None, FormulaError("#N/A"), None, "y"],
        [None, None, "3", None, FormulaError("#DIV/0!"), None, " "],
        [],
        [None, None, "", None, "", None, None],
    )
    table = read(path)
    assert [*table.columns] == ["age", "ward"]
    np.testing.assert_array_equal(table.columns["age"].numbers, [1, np.nan, 3])
    assert table.source.lines.tolist() == [3, 5, 6]
    assert table.place(2, "ward") == f"{path}, sheet 'Patients', row 6, column 'ward'"
    assert table.columns["ward"].missing.tolist() == [0, 0, 1]


def test_numeric_names_and_blank_rows_are_as_in_csv(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", [" ", None], [2024.0, 0, "y"], [1, 2, 0])
    assert [*read(path).columns] == ["2024", "0", "y"]


def test_a_value_in_a_column_without_a_name_is_refused(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", ["Patients of 2024"], ["age", "target"], [1, 0])
    with pytest.raises(DataError, match=r"sheet 'Patients', row 1: column B has no name, and row 2 has a value in it"):
        read(path)
    assert [letters(place) for place in (0, 25, 26, 701, 702)] == ["A", "Z", "AA", "ZZ", "AAA"]


def test_of_several_sheets_that_hold_values_one_must_be_named(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    rows = [["age", "target"], *([k, k % 2] for k in range(20))]
    path = tmp_path / "a.xlsx"
    write_workbook(path, {"Notes": [["read me"]], "Data": rows, "Empty": [], "Old": rows}, hidden=["Old"])
    with pytest.raises(DataError, match=r"2 sheets that hold values, 'Notes', 'Data': .*csv.sheet=Notes") as caught:
        agreed(config(path))
    assert caught.value.reportable.startswith("its workbook has 2 sheets that hold values")
    assert len(read(path, sheets=("Data",))) == len(read(path, sheets=("Patients", "Data"))) == 20
    assert agreed(config(path, sheet="Data"))[0].clients == ("a",)
    with pytest.raises(DataError, match=r"csv.sheet = 'Daten': .*a.xlsx has no such sheet.*did you mean Data\?"):
        agreed(config(path, sheet="Daten"))
    write_workbook(path, {"Data": rows, "Empty": [], "Old": rows}, hidden=["Old"])
    assert read(path).source.sheet == "Data"
    write_workbook(path, {"Empty": []})
    with pytest.raises(DataError, match=r"a.xlsx is empty"):
        read(path)


def test_a_stray_last_cell_ends_only_the_readers_process(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    path = tmp_path / "a.xlsx"
    write_workbook(
        path, {"S": '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'}
    )
    with pytest.raises(DataError, match=r"a.xlsx cannot be read: .*stray value in the last row or column") as caught:
        read(path)
    assert caught.value.reportable.startswith("its file is too large")


def test_a_workbook_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    path = tmp_path / "a.xlsx"
    write_workbook(path, {"S": f'<row r="1"><c r="A1" t="inlineStr"><is><t>{"x" * 400_000_000}</t></is></c></row>'})
    assert path.stat().st_size < 2**20
    with pytest.raises(DataError, match=r"a.xlsx cannot be read"):
        read(path)


def test_entities_of_a_workbook_are_not_expanded(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    path = tmp_path / "a.xlsx"
    inner = "".join(f'<!ENTITY {chr(98 + k)} "{("&" + chr(97 + k) + ";") * 10}">' for k in range(12))
    laughs = f'<!DOCTYPE w [<!ENTITY a "lol">{inner}<!ENTITY own SYSTEM "file:///etc/passwd">]>'
    rows = '<row r="1"><c r="A1" t="inlineStr"><is><t>&m;&own;</t></is></c><c r="B1" t="str"><v>&own;</v></c></row>'
    write_workbook(path, {"S": rows}, before=laughs)
    try:
        names = "".join(read(path).columns)
    except DataError as error:
        names = str(error)
    assert "lol" not in names
    assert "root:" not in names


def test_files_beside_an_open_workbook_are_passed_over(tmp_path: Path) -> None:
    write(frame_of(), tmp_path / "a.xlsx")
    (tmp_path / "~$a.xlsx").write_bytes(b"\x05owner")
    assert load_task(config(tmp_path)).clients == ("a",)


def test_two_formats_of_one_name_would_be_one_client(tmp_path: Path) -> None:
    write(frame_of(), tmp_path / "a.xlsx")
    write(frame_of(), tmp_path / "a.csv")
    with pytest.raises(FairbloomError, match=r"a.csv and a.xlsx would both be client a: rename"):
        agreed(config(tmp_path))


# CSV as other languages have it -----------------------------------------------------------------------------------


def german(text: str) -> str:
    """Return a table as a German Excel writes it."""
    rows = [[cell.replace(".", ",") for cell in row] for row in csv.reader(text.splitlines())]
    return "\r\n".join(["sep=;", *(";".join(row) for row in rows)]) + "\r\n"


@pytest.mark.parametrize("rows", [40, 60_000])
@pytest.mark.parametrize(
    ("encoding", "written"), [("utf-8", "utf-8"), ("utf-8", "utf-16"), ("cp1252", "cp1252"), ("UTF-16LE", "utf-16-le")]
)
def test_a_german_excel_file_equals_one_with_points_and_commas(
    tmp_path: Path, encoding: str, written: str, rows: int
) -> None:
    text = csv_of(rows).replace("north", "nörth")
    for name, content in (("plain", text.encode()), ("german", german(text).encode(written))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_bytes(content)
    plain, there = config(tmp_path / "plain"), config(tmp_path / "german", decimal=",", encoding=encoding)
    assert told_by(there) == told_by(plain)
    assert bits(agreed(there)[0]) == bits(agreed(plain)[0])
    task = agreed(config(tmp_path / "german", decimal=",", encoding=encoding, target="dose", ignore="target"))[0]
    assert bits(task) == bits(agreed(config(tmp_path / "plain", target="dose", ignore="target"))[0])


def test_lines_are_counted_from_the_separators_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sep=;\nage;target\n1;0\nx;1\n2;1\n3;0\n4;1\n5;0\n")
    with pytest.raises(DataError, match=r"a.csv, line 4, column 'age' holds 'x'"):
        read(path, as_texts=frozenset({"target"}))
    path.write_text("sep=;\nage;target\n1;0;0\n")
    with pytest.raises(DataError, match=r"a.csv, line 3 has 3 values, and line 2 names 2 columns"):
        read(path)
    path.write_text("sep=^\n4711^target\n" + "3^0\n4^1\n" * 9)
    with pytest.raises(DataError, match=r"a.csv, line 2: the name of column 1 looks like a value"):
        told_by(config(path) | {"deployed": True})


@pytest.mark.parametrize(
    ("content", "decimal", "said"),
    [
        (
            "age;target\n1,5;0\n2,5;1\n",
            ".",
            r"line 2, column 'age' holds '1,5', a number with a comma: say csv.decimal=,",
        ),
        ("age;target\n1.5;0\n2.5;1\n", ",", r"line 2, column 'age' holds '1.5', a number with a point.*csv.decimal"),
        ("age;target\n1,5;0\n1.500;1\n2;1\n", ",", r"line 3, column 'age' holds '1.500', which is not a number"),
        ("age;target\n1,5;0,5\n2,5;1.000\n", ",", r"line 3, column 'target' holds '1.000', a number with a point"),
    ],
)
def test_the_other_decimal_mark_is_refused_by_line(tmp_path: Path, content: str, decimal: str, said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    names = frozenset({"target"})
    with pytest.raises(DataError, match=said):
        read(path, decimal=decimal, as_texts=names, targets=names)


def test_a_code_with_a_point_stays_a_category_with_comma_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("icd;dose\n250.00;4,0\n401.9;4\n")
    table = read(path, decimal=",", as_texts=frozenset({"icd", "dose"}))
    assert table.columns["icd"].texts == ("250", "401.9")
    assert table.columns["dose"].texts == ("4",)


@pytest.mark.parametrize("given", ["latin-9000", "rot13", "hex"])
def test_an_unknown_encoding_is_refused_before_reading(tmp_path: Path, given: str) -> None:
    (tmp_path / "a.csv").write_text(csv_of(20))
    with pytest.raises(FairbloomError, match=rf"csv.encoding = '{given}': Python knows no such encoding"):
        load_task(config(tmp_path, encoding=given))


def test_a_file_in_utf_8_is_read_as_such(tmp_path: Path) -> None:
    text = csv_of(30).replace("north", "nörth")
    (tmp_path / "a.csv").write_bytes(text.encode())
    (tmp_path / "b.csv").write_bytes(text.encode("cp1252"))
    _, what = agreed(config(tmp_path, encoding="cp1252"))
    assert [each["categories"] for each in what["inputs"] if each["categories"]] == [["nörth", "south", "west"]]


def test_a_run_without_these_settings_keeps_its_name(tmp_path: Path) -> None:
    plain = config(tmp_path)
    assert not {"csv.decimal", "csv.encoding", "csv.sheet"}.intersection(plain)
    assert config(tmp_path, decimal=",")["csv.decimal"] == ","
