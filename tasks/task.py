"""The contract of a task.

PyTorch is imported late, since the names of tasks are wanted without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fairbloom.errors import FairbloomError, ReportableError, did_you_mean
from fairbloom.imports import imported, is_import_string
from fairbloom.protocol.parameters import Parameter, parameters_of
from fairbloom.protocol.scores import ACCURACY, GroupScore, Score
from fairbloom.protocol.settings import RunSettings, Value
from fairbloom.protocol.settings import Setup as Setup

from .inputs import Inputs, map_inputs
from .schema import read_schema

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from .collated import CollatedExamples
    from .preprocessing import Preprocessing

    Places = NDArray[np.int64]


OWN_PARTITION = "yours as my_module:deal"
"""In words, the partition that every task has which deals its examples."""


class DataFile(NamedTuple):
    """A file of a known data set.

    `path` is its place below the data folder, `md5` its checksum, "" where it has no fixed one, and
    `address` the page on the web that is this file, the file compressed (.gz) or an archive with
    the file at that path (.tar.gz).
    """

    path: str
    md5: str
    address: str


@dataclass(frozen=True)
class TaskInfo:
    """What is known of a task before it is loaded.

    Attributes
    ----------
    name
        What the run config's `task` calls it; its parameters begin with it.
    summary, source
        What the data are, and where they come from, in one line each.
    loader
        "module:function" that returns the Task; called with a `Setup`, and with the task's
        parameters by keyword.
    models, partitions
        What the run config's `model` and `partition` may be, the default first; () where the
        setting has no effect.
    settings
        The settings that belong to this task alone.
    clients
        The number of clients that data is split into where a run says none.
    natural
        Those of the partitions whose clients come with the data: hospitals, speakers, writers.
    files
        The files of a known data set, below the folder that `data-dir`, or the environment, names.
    reads
        The endings of a user's own files, a file or folder for each client, in the folder that the
        setting `data-dir` names; () for a task that reads none.
    levels
        How deep in that folder its files lie; 1: in the folder itself.
    infer
        "module:function" that returns the text of the schema that these files suggest; called as
        the loader.
    schema
        "module:function" that checks the text of a schema.
    is_user_defined
        Whether a user has named it by an import string: then it takes any model, and says itself
        what it cannot take.
    tests
        What a seed decides of the examples that clients are tested on: "split" draws them from one
        data set, which all seeds share; "fixed" are the same with each seed; "fresh" are made by
        the seed, which shares none with others.
    split_by
        The task's parameter and those of its values with which a seed splits; with any other value
        the examples to be tested on are fixed. None where no parameter decides it.
    held_out
        The share of the examples that clients are tested on where that is not the setting
        `test-share`; else 0.
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
    is_user_defined: bool = False
    tests: str = "split"
    split_by: tuple[str, tuple[Value, ...]] | None = None
    held_out: float = 0.0

    def __post_init__(self) -> None:
        """Put the task's name before those of its parameters."""
        object.__setattr__(
            self, "settings", tuple(replace(each, owner=self.name) for each in self.settings)
        )

    @classmethod
    @cache
    def of(cls, name: str) -> TaskInfo:
        """Return what an import string's function or class says: its keywords are the task's parameters."""
        maker = imported("task", name)
        if not callable(maker):
            raise FairbloomError(
                f"task = {name!r}: it is a {type(maker).__name__}; a task is a function, or class,"
                " that is called with a Setup and returns a Task"
            )
        settings = parameters_of(maker.__name__.lower(), maker, skipped=1)
        for each in settings:
            if each.default is None:
                raise FairbloomError(
                    f"task = {name!r}: its parameter {each.argument} needs a default"
                )
        summary = (inspect.getdoc(maker) or "").partition("\n\n")[0]
        owner = maker.__name__.lower()
        return cls(
            owner, " ".join(summary.split()), name, name, settings=settings, is_user_defined=True
        )

    @property
    def deals(self) -> bool:
        """Whether its examples can be dealt to any number of clients, by whatever partition."""
        return any(each not in self.natural for each in self.partitions)

    def setup(self, settings: RunSettings | Mapping[str, Any]) -> Setup:
        """Return what a run's settings say to the task, with the task's choice where they leave one."""
        settings = RunSettings.of(settings)
        partition = settings.partition or next(iter(self.partitions), "shards")
        chosen = {
            "model": settings.model or next(iter(self.models), ""),
            "partition": partition,
            "clients": (
                0
                if self.reads
                else settings.clients or (0 if partition in self.natural else self.clients)
            ),
            "schema_": read_schema(settings.schema_),
        }
        return Setup.model_construct(
            **{name: getattr(settings, name) for name in Setup.model_fields} | chosen
        )

    def check_parameters(self, config: Mapping[str, object]) -> dict[str, Value]:
        """Return the task's parameters by their keys, checked, with defaults for those that `config` lacks."""
        return {
            each.key: each.checked(config.get(each.key, each.default)) for each in self.settings
        }

    def check(self, setup: Setup) -> None:
        """Raise FairbloomError when the task has no such model or partition, or no use for a folder or a schema."""
        if self.models and setup.model not in self.models:
            from .models.registry import MODELS, maker_of

            if setup.model in MODELS:
                raise FairbloomError(
                    f"model = {setup.model!r}: task {self.name} has {', '.join(self.models)}"
                )
            maker_of(setup.model)
        if self.partitions and setup.partition not in self.partitions:
            if not (self.deals and is_import_string(setup.partition)):
                there = ", ".join([*self.partitions, *([OWN_PARTITION] if self.deals else [])])
                hint = did_you_mean(setup.partition, self.partitions)
                raise FairbloomError(
                    f"partition = {setup.partition!r}: {hint}task {self.name} has {there}"
                )
            imported_partition(setup.partition)
        if setup.schema_ and not self.schema and not self.is_user_defined:
            raise FairbloomError(
                f"schema: task {self.name} reads no files of yours, so that it has none: leave"
                " it out"
            )
        if setup.data_dir and not (self.reads or self.files or self.is_user_defined):
            raise FairbloomError(
                f"data-dir = {setup.data_dir!r}: task {self.name} reads no folder; leave data-dir"
                " out (a deployed client may have it in its client.toml)"
            )

    def check_schema(self, setup: Setup, config: Mapping[str, object], place: str) -> None:
        """Raise FairbloomError where the text of a schema, from a file at `place`, is none of the task's.

        The task's own parameters are for the inference of a schema and have no effect beside one.
        """
        if not (setup.schema_ and self.schema):
            return
        parse = imported("task", self.schema)
        parse(setup.schema_) if "\n" in place else parse(setup.schema_, place)
        for each in self.settings:
            if (value := config.get(each.key, each.default)) != each.default:
                raise FairbloomError(
                    f"{each.key} = {value!r} is for the inference of a schema, and schema names"
                    " one: leave it out, and say it in the schema"
                )

    def check_readable(self, data_dir: str) -> None:
        """Raise FairbloomError when this machine lacks the folder that the task reads."""
        if self.reads and not data_dir:
            raise ReportableError(
                f"task {self.name} reads its data from a folder: name it by --data-dir, or on a"
                " deployed client by data-dir in its client.toml"
            )
        if data_dir and not Path(data_dir).expanduser().exists():
            said = "there is no such folder or file on this machine"
            raise ReportableError(f"data-dir = {data_dir!r}: {said}", f"its data-dir: {said}")

    def tests_by_seed(self, settings: Mapping[str, Any]) -> str:
        """Return what a seed decides of the examples to be tested on, with these settings: a word of `tests`."""
        if self.split_by is None:
            return self.tests
        parameter, values = self.split_by
        (default,) = (each.default for each in self.settings if each.name == parameter)
        return "split" if settings.get(f"{self.name}.{parameter}", default) in values else "fixed"

    def test_by_train(self, settings: Mapping[str, Any]) -> float:
        """Return the number of test examples by that of training examples which these settings ask for."""
        tested = self.held_out or float(
            settings.get("test-share", Setup.model_fields["test_share"].default)
        )
        chosen_by = float(settings.get("validation-share", 0.0)) * (1.0 - self.held_out)
        return tested / (1.0 - tested - chosen_by)

    def find_files(self, place: str) -> list[Path]:
        """Return the files that the task reads in a folder, sorted.

        For a user's task, all of them.
        """
        if not place or not (self.reads or self.is_user_defined):
            return []
        path = Path(place).expanduser()
        if path.is_file():
            return [path]
        # As deep as the task's files lie, hidden ones left out.
        found = (
            path.rglob("*")
            if self.is_user_defined
            else path.glob("/".join(["[!.]*"] * self.levels))
        )
        return sorted(
            e
            for e in found
            if (self.is_user_defined or e.suffix.lower() in self.reads) and e.is_file()
        )

    def infer_schema(self, setup: Setup, parameters: Mapping[str, Value]) -> str:
        """Return the text of the schema that the files suggest."""
        self.check_readable(setup.data_dir)
        return str(imported("task", self.infer)(setup, **self._arguments(parameters)))

    def load(self, setup: Setup, parameters: Mapping[str, Value]) -> Task:
        """Return the task; of its parameters by their keys, those that are missing have their defaults.

        A folder is looked for when a client's data are asked for, since a server has none.
        """
        if self.infer and not setup.schema_:
            setup = setup.model_copy(update={"schema_": self.infer_schema(setup, parameters)})
        task = Task.of(imported("task", self.loader)(setup, **self._arguments(parameters)))
        if not self.reads:
            return task

        def splits(client: str) -> Splits:
            self.check_readable(setup.data_dir)
            return task.splits(client)

        return replace(task, splits=splits)

    def _arguments(self, parameters: Mapping[str, Value]) -> dict[str, Any]:
        return {each.argument: parameters.get(each.key, each.default) for each in self.settings}


