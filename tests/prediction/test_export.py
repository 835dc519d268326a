"""Exported models predict what `fairbloom predict` does, read by ONNX Runtime, which knows nothing of Fairbloom."""

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
from fairbloom.prediction.export import TOLERANCE, export_onnx
from fairbloom.prediction.predictor import Predictor
from fairbloom.server.run_folder.files import CONFIG
from fairbloom.server.run_folder.values import Recorded
from fairbloom.tasks.preprocessing import InputColumn, Preprocessing
from tests.experiments.helpers import fairbloom as command

from .made import CLASSES, patients

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

AGE = InputColumn("age", "number", center=50.0, scale=10.0, fill=True)
WARD = InputColumn("ward", "category", ("1", "20", "other"), other=True, fill=True)


def predict(file: Path, given: Any) -> tuple[list[Any], Any]:
    """Return the predictions for a data frame or an array: classes with probabilities, or a quantity twice."""
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


# Runs -----------------------------------------------------------------------------------------------------------------


def held_out(*, quantity: bool = False) -> pandas.DataFrame:
    """Return rows that no hospital has trained on, one of an unknown ward; in another order of columns."""
    frame = pandas.DataFrame(patients(1, 400, quantity=quantity)).tail(60).reset_index(drop=True)
    frame.loc[3, "ward"] = "Z 9"
    return frame[["smoker", "dose", "ward", "age"]]


def check(run: fairbloom.Run, out: Path, frame: pandas.DataFrame, client: str, model: str) -> None:
    """Export, and compare what ONNX Runtime makes of the rows with what we do."""
    expected = run.predict(frame, client=client, model=model)
    values, numbers = predict(run.export(client=client, model=model, out=out), frame)
    if "probability_" + CLASSES[0] in expected:
        assert values == expected["predicted_outcome"].tolist()
        assert len(set(values)) == len(CLASSES)  # so that the comparison says something
        np.testing.assert_allclose(numbers, expected[[f"probability_{name}" for name in CLASSES]], atol=1e-5)
    else:
        assert expected["predicted_outcome"].std() > 1.0
        np.testing.assert_allclose(numbers, expected["predicted_outcome"], rtol=1e-5)


def test_classes_and_probabilities_are_ours(run: fairbloom.Run, tmp_path: Path) -> None:
    for model in ("last", "best", "personal"):
        check(run, tmp_path / "model.onnx", held_out(), "south", model)


def test_missing_values_are_filled_in_as_we_do(together: fairbloom.Run, tmp_path: Path) -> None:
    frame = held_out()
    frame.loc[[4, 9], "age"] = np.nan
    frame.loc[[5, 9], "ward"] = ""
    frame.loc[[6, 9], "smoker"] = "NA"
    check(together, tmp_path / "model.onnx", frame, "", "last")


def test_a_quantity_is_in_its_own_unit(quantity: fairbloom.Run, tmp_path: Path) -> None:
    check(quantity, tmp_path / "model.onnx", held_out(quantity=True), "south", "last")


def test_images_are_given_as_the_model_takes_them(tmp_path: Path) -> None:
    small = {"engine": "loop", "device": "cpu", "progress": False, "out": tmp_path / "run"}
    run = fairbloom.run("digits", model="cnn", clients=3, rounds=2, **small)
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
    assert capsys.readouterr().out == f"exported: {file}\n"
    assert len(predict(file, held_out())[0]) == 60
    assert command("export", run.folder) == 2
    assert "--client with one of north, old town, south, west" in capsys.readouterr().err
    assert command("export", run.folder, "--client", "south", "--out", run.folder) == 2
    assert f"cannot be written to {run.folder.parent}" in capsys.readouterr().err


def test_a_deployed_client_exports_what_it_keeps(run: fairbloom.Run, tmp_path: Path) -> None:
    """Its folder has model, settings and its own preprocessing, and neither tables nor other clients."""
    (own,) = run.folder.glob("clients/*/south")
    for file in (*(run.folder / name for name in ("config.toml", "agreed.json", "model.safetensors")), *own.iterdir()):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert command("export", tmp_path, "--model", "personal") == 0
    values, _ = predict(tmp_path / "exports" / "personal-south.onnx", held_out())
    assert values == run.predict(held_out(), client="south", model="personal")["predicted_outcome"].tolist()


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


