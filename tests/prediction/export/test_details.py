"""What raw cells and odd names become in an exported model, and what a model that cannot be exported is told."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

from fairbloom.errors import FairbloomError
from fairbloom.prediction.export import mlflow as mlflow_form
from fairbloom.prediction.export.check import TOLERANCE
from fairbloom.prediction.export.export import FORMS, export_model
from fairbloom.prediction.predictor import Predictor
from fairbloom.server.run_folder.files import CONFIG
from fairbloom.server.run_folder.values import Recorded
from fairbloom.tasks.preprocessing import InputColumn, Preprocessing

from .readers import READERS, feed_of, load_by_mlflow, needs

AGE = InputColumn("age", "number", center=50.0, scale=10.0, fill=True)
WARD = InputColumn("ward", "category", ("1", "20", "other"), other=True, fill=True)
BINARY = ("no", "yes")


def predictor_of(folder: Path, module: nn.Module, *columns: InputColumn, **options: Any) -> Predictor:
    """Return a predictor of a table with these columns, whose run has no more than its settings."""
    (folder / "run").mkdir()
    CONFIG.write(folder / "run", Recorded({"task": "csv", "model": "logistic"}))
    how = Preprocessing(form="table", columns=columns, **{"target": "y", "classes": BINARY, **options})
    return Predictor(folder / "run", "csv", "", "last", module.eval(), how)


def linear(width: int, outputs: int = 2) -> nn.Module:
    """Return a linear model, seeded, whose every input counts."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(width, outputs))
    with torch.no_grad():
        for k, weights in enumerate(model.parameters()):
            weights.copy_(torch.linspace(-1.0, 1.5, weights.numel()).reshape(weights.shape).roll(k, 0))
    return model


def export(predictor: Predictor, to: str, out: Path) -> Path:
    return export_model(predictor, to, lambda described: described.checked, out)


# Cells ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("form", READERS)
def test_every_spelling_of_a_category_counts_as_in_predict(form: str, tmp_path: Path) -> None:
    predictor = predictor_of(tmp_path, linear(4), AGE, WARD)
    wards = ["1", "1.0", "1.", "20", "20.0", "other", "21", "Other", "", "NA", "nan", "NaN", "null", "n/a", "?", "x"]
    frame = pandas.DataFrame({"age": np.linspace(20.0, 90.0, len(wards)), "ward": wards})
    expected = predictor.predict(frame)
    values, numbers = READERS[form](export(predictor, form, tmp_path / "out"), frame)
    assert values == expected["predicted_y"].tolist()
    np.testing.assert_allclose(numbers, expected[["probability_no", "probability_yes"]], atol=1e-6)
    assert len(np.unique(expected["probability_no"].round(6))) > 10


@pytest.mark.parametrize("form", READERS)
def test_what_was_constant_in_training_says_nothing(form: str, tmp_path: Path) -> None:
    constant = InputColumn("constant", "number", center=7.0, scale=0.0, fill=True)
    predictor = predictor_of(tmp_path, linear(2), constant, AGE)
    frame = pandas.DataFrame({"constant": [7.0, 1e9, np.nan], "age": [50.0, 50.0, 50.0]})
    _, numbers = READERS[form](export(predictor, form, tmp_path / "out"), frame)
    np.testing.assert_allclose(numbers[:, 0], predictor.predict(frame)["probability_no"], atol=1e-6)
    assert np.ptp(numbers, axis=0).max() == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("age", "ward"), [(np.nan, "1"), (50.0, ""), (50.0, "n/A"), (np.inf, "1"), (-1e200, "1")], ids=str
)
def test_a_row_that_we_refuse_has_no_prediction(age: float, ward: str, tmp_path: Path) -> None:
    """ONNX has no errors for rows: such a row gets NaN and an empty class, and never a prediction."""
    needs("onnxruntime", "mlflow")
    import onnxruntime

    strict = (InputColumn("age", "number", center=50.0, scale=10.0), InputColumn("ward", "category", ("1", "2")))
    predictor = predictor_of(tmp_path, nn.Sequential(linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), *strict)
    frame = pandas.DataFrame({"age": [40.0, age, 60.0], "ward": ["2", ward, "1"]})
    with pytest.raises(FairbloomError, match="row 1"):
        predictor.predict(frame)
    session = onnxruntime.InferenceSession(export(predictor, "onnx", tmp_path / "onnx") / "model.onnx")
    values, probabilities = session.run(None, feed_of(session, frame))
    expected = predictor.predict(frame.iloc[[0, 2]])
    assert list(values) == [expected["predicted_y"].iloc[0], "", expected["predicted_y"].iloc[1]]
    assert np.isnan(probabilities[1]).all()
    np.testing.assert_allclose(probabilities[[0, 2]], expected[["probability_no", "probability_yes"]], atol=1e-6)
    served = load_by_mlflow(export(predictor, "mlflow", tmp_path / "mlflow"))
    with pytest.raises(Exception, match=r"age|ward"):  # as MLflow wraps it
        served.predict(frame)
    np.testing.assert_allclose(
        served.predict(frame.iloc[[0, 2]])["probability_no"], probabilities[[0, 2], 0], atol=1e-6
    )


