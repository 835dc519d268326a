"""Exported models predict the same in ONNX Runtime as `fairbloom predict` does."""

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
from fairbloom.prediction.predictor import Predictor
from fairbloom.server.run_folder.files import CONFIG
from fairbloom.server.run_folder.values import RecordedSettings
from fairbloom.tables.preprocessing import InputColumn, Preprocessing
from fairbloom.tasks.clients import preprocessing_of
from tests.experiments.helpers import fairbloom as command

from .made import CLASSES, copy_to_device, patients

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
    frame = pandas.DataFrame(patients(1, 400, quantity=quantity)).tail(60).reset_index(drop=True)
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
    assert command("export", run.folder) == 2
    assert "--client with one of north, old town, south and 1 more" in capsys.readouterr().err
    assert command("export", run.folder, "--client", "south", "--out", run.folder) == 2
    assert f"cannot be written to {run.folder.parent}" in capsys.readouterr().err


def test_refused_rows_of_a_quantity_have_no_class(quantity: fairbloom.Run) -> None:
    said = describe_refused(quantity.predictor("south"))
    assert said.startswith("NaN for a row with ")


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
    module = linear(5, len(how.classes) or 1)
    predictor = replace(predictor_of(tmp_path, module), preprocessing=how)
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
        wanted = expected[names].to_numpy(float)
        np.testing.assert_allclose(numbers[row], wanted, atol=1e-5, err_msg=str(change))
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
    causes = {
        "a branch": r"data-dependent.*test_export\.py, line ",
        "no operator of ONNX": "linalg_eigh",
    }
    for why, cause in causes.items():
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
