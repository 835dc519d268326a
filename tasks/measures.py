"""Scores for `Task.scores`, each a function of outputs and targets.

A function returns the score, or one number for each example, averaged into the score. A score that
is not defined, such as the AUC of one class, is NaN and left out.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from fairbloom.protocol.scores import ACCURACY, GroupScore, Score

from .task import classes_of, is_highest

OfEach = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → a number for each example."""

BALANCED_ACCURACY = Score("balanced-accuracy", percent=True)
"""The share of right answers in each class, averaged over the classes."""

AUC = Score("auc")
"""The probability that an example of the second class has a higher output than one of the first;
ties count half."""

MAE = Score("mae", higher_is_better=False)
"""The mean absolute error, in the target's unit."""

RMSE = Score("rmse", higher_is_better=False)
"""The root of the mean squared error, in the target's unit."""

R2 = Score("r2")
"""The share of the targets' variance that the outputs explain; below 0 they are worse than the
targets' mean."""

SELECTION_RATE = GroupScore("selection-rate", percent=True)
"""The share of a group's examples for which the positive class is predicted, rightly or not."""

TRUE_POSITIVE_RATE = GroupScore("true-positive-rate", percent=True, over="positives")
"""The share of a group's positive examples for which the positive class is predicted."""


def group_scores_of_classes(classes: int, positive: int = 1) -> Mapping[GroupScore, OfEach]:
    """Return the scores of groups for predicted classes; `positive` is an index of two classes."""
    scores: dict[GroupScore, OfEach] = {
        GroupScore(ACCURACY.name, percent=ACCURACY.percent): is_highest
    }
    if classes == 2:
        scores[SELECTION_RATE] = partial(is_selected, positive=positive)
        scores[TRUE_POSITIVE_RATE] = partial(is_found, positive=positive)
    return scores


def is_selected(outputs: Tensor, targets: Tensor, *, positive: int) -> Tensor:
    """Return for each example whether the positive class is predicted."""
    return classes_of(outputs, targets)[0] == positive


def is_found(outputs: Tensor, targets: Tensor, *, positive: int) -> Tensor:
    """Return for each positive example whether it is predicted as positive; NaN for the others."""
    predicted, true = classes_of(outputs, targets)
    return (predicted == positive).double().masked_fill(true != positive, math.nan)


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of right answers in each class that occurs, averaged over these classes."""
    predicted, true = classes_of(outputs, targets)
    examples = torch.bincount(true)
    occurs = examples > 0
    right = torch.bincount(true, weights=(predicted == true).double())
    return float((right[occurs] / examples[occurs]).mean())


def auc(outputs: Tensor, targets: Tensor) -> float:
    """Return the area under the ROC curve of two classes, by ranks; NaN if one does not occur.

    Parameters
    ----------
    outputs
        Shape (n, 2), used by their difference; or (n, 1) or (n,), high for the second class.
    targets
        0 or 1, shape (n,) or (n, 1).
    """
    outputs = outputs.double()
    if outputs.dim() == 2 and outputs.shape[1] == 2:
        margins = outputs[:, 1] - outputs[:, 0]
    else:
        margins = outputs.reshape(-1)
    if not margins.isfinite().all():
        return math.nan
    ascending = margins.sort().values
    second = targets.reshape(-1) == 1
    below = torch.searchsorted(ascending, margins)
    # equal margins share the mean of their ranks
    ranks = (below + torch.searchsorted(ascending, margins, right=True) + 1).double() / 2
    ones = int(second.sum())
    pairs = ones * (len(margins) - ones)
    if not pairs:
        return math.nan
    return (float(ranks[second].sum()) - ones * (ones + 1) / 2) / pairs


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the absolute error of each example, in float64, because targets may be of any size."""
    return (outputs.reshape(targets.shape).double() - targets.double()).abs()


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """Return the root of the mean squared error."""
    return (
        (outputs.reshape(targets.shape).double() - targets.double()).square().mean().sqrt().item()
    )


def r2(outputs: Tensor, targets: Tensor) -> float:
    """Return the coefficient of determination; NaN if all targets are equal."""
    targets = targets.double()
    total = (targets - targets.mean()).square().sum()
    residual = (outputs.reshape(targets.shape).double() - targets).square().sum()
    return (1.0 - residual / total).item() if total > 0 else math.nan
