"""Files that cannot be predicted are refused, by line and column, and no file of predictions is left."""

from pathlib import Path

import pandas
import pytest

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import load_predictor

from .made import COLUMNS, patients, written

GOOD = written(patients(0, 30)).splitlines()
"""The lines of a file that can be predicted; the first names the columns."""


def line(*numbers: int, **cells: str) -> list[str]:
    """Return the good file with other cells in some lines."""
    rows = patients(0, 30)
    for number in numbers:
        rows[number - 2] |= cells
    return written(rows).splitlines()


def renamed(old: str, new: str) -> list[str]:
    return [GOOD[0].replace(old, new), *GOOD[1:]]


MALFORMED: dict[str, tuple[list[str] | bytes, tuple[str, ...]]] = {
    "a text for a number": (
        line(7, age="old"),
        ("1 of 30 rows", "line 7, column 'age' holds 'old'", "no number"),
    ),
    "several cells": (
        line(4, 9, age="old", dose="?"),
        ("2 of 30 rows", "line 4, column 'dose'", "line 4, column 'age' holds 'old'", "1 more row"),
    ),
    "texts for most numbers": (line(*range(2, 30), age="x"), ("line 2, column 'age' holds 'x'",)),
    "a decimal comma": (line(3, dose="0,51"), ("line 3, column 'dose' holds '0,51'", "decimal comma")),
    "a number that is too large": (line(5, age="1e200"), ("line 5, column 'age' holds '1e200'", "at most 1e+100")),
    "an infinite number": (line(6, age="inf"), ("line 6, column 'age' holds 'inf'",)),
    "a missing number": (line(8, age=""), ("line 8, column 'age' has no value",)),
    "a missing category": (line(9, ward="?"), ("line 9, column 'ward' has no value",)),
    "a column is missing": (
        renamed("dose", "patient_2"),
        ("no column 'dose'", "'patient_2', which the schema does not name"),
    ),
    "a column is new": ([f"{each},1" for each in [*GOOD]], ("column '1', which the schema does not name",)),
    "a column is there twice": (renamed("dose", "age"), ("columns 2 and 3 are both called 'age'",)),
    "a column has no name": (renamed("dose", ""), ("column 3 has no name",)),
    "a line is short": ([*GOOD[:4], "P0,30.0", *GOOD[4:]], ("line 5 has 2 values, and line 1 names 6 columns",)),
    "a line is long": ([*GOOD[:4], GOOD[4] + ",1", *GOOD[5:]], ("line 5 has 7 values",)),
    "no names": (GOOD[1:], ("no column 'age'",)),
    "no rows": (GOOD[:1], ("no rows below the names of its columns",)),
    "empty": (b"", ("is empty: its first line must name the columns",)),
    "blank lines": (b"\n\n\n", ("is empty",)),
    "one column": (b"age\n4\n", ("line 1 names one column only",)),
    "an open quotation mark": ([*GOOD[:3], '"' + GOOD[3], *GOOD[4:]], ("line", "quotation mark")),
    "another encoding": ("\n".join(GOOD).encode("cp1252"), ("is not UTF-8", "line")),
    "UTF-16 without a mark": ("\n".join(GOOD).encode("utf-16-le"), ("UTF-16",)),
    "a spreadsheet": (b"PK\x03\x04" + bytes(200), (".xlsx",)),
    "bytes": (bytes(range(256)) * 4, ("new.csv",)),
}


def test_a_malformed_file_is_refused(run: fairbloom.Run, new: Path) -> None:
    predictor = load_predictor(run.folder, client="north")
    with pytest.raises(FairbloomError, match=r"new\.csv cannot be read: No such file"):
        predictor.predict_file(new, new.with_name("out.csv"))
    for what, (content, expected) in MALFORMED.items():
        new.write_bytes(content if isinstance(content, bytes) else ("\n".join(content) + "\n").encode())
        with pytest.raises(FairbloomError) as caught:
            predictor.predict_file(new, new.with_name("out.csv"))
        assert all(words in str(caught.value) for words in (str(new), *expected)), what
        assert [path.name for path in new.parent.iterdir()] == ["new.csv"]


def test_a_file_without_the_unreadable_row_is_predicted(run: fairbloom.Run, together: fairbloom.Run, new: Path) -> None:
    predictor, out = load_predictor(run.folder, client="north"), new.with_name("out.csv")
    new.write_text("\n".join([*GOOD[:6], *GOOD[7:]]), encoding="utf-8")
    assert predictor.predict_file(new, out) == 29
    assert [predictor.describe(count) for count in (1, 29)] == ["1 prediction", "29 predictions"]
    new.write_text("\n".join(line(8, age="", ward="NA")), encoding="utf-8")
    assert load_predictor(together.folder).predict_file(new, out) == 30  # as training filled missing values in


def test_a_data_frame_is_refused_by_row_and_column(run: fairbloom.Run) -> None:
    frame = pandas.DataFrame(patients(0, 3))
    cases = [
        (frame.assign(age=["1", "2", "x"]), "row 2, column 'age' holds 'x'"),
        (frame.assign(dose=[0.1, None, 0.3]), "row 1, column 'dose' has no value"),
        (frame.assign(age=[True, False, True]), "row 0, column 'age' holds 'True'"),
        (frame.assign(age=[[1], [2], [3]]), r"row 0, column 'age' holds '\[1\]'"),
        (frame[[*COLUMNS, "age"]], "two columns called 'age'"),
        (frame.iloc[:0], "the data frame has no rows"),
        (frame.rename(columns={"patient": "predicted_outcome"}), "column 'predicted_outcome', which the schema"),
    ]
    for wrong, expected in cases:
        with pytest.raises(FairbloomError, match=expected):
            run.predict(wrong, client="north")
