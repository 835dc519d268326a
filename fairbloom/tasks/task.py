"""The contract of a task: clients, their examples, a model, a loss and scores.

PyTorch is imported late, because the command line lists tasks without it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.protocol.scores import ACCURACY, GroupScore, Score
from fairbloom.protocol.settings import Setup as Setup

from .inputs import Inputs, has_room, map_inputs, move, tensors_of

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from fairbloom.tables import Comparison
    from fairbloom.tables.preprocessing import Preprocessing
    from fairbloom.tables.toml import Question

    from .collated import CollatedExamples

    Places = NDArray[np.int64]


# Clients that a run's start compares; `fairbloom data` compares any number.
MAX_COMPARED = 50

# Clients with examples kept in memory; the least recently used are dropped.
MAX_CACHED_CLIENTS = 1024


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of one split of one client.

    Attributes
    ----------
    inputs
        The model's input: one tensor, as `model(x)`; tensors by name, as `model(**x)`; or a tuple
        of tensors, as `model(*x)`. Their first dimension is the examples; clients may share them.
    targets
        A tensor; its first dimension is the examples.
    rows
        Indices of the examples that are in this split; None for all.
    groups
        The group of each example, as an index into the groups of each of the task's groupings:
        shape (n, number of groupings), torch.int64. None if the task has no groupings.
    units
        The unit of each example of this split, for example its person, as an index; None if each
        example is a unit of its own.
    streamed_to
        The device that batches are moved to, if the examples do not fit there; else None.
    """

    inputs: Inputs
    targets: Tensor
    rows: Tensor | None = None
    groups: Tensor | None = None
    units: Places | None = None
    streamed_to: torch.device | None = None

    @staticmethod
    def of(
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        rows: Tensor | None = None,
        groups: Tensor | None = None,
        *,
        target: str = "labels",
    ) -> CollatedExamples:
        """Return the examples of a Dataset, which are loaded one batch at a time when needed.

        The run decides the batches and their order, as with tensors. Clients are computed one
        after the other.

        Parameters
        ----------
        dataset
            Has a length, and an example at each index from 0, like a map-style Dataset of PyTorch.
        collate_fn
            Turns a list of examples into a batch: (inputs, targets), or (first, second, ...,
            targets), or tensors by name, of which `target` is the targets and all others are
            inputs. None: PyTorch's default_collate.
        rows
            Indices of the examples that are in this split; None for all.
        groups
            As in `Examples`, a row for each example of the dataset.
        target
            The name of the targets in a batch of tensors by name.
        """
        from torch.utils.data import default_collate

        from .collated import CollatedExamples

        return CollatedExamples(dataset, collate_fn or default_collate, rows, groups, target)

    def __len__(self) -> int:
        """Return the number of examples."""
        counted = self.targets if self.rows is None else self.rows
        return counted.shape[0]  # len(tensor) takes four times as long

    def __getitem__(self, chosen: Tensor | slice) -> tuple[Inputs, Tensor]:
        """Return inputs and targets of the examples at these indices of the split."""
        if not isinstance(chosen, slice):
            chosen = move(chosen, self.targets.device)
        rows = chosen if self.rows is None else _select(self.rows, chosen)
        return (
            map_inputs(self.inputs, lambda tensor: self._on_device(_select(tensor, rows))),
            self._on_device(_select(self.targets, rows)),
        )

    @property
    def all_targets(self) -> Tensor:
        """The targets of the examples of this split."""
        return self._on_device(
            self.targets if self.rows is None else self.targets.index_select(0, self.rows)
        )

    @cached_property  # reading it waits for the device
    def target_range(self) -> tuple[int, int]:
        """The least and the largest target, of integers."""
        least, most = self.all_targets.aminmax()
        return int(least), int(most)

    @property
    def device(self) -> torch.device:
        """The device of the examples' batches."""
        return self.streamed_to or self.targets.device

    def map(self, change: Callable[[Tensor], Tensor]) -> Examples:
        """Return the examples with `change` applied to all their tensors."""
        return Examples(
            map_inputs(self.inputs, change),
            change(self.targets),
            None if self.rows is None else change(self.rows),
            None if self.groups is None else change(self.groups),
            self.units,
        )

    def group_places(self) -> Tensor | None:
        """Return `groups` of the examples of this split; None if they have no groups."""
        if self.groups is None:
            return None
        return self._on_device(
            self.groups if self.rows is None else self.groups.index_select(0, self.rows)
        )

    def rows_of_units(self, fewest: int) -> int:
        """Return how many examples are of at least `fewest` units, whichever these examples are."""
        if self.units is None:
            return fewest
        return sum(self._unit_sizes[: max(fewest - 1, 0)]) + 1

    def count_units(self, which: Tensor) -> int:
        """Return the number of different units of the examples that `which`, shape (n,), has."""
        chosen = which.cpu().numpy()
        return int(chosen.sum()) if self.units is None else len({*self.units[chosen].tolist()})

    @cached_property
    def _unit_sizes(self) -> list[int]:
        """The number of examples of each unit, the largest first."""
        if self.units is None:
            return []
        sizes = Counter(self.units.tolist()).values()
        return sorted(sizes, reverse=True)

    def _on_device(self, tensor: Tensor) -> Tensor:
        return tensor if self.streamed_to is None else move(tensor, self.streamed_to)


