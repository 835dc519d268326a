"""Files of tables: CSV, Parquet and workbooks are read right, or refused by name; nothing is
silently wrong."""

import csv
import datetime
import gzip
import io
import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyarrow import parquet as arrow_parquet

from fairbloom import tables
from fairbloom.errors import install_command
from fairbloom.tables import reading
from fairbloom.tables.cells import different_cells
from fairbloom.tables.encoding import read_column
from fairbloom.tables.folders import files_in, folders_in
from fairbloom.tables.reading import ReadTable
from fairbloom.tables.reasons import REASONS, DataError
from fairbloom.tables.schema import MISSING_VALUES, SchemaFile, parse_schema
from fairbloom.tasks import Task
from fairbloom.tasks.columns import ENDINGS

from .helpers import csv_of, inferred, load, schema_with
from .workbooks import (
    HEAD,
    MAIN,
    SHEET,
    STYLES,
    FormulaError,
    edit_workbook,
    sheet_of,
    write_workbook,
)


def read(path: Path, **how: Any) -> ReadTable:
    return tables.read(path, SchemaFile(**how))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site.csv"


def texts_of(table: ReadTable, name: str) -> list[str]:
    """Return the cells of a column as texts."""
    cells, codes = different_cells(table.columns[name])
    return [cells[code].strip() for code in codes]


def numbers_of(table: ReadTable, name: str) -> tuple[list[float], list[str]]:
    """Return the numbers of a column, and the faults of its cells."""
    target = '[fields.y]\ntype = "string"\ncategories = ["a", "b"]\n'
    schema = parse_schema(
        f'target = "y"\nmissing = "drop"\n[fields."{name}"]\ntype = "number"\n{target}'
    )
    wrong: list[DataError] = []
    numbers = read_column(table, name, schema, wrong)
    return np.where(np.isinf(numbers), np.nan, numbers).tolist(), [str(each) for each in wrong]


def refusal(path: Path, content: bytes | None = None, **how: Any) -> DataError:
    """Return the error of a file; the text for the server must not have the path."""
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(path, **how)
    assert path.name in str(caught.value)
    assert str(path.parent) not in caught.value.reportable
    return caught.value


# CSV: read right, or refused ----------------------------------------------------------------------

CELLS = (
    *(
        "1",
        "-0.5",
        "5.",
        "1e5",
        "1e101",
        "inf",
        "1_000",
        "1,5",
        "٣",
        "",
        "NA",
        "?",
        " nan ",
        "north",
        "nörth",
        " a",
    ),
    *(
        "two\nlines",
        "two\r\nlines",
        "a\rb",
        'a"b',
        '"',
        '""',
        "a,b",
        "x;y",
        "a|b",
        "tab\t",
        "\x1c",
        "\u2028",
        "sep=;",
    ),
)


@st.composite
def hostile_files(draw: st.DrawFn) -> bytes:
    """Draw a CSV file as programs write them, with whatever people make of it afterwards."""
    width = draw(st.integers(2, 4))
    rows = draw(st.integers(0, 30))
    delimiter = draw(st.sampled_from(",;\t|"))
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    out = io.StringIO(newline="")
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator=end)
    writer.writerow([f"c{k}" for k in range(width)])
    writer.writerows([[draw(st.sampled_from(CELLS)) for _ in range(width)] for _ in range(rows)])
    content = out.getvalue()
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(content)))
        content = (
            content[:place]
            + draw(st.sampled_from([*CELLS, "\n", "\n\n", end, delimiter, "\0"]))
            + content[place:]
        )
    content = content.removesuffix(end) if draw(st.booleans()) else content
    return content.encode(
        draw(st.sampled_from(["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le"])),
        errors="replace",
    ) + draw(st.sampled_from([b"", b"", b"\xff", b"\x00"]))


def read_by_python(content: bytes) -> list[list[tuple[int, list[str]]]]:
    """Return, for each separator, line and cells of each row that is not blank, as Python's own
    reader has them, strictly, or with spaces around quotation marks."""
    marked = next((name for mark, name in reading.MARKS.items() if content.startswith(mark)), "")
    try:
        decoded = content.decode(marked or "utf-8")
    except UnicodeDecodeError:
        decoded = content.decode("cp1252")
    found = []
    for delimiter in ",;\t|":
        unified = io.StringIO(decoded.replace("\r\n", "\n").replace("\r", "\n"))
        for strict in (True, False):
            unified.seek(0)
            lines = csv.reader(
                unified, delimiter=delimiter, strict=strict, skipinitialspace=not strict
            )
            with suppress(csv.Error):
                found.append(
                    [(lines.line_num, [cell.strip() for cell in row]) for row in lines if row]
                )
    return found


@given(content=hostile_files(), block=st.sampled_from([2**10, 2**22]))
@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_hostile_files_are_read_right_or_refused_by_name(
    site: Path, content: bytes, block: int
) -> None:
    site.write_bytes(content)
    said = ""
    table = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MAX_ROW", block)
        try:
            table = read(site, encoding="cp1252")
        except DataError as error:
            said = str(error)
    if table is None:
        assert "site.csv" in said
        return
    columns = [texts_of(table, name) for name in table.columns]
    rows = [[column[row] for column in columns] for row in range(len(table))]
    assert ([*table.columns], [*zip(table.lines.tolist(), rows, strict=True)]) in [
        (names, found) for (_, names), *found in read_by_python(content)
    ]