# Cells and names ------------------------------------------------------------------------------------------------------


def predictor_of(folder: Path, module: nn.Module, *columns: InputColumn, **options: Any) -> Predictor:
    """Return a predictor of a table with these columns, whose run has no more than its settings."""
    (folder / "run").mkdir()
    CONFIG.write(folder / "run", Recorded({"task": "csv", "model": "logistic"}))
    how = Preprocessing(form="table", columns=columns, **{"target": "y", "classes": ("no", "yes"), **options})
    return Predictor(folder / "run", "csv", "", "last", module.eval(), how)


def linear(width: int, outputs: int = 2) -> nn.Module:
    """Return a linear model, seeded, whose every input counts."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(width, outputs))
    with torch.no_grad():
        for k, weights in enumerate(model.parameters()):
            weights.copy_(torch.linspace(-1.0, 1.5, weights.numel()).reshape(weights.shape).roll(k, 0))
    return model


def test_every_spelling_of_a_category_counts_as_in_predict(tmp_path: Path) -> None:
    predictor = predictor_of(tmp_path, linear(4), AGE, WARD)
    wards = ["1", "1.0", "1.", "20", "20.0", "other", "21", "Other", "", "NA", "nan", "NaN", "null", "n/a", "?", "x"]
    frame = pandas.DataFrame({"age": np.linspace(20.0, 90.0, len(wards)), "ward": wards})
    expected = predictor.predict(frame)
    values, numbers = predict(export_onnx(predictor), frame)
    assert values == expected["predicted_y"].tolist()
    np.testing.assert_allclose(numbers, expected[["probability_no", "probability_yes"]], atol=1e-6)
    assert len(np.unique(expected["probability_no"].round(6))) > 10


def test_what_was_constant_in_training_says_nothing(tmp_path: Path) -> None:
    constant = InputColumn("constant", "number", center=7.0, scale=0.0, fill=True)
    predictor = predictor_of(tmp_path, linear(2), constant, AGE)
    frame = pandas.DataFrame({"constant": [7.0, 1e9, np.nan], "age": [50.0, 50.0, 50.0]})
    _, numbers = predict(export_onnx(predictor), frame)
    np.testing.assert_allclose(numbers[:, 0], predictor.predict(frame)["probability_no"], atol=1e-6)
    assert np.ptp(numbers, axis=0).max() == 0.0


def test_a_row_that_we_refuse_has_no_prediction(tmp_path: Path) -> None:
    """ONNX has no errors for rows: such a row gets NaN and an empty class, and never a prediction."""
    strict = (InputColumn("age", "number", center=50.0, scale=10.0), InputColumn("ward", "category", ("1", "2")))
    predictor = predictor_of(tmp_path, nn.Sequential(linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), *strict)
    file = export_onnx(predictor)
    for age, ward in [(np.nan, "1"), (50.0, ""), (50.0, "n/A"), (np.inf, "1"), (-1e200, "1")]:
        frame = pandas.DataFrame({"age": [40.0, age, 60.0], "ward": ["2", ward, "1"]})
        with pytest.raises(FairbloomError, match="row 1"):
            predictor.predict(frame)
        values, probabilities = predict(file, frame)
        expected = predictor.predict(frame.iloc[[0, 2]])
        assert values == [expected["predicted_y"].iloc[0], "", expected["predicted_y"].iloc[1]]
        assert np.isnan(probabilities[1]).all()
        np.testing.assert_allclose(probabilities[[0, 2]], expected[["probability_no", "probability_yes"]], atol=1e-6)


def test_large_numbers_are_standardised_in_double_precision(tmp_path: Path) -> None:
    """A year in seconds has nine digits: in single precision its deviations would be lost."""
    seconds = InputColumn("seconds", "number", center=1.7e9, scale=3.0)
    predictor = predictor_of(tmp_path, linear(1, 1), seconds, classes=(), target_center=5.0, target_scale=1e6)
    frame = pandas.DataFrame({"seconds": 1.7e9 + np.arange(9.0)})
    expected = predictor.predict(frame)["predicted_y"]
    assert expected.diff().abs().min() > 1e5
    np.testing.assert_allclose(predict(export_onnx(predictor), frame)[1], expected, rtol=1e-6)


def test_columns_may_be_called_like_anything_inside(tmp_path: Path) -> None:
    names = ("linear", "1.weight", "probabilities", "predicted_y", "/Concat_0", "//", "naïve €", "inputs", "batch")
    columns = [InputColumn(name, "number", center=float(k), scale=2.0) for k, name in enumerate(names)]
    predictor = predictor_of(tmp_path, linear(len(names)), *columns)
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(7, len(names))), columns=list(names))
    outputs = predictor.outputs(torch.from_numpy(((frame.to_numpy() - np.arange(len(names))) / 2.0).astype(np.float32)))
    np.testing.assert_allclose(predict(export_onnx(predictor), frame)[1], outputs.softmax(dim=1), atol=1e-6)


def test_a_graph_says_what_it_is(tmp_path: Path) -> None:
    model = onnx.load(export_onnx(predictor_of(tmp_path, linear(4), AGE, WARD)))
    about = {each.key: each.value for each in model.metadata_props}
    assert (about["task"], about["run"], about["target"]) == ("csv", "run", "y")
    assert (about["classes"], about["columns"]) == ('["no", "yes"]', '["age", "ward"]')
    assert [each.name for each in model.graph.output] == ["predicted_y", "probabilities"]
    assert {each.domain: each.version for each in model.opset_import} == {"": 20, "ai.onnx.ml": 3}


# What cannot be exported ----------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A layer of two outputs, which the modules below use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)


class Branching(Layer):
    """Which branch is taken depends on the data, which PyTorch cannot put into one program."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs if inputs.sum() > 0 else -inputs)
        return outputs


