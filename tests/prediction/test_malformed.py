"""Files that cannot be predicted are refused, by line and column, and no file of predictions is left."""

from dataclasses import replace
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
        ("1 of 30 rows", "line 7, column 'age' holds 'old'", "not a number"),
    ),
    "several cells": (
        line(4, 9, age="old", dose="?"),
        ("2 of 30 rows", "line 4, column 'dose'", "line 9, column 'age'"),
    ),
    "texts for most numbers": (line(*range(2, 30), age="x"), ("28 of 30 rows", "line 2, column 'age'", "and 8 more")),
    "a decimal comma": (line(3, dose="0,51"), ("line 3, column 'dose' holds '0,51'", "files have decimal points")),
    "a number that is too large": (line(5, age="1e200"), ("line 5, column 'age' holds '1e200'", "at most 1e+100")),
    "an infinite number": (line(6, age="inf"), ("line 6, column 'age' holds 'inf'", "at most 1e+100")),
    "a missing number": (line(8, age=""), ("line 8, column 'age' holds ''", "there is no value")),
    "a missing category": (line(9, ward="?"), ("line 9, column 'ward' holds '?'", "there is no value")),
    "a column is missing": (renamed("dose", "patient_2"), ("it lacks 'dose'", "it has 'patient_2'")),
    "a column is called otherwise": (renamed("smoker", "Smoker"), ("did you mean Smoker", "upper and lower case")),
    "a column is new": ([f"{each},1" for each in [*GOOD]], ("it has '1', which no file of the run had",)),
    "a column is there twice": (renamed("dose", "age"), ("line 1: columns 2 and 3 are both called 'age'",)),
    "a column has no name": (renamed("dose", ""), ("line 1: column 3 has no name",)),
    "a line is short": ([*GOOD[:4], "P0,30.0", *GOOD[4:]], ("line 5 has 2 values, and line 1 names 6 columns",)),
    "a line is long": ([*GOOD[:4], GOOD[4] + ",1", *GOOD[5:]], ("line 5 has 7 values",)),
    "no names": (GOOD[1:], ("line 1",)),
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
    for what, (content, expected) in MALFORMED.items():
        new.write_bytes(content if isinstance(content, bytes) else ("\n".join(content) + "\n").encode())
        with pytest.raises(FairbloomError) as caught:
            load_predictor(run.folder, client="north").predict_file(new, new.with_name("out.csv"))
        assert all(words in str(caught.value) for words in (str(new), *expected)), what
        assert [path.name for path in new.parent.iterdir()] == ["new.csv"]


def test_a_file_is_predicted_once_its_lines_are_corrected(run: fairbloom.Run, new: Path) -> None:
    predictor, out = load_predictor(run.folder, client="north"), new.with_name("out.csv")
    new.write_text("\n".join(line(7, age="old")), encoding="utf-8")
    with pytest.raises(FairbloomError, match="correct it, or leave it out"):
        predictor.predict_file(new, out)
    new.write_text("\n".join(GOOD), encoding="utf-8")
    assert predictor.predict_file(new, out) == 30
    new.write_text("\n".join([*GOOD[:6], *GOOD[7:]]), encoding="utf-8")
    assert predictor.predict_file(new, out) == 29
    assert [predictor.describe(count).partition(",")[0] for count in (1, 29)] == ["1 prediction", "29 predictions"]


def test_the_error_names_one_column_that_is_not_read(run: fairbloom.Run, new: Path) -> None:
    new.write_text("\n".join(renamed("dose", "patient_2")), encoding="utf-8")
    predictor = load_predictor(run.folder, client="north")
    with pytest.raises(FairbloomError, match="patient, outcome may be there, and are not looked at"):
        predictor.predict_file(new, new.with_name("out.csv"))
    assert predictor.preprocessing is not None
    alone = replace(predictor, preprocessing=replace(predictor.preprocessing, ignored=()))
    with pytest.raises(FairbloomError, match=r"; outcome may be there, and is not looked at"):
        alone.predict_file(new, new.with_name("out.csv"))


def test_a_missing_value_is_no_error_where_training_filled_it_in(together: fairbloom.Run, new: Path) -> None:
    new.write_text("\n".join(line(8, age="", ward="NA")), encoding="utf-8")
    assert load_predictor(together.folder).predict_file(new, new.with_name("out.csv")) == 30


def test_a_file_that_is_not_there_is_named(run: fairbloom.Run, new: Path) -> None:
    with pytest.raises(FairbloomError, match=r"new\.csv cannot be read: No such file"):
        load_predictor(run.folder, client="north").predict_file(new, new.with_name("out.csv"))


def test_a_column_called_as_a_prediction_is_refused(run: fairbloom.Run) -> None:
    frame = pandas.DataFrame(patients(0, 5)).rename(columns={"patient": "predicted_outcome"})
    with pytest.raises(FairbloomError, match="it has 'predicted_outcome', which no file of the run had"):
        run.predict(frame, client="north")


FRAMES = {
    "a text for a number": (("age", ["1", "2", "x"]), "row 2, column 'age' holds 'x': it is not a number"),
    "no value": (("dose", [0.1, None, 0.3]), "row 1, column 'dose' holds '': there is no value"),
    "a truth for a number": (("age", [True, False, True]), "row 0, column 'age' holds 'True': it is not a number"),
    "a list": (("age", [[1], [2], [3]]), r"row 0, column 'age' holds '\[1\]': it is not a number"),
}


def test_a_data_frame_is_refused_by_row_and_column(run: fairbloom.Run) -> None:
    for (column, values), expected in FRAMES.values():
        frame = pandas.DataFrame(patients(0, 3))
        frame[column] = values
        with pytest.raises(FairbloomError, match=expected):
            run.predict(frame, client="north")


def test_a_data_frame_with_two_columns_of_one_name_is_refused(run: fairbloom.Run) -> None:
    frame = pandas.DataFrame(patients(0, 3))[[*COLUMNS, "age"]]
    with pytest.raises(FairbloomError, match="two columns called 'age'"):
        run.predict(frame, client="north")


def test_a_data_frame_without_rows_is_refused(run: fairbloom.Run) -> None:
    with pytest.raises(FairbloomError, match="the data frame has no rows"):
        run.predict(pandas.DataFrame(patients(0, 3)).iloc[:0], client="north")