@pytest.mark.parametrize("delimiter", ",;\t|")
def test_whatever_separates_ends_and_encodes_a_text(site: Path, delimiter: str) -> None:
    cells = ["a", "b,;|\tc", "two\nlines", 'say "yes"', "nörth", ""]
    for end in ("\n", "\r\n", "\r"):
        for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1252"):
            out = io.StringIO(newline="")
            csv.writer(out, csv.unix_dialect, delimiter=delimiter, lineterminator=end).writerows(
                [["id", "x"], *([str(k), cell] for k, cell in enumerate(cells))]
            )
            site.write_bytes(out.getvalue().replace(f'{end}"4"', f'{end}{end}"4"').encode(encoding))
            table = read(site, encoding="cp1252")
            assert texts_of(table, "x") == cells, (delimiter, end, encoding)
            assert table.lines.tolist() == [2, 3, 5, 6, 8, 9], (delimiter, end, encoding)


@pytest.mark.parametrize("delimiter", [*",;\t|"])
def test_spaces_around_quotation_marks_are_no_part_of_a_value(site: Path, delimiter: str) -> None:
    rows = [
        '"id",   "x, y" , "z"',
        '1, "a",',
        ' "2" ,"b, ""c"" , d"  , "e"',
        '3, "two',
        ' ""lines"" "  ,"" ',
    ]
    site.write_text("\n".join(rows).replace(",", delimiter))
    table = read(site)
    assert [*table.columns] == ["id", f"x{delimiter} y", "z"]
    assert texts_of(table, "id") == ["1", "2", "3"]
    quoted = f'b{delimiter} "c" {delimiter} d'
    assert texts_of(table, f"x{delimiter} y") == ["a", quoted, 'two\n "lines"']
    assert texts_of(table, "z") == ["", "e", ""]
    assert table.lines.tolist() == [2, 3, 5]
    for wrong in ("1, x 'b'", '1, "a" b', '1,"a" "b"'):
        content = f"id,x\n{wrong}\n".replace("'", '"').replace(",", delimiter)
        assert refusal(site, content.encode()).why == "quotes"


def test_numbers_and_missing_values_in_all_spellings(site: Path) -> None:
    texts = [" 1", "2 ", "-.5", "5.", "+1e-7", "9007199254740993", *MISSING_VALUES, " na ", "Nan"]
    site.write_text("x,id\n" + "".join(f"{each},1\n" for each in texts))
    numbers, wrong = numbers_of(read(site), "x")
    np.testing.assert_array_equal(numbers, [*map(float, texts[:6]), *[np.nan] * (len(texts) - 6)])
    assert wrong == []


@pytest.mark.parametrize(
    ("content", "how", "expected"),
    [
        ("x;id\n1,5;a\n-,25;b\n3;NA\n", {}, [1.5, -0.25, 3]),
        ("x;id\n1.5;a\n-.25;b\n3;NA\n", {"decimalChar": "."}, [1.5, -0.25, 3]),
        ("x;id\n1 200,5;a\n900;b\n", {"groupChar": " ", "decimalChar": ","}, [1200.5, 900]),
        ("x;id\n1.200;a\n900;b\n", {"groupChar": "."}, [1200, 900]),
    ],
)
def test_marks_of_numbers_are_stated_or_found(
    site: Path, content: str, how: dict[str, str], expected: list[float]
) -> None:
    site.write_text(content)
    assert numbers_of(read(site, **how), "x") == (expected, [])


@pytest.mark.parametrize("cell", ["inf", "1_000", "1e101", "0x10", "1,5", "٣", "1 200"])
def test_a_cell_that_is_no_number_is_a_fault(site: Path, cell: str) -> None:
    site.write_text(f'x,id\n"{cell}",1\n2,1\n3.5,1\n')
    numbers, wrong = numbers_of(read(site), "x")
    np.testing.assert_array_equal(numbers, [np.nan, 2, 3.5])
    assert len(wrong) == 1


@pytest.mark.parametrize(
    ("content", "why", "place"),
    [
        ('id,x\n1,5" pipe\n', "quotes", "line 2"),
        ('id,x\n1,a\n2,"b"c\n', "quotes", "line 3"),
        ('id,x\n1,"a\nb"\n2,"b\n', "quotes", "line 4"),
        ('"id","x"\n1,2\n\n"a\nb"\n', "row-length", "line 5 has 1 values, and line 1 names 2"),
        ("id,x\r1,2\r3\r", "row-length", "line 3 has 1 values"),
        ("sep=;\nid;x\n1;2\n", "unnamed-column", "state headerRows"),
        ("id\n1\n", "one-column", "'id'"),
        ("\n\n", "empty", ""),
        ("id,x\n1,\0\n", "utf-16", "utf-16-le"),
        ("id,ID\n1,2\n", "same-column", "columns 1 and 2"),
    ],
)
def test_a_text_that_is_no_table_is_refused_by_line(
    site: Path, content: str, why: str, place: str
) -> None:
    error = refusal(site, content.encode())
    assert (error.why, place in str(error)) == (why, True)


