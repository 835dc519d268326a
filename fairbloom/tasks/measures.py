"""Scores for `Task.scores`, each a function of outputs and targets.

A function returns the score, or one number for each example, averaged into the score. A score that
is not defined, such as the AUC of one class, is NaN and left out. PyTorch is imported late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbloom.protocol.scores import ACCURACY, GroupScore, Score

from .task import classes_of, is_highest

if TYPE_CHECKING:
    from torch import Tensor

OfEach: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
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


def group_scores_of_classes(
    classes: int, positive: int = 1, name: str = ""
) -> Mapping[GroupScore, OfEach]:
    """Return the scores of groups for predicted classes.

    `positive` is the index of the positive one of two classes, and `name` its name.
    """
    named = name or str(positive)
    scores: dict[GroupScore, OfEach] = {
        GroupScore(ACCURACY.name, percent=ACCURACY.percent): is_highest
    }
    if classes == 2:
        scores[replace(SELECTION_RATE, of=named)] = partial(is_selected, positive=positive)
        scores[replace(TRUE_POSITIVE_RATE, of=named)] = partial(is_found, positive=positive)
    return scores


def is_selected(outputs: Tensor, targets: Tensor, *, positive: int) -> Tensor:
    """Return for each example whether the positive class is predicted."""
    return classes_of(outputs, targets)[0] == positive


def is_found(outputs: Tensor, targets: Tensor, *, positive: int) -> Tensor:
    """Return for each positive example whether it is predicted as positive; NaN for the others."""
    predicted, true = classes_of(outputs, targets)
    return (predicted == positive).double().masked_fill(true != positive, math.nan)


def absolute_error(outputs: Tensor, targets: Tensor, *, scale: float = 1.0) -> Tensor:
    """Return the absolute error of each example times `scale`.

    It is in float64, because targets may be of any size.
    """
    return scale * (outputs.reshape(targets.shape).double() - targets.double()).abs()


# Of one client or many ----------------------------------------------------------------------------
#
# The examples of a client follow one another, and `counts` has the number of each. A score has the
# bits that it has for a client by itself: counts and ranks are exact, and sums of floats are taken
# over each client's own slice.


def of_one_too(measure: Callable[..., Sequence[float] | Tensor]) -> Callable[..., Any]:
    """Return a score of many clients that is, without `counts`, the score of a single client."""

    @wraps(measure)
    def score(
        outputs: Tensor, targets: Tensor, counts: Sequence[int] | None = None, **settings: Any
    ) -> Any:
        if counts is None:
            return measure(outputs, targets, [len(targets)], **settings)[0]
        return measure(outputs, targets, counts, **settings)

    return score


@of_one_too
def balanced_accuracy(outputs: Tensor, targets: Tensor, counts: Sequence[int]) -> list[float]:
    """Return the share of right answers in each class that occurs, averaged over these classes."""
    import torch

    predicted, true = (each.cpu().numpy() for each in classes_of(outputs, targets))
    shape = (len(counts), int(true.max(initial=0)) + 1)
    places = clients_of(counts) * shape[1] + true
    examples = np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape)
    right = np.bincount(places[predicted == true], minlength=shape[0] * shape[1]).reshape(shape)
    means = np.full(len(counts), math.nan)
    occurring = (examples > 0).sum(axis=1)
    # Together those with as many classes, so that a mean is over no class that does not occur.
    for classes in np.unique(occurring[occurring > 0]):
        clients = np.flatnonzero(occurring == classes)
        occurs = examples[clients] > 0
        shares = right[clients][occurs] / examples[clients][occurs]
        recalls = torch.from_numpy(shares.reshape(-1, classes))
        means[clients] = recalls.mean(dim=1).numpy()
    return means.tolist()


@of_one_too
def auc(outputs: Tensor, targets: Tensor, counts: Sequence[int]) -> list[float]:
    """Return the area under the ROC curve of two classes, by ranks; NaN if one does not occur.

    Parameters
    ----------
    outputs
        Shape (n, 2), used by their difference; or (n, 1) or (n,), high for the second class.
    targets
        0 or 1, shape (n,) or (n, 1).
    counts
        The number of examples of each client; by default all are of one.
    """
    outputs = outputs.cpu().double()
    has_two = outputs.dim() == 2 and outputs.shape[1] == 2
    margins = (outputs[:, 1] - outputs[:, 0] if has_two else outputs.reshape(-1)).numpy()
    clients = clients_of(counts)
    order = np.lexsort((margins, clients))
    ascending = margins[order]
    # The places in this order at which another margin, or another client, begins.
    begins = np.append(np.diff(ascending) != 0, True) | np.append(np.diff(clients) != 0, True)
    ends = np.flatnonzero(begins) + 1
    starts = np.append(0, ends[:-1])
    # Equal margins share the mean of their ranks, which count from 1 for each client.
    ranks = np.repeat((starts + ends + 1) / 2, ends - starts)
    ranks -= (np.cumsum(counts) - counts)[clients]
    second = (targets.cpu().reshape(-1) == 1).numpy()[order]
    sums = np.bincount(clients[second], weights=ranks[second], minlength=len(counts))
    ones = np.bincount(clients[second], minlength=len(counts))
    pairs = ones * (np.array(counts) - ones)
    infinite = np.bincount(clients[~np.isfinite(ascending)], minlength=len(counts))
    return ratios(sums - ones * (ones + 1) / 2, np.where(infinite, 0, pairs))


@of_one_too
def rmse(
    outputs: Tensor, targets: Tensor, counts: Sequence[int], *, scale: float = 1.0
) -> list[float]:
    """Return the root of the mean squared error, times `scale`."""
    squares = absolute_error(outputs, targets).square()
    return [scale * math.sqrt(mean) for mean in means_of(squares, counts)]


@of_one_too
def r2(outputs: Tensor, targets: Tensor, counts: Sequence[int]) -> list[float]:
    """Return the coefficient of determination; NaN if all targets are equal."""
    targets = targets.double()
    residuals = (outputs.reshape(targets.shape).double() - targets).square()
    found = []
    for own, its_residuals in zip(
        targets.split([*counts]),  # type: ignore[no-untyped-call]
        residuals.split([*counts]),  # type: ignore[no-untyped-call]
        strict=True,
    ):
        total = (own - own.mean()).square().sum()
        found.append((1.0 - its_residuals.sum() / total).item() if total > 0 else math.nan)
    return found


def clients_of(counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the index of each example's client."""
    return np.repeat(np.arange(len(counts)), counts)


def ratios(parts: NDArray[Any], wholes: NDArray[np.int64]) -> list[float]:
    """Return ratios; NaN if the whole is 0."""
    found = np.full(len(parts), math.nan)
    np.divide(parts, wholes, out=found, where=wholes > 0)
    return found.tolist()


def means_of(values: Tensor, counts: Sequence[int]) -> list[float]:
    """Return the mean of each client's values."""
    import torch

    if values.dtype == torch.bool:
        true_of = clients_of(counts)[values.cpu().numpy()]
        return ratios(np.bincount(true_of, minlength=len(counts)), np.array(counts))
    parts = torch.split(values.cpu().double(), [*counts])
    return torch.stack([part.mean() for part in parts]).tolist()
