"""Turn raw data into a model's inputs, and its outputs into predictions, as a value for a file.

Training and prediction use the same functions, so that they cannot differ. Inputs are arrays, which
`tasks` and `prediction` turn into tensors; PyTorch is imported late.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.system.values import decode_as

from .schema import Field, Schema, SchemaFile, parse_schema

if TYPE_CHECKING:
    from torch import Tensor

# The version of the file's format; other versions are refused.
FORMAT = 3

# The file of the shared preprocessing in a run folder, of a client's in its folder, and of all
# clients' in the folder of their folders.
PREPROCESSING = "preprocessing.json"

# The kinds of input columns.
NUMBER = "number"
CATEGORY = "category"

# The largest standardised number: a model's outputs for larger ones would say nothing.
MAX_INPUT = 1e6

# The forms of raw data.
TABLE = "table"
ARRAYS = "arrays"
IMAGES = "images"


@dataclass(frozen=True)
class InputColumn:
    """A column of a table that is an input of the model.

    Attributes
    ----------
    name
        The column's name in the schema.
    kind
        "number" or "category".
    categories
        The categories of a column; each has an input, 1 for rows of this category, else 0.
    center, scale
        For a column of numbers: its input is (number - center) / scale, from -MAX_INPUT to
        MAX_INPUT. It is 0 if the scale is 0, because the column was constant in training.
    fill
        Whether a missing number is replaced by the center, and a missing category has zeros. If
        not, a row without a value has no prediction.
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    center: float = 0.0
    scale: float = 0.0
    fill: bool = False

    @property
    def width(self) -> int:
        """The number of inputs of the column."""
        return len(self.categories) if self.kind == CATEGORY else 1

    def encode(
        self,
        inputs: NDArray[np.float32],
        values: NDArray[Any],
        moments: Sequence[NDArray[np.float64]] = (),
    ) -> None:
        """Write the column's inputs, shape (rows, width), into an array of zeros.

        `values` are numbers, NaN if missing, or indices of categories, below 0 if missing.
        `moments` are center and scale of each row, if rows differ in them.
        """
        if self.kind == CATEGORY:
            known = np.flatnonzero(values >= 0)
            inputs[known, values[known]] = 1.0
            return
        center, scale = moments or np.array([self.center, self.scale])
        numbers = values - center
        varies = scale > 0.0  # a column that was constant in training stays 0
        np.divide(numbers, scale, out=numbers, where=varies)
        numbers[~varies | np.isnan(numbers)] = 0.0
        inputs[:, 0] = np.clip(numbers, -MAX_INPUT, MAX_INPUT)


def input_columns(schema: Schema) -> tuple[InputColumn, ...]:
    """Return the input columns of a schema; numbers are standardised as it states."""
    columns: list[InputColumn] = []
    for name, about in schema.inputs.items():
        column = InputColumn(
            name,
            CATEGORY if about.categories else NUMBER,
            about.categories,
            center=about.center or 0.0,
            scale=about.scale or 0.0,
            fill=schema.missing_of(name) == "fill",
        )
        columns.append(column)
    return tuple(columns)


def encode_columns(
    columns: Sequence[InputColumn],
    values: Mapping[str, NDArray[Any]],
    moments: Mapping[str, NDArray[np.float64]] = {},
    counts: Sequence[int] = (),
) -> NDArray[np.float32]:
    """Return the inputs of rows, shape (rows, width), from their columns' values.

    `moments` has center and scale of each client, shape (clients, 2), for columns in which clients
    differ in them; the rows of a client follow one another, and `counts` has the number of each.
    """
    rows = len(next(iter(values.values())))
    width = sum(column.width for column in columns)
    inputs = np.zeros((rows, width), np.float32)
    start = 0
    for column in columns:
        name = column.name
        of_rows: tuple[NDArray[np.float64], ...] = (
            tuple(np.repeat(moments[name].T, counts, axis=1)) if name in moments else ()
        )
        column.encode(inputs[:, start : start + column.width], values[name], of_rows)
        start += column.width
    return inputs


def encode_groups(schema: Schema, columns: Mapping[str, NDArray[Any]]) -> Tensor | None:
    """Return each row's group indices, shape (rows, groupings); None if there are no groupings."""
    import torch

    places = [
        by.places(columns[by.column], schema.fields[by.column].categories)
        for by in schema.groupings
    ]
    return torch.from_numpy(np.stack(places, axis=1)) if places else None


def find_beyond(
    columns: Sequence[InputColumn], inputs: NDArray[np.float32]
) -> dict[str, NDArray[np.intp]]:
    """Return the rows of `inputs` in which a column's number is cut off at MAX_INPUT, by name."""
    starts = np.cumsum([0, *(column.width for column in columns)])
    numbers = {
        column.name: int(start)
        for column, start in zip(columns, starts, strict=False)
        if column.kind == NUMBER
    }
    is_beyond = np.abs(inputs[:, [*numbers.values()]]) >= MAX_INPUT
    return {
        name: np.flatnonzero(each)
        for name, each in zip(numbers, is_beyond.T, strict=True)
        if each.any()
    }