def test_rows_of_other_lengths_or_too_long_are_refused(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = refusal(site, b"a,b\n" + b"1\n2,3\n" * 3)
    assert [str(each).split(",")[1][:7] for each in (several, *several.others)] == [
        " line 2",
        " line 4",
        " line 6",
    ]
    site.write_bytes(b"a,b\n1," + b"x" * 500_000 + b"\n")
    assert numbers_of(read(site), "a") == ([1.0], [])
    monkeypatch.setattr(reading, "MAX_ROW", 1000)
    assert "shorten it" in str(refusal(site, b"a,b\n1," + b"x" * 5000 + b"\n"))


@pytest.mark.parametrize("ending", [".csv", ".xlsx"])
def test_rows_that_repeat_the_names_are_left_out(tmp_path: Path, ending: str) -> None:
    again = ["AGE", " ward ", "Größe"]
    rows: list[list[object]] = [["Age", "ward", "größe"], [1, "a", 2], [*again]]
    rows += [[3, "ward", 4], [*again], ["age", "ward", "5"]]
    path = tmp_path / f"a{ending}"
    write_rows(path, rows)
    table = read(path)
    assert texts_of(table, "ward") == ["a", "ward", "ward"]
    assert table.lines.tolist() == [2, 4, 6]
    unit = "line" if ending == ".csv" else "row"
    remark = f"{unit} 3, one of 2 such {unit}s, repeats the names of the columns, and is left out"
    assert table.remarks == [(None, remark)]
    write_rows(path, [*rows[:2], again])
    assert read(path).remarks == [(None, remark.replace(f", one of 2 such {unit}s,", ""))]


def write_rows(path: Path, rows: list[list[object]]) -> None:
    """Write a table without quotation marks, or a workbook."""
    if path.suffix == ".xlsx":
        write_workbook(path, {"One": rows})
    else:
        path.write_text("\n".join(",".join(map(str, row)) for row in rows))


@pytest.mark.parametrize("ending", [".csv", ".xlsx"])
def test_a_row_of_a_first_value_alone_is_remarked(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    rows: list[list[object]] = [["ward", "age", "dose"], ["a", 1, 2], ["Source: b", "", ""]]
    write_rows(path, [*rows, ["", 3, ""]])
    ((column, remark),) = read(path).remarks
    unit = "line" if ending == ".csv" else "row"
    assert (column, remark.partition(" has")[0]) == (None, f"{unit} 3")
    for kept in ([*rows[:2], ["", 3, ""], ["c", 4, ""]], [row[:2] for row in rows]):
        write_rows(path, kept)
        assert not read(path).remarks


ROWS = ['"1",34,well', '"2",80,"ill, or so"', '"3",60,well']


@pytest.mark.parametrize("names", [("1", "2", "3"), ("a b", "c", "d")])
def test_names_of_rows_that_r_writes_are_not_read(site: Path, names: tuple[str, ...]) -> None:
    rows = [f'"{name}"{row[3:]}' for name, row in zip(names, ROWS, strict=True)]
    site.write_text("\n".join(['"age","outcome"', *rows]) + "\n")
    table = read(site)
    assert [*table.columns] == ["age", "outcome"]
    assert texts_of(table, "age") == ["34", "80", "60"]
    assert texts_of(table, "outcome") == ["well", "ill, or so", "well"]
    assert table.lines.tolist() == [2, 3, 4]
    assert [name for name, remark in table.remarks if "as R writes it" in remark] == [None]


@pytest.mark.parametrize(
    "rows",
    [
        [*ROWS, ROWS[0]],
        [*ROWS, "4,70"],
        [*ROWS, "4,70,well,0"],
        [*ROWS, ",70,well"],
        ["a,34,well", ",80,ill", "b,60,well"],
        [*ROWS, "four,70,well"],
        ["1,34,", "2,80,", "3,60,"],
        ["patient,age,outcome", "1,34,well", "2,80,ill"],
    ],
    ids=["twice", "shorter", "longer", "empty", "unnamed", "mixed", "ended", "note"],
)
def test_rows_without_names_of_their_own_are_faults(site: Path, rows: list[str]) -> None:
    error = refusal(site, "\n".join(["age,outcome", *rows]).encode())
    assert (error.why, "line 2 has 3 values" in str(error)) == ("row-length", True)


# What a file is -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".xlsx"])
def test_first_bytes_must_fit_the_ending(tmp_path: Path, ending: str) -> None:
    starts = {
        "gz": gzip.compress(b"a,b\n1,2\n"),
        "xlsx": b"PK\x03\x04",
        "xls": b"\xd0\xcf\x11\xe0",
        "parquet": b"PAR1",
    }
    for kind, start in starts.items():
        error = refusal(tmp_path / f"a{ending}", start + b"\x15\x04")
        assert (f"begins like .{kind}" in str(error)) == (ending != f".{kind}")
        assert error.why == ("no-table" if ending == f".{kind}" else "other-format")


@pytest.mark.parametrize("ending", [".parquet", ".xlsx"])
def test_a_text_has_no_ending_of_another_format(tmp_path: Path, ending: str) -> None:
    assert (
        refusal(tmp_path / f"a{ending}", b"age,target\n1,0\n").reportable == REASONS["other-format"]
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(
            (f"b{ending}", b"")
            for ending in (
                *(".pq", ".csv.bz2", ".xlsb", ".sav", ".DTA", ".csv.xz"),
                *(".ods", ".xls", ".xlsm", ".feather", ".csv.gz"),
            )
        ),
        *((name, csv_of(9).encode()) for name in ("b.txt", "b.dat", "b", "b.csv.bak", "b.csv~")),
        ("b.txt", csv_of(9).replace(",", "\t").encode("utf-16")),
        ("b.txt", b"age dose\n" + b"50.5  1\n" * 5),
        ("b.json", b'[\n  {"age": 50, "target": 1}\n]'),
        ("b.parquet.1", b"PAR1\x15\x04"),
        ("b.bin", b"SQLite format 3\0"),
        ("b/1.csv~", csv_of(9).encode()),
    ],
)
def test_no_table_is_overlooked(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "a.csv").write_text(csv_of(20))
    (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / name).parent.joinpath("1.csv").write_text(csv_of(20))
    (tmp_path / name).write_bytes(content)
    # A text is read if data-dir names it.
    for place in (tmp_path,) if content else (tmp_path, tmp_path / name):
        with pytest.raises(DataError, match=rf"{tmp_path}/{name}: .*: save it as \.csv"):
            inferred(place)


def test_a_workbook_under_another_name_is_not_overlooked(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "a.csv").write_text(csv_of(20))
    letter = b"\xd0\xcf\x11\xe0" + bytes(2**17)
    book = tmp_path / "b.bak"
    write_workbook(book, {"Patients": [["age"], [1]]})
    for content in (book.read_bytes(), letter + "Workbook".encode("utf-16-le")):
        with subtests.test(content=content[:4]):
            book.write_bytes(content)
            with pytest.raises(
                DataError, match=r"b\.bak: it holds a table, and \.bak files are not"
            ):
                files_in(str(tmp_path), ENDINGS)
    with zipfile.ZipFile(book, "w") as archive:
        archive.writestr("word/document.xml", "")
    (tmp_path / "c.doc").write_bytes(letter)
    (tmp_path / "d.txt").write_text("one two\nthree four\n5 six\nseven eight\n")
    assert [*files_in(str(tmp_path), ENDINGS)] == ["a"]


@pytest.mark.parametrize("list_clients", [partial(files_in, endings=ENDINGS), folders_in])
def test_a_link_to_nothing_is_refused(
    tmp_path: Path, list_clients: Callable[[str], object]
) -> None:
    (tmp_path / "a.csv").write_text(csv_of(20))
    (tmp_path / "b.csv").symlink_to(tmp_path / "gone.csv")
    with pytest.raises(DataError, match=r"b\.csv: it is a link to .*gone\.csv"):
        list_clients(str(tmp_path))


def test_other_entries_of_a_folder_are_named_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(csv_of(20))
    for name in (
        "Thumbs.db",
        "~$b.xlsx",
        ".hidden.csv.gz",
        "out/config.toml",
        "out/env.json",
        "runs/x/config.toml",
        "runs/x/env.json",
        "study/study.json",
        "study/runs/x/config.toml",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(b"a,b\n1,2\n3,4\n")
    (tmp_path / "__MACOSX" / "a.csv").mkdir(parents=True)
    assert [*files_in(str(tmp_path), ENDINGS)] == ["a", "b"]
    assert "not read" not in caplog.text
    (tmp_path / "a letter.txt").write_text("Dear all,\nthe tables are here.\nYours, Bo\n")
    (tmp_path / "run.log").write_text("12:00:00,1 begins\n12:00:01,2 works\n12:00:02,3 ends\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "plan.pdf").write_bytes(b"%PDF-1.7\n")
    load(tmp_path)
    files_in(str(tmp_path), ENDINGS)
    (line,) = [each for each in caplog.messages if "not read" in each]
    assert line == (
        f"data-dir = {str(tmp_path)!r} has entries that are not read: a letter.txt, notes, plan.pdf"
        " and 1 more"
    )


def test_packed_folders_of_pictures_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a/study.json", "out/config.toml", "out/env.json", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("read me")
    assert [*folders_in(str(tmp_path))] == ["a"]
    assert caplog.messages == [
        f"data-dir = {str(tmp_path)!r} has entries that are not read: notes.txt"
    ]
    (tmp_path / "b.zip").write_bytes(b"")
    with pytest.raises(DataError, match=r"b\.zip: \.zip files are not read: unpack it"):
        folders_in(str(tmp_path))


# The same table in any format ---------------------------------------------------------------------


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


def write(frame: pandas.DataFrame, path: Path) -> Path:
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        pytest.importorskip("python_calamine")
        rows = [
            [None if value != value else value for value in row]
            for row in frame.astype(object).values.tolist()
        ]
        write_workbook(path, {"Patients": [list(frame.columns), *rows]})
    return path


def bits(task: Task) -> list[bytes]:
    parts = [
        part
        for client in task.clients
        for part in (task.splits(client).train, task.splits(client).test)
    ]
    return [tensor.numpy().tobytes() for part in parts for tensor in part[slice(0, len(part))]]  # type: ignore[union-attr]


@pytest.mark.parametrize("chosen", [{}, {"missing": "fill"}, {"target": "age"}])
def test_a_folder_of_any_formats_is_to_the_bit_that_of_csv_files(
    tmp_path: Path, chosen: dict[str, str]
) -> None:
    found = []
    for endings in ((".csv",) * 3, (".parquet", ".xlsx", ".csv")):
        folder = tmp_path / f"of{endings[0]}"
        folder.mkdir()
        for seed, ending in enumerate(endings):
            frame = frame_of(seed=seed)
            if "missing" in chosen:
                frame.loc[3, "age"] = frame.loc[5, "ward"] = None
            write(frame, folder / f"{'abc'[seed]}{ending}")
        text = inferred(folder, target=chosen.get("target", ""))
        if "missing" in chosen:
            text = schema_with(('missing = "error"', 'missing = "fill"'), text=text)
        found.append((text.partition("\n")[2], bits(load(folder, text))))
    assert found[0] == found[1], chosen


@pytest.mark.parametrize("ending", [".parquet", ".xlsx"])
def test_values_become_the_texts_and_numbers_that_a_csv_file_has(
    tmp_path: Path, ending: str
) -> None:
    frame = pandas.DataFrame(
        {
            "whole": [1.0, 2.0, None, 4.0],
            "big": [2**53 + 0.0, 1e99, -0.5, 1e-7],
            "flag": [True, False, True, True],
            "word": ["x ", None, "NA", "ä"],
            "day": [datetime.date(2024, 3, 17)] * 3 + [datetime.date(1999, 12, 31)],
            "text number": ["007", "1.50", "2", "3"],
        }
    )
    table = read(write(frame, tmp_path / f"a{ending}"))
    assert str(numbers_of(table, "whole")[0]) == "[1.0, 2.0, nan, 4.0]"
    assert numbers_of(table, "big")[0] == [2**53, 1e99, -0.5, 1e-7]
    assert numbers_of(table, "text number")[0] == [7, 1.5, 2, 3]
    assert texts_of(table, "flag") == ["True", "False", "True", "True"]
    assert texts_of(table, "word") == ["x", "", "NA", "ä"]
    assert texts_of(table, "day") == ["2024-03-17"] * 3 + ["1999-12-31"]


@pytest.mark.parametrize(("ending", "row"), [(".parquet", "row 7"), (".xlsx", "row 8")])
def test_errors_name_row_and_column_as_the_program_shows_them(
    tmp_path: Path, ending: str, row: str
) -> None:
    frame = frame_of()
    text = inferred(write(frame, tmp_path / "right.csv"))
    ages = [*frame.age[:6].astype(str), "forty", *frame.age[7:].astype(str)]
    for said, each in {
        "column 'age' holds 'forty'": frame.assign(age=ages),
        "column 'age' holds '', no value": frame.assign(age=frame.age.where(frame.index != 6)),
        "column 'age' holds '1e+200'": frame.assign(age=frame.age.where(frame.index != 6, 1e200)),
        "column 'target' holds '7'": frame.assign(target=frame.target.where(frame.index != 6, 7.0)),
    }.items():
        path = write(each, tmp_path / f"a{ending}")
        with pytest.raises(DataError) as caught:
            load(path, text).splits("a")
        assert f"{path}, {row}, {said}" in str(caught.value)
        assert "forty" not in caught.value.reportable


# Parquet ------------------------------------------------------------------------------------------


def test_parquets_types_are_texts_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "ward": pa.array(["a", None, "b", "a"]).dictionary_encode(),
            "code": pa.array([10, 20, 10, None]).dictionary_encode(),
            "price": (
                pa.array(["1.10", "2.00", None, "0.1"]).cast(pa.string()).cast(pa.decimal128(9, 2))
            ),
            "small": pa.array([1, 2, 3, None], pa.uint8()),
            "half": pa.array([0.5, float("nan"), None, 2.0], pa.float32()),
            "seen": pa.array([0, 1_500_000, 2_000_000, None], pa.timestamp("us")),
            "nothing": pa.nulls(4),
            "scans": [[1, 2]] * 4,
            "__index_level_0__": pa.array([4, 3, 2, 1]),
        }
    )
    arrow_parquet.write_table(table, path, row_group_size=2)
    found = read(path)
    assert [*found.columns] == [
        "ward",
        "code",
        "price",
        "small",
        "half",
        "seen",
        "nothing",
        "scans",
    ]
    assert found.columns["scans"] is None
    assert texts_of(found, "ward") == ["a", "", "b", "a"]
    assert texts_of(found, "seen")[:3] == [
        "1970-01-01 00:00:00",
        "1970-01-01 00:00:01.500000",
        "1970-01-01 00:00:02",
    ]
    assert texts_of(found, "nothing") == [""] * 4
    nan = np.nan
    for name, values in {
        "code": [10, 20, 10, nan],
        "price": [1.1, 2.0, nan, 0.1],
        "small": [1, 2, 3, nan],
        "half": [0.5, nan, nan, 2.0],
    }.items():
        np.testing.assert_array_equal(numbers_of(found, name)[0], values)


def test_damaged_parquet_files_are_refused(tmp_path: Path) -> None:
    path = write(frame_of(200), tmp_path / "a.parquet")
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[int(random.integers(4, len(whole)))] = int(random.integers(0, 256))
        path.write_bytes(damaged)
        try:
            read(path)
        except DataError:
            refused += 1
    assert refused > 5


@pytest.mark.parametrize(
    ("table", "size", "smaller"),
    [
        (pa.table({"x": np.zeros(200)}), 200 * 2 * 8, 1),
        (pa.table({"x": np.zeros(900), "y": np.zeros(900)}), 900 * 3 * 8, 1),
        (pa.table({"x": [{"a": 1}] * 300}), 300 * 2 * 8, 1),  # no column is read
        (pa.table({"t": ["x" * 1000] * 400}), 410_000, 11_000),  # texts, compressed in the file
    ],
)
def test_a_parquet_file_needs_at_most_half_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: pa.Table, size: int, smaller: int
) -> None:
    path = tmp_path / "a.parquet"
    arrow_parquet.write_table(table, path, use_dictionary=False, row_group_size=250)
    monkeypatch.setattr(reading, "half_of_memory", lambda: size)
    assert len(read(path)) == len(table)
    monkeypatch.setattr(reading, "half_of_memory", lambda: size - smaller)
    monkeypatch.setattr(arrow_parquet.ParquetFile, "read", None)  # refused before
    error = refusal(path, decimalChar=",")  # which is not read yet
    assert f"{len(table)} rows of {table.num_columns} columns" in str(error)
    assert error.reportable == REASONS["too-large"]


