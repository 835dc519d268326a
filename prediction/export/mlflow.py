"""A model for MLflow: a pyfunc with a signature of raw columns, which needs no Fairbloom where it is served."""

import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fairbloom.server.run_folder.files import PREPROCESSING
from fairbloom.tasks.files.reading.cells import MAX_NUMBER
from fairbloom.tasks.files.reading.numbers import MISSING
from fairbloom.tasks.groups import OTHER
from fairbloom.tasks.preprocessing import CATEGORY, TABLE, Predictions

from .errors import explained, needed
from .exportable import Exportable, Raw
from .form import Form
from .torch_program import PROGRAM, write_program

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
"""What MLflow leaves out where the user's environment does not say otherwise: reports to its makers, and bars."""

REQUIRED = ("mlflow-skinny", "torch", "numpy", "pandas")
"""What serves the model."""


def write_mlflow(exported: Exportable, folder: Path) -> None:
    """Write a model of MLflow's flavour `python_function`."""
    mlflow = _pyfunc()
    from mlflow.models import ModelSignature

    preprocessing = exported.preprocessing
    with tempfile.TemporaryDirectory() as place:
        parts = Path(place)
        write_program(exported, parts, MLFLOW.name)
        files = {"program": PROGRAM, "preprocessing": PREPROCESSING.name}
        with explained(MLFLOW.name, "onnx or safetensors"):
            mlflow.save_model(
                folder,
                python_model=str(Path(__file__).with_name("served.py")),
                artifacts={name: str(parts / file) for name, file in files.items()},
                model_config={
                    **{"missing": sorted(MISSING), "largest": MAX_NUMBER, "other": OTHER},
                    "arrays": [] if preprocessing.form == TABLE else list(exported.raw),
                },
                signature=ModelSignature(_asked(exported), _answered(exported)),
                input_example=example_of(exported),
                pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in REQUIRED],
                metadata=exported.about,
            )


def _pyfunc() -> Any:
    """Return the part of MLflow that writes and reads such models."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    return needed("mlflow.pyfunc", MLFLOW.name, "mlflow")


def _asked(exported: Exportable) -> Any:
    from mlflow.types import ColSpec, Schema, TensorSpec

    preprocessing = exported.preprocessing
    if preprocessing.form != TABLE:
        names = list(exported.raw) if len(exported.raw) > 1 else [None]
        arrays = zip(names, exported.raw.values(), strict=True)
        return Schema([TensorSpec(each.dtype, (-1, *each.shape[1:]), name) for name, each in arrays])
    return Schema(
        [
            ColSpec("string" if column.kind == CATEGORY else "double", column.name, required=not column.fill)
            for column in preprocessing.columns
        ]
    )


def _answered(exported: Exportable) -> Any:
    from mlflow.types import ColSpec, Schema

    classes = exported.preprocessing.classes
    if not classes:
        return Schema([ColSpec("double", exported.predicted)])
    probabilities = [ColSpec("float", f"probability_{name}") for name in classes]
    return Schema([ColSpec("string", exported.predicted), *probabilities])


def example_of(exported: Exportable) -> Raw:
    """Return a made-up row: the centre of each column of numbers, and the first of each column's categories."""
    preprocessing = exported.preprocessing
    if preprocessing.form != TABLE:
        return _given({name: np.zeros_like(each[:1]) for name, each in exported.raw.items()})
    import pandas

    return pandas.DataFrame(
        {
            column.name: [next(iter(column.categories), "") if column.kind == CATEGORY else column.center]
            for column in preprocessing.columns
        }
    )


def _given(arrays: dict[str, Any]) -> Raw:
    """Return arrays as MLflow takes them: several by name, or a single one."""
    return arrays if len(arrays) > 1 else next(iter(arrays.values()))


def predict(exported: Exportable, folder: Path) -> Predictions:
    """Return what MLflow predicts with the model in a folder."""
    mlflow = _pyfunc()
    with explained(MLFLOW.name, "onnx or safetensors"):
        raw = exported.raw if exported.preprocessing.form == TABLE else _given(exported.raw)
        found = mlflow.load_model(str(folder)).predict(raw)
    values, *probabilities = (found[name].to_numpy() for name in found)
    return Predictions(values, np.stack(probabilities, axis=1) if probabilities else None)


READ_TABLE = """\
import mlflow
import pandas

model = mlflow.pyfunc.load_model(".")
texts = [each.name for each in model.metadata.get_input_schema() if each.type.name == "string"]
print(model.predict(pandas.read_csv("new.csv", dtype=dict.fromkeys(texts, str))))
"""
"""Lines of Python that predict for the rows of a file by MLflow."""


def listing(exported: Exportable) -> str:
    """Return lines of Python that predict by MLflow, PyTorch and pandas."""
    if exported.preprocessing.form == TABLE:
        return READ_TABLE
    each = {name: f"numpy.zeros({(5, *array.shape[1:])}, numpy.{array.dtype})" for name, array in exported.raw.items()}
    arrays = (
        f"{{{', '.join(f'{name!r}: {zeros}' for name, zeros in each.items())}}}" if len(each) > 1 else each.popitem()[1]
    )
    return f"""\
import mlflow
import numpy

model = mlflow.pyfunc.load_model(".")
print(model.predict({arrays}))"""


MLFLOW = Form(
    name="mlflow",
    title="MLflow model (python_function), with its preprocessing inside",
    library="mlflow",
    write=write_mlflow,
    predict=predict,
    listing=listing,
)
