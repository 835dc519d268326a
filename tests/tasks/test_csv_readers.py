"""CSV files: whatever one holds, pyarrow makes of it to the bit what Python makes, or leaves it to Python."""

import csv
import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairbloom.tasks.files.reading import progress, reader, text
from fairbloom.tasks.files.reading.build import build_table
from fairbloom.tasks.files.reading.formats import DELIMITERS
from fairbloom.tasks.files.reading.table import ColumnHints, Table
from fairbloom.tasks.files.reading.text import read_text
from fairbloom.tasks.files.reasons import DataError

NUMBERS = ["1", "0", "-0", "007", "2.5", "-.5", "5.", "+1", "1e5", "1E-7", "1e-320", "9007199254740993", "4.0", "0.1"]
WITH_COMMAS = ["1,5", "-0,25", "+,5", "7,", "1,5e3", "1,234", "1,2,3", "4,0", "3"]
ODD_NUMBERS = ["1e100", "1e101", "-1e400", "1e-400", "inf", "-Infinity", "1_000", "0x10", "1,5", "٣", "½", "1f", "--1"]
BLANKS = ["", "NA", "na", "?", "NaN", "-nan", "N/A", "null", "NULL", " ", " NA ", "\xa0", "nan(1)", "none"]
WORDS = ["a", "A", "north", "nörth", "K", "\u212a", "k", "ward x", " a", "a\t", "\x1c", "\u2028", "true", "2024-03-17"]
QUOTED = ['"', 'a"b', "a,b", "x;y", "two\nlines", "two\r\nlines", "a\rb", "a|b", "tab\t"]
CELLS = NUMBERS + ODD_NUMBERS + BLANKS + WORDS + QUOTED
NAMES = ["age", "ward", "target", "K", "a", "1", "NaN", "1e5", "north", "2024-03-17", "Age", "x,y", " b "]

columns_of_cells = st.one_of(
    st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3),
    st.lists(st.sampled_from(NUMBERS + BLANKS), min_size=1, max_size=6),
    st.lists(st.sampled_from(WITH_COMMAS + BLANKS), min_size=1, max_size=6),
    st.lists(st.sampled_from(WITH_COMMAS + NUMBERS), min_size=1, max_size=6),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
    st.lists(st.sampled_from(CELLS), min_size=1, max_size=8),
    st.lists(st.floats(width=64).map(repr), min_size=1, max_size=6),
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Draw a CSV file: mostly as programs write them, with whatever people make of them afterwards."""
    delimiter = draw(st.sampled_from(DELIMITERS))
    width, rows = draw(st.integers(2, 4)), draw(st.integers(0, 40))
    pools = [draw(columns_of_cells) for _ in range(width)]
    header = draw(st.lists(st.sampled_from(NAMES), min_size=width, max_size=width, unique=draw(st.booleans())))
    usual = [[pool[k % len(pool)] for pool in pools] for k in range(rows)]
    if rows and draw(st.booleans()):
        usual[draw(st.integers(0, rows - 1))][draw(st.integers(0, width - 1))] = draw(st.sampled_from(CELLS))
    out = io.StringIO(newline="")
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]))
    end = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows([header, *usual])
    content = out.getvalue()
    if draw(st.integers(0, 3)) == 0:  # somebody has been at it
        place = draw(st.integers(0, len(content)))
        content = (
            content[:place] + draw(st.sampled_from([*CELLS, "\n", "\r", end, delimiter, '""', "\0"])) + content[place:]
        )
    if draw(st.booleans()):
        content = content.removesuffix(end)
    if draw(st.integers(0, 4)) == 0:
        content = f"sep={draw(st.sampled_from([delimiter, delimiter, ';', '^', '']))}{end}{content}"
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-16-le", "utf-32"]))
    return content.encode(encoding, errors="replace")


hints = st.builds(
    ColumnHints,
    st.frozensets(st.sampled_from(["target", "ward", "1"])),
    st.frozensets(st.sampled_from(["age", "k", "a"])),
    targets=st.frozensets(st.sampled_from(["target", "1"])),
    decimal=st.sampled_from([".", ","]),
    encoding=st.sampled_from(["utf-8", "iso8859-1", "utf-16-le"]),
)


def content_of(table: Table) -> list[object]:
    """Return all that a table holds, in a form that is equal only where all bits are."""
    columns = [
        (
            *(column.name, column.label, type(column.label), column.texts, column.blanks, column.kind),
            *(None if each is None else (each.dtype, each.tobytes()) for each in (column.numbers, column.codes)),
            (column.missing.dtype, column.missing.tobytes()),
        )
        for column in table.columns.values()
    ]
    return [
        table.path,
        table.doubtful,
        table.source.header,
        table.source.lines.dtype,
        table.source.lines.tobytes(),
        *columns,
    ]


def outcome(path: Path, known: ColumnHints) -> object:
    """Return what is made of a file, or said of it."""
    try:
        return content_of(build_table(read_text(path, known, lambda share: None), known))
    except DataError as error:
        return str(error), error.reportable, list(map(str, error.others))


def outcome_by_python(path: Path, known: ColumnHints) -> object:
    """Return the same where Python reads whatever the file holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "is_plain", lambda content, delimiter: False)
        return outcome(path, known)


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that Python reads, one entry for each."""
    found: list[str] = []
    by_python = text.read_by_python

    def read_by_python(*arguments: Any) -> Any:
        found.append("read")
        return by_python(*arguments)

    monkeypatch.setattr(text, "read_by_python", read_by_python)
    return found


@pytest.fixture(params=[2**20, 64], ids=["at once", "in blocks"])
def in_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be parsed at once or in many blocks."""
    monkeypatch.setattr(text, "BLOCK_BYTES", request.param)