@pytest.mark.parametrize(
    ("number", "rows", "size"), [(b"\x82\x00", 1, 200 * 2 * 8), (b"\xfe\x7f", 8191, 8191 * 2 * 8)]
)
def test_a_parquet_file_may_be_wrong_about_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: bytes, rows: int, size: int
) -> None:
    path = tmp_path / "a.parquet"
    arrow_parquet.write_table(pa.table({"x": np.zeros(200)}), path)
    # where 200 is first, it is the number of rows of the whole file
    path.write_bytes(path.read_bytes().replace(b"\x16\x90\x03", b"\x16" + number, 1))
    assert arrow_parquet.ParquetFile(path).metadata.num_rows == rows
    monkeypatch.setattr(reading, "half_of_memory", lambda: size - 1)
    assert refusal(path).why == "too-large"


# Workbooks ----------------------------------------------------------------------------------------


@pytest.fixture(name="path")
def workbook_path(tmp_path: Path) -> Path:
    """Skip the test if workbooks cannot be read."""
    pytest.importorskip("python_calamine")
    return tmp_path / "a.xlsx"


def test_empty_rows_and_columns_of_a_sheet_are_passed_over(path: Path) -> None:
    rows: list[list[object]] = [
        [],
        [None, None, "age", None, "ward", None, ""],
        [None, None, 1, None, "x"],
        [None, " ", None, None, ""],
        [None, None, FormulaError("#N/A"), None, "y"],
        [None, None, "3", None, FormulaError("#DIV/0!"), None, " "],
        [],
    ]
    write_workbook(path, {"Patients": rows})
    table = read(path)
    assert [*table.columns] == ["age", "ward"]
    np.testing.assert_array_equal(numbers_of(table, "age")[0], [1, np.nan, 3])
    assert (table.lines.tolist(), table.unit) == ([3, 5, 6], "row")
    write_workbook(path, {"Patients": [["Patients of 2024"], ["age", "target"], [1, 0]]})
    assert refusal(path).why == "unnamed-column"


