"""Scores of many clients at once, each to the bits that it has for a client by itself."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .extra_scores import f1, sensitivity, specificity
from .measures import (
    absolute_error,
    auc,
    balanced_accuracy,
    is_found,
    is_selected,
    means_of,
    r2,
    rmse,
)
from .task import Task, is_highest

Compute = Callable[..., Tensor | float]

# Functions that give a number of each example, which does not depend on the other examples.
BY_EXAMPLE: tuple[Callable[..., object], ...] = (
    is_highest,
    absolute_error,
    is_selected,
    is_found,
)

# Functions of one client, or of many: (outputs, targets, counts) -> their scores.
JOINT: tuple[Callable[..., Any], ...] = (
    balanced_accuracy,
    auc,
    rmse,
    r2,
    f1,
    sensitivity,
    specificity,
)

# Functions that take a single output of an example as a logit.
OF_LOGITS: tuple[Callable[..., object], ...] = (
    is_highest,
    is_selected,
    is_found,
    balanced_accuracy,
)


def fit_outputs(task: Task, compute: Compute) -> Compute:
    """Return a score's function for the task's outputs: for logits, if they are probabilities."""
    if not task.has_probabilities() or _unwrap(compute) not in OF_LOGITS:
        return compute
    return lambda outputs, targets: compute(torch.logit(outputs.double(), eps=1e-12), targets)


def score_all(
    compute: Compute, outputs: Tensor, targets: Tensor, counts: Sequence[int]
) -> list[float]:
    """Return a score of each of consecutive clients with `counts` examples each.

    As for one client, a Python number has the precision of PyTorch's default dtype.
    """
    function = _unwrap(compute)
    if function in JOINT:
        scores = torch.as_tensor(compute(outputs, targets, counts))
        return scores.double().tolist()
    if function in BY_EXAMPLE:
        return means_of(torch.as_tensor(compute(outputs, targets)), counts)
    scores_of = map(torch.as_tensor, _by_client(compute, outputs, targets, counts))
    return [each.cpu().double().mean().item() for each in scores_of]


def values_of_all(
    compute: Compute, outputs: Tensor, targets: Tensor, counts: Sequence[int]
) -> Tensor:
    """Return the numbers that a score gives of the examples, client by client.

    Raise RuntimeError if it does not give a number of each example.
    """
    if _unwrap(compute) in BY_EXAMPLE:
        return torch.as_tensor(compute(outputs, targets))
    return torch.cat([*map(torch.as_tensor, _by_client(compute, outputs, targets, counts))])


def _by_client(
    compute: Compute, outputs: Tensor, targets: Tensor, counts: Sequence[int]
) -> list[Tensor | float]:
    their_outputs = torch.split(outputs, [*counts])
    their_targets = torch.split(targets, [*counts])
    return [compute(*part) for part in zip(their_outputs, their_targets, strict=True)]


def _unwrap(compute: Compute) -> Callable[..., object]:
    """Return a score's function, without the settings that it is called with."""
    return compute.func if isinstance(compute, partial) and not compute.args else compute
