"""New rows in any format, and written as the files of the run are: the same predictions."""

import csv
from pathlib import Path

import pandas
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import load_predictor
from tests.tables.workbooks import write_workbook

from .hospitals import run_hospitals


def predicted(folder: Path, file: Path, delimiter: str = ",") -> list[dict[str, str]]:
    out = file.with_suffix(".out")
    load_predictor(folder, client="h0").predict_file(file, out)
    with out.open(encoding="utf-8", newline="") as written:
        return list(csv.DictReader(written, delimiter=delimiter))


def as_german(file: Path, to: Path) -> Path:
    """Write a CSV file as a German Excel does."""
    rows = [line.replace(",", ";").replace(".", ",") for line in file.read_text().splitlines()]
    to.write_text("\r\n".join(row.replace("f;", "fé;") for row in rows) + "\r\n", encoding="cp1252")
    return to


@pytest.mark.parametrize("ending", [".xlsx", ".parquet"])
def test_predictions_are_those_of_the_same_rows_in_csv(
    there: Path, tmp_path: Path, ending: str
) -> None:
    pytest.importorskip("python_calamine" if ending == ".xlsx" else "pyarrow")
    frame = pandas.read_csv(there / "new.csv")
    file = tmp_path / f"new{ending}"
    if ending == ".xlsx":
        write_workbook(
            file, {"Patients": [list(frame.columns), *frame.astype(object).values.tolist()]}
        )
    else:
        frame.to_parquet(file)
    expected = predicted(there / "run", there / "new.csv")
    found = predicted(there / "run", file)
    names = [name for name in expected[0] if name.startswith(("pred", "prob"))]
    assert [[row[name] for name in names] for row in found] == [
        [row[name] for name in names] for row in expected
    ]
    assert [float(row["age"]) for row in found] == [float(row["age"]) for row in expected]


def test_unreadable_rows_of_a_sheet_are_named_as_it_shows_them(there: Path, tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    file = tmp_path / "new.xlsx"
    write_workbook(
        file, {"Patients": [["age", "bp", "sex"], [60, 130, "f"], [], ["old", 120, "m"]]}
    )
    with pytest.raises(
        FairbloomError, match=r"new.xlsx: 1 of 2 rows(.|\n)*row 4, column 'age' holds 'old'"
    ):
        predicted(there / "run", file)


def test_new_rows_are_read_with_the_runs_mark_and_encoding(there: Path, tmp_path: Path) -> None:
    (tmp_path / "german").mkdir()
    for file in sorted((there / "hospitals").glob("*.csv")):
        as_german(file, tmp_path / "german" / file.name)
    german = run_hospitals(tmp_path / "german", tmp_path / "run")
    found = predicted(german, as_german(there / "new.csv", tmp_path / "new.csv"), ";")
    expected = predicted(there / "run", there / "new.csv")
    assert [row["predicted_target"] for row in found] == [
        row["predicted_target"] for row in expected
    ]
    assert [row["probability_sick"].replace(",", ".") for row in found] == [
        row["probability_sick"] for row in expected
    ]
    # Whoever reads the predictions says one decimal mark for all columns.
    again = pandas.read_csv(tmp_path / "new.out", sep=";", decimal=",")
    assert {
        str(again[name].dtype) for name in ("age", "bp", "probability_sick", "probability_well")
    } == {"float64"}
    assert {row["sex"] for row in found} == {"fé", "m"}
    with pytest.raises(
        FairbloomError, match=r"column 'age' holds '.*', a number with a decimal point"
    ):
        predicted(german, there / "new.csv")