def test_a_workbook_has_one_sheet_with_values(path: Path) -> None:
    rows = [["age", "target"], *([k, k % 2] for k in range(20))]
    write_workbook(path, {"Notes": [["read me"]], "Data": rows, "Empty": []})
    error = refusal(path)
    assert "2 sheets that hold values, 'Notes', 'Data'" in str(error)
    assert "2 sheets" in error.reportable
    write_workbook(path, {"Data": rows, "Empty": [], "Old": rows}, hidden=["Old"])
    assert len(read(path)) == 20
    write_workbook(path, {"Empty": []})
    assert refusal(path).why == "empty"


def rows_of_formulas(formula: str, result: str, about: str = "") -> str:
    """Return a sheet in XML, in which a column has formulas."""
    return sheet_of([["age", "target"]]) + "".join(
        [
            f'<row r="{k}"><c r="A{k}"{about}>{formula}{result}</c><c r="B{k}"><v>{k % 2}</v></c></row>'
            for k in range(2, 12)
        ]
    )


@pytest.mark.parametrize("formula", ["<f>B2*2</f>", '<f t="shared" si="0"/>'])
@pytest.mark.parametrize("result", ["", "<v></v>", "<v />", "<v> </v>"])
def test_formulas_without_results_are_refused(path: Path, formula: str, result: str) -> None:
    write_workbook(path, {"Notes": [], "Data": rows_of_formulas(formula, result)})
    error = refusal(path)
    assert str(error) == (
        f"{path}, sheet 'Data', cell A2: it has formulas without results: open and save it in a"
        " spreadsheet"
    )
    assert error.reportable == REASONS["no-results"]