class Predictions(NamedTuple):
    """A model's predictions for some examples.

    Attributes
    ----------
    values
        The names of the predicted classes, or the predicted quantities in their own unit.
    probabilities
        The probabilities of the classes, shape (examples, classes); None for a quantity.
    """

    values: NDArray[Any]
    probabilities: NDArray[np.float64] | None


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The way from raw data to inputs, and from outputs to predictions.

    Attributes
    ----------
    form
        The form of the raw data: "table", "arrays" or "images".
    columns
        The inputs of a table, in the order of the model's inputs.
    ignored
        Further columns that files may have, without a schema.
    target
        The column that is predicted.
    classes
        The names of the classes in the order of the model's outputs; () for a quantity.
    target_center, target_scale
        A quantity is predicted in units of `target_scale` around `target_center`.
    shape
        The shape of one example as the model's input; () for a table.
    white
        The divisor that maps bytes of an array to 0 to 1; 0.0 if arrays of bytes are refused.
    resized
        Whether images of another size are resized to `shape`.
    client
        The client of these data; "" for all clients.
    per_client
        The columns that each client standardises by its own mean and deviation, which are missing
        here.
    moments
        These means and deviations, (center, scale) of each such column, of each client by name; {}
        if they are on the clients' devices.
    schema
        The text of the schema for reading tables, or "".
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
    per_client: tuple[str, ...] = ()
    moments: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    schema: str = ""

    @property
    def width(self) -> int:
        """The number of inputs of a table's row."""
        return sum(column.width for column in self.columns)

    def of_clients(self, clients: Iterable[Preprocessing]) -> Preprocessing:
        """Return this preprocessing with the means and deviations of these clients."""
        moments = {}
        for client in clients:
            columns = {column.name: column for column in client.columns}
            moments[client.client] = tuple(
                (columns[name].center, columns[name].scale) for name in self.per_client
            )
        return replace(self, moments=moments)

    def of_client(self, client: str, moments: Sequence[tuple[float, float]]) -> Preprocessing:
        """Return the preprocessing of a client with these means and deviations."""
        own = dict(zip(self.per_client, moments, strict=True))
        columns: list[InputColumn] = []
        for column in self.columns:
            if column.name in own:
                center, scale = own[column.name]
                column = InputColumn(column.name, NUMBER, (), center, scale, column.fill)
            columns.append(column)
        return replace(self, columns=tuple(columns), client=client, per_client=(), moments={})

    def inputs(self, values: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the inputs of a table's rows, shape (rows, width)."""
        if self.per_client:
            raise FairbloomError(
                "numbers are standardised by each client's own means and deviations: name the"
                " client"
            )
        return encode_columns(self.columns, values)

    @property
    def dictionary(self) -> Schema:
        """The schema for reading the client's tables.

        For a known data set it is built from `columns`.
        """
        if self.schema:
            schema = parse_schema(self.schema)
            return schema.of_client(schema.fields_of(self.client))
        fields: dict[str, Field] = {}
        for column in self.columns:
            fields[column.name] = Field(
                type="string" if column.categories else "number",
                categories=column.categories,
                missing="fill" if column.fill else "drop",
            )
        fields[self.target] = (
            Field(type="string", categories=self.classes) if self.classes else Field(type="number")
        )
        return Schema(target=self.target, ignore=self.ignored, fields=fields)

    @property
    def own(self) -> SchemaFile:
        """How the client has the columns of the schema."""
        return SchemaFile(fields=self.dictionary.fields_of(self.client))

    def array_inputs(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return the inputs of an array, shape (examples, …) with `shape` last.

        The array's first dimension is the examples. Bytes are divided by `white`. Raises ValueError
        if the array does not hold numbers, or holds bytes without a `white`.
        """
        if x.dtype.kind not in "biuf":
            raise ValueError(f"must hold numbers, got {x.dtype}")
        if x.dtype == np.uint8 and not self.white:
            raise ValueError("must hold floats as the model takes them, got uint8")
        numbers = x.astype(np.float32)
        if x.dtype == np.uint8:
            numbers /= np.float32(self.white)
        return numbers.reshape(-1, *self.shape)

    def decode(self, outputs: Tensor) -> Predictions:
        """Return the predictions of a model's outputs: classes, or quantities in their own unit."""
        if not self.classes:
            numbers = outputs.reshape(len(outputs)).double().numpy()
            return Predictions(numbers * self.target_scale + self.target_center, None)
        probabilities = outputs.double().softmax(dim=1).numpy()
        return Predictions(
            np.array(self.classes, object)[probabilities.argmax(axis=1)], probabilities
        )

    def encode(self) -> bytes:
        """Return the content of the file, with exact numbers."""
        # Without line breaks where there are many clients: then it takes a twentieth of the time.
        indent = None if self.moments else 2
        # asdict copies each number by itself.
        content = {"format": FORMAT, **asdict(replace(self, moments={})), "moments": self.moments}
        return json.dumps(content, indent=indent, allow_nan=False).encode()

    @classmethod
    def decode_file(cls, content: bytes) -> Preprocessing:
        """Return the value that `encode` wrote; raise ValueError or KeyError for anything else."""
        written = json.loads(content)
        if not isinstance(written, dict):
            raise ValueError("it is not a JSON object")
        if written["format"] != FORMAT:
            raise ValueError(
                f"its format is {written['format']!r}, and this Fairbloom reads {FORMAT}: use the"
                " version that wrote it"
            )
        return decode_as(cls, {key: value for key, value in written.items() if key != "format"})
