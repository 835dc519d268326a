"""A task of the catalogue: its name, its settings and its files, before its data are loaded.

PyTorch is imported late, because the command line lists tasks without it.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from fairbloom.errors import FairbloomError, ReportableError, did_you_mean
from fairbloom.imports import import_callable, imported, is_import_string
from fairbloom.protocol.names import ONE_CLIENT
from fairbloom.protocol.parameters import Parameter, parameters_of
from fairbloom.protocol.settings import RunSettings, Setup, Value
from fairbloom.system.files import expand_home
from fairbloom.tables.schema import SCHEMA_NAME, parse_schema, read_schema
from fairbloom.tables.toml import Question

from .classifiers import PREFIX, check_classifier
from .task import MAX_COMPARED, Splits, Suggested, Task

# How lists name the user's own partition, which every task that splits its examples accepts.
OWN_PARTITION = "yours as my_module:deal"


class DataFile(NamedTuple):
    """A file of a known data set.

    `path` is relative to the data folder. `md5` is the checksum, "" if the file has no fixed one.
    `address` is the URL of this file, of the compressed file (.gz), or of an archive with the file
    at that path (.tar.gz).
    """

    path: str
    md5: str
    address: str


@dataclass(frozen=True)
class TaskInfo:
    """A catalogue entry: a task before its data are loaded.

    Attributes
    ----------
    name
        The value of the run config's `task`, and the first part of its parameters' keys.
    summary, source
        The content of the data and their origin, one line each.
    loader
        "module:function" that returns the Task; called with a `Setup`, and with the task's
        parameters by keyword.
    models, partitions
        The values that the run config's `model` and `partition` may have, the default first; ()
        if the setting has no effect.
    settings
        The settings that belong only to this task.
    clients
        The default number of clients that the data are split into.
    natural
        The partitions with clients that come with the data: hospitals, speakers, writers.
    files
        The files of a known data set, below the folder that `data-dir`, or the environment, names.
    reads
        The endings of a user's own files, a file or folder for each client, in the folder that the
        setting `data-dir` names; () for a task that reads none.
    levels
        The depth of its files in that folder; 1: directly in the folder.
    infer
        "module:function" that returns the schema that these files suggest, and the questions on
        it; called as the loader.
    schema
        "module:function" that checks the text of a schema.
    in_process
        The names of its settings that have an effect, even with a schema, if one process has the
        files of all clients; devices do not take them. All its other settings are for the
        inference of a schema, if it has one.
    is_user_defined
        Whether a user has named it by an import string: it then accepts any model, and raises its
        own errors.
    tests
        How the seed affects the test examples. "split": it draws them from one data set, which all
        seeds share. "fixed": they are the same with each seed. "fresh": it generates them, so that
        no two seeds share any.
    split_by
        The task's parameter, and the values of it with which the seed splits; with any other value
        the test examples are fixed. None if no parameter decides.
    held_out
        The share of test examples if it is not the setting `test-share`; else 0.
    """

    name: str
    summary: str
    source: str
    loader: str
    models: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    settings: tuple[Parameter, ...] = ()
    clients: int = 20
    natural: tuple[str, ...] = ()
    files: tuple[DataFile, ...] = ()
    reads: tuple[str, ...] = ()
    levels: int = 1
    infer: str = ""
    schema: str = ""
    in_process: tuple[str, ...] = ()
    is_user_defined: bool = False
    tests: str = "split"
    split_by: tuple[str, tuple[Value, ...]] | None = None
    held_out: float = 0.0

    def __post_init__(self) -> None:
        """Make the task the owner of its parameters, so that their keys begin with its name."""
        owned = tuple(replace(setting, owner=self.name) for setting in self.settings)
        object.__setattr__(self, "settings", owned)

    @classmethod
    @cache
    def of(cls, name: str) -> "TaskInfo":
        """Return the entry of a user's function or class, by its import string.

        Its keyword arguments become the task's parameters.
        """
        must = "a task is a function, or class, that is called with a Setup and returns a Task"
        maker = import_callable("task", name, must)
        try:
            inspect.signature(maker).bind_partial(Setup)
        except TypeError:
            raise FairbloomError(f"task = {name!r}: it takes no argument; {must}") from None
        settings = parameters_of(maker.__name__.lower(), maker, skipped=1)
        for each in settings:
            if each.default is None:
                raise FairbloomError(
                    f"task = {name!r}: its parameter {each.argument} needs a default"
                )
        first_paragraph = (inspect.getdoc(maker) or "").partition("\n\n")[0]
        return cls(
            maker.__name__.lower(),
            " ".join(first_paragraph.split()),
            name,
            name,
            settings=settings,
            is_user_defined=True,
        )

    @property
    def deals(self) -> bool:
        """Whether its examples can be split among any number of clients, by any partition."""
        return any(partition not in self.natural for partition in self.partitions)

    @property
    def listed_partitions(self) -> list[str]:
        """The partitions as lists name them, the user's own among them."""
        if self.deals:
            return [*self.partitions, OWN_PARTITION]
        return [*self.partitions]

    def setup(self, settings: RunSettings) -> Setup:
        """Return the settings that the task needs, with its own defaults for those left open."""
        partition = settings.partition or next(iter(self.partitions), "shards")
        clients = settings.clients
        if self.reads:  # the files decide, unless all are of one client
            clients = int(bool(settings.parameters.get(ONE_CLIENT)))
        elif not clients and partition not in self.natural:
            clients = self.clients
        return Setup.model_construct(
            **{name: getattr(settings, name) for name in Setup.model_fields}
            | {
                "model": settings.model or next(iter(self.models), ""),
                "partition": partition,
                "clients": clients,
                "schema_": read_schema(settings.schema_),
            }
        )

    def check_parameters(self, config: Mapping[str, object]) -> dict[str, Value]:
        """Return the task's parameters by key, checked, with defaults for missing ones."""
        return {
            setting.key: setting.checked(config.get(setting.key, setting.default))
            for setting in self.settings
        }

    def check(self, setup: Setup) -> None:
        """Raise FairbloomError if the task has no use for a model, partition, folder or schema."""
        if self.models and setup.model.startswith(PREFIX):
            check_classifier(setup.model)
        elif self.models and setup.model not in self.models:
            from .models.registry import MODELS, maker_of  # imported late: it needs PyTorch

            if setup.model in MODELS:
                raise FairbloomError(
                    f"model = {setup.model!r}: task {self.name} has {', '.join(self.models)}"
                )
            maker_of(setup.model)
        if self.partitions and setup.partition not in self.partitions:
            if not (self.deals and is_import_string(setup.partition)):
                raise FairbloomError(
                    f"partition = {setup.partition!r}:"
                    f" {did_you_mean(setup.partition, self.partitions)}task {self.name} has"
                    f" {', '.join(self.listed_partitions)}"
                )
            import_partition(setup.partition)
        if setup.schema_ and not self.schema and not self.is_user_defined:
            raise FairbloomError(
                f"schema: task {self.name} reads no files of yours, so that it has none: leave it"
                " out"
            )
        if setup.data_dir and not (self.reads or self.files or self.is_user_defined):
            raise FairbloomError(
                f"data-dir = {setup.data_dir!r}: task {self.name} reads no folder; leave data-dir"
                " out (a deployed client may have it in its client.toml)"
            )

    def check_schema(self, setup: Setup, config: Mapping[str, object], place: str) -> None:
        """Raise FairbloomError if the schema's text, from a file at `place`, is not the task's.

        Parameters that are for the inference of a schema have no effect with one, and are refused.
        """
        if not (setup.schema_ and self.schema):
            return
        # The setting may hold the schema's text, which has no file.
        imported("task", self.schema)(setup.schema_, SCHEMA_NAME if "\n" in place else place)
        for each in self.settings:
            value = config.get(each.key, each.default)
            if value != each.default and each.name not in self.in_process:
                raise FairbloomError(
                    f"{each.key} = {value!r} is for the inference of a schema, and schema names"
                    " one: leave it out, and say it in the schema"
                )

    def check_readable(self, data_dir: str) -> None:
        """Raise FairbloomError if this machine does not have the folder that the task reads."""
        if self.reads and not data_dir:
            raise ReportableError(
                f"task {self.name} reads its data from a folder: name it by --data-dir, or on a"
                " deployed client by data-dir in its client.toml"
            )
        if data_dir and not expand_home(data_dir).exists():
            fault = "this machine has no such folder or file"
            raise ReportableError(f"data-dir = {data_dir!r}: {fault}", f"its data-dir: {fault}")

    def tests_by_seed(self, settings: Mapping[str, Any]) -> str:
        """Return how the seed affects the test examples with these settings: a value of `tests`."""
        if self.split_by is None:
            return self.tests
        parameter, values = self.split_by
        (default,) = [setting.default for setting in self.settings if setting.name == parameter]
        return "split" if settings.get(f"{self.name}.{parameter}", default) in values else "fixed"

    def test_by_train(self, settings: Mapping[str, Any]) -> float:
        """Return the ratio of test to training examples with these settings."""
        tested = self.held_out or float(
            settings.get("test-share", Setup.model_fields["test_share"].default)
        )
        validation = float(settings.get("validation-share", 0.0)) * (1.0 - self.held_out)
        return tested / (1.0 - tested - validation)

    def find_files(self, place: str) -> list[Path]:
        """Return the files that the task reads in a folder, sorted; all files for a user's task."""
        if not place or not (self.reads or self.is_user_defined):
            return []
        from fairbloom.tables.folders import is_run_folder  # imported late: lists need no NumPy

        path = expand_home(place)
        if path.is_file():
            return [path]
        if self.is_user_defined:
            return sorted(file for file in path.rglob("*") if file.is_file())
        entries = [entry for entry in path.glob("[!.]*") if not is_run_folder(entry)]
        below = ["/".join(["[!.]*"] * depth) for depth in range(1, self.levels)]  # no hidden ones
        files = chain(entries, *(entry.glob(each) for entry in entries for each in below))
        return sorted(
            file for file in files if file.suffix.lower() in self.reads and file.is_file()
        )

    def infer_schema(
        self,
        setup: Setup,
        parameters: Mapping[str, Value],
        without: Collection[str] = (),
        advise: bool = False,
    ) -> Suggested:
        """Return the schema that the files of all clients but some suggest.

        `advise`: with comments on what stands out, which a run does not need.
        """
        self.check_readable(setup.data_dir)
        infer: Callable[..., Suggested] = imported("task", self.infer)
        arguments = self._arguments(parameters)
        return infer(setup, **arguments, without=frozenset(without), advise=advise)

    def load(self, setup: Setup, parameters: Mapping[str, Value]) -> Task:
        """Return the task, with the defaults of parameters that are missing.

        `parameters` are by key. The folder is looked for only when a client's splits are read,
        because a server has none.
        """
        if self.infer and not setup.schema_:
            suggested = self.infer_schema(setup, parameters)
            return self.load_suggested(setup, parameters, suggested)
        task = Task.of(imported("task", self.loader)(setup, **self._arguments(parameters)))
        if not self.reads:
            return task

        @cache  # once, not for each client; an exception is not cached
        def check() -> None:
            self.check_readable(setup.data_dir)

        def splits(client: str) -> Splits:
            check()
            return task.splits(client)

        return replace(task, splits=splits)

    def load_suggested(
        self, setup: Setup, parameters: Mapping[str, Value], suggested: Suggested
    ) -> Task:
        """Return the task by the schema that its files suggest, with the questions on them."""
        task = self.load(setup.model_copy(update={"schema_": suggested.schema}), parameters)

        @cache
        def ask() -> Sequence[Question]:
            if task.compared is None or len(task.clients) > MAX_COMPARED:
                return suggested.questions
            fields = parse_schema(suggested.schema).fields
            return (*suggested.questions, *task.compared().ask(fields))

        return replace(task, questions=suggested.questions, ask=ask)

    def _arguments(self, parameters: Mapping[str, Value]) -> dict[str, Any]:
        return {
            setting.argument: parameters.get(setting.key, setting.default)
            for setting in self.settings
        }


@dataclass(frozen=True, kw_only=True)
class PictureSet(TaskInfo):
    """A catalogue entry of a data set of pictures, each with one label.

    Attributes
    ----------
    shape
        Channels, height and width of a picture.
    labels
        The names of the classes, in the order of their numbers.
    target
        The name of the class numbers in the files; "" if the files do not name them.
    white
        The value of a white pixel.
    """

    shape: tuple[int, int, int]
    labels: tuple[str, ...]
    target: str = ""
    white: float = 255.0

    def _arguments(self, parameters: Mapping[str, Value]) -> dict[str, Any]:
        return {"info": self, **super()._arguments(parameters)}


def import_partition(name: str) -> Callable[..., Iterable[Any]]:
    """Return a user's function (labels, clients, random) → each client's indices.

    Raise FairbloomError if the import string does not name a function.
    """
    return import_callable("partition", name, "it must be a function of labels, clients and random")
