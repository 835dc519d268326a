"""Scores that a run asks for in addition to its task's: of two classes, or of the probabilities of any."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from fairbloom.errors import ReportableError
from fairbloom.protocol.scores import (
    BRIER,
    CALIBRATION_ERROR,
    F1,
    FURTHER,
    SENSITIVITY,
    SPECIFICITY,
    Score,
)

from .task import Task

BINS = 10
"""The number of equal bins of confidence over which the calibration error is taken."""

Measure = Callable[[Tensor, Tensor], Tensor | float]


@lru_cache(maxsize=4)
def add_scores(task: Task, names: tuple[str, ...]) -> Task:
    """Return a task with further scores behind its own.

    Parameters
    ----------
    task
        The task.
    names
        Some of `FURTHER`.
    """
    own = {score.name for score in task.scores}
    wanted = [FURTHER[name] for name in dict.fromkeys(names) if name not in own]
    for score in wanted:
        if misfit := find_misfit(task, score):
            raise ReportableError(f"scores = {score.name!r}: {misfit}: leave it out")
    of: dict[Score, Measure] = {
        BRIER: partial(brier, positive=task.positive),
        CALIBRATION_ERROR: calibration_error,
    }
    of |= {
        score: partial(measure, positive=task.positive) for score, measure in OF_TWO_CLASSES.items()
    }
    added = {score: of[score] for score in wanted}
    return replace(task, scores={**task.scores, **added})


def find_misfit(task: Task, score: Score) -> str:
    """Return why a further score has no meaning with a task, "" where it has one."""
    if task.classes == 0:
        return "it is of classes, and the target is a quantity"
    if score in OF_TWO_CLASSES and task.classes not in (None, 2):
        return f"it is of two classes, and there are {task.classes}"
    return ""


# Of two classes -----------------------------------------------------------------------------------


def f1(outputs: Tensor, targets: Tensor, *, positive: int = 1) -> Tensor:
    """Return 2 TP / (2 TP + FP + FN), NaN where no example is positive or taken for it."""
    true, false, missed, _ = _count_answers(outputs, targets, positive)
    return _ratio(2 * true, 2 * true + false + missed)


def sensitivity(outputs: Tensor, targets: Tensor, *, positive: int = 1) -> Tensor:
    """Return the share of the positive examples that are taken for positive, NaN where there are none."""
    true, _, missed, _ = _count_answers(outputs, targets, positive)
    return _ratio(true, true + missed)


def specificity(outputs: Tensor, targets: Tensor, *, positive: int = 1) -> Tensor:
    """Return the share of the other examples that are not taken for positive, NaN where there are none."""
    _, false, _, others = _count_answers(outputs, targets, positive)
    return _ratio(others, others + false)


OF_TWO_CLASSES: Mapping[Score, Callable[..., Tensor]] = {
    F1: f1,
    SENSITIVITY: sensitivity,
    SPECIFICITY: specificity,
}


def _count_answers(outputs: Tensor, targets: Tensor, positive: int) -> list[int]:
    """Return TP, FP, FN and TN.

    An example is taken for positive where that class has the higher output.
    """
    _check_outputs(outputs, OF_TWO_CLASSES, outputs.shape[1:] == (2,))
    taken = outputs.argmax(dim=1) == positive
    right = targets == positive
    return [
        int(each.sum()) for each in (taken & right, taken & ~right, ~taken & right, ~taken & ~right)
    ]


def _ratio(part: int, whole: int) -> Tensor:
    """Return a ratio as a tensor that does not round it; NaN of nothing."""
    return torch.tensor(part / whole if whole else math.nan, dtype=torch.float64)


# Of probabilities ---------------------------------------------------------------------------------


def calibration_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the expected calibration error: Σ_b n_b/n |accuracy_b − confidence_b| over `BINS` equal bins.

    The confidence is the probability of the class that is predicted. Source: Guo et al., On
    Calibration of Modern Neural Networks (arXiv:1706.04599), equation 3, with ten bins.
    """
    confidence, predicted = probabilities(outputs).max(dim=1)
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # ((b − 1) / BINS, b / BINS]
    away = torch.bincount(
        bins, weights=(predicted == targets).double() - confidence, minlength=BINS
    )
    return away.abs().sum() / len(targets)


def brier(outputs: Tensor, targets: Tensor, *, positive: int = 1) -> Tensor:
    """Return the mean of (p − y)² of the positive one of two classes.

    Of more, its sum over classes.
    """
    chances = probabilities(outputs)
    right = torch.nn.functional.one_hot(targets, chances.shape[1])
    apart = (chances - right).square()
    return (apart[:, positive] if chances.shape[1] == 2 else apart.sum(dim=1)).mean()


def probabilities(outputs: Tensor) -> Tensor:
    """Return the probability of each class, in float64.

    Raise ReportableError where outputs are not of classes.
    """
    _check_outputs(outputs, (CALIBRATION_ERROR, BRIER), outputs.dim() == 2 and outputs.shape[1] > 1)
    return outputs.double().softmax(dim=1)


def _check_outputs(outputs: Tensor, scores: Iterable[Score], are_of_classes: bool) -> None:
    if not are_of_classes:
        raise ReportableError(
            f"scores = {', '.join(score.name for score in scores)}: they are of classes, each with"
            f" an output, and the model's outputs have shape {tuple(outputs.shape)}: leave them out"
        )