@dataclass(frozen=True, kw_only=True)
class PictureSet(TaskInfo):
    """What is known of a data set of pictures, each with one label.

    Attributes
    ----------
    shape
        Of a picture: channels, height and width.
    labels
        The names of the classes, in the order of their numbers.
    target
        What the files call the numbers of the classes, where they name them.
    white
        The number of a white pixel.
    """

    shape: tuple[int, int, int]
    labels: tuple[str, ...]
    target: str = ""
    white: float = 255.0

    def _arguments(self, parameters: Mapping[str, Value]) -> dict[str, Any]:
        return {"info": self, **super()._arguments(parameters)}


REMEMBERED = 1024
"""The number of clients for which made examples are kept."""


def imported_partition(
    name: str,
) -> Callable[[NDArray[Any], int, np.random.Generator], Iterable[Any]]:
    """Return a user's function that deals examples.

    Raise FairbloomError where an import string names none.
    """
    function = imported("partition", name)
    if not callable(function):
        raise FairbloomError(
            f"partition = {name!r}: it must be a function of labels, clients and random, got"
            f" {type(function).__name__}"
        )
    found: Callable[[NDArray[Any], int, np.random.Generator], Iterable[Any]] = function
    return found


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of one split of one client.

    Attributes
    ----------
    inputs
        What the model is called with: one tensor, as `model(x)`; tensors by name, as `model(**x)`;
        or a tuple of them, as `model(*x)`. Their first dimension are the examples; clients may
        share them.
    targets
        A tensor whose first dimension are the examples.
    rows
        Indices of the examples that are in this split; None for all.
    groups
        Which group each example belongs to, as a place among those of each of the task's groupings:
        shape (n, number of groupings), torch.int64. None where the task has no groupings.
    """

    inputs: Inputs
    targets: Tensor
    rows: Tensor | None = None
    groups: Tensor | None = None

    @staticmethod
    def of(
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        rows: Tensor | None = None,
        groups: Tensor | None = None,
        *,
        target: str = "labels",
    ) -> CollatedExamples:
        """Return the examples of a Dataset, which are made a batch at a time when they are wanted.

        The run decides the batches and their order, as with tensors. One client computes after the
        other.

        Parameters
        ----------
        dataset
            Has a length, and an example at each place from 0: a map-style Dataset of PyTorch, say.
        collate_fn
            Makes a batch of a list of examples: (inputs, targets), or (first, second, ...,
            targets), or tensors by name, of which `target` is the targets and all others are
            inputs. None: PyTorch's own, as of a DataLoader.
        rows
            Places of the examples that are in this split; None for all.
        groups
            As of `Examples`, a row for each example of the dataset.
        target
            The name of the targets in a batch of tensors by name.
        """
        from torch.utils.data import default_collate

        from .collated import CollatedExamples

        return CollatedExamples(dataset, collate_fn or default_collate, rows, groups, target)

    def __len__(self) -> int:
        """Return the number of examples."""
        # len takes four times as long
        return (self.targets if self.rows is None else self.rows).shape[0]

    def __getitem__(self, chosen: Tensor | slice) -> tuple[Inputs, Tensor]:
        """Return inputs and targets of the examples at these places of the split."""
        rows = chosen if self.rows is None else _of(self.rows, chosen)
        return map_inputs(self.inputs, lambda tensor: _of(tensor, rows)), _of(self.targets, rows)

    @property
    def all_targets(self) -> Tensor:
        """The targets of the examples of this split."""
        return self.targets if self.rows is None else self.targets.index_select(0, self.rows)

    @property
    def device(self) -> torch.device:
        """Where the examples are."""
        return self.targets.device

    def map(self, change: Callable[[Tensor], Tensor]) -> Examples:
        """Return the examples with all their tensors changed."""
        rows, groups = (None if each is None else change(each) for each in (self.rows, self.groups))
        return Examples(map_inputs(self.inputs, change), change(self.targets), rows, groups)

    def group_places(self) -> Tensor | None:
        """Return `groups` of the examples of this split, None where they have none."""
        return (
            self.groups
            if self.rows is None or self.groups is None
            else self.groups.index_select(0, self.rows)
        )


def _of(tensor: Tensor, rows: Tensor | slice) -> Tensor:
    # By index_select, which is half again as fast as an index in brackets.
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


AnyExamples: TypeAlias = "Examples | CollatedExamples"
"""Examples in tensors, or those of a Dataset."""


@dataclass(frozen=True)
class Splits:
    """A client's examples: those that it trains on and those that it is tested on, as which it can be unpacked.

    Attributes
    ----------
    train, test
        The two that every client has.
    validation
        Those by which the best model is chosen; None where there are none.
    """

    train: AnyExamples
    test: AnyExamples
    validation: AnyExamples | None = None

    def __iter__(self) -> Iterator[AnyExamples]:
        """Yield those to train on and those to be tested on."""
        yield self.train
        yield self.test

    def map(self, change: Callable[[AnyExamples], AnyExamples]) -> Splits:
        """Return the splits, each changed."""
        validation = None if self.validation is None else change(self.validation)
        return Splits(change(self.train), change(self.test), validation)


Described = Mapping[str, Sequence[Mapping[str, str | int]]]
"""Tables of what data hold, by what their rows are of; a row's cells by the names of their
columns."""


def classes_of(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class that is predicted for each example, and its true one, both as whole numbers.

    Parameters
    ----------
    outputs
        Shape (n, classes, …), of which the highest counts; or (n, 1) or (n,), above 0 for the
        second of two classes.
    targets
        The places of classes, shape (n, …), or with one output 0 or 1, shape (n,) or (n, 1); or the
        probabilities of the classes, shape (n, classes), of which the highest counts.

    Raises
    ------
    ReportableError
        With any other shapes or targets: a score that counts right classes has no meaning then.
    """
    if outputs.shape[1:] in ((), (1,)):
        true = targets.reshape(-1)
        if true.shape == outputs.shape[:1] and bool(((true == 0) | (true == 1)).all()):
            return (outputs.reshape(-1) > 0).long(), true.long()
    elif targets.is_floating_point() and targets.shape == outputs.shape and outputs.dim() == 2:
        if bool(((targets.sum(dim=1) - 1.0).abs() < 1e-3).all()):
            return outputs.argmax(dim=1), targets.argmax(dim=1)
    elif (
        not targets.is_floating_point()
        and outputs.dim() > 1
        and outputs[:, 0].shape == targets.shape
    ):
        return outputs.argmax(dim=1), targets
    raise ReportableError(
        f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} and"
        f" dtype {targets.dtype} are not of classes, whose right answers the accuracy counts: give"
        " the task scores=, as in scores={MAE: absolute_error} of fairbloom.tasks.measures"
    )