def test_results_of_formulas_are_read(path: Path) -> None:
    formula = "<f>B2*2</f>"
    write_workbook(path, {"Data": rows_of_formulas(formula, "<v>7</v>")})
    assert numbers_of(read(path), "age")[0] == [7.0] * 10
    # An empty text is a result, and a hidden sheet is not read.
    empty = rows_of_formulas(formula, "<v></v>", ' t="str"')
    write_workbook(path, {"Old": rows_of_formulas(formula, ""), "Data": empty}, hidden=["Old"])
    assert texts_of(read(path), "age") == [""] * 10


def formatted(code: str) -> str:
    """Return the styles of a workbook, of which cells of style 2 have this format of numbers."""
    own = f'<numFmts count="1"><numFmt numFmtId="164" formatCode={quoteattr(code)}/></numFmts>'
    return STYLES.replace("<cellXfs", f"{own}<cellXfs").replace(
        "</cellXfs>", '<xf numFmtId="164"/><xf applyNumberFormat="1" numFmtId="9"/></cellXfs>'
    )


@pytest.mark.parametrize(
    ("code", "style", "shown"),
    [
        ("0.00", 2, 0.57),
        ("0%", 2, 57.0),
        ("[Red]0.0%;-0.0%", 2, 57.0),
        ('0.0" % of 1"', 2, 0.57),
        ("0\\%", 2, 0.57),
        ("0_%", 2, 0.57),
        ("0", 3, 57.0),  # a format of every workbook
        ("0%", 0, 0.57),
    ],
)
def test_a_cell_is_the_number_that_is_shown(
    path: Path, code: str, style: int, shown: float
) -> None:
    cells = f'<c r="B3" s="{style}"><v>0.57</v></c><c s="{style}" r="C3" t="str"><v>x</v></c>'
    rows = sheet_of([["", "", ""], ["", "share", "ward"]]) + f'<row r="3">{cells}</row>'
    for sheet in (rows, re.sub(r' r="[A-Z]?[0-9]+"', "", rows).replace("<c s=", "<c/><c s=", 1)):
        write_workbook(path, {"Notes": [], "S": sheet}, styles=formatted(code))
        table = read(path)
        assert numbers_of(table, "share")[0] == [shown]
        assert texts_of(table, "ward") == ["x"]
    aside = sheet_of([[None], [None, "share", "ward"]]) + f'<row r="3">{cells}</row>'
    hidden = '<cols><col min="3" max="3" hidden="1"/></cols>'
    write_workbook(path, {"S": aside}, before=hidden, styles=formatted(code))
    assert numbers_of(read(path), "share")[0] == [shown]
    assert [name for name, _ in read(path).remarks] == ["ward"]


