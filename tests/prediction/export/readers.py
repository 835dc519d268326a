"""What reads exports by the libraries that they are for, and knows nothing of how Fairbloom writes them."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_model

from fairbloom.prediction.rows import NewRows
from fairbloom.tasks.models import build
from fairbloom.tasks.preprocessing import Preprocessing

Numbers = NDArray[Any]
"""Probabilities, shape (n, classes), or a quantity, shape (n,)."""


def needs(*modules: str) -> None:
    for module in modules:
        pytest.importorskip(module)


def feed_of(session: Any, frame: pandas.DataFrame) -> dict[str, Numbers]:
    """Return what a graph's inputs are given: strings as objects, numbers in double precision."""
    return {
        each.name: (
            frame[[each.name]].fillna("").astype(str).to_numpy(object)
            if each.type == "tensor(string)"
            else frame[[each.name]].apply(pandas.to_numeric).to_numpy(np.float64)
        )
        for each in session.get_inputs()
    }


def by_onnx(folder: Path, frame: pandas.DataFrame) -> tuple[list[Any], Numbers]:
    needs("onnxruntime", "onnx", "onnxscript")
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    values, *probabilities = session.run(None, feed_of(session, frame))
    return list(values), probabilities[0] if probabilities else values


def load_by_mlflow(folder: Path) -> Any:
    """Return the model that MLflow loads; what MLflow warns of when it is imported is about its own code."""
    needs("mlflow")
    with warnings.catch_warnings(action="ignore"):
        from mlflow import pyfunc
    return pyfunc.load_model(str(folder))


def by_mlflow(folder: Path, frame: pandas.DataFrame) -> tuple[list[Any], Numbers]:
    model = load_by_mlflow(folder)
    texts = [each.name for each in model.metadata.get_input_schema() if each.type.name == "string"]
    numbers = [each.name for each in model.metadata.get_input_schema() if each.name not in texts]
    typed = frame.assign(**{name: pandas.to_numeric(frame[name]) for name in numbers})
    found = model.predict(typed)
    values, *probabilities = (found[name].to_numpy() for name in found)
    return list(values), np.stack(probabilities, axis=1) if probabilities else values


def by_torch(folder: Path, frame: pandas.DataFrame) -> tuple[list[Any], Numbers]:
    how = preprocessing_in(folder)
    found = torch.export.load(folder / "model.pt2").module()(inputs_of(how, frame)).detach().numpy()
    return (list(np.array(how.classes)[found.argmax(axis=1)]) if how.classes else list(found)), found


def by_safetensors(folder: Path, frame: pandas.DataFrame) -> tuple[list[Any], Numbers]:
    how = preprocessing_in(folder)
    about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    module = build(about["network"], tuple(about["input_shape"]), about["outputs"], seed=5).eval()
    load_model(module, str(folder / "model.safetensors"))
    with torch.no_grad():
        outputs = module(inputs_of(how, frame))
    if not how.classes:
        values = outputs.ravel().double().numpy() * how.target_scale + how.target_center
        return list(values), values
    found = outputs.softmax(dim=1).numpy()
    return [about["id2label"][str(place)] for place in found.argmax(axis=1)], found


def preprocessing_in(folder: Path) -> Preprocessing:
    return Preprocessing.decode_file((folder / "preprocessing.json").read_bytes())


def inputs_of(how: Preprocessing, frame: pandas.DataFrame) -> torch.Tensor:
    return how.inputs(NewRows.of_frame(frame).table(how))


READERS: dict[str, Callable[[Path, pandas.DataFrame], tuple[list[Any], Numbers]]] = {
    "onnx": by_onnx,
    "torch": by_torch,
    "safetensors": by_safetensors,
    "mlflow": by_mlflow,
}
