"""Malformed files are refused by line and column, and no file of predictions is left."""

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


MALFORMED: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "a text for a number": (
        line(7, age="old"),
        ("1 of 30 rows", "line 7, column 'age' holds 'old'"),
    ),
    "several cells": (
        line(4, 9, age="old", dose="?"),
        ("2 of 30 rows", "line 4, column 'dose'", "line 4, column 'age' holds 'old'", "1 more row"),
    ),
    "a missing number": (line(8, age=""), ("line 8, column 'age' has no value",)),
    "a missing category": (line(9, ward="?"), ("line 9, column 'ward' has no value",)),
    "a column is missing": (renamed("dose", "patient_2"), ("no column 'dose'", "'patient_2'")),
    "a column is new": ([f"{each},1" for each in [*GOOD]], ("column '1'",)),
    "a line is short": ([*GOOD[:4], "P0,30.0", *GOOD[4:]], ("line 5",)),
    "no rows": (GOOD[:1], ("no rows",)),
    "empty": ([], ("is empty",)),
}
"""Files that cannot be predicted, with parts of the errors; tests/tasks has other faults of
readers."""


def test_a_malformed_file_is_refused(
    run: fairbloom.Run, new: Path, subtests: pytest.Subtests
) -> None:
    predictor = load_predictor(run.folder, client="north")
    with pytest.raises(FairbloomError, match=r"new\.csv"):
        predictor.predict_file(new, new.with_name("out.csv"))
    for what, (content, expected) in MALFORMED.items():
        with subtests.test(what=what, content=content):
            new.write_text("".join(f"{each}\n" for each in content), encoding="utf-8")
            with pytest.raises(FairbloomError) as caught:
                predictor.predict_file(new, new.with_name("out.csv"))
            assert all(words in str(caught.value) for words in (str(new), *expected)), what
            assert [path.name for path in new.parent.iterdir()] == ["new.csv"]


def test_a_file_without_the_unreadable_row_is_predicted(
    run: fairbloom.Run, together: fairbloom.Run, new: Path
) -> None:
    predictor = load_predictor(run.folder, client="north")
    out = new.with_name("out.csv")
    new.write_text("\n".join([*GOOD[:6], *GOOD[7:]]), encoding="utf-8")
    assert predictor.predict_file(new, out) == 29
    assert [predictor.describe(count) for count in (1, 29)] == ["1 prediction", "29 predictions"]
    new.write_text("\n".join(line(8, age="", ward="NA")), encoding="utf-8")
    # as training filled missing values in
    assert load_predictor(together.folder).predict_file(new, out) == 30


def test_a_data_frame_is_refused_by_row_and_column(
    run: fairbloom.Run, subtests: pytest.Subtests
) -> None:
    frame = pandas.DataFrame(patients(0, 3))
    cases = [
        (frame.assign(age=["1", "2", "x"]), "row 2, column 'age' holds 'x'"),
        (frame.assign(dose=[0.1, None, 0.3]), "row 1, column 'dose' has no value"),
        (frame.assign(age=[[1], [2], [3]]), r"row 0, column 'age' holds '\[1\]'"),
        (frame[[*COLUMNS, "age"]], "two columns called 'age'"),
        (frame.iloc[:0], "the data frame has no rows"),
        (
            frame.rename(columns={"patient": "predicted_outcome"}),
            "column 'predicted_outcome', which the schema",
        ),
    ]
    for wrong, expected in cases:
        with subtests.test(wrong=wrong, expected=expected):
            with pytest.raises(FairbloomError, match=expected):
                run.predict(wrong, client="north")
