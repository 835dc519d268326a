"""The model that MLflow loads: its file is copied into each export, and needs mlflow, torch, numpy and pandas alone.

It reads `preprocessing.json` and `model.pt2`, which are next to it. Fairbloom does not import it.
"""

import json
import re
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import torch
from mlflow.pyfunc.model import PythonModel

WHOLE = re.compile(r"[+-]?[0-9]+\.0*")


class ServedModel(PythonModel):
    """A program of torch.export with its preprocessing."""

    def load_context(self, context: Any) -> None:
        """Read the files."""
        self._how = json.loads(Path(context.artifacts["preprocessing"]).read_bytes())
        cells = context.model_config  # which have no value, the largest number, and what rare categories are called
        self._missing, self._largest, self._other = frozenset(cells["missing"]), cells["largest"], cells["other"]
        self._arrays = cells["arrays"]
        self._program = torch.export.load(context.artifacts["program"]).module()

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return `predicted_TARGET`, and `probability_CLASS` for each class.

        MLflow takes another annotation of the input for a schema, and warns.
        """
        how = self._how
        if how["form"] == "table":
            inputs = [self._of_table(model_input)]
        else:
            inputs = (
                [np.asarray(model_input[name]) for name in self._arrays]
                if len(self._arrays) > 1
                else [np.asarray(model_input)]
            )
        with torch.no_grad():
            found = self._program(*map(torch.from_numpy, inputs)).numpy()
        index = model_input.index if isinstance(model_input, pd.DataFrame) else None
        predicted = f"predicted_{how['target'] or 'target'}"
        if not how["classes"]:
            return pd.DataFrame({predicted: found}, index=index)
        places = found.argmax(axis=1)
        if how["positive"]:
            positive = how["classes"].index(how["positive"])
            places = np.where(found[:, positive] >= how["threshold"], positive, 1 - positive)
        values = {predicted: np.array(how["classes"], object)[places]}
        values |= {f"probability_{name}": found[:, place] for place, name in enumerate(how["classes"])}
        return pd.DataFrame(values, index=index)

    def _of_table(self, frame: pd.DataFrame) -> np.ndarray[Any, Any]:
        columns = self._how["columns"]
        if lacking := [column["name"] for column in columns if column["name"] not in frame]:
            raise ValueError(f"the data frame lacks the columns {', '.join(map(repr, lacking))}")
        blocks = [self._column(column, frame[column["name"]]) for column in columns]
        return np.concatenate(blocks, axis=1)

    def _column(self, column: dict[str, Any], series: "pd.Series[Any]") -> np.ndarray[Any, Any]:
        cells = ["" if gone else str(cell).strip() for cell, gone in zip(series, series.isna(), strict=True)]
        gone = np.array([cell.lower() in self._missing for cell in cells], bool)
        if gone.any() and not column["fill"]:
            raise ValueError(f"column {column['name']!r} has no value in row {series.index[gone.argmax()]!r}")
        if column["kind"] == "category":
            return self._categories(column, cells, gone)
        numbers = np.full(len(cells), np.nan)
        numbers[~gone] = [float(cell) for cell, missing in zip(cells, gone, strict=True) if not missing]
        if (np.abs(numbers) > self._largest).any():
            raise ValueError(f"column {column['name']!r} holds a number beyond {self._largest:g}")
        inputs = (numbers - column["center"]) / column["scale"] if column["scale"] > 0.0 else np.zeros(len(cells))
        return np.where(gone, 0.0, inputs).astype(np.float32)[:, None]

    def _categories(self, column: dict[str, Any], cells: list[str], gone: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        places = {name: place for place, name in enumerate(column["categories"])}
        rest = places[self._other] if column["other"] else -1
        short = (cell.partition(".")[0] if WHOLE.fullmatch(cell) else cell for cell in cells)
        found = np.where(gone, -1, np.array([places.get(cell, rest) for cell in short], np.int64))
        inputs: np.ndarray[Any, Any] = (found[:, None] == np.arange(len(places))).astype(np.float32)
        return inputs


mlflow.models.set_model(ServedModel())
