"""Whether an exported model predicts what the model itself does: tried on made-up rows, right after it is written."""

from dataclasses import dataclass

import numpy as np

from fairbloom.prediction.predictor import Predictor
from fairbloom.tasks.preprocessing import CATEGORY, TABLE, InputColumn, Predictions, Preprocessing

from .form import ExportError, Raw, inputs_of, preprocessing_of

ROWS = 256
"""The number of rows that an export is tried on."""

TOLERANCE = 1e-4
"""Largest difference of a probability, or of a quantity in units of its deviation in training."""

UNKNOWN = "no category of the training data"
"""A text that is in no column; where there is such a category, it is tried like the others."""


@dataclass(frozen=True)
class Trial:
    """Rows, and what the model itself predicts for them.

    Attributes
    ----------
    raw
        The rows.
    expected
        The predictions.
    unit
        What differences of predictions are measured in: 1 for probabilities, the target's scale for a quantity.
    """

    raw: Raw
    expected: Predictions
    unit: float

    @classmethod
    def of(cls, predictor: Predictor) -> "Trial":
        """Return a trial of a model, the same every time."""
        preprocessing = preprocessing_of(predictor)
        raw = make_rows(preprocessing)
        outputs = predictor.outputs(inputs_of(preprocessing, raw))
        return cls(raw, preprocessing.decode(outputs), 1.0 if preprocessing.classes else preprocessing.target_scale)

    def check(self, found: Predictions, form: str) -> float:
        """Return the largest difference from what is expected.

        Raises
        ------
        ExportError
            When it is beyond TOLERANCE, or another class is predicted although the probabilities tell two apart.
        """
        expected, other = (_numbers(each) / self.unit for each in (self.expected, found))
        if expected.shape != other.shape:
            raise ExportError(f"the model exported to {form} returns shape {other.shape}, and not {expected.shape}")
        differences = np.abs(other - expected).reshape(len(expected), -1).max(axis=1)
        row = int(np.argmax(~(differences <= TOLERANCE)))  # a NaN is beyond it
        if not differences[row] <= TOLERANCE:
            raise ExportError(
                f"the model exported to {form} predicts {other[row]} for row {row} of {len(expected)} made-up rows, "
                f"where the model itself predicts {expected[row]}: they differ by {differences[row]:.2g}, and "
                f"{TOLERANCE:g} is the most. Nothing was written: choose another form, or compute in float32"
            )
        if found.probabilities is not None:
            top = np.sort(expected, axis=1)
            apart = top[:, -1] - top[:, -2] > 2 * TOLERANCE
            if len(strange := np.flatnonzero(apart & (found.values != self.expected.values))):
                raise ExportError(
                    f"the model exported to {form} predicts {found.values[strange[0]]!r} for a made-up row, and the "
                    f"model itself {self.expected.values[strange[0]]!r}. Nothing was written: choose another form"
                )
        return float(differences.max())


def _numbers(predictions: Predictions) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the numbers of predictions: probabilities, or quantities."""
    numbers = predictions.values if predictions.probabilities is None else predictions.probabilities
    return np.asarray(numbers, np.float64)


def make_rows(preprocessing: Preprocessing) -> Raw:
    """Return rows within what training had, and a little beyond: unknown categories, and missing values where allowed.

    The generator's seed is fixed, so that an export that is repeated is tried on the same rows.
    """
    random = np.random.default_rng(0)
    if preprocessing.form != TABLE:
        return random.random((ROWS, *preprocessing.shape), np.float32)
    import pandas

    return pandas.DataFrame({column.name: _cells(column, random) for column in preprocessing.columns})


def _cells(column: InputColumn, random: np.random.Generator) -> Raw:
    """Return a column's cells."""
    gone = random.random(ROWS) < (0.1 if column.fill else 0.0)
    if column.kind == CATEGORY:
        texts = np.array([*column.categories, UNKNOWN], object)
        cells = random.choice(texts, ROWS)
        cells[gone] = ""
        return cells
    numbers = random.normal(column.center, 2.0 * (column.scale or 1.0), ROWS)
    numbers[gone] = np.nan
    return numbers
