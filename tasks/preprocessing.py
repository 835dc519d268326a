"""How a client's raw data become a model's inputs, and a model's outputs predictions: a value, which can be kept.

Training and prediction go through the same functions, so that they cannot differ. PyTorch is
imported late.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.system.values import decode_as

from .schema import Field, Schema, parse_schema

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2
"""The number of the form in which a preprocessing is written; a later one is refused."""

PREPROCESSING = "preprocessing.json"
"""The file of a client's preprocessing in its own folder, and of the common one in a run folder."""

NUMBER = "number"
CATEGORY = "category"
"""The kinds of input columns."""

TABLE = "table"
ARRAYS = "arrays"
IMAGES = "images"
"""The forms of raw data."""


@dataclass(frozen=True)
class InputColumn:
    """A column of a table that is an input of the model.

    Attributes
    ----------
    name
        Of the column, as the files have it.
    kind
        "number" or "category".
    categories
        Of a column of categories: each has an input, which is 1 where a row has it and else 0.
    center, scale
        Of a column of numbers: its input is (number - center) / scale; 0 where the scale is 0, as
        the column was constant in training.
    fill
        Whether a missing value is filled in: a number by the center, a category by none. Where it
        is not, a row without a value has no prediction.
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    center: float = 0.0
    scale: float = 0.0
    fill: bool = False

    @property
    def width(self) -> int:
        """How many inputs the column becomes."""
        return len(self.categories) if self.kind == CATEGORY else 1

    @property
    def field(self) -> Field:
        """The column as a schema has it."""
        kind: Literal["string", "number"] = "string" if self.kind == CATEGORY else "number"
        return Field(type=kind, categories=self.categories, missing="fill" if self.fill else "drop")

    def encode(self, inputs: NDArray[np.float32], values: NDArray[Any]) -> None:
        """Write the column's inputs, shape (rows, width), into an array of zeros.

        `values` are the numbers, NaN where one is missing, or the places of the categories, below 0
        for none.
        """
        if self.kind == CATEGORY:
            known = np.flatnonzero(values >= 0)
            inputs[known, values[known]] = 1.0
        elif self.scale > 0.0:  # what is constant in training says nothing, whatever it is later
            numbers = values - self.center
            numbers /= self.scale
            numbers[np.isnan(numbers)] = 0.0
            inputs[:, 0] = numbers


def input_columns(
    schema: Schema, measured: Mapping[str, tuple[float, float] | None]
) -> tuple[InputColumn, ...]:
    """Return the inputs that a schema's columns become.

    Numbers are standardised by its means, or by those measured.
    """
    found = []
    for name, field in schema.inputs.items():
        fill = schema.missing_of(name) == "fill"
        if field.categories:
            found.append(InputColumn(name, CATEGORY, field.categories, fill=fill))
            continue
        stated = (
            None if field.center is None or field.scale is None else (field.center, field.scale)
        )
        center, scale = stated or measured.get(name) or (0.0, 0.0)
        found.append(InputColumn(name, NUMBER, center=center, scale=scale, fill=fill))
    return tuple(found)


def encode_columns(columns: Sequence[InputColumn], values: Mapping[str, NDArray[Any]]) -> Tensor:
    """Return the inputs of some rows, shape (rows, width), torch.float32, from the values of their columns."""
    import torch

    rows = len(next(iter(values.values())))
    inputs = np.zeros((rows, sum(column.width for column in columns)), np.float32)
    start = 0
    for column in columns:
        column.encode(inputs[:, start : start + column.width], values[column.name])
        start += column.width
    return torch.from_numpy(inputs)


class Predictions(NamedTuple):
    """What a model predicts for some examples.

    Attributes
    ----------
    values
        The predicted class of each, as a text, or the predicted quantity in its own unit.
    probabilities
        Of each class, shape (examples, classes); None for a quantity.
    """

    values: NDArray[Any]
    probabilities: NDArray[np.float64] | None


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How raw data become inputs, and outputs predictions.

    Attributes
    ----------
    form
        Of the raw data: "table", "arrays" or "images".
    columns
        The inputs of a table in the order of the model's.
    ignored
        The columns that files may have besides, where there is no schema.
    target
        The column that is predicted.
    classes
        The names of the classes in the order of the model's outputs; () for a quantity.
    target_center, target_scale
        Of a quantity, which is predicted in units of `target_scale` around `target_center`.
    shape
        Of one example, as the model takes it; () for a table.
    white
        What bytes of an array are divided by, so that they are from 0 to 1; 0.0 where an array of
        bytes is refused.
    resized
        Whether images of another size are brought to that of `shape`.
    client
        The client whose data it is for; "" where it is for all.
    per_client
        Whether each client standardises numbers by those of its own, and these here are none yet.
    schema
        The text of the schema by which tables are read; "" where there is none.
    """

    form: str
    columns: tuple[InputColumn, ...] = ()
    ignored: tuple[str, ...] = ()
    target: str = ""
    classes: tuple[str, ...] = ()
    target_center: float = 0.0
    target_scale: float = 1.0
    shape: tuple[int, ...] = ()
    white: float = 0.0
    resized: bool = False
    client: str = ""
    per_client: bool = False
    schema: str = ""

    @property
    def width(self) -> int:
        """How many inputs a row of a table becomes."""
        return sum(column.width for column in self.columns)

    def inputs(self, values: Mapping[str, NDArray[Any]]) -> Tensor:
        """Return the inputs of a table's rows, shape (rows, width), torch.float32, from the values of their columns."""
        if self.per_client:
            raise FairbloomError(
                "numbers are standardised by each client's own means and deviations: name the"
                " client"
            )
        return encode_columns(self.columns, values)

    @property
    def dictionary(self) -> Schema:
        """The schema by which tables are read; of a known data set, it is what its columns say."""
        if self.schema:
            return parse_schema(self.schema)
        fields = {each.name: each.field for each in self.columns}
        target = (
            Field(type="string", categories=self.classes) if self.classes else Field(type="number")
        )
        return Schema(
            target=self.target, ignore=self.ignored, fields={**fields, self.target: target}
        )

    def array_inputs(self, x: NDArray[Any]) -> Tensor:
        """Return the inputs of an array, torch.float32.

        Its first dimension is the examples, each becomes `shape`.

        Bytes are divided by `white`. Raises ValueError where the array holds no numbers as the
        model takes them.
        """
        import torch

        if x.dtype.kind not in "biuf":
            raise ValueError(f"must hold numbers, got {x.dtype}")
        if x.dtype == np.uint8 and not self.white:
            raise ValueError("must hold floats as the model takes them, got uint8")
        numbers = x.astype(np.float32)
        scaled = numbers / np.float32(self.white) if x.dtype == np.uint8 else numbers
        return torch.from_numpy(scaled).reshape(-1, *self.shape)

    def decode(self, outputs: Tensor) -> Predictions:
        """Return what a model's outputs predict: a class, or a quantity in its own unit."""
        if not self.classes:
            values = outputs.reshape(len(outputs)).double().numpy()
            return Predictions(values * self.target_scale + self.target_center, None)
        probabilities = outputs.double().softmax(dim=1).numpy()
        return Predictions(
            np.array(self.classes, object)[probabilities.argmax(axis=1)], probabilities
        )

    def encode(self) -> bytes:
        """Return the content of its file, numbers exactly."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, allow_nan=False).encode()

    @classmethod
    def decode_file(cls, content: bytes) -> Preprocessing:
        """Return what `encode` has written; raise ValueError or KeyError for anything else."""
        written = json.loads(content)
        if not isinstance(written, dict):
            raise ValueError("it is no JSON object")
        if written["format"] != FORMAT:
            raise ValueError(
                f"its format is {written['format']!r}, and this Fairbloom reads {FORMAT}: update it"
            )
        return decode_as(cls, {key: value for key, value in written.items() if key != "format"})
