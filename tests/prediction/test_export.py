"""Exported models predict the same in ONNX Runtime as `fairbloom predict` does.

New rows in any format, and written as the files of the run are: the same predictions.

Malformed files are refused by line and column, and no file of predictions is left.
"""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.prediction.export import TOLERANCE, describe_refused, export_onnx
from fairbloom.prediction.predictor import Predictor, load_predictor
from fairbloom.server.run_folder.files import CONFIG
from fairbloom.server.run_folder.values import RecordedSettings
from fairbloom.tables.preprocessing import InputColumn, Preprocessing
from fairbloom.tasks.clients import preprocessing_of
from tests.experiments.helpers import captured, fairbloom as command
from tests.tables.helpers import refused_with
from tests.tables.workbooks import write_workbook

from .hospitals import run_hospitals
from .made import CLASSES, COLUMNS, copy_to_device, patients, written

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

AGE = InputColumn("age", "number", center=50.0, scale=10.0, fill=True)
WARD = InputColumn("ward", "category", ("1", "20"), fill=True)


def predict(file: Path, given: Any) -> tuple[list[Any], Any]:
    """Return the predictions for a data frame or an array: classes with probabilities, or a
    quantity twice."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    feed = {"inputs": given}
    if isinstance(given, pandas.DataFrame):
        texts = [each.name for each in session.get_inputs() if each.type == "tensor(string)"]
        feed = {
            each.name: given[[each.name]].fillna("").astype(str).to_numpy(object)
            if each.name in texts
            else given[[each.name]].apply(pandas.to_numeric).to_numpy(np.float64)
            for each in session.get_inputs()
        }
    values, *probabilities = session.run(None, feed)
    return list(values), probabilities[0] if probabilities else values


# Runs ---------------------------------------------------------------------------------------------


def held_out(*, quantity: bool = False) -> pandas.DataFrame:
    """Return rows that no hospital has trained on, in another order of columns."""
    frame = (
        pandas.DataFrame(patients(1, 400, level=120.0 if quantity else None))
        .tail(60)
        .reset_index(drop=True)
    )
    return frame[["smoker", "dose", "ward", "age"]]


def check(run: fairbloom.Run, out: Path, frame: pandas.DataFrame, client: str, model: str) -> None:
    """Export, and compare what ONNX Runtime makes of the rows with what we do."""
    expected = run.predict(frame, client=client, model=model)
    values, numbers = predict(run.export(client=client, model=model, out=out), frame)
    if "probability_" + CLASSES[0] in expected:
        assert values == expected["predicted_outcome"].tolist()
        assert len(set(values)) == len(CLASSES)  # so that the comparison says something
        np.testing.assert_allclose(
            numbers, expected[[f"probability_{name}" for name in CLASSES]], atol=1e-5
        )
    else:
        assert expected["predicted_outcome"].std() > 1.0
        np.testing.assert_allclose(numbers, expected["predicted_outcome"], rtol=1e-5)


def test_exported_tables_predict_as_we_do(
    run: fairbloom.Run, together: fairbloom.Run, quantity: fairbloom.Run, tmp_path: Path
) -> None:
    check(run, tmp_path / "model.onnx", held_out(), "south", "best")
    check(quantity, tmp_path / "model.onnx", held_out(quantity=True), "south", "last")
    frame = held_out()
    frame.loc[[4, 9], "age"] = np.nan
    frame.loc[[5, 9], "ward"] = ""
    frame.loc[[6, 9], "smoker"] = "NA"
    frame.loc[[7, 8], "smoker"] = ["YES", "No"]
    check(together, tmp_path / "model.onnx", frame, "", "last")


@pytest.mark.parametrize("model", ["cnn", "tests.prediction.adapted:Adapted"])
def test_images_are_given_as_the_model_takes_them(model: str, tmp_path: Path) -> None:
    if "adapted" in model:
        pytest.importorskip("peft")
    small = {"engine": "loop", "device": "cpu", "progress": False, "out": tmp_path / "run"}
    run = fairbloom.run("digits", model=model, clients=3, rounds=2, **small)
    images = np.random.default_rng(1).random((11, 1, 8, 8), np.float32)
    predictor = run.predictor()
    assert predictor.preprocessing is not None
    expected = predictor.preprocessing.decode(predictor.outputs(torch.from_numpy(images)))
    values, probabilities = predict(run.export(), images)
    np.testing.assert_allclose(probabilities, expected.probabilities, atol=1e-5)
    assert values == list(expected.values)


def test_the_command_names_the_file(run: fairbloom.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("export", run.folder, "--client", "old town", "--model", "personal") == 0
    file = run.folder / "exports" / "personal-old town.onnx"
    refused = "ward, smoker in no category, or age, dose, ward and 1 more missing"
    shown = f"exported: {file}\nthe file gives no class and NaN for a row with {refused}\n"
    assert capsys.readouterr().out == shown
    assert len(predict(file, held_out())[0]) == 60
    assert (
        "--client with one of north, old town, south and 1 more"
        in captured(capsys, "export", run.folder, code=2).err
    )
    assert (
        f"cannot be written to {run.folder.parent}"
        in captured(
            capsys, "export", run.folder, "--client", "south", "--out", run.folder, code=2
        ).err
    )


def test_refused_rows_of_a_quantity_have_no_class(quantity: fairbloom.Run) -> None:
    assert describe_refused(quantity.predictor("south")).startswith("NaN for a row with ")


def test_a_deployed_client_exports_what_it_keeps(run: fairbloom.Run, tmp_path: Path) -> None:
    copy_to_device(run, "south", tmp_path / "state")
    assert command("export", tmp_path / "state" / "model", "--model", "personal") == 0
    (file,) = tmp_path.rglob("personal-south.onnx")
    values, _ = predict(file, held_out())
    assert (
        values
        == run.predict(held_out(), client="south", model="personal")["predicted_outcome"].tolist()
    )


EXPORT_AND_TRAIN = """
import sys, fairbloom
fairbloom.load(sys.argv[1]).export(client="south", out="model.onnx")
for engine in ("stacked", "workers"):
    fairbloom.run("digits", clients=3, rounds=1, engine=engine, out=engine, progress=False)
