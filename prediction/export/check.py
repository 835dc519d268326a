"""Whether an exported model predicts what the model itself does: tried on rows, right after it is written."""

from dataclasses import dataclass

import numpy as np

from fairbloom.tasks.preprocessing import Predictions, Preprocessing

from .errors import ExportError
from .exportable import Exportable

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

TOLERANCE = 1e-4
"""Largest difference of a probability, or of a quantity in units of its deviation in training."""


@dataclass(frozen=True)
class ExportCheck:
    """What the model itself predicts for the rows on which an export is tried."""

    expected: Predictions
    preprocessing: Preprocessing

    @classmethod
    def of(cls, exported: Exportable) -> "ExportCheck":
        """Return a trial of a model."""
        preprocessing = exported.preprocessing
        return cls(preprocessing.decode(exported.predictor.outputs(exported.inputs)), preprocessing)

    def check(self, found: Predictions, form: str) -> float:
        """Return the largest difference from what is expected."""
        # Differences of a quantity are measured in its deviation in training.
        unit = 1.0 if self.preprocessing.classes else self.preprocessing.target_scale
        expected, other = (_numbers(each) / unit for each in (self.expected, found))
        if expected.shape != other.shape:
            raise ExportError(f"the model exported to {form} returns shape {other.shape}, and not {expected.shape}")
        differences = np.abs(other - expected).reshape(len(expected), -1).max(axis=1)
        row = int(np.argmax(~(differences <= TOLERANCE)))  # a NaN is beyond it
        if not differences[row] <= TOLERANCE:
            raise ExportError(
                f"the model exported to {form} predicts {other[row]} for row {row} of {len(expected)} rows, "
                f"where the model itself predicts {expected[row]}: they differ by {differences[row]:.2g}, and "
                f"{TOLERANCE:g} is the most. Nothing was written: choose another form, or compute in float32"
            )
        if found.probabilities is not None:
            apart = self._margins(expected) > 2 * TOLERANCE
            if len(strange := np.flatnonzero(apart & (found.values != self.expected.values))):
                raise ExportError(
                    f"the model exported to {form} predicts {found.values[strange[0]]!r} for a row, and the "
                    f"model itself {self.expected.values[strange[0]]!r}. Nothing was written: choose another form"
                )
        return float(differences.max())

    def _margins(self, probabilities: Numbers) -> Numbers:
        """Return how far the probabilities of each row are from those with which another class is predicted."""
        if self.preprocessing.positive:
            positive = self.preprocessing.classes.index(self.preprocessing.positive)
            return np.abs(probabilities[:, positive] - self.preprocessing.threshold)
        top = np.sort(probabilities, axis=1)
        return np.asarray(top[:, -1] - top[:, -2])


def _numbers(predictions: Predictions) -> Numbers:
    """Return the numbers of predictions: probabilities, or quantities."""
    numbers = predictions.values if predictions.probabilities is None else predictions.probabilities
    return np.asarray(numbers, np.float64)
