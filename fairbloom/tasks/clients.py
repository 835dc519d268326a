"""The clients of a file: views of its rows, which are encoded once for all of them.

PyTorch is imported late, when a client's examples are needed.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.tables import ClientTable, DataError, EncodedFile, Schema
from fairbloom.tables.encoding import measure_columns
from fairbloom.tables.hashes import hash_rows
from fairbloom.tables.preprocessing import (
    MAX_INPUT,
    TABLE,
    Preprocessing,
    encode_columns,
    encode_groups,
    find_beyond,
    input_columns,
)
from fairbloom.tables.sizes import Row
from fairbloom.text import join_first, plural, text_if

from .partition import MIN_EXAMPLES, Parts, splits_of
from .sides import count_missing, split_by_sides, warn_of_lost_columns
from .targets import Target, as_targets
from .task import Setup, Splits

if TYPE_CHECKING:
    from torch import Tensor

Rows = NDArray[np.intp]


class FileExamples(NamedTuple):
    """The examples of a file's clients, client by client.

    `moments` has, by the client's name, the mean and deviation of each of its own columns, shape
    (columns, 2).
    """

    inputs: "Tensor"
    targets: "Tensor"
    groups: "Tensor | None"
    units: NDArray[np.int64] | None
    moments: Mapping[str, NDArray[np.float64]]


class FileClients:
    """The clients of one file, `encoded`.

    `rows` has the rows of each client in it, and `preprocessing` is that of all. Clients with fewer
    than `smallest` usable rows are left out: `names` has the others.
    """

    def __init__(
        self,
        encoded: EncodedFile,
        rows: Mapping[str, Rows],
        setup: Setup,
        preprocessing: Preprocessing,
        smallest: int = 0,
    ) -> None:
        self.encoded = encoded
        self._of_all = preprocessing
        self.rows = rows
        usable = {name: each[encoded.usable[each]] for name, each in rows.items()}
        self._usable = {name: each for name, each in usable.items() if len(each) >= smallest}
        self._setup = setup
        # The number of each client's table, and of its missing rows, as in Splits.
        self._tables: dict[str, tuple[int, int]] = {}
        self.names = tuple(self._usable)
        self.left_out = tuple(name for name in rows if name not in self._usable)

    def splits(self, client: str) -> Splits:
        """Return the examples of a client, in the tensors of all; raise DataError if unusable."""
        parts = self._parts_of(client)
        inputs, targets, groups, units, _ = self._examples
        splits = splits_of(inputs, targets, parts, groups, units)
        version, missing = self._tables[client]
        return replace(splits, version=version, missing=missing)

    def parts_in_file(self, client: str) -> Mapping[str, Rows]:
        """Return the rows of the file in each part of a client's examples, in the file's order."""
        usable = self._usable[client]
        parts = self._split(client, 0)._asdict()
        return {name: np.sort(usable[part]) for name, part in parts.items()}

    def preprocessing(self, client: str) -> Preprocessing:
        """Return a client's preprocessing: numbers are standardised by its training rows."""
        self._parts_of(client)
        return self._of_all.of_client(client, self._examples.moments[client].tolist())

    def table(self, client: str) -> ClientTable:
        """Return the client's rows of the file, those that are left out among them."""
        return ClientTable(self.encoded, self.rows[client])

    def describe(self, client: str) -> Row:
        """Return the client's row in the table of `fairbloom data`."""
        parts = self._parts_of(client)
        schema = self.encoded.schema
        rows = self._usable[client]
        target = self.encoded.columns[schema.target][rows]
        classes = schema.predicted.categories
        if classes:
            counts = np.bincount(target, minlength=len(classes))
            held = join_first(
                [f"{name}: {count}" for name, count in zip(classes, counts, strict=True)]
            )
        else:
            held = f"{target.min():g} to {target.max():g}"
        return {
            "train": len(parts.train),
            "test": len(parts.test),
            "target": held,
            "rows left out": len(self.rows[client]) - len(rows),
        }

    def _parts_of(self, client: str) -> Parts:
        """Return the rows of a client's examples in the tensors; raise DataError if unusable."""
        return self._parts[client] if client in self._parts else self._split(client, 0)

    @cached_property
    def _parts(self) -> Mapping[str, Parts]:
        parts: dict[str, Parts] = {}
        start = 0
        for client, rows in self._usable.items():
            with suppress(FairbloomError):  # raised again when the client's data are needed
                parts[client] = self._split(client, start)
                start += len(rows)
        return parts

    def _split(self, client: str, start: int) -> Parts:
        """Split a client's examples, which begin at row `start` of the tensors."""
        self.encoded.raise_faults(self.rows[client])
        rows = len(self.rows[client])
        kept = len(self._usable[client])
        if kept < MIN_EXAMPLES:
            dropped = text_if(kept < rows, f", {kept} of them without a missing value")
            raise DataError(
                f"{self.encoded.path} has {plural(rows, '1 row', f'{rows} rows')}{dropped}: at"
                f" least {MIN_EXAMPLES} are needed, four fifths for training and one for testing:"
                " add rows, or leave this client out",
                "few-rows",
                rows=rows,
                kept=kept,
                fewest=MIN_EXAMPLES,
            )
        usable = self._usable[client]
        units = self.encoded.units
        firsts = np.arange(kept)
        count = rows
        if units is not None:
            _, firsts, of_row = np.unique(units[usable], return_index=True, return_inverse=True)
            self._check_units(len(firsts))
            count = len(np.unique(units[self.rows[client]]))
        # No unit is split, and shares count units.
        unit = self.encoded.schema.unit
        warn_of_lost_columns(self.encoded.found, self.encoded.schema, self._setup)
        parts, version = split_by_sides(
            len(firsts), self._setup, client, lambda: self._contents(usable[firsts]), unit
        )
        self._tables[client] = version, count_missing(count, self._setup, client, unit)
        if units is None:
            return Parts(*(start + part for part in parts))
        of_units = (np.isin(of_row, part) for part in parts)
        return Parts(*(start + np.flatnonzero(which) for which in of_units))

    def _contents(self, rows: Rows) -> list[bytes]:
        """Return what is in each of these rows: the name of its unit, or all its values."""
        columns = self.encoded.columns
        hashes = hash_rows([columns[name][rows] for name in sorted(columns)])
        names = {place: name.encode() for place, name in enumerate(self.encoded.unit_names)}
        units = rows if self.encoded.units is None else self.encoded.units[rows]
        return [names.get(unit, row.tobytes()) for unit, row in zip(units, hashes, strict=True)]

    def _check_units(self, count: int) -> None:
        """Raise DataError unless there is a unit for each part of the split."""
        fewest = 3 if self._setup.validation_share else 2
        if count < fewest:
            raise DataError(
                f"{self.encoded.path} has {plural(count, '1 value', f'{count} values')} in column"
                f" {self.encoded.schema.unit!r}, the schema's unit: at least {fewest} are needed:"
                " add rows, or leave this client out",
                "few-units",
                units=count,
                fewest=fewest,
            )

    @cached_property
    def _examples(self) -> FileExamples:
        """The examples of all usable clients, encoded in whole columns."""
        import torch

        usable = [self._usable[client] for client in self._parts]
        schema = self.encoded.schema
        order = np.concatenate(usable)
        own = own_columns(schema)
        numbers = np.empty((len(own), len(order)))  # a row for each column
        for row, name in zip(numbers, own, strict=True):
            row[:] = self.encoded.columns[name][order]
        moments_of = [
            measure_columns(numbers.take(parts.train, axis=1)) for parts in self._parts.values()
        ]
        moments = np.stack(moments_of)
        values = dict(zip(own, numbers, strict=True)) | {
            name: column[order] for name, column in self.encoded.columns.items() if name not in own
        }
        columns = self._of_all.columns
        inputs = encode_columns(
            columns,
            values,
            {name: moments[:, place] for place, name in enumerate(own)},
            [len(rows) for rows in usable],
        )
        for name, rows in find_beyond(columns, inputs).items():
            log.warning(
                "%s, column %r: %s more than %g deviations away from the mean of training, where"
                " they are cut off, the first in row %d of the table: correct them",
                self.encoded.path,
                name,
                plural(len(rows), "1 number is", f"{len(rows)} numbers are"),
                MAX_INPUT,
                order[rows].min() + 1,
            )
        return FileExamples(
            torch.from_numpy(inputs),
            as_targets(values[schema.target], Target.of(schema)),
            encode_groups(schema, values),
            None if self.encoded.units is None else self.encoded.units[order],
            dict(zip(self._parts, moments, strict=True)),
        )


def own_columns(schema: Schema) -> list[str]:
    """Return the inputs that each client standardises by its own mean and deviation."""
    return [
        name
        for name, field in schema.inputs.items()
        if not field.categories and field.center is None
    ]


def preprocessing_of(schema: Schema) -> Preprocessing:
    """Return the preprocessing of tables by a schema, for all clients."""
    target = Target.of(schema)
    return Preprocessing(
        form=TABLE,
        columns=input_columns(schema),
        target=schema.target,
        classes=target.classes,
        target_center=target.center,
        target_scale=target.scale,
        per_client=tuple(own_columns(schema)),
        schema=schema.text,
    )
