"""The contract of a task; PyTorch is imported late, since the names of tasks are wanted without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value, key_of, of_kind

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True)
class Setup:
    """The settings of a run that every task reads; in the run config, these names with hyphens."""

    model: str
    clients: int
    partition: str
    shards_per_client: int
    dirichlet_alpha: float
    seed: int
    data_dir: str = ""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Setup:
        """Return these settings of a run config, which has them all but perhaps `data-dir`."""
        keys = {name: key_of(name) for name in cls.__dataclass_fields__}
        return cls(**{name: config[key] for name, key in keys.items() if key in config or key != "data-dir"})


@dataclass(frozen=True)
class TaskSetting:
    """A setting that belongs to one task; in a run config it is `TASK.NAME`.

    Attributes
    ----------
    name
        As in the run config, with hyphens; the loader gets it as a keyword argument, with underscores.
    default
        Its value where a run does not set it; its type is the setting's.
    description
        What it means, in one line.
    lowest, highest
        The least and the greatest number that it may be; None for no bound.
    choices
        The words that it may be; () for any.
    """

    name: str
    default: Value
    description: str
    lowest: float | None = None
    highest: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def range(self) -> str:
        """What the setting may be, in words: "int at least 0"."""
        if self.choices:
            return " or ".join(filter(None, (", ".join(self.choices[:-1]), self.choices[-1])))
        low = "" if self.lowest is None else f" at least {self.lowest:g}"
        high = "" if self.highest is None else f" at most {self.highest:g}"
        return type(self.default).__name__ + " and".join(filter(None, (low, high)))

    def checked(self, key: str, value: Any) -> Value:
        """Return `value`, a whole number as the float that is meant.

        Raises
        ------
        FairbloomError
            When it is of another type or outside the range; the message names `key`, the value and the range.
        """
        kind = type(self.default)
        if not of_kind(value, kind) or not self._allows(chosen := kind(value)):
            raise FairbloomError(f"{key} = {value!r}: allowed is {self.range}")
        return chosen

    def _allows(self, value: Value) -> bool:
        if isinstance(value, str):
            return not self.choices or value in self.choices
        low = -math.inf if self.lowest is None else self.lowest
        high = math.inf if self.highest is None else self.highest
        return math.isfinite(value) and low <= value <= high


@dataclass(frozen=True)
class TaskInfo:
    """What is known of a task before it is loaded.

    Attributes
    ----------
    name
        What the run config's `task` calls it; its own settings begin with it.
    summary, source
        What the data are, and where they come from, in one line each.
    loader
        "module:function" that returns the Task; called with a `Setup`, and with the task's own settings by keyword.
    models, partitions
        What the run config's `model` and `partition` may be; () where the task has but one and the setting no effect.
    classes
        Number of classes; 0 where targets are no classes.
    settings
        The settings that belong to this task alone.
    reads_folder
        Whether the data lie in the folder that the setting `data-dir` names.
    """

    name: str
    summary: str
    source: str
    loader: str
    models: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    classes: int = 0
    settings: tuple[TaskSetting, ...] = ()
    reads_folder: bool = False

    def key(self, setting: TaskSetting) -> str:
        """Return what a run config calls one of the task's own settings: `digits.rotated-clients`."""
        return f"{self.name}.{setting.name}"

    def own(self, config: Mapping[str, object]) -> dict[str, Value]:
        """Return the task's own settings by their keys, checked, with defaults for those that `config` lacks.

        Raises
        ------
        FairbloomError
            When one is of another type or outside its range.
        """
        keys = {self.key(setting): setting for setting in self.settings}
        return {key: setting.checked(key, config.get(key, setting.default)) for key, setting in keys.items()}

    def check(self, setup: Setup) -> None:
        """Raise FairbloomError when the task has no such model or partition, or reads no folder and one is named."""
        for what, value, choices in (
            ("model", setup.model, self.models),
            ("partition", setup.partition, self.partitions),
        ):
            if choices and value not in choices:
                raise FairbloomError(f"{what} = {value!r}: task {self.name} has {', '.join(choices)}")
        if setup.data_dir and not self.reads_folder:
            raise FairbloomError(
                f"data-dir = {setup.data_dir!r}: task {self.name} reads no folder; leave data-dir out (a deployed "
                "client may have it in its client.toml)"
            )

    def check_readable(self, data_dir: str) -> None:
        """Raise FairbloomError when this machine lacks the folder that the task reads."""
        if self.reads_folder and not data_dir:
            raise FairbloomError(
                f"task {self.name} reads its data from a folder: name it by --data-dir, or on a deployed client by "
                "data-dir in its client.toml"
            )
        if self.reads_folder and not Path(data_dir).is_dir():
            raise FairbloomError(f"data-dir = {data_dir!r}: there is no such folder on this machine")

    def load(self, setup: Setup, own: Mapping[str, Value]) -> Task:
        """Return the task; a folder is looked for when a client's data are asked for, since a server has none."""
        module, _, function = self.loader.partition(":")
        names = {self.key(setting): setting.name.replace("-", "_") for setting in self.settings}
        loader: Callable[..., Task] = getattr(import_module(module), function)
        task = loader(setup, **{names[key]: value for key, value in own.items()})

        def splits(client: str) -> Splits:
            self.check_readable(setup.data_dir)
            return task.splits(client)

        return replace(task, splits=splits) if self.reads_folder else task


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of one split of one client.

    Attributes
    ----------
    inputs, targets
        Tensors that clients may share, first dimension the examples.
    rows
        Indices of the examples that are in this split; None for all.
    """

    inputs: Tensor
    targets: Tensor
    rows: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.targets if self.rows is None else self.rows)

    def __getitem__(self, chosen: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the examples at these places of the split."""
        rows = chosen if self.rows is None else _of(self.rows, chosen)
        return _of(self.inputs, rows), _of(self.targets, rows)

    def map(self, change: Callable[[Tensor], Tensor]) -> Examples:
        """Return the examples with all their tensors changed."""
        return Examples(change(self.inputs), change(self.targets), None if self.rows is None else change(self.rows))


def _of(tensor: Tensor, rows: Tensor | slice) -> Tensor:
    # By index_select, which is half again as fast as an index in brackets.
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


class Splits(NamedTuple):
    """The two splits of a client's examples."""

    train: Examples
    test: Examples


def is_highest(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each example whether its class has the highest output."""
    return outputs.argmax(dim=1) == targets


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
        A client's name → its two splits. They are made when they are asked for, so that a deployed client loads its
        own data only.
    right
        (outputs, targets) → how right the answer to each example is, shape (n,): true or false, or a share. Its mean
        is the accuracy.
    """

    clients: tuple[str, ...]
    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    splits: Callable[[str], Splits]
    right: Callable[[Tensor, Tensor], Tensor] = is_highest

    def to(self, device: torch.device) -> Task:
        """Return the same task with its examples on `device`; a tensor that clients share is moved once."""

        @cache
        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device)

        @cache
        def splits(client: str) -> Splits:
            train, test = self.splits(client)
            return Splits(train.map(moved), test.map(moved))

        return replace(self, splits=splits)