def test_hidden_rows_and_columns_are_remarked(path: Path) -> None:
    rows = sheet_of([["age", "name", "dose"], *([k, "x", k] for k in range(6))])
    for number in (3, 4):
        rows = rows.replace(f'<row r="{number}">', f'<row spans="1:3" hidden="1" r="{number}">')
    write_workbook(path, {"S": rows}, before='<cols><col min="2" max="3" hidden="true"/></cols>')
    remarks = dict(read(path).remarks)
    assert remarks.keys() == {"name", "dose", None}
    assert remarks[None].startswith("2 rows are hidden in the sheet, and read, the first in row 3")
    write_workbook(path, {"S": rows.replace('hidden="1"', 'hidden="0"')})
    assert not read(path).remarks


def merged(*ranges: str) -> str:
    cells = "".join(f'<mergeCell ref="{each}"/>' for each in ranges)
    return f"<mergeCells>{cells}</mergeCells>"


def test_a_merged_cell_has_its_value_in_all_of_its_rows(path: Path) -> None:
    """A blank row in between is none; a cell that is merged over columns is in the first."""
    rows: list[list[object]] = [
        ["ward", None, None],
        [None, "age", "site"],  # names in two rows
        ["A", 61, "x"],
        [None, 62, None],
        [],
        [None, 63, "y"],
        ["B", 64, "y"],
        [None, 65, None],
    ]
    after = merged("A1:A2", "A3:A6", "B1:C1", "C3:C4", "A7:A8", "C8:D8", "A20:A99")
    write_workbook(path, {"S": rows}, after=after)
    table = read(path, headerRows=(2,))
    assert [*table.columns] == ["ward", "age", "site"]
    assert texts_of(table, "ward") == ["A", "A", "A", "B", "B"]
    assert texts_of(table, "age") == ["61", "62", "63", "64", "65"]
    assert texts_of(table, "site") == ["x", "x", "y", "y", ""]
    assert [name for name, _ in table.remarks] == ["ward", "site"]
    write_workbook(path, {"S": rows}, after=merged("A1:A2", "B3:C3"))
    plain = read(path, headerRows=(2,))
    assert texts_of(plain, "ward") == ["A", "", "", "B", ""]
    assert not plain.remarks