def _select(tensor: Tensor, rows: Tensor | slice) -> Tensor:
    # index_select is 1.5 times as fast as tensor[rows].
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


# Examples in tensors, or from a Dataset.
AnyExamples: TypeAlias = "Examples | CollatedExamples"


def contents(examples: AnyExamples) -> object:
    """Return the examples of a split in no order; those of a Dataset by object and indices."""
    if not isinstance(examples, Examples):
        rows = range(len(examples)) if examples.rows is None else examples.rows.tolist()
        return id(examples.dataset), Counter(rows)
    inputs, targets = examples[slice(0, None)]
    arrays = [each.detach().double().cpu().numpy() for each in (*tensors_of(inputs), targets)]
    counted: Counter[int] = Counter()
    for example in zip(*arrays, strict=True):
        values = tuple(part.tobytes() for part in example)
        counted[hash(values)] += 1
    return counted


@dataclass(frozen=True)
class Splits:
    """A client's training, test and validation examples; `train, test = splits` works, too.

    Attributes
    ----------
    train, test
        Every client has both.
    validation
        The examples that choose the best model; None if there are none.
    version
        On a device, the number of its table, from 1: other rows have another one. Else 0.
    missing
        On a device, how many fewer rows, or units, its data have than before they last changed.
    """

    train: AnyExamples
    test: AnyExamples
    validation: AnyExamples | None = None
    version: int = 0
    missing: int = 0

    def __iter__(self) -> Iterator[AnyExamples]:
        """Yield the training examples, then the test examples."""
        yield self.train
        yield self.test

    def count(self, classes: int) -> dict[str, Any]:
        """Return how many examples are for training, and of how many units and each class all are.

        `classes` is the number of classes; 0 for a quantity. Added are the test scores of a model
        that knows no inputs: the accuracy of the larger class, or the errors of the training mean.
        """
        import torch

        parts = [part for part in (self.train, self.validation, self.test) if part is not None]
        all_of = [torch.ones(len(part), dtype=torch.bool) for part in parts]
        counted: dict[str, Any] = {
            "train": len(self.train),
            "examples": sum(map(len, parts)),
            "units": sum(
                part.count_units(every) for part, every in zip(parts, all_of, strict=True)
            ),
        }
        if classes:
            targets = torch.cat([part.all_targets for part in parts])
            counted["classes"] = torch.bincount(targets, minlength=classes).tolist()
        if not len(self.test):
            return counted
        if classes:
            tested = torch.bincount(self.test.all_targets)
            return counted | {"accuracy": 100.0 * float(tested.max() / tested.sum())}
        errors = self.test.all_targets.double() - self.train.all_targets.double().mean()
        mean_square = errors.square().mean()
        return counted | {
            "mae": float(errors.abs().mean()),
            "rmse": float(mean_square.sqrt()),
        }

    def map(self, change: Callable[[AnyExamples], AnyExamples]) -> Splits:
        """Return the splits with `change` applied to each of them."""
        return Splits(
            change(self.train),
            change(self.test),
            None if self.validation is None else change(self.validation),
            self.version,
            self.missing,
        )


# A description of data: tables by the subject of their rows; each row maps column names to cells.
Described = Mapping[str, Sequence[Mapping[str, str | int]]]


class Suggested(NamedTuple):
    """The text of the schema that files suggest, and what it asks on how they are read."""

    schema: str
    questions: tuple[Question, ...] = ()


