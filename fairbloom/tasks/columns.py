"""The task `csv`: a table for each client, or one table with a column that names the client.

PyTorch is imported late, because `fairbloom data` only reads tables.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fairbloom import tables
from fairbloom.errors import FairbloomError, did_you_mean, join_names
from fairbloom.logs import log
from fairbloom.tables import ClientTable, DataError
from fairbloom.tables.encoding import encode_files
from fairbloom.tables.folders import files_in
from fairbloom.tables.inference import Wanted
from fairbloom.tables.preprocessing import Preprocessing
from fairbloom.tables.schema import (
    EVERY_FILE,
    Missing,
    Schema,
    SchemaError,
    check_schema,
    client_of,
    is_of_client,
    key_of_client,
    parse_schema,
)

from .catalogue import TASKS
from .clients import FileClients, preprocessing_of
from .targets import POSITIVE_WORDS, Target
from .task import Described, Setup, Suggested, Task

if TYPE_CHECKING:
    from torch import nn

# The endings of tables.
ENDINGS = TASKS["csv"].reads


def infer(
    setup: Setup,
    *,
    target: str,
    client: str,
    unit: str,
    missing: Missing,
    kind: str,
    smallest_client: int,
    without: Collection[str] = (),
    advise: bool = False,
) -> Suggested:
    """Return the schema that the files of a folder suggest; clients in `without` are not read."""
    files = files_in(setup.data_dir, ENDINGS)
    if client.strip():  # one file has all clients
        count = sum(map(len, files.values()))
        _check_single(setup.data_dir, client.strip(), count)
    wanted = Wanted(
        positive_words=POSITIVE_WORDS,
        target=target.strip(),
        client=client.strip(),
        unit=unit.strip(),
        missing=missing,
        kind=kind,
        without=without,
        advise=advise,
    )
    used = files if wanted.client else {name: files[name] for name in files if name not in without}
    draft = tables.infer(used, wanted)
    text = draft.text
    check_schema(draft.schema, text, f"the schema that {setup.data_dir} suggests")
    if draft.left_out:
        reasons = [f"{name} ({why.said})" for name, why in draft.left_out.items()]
        log.warning(
            "left out: %s; the schema that fairbloom data --write-schema writes has all reasons",
            join_names(reasons),
        )
    return Suggested(text, draft.questions)


def load(setup: Setup, *, smallest_client: int, **_: str) -> Task:
    """Return the clients of a folder of tables, or of one file, as the schema describes them.

    The other settings are for the inference of a schema.
    """
    schema = parse_schema(setup.schema_)
    files = CsvFiles(setup, schema, smallest_client)
    predicted = Target.of(schema)
    place = predicted.classes.index(schema.positive) if schema.positive else None

    def preprocessing(client: str) -> Preprocessing:
        if client:
            return files.clients_with(client).preprocessing(client)
        return files.preprocessing

    def model() -> "nn.Module":
        from . import models

        return models.build(
            setup.model, (preprocessing("").width,), predicted.outputs, setup.seed, norm=setup.norm
        )

    return Task(
        clients=files.clients,
        model=model,
        loss=predicted.loss,
        splits=lambda name: files.clients_with(name).splits(name),
        scores=predicted.scores(),
        describe=files.describe,
        compared=files.compared,
        tabulate=files.tabulate,
        parts=lambda name: files.clients_with(name).parts_in_file(name),
        preprocessing=preprocessing,
        groupings=schema.group_names,
        group_scores=predicted.group_scores(1 if place is None else place) if schema.groups else {},
        classes=len(predicted.classes),
        class_names=predicted.classes,
        positive=place,
        schema=schema.text,
        left_out=files.left_out,
    )


def _check_single(place: str, client: str, count: int) -> None:
    """Raise DataError if there is a column of clients, and not a single file."""
    if count > 1:
        raise DataError(
            f"client = {client!r} is for a single file, and {place} has {count} files: leave it"
            " out, so that each file, or folder of files, is a client",
            "several-files",
            files=count,
        )


class CsvFiles:
    """The files of a folder, which are read when a client's data are first needed.

    `clients` are named as their files or folders, or by a column of a single file, which is read at
    once. A setup for one client has all files of the folder as its parts.
    `left_out` are the clients of a single file that have too few rows: they are logged, and
    DataError is raised if all are. `preprocessing` is that of all clients.
    """

    def __init__(self, setup: Setup, schema: Schema, smallest: int) -> None:
        self._setup = setup
        self._smallest = smallest
        self._schema = schema
        self.preprocessing = preprocessing_of(schema)
        self._paths = files_in(setup.data_dir, ENDINGS, of_one=setup.clients == 1)
        self._of_file = lru_cache(maxsize=None)(self._read_file)
        self.clients = tuple(self._paths)
        self.left_out: tuple[str, ...] = ()
        if self._schema.client and self._paths:
            count = sum(map(len, self._paths.values()))
            _check_single(setup.data_dir, self._schema.client, count)
            single = self._of_file(*self._paths)
            self.clients = single.names
            self.left_out = single.left_out
        if self.left_out:
            fault = (
                f"{len(self.left_out):,} of {len(single.rows):,} clients have fewer than"
                f" {smallest} rows"
            )
            if not self.clients:
                raise DataError(
                    f"data-dir = {setup.data_dir!r}: {fault}: name the right column of clients"
                )
            log.warning("%s and are left out: %s", fault, join_names(self.left_out))

    def clients_with(self, client: str) -> FileClients:
        """Return the clients of the file that has a client."""
        return self._of_file(*self._paths) if self._schema.client else self._of_file(client)

    def _read_file(self, name: str) -> FileClients:
        file = encode_files(self._paths[name], name, self._schema)
        if file.rows is None:
            rows = {name: np.arange(len(file))}
            return FileClients(file, rows, self._setup, self.preprocessing)
        return FileClients(file, file.rows, self._setup, self.preprocessing, self._smallest)

    def describe(self, every: bool) -> Described:
        """Return tables that describe the data: of each client if `every`, or else in short.

        Raise SchemaError if the schema describes a file that a folder of several does not have.
        """
        keys = [key_of_client(client, paths[0].name) for client, paths in self._paths.items()]
        for name in self._schema.files if len(self._paths) > 1 else ():
            client = client_of(name)
            files = [path.name for path in self._paths.get(client, ())]
            is_there = bool(files) if is_of_client(name) else name.rpartition("/")[2] in files
            if client != EVERY_FILE and not is_there:
                raise SchemaError(
                    f"files.{name}: {self._setup.data_dir} has no such file:"
                    f" {did_you_mean(name, keys)}correct its name, or leave it out"
                )
        return tables.describe(
            self._schema,
            self._tables(),
            lambda name: self.clients_with(name).describe(name),
            every=every,
            on_device=self._setup.clients == 1,
        )

    def compared(self) -> tables.Comparison:
        """Return the clients' profiles, and what stands out."""
        return tables.compare_clients(self._schema, self._tables())

    def tabulate(self) -> list[tables.SiteRow]:
        """Return Table 1: each column at each client, and in all."""
        return tables.tabulate(self._schema, self._tables())

    def _tables(self) -> dict[str, ClientTable | FairbloomError]:
        """Return the table of each client, or why it cannot be read."""
        found: dict[str, ClientTable | FairbloomError] = {}
        for name in self.clients:
            try:
                found[name] = self.clients_with(name).table(name)
            except FairbloomError as error:
                found[name] = error
        return found
