"""Weights of classes in the training loss; what clients measure and report stays unweighted."""

import torch
from torch import Tensor

from fairbloom.errors import ReportableError
from fairbloom.protocol.assignments import BALANCED, weights_by_class
from fairbloom.tasks import Task
from fairbloom.tasks.task import AnyExamples


def class_table(wanted: str, task: Task, examples: AnyExamples) -> Tensor | None:
    """Return the weight of each class at a client, by the class's place; None where no weights are wanted.

    "balanced" is n / (c · n_y) for each of the client's c classes, n_y of n being its training examples of class y.
    Otherwise `wanted` has weights by name or number, and 1 is that of the other classes.
    """
    if not wanted:
        return None
    targets = examples.all_targets
    if targets.is_floating_point() or targets.dim() != 1 or task.classes == 0:
        raise ReportableError(
            f"class-weights = {wanted!r}: the targets of this task are no classes, one of each example: leave "
            "class-weights out"
        )
    table = _balanced(targets.cpu()) if wanted == BALANCED else _as_given(wanted, task, int(targets.max()))
    return table.to(targets.device, torch.float32 if targets.device.type == "mps" else torch.float64)


def mean_loss(losses: Tensor, targets: Tensor, table: Tensor | None) -> Tensor:
    """Return the mean of a minibatch's losses, weighted by their classes where there is a table of weights."""
    if table is None:
        return losses.mean()
    weights = table[targets].to(losses.dtype)
    return (weights * losses).sum() / weights.sum()


def _balanced(targets: Tensor) -> Tensor:
    counts = torch.bincount(targets)
    present = counts > 0
    return torch.where(present, len(targets) / (present.sum() * counts.clamp(min=1)).double(), 0.0)


def _as_given(wanted: str, task: Task, last: int) -> Tensor:
    """Return the weights that are given, up to that of the last class that is there at least."""
    places = {_place(label, wanted, task): weight for label, weight in _weights(wanted).items()}
    table = torch.ones(1 + max([*places, last]), dtype=torch.float64)
    for place, weight in places.items():
        table[place] = weight
    return table


def _weights(wanted: str) -> dict[str, float]:
    try:
        return dict(weights_by_class(wanted))
    except ValueError as error:
        raise ReportableError(f"class-weights = {wanted!r}: {error}") from error


def _place(label: str, wanted: str, task: Task) -> int:
    """Return the place of a class that is named, or numbered from 0 where classes have no names."""
    if label in task.class_names:
        return task.class_names.index(label)
    is_number = label.isascii() and label.isdigit() and int(label) < (task.classes or 100_000)
    if is_number and not task.class_names:
        return int(label)
    last = f" to {task.classes - 1}" if task.classes else ""
    there = ", ".join(task.class_names) or f"numbers from 0{last}"
    raise ReportableError(f"class-weights = {wanted!r}: there is no class {label!r}; there are {there}")
