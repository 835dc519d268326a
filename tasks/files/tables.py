"""Tables of a user's own, CSV files say: a file for each client, or one file with a column that names the client."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch

from fairbloom.errors import FairbloomError
from fairbloom.logs import log

from .. import models
from ..preprocessing import Preprocessing
from ..schema import Schema, normalise, parse_schema
from ..task import Described, Setup, Task
from .folders import files_in
from .infer import columns_of, infer_schema
from .reading.formats import ENDINGS
from .reading.reader import MAX_TABLES, read
from .reading.table import Rows, Table
from .reasons import CellError, DataError
from .remarks import find_remarks
from .rows import SiteRows, different_cells, faults, preprocessing_of
from .shared_rows import find_shared_rows, pack_rows
from .targets import Target, join_names


def infer(setup: Setup, *, target: str, client: str, kind: str) -> str:
    """Return the schema that the files of a folder suggest."""
    text = infer_schema(files_in(setup.data_dir, ENDINGS), target.strip(), client.strip(), kind)
    if ignored := parse_schema(text).ignore:
        log.warning(
            "the columns %s are left out: fairbloom data --write-schema writes the schema that the files suggest, with "
            "the reasons",
            join_names(ignored),
        )
    return text


def load(setup: Setup, *, target: str, client: str, kind: str) -> Task:
    """Return the clients of a folder of tables, or of one file, as the schema describes them."""
    schema = parse_schema(setup.schema)
    files = CsvFiles(setup, schema)
    predicted = Target.of(schema)
    place = predicted.classes.index(schema.positive) if schema.positive else 1

    def preprocessing(client: str) -> Preprocessing:
        return files.rows_of(client).preprocessing() if client else preprocessing_of(setup.schema, "", None)

    def model() -> torch.nn.Module:
        return models.build(setup.model, (preprocessing("").width,), predicted.outputs, setup.seed)

    return Task(
        clients=files.clients,
        model=model,
        loss=predicted.loss,
        splits=lambda name: files.rows_of(name).splits(),
        scores=predicted.scores(),
        describe=files.describe,
        preprocessing=preprocessing,
        groupings=schema.group_names,
        group_scores=predicted.group_scores(place) if schema.groups else {},
        classes=len(predicted.classes),
        class_names=predicted.classes,
        positive=place,
        schema=setup.schema,
    )


class CsvFiles:
    """The files of a folder, which are read when a client's data are asked for."""

    def __init__(self, setup: Setup, schema: Schema) -> None:
        self._setup, self._schema = setup, schema
        self.rows_of = lru_cache(maxsize=MAX_TABLES)(self._rows_of)

    @cached_property
    def _paths(self) -> dict[str, Path]:
        return files_in(self._setup.data_dir, ENDINGS)

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients: of the files, or of the values of a column."""
        if not self._schema.client or not self._paths:
            return tuple(self._paths)
        return tuple(self._rows_of_clients)

    @cached_property
    def _rows_of_clients(self) -> Mapping[str, Rows]:
        """The rows of each client of the one file, by the column that names the client of each row."""
        if len(self._paths) > 1:
            raise DataError(
                f"the schema's client = {self._schema.client!r} names the column of clients in a single file, and "
                f"{self._setup.data_dir} has {len(self._paths)} files: leave it out, so that each file is a client",
                "several-files",
                files=len(self._paths),
            )
        table = self._read(next(iter(self._paths.values())))
        name = self._schema.client
        values = table.find(name)
        if values is None:
            raise CellError(table.source, name, f" has no column {name!r} of clients", "add it", "no-column")
        cells, codes = different_cells(values)
        names = [normalise(cell) for cell in cells]
        nameless = np.isin(codes, [k for k, each in enumerate(names) if not each])
        if nameless.any():
            row = int(np.argmax(nameless))
            problem, remedy = f"names no client, as {nameless.sum()} rows do", "name the client of each row"
            raise CellError(table.source, name, problem, remedy, "nameless-rows", row=row, rows=int(nameless.sum()))
        order = sorted(set(names) - {""})
        places = np.array([order.index(each) if each else -1 for each in names])[codes]
        rows = np.split(np.argsort(places, kind="stable"), np.cumsum(np.bincount(places))[:-1])
        return dict(zip(order, rows, strict=True))

    def _read(self, path: Path) -> Table:
        return read(path, self._schema.files.get(path.name) or self._schema.file(path.name))

    def table_of(self, client: str) -> Table:
        """Return the rows of a client as its file has them."""
        if not self._schema.client:
            return self._read(self._paths[client])
        return self._read(next(iter(self._paths.values()))).take(self._rows_of_clients[client])

    def _rows_of(self, client: str) -> SiteRows:
        return SiteRows(client, self.table_of(client), self._setup, self._setup.schema)

    def describe(self) -> Described:
        """Return a row of each client, of each fault, of each client's columns, and of each remark."""
        clients: list[dict[str, str | int]] = []
        wrong: list[dict[str, str | int]] = []
        usable: dict[str, SiteRows] = {}
        tables: dict[str, Table] = {}
        for name in self.clients:
            try:
                tables[name] = self.table_of(name)
                found = [_describe_fault(name, each) for each in faults(tables[name], self._schema)]
                if not found:
                    usable[name] = self.rows_of(name)
                    clients.append({"client": name, **usable[name].describe()})
                    continue
            except DataError as error:
                found = [_describe_fault(name, each) for each in (error, *error.others)]
            except FairbloomError as error:
                found = [{"client": name, "problem": str(error)}]
            wrong += found
            clients.append({"client": name, "problem": f"{len(found)} fault{'s' * (len(found) != 1)}, listed below"})
        packed = {
            name: pack_rows({column: cells.values for column, cells in rows.cells.items()})
            for name, rows in usable.items()
        }
        shared = find_shared_rows(packed)
        for each in clients:
            each |= {"warning": shared[str(each["client"])]} if each["client"] in shared else {}
        return {"clients": clients, "faults": wrong, **self._describe_columns(tables)}

    def _describe_columns(self, tables: Mapping[str, Table]) -> Described:
        """Return what each client's columns hold, and what a person should look at."""
        columns: list[Mapping[str, str | int]] = []
        remarks: list[Mapping[str, str | int]] = []
        for name, field in self._schema.fields.items():
            there = dict(columns_of(name, self._schema, tables))
            for client, cells in there.items():
                gone = int(cells.is_missing.sum())
                values = cells.values[cells.values >= (0 if field.categories else -np.inf)]
                held = f"{values.min():g} to {values.max():g}" if len(values) else "nothing"
                if field.categories and len(values):
                    held = join_names([field.categories[place] for place in np.unique(values)])
                columns.append({"column": name, "client": client, "values": held, "missing": gone})
            for client, remark in find_remarks(name, field, {each: cells.values for each, cells in there.items()}):
                remarks.append({"column": name, "client": client or "all", "remark": remark})
        return {"columns": columns, "remarks": remarks}


def _describe_fault(client: str, error: DataError) -> dict[str, str | int]:
    """Return a row of the table of faults."""
    if not isinstance(error, CellError):
        return {"client": client, "file": "", "line": "", "column": "", "value": "", "problem": str(error)}
    where: dict[str, str | int] = {"client": client, "file": Path(error.file).name}
    where["line"] = error.line or ""
    return {**where, "column": error.column, "value": error.value, "problem": error.problem, "remedy": error.remedy}
