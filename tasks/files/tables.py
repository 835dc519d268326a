"""CSV files of a user's own: a file for each client, or one file with a column that names the client."""

import logging
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.protocol.settings import split_names

from .. import models
from ..task import Described, Setup, Task
from .columns import EMPTY, Agreed
from .folders import files_in
from .reading import Column, Table, read
from .reasons import DataError
from .rows import Options, Part, column_called, kind_of
from .targets import Target, in_order, named

log = logging.getLogger("flwr").getChild("fairbloom")

ENDINGS = (".csv", ".tsv")


def load(
    setup: Setup,
    *,
    target: str,
    client: str,
    kind: str,
    classes: str,
    categories: str,
    ignore: str,
    missing: str,
    standardise: str,
    smallest_category: int,
) -> Task:
    """Return the clients of a folder of CSV files, or of one file.

    Columns of numbers are standardised and those of texts are one-hot encoded, by what training rows hold.
    """
    options = Options(
        target=target.strip(),
        client=client.strip(),
        kind=kind,
        classes=split_names(classes),
        categories=split_names(categories),
        ignore=split_names(ignore),
        missing=missing,
        together=standardise == "together",
        smallest_category=smallest_category,
    )
    data = Data(setup, options)
    aim = Agreed.of(setup.agreed).target if setup.agreed else Target()

    @cache
    def agreed() -> Agreed:
        return Agreed.of(setup.agreed)

    def model() -> torch.nn.Module:
        return models.build(setup.model, (agreed().width,), aim.outputs, setup.seed)

    return Task(
        clients=data.clients,
        model=model,
        loss=aim.loss,
        splits=lambda name: data.part(name).splits(agreed()),
        scores=aim.scores(),
        about=data.about,
        describe=data.describe,
    )


class Data:
    """The files of a folder, which are read when a client's data are asked for."""

    def __init__(self, setup: Setup, options: Options) -> None:
        self._setup, self._options = setup, options
        self.about = cache(self._about)
        if len(options.classes) == 1 or len(set(options.classes)) < len(options.classes):
            raise ReportableError(
                f"csv.classes = {','.join(options.classes)!r}: name two or more different classes, with commas"
            )

    @cached_property
    def _files(self) -> dict[str, Path]:
        return files_in(self._setup.data_dir, ENDINGS)

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients: of the files, or of what a column says."""
        if not self._options.client or not self._files:
            return tuple(self._files)
        return tuple(sorted(self._column_of_clients()[1].texts))

    def _column_of_clients(self) -> tuple[Table, Column]:
        """Return the one file, and the column that says whose a row is."""
        name = self._options.client
        if len(self._files) > 1:
            raise DataError(
                f"csv.client = {name!r}: it names the column of clients in a single file, and {self._setup.data_dir} "
                f"has {len(self._files)} files: leave csv.client out, so that each file is a client",
                "several-files",
                files=len(self._files),
            )
        (path,) = self._files.values()
        table = read(path, self._options.reading)
        column = column_called(table, name, "csv.client")
        if len(nobody := np.flatnonzero(column.codes < 0)):
            raise DataError(
                f"{table.place(int(nobody[0]), column.name)} names no client, as {len(nobody)} rows do: csv.client = "
                f"{name!r} must say of each row whose it is",
                "nameless-rows",
                column=column.label,
                rows=len(nobody),
            )
        return table, column

    def part(self, client: str) -> "Part":
        """Return the data of one client."""
        if not self._options.client:
            table = read(self._files[client], self._options.reading)
            return Part(client, table, np.arange(len(table)), self._setup, self._options)
        table, column = self._column_of_clients()
        rows = np.flatnonzero(column.codes == column.texts.index(client))
        return Part(client, table, rows, self._setup, self._options)

    def _about(self, client: str) -> Mapping[str, Any]:
        """Return what a client tells of its data; its warnings are given once, since `about` keeps this."""
        part = self.part(client)
        log.info("%s", part.in_words())
        return part.about()

    def describe(self) -> Described:
        """Return a row of each client, with what is wrong with it, and a row of each column."""
        clients: list[Mapping[str, str | int]] = []
        parts: list[Part] = []
        for name in self.clients:
            try:
                self.about(name)
                part = self.part(name)
            except FairbloomError as error:
                clients.append({"client": name, "problem": str(error)})
                continue
            parts.append(part)
            clients.append({"client": name, **part.in_short()})
        columns = dict.fromkeys(column.name for part in parts for column in (*part.inputs, part.target))
        return {"clients": clients, "columns": [_in_short(column, parts) for column in columns]}


def _in_short(name: str, parts: "list[Part]") -> Mapping[str, str | int]:
    """Return what is shown of a column over all clients."""
    own = [(column, part.rows) for part in parts for column in (*part.inputs, part.target) if column.name == name]
    texts = in_order({text for column, rows in own for text in column.texts_in(rows)})
    numbers = [column.numbers[rows] for column, rows in own if column.numbers is not None]
    there = np.concatenate([values[~np.isnan(values)] for values in numbers] or [np.zeros(0)])
    kinds = sorted({kind_of(column) for column, _ in own} - {EMPTY}) or [EMPTY]
    is_target = any(part.target.name == name for part in parts)
    return {
        "column": name,
        "kind": "target" if is_target else " or ".join(kinds),
        "values": named(texts) if texts else f"{there.min():g} to {there.max():g}" if len(there) else "",
        "missing": sum(int((column.missing[rows] > 0).sum()) for column, rows in own),
        "clients": len(own),
    }