def classes_of(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the predicted and the true class of each example, as integers.

    Parameters
    ----------
    outputs
        Shape (n, classes, …): the highest output is the prediction. Or shape (n, 1) or (n,):
        above 0 for the second of two classes.
    targets
        Class indices, shape (n, …), or with one output 0 or 1, shape (n,) or (n, 1); or the
        probabilities of the classes, shape (n, classes): the highest is the true class.

    Raises
    ------
    ReportableError
        For any other shapes or targets: they have no classes that a score could count.
    """
    if outputs.shape[1:] in ((), (1,)):
        true = targets.reshape(-1)
        if true.shape == outputs.shape[:1] and bool(((true == 0) | (true == 1)).all()):
            return (outputs.reshape(-1) > 0).long(), true.long()
    elif (
        targets.is_floating_point()
        and targets.shape == outputs.shape
        and outputs.dim() == 2
        and bool(((targets.sum(dim=1) - 1.0).abs() < 1e-3).all())
    ):
        return outputs.argmax(dim=1), targets.argmax(dim=1)
    elif (
        not targets.is_floating_point()
        and outputs.dim() > 1
        and outputs[:, 0].shape == targets.shape
    ):
        return outputs.argmax(dim=1), targets
    raise ReportableError(
        f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} and"
        f" dtype {targets.dtype} are not of classes, which the accuracy needs: give the task"
        " scores=, as in scores={MAE: absolute_error} of fairbloom.tasks.measures"
    )


def is_highest(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each example whether its class is predicted; arguments as for `classes_of`."""
    predicted, true = classes_of(outputs, targets)
    return predicted == true


def model_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Stand for the loss that a model returns under the name `loss`: `Task(loss=model_loss, ...)`.

    The model must return the loss of each example, shape (n,), and needs the targets among its
    inputs.
    """
    raise TypeError(
        "model_loss stands for the loss that a model returns with its outputs; it cannot be called"
    )


def is_of_model(loss: Callable[..., object]) -> bool:
    """Return whether a task uses the loss that its model returns."""
    return inspect.unwrap(loss) is model_loss


@dataclass(frozen=True, eq=False)
class Task:
    """Data split into clients, a model and a loss.

    Attributes
    ----------
    clients
        Client names in the order of partition ids.
    model
        Returns a freshly initialised model, with the same weights every time. The global generators
        of PyTorch, NumPy and Python are seeded with the run's seed before.
    loss
        (outputs, targets) → the loss of each example, shape (n,).
    splits
        A client's name → its splits. They are loaded on demand, so that a deployed client loads
        only its own data.
    scores
        How well a model serves a client: (outputs, targets) of all examples → one number, or one
        number for each example, shape (n,), averaged into the score. Fairness is measured in the
        first score. A value that is not finite, such as an AUC of a single class, is left out. By
        default the accuracy; see `classes_of` for its outputs and targets.
    describe
        Returns the tables that `fairbloom data` shows; None: the sizes of the clients' splits, and
        what `remark` returns.
    remark
        Returns rows on what stands out in the clients' data; None if nothing is looked for.
    compared
        Returns the profiles of the clients' tables, and what stands out; None without tables.
    tabulate
        Returns Table 1: each column of the clients' tables at each client, and in all.
    classes
        The number of classes that are predicted, 0 for a quantity; None if not known.
    class_names
        The names of the classes, in their order; () if they have only numbers.
    positive
        The index of the positive one of two classes; None if it is not stated: the second.
    parts
        A client's name → the rows of its file, from 0, by part: train, test and validation, if
        clients have tables; else None.
    dealt
        A client's name → (rows in the data set, classes) of its training, test and validation
        examples, if a data set is split among clients; else None.
    groupings
        The ways in which examples are grouped, for example by sex, each with the names of its
        groups, None for that of examples without a value; `Examples.groups` has the index of each
        example's group. Every example belongs to one group of each grouping.
    group_scores
        The scores of each group: (outputs, targets) → a number for each example, shape (n,), NaN
        for an example that does not count. By default the first of `scores`, which must then
        return a number for each example.
    class_grouping
        The name of a further grouping, by the true classes, that clients report; None: no such.
        Fairness between groups never goes by it.
    output
        The name of the tensor for the loss and the scores if the model returns several by name;
        "": `logits`, or the only tensor.
    preprocessing
        A client's name → the way from its raw data to inputs, and from outputs to predictions; ""
        → the part that all clients share. None: inputs are used unchanged.
    schema
        The text of the schema that the clients' files were read by, or "".
    questions
        Questions on how the files are read, if no schema is given that answers them.
    ask
        Returns these questions, and those on what stands out among the clients.
    marks
        One word for each client that is special, by name; results show it after the name.
    left_out
        The names of clients that the files have, but too few rows of.
    held_out
        The names of further clients, which are not in training; see `draw_held_out`.
    seeds
        What the seed does to the data, so that a comparison over seeds knows how independent these
        are: "split" if it splits the same clients' examples again, "draw" if it draws others; "" if
        that is not known.
    has_probabilities
        Returns whether the model's only output of an example is a probability, not a logit.
    tested_on_training
        Returns the clients, of those loaded, that test on their training examples.
    """

    clients: tuple[str, ...]
    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    splits: Callable[[str], Splits]
    scores: Mapping[Score, Callable[[Tensor, Tensor], Tensor | float]] = field(
        default_factory=lambda: {ACCURACY: is_highest}
    )
    describe: Callable[[bool], Described] | None = None
    remark: Callable[[], Sequence[Mapping[str, str | int]]] | None = None
    compared: Callable[[], Comparison] | None = None
    tabulate: Callable[[], Sequence[Mapping[str | None, str | int]]] = tuple
    parts: Callable[[str], Mapping[str, Places]] | None = None
    dealt: Callable[[str], Sequence[tuple[Places, Places]]] | None = None
    classes: int | None = None
    class_names: tuple[str, ...] = ()
    positive: int | None = None
    groupings: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    group_scores: Mapping[GroupScore, Callable[[Tensor, Tensor], Tensor]] = field(
        default_factory=dict
    )
    class_grouping: str | None = None
    output: str = ""
    preprocessing: Callable[[str], Preprocessing] | None = None
    schema: str = ""
    questions: tuple[Question, ...] = ()
    ask: Callable[[], Sequence[Question]] = tuple
    marks: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    seeds: str = ""
    has_probabilities: Callable[[], bool] = bool
    tested_on_training: Callable[[], Sequence[str]] = tuple

    def __post_init__(self) -> None:
        """Make the first score the default of `group_scores`."""
        if self.groupings and not self.group_scores:
            score, measure = next(iter(self.scores.items()))
            object.__setattr__(
                self,
                "group_scores",
                {GroupScore(score.name, score.higher_is_better, score.percent): measure},
            )

    @classmethod
    def of(cls, made: object) -> Task:
        """Return the result of a user's function or class as a Task.

        Any object with the attributes of a task is accepted.
        """
        if isinstance(made, Task):
            return made
        required = [
            each.name
            for each in fields(cls)
            if each.default is MISSING and each.default_factory is MISSING
        ]
        missing = [name for name in required if not hasattr(made, name)]
        if missing:
            raise FairbloomError(
                f"the task is a {type(made).__name__} without {', '.join(missing)}: a task has"
                f" {', '.join(required)}"
            )
        values = {
            each.name: getattr(made, each.name) for each in fields(cls) if hasattr(made, each.name)
        }
        if not isinstance(values["clients"], str):  # refused later, see tasks/checks.py
            values["clients"] = tuple(values["clients"])
        return cls(**values)

    @property
    def score(self) -> Score:
        """The score that fairness is measured in."""
        return next(iter(self.scores))

    @property
    def reported_groupings(self) -> Mapping[str, tuple[str | None, ...]]:
        """The groupings by which clients report scores: `groupings`, then that by classes."""
        if self.class_grouping is None:
            return self.groupings
        return {
            **self.groupings,
            self.class_grouping: self.class_names or tuple(map(str, range(self.classes or 0))),
        }

    @property
    def positive_place(self) -> int:
        """The index of the positive one of two classes, by default the second."""
        return 1 if self.positive is None else self.positive

    @property
    def positive_name(self) -> str:
        """The name, or number, of the positive one of two classes."""
        place = self.positive_place
        return self.class_names[place] if place < len(self.class_names) else str(place)

    @cached_property
    def ascending(self) -> tuple[str, ...]:
        """The client names in ascending order, the order in which clients are drawn.

        It is the tuple `clients` itself if that is in this order.
        """
        names = tuple(sorted(self.clients))
        return self.clients if names == self.clients else names

    def to(self, device: torch.device) -> Task:
        """Return the same task with its examples on `device`.

        A tensor that clients share is moved once. The examples of the last MAX_CACHED_CLIENTS
        clients are kept. Those that do not fit on the device stay here, and their batches are
        moved.
        """
        from .collated import CollatedExamples  # imported late: it needs PyTorch

        # A client has up to 16 tensors: inputs, targets, rows and groups of each split.
        once = lru_cache(maxsize=MAX_CACHED_CLIENTS * 16)
        move_tensor = once(lambda tensor: tensor.to(device))
        fits = once(lambda tensor: has_room(device, tensor.nbytes))

        def move_examples(examples: AnyExamples) -> AnyExamples:
            if isinstance(examples, CollatedExamples):
                return examples.to(device)
            if all(map(fits, (*tensors_of(examples.inputs), examples.targets))):
                return examples.map(move_tensor)
            return replace(examples, streamed_to=device)

        @lru_cache(maxsize=MAX_CACHED_CLIENTS)
        def splits(client: str) -> Splits:
            return self.splits(client).map(move_examples)

        return replace(self, splits=splits)
