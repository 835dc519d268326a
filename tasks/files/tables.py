"""Tables of a user's own, CSV files say: a file for each client, or one file with a column that names the client."""

from collections.abc import Mapping, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairbloom.errors import FairbloomError, ReportableError, did_you_mean
from fairbloom.logs import log
from fairbloom.protocol.settings import split_names

from .. import models
from ..groups import parse_groups
from ..preprocessing import Preprocessing
from ..row_digests import Digests
from ..task import Described, Setup, Task
from .columns import AgreedColumns
from .folders import files_in
from .reading.formats import ENDINGS, encoding_named
from .reading.numbers import Decimal
from .reading.reader import MAX_TABLES, read
from .reading.table import EMPTY, Column, Rows, Table
from .reasons import MAX_FAULTS, DataError
from .rows import ClientRows, CsvSettings, find_column
from .shared_rows import find_shared_rows
from .targets import Target, join_names, sort_classes


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
    group: str,
    positive: str,
    decimal: Decimal,
    commas: str,
    encoding: str,
) -> Task:
    """Return the clients of a folder of tables, or of one file; training rows standardise numbers and encode texts."""
    settings = CsvSettings(
        target=target.strip(),
        client=client.strip(),
        kind=kind,
        classes=split_names(classes),
        categories=split_names(categories),
        ignore=split_names(ignore),
        missing=missing,
        together=standardise == "together",
        smallest_category=smallest_category,
        groupings=parse_groups("csv.group", group),
        decimal=decimal,
        commas=split_names(commas),
        encoding=encoding_named(encoding),
    )
    files = CsvFiles(setup, settings)

    @cache
    def agreed() -> AgreedColumns:
        return AgreedColumns.from_json(setup.agreed)

    predicted = agreed().target if setup.agreed else Target()
    groupings = agreed().group_names(settings.groupings) if setup.agreed else {}
    place = predicted.find_positive(positive) if setup.agreed else 1

    def preprocessing(client: str) -> Preprocessing:
        if client:
            return files.rows_of(client).preprocessing(agreed())
        common = agreed().preprocessing(files.target_name, settings.known, fill=settings.missing == "fill")
        return settings.note_form(common)

    def model() -> torch.nn.Module:
        width = agreed().preprocessing("", (), fill=False).width
        return models.build(setup.model, (width,), predicted.outputs, setup.seed)

    return Task(
        clients=files.clients,
        model=model,
        loss=predicted.loss,
        splits=lambda name: files.rows_of(name).splits(agreed()),
        scores=predicted.scores(),
        about=files.about,
        describe=files.describe,
        preprocessing=preprocessing,
        behind=lambda name: files.rows_of(name).behind(),
        groupings=groupings,
        group_scores=predicted.group_scores(place) if groupings else {},
        classes=len(predicted.classes) if setup.agreed else None,
        class_names=predicted.classes,
        positive=place,
    )