@pytest.mark.slow
@pytest.mark.usefixtures("in_blocks")
@given(content=files(), known=hints)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_pyarrow_reads_to_the_bit_what_python_reads(tmp_path: Path, content: bytes, known: ColumnHints) -> None:
    path = tmp_path / "site.csv"
    path.write_bytes(content)
    assert outcome(path, known) == outcome_by_python(path, known)


def lines(*cells: str, rows: int = 60) -> str:
    return "".join(f"{k},{cells[k % len(cells)]}\n" for k in range(rows))


PLAIN = {
    "numbers": "id,x\n" + lines("1", "-2.5", "1e5"),
    "missing values in some spellings": "id,x\n" + lines("1", "NA", "", "2.5", "?", " nan "),
    "spaces around numbers": "id,x\n" + lines(" 1", "2 ", " NA"),
    "nothing but missing values": "id,x\n" + lines("", "NA"),
    "texts": "id,x\n" + lines("north", "south ", "nörth", "NA"),
    "a text after many numbers": "id,x\n" + lines("1", rows=50) + "50,north\n",
    "a number of Python alone after many others": "id,x\n" + lines("1", rows=50) + "50,٣\n",
    "a number that is too large": "id,x\n" + lines("1", rows=50) + "50,1e101\n",
    "a line that states the separator": "sep=;\nid;x\n" + lines("1", "2").replace(",", ";"),
    "quotation marks around all": '"id","x"\n' + lines('"north"', '""', '"a,b"'),
    "lines as on Windows": "id,x\r\n" + lines("1", "2").replace("\n", "\r\n"),
    "a mark of UTF-8": "\ufeffid,x\n" + lines("1", "2"),
    "no line end after the last row": "id,x\n" + lines("1", "2").rstrip("\n"),
    "semicolons": "id;x\n" + lines("1", "2").replace(",", ";"),
    "a name that is a number": "1,x\n" + lines("a", "b"),
    "a name among its texts": "id,north\n" + lines("a", "North"),
}


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("case", PLAIN)
def test_plain_files_are_read_by_pyarrow(tmp_path: Path, case: str, taken_over: list[str]) -> None:
    path = tmp_path / "site.csv"
    path.write_text(PLAIN[case], encoding="utf-8", newline="")
    fast = outcome(path, ColumnHints())
    assert not taken_over
    assert fast == outcome_by_python(path, ColumnHints())
    assert taken_over


SURPRISES = {
    "a row that is too short": "id,x\n" + lines("1") + "60\n",
    "a blank line": "id,x\n" + lines("1") + "\n60,2\n",
    "a blank line as on Windows": ("id,x\n" + lines("1") + "\n60,2\n").replace("\n", "\r\n"),
    "lines as on old Macintoshes": "id,x\n" + lines("1", "2").replace("\n", "\r"),
    "a quotation mark within a value": "id,x\n" + lines("1", '5" pipe'),
    "a doubled quotation mark": "id,x\n" + lines('"a ""b"""'),
    "two lines within quotation marks": "id,x\n" + lines('"a\nb"'),
    "a quotation mark that is not closed": "id,x\n" + lines('"a'),
    "a value that is longer than Python's reader takes": "id,x\n" + lines("a" * 140_000, rows=2),
    "zero bytes": "id,x\n" + lines("1", "\0"),
    "one column": "x\n1\n2\n",
    "two columns of one name": "x,X\n" + lines("1"),
}


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("case", SURPRISES)
def test_python_takes_over_at_the_first_surprise(tmp_path: Path, case: str, taken_over: list[str]) -> None:
    path = tmp_path / "site.csv"
    path.write_text(SURPRISES[case], encoding="utf-8", newline="")
    found = outcome(path, ColumnHints())
    assert taken_over or isinstance(found, tuple)
    assert found == outcome_by_python(path, ColumnHints())


# What is kept, and shown ----------------------------------------------------------------------------------------------


def test_a_process_that_is_given_tables_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_tables", {})
    path = tmp_path / "site.csv"
    path.write_text("id,x\n1,a\n2,b\n")
    table, status = reader.read(path, ColumnHints()), path.stat()
    given = pickle.loads(pickle.dumps(reader.kept_tables()))  # noqa: S301 (our own)
    path.write_text("'" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    monkeypatch.setattr(reader, "_tables", {})
    with pytest.raises(DataError):
        reader.read(path, ColumnHints())
    reader.keep_tables(given)
    assert content_of(reader.read(path, ColumnHints())) == content_of(table)


def test_the_tables_that_were_read_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_tables", {})
    monkeypatch.setattr(reader, "MAX_TABLES", 2)
    paths = [tmp_path / f"{name}.csv" for name in "abc"]
    for path in paths:
        path.write_text("id,x\n1,a\n")
    for place in (0, 1, 0, 2):
        reader.read(paths[place], ColumnHints())
    assert [path.stem for path, *_ in reader.kept_tables()] == ["a", "c"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("shown", "size"), [(Terminal(), 0), (io.StringIO(), 0), (Terminal(), 10**6)])
def test_progress_is_shown_on_a_terminal_of_large_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: io.StringIO, size: int
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "SHOWN", size)
    monkeypatch.setattr("sys.stderr", shown)
    path = tmp_path / "site.csv"
    path.write_text("id,x\n" + lines("1", "2"))
    reader.read(path, ColumnHints())
    assert ("reading site.csv" in shown.getvalue()) == (shown.isatty() and not size)


@pytest.mark.parametrize("end", ["", "\n"], ids=["pyarrow", "Python"])
def test_reading_can_be_interrupted(tmp_path: Path, end: str) -> None:
    path = tmp_path / "site.csv"
    path.write_text("id,x\n" + lines("1", "2") + end)

    def interrupt(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_text(path, ColumnHints(), interrupt)
