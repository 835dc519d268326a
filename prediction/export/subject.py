"""What is exported: a model, how raw data become its inputs, and rows on which an export is tried."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairbloom import __version__
from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import Predictor
from fairbloom.prediction.rows import NewRows
from fairbloom.protocol.names import AGREED as AGREEMENT
from fairbloom.server.run_folder.files import AGREED, CONFIG
from fairbloom.tasks import load_task
from fairbloom.tasks.preprocessing import ARRAYS, CATEGORY, TABLE, InputColumn, Preprocessing

from .errors import ExportError

ROWS = 256
"""The number of rows that an export of a table's model is tried on, and the largest of others."""

UNKNOWN = "no category of the training data"
"""A text that no column has as a category."""

Raw = Any
"""What is predicted for: a data frame of a table's columns, or an array of inputs, first dimension the examples."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What is exported.

    Attributes
    ----------
    predictor
        The model.
    preprocessing
        How raw data become its inputs, and its outputs predictions.
    raw
        Rows on which an export is tried.
    """

    predictor: Predictor
    preprocessing: Preprocessing
    raw: Raw

    @classmethod
    def of(cls, predictor: Predictor) -> "Subject":
        """Return what is exported of a model.

        Raises
        ------
        ExportError
            When nothing says what its inputs are.
        """
        if predictor.preprocessing is None:
            return cls(predictor, *_of_task(predictor))
        return cls(predictor, predictor.preprocessing, make_rows(predictor.preprocessing))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example as the model takes it."""
        return self.preprocessing.shape or (self.preprocessing.width,)

    @property
    def about(self) -> dict[str, str]:
        """What an exported file says of itself."""
        predictor = self.predictor
        return {
            "fairbloom": __version__,
            "run": predictor.run.name,
            "task": predictor.task_name,
            "model": predictor.model,
            "client": predictor.client,
        }

    @property
    def predicted(self) -> str:
        """What the predicted class, or quantity, is called."""
        return f"predicted_{self.preprocessing.target or 'target'}"


def _of_task(predictor: Predictor) -> tuple[Preprocessing, Raw]:
    """Return how a task's examples are described that says nothing of its preprocessing, and some of them."""
    settings = CONFIG.read(predictor.run).settings
    needs = f"--to: what the model of task {predictor.task_name} takes is only seen in its data"
    try:
        task = load_task({**settings, AGREEMENT: AGREED.read(predictor.run)})
        inputs, _ = task.splits(predictor.client or task.clients[0]).test[slice(0, ROWS)]
    except FairbloomError as error:
        raise ExportError(f"{needs}, which cannot be had here: {error}") from error
    if not isinstance(inputs, Tensor) or inputs.dtype != torch.float32:
        raise ExportError(f"{needs}, and that is no tensor of torch.float32, the only input that can be exported")
    classes = tuple(map(str, range(task.classes or predictor.outputs(inputs[:1]).shape[1])))
    shape = tuple(inputs.shape[1:])
    return Preprocessing(form=ARRAYS, classes=classes if len(classes) > 1 else (), shape=shape), inputs.numpy()


def inputs_of(preprocessing: Preprocessing, raw: Raw) -> Tensor:
    """Return a model's inputs of raw data."""
    if preprocessing.form == TABLE:
        return preprocessing.inputs(NewRows.of_frame(raw).table(preprocessing))
    return torch.as_tensor(raw, dtype=torch.float32)


def make_rows(preprocessing: Preprocessing) -> Raw:
    """Return rows as training had them, and a little beyond: unknown categories, and missing values where allowed.

    The generator's seed is fixed, so that an export that is repeated is tried on the same rows.
    """
    random = np.random.default_rng(0)
    if preprocessing.form != TABLE:
        return random.random((ROWS, *preprocessing.shape), np.float32)
    import pandas  # imported late: it takes a second

    return pandas.DataFrame({column.name: _make_cells(column, random) for column in preprocessing.columns})


def _make_cells(column: InputColumn, random: np.random.Generator) -> Raw:
    """Return a column's cells."""
    gone = random.random(ROWS) < (0.1 if column.fill else 0.0)
    if column.kind == CATEGORY:
        cells = random.choice(np.array([*column.categories, UNKNOWN], object), ROWS)
        cells[gone] = ""
        return cells
    numbers = random.normal(column.center, 2.0 * (column.scale or 1.0), ROWS)
    numbers[gone] = np.nan
    return numbers
