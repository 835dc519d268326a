"""Whether an exported model predicts what the model itself does: tried on rows, right after it is written."""

import numpy as np

from fairbloom.tasks.preprocessing import Predictions, Preprocessing

from .errors import ExportError
from .exportable import Exportable

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

TOLERANCE = 1e-4
"""Largest difference of a probability, or of a quantity in units of its deviation in training."""


def check_export(exported: Exportable, found: Predictions, form: str) -> float:
    """Return the largest difference of what an export has `found` from what the model itself predicts."""
    preprocessing = exported.preprocessing
    own = preprocessing.decode(exported.predictor.outputs(exported.inputs))
    unit = 1.0 if preprocessing.classes else preprocessing.target_scale
    expected, other = (_numbers(each) / unit for each in (own, found))
    if expected.shape != other.shape:
        raise ExportError(f"the model exported to {form} returns shape {other.shape}, and not {expected.shape}")
    differences = np.abs(other - expected).reshape(len(expected), -1).max(axis=1)
    row = int(np.argmax(~(differences <= TOLERANCE)))  # a NaN is beyond it
    if not differences[row] <= TOLERANCE:
        raise ExportError(
            f"the model exported to {form} predicts {other[row]} for row {row} of {len(expected)} rows, where the "
            f"model itself predicts {expected[row]}: they differ by {differences[row]:.2g}, and {TOLERANCE:g} is the "
            "most. Nothing was written: choose another form, or compute in float32"
        )
    if found.probabilities is not None:
        apart = _margins(preprocessing, expected) > 2 * TOLERANCE
        if len(strange := np.flatnonzero(apart & (found.values != own.values))):
            raise ExportError(
                f"the model exported to {form} predicts {found.values[strange[0]]!r} for a row, and the model itself "
                f"{own.values[strange[0]]!r}. Nothing was written: choose another form"
            )
    return float(differences.max())


def _margins(preprocessing: Preprocessing, probabilities: Numbers) -> Numbers:
    """Return how far the probabilities of each row are from those with which another class is predicted."""
    if preprocessing.positive:
        positive = preprocessing.classes.index(preprocessing.positive)
        return np.abs(probabilities[:, positive] - preprocessing.threshold)
    top = np.sort(probabilities, axis=1)
    return np.asarray(top[:, -1] - top[:, -2])


def _numbers(predictions: Predictions) -> Numbers:
    numbers = predictions.values if predictions.probabilities is None else predictions.probabilities
    return np.asarray(numbers, np.float64)