def test_large_numbers_are_standardised_in_double_precision(tmp_path: Path) -> None:
    """A year in seconds has nine digits: in single precision its deviations would be lost."""
    needs("onnxruntime")
    seconds = InputColumn("seconds", "number", center=1.7e9, scale=3.0)
    predictor = predictor_of(tmp_path, linear(1, 1), seconds, classes=(), target_center=5.0, target_scale=1e6)
    frame = pandas.DataFrame({"seconds": 1.7e9 + np.arange(9.0)})
    expected = predictor.predict(frame)["predicted_y"]
    assert expected.diff().abs().min() > 1e5
    for form in ("onnx", "mlflow"):
        _, found = READERS[form](export(predictor, form, tmp_path / form), frame)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["onnx", "mlflow"])
def test_columns_may_be_called_like_anything_inside(form: str, tmp_path: Path) -> None:
    names = ("linear", "1.weight", "probabilities", "predicted_y", "/in/Concat_0", "//", "naïve €", "inputs", "batch")
    columns = [InputColumn(name, "number", center=float(k), scale=2.0) for k, name in enumerate(names)]
    predictor = predictor_of(tmp_path, linear(len(names)), *columns)
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(7, len(names))), columns=list(names))
    outputs = predictor.outputs(torch.from_numpy(((frame.to_numpy() - np.arange(len(names))) / 2.0).astype(np.float32)))
    _, numbers = READERS[form](export(predictor, form, tmp_path / "out"), frame)
    np.testing.assert_allclose(numbers, outputs.softmax(dim=1), atol=1e-6)


def test_a_graph_says_what_it_is(tmp_path: Path) -> None:
    needs("onnx", "onnxruntime")
    import onnx

    predictor = predictor_of(tmp_path, linear(4), AGE, WARD)
    model = onnx.load(export(predictor, "onnx", tmp_path / "out") / "model.onnx")
    about = {each.key: each.value for each in model.metadata_props}
    assert about["task"] == "csv"
    assert about["run"] == "run"
    assert about["classes"] == '["no", "yes"]'
    assert about["columns"] == '["age", "ward"]'
    assert [each.name for each in model.graph.output] == ["predicted_y", "probabilities"]
    assert {each.domain: each.version for each in model.opset_import} == {"": 20, "ai.onnx.ml": 3}


def test_mlflow_has_typed_columns_an_example_and_requirements(tmp_path: Path) -> None:
    needs("mlflow")
    folder = export(predictor_of(tmp_path, linear(4), AGE, WARD), "mlflow", tmp_path / "out")
    served = load_by_mlflow(folder)
    model = served.metadata
    assert model.signature is not None
    assert {each.name: each.type.name for each in model.get_input_schema()} == {"age": "double", "ward": "string"}
    assert [each.name for each in model.get_output_schema()] == ["predicted_y", "probability_no", "probability_yes"]
    example = model.load_input_example(str(folder))
    assert served.predict(example)["predicted_y"][0] in BINARY
    required = (folder / "requirements.txt").read_text().split()
    assert sorted(line.partition("==")[0] for line in required) == sorted(mlflow_form.REQUIRED)
    assert all("+" not in line and line.partition("==")[2] for line in required)
    assert "fairbloom" not in (folder / "served.py").read_text().partition('"""')[2].partition('"""')[2]


