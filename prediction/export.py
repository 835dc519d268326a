"""Exports a trained model with its preprocessing as ONNX, and tries what it has written."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairbloom import __version__
from fairbloom.client.states import folder_name
from fairbloom.errors import FairbloomError, place_of
from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.server.run_folder.files import EXPORTS
from fairbloom.system.files import write_whole
from fairbloom.tasks.models import choose_output
from fairbloom.tasks.preprocessing import CATEGORY, TABLE, Predictions, Preprocessing

from .output_rows import table_of_frame, values_of
from .predictor import Predictor

ROWS = 256
"""The number of rows that an export is tried on."""

TOLERANCE = 1e-4
"""Largest difference of a probability, or of a quantity in units of its deviation in training."""


def export_onnx(predictor: Predictor, out: Path | None = None) -> Path:
    """Write a model as an ONNX file and return the file: `out`, or by default one in the run folder.

    FairbloomError: a library is missing, the model cannot be exported, the export predicts
    something else, or the file cannot be written. An earlier file is left as it is then, and else
    replaced.
    """
    how = predictor.preprocessing
    if how is None:
        raise FairbloomError(
            f"task {predictor.task_name} does not say how raw data become inputs: give its Task a"
            " preprocessing, or export the module alone, by torch.onnx.export(run.model(), …)"
        )
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise FairbloomError(
                f"an export needs {name}, which is not installed: pip install 'fairbloom[onnx]'"
            ) from error
    client = [folder_name(predictor.client)] if predictor.client else []
    file = out or EXPORTS.path_in(predictor.run) / f"{'-'.join([predictor.model, *client])}.onnx"
    with _explained():
        raw = _make_rows(how)
        inputs = (
            how.inputs(values_of(table_of_frame(raw), how))
            if how.form == TABLE
            else torch.from_numpy(raw)
        )
        content = _convert(predictor, how, inputs)
        session = import_module("onnxruntime").InferenceSession(
            content, providers=["CPUExecutionProvider"]
        )
        kinds = {
            column.name: object if column.kind == CATEGORY else np.float64 for column in how.columns
        }
        feed = {name: raw[[name]].to_numpy(kind) for name, kind in kinds.items()}
        values, *probabilities = session.run(None, feed or {session.get_inputs()[0].name: raw})
        found = Predictions(values, probabilities[0] if probabilities else None)
    _check(found, how.decode(predictor.outputs(inputs)), how)
    with explain_write_errors("the export", file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)
    return file


class _Predicting(nn.Module):
    """A model with the meaning of its outputs: probabilities of classes, or a quantity in its own unit."""

    def __init__(self, predictor: Predictor, how: Preprocessing) -> None:
        super().__init__()
        self.model = predictor.module
        self._output = predictor.output
        self._how = how

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the probability of each class, shape (n, classes), or the quantity, shape (n,) and torch.float64."""
        outputs = choose_output(self.model, self.model(inputs), self._output)
        if self._how.classes:
            return outputs.float().softmax(dim=1)
        return outputs.reshape(-1).double() * self._how.target_scale + self._how.target_center


def _convert(predictor: Predictor, how: Preprocessing, inputs: Tensor) -> bytes:
    """Return the content of the file, for any number of examples."""
    from .onnx_graph import OPSET, surround  # imported late, as ONNX is with it

    start = torch.ones(1, requires_grad=True)
    # the first gradient starts threads, which forked processes would lack
    torch.autograd.grad(start.sum(), start)
    module = _Predicting(predictor, how).eval()
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(module, (torch.zeros_like(inputs[:3]),), dynamic_shapes=shapes)
    converted = torch.onnx.export(program, (), dynamo=True, opset_version=OPSET, verbose=False)
    assert converted is not None  # noqa: S101 (PyTorch returns None without dynamo alone)
    names = {"run": predictor.run.name, "task": predictor.task_name, "model": predictor.model}
    about = {"fairbloom": __version__, **names, "client": predictor.client}
    return bytes(surround(converted.model_proto, how, about).SerializeToString())


@contextmanager
def _explained() -> Iterator[None]:
    """Turn a library's error into an FairbloomError.

    Nothing is logged, warned of or printed: PyTorch prints graphs.
    """
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stderr(StringIO()):
            yield
    except Exception as error:  # whatever a user's module, PyTorch or a runtime raises
        cause = error
        place = place_of(error)
        while isinstance(earlier := cause.__cause__ or cause.__context__, Exception):
            cause = earlier
            place = place_of(earlier) or place
        said = f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0].rstrip('.')}"
        raise FairbloomError(
            f"this model cannot be exported: {said}{f' ({place})' if place else ''}. Change the"
            " module, or use it in PyTorch: run.model()"
        ) from error
    finally:
        logging.disable(before)


def _make_rows(how: Preprocessing) -> Any:
    """Return raw data: rows like those of training and slightly beyond, or an array of numbers from 0 to 1."""
    random = np.random.default_rng(0)
    if how.form != TABLE:
        return random.random((ROWS, *how.shape), np.float32)
    import pandas  # imported late: it takes a second

    made: dict[str, Any] = {}
    for column in how.columns:
        gone = random.random(ROWS) < (0.1 if column.fill else 0.0)
        if column.kind == CATEGORY:
            made[column.name] = random.choice(np.array(column.categories, object), ROWS)
        else:
            made[column.name] = random.normal(column.center, 2.0 * (column.scale or 1.0), ROWS)
        made[column.name][gone] = "" if column.kind == CATEGORY else np.nan
    return pandas.DataFrame(made)


def _check(found: Predictions, own: Predictions, how: Preprocessing) -> None:
    """Raise FairbloomError where an export predicts something else than the model itself."""
    numbers, expected = (
        each.values if each.probabilities is None else each.probabilities for each in (found, own)
    )
    apart = np.abs(numbers - expected).reshape(ROWS, -1).max(axis=1) / (
        1.0 if how.classes else how.target_scale
    )
    wrong = ~(apart <= TOLERANCE)  # a NaN is beyond it
    if how.classes:
        top = np.sort(expected, axis=1)
        wrong |= (top[:, -1] - top[:, -2] > 2 * TOLERANCE) & (found.values != own.values)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise FairbloomError(
            f"the exported model predicts {found.values[row]!r}, {numbers[row]}, for row {row} of"
            f" {ROWS} rows, and the model itself {own.values[row]!r}, {expected[row]}:"
            f" {TOLERANCE:g} is the largest difference. Nothing was written: compute in float32"
        )