class CsvFiles:
    """The files of a folder, which are read when a client's data are asked for."""

    def __init__(self, setup: Setup, settings: CsvSettings) -> None:
        self._setup, self._settings = setup, settings
        self.about = cache(self._about)
        self.rows_of = lru_cache(maxsize=MAX_TABLES)(self._rows_of)
        if len(settings.classes) == 1 or len(set(settings.classes)) < len(settings.classes):
            raise ReportableError(
                f"csv.classes = {','.join(settings.classes)!r}: name two or more different classes, with commas"
            )
        if settings.commas and settings.decimal == ",":
            raise ReportableError(
                f"csv.commas = {','.join(settings.commas)!r}: it names the files that have decimal commas, and "
                "csv.decimal=, says that all have: leave one of them out"
            )
        for each in settings.groupings:
            if each.column.lower() == settings.client.lower():
                raise ReportableError(
                    f"csv.group = {each.name!r}: that column names the clients, each of which would be one group: name "
                    "another column"
                )

    @cached_property
    def _paths(self) -> dict[str, Path]:
        paths = files_in(self._setup.data_dir, ENDINGS)
        unknown = next((name for name in self._settings.commas if name not in paths), None)
        if unknown and paths and not self._setup.deployed:
            raise ReportableError(
                f"csv.commas = {','.join(self._settings.commas)!r}: {self._setup.data_dir} has no file {unknown!r}; "
                f"{did_you_mean(unknown, paths)}name files without their endings"
            )
        return paths

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients: of the files, or of the values of a column."""
        if not self._settings.client or not self._paths:
            return tuple(self._paths)
        return tuple(sorted(self._client_column[1].texts))

    @cached_property
    def target_name(self) -> str:
        """What the target is called; "" where no setting says it, and there are no files here."""
        if self._settings.target or not self._paths:
            return self._settings.target
        return self.rows_of(self.clients[0]).target.name

    @cached_property
    def _client_column(self) -> tuple[Table, Column]:
        """The one file, and its column that names the client of each row."""
        name = self._settings.client
        if len(self._paths) > 1:
            raise DataError(
                f"csv.client = {name!r}: it names the column of clients in a single file, and {self._setup.data_dir} "
                f"has {len(self._paths)} files: leave csv.client out, so that each file is a client",
                "several-files",
                files=len(self._paths),
            )
        (path,) = self._paths.values()
        table = read(path, self._settings.hints_of(path))
        column = find_column(table, name, "csv.client")
        if len(nobody := np.flatnonzero(column.codes < 0)):
            raise DataError(
                f"{table.place(int(nobody[0]), column.name)} names no client, as {len(nobody)} rows do: csv.client = "
                f"{name!r} must name the client of each row",
                "nameless-rows",
                column=column.label,
                rows=len(nobody),
            )
        return table, column

    @cached_property
    def _rows_of_clients(self) -> list[Rows]:
        """The rows of each client of the one file, in the order of the column's texts."""
        column = self._client_column[1]
        codes = column.codes.astype(np.min_scalar_type(len(column.texts)))  # the narrower, the faster they are sorted
        return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])

    def _rows_of(self, client: str) -> ClientRows:
        if not self._settings.client:
            path = self._paths[client]
            table = read(path, self._settings.hints_of(path))
            return ClientRows(client, table, np.arange(len(table)), self._setup, self._settings)
        table, column = self._client_column
        rows = self._rows_of_clients[column.texts.index(client)]
        return ClientRows(client, table, rows, self._setup, self._settings)

    def _about(self, client: str) -> Mapping[str, Any]:
        """Return the summary of a client's data; its warnings are given once, since `about` keeps this."""
        rows = self.rows_of(client)
        log.info("%s", rows.summary())
        return rows.about()

    def describe(self) -> Described:
        """Return a row of each client, with what is wrong with it, and a row of each column."""
        clients: list[dict[str, str | int]] = []
        usable: list[ClientRows] = []
        digests: dict[str, Digests] = {}
        for name in self.clients:
            try:
                self.about(name)
                rows = self.rows_of(name)
            except FairbloomError as error:
                clients.append({"client": name, "problem": list_faults(error)})
                continue
            usable.append(rows)
            digests[name] = rows.digests()
            clients.append({"client": name, **rows.describe()})
        shared = find_shared_rows(digests)
        for each in clients:
            each |= {"warning": shared[str(each["client"])]} if each["client"] in shared else {}
        columns = dict.fromkeys(column.name for rows in usable for column in (*rows.inputs, rows.target))
        return {"clients": clients, "columns": [_describe_column(column, usable) for column in columns]}


def list_faults(error: FairbloomError) -> str:
    """Return what is wrong with a client's data, a line a fault, of many the first few."""
    faults = [error, *(error.others if isinstance(error, DataError) else ())]
    more = [f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
    return "\n".join([*map(str, faults[:MAX_FAULTS]), *more])


def _describe_column(name: str, clients: Sequence[ClientRows]) -> Mapping[str, str | int]:
    having = [(column, each.rows) for each in clients for column in (*each.inputs, each.target) if column.name == name]
    texts = sort_classes({text for column, rows in having for text in column.texts_in(rows)})
    kinds = sorted({column.kind for column, _ in having} - {EMPTY}) or [EMPTY]
    numbers = [column.numbers[rows] for column, rows in having if column.numbers is not None]
    there = [values for values in (each[~np.isnan(each)] for each in numbers) if len(values)]
    span = f"{min(each.min() for each in there):g} to {max(each.max() for each in there):g}" if there else ""
    return {
        "column": name,
        "kind": "target" if any(each.target.name == name for each in clients) else " or ".join(kinds),
        "values": join_names(texts) if texts else span,
        "missing": sum(column.count_missing(rows) for column, rows in having),
        "clients": len(having),
    }