# What cannot be exported ----------------------------------------------------------------------------------------------


class Branching(nn.Module):
    """Which branch is taken depends on the data, which PyTorch cannot put into one program."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs if inputs.sum() > 0 else -inputs)
        return outputs


class Eigenvalues(nn.Module):
    """Its operator is none of ONNX's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(torch.linalg.eigvalsh(inputs[:, :, None] * inputs[:, None, :]))
        return outputs


class InBfloat16(nn.Module):
    """ONNX has its operator, and ONNX Runtime computes it in other precisions alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2).bfloat16()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.bfloat16())
        return outputs


class Disagreeing(nn.Module):
    """It computes something else when it is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs.flip(1) if torch.compiler.is_exporting() else outputs


@pytest.mark.parametrize("form", ["onnx", "torch", "mlflow"])
def test_a_module_that_cannot_be_exported_has_its_cause_named(
    form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    needs({"onnx": "onnxscript", "torch": "torch", "mlflow": "mlflow"}[form])
    predictor = predictor_of(tmp_path, Branching(), AGE)
    with pytest.raises(FairbloomError, match=rf"exported to {form}: .*data-dependent.*safetensors") as caught:
        export(predictor, form, tmp_path / "out")
    assert "test_details.py, line " in str(caught.value)  # where in the module
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""  # PyTorch prints half of a graph
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    export(predictor, "safetensors", tmp_path / "out")  # as the message says


@pytest.mark.slow
@pytest.mark.parametrize(("model", "named"), [(Eigenvalues, "linalg_eigh"), (InBfloat16, "Gemm")])
def test_an_operator_that_onnx_or_its_runtime_lacks_is_named(
    model: type[nn.Module], named: str, tmp_path: Path
) -> None:
    needs("onnxscript", "onnxruntime")
    predictor = predictor_of(tmp_path, model(), AGE)
    with pytest.raises(FairbloomError, match=rf"exported to onnx: .*{named}.* export to torch or safetensors"):
        export(predictor, "onnx", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    export(predictor, "torch", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "torch", "mlflow"])
def test_an_export_that_predicts_something_else_leaves_nothing(form: str, tmp_path: Path) -> None:
    needs({"onnx": "onnxruntime", "torch": "torch", "mlflow": "mlflow"}[form])
    predictor = predictor_of(tmp_path, Disagreeing(), AGE)
    export(replace(predictor, module=linear(1)), form, tmp_path / "out")
    before = sorted((path.name, path.stat().st_size) for path in (tmp_path / "out").iterdir())
    with pytest.raises(FairbloomError, match=f"the model exported to {form} predicts .* {TOLERANCE:g} is the most"):
        export(predictor, form, tmp_path / "out")
    assert sorted((path.name, path.stat().st_size) for path in (tmp_path / "out").iterdir()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_nothing_is_logged_of_rows_that_are_made_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        export(predictor_of(tmp_path, linear(4), AGE, WARD), "safetensors", tmp_path / "out")
    assert not caplog.records
    assert set(FORMS) == set(READERS)


@pytest.mark.parametrize("gone", ["?", "NA", "n/a", " nUll", ""])
def test_onnx_listing_reads_missing_values_as_predict_does(
    tmp_path: Path, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("onnx")
    predictor = predictor_of(tmp_path, linear(4), AGE, WARD)
    rows = [f"{gone},20", f"61.5,{gone}", "44,None", f"{gone},{gone}"]
    folder = export_model(predictor, "onnx", lambda described: f"```python\n{described.listing}```", tmp_path / "out")
    (folder / "new.csv").write_text("\n".join(["age,ward", *rows]) + "\n")
    assert predictor.predict_file(folder / "new.csv", tmp_path / "predicted.csv") == len(rows)
    wanted = [line.split(",")[2:] for line in (tmp_path / "predicted.csv").read_text().splitlines()[1:]]
    monkeypatch.chdir(folder)
    found: dict[str, Any] = {}
    listing = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(listing.replace("print(session.run(None, feed))", "values, chances = session.run(None, feed)"), found)  # noqa: S102
    assert list(found["values"]) == [each[0] for each in wanted]
    np.testing.assert_allclose(found["chances"], [[float(x) for x in each[1:]] for each in wanted], atol=1e-6)
