"""The ONNX file that docs/apps/to_onnx.py writes predicts as we do, and refuses the same rows.

The packages are in no lock: `make test-onnx` installs them for these tests alone.
"""

import importlib
import json
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree
from types import ModuleType
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import Predictor
from fairbloom.server.run_folder.files import CONFIG
from fairbloom.server.run_folder.values import RecordedSettings
from fairbloom.tables.preprocessing import Preprocessing
from fairbloom.tables.schema import parse_schema
from fairbloom.tasks.clients import preprocessing_of
from tests.commands import forked

from .pages import ROOT, blocks
from .reader import follow

pytestmark = [
    pytest.mark.skipif(
        not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))),
        reason="make test-onnx installs onnx, onnxscript and onnxruntime",
    ),
    # PyTorch's exporter warns of its own parts, and NumPy of single precision.
    pytest.mark.filterwarnings("ignore"),
]

SCHEMA = """
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
[fields.masked_fill]
type = "number"
constraints = {enum = [0.1, 0.25, 5]}
center = 0.3
scale = 0.1
[fields.seconds]
type = "number"
missing = "drop"
center = 1.7e9
scale = 3.0
[fields.constant]
type = "number"
center = 7.0
scale = 0.0
[fields.ward]
type = "string"
missing = "drop"
categories = ["A", "B"]
spellings = {A = ["first"]}
missingValues = ["9"]
[fields.smoker]
type = "string"
categories = ["no", "yes"]
[files."site.csv".fields.age]
factor = 0.1
offset = 3.0
[fields.y]
"""
CLASSES = 'type = "string"\ncategories = ["well", "sick"]\n'
QUANTITY = 'type = "number"\ncenter = 10.0\nscale = 2.0\n'

FIRST = {
    "age": 40.0,
    "visits": 2.0,
    "masked_fill": 0.25,
    "seconds": 1.7e9,
    "constant": 7.0,
    "ward": "A",
    "smoker": "no",
}
PREDICTED: list[dict[str, Any]] = [
    {},
    *({"age": age} for age in (18.0, 110.0, -9.0, 999.0, -7.0, np.nan)),
    *({"visits": visits} for visits in (0.0, -1.0, 1e12, -7.0, np.nan)),
    *({"masked_fill": dose} for dose in (0.1, 5.0, -7.0, np.nan)),
    # In single precision, numbers of ten digits would be equal.
    *({"seconds": seconds} for seconds in (1.7e9 + 1.0, 1.7e9 + 2.0, 1e100)),
    {"constant": 8.0},
    *({"ward": ward} for ward in ("first", "FIRST", "B", "b")),
    *({"smoker": smoker} for smoker in ("yes", "Yes", "", "NONE", "-7")),
]
REFUSED: list[dict[str, Any]] = [
    *({"age": age} for age in (17.999, 110.001, 500.0, -np.inf)),
    *({"visits": visits} for visits in (2.5, -2.0)),
    *({"masked_fill": dose} for dose in (0.3, np.nextafter(0.1, 1.0))),
    *({"seconds": seconds} for seconds in (np.nan, -7.0, 2e100, np.inf)),
    *({"ward": ward} for ward in ("C", "", "9", "NONE", "-7")),
    {"smoker": "perhaps"},
    {"age": 500.0, "visits": np.nan},
]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module docs/apps/to_onnx.py."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "apps")
    return importlib.import_module("to_onnx")


def predictor_of(folder: Path, how: Preprocessing) -> Predictor:
    """Return a predictor of tables, in whose linear model each input has a weight of its own."""
    CONFIG.write(folder, RecordedSettings({"task": "csv", "model": "logistic"}))
    module = nn.Linear(how.width, len(how.classes) or 1)
    count = module.weight.numel()
    with torch.no_grad():
        module.weight.copy_(torch.linspace(-0.3, 0.5, count).reshape(module.weight.shape))
        module.bias.zero_()
    return Predictor(folder, "csv", how.client, "last", module.eval(), how)


def predict(content: bytes, frame: pandas.DataFrame) -> Any:
    """Return what ONNX Runtime predicts, shape (rows, columns)."""
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    columns = {
        given.name: frame[[given.name]].to_numpy(
            object if given.type == "tensor(string)" else np.float64
        )
        for given in session.get_inputs()
    }
    (predicted,) = session.run(["predicted"], columns)
    return predicted


@pytest.mark.slow
def test_the_file_of_the_page_predicts_the_same(tmp_path: Path) -> None:
    copytree(ROOT / "docs" / "apps", tmp_path, dirs_exist_ok=True)
    copytree(Path(__file__).parent / "given" / "using", tmp_path, dirs_exist_ok=True)
    page = blocks("docs/using.md")
    trained = next(block for block in page if block.section == "Predict")
    shown = [block for block in page if block.section == "Programs without PyTorch"]
    assert [block.language for block in shown] == ["sh", "python"]
    fenced = [f"```{block.language}\n{block.text}```\n" for block in (trained, *shown)]
    (tmp_path / "page.md").write_text("\n".join(fenced))
    done = forked(tmp_path, follow, str(tmp_path / "page.md"))
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.parametrize("lines", [CLASSES, QUANTITY], ids=["classes", "quantity"])
def test_rows_that_predict_refuses_are_nan(
    lines: str, app: ModuleType, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    how = preprocessing_of(parse_schema(SCHEMA + lines))
    predictor = predictor_of(tmp_path, how)
    frame = pandas.DataFrame([{**FIRST, **change} for change in (*PREDICTED, *REFUSED)])
    model = app.to_onnx(predictor)
    found = predict(model.SerializeToString(), frame)
    names = [f"probability_{name}" for name in how.classes] or ["predicted_y"]
    for row, change in enumerate(PREDICTED):
        with subtests.test(change=change):
            expected = predictor.predict(frame.iloc[[row]]).iloc[0]
            np.testing.assert_allclose(
                found[row], expected[names].to_numpy(float), rtol=1e-5, atol=1e-6
            )
    for row, change in enumerate(REFUSED, start=len(PREDICTED)):
        with subtests.test(change=change):
            with pytest.raises(FairbloomError, match="row 0"):
                predictor.predict(frame.iloc[[row]].reset_index(drop=True))
            assert np.isnan(found[row]).all()
    assert len(np.unique(found[: len(PREDICTED), 0].round(6))) > 8  # the comparison says something


def test_a_file_has_the_clients_units_and_no_path(app: ModuleType, tmp_path: Path) -> None:
    how = preprocessing_of(parse_schema(SCHEMA + CLASSES)).of_client("site", ())
    model = app.to_onnx(predictor_of(tmp_path, how))
    frame = pandas.DataFrame([{**FIRST, "age": age} for age in (400.0, 1070.0, 1071.0)])
    found = predict(model.SerializeToString(), frame)
    expected = predictor_of(tmp_path, how).predict(frame.iloc[:2])
    np.testing.assert_allclose(
        found[:2], expected[["probability_well", "probability_sick"]], atol=1e-6
    )
    assert np.isnan(found[2]).all()  # 110.1 years
    (about,) = model.metadata_props
    assert (about.key, json.loads(about.value)) == ("classes", ["well", "sick"])
    assert sorted(given.name for given in model.graph.input) == sorted(FIRST)
    assert b".py" not in model.SerializeToString()