class Eigenvalues(Layer):
    """Its operator is none of ONNX's."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(torch.linalg.eigvalsh(inputs[:, :, None] * inputs[:, None, :]))
        return outputs


class Disagreeing(Layer):
    """It computes something else when it is exported."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs.flip(1) if torch.compiler.is_exporting() else outputs


def test_a_module_that_cannot_be_exported_has_its_cause_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for model, cause in ((Branching, r"data-dependent.*test_export\.py, line "), (Eigenvalues, "linalg_eigh")):
        (tmp_path / cause[:4]).mkdir()
        predictor = predictor_of(tmp_path / cause[:4], model(), AGE)
        with pytest.raises(FairbloomError, match=rf"cannot be exported: .*{cause}.*run\.model\(\)") as caught:
            export_onnx(predictor)
        assert "\n" not in str(caught.value)
        assert capfd.readouterr().err == ""  # PyTorch prints half of a graph
        assert [path.name for path in predictor.run.iterdir()] == ["config.toml"]


def test_an_export_that_predicts_something_else_writes_nothing(tmp_path: Path) -> None:
    predictor = predictor_of(tmp_path, Disagreeing(), AGE)
    before = export_onnx(replace(predictor, module=linear(1))).read_bytes()
    with pytest.raises(FairbloomError, match=f"the exported model predicts .* {TOLERANCE:g} is the largest"):
        export_onnx(predictor)
    assert [path.read_bytes() for path in (predictor.run / "exports").iterdir()] == [before]


def test_a_task_that_says_nothing_of_its_inputs_is_refused(tmp_path: Path) -> None:
    predictor = replace(predictor_of(tmp_path, linear(1), AGE), preprocessing=None)
    with pytest.raises(FairbloomError, match=r"task csv .*torch\.onnx\.export"):
        export_onnx(predictor)


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # as if it were not installed
    with pytest.raises(FairbloomError, match=r"needs onnxscript, .*pip install 'fairbloom\[onnx\]'"):
        export_onnx(predictor_of(tmp_path, linear(1), AGE))
