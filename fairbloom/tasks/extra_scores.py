"""Scores that a run adds to its task's: of two classes, or of the classes' probabilities."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbloom.errors import ReportableError, did_you_mean
from fairbloom.protocol.scores import (
    BRIER,
    CALIBRATION_ERROR,
    F1,
    FURTHER,
    RECALL,
    SENSITIVITY,
    SPECIFICITY,
    GroupScore,
    Score,
)

from .measures import balanced_accuracy, clients_of, of_one_too, ratios
from .task import Task, is_highest

BINS = 10
"""The number of equal bins of confidence of the calibration error."""

Measure = Callable[[Tensor, Tensor], Tensor | float]


@lru_cache(maxsize=4)
def add_scores(task: Task, names: tuple[str, ...]) -> Task:
    """Return a task with the further scores of these names after its own.

    Raise ReportableError for a name that is unknown, or a score that does not fit the task.
    """
    own = {score.name for score in task.scores}
    asked = [name for name in dict.fromkeys(names) if name not in own]
    fitting = find_fitting(task)
    for name in asked:
        misfit = find_misfit(task, name)
        if misfit:
            remedy = f"{did_you_mean(name, fitting)}leave it out"
            if fitting:
                remedy += f", or take {', '.join(fitting)}"
            raise ReportableError(f"scores = {name!r}: {misfit}: {remedy}")
    wanted = [FURTHER[name] for name in asked]
    measures: dict[Score, Measure] = {
        BRIER: partial(brier, positive=task.positive_place),
        CALIBRATION_ERROR: calibration_error,
        RECALL: balanced_accuracy,
        **{
            score: partial(measure, positive=task.positive_place)
            for score, measure in OF_TWO_CLASSES.items()
        },
    }
    added = {
        replace(score, of=task.positive_name) if score in OF_TWO_CLASSES else score: measures[score]
        for score in wanted
    }
    if RECALL in wanted:  # of each class, too
        grouping = "class"
        while grouping in task.groupings:
            grouping = f"true {grouping}"
        task = replace(
            task,
            class_grouping=grouping,
            group_scores={
                **task.group_scores,
                GroupScore(RECALL.name, percent=True, by=grouping): is_highest,
            },
        )
    return replace(task, scores={**task.scores, **added})


def find_misfit(task: Task, name: str) -> str:
    """Return why a further score is not defined for a task; "" if it is, as far as is known."""
    if name not in FURTHER:
        return "it is unknown"
    if task.classes == 0:
        return "it is of classes, and the target is a quantity"
    if FURTHER[name] == RECALL and task.classes is None:
        return "it is of each class, and the task does not say how many there are, by classes"
    if FURTHER[name] in OF_TWO_CLASSES and task.classes not in (None, 2):
        return f"it is of two classes, and there are {task.classes}"
    return ""


def find_fitting(task: Task) -> list[str]:
    """Return the names of the further scores that fit a task; none if its classes are not known."""
    if task.classes is None:
        return []
    return [name for name in FURTHER if not find_misfit(task, name)]


# Of two classes -----------------------------------------------------------------------------------


@of_one_too
def f1(outputs: Tensor, targets: Tensor, counts: Sequence[int], *, positive: int = 1) -> Tensor:
    """Return 2 TP / (2 TP + FP + FN); NaN if no example is positive or predicted as positive."""
    true, false, missed, _ = _count_answers(outputs, targets, counts, positive)
    return _ratios(2 * true, 2 * true + false + missed)


@of_one_too
def sensitivity(
    outputs: Tensor, targets: Tensor, counts: Sequence[int], *, positive: int = 1
) -> Tensor:
    """Return the share of positive examples predicted as positive; NaN without such examples."""
    true, _, missed, _ = _count_answers(outputs, targets, counts, positive)
    return _ratios(true, true + missed)


@of_one_too
def specificity(
    outputs: Tensor, targets: Tensor, counts: Sequence[int], *, positive: int = 1
) -> Tensor:
    """Return the share of negative examples predicted as negative; NaN without such examples."""
    _, false, _, negatives = _count_answers(outputs, targets, counts, positive)
    return _ratios(negatives, negatives + false)


OF_TWO_CLASSES: Mapping[Score, Callable[..., Tensor]] = {
    F1: f1,
    SENSITIVITY: sensitivity,
    SPECIFICITY: specificity,
}


def _count_answers(
    outputs: Tensor, targets: Tensor, counts: Sequence[int], positive: int
) -> list[NDArray[np.int64]]:
    """Return TP, FP, FN and TN of each client; the highest output is the prediction."""
    _check_outputs(outputs, OF_TWO_CLASSES, outputs.shape[1:] == (2,))
    predicted = (outputs.argmax(dim=1) == positive).cpu().numpy()
    true = (targets == positive).cpu().numpy()
    clients = clients_of(counts)
    return [
        np.bincount(clients[each], minlength=len(counts))
        for each in (predicted & true, predicted & ~true, ~predicted & true, ~predicted & ~true)
    ]


def _ratios(parts: NDArray[np.int64], wholes: NDArray[np.int64]) -> Tensor:
    """Return ratios in float64; NaN if the whole is 0."""
    return torch.tensor(ratios(parts, wholes), dtype=torch.float64)


# Of probabilities ---------------------------------------------------------------------------------


def calibration_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the expected calibration error: Σ_b n_b/n |accuracy_b − confidence_b|, `BINS` bins b.

    The confidence is the probability of the predicted class. Source: Guo et al., On Calibration of
    Modern Neural Networks (arXiv:1706.04599), equation 3, with ten bins.
    """
    confidence, predicted = probabilities(outputs).max(dim=1)
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # ((b − 1) / BINS, b / BINS]
    surplus = (predicted == targets).double() - confidence
    of_bins = torch.bincount(bins, weights=surplus, minlength=BINS)
    return of_bins.abs().sum() / len(targets)


def brier(outputs: Tensor, targets: Tensor, *, positive: int = 1) -> Tensor:
    """Return the mean of (p − y)² of the positive class of two, or of its sum over more classes."""
    predicted = probabilities(outputs)
    classes = predicted.shape[1]
    squares = (predicted - torch.nn.functional.one_hot(targets, classes)).square()
    return squares[:, positive].mean() if classes == 2 else squares.sum(dim=1).mean()


def probabilities(outputs: Tensor) -> Tensor:
    """Return the probability of each class, in float64.

    Raise ReportableError if there are not at least two outputs for each example.
    """
    _check_outputs(outputs, (CALIBRATION_ERROR, BRIER), outputs.dim() == 2 and outputs.shape[1] > 1)
    return outputs.double().softmax(dim=1)


def _check_outputs(outputs: Tensor, scores: Iterable[Score], are_of_classes: bool) -> None:
    if not are_of_classes:
        raise ReportableError(
            f"scores = {', '.join(score.name for score in scores)}: they are of classes, each with"
            f" an output, and the model's outputs have shape {tuple(outputs.shape)}: leave them out"
        )
