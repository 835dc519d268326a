"""What is exported: a model, how raw data become its inputs, and rows on which an export is tried."""

from collections.abc import Mapping
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
from fairbloom.tasks.inputs import Inputs, map_inputs, tensors_of
from fairbloom.tasks.preprocessing import ARRAYS, CATEGORY, TABLE, InputColumn, Preprocessing

from .errors import ExportError, quiet

ROWS = 256
"""The number of rows that an export of a table's model is tried on, and the largest of others."""

UNKNOWN = "no category of the training data"
"""A text that no column has as a category."""

Raw = Any
"""What is predicted for: a data frame of a table's columns, or arrays by name, first dimension the examples."""


@dataclass(frozen=True, eq=False)
class Exportable:
    """A model with its preprocessing, rows of raw data to try an export on, and what the model takes of these rows."""

    predictor: Predictor
    preprocessing: Preprocessing
    raw: Raw
    inputs: Inputs

    @classmethod
    def of(cls, predictor: Predictor) -> "Exportable":
        """Return what is exported of a model."""
        how = predictor.preprocessing
        if how is not None and how.form == TABLE:
            rows = make_rows(how)
            with quiet():  # that categories which are made up are unknown
                return cls(predictor, how, rows, how.inputs(NewRows.of_frame(rows).table(how)))
        if how is None:
            how, inputs = _of_task(predictor)
        else:
            inputs = torch.from_numpy(np.random.default_rng(0).random((ROWS, *how.shape), np.float32))
        arrays = (tensor.numpy() for tensor in tensors_of(inputs))
        return cls(predictor, how, dict(zip(array_names(inputs), arrays, strict=True)), inputs)

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(tensors_of(self.inputs)[0])

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of one example in each of the tensors that the model takes."""
        return [tuple(tensor.shape[1:]) for tensor in tensors_of(self.inputs)]

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
            **({} if predictor.threshold is None else {"threshold": f"{predictor.threshold:g}"}),
        }

    @property
    def predicted(self) -> str:
        """What the predicted class, or quantity, is called."""
        return f"predicted_{self.preprocessing.target or 'target'}"


def _of_task(predictor: Predictor) -> tuple[Preprocessing, Inputs]:
    """Return how a task's examples are described that says nothing of its preprocessing, and some of them."""
    settings = CONFIG.read(predictor.run).settings
    needs = f"--to: what the model of task {predictor.task_name} takes is only seen in its data"
    try:
        task = load_task({**settings, AGREEMENT: AGREED.read(predictor.run)})
        inputs, _ = task.splits(predictor.client or task.clients[0]).test[slice(0, ROWS)]
    except FairbloomError as error:
        raise ExportError(f"{needs}, which cannot be had here: {error}") from error
    numbers = range(task.classes or predictor.outputs(map_inputs(inputs, lambda tensor: tensor[:1])).shape[1])
    classes = task.class_names or tuple(map(str, numbers))
    shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()
    how = Preprocessing(form=ARRAYS, classes=classes if len(classes) > 1 else (), shape=shape)
    return how.with_threshold(predictor.threshold, task.positive), inputs


def array_names(inputs: Inputs) -> list[str]:
    """Return what the arrays of inputs are called: by their names, or in order."""
    if isinstance(inputs, tuple):
        return [f"input_{place}" for place in range(len(inputs))]
    return list(inputs) if isinstance(inputs, Mapping) else ["inputs"]


def make_rows(preprocessing: Preprocessing) -> Raw:
    """Return rows like those of training and slightly beyond, with unknown categories and allowed missing values."""
    import pandas  # imported late: it takes a second

    random = np.random.default_rng(0)
    return pandas.DataFrame({column.name: _make_cells(column, random) for column in preprocessing.columns})


def _make_cells(column: InputColumn, random: np.random.Generator) -> Raw:
    gone = random.random(ROWS) < (0.1 if column.fill else 0.0)
    if column.kind == CATEGORY:
        cells = random.choice(np.array([*column.categories, UNKNOWN], object), ROWS)
        cells[gone] = ""
        return cells
    numbers = random.normal(column.center, 2.0 * (column.scale or 1.0), ROWS)
    numbers[gone] = np.nan
    return numbers