def test_merged_cells_that_overlap_or_too_many_are_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Valid workbooks have none that overlap, and each would be filled again."""
    rows = [["x", "y"], *([k, k] for k in range(9))]
    write_workbook(path, {"S": rows}, after=merged("A2:A5", "A5:A7"))
    assert "merged cells of column 1 overlap in row 5" in str(refusal(path))
    write_workbook(path, {"S": rows}, after=merged("A2:A5", "A6:A7", "B5:B7"))
    assert len(read(path)) == 9
    monkeypatch.setattr(reading, "MAX_MERGED", 1)
    assert "more than 1 merged cells" in str(refusal(path))
    write_workbook(path, {"S": rows}, after=merged("A2:what"))
    assert "'what' is no cell" in str(refusal(path))


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        ('="000017",61,="F"', ["000017", "61", "F"]),
        ('"=""000017""",61,"=""F"""', ["000017", "61", "F"]),  # as csv.writer has it
        ('="1,5",61,=""', ["1,5", "61", ""]),
        ('a="b,61,"x,=""y"",z"', None),  # no formula, and a mark that is not closed
        ('"a=""b""",61,"x,=""y"",z"', ['a="b"', "61", 'x,="y",z']),
    ],
)
def test_formulas_that_keep_zeros_are_read(
    tmp_path: Path, line: str, cells: list[str] | None
) -> None:
    path = tmp_path / "a.csv"
    for head in ("case,age,sex", '="case",age,"=""sex"""'):
        path.write_text(f"{head}\n{line}\nb,62,M\n")
        if cells is None:
            assert refusal(path).why == "quotes"
        else:
            table = read(path)
            assert [texts_of(table, name)[0] for name in ("case", "age", "sex")] == cells
            assert [texts_of(table, name)[1] for name in ("case", "age", "sex")] == ["b", "62", "M"]
        path.write_text(f"{head};\n{line};\n".replace(",", "\t").replace(";", ""))
        if cells and "," not in "".join(cells):
            assert texts_of(read(path), "case") == cells[:1]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ('<row><c r="A1"/><c r="XFD1048576"/></row>', "as far as row 1,048,576 and column 16,384"),
        (f'<row r="1048576">{"<c/>" * 20}</row>', "as far as row 1,048,576 and column 20"),
        ('<row><c r="XFDE1"/></row>', "'XFDE1' is no cell"),
        ("<a>" * 200 + "</a>" * 200, "more than 100 elements inside each other"),
        ("<row>", "mismatched tag"),
        ("<!--", "unclosed token"),
        ("<row\x0b/>", "not well-formed"),
    ],
    ids=["far", "unnumbered", "impossible", "deep", "torn", "open", "damaged"],
)
def test_a_hostile_or_damaged_sheet_is_refused(path: Path, rows: str, words: str) -> None:
    """A stray last cell stands for 17 billion of them, for which calamine would end the process."""
    write_workbook(path, {"S": rows})
    assert words in str(refusal(path))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp037"])
@pytest.mark.parametrize(
    "part", [SHEET, "xl/workbook.xml", "xl/styles.xml", "xl/_rels/workbook.xml.rels"]
)
def test_a_workbook_that_declares_entities_is_refused(path: Path, part: str, encoding: str) -> None:
    inner = "".join(
        f'<!ENTITY {chr(98 + k)} "{("&" + chr(97 + k) + ";") * 10}">' for k in range(12)
    )
    laughs = f'<!DOCTYPE w [<!ENTITY a "lol">{inner}<!ENTITY own SYSTEM "file:///etc/passwd">]>'
    write_workbook(path, {"S": [["x", "y"], [1, "&m;&own;"]]})
    edit_workbook(path, part, HEAD, f"{HEAD}{laughs}", encoding)
    error = str(refusal(path))
    assert "it has a document type" in error or encoding == "cp037"
    assert not re.search("lol|root:", error)


def test_a_workbook_has_at_most_so_many_bytes_and_formats(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_ELEMENTS", 3)
    write_workbook(path, {"S": [["x"]]}, styles=formatted("0"))
    assert "more than 3 elements xf" in str(refusal(path))
    monkeypatch.setattr(reading, "MAX_UNPACKED", 10**6)
    write_workbook(
        path, {"S": f'<row r="1"><c r="A1" t="inlineStr"><is><t>{"x" * 10**6}</t></is></c></row>'}
    )
    assert "1,000,000 bytes" in str(refusal(path))


@pytest.mark.parametrize("size", [1, 2**20])
def test_notes_do_not_go_by_prefixes_or_chunks(
    path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "XML_CHUNK_BYTES", size)
    rows = (
        '<x:row><x:c t="str"><x:v>A</x:v></x:c><x:c t="str"><x:v>B</x:v></x:c></x:row><x:row'
        ' hidden="1"><x:c r="A2" s="3"><x:v>0.5</x:v></x:c><x:c r="b2"><x:f>A2</x:f><x:v>2</x:v>'
        "</x:c></x:row>"
    )
    write_workbook(path, {"S": rows}, styles=formatted("0"))
    edit_workbook(path, SHEET, f'xmlns="{MAIN}"', f'xmlns="{MAIN}" xmlns:x="{MAIN}"')
    assert numbers_of(read(path), "A")[0] == [50.0]
    assert dict(read(path).remarks).keys() == {None}
    edit_workbook(path, SHEET, "<x:v>2</x:v>", "")
    assert "cell b2: it has formulas without results" in str(refusal(path))


def test_a_workbook_without_its_package_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(frame_of(), tmp_path / "a.xlsx")
    monkeypatch.setattr(reading.importlib.util, "find_spec", lambda name: None)
    error = refusal(path)
    assert install_command("excel") in str(error)
    assert error.reportable == REASONS["no-extra"]