"""


@pytest.mark.slow
def test_forked_processes_train_after_an_export(run: fairbloom.Run, tmp_path: Path) -> None:
    command_line = [sys.executable, "-c", EXPORT_AND_TRAIN, str(run.folder)]
    ended = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "workers" / "model.safetensors").exists()


# Cells and names ----------------------------------------------------------------------------------


def predictor_of(
    folder: Path, module: nn.Module, *columns: InputColumn, **options: Any
) -> Predictor:
    """Return a predictor for a table with these columns; its run has only settings."""
    (folder / "run").mkdir()
    CONFIG.write(folder / "run", RecordedSettings({"task": "csv", "model": "logistic"}))
    how = Preprocessing(
        form="table", columns=columns, **{"target": "y", "classes": ("no", "yes"), **options}
    )
    return Predictor(folder / "run", "csv", "", "last", module.eval(), how)


def linear(width: int, outputs: int = 2) -> nn.Module:
    """Return a seeded linear model in which every input has a weight."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(width, outputs))
    with torch.no_grad():
        for k, weights in enumerate(model.parameters()):
            weights.copy_(
                torch.linspace(-1.0, 1.5, weights.numel()).reshape(weights.shape).roll(k, 0)
            )
    return model


def test_odd_cells_and_names_are_predicted_as_in_predict(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    wards = ["1", "1.0", "1.", "20", "20.0", "", "NA", "nan", "NaN", "null", "n/a", "?"]
    # In single precision the deviations of a number of nine digits would be lost.
    seconds = InputColumn("seconds", "number", center=1.7e9, scale=3.0)
    constant = InputColumn("constant", "number", center=7.0, scale=0.0, fill=True)
    names = (
        "linear",
        "1.weight",
        "probabilities",
        "predicted_y",
        "/Concat_0",
        "//",
        "naïve €",
        "inputs",
        "batch",
    )
    odd = [InputColumn(name, "number", center=float(k), scale=2.0) for k, name in enumerate(names)]
    random = np.random.default_rng(0)
    many = len(wards)
    cells = {
        "age": np.linspace(20.0, 90.0, many),
        "ward": wards,
        "seconds": 1.7e9 + np.arange(float(many)),
    }
    cases: list[tuple[list[InputColumn], dict[str, Any]]] = [
        ([AGE, WARD, seconds, constant], {**cells, "constant": [7.0, 1e9, np.nan] * (many // 3)}),
        (odd, {name: k + random.normal(size=7) for k, name in enumerate(names)}),
    ]
    for k, (columns, cells) in enumerate(cases):
        with subtests.test(k=k, columns=columns):
            width = sum(len(column.categories) or 1 for column in columns)
            (tmp_path / f"{k}").mkdir()
            predictor = predictor_of(tmp_path / f"{k}", linear(width), *columns)
            frame = pandas.DataFrame(cells)
            values, numbers = predict(export_onnx(predictor), frame)
            assert predictor.preprocessing is not None
            # no column's name
            predictor = replace(
                predictor, preprocessing=replace(predictor.preprocessing, target="z")
            )
            expected = predictor.predict(frame)
            assert values == expected["predicted_z"].tolist()
            np.testing.assert_allclose(
                numbers, expected[["probability_no", "probability_yes"]], atol=1e-6
            )
            assert np.ptp(numbers[:, 0]) > 0.05, columns


def test_a_row_that_we_refuse_has_no_prediction(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """ONNX has no errors for rows: such a row gets NaN and an empty class, and never a
    prediction."""
    strict = (
        InputColumn("age", "number", center=50.0, scale=10.0),
        InputColumn("ward", "category", ("1", "2")),
    )
    predictor = predictor_of(
        tmp_path, nn.Sequential(linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), *strict
    )
    file = export_onnx(predictor)
    for age, ward in [
        (np.nan, "1"),
        (50.0, ""),
        (50.0, "n/A"),
        (50.0, "3"),
        (np.inf, "1"),
        (-1e200, "1"),
    ]:
        with subtests.test(age=age, ward=ward):
            frame = pandas.DataFrame({"age": [40.0, age, 60.0], "ward": ["2", ward, "1"]})
            with pytest.raises(FairbloomError, match="row 1"):
                predictor.predict(frame)
            values, probabilities = predict(file, frame)
            expected = predictor.predict(frame.iloc[[0, 2]])
            assert values == [expected["predicted_y"].iloc[0], "", expected["predicted_y"].iloc[1]]
            assert np.isnan(probabilities[1]).all()
            np.testing.assert_allclose(
                probabilities[[0, 2]], expected[["probability_no", "probability_yes"]], atol=1e-6
            )


LIMITED = """
target = "y"
missing = "fill"
missingValues = ["", "-7", "none"]
[fields.age]
type = "number"
missingValues = ["-9", "999.0"]
constraints = {minimum = 18, maximum = 110}
center = 30.0
scale = 20.0
[fields.visits]
type = "integer"
missingValues = ["-1"]
constraints = {minimum = 0}
center = 3.0
scale = 2.0
[fields.dose]
type = "number"
constraints = {enum = [0.1, 0.25, 5]}
center = 0.3
scale = 0.1
[fields.ward]
type = "string"
missing = "drop"
categories = ["A", "B"]
spellings = {A = ["first"]}
missingValues = ["9"]
[fields.y]
"""
CLASSES_LINES = 'type = "string"\ncategories = ["no", "yes"]\n'
QUANTITY_LINES = 'type = "number"\ncenter = 10.0\nscale = 2.0\n'

FIRST = {"age": 40.0, "visits": 2.0, "dose": 0.25, "ward": "A"}


@pytest.mark.parametrize("lines", [CLASSES_LINES, QUANTITY_LINES], ids=["classes", "quantity"])
def test_a_graph_keeps_the_limits_of_the_schema(lines: str, tmp_path: Path) -> None:
    """A row that `predict` refuses has no prediction, and a code is a missing value."""
    how = preprocessing_of(LIMITED + lines)
    predictor = replace(predictor_of(tmp_path, linear(5, len(how.classes) or 1)), preprocessing=how)
    changes: list[dict[str, Any]] = [
        {},
        *({"age": age} for age in (17.999, 18.0, 110.0, 110.001, -9.0, 999.0, -7.0, np.nan)),
        *({"age": age} for age in (500.0, -np.inf, 1e150)),
        *({"visits": visits} for visits in (2.5, -1.0, -2.0, 0.0, 1e12, -7.0)),
        *({"dose": dose} for dose in (0.1, 5.0, 0.3, -7.0, np.nan)),
        *({"ward": ward} for ward in ("first", "C", "", "9", "NONE", "-7")),
        {"age": 500.0, "visits": np.nan},
    ]
    frame = pandas.DataFrame([{**FIRST, **each} for each in changes])
    values, numbers = predict(export_onnx(predictor), frame)
    refused = 0
    for row, change in enumerate(changes):
        try:
            expected = predictor.predict(frame.iloc[[row]]).iloc[0]
        except FairbloomError:
            refused += 1
            assert values[row] == "" or not how.classes, change
            assert np.isnan(numbers[row]).all(), change
            continue
        names = ["probability_no", "probability_yes"] if how.classes else ["predicted_y"]
        np.testing.assert_allclose(
            numbers[row], expected[names].to_numpy(float), atol=1e-5, err_msg=str(change)
        )
    assert refused == 14


def test_arrays_with_numbers_that_predict_refuses_have_none(tmp_path: Path) -> None:
    how = Preprocessing(form="arrays", shape=(1, 2), classes=("no", "yes"))
    module = nn.Sequential(linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    predictor = replace(predictor_of(tmp_path, module), preprocessing=how)
    arrays = np.array([[[1.0, 2.0]], [[np.nan, 2.0]], [[1.0, np.inf]]], np.float32)
    values, probabilities = predict(export_onnx(predictor), arrays)
    assert values[1:] == ["", ""]
    assert np.isnan(probabilities).all(axis=1).tolist() == [False, True, True]


def test_a_graph_says_what_it_is(tmp_path: Path) -> None:
    model = onnx.load(export_onnx(predictor_of(tmp_path, linear(3), AGE, WARD)))
    about = {each.key: each.value for each in model.metadata_props}
    assert (about["task"], about["run"], about["target"]) == ("csv", "run", "y")
    assert (about["classes"], about["columns"]) == ('["no", "yes"]', '["age", "ward"]')
    assert [each.name for each in model.graph.output] == ["predicted_y", "probabilities"]
    assert {each.domain: each.version for each in model.opset_import} == {"": 20, "ai.onnx.ml": 3}


def test_a_graph_has_no_paths_of_the_machine(tmp_path: Path) -> None:
    content = export_onnx(predictor_of(tmp_path, linear(3), AGE, WARD)).read_bytes()
    assert b".py" not in content
    assert str(tmp_path).encode() not in content


# What cannot be exported --------------------------------------------------------------------------


class Odd(nn.Module):
    """A layer of two outputs that computes something else where the data say so, or where it is
    exported."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.why = why

    def forward(self, inputs: Tensor) -> Tensor:
        if self.why == "a branch" and inputs.sum() > 0:
            inputs = -inputs
        if self.why == "no operator of ONNX":
            inputs = torch.linalg.eigvalsh(inputs[:, :, None] * inputs[:, None, :])
        outputs: Tensor = self.layer(inputs)
        return (
            outputs.flip(1)
            if self.why == "disagrees" and torch.compiler.is_exporting()
            else outputs
        )


def test_a_module_that_cannot_be_exported_has_its_cause_named(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    predictor = predictor_of(tmp_path, linear(1), AGE)
    for why, cause in {
        "a branch": r"data-dependent.*test_export\.py, line ",
        "no operator of ONNX": "linalg_eigh",
    }.items():
        with subtests.test(why=why, cause=cause):
            with pytest.raises(
                FairbloomError, match=rf"cannot be exported: .*{cause}.*run\.model\(\)"
            ) as caught:
                export_onnx(replace(predictor, module=Odd(why).eval()))
            assert "\n" not in str(caught.value)
            assert capfd.readouterr().err == ""  # PyTorch prints half of a graph
            assert [path.name for path in predictor.run.iterdir()] == ["config.toml"]
    with pytest.raises(FairbloomError, match=r"task csv .*torch\.onnx\.export"):
        export_onnx(replace(predictor, preprocessing=None))


def test_an_export_that_predicts_something_else_writes_nothing(tmp_path: Path) -> None:
    predictor = predictor_of(tmp_path, linear(1), AGE)
    before = export_onnx(predictor).read_bytes()
    with pytest.raises(
        FairbloomError, match=f"the exported model predicts .* {TOLERANCE:g} is the largest"
    ):
        export_onnx(replace(predictor, module=Odd("disagrees").eval()))
    assert [path.read_bytes() for path in (predictor.run / "exports").iterdir()] == [before]


def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # as if it were not installed
    with pytest.raises(
        FairbloomError, match=r"needs onnxscript, .*pip install 'fairbloom\[onnx\]'"
    ):
        export_onnx(predictor_of(tmp_path, linear(1), AGE))


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


# The lines of a file that can be predicted; the first names the columns.
GOOD = written(patients(0, 30)).splitlines()


def line(*numbers: int, **cells: str) -> list[str]:
    """Return the good file with other cells in some lines."""
    rows = patients(0, 30)
    for number in numbers:
        rows[number - 2] |= cells
    return written(rows).splitlines()


def renamed(old: str, new: str) -> list[str]:
    return [GOOD[0].replace(old, new), *GOOD[1:]]


# Files that cannot be predicted, with parts of the errors; tests/tasks has other faults of readers.
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


def test_a_missing_file_is_refused(run: fairbloom.Run, new: Path) -> None:
    with pytest.raises(FairbloomError, match=r"new\.csv"):
        load_predictor(run.folder, client="north").predict_file(new, new.with_name("out.csv"))


@pytest.mark.parametrize(("content", "expected"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file_is_refused(
    run: fairbloom.Run, new: Path, content: list[str], expected: tuple[str, ...]
) -> None:
    new.write_text("".join(f"{each}\n" for each in content), encoding="utf-8")
    with refused_with(str(new), *expected):
        load_predictor(run.folder, client="north").predict_file(new, new.with_name("out.csv"))
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
    for wrong, expected in [
        (frame.assign(age=["1", "2", "x"]), "row 2, column 'age' holds 'x'"),
        (frame.assign(dose=[0.1, None, 0.3]), "row 1, column 'dose' has no value"),
        (frame.assign(age=[[1], [2], [3]]), r"row 0, column 'age' holds '\[1\]'"),
        (frame[[*COLUMNS, "age"]], "columns 2 and 7 are both called 'age', .*: rename or"),
        (frame.iloc[:0], "the data frame has no rows"),
        (
            frame.rename(columns={"patient": "predicted_outcome"}),
            "column 'predicted_outcome', which the schema",
        ),
    ]:
        with subtests.test(wrong=wrong, expected=expected):
            with pytest.raises(FairbloomError, match=expected):
                run.predict(wrong, client="north")
