"""Export a trained model with its preprocessing as ONNX, and check the export's predictions."""

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
from numpy.typing import NDArray
from torch import Tensor, nn

from fairbloom import __version__
from fairbloom.client.states import folder_name
from fairbloom.errors import FairbloomError, place_of
from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.server.run_folder.files import EXPORTS
from fairbloom.system.files import write_whole
from fairbloom.tables.preprocessing import CATEGORY, TABLE, Predictions, Preprocessing
from fairbloom.tables.schema import Constraints, Field
from fairbloom.tasks.models import choose_output
from fairbloom.text import join_first, text_if

from .output_rows import find_refused, table_of_frame
from .predictor import Predictor

# The number of rows on which an export is checked.
ROWS = 256

# Largest difference of a probability, or of a quantity in units of its deviation in training.
TOLERANCE = 1e-4


def export_onnx(predictor: Predictor, out: Path | None = None) -> Path:
    """Write a model as an ONNX file and return the file: `out`, or one in the run folder.

    An earlier file is replaced. Raise FairbloomError, and leave an earlier file unchanged, if a
    library is missing, the model cannot be exported, the export predicts something else, or the
    file cannot be written.
    """
    how = predictor.preprocessing
    if how is None:
        raise FairbloomError(
            f"task {predictor.task_name} does not say how raw data become inputs: give its Task a"
            " preprocessing, or export only the module by torch.onnx.export(run.model(), …)"
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
        refused = np.zeros(len(raw), np.bool_)
        if how.form == TABLE:
            values, refused = find_refused(
                table_of_frame(raw.rename(columns=lambda name: how.own.names_of(name)[0]), how.own),
                how,
            )
            inputs = torch.from_numpy(how.inputs(values))
        else:
            inputs = torch.from_numpy(raw)
        content = _convert(predictor, how, inputs)
        session = import_module("onnxruntime").InferenceSession(
            content, providers=["CPUExecutionProvider"]
        )
        feed = {
            column.name: raw[[column.name]].to_numpy(
                object if column.kind == CATEGORY else np.float64
            )
            for column in how.columns
        }
        if not feed:
            feed[session.get_inputs()[0].name] = raw
        predicted, *probabilities = session.run(None, feed)
        found = Predictions(predicted, probabilities[0] if probabilities else None)
    _check(found, how.decode(predictor.outputs(inputs)), refused, how)
    with explain_write_errors("the export", file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)
    return file


def describe_refused(predictor: Predictor) -> str:
    """Return for which rows of a table an exported file has no prediction; "" if there are none."""
    how = predictor.preprocessing
    if how is None or how.form != TABLE:
        return ""
    schema = how.dictionary
    fields = {column.name: schema.fields[column.name] for column in how.columns}
    reasons = {
        "beyond its bounds": [
            name
            for name, field in fields.items()
            if field.constraints.model_copy(update={"required": False}) != Constraints()
        ],
        "no whole number": [name for name, field in fields.items() if field.type == "integer"],
        "in no category": [name for name, field in fields.items() if field.categories],
        "missing": [column.name for column in how.columns if not column.fill],
    }
    listed = [f"{join_first(names, 3)} {reason}" for reason, names in reasons.items() if names]
    given = "no class and NaN" if how.classes else "NaN"
    return text_if(listed, f"{given} for a row with {', or '.join(listed)}")


class _Predicting(nn.Module):
    """A model that returns probabilities of classes, or a quantity in its own unit."""

    def __init__(self, predictor: Predictor, how: Preprocessing) -> None:
        super().__init__()
        self.model = predictor.module
        self._output = predictor.output
        self._how = how

    def forward(self, inputs: Tensor) -> Tensor:
        """Return probabilities, shape (n, classes), or the quantity, shape (n,), torch.float64."""
        outputs = choose_output(self.model, self.model(inputs), self._output)
        if self._how.classes:
            return outputs.float().softmax(dim=1)
        return outputs.reshape(-1).double() * self._how.target_scale + self._how.target_center


def _convert(predictor: Predictor, how: Preprocessing, inputs: Tensor) -> bytes:
    """Return the content of the file, for any number of examples."""
    from .onnx_graph import OPSET, surround  # imported late, as ONNX is with it

    start = torch.ones(1, requires_grad=True)
    # The first gradient starts threads, which a process forked later would not have.
    torch.autograd.grad(start.sum(), start)
    program = torch.export.export(
        _Predicting(predictor, how).eval(),
        (torch.zeros_like(inputs[:3]),),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    converted = torch.onnx.export(program, (), dynamo=True, opset_version=OPSET, verbose=False)
    assert converted is not None  # noqa: S101 (None only without dynamo)
    about = {
        "fairbloom": __version__,
        "run": predictor.run.name,
        "task": predictor.task_name,
        "model": predictor.model,
        "client": predictor.client,
    }
    return bytes(surround(converted.model, how, about).SerializeToString())


@contextmanager
def _explained() -> Iterator[None]:
    """Turn a library's error into a FairbloomError.

    Logs, warnings and output are suppressed: PyTorch prints graphs.
    """
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stderr(StringIO()):
            yield
    except Exception as error:  # any error of a user's module, PyTorch or a runtime
        cause = error
        place = place_of(error)
        while isinstance(earlier := cause.__cause__ or cause.__context__, Exception):
            cause = earlier
            place = place_of(earlier) or place
        first_line = str(cause).strip().partition("\n")[0].rstrip(".")
        raise FairbloomError(
            f"this model cannot be exported: {type(cause).__name__}:"
            f" {first_line}{text_if(place, f' ({place})')}. Change the module, or use it in"
            " PyTorch: run.model()"
        ) from error
    finally:
        logging.disable(before)


def _make_rows(how: Preprocessing) -> Any:
    """Return raw data: numbers from 0 to 1, or a table's rows by its schema.

    The rows are like the training rows, and slightly beyond as far as the schema allows.
    """
    random = np.random.default_rng(0)
    if how.form != TABLE:
        return random.random((ROWS, *how.shape), np.float32)
    import pandas  # imported late: it takes a second

    rows: dict[str, Any] = {}
    for column in how.columns:
        name = column.name
        missing = random.random(ROWS) < 0.1 * column.fill
        if column.kind == CATEGORY:
            rows[name] = random.choice(np.array(column.categories, object), ROWS)
            rows[name][missing] = ""
            continue
        numbers = random.normal(column.center, 2.0 * (column.scale or 1.0), ROWS)
        rows[name] = _within(numbers, how.dictionary.fields[name]) / how.own.field(name).factor
        rows[name][missing] = np.nan
    return pandas.DataFrame(rows)


def _within(numbers: NDArray[np.float64], field: Field) -> NDArray[np.float64]:
    """Return numbers that a field allows, near these."""
    limits = field.constraints
    if limits.enum:
        allowed = np.sort(np.asarray(limits.enum, np.float64))
        nearest: NDArray[np.float64] = allowed[np.abs(numbers[:, None] - allowed).argmin(axis=1)]
        return nearest
    if field.type == "integer":
        return np.clip(np.round(numbers), np.ceil(limits.minimum), np.floor(limits.maximum))
    return np.clip(numbers, limits.minimum, limits.maximum)


def _numbers_of(predictions: Predictions) -> Any:
    """Return the probabilities of classes, or the values of a quantity."""
    return predictions.values if predictions.probabilities is None else predictions.probabilities


def _check(
    found: Predictions, own: Predictions, refused: NDArray[np.bool_], how: Preprocessing
) -> None:
    """Raise FairbloomError if an export predicts something else than the model itself.

    A row that is `refused` must have NaN and no class. NaN is equal to NaN.
    """
    numbers = _numbers_of(found)
    expected = _numbers_of(own)
    expected[refused] = np.nan
    if how.classes:
        own.values[refused] = ""
    count = len(refused)
    error = np.abs(numbers - expected)
    error[np.isnan(numbers) & np.isnan(expected)] = 0.0
    error = error.reshape(count, -1).max(axis=1) / (1.0 if how.classes else how.target_scale)
    wrong = ~(error <= TOLERANCE)  # not `error > TOLERANCE`: NaN is wrong too
    if how.classes:
        top = np.sort(expected, axis=1)
        is_clear = refused | (top[:, -1] - top[:, -2] > 2 * TOLERANCE)
        wrong |= is_clear & (found.values != own.values)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise FairbloomError(
            f"the exported model predicts {found.values[row]!r}, {numbers[row]}, for row {row} of"
            f" {count} rows, and the model itself {own.values[row]!r}, {expected[row]}:"
            f" {TOLERANCE:g} is the largest difference. Nothing was written: compute in float32"
        )