def is_highest(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each example whether its class is predicted.

    Outputs and targets are those of `classes_of`.
    """
    predicted, true = classes_of(outputs, targets)
    return predicted == true


def model_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Stand for the loss that a model returns by the name `loss`: `Task(loss=model_loss, ...)`.

    It must be the loss of each example, shape (n,). A model needs the targets among its inputs for
    it.
    """
    raise TypeError(
        "model_loss stands for the loss that a model returns with its outputs; it cannot be called"
    )


def is_of_model(loss: Callable[..., object]) -> bool:
    """Return whether a task's loss is the one that its model returns."""
    return inspect.unwrap(loss) is model_loss


@dataclass(frozen=True, eq=False)
class Task:
    """Data split into clients, a model and a loss.

    Attributes
    ----------
    clients
        Client names in the order of partition ids.
    model
        Returns the freshly initialised model; the same weights every time.
    loss
        (outputs, targets) → the loss of each example, shape (n,).
    splits
        A client's name → its splits. They are made when they are asked for, so that a deployed
        client loads its data only.
    scores
        What says how well a model serves a client, the one that fairness is measured in first:
        (outputs, targets) of all examples → one number, or one of each example, shape (n,), whose
        mean is the score. One that is not finite, as an AUC of a single class, is left out. By
        default the accuracy, of outputs and targets as `classes_of` has them.
    describe
        Returns what `fairbloom data` shows of the data; None: the sizes of the clients' splits.
    classes
        The number of classes that are predicted, 0 for a quantity; None where that is not known.
    class_names
        What the classes are called, in their order; () where they have numbers alone.
    positive
        Of two classes, the place of the one that counts as positive.
    dealt
        A client's name → the places in the data set, and the classes, of its examples to train on,
        to be tested on and to choose the best model by; where a data set is dealt to clients, None
        elsewhere.
    groupings
        The ways in which examples are grouped, by sex say, each with the names of its groups;
        `Examples.groups` has the place of each example's group among them. Every example belongs to
        one group of each grouping.
    group_scores
        What is measured in each group: (outputs, targets) → a number of each example, shape (n,),
        NaN for one that does not count. By default the first of `scores`, which must give a number
        of each example then.
    output
        Which tensor of a model that returns several by name goes to the loss and the scores; "":
        `logits`, or the only one that there is.
    preprocessing
        A client's name → how its raw data become inputs, and outputs predictions; "" → what is
        common to all clients. None: inputs are taken as they are.
    schema
        The text of the schema by which the clients' files were read; "" where there is none.
    marks
        What sets some clients apart, in a word, by name: where results are shown, it stands behind
        the name.
    """

    clients: tuple[str, ...]
    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    splits: Callable[[str], Splits]
    scores: Mapping[Score, Callable[[Tensor, Tensor], Tensor | float]] = field(
        default_factory=lambda: {ACCURACY: is_highest}
    )
    describe: Callable[[], Described] | None = None
    dealt: Callable[[str], Sequence[tuple[Places, Places]]] | None = None
    classes: int | None = None
    class_names: tuple[str, ...] = ()
    positive: int = 1
    groupings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    group_scores: Mapping[GroupScore, Callable[[Tensor, Tensor], Tensor]] = field(
        default_factory=dict
    )
    output: str = ""
    preprocessing: Callable[[str], Preprocessing] | None = None
    schema: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Let the first score be what is measured in groups, where there are groups and nothing else is said."""
        if self.groupings and not self.group_scores:
            score, of = next(iter(self.scores.items()))
            first = GroupScore(score.name, score.higher_is_better, score.percent)
            object.__setattr__(self, "group_scores", {first: of})

    @classmethod
    def of(cls, made: object) -> Task:
        """Return what a user's function or class has made as a Task: anything with the attributes of one will do."""
        if isinstance(made, Task):
            return made
        needed = [
            each.name
            for each in fields(cls)
            if each.default is MISSING and each.default_factory is MISSING
        ]
        if lacking := [name for name in needed if not hasattr(made, name)]:
            raise FairbloomError(
                f"the task is a {type(made).__name__} without {', '.join(lacking)}: a task has"
                f" {', '.join(needed)}"
            )
        there = {
            each.name: getattr(made, each.name) for each in fields(cls) if hasattr(made, each.name)
        }
        clients = there["clients"]
        return cls(**there | {"clients": clients if isinstance(clients, str) else tuple(clients)})

    @property
    def score(self) -> Score:
        """The score that fairness is measured in."""
        return next(iter(self.scores))

    @cached_property
    def ascending(self) -> tuple[str, ...]:
        """The client names in ascending order, in which clients are drawn: `clients`, if they are in that order."""
        names = tuple(sorted(self.clients))
        return self.clients if names == self.clients else names

    def to(self, device: torch.device) -> Task:
        """Return the same task with its examples on `device`.

        A tensor that clients share is moved once.

        The examples of the last REMEMBERED clients that were asked for are kept.
        """
        from .collated import CollatedExamples  # imported late: it needs PyTorch

        # Inputs, targets, rows and groups of each split are up to 16 tensors of a client.
        @lru_cache(maxsize=REMEMBERED * 16)
        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device)

        def there(examples: AnyExamples) -> AnyExamples:
            return (
                examples.to(device)
                if isinstance(examples, CollatedExamples)
                else examples.map(moved)
            )

        @lru_cache(maxsize=REMEMBERED)
        def splits(client: str) -> Splits:
            return self.splits(client).map(there)

        return replace(self, splits=splits)
