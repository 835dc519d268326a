"""What a few test examples decide: how far chance carries a score, and whether one of two models is better by it."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest, rankdata
from torch import Tensor

from fairbloom.protocol.scores import Score
from fairbloom.tasks.measures import AUC, BALANCED_ACCURACY, margins_of

Measure = Callable[[Tensor, Tensor], Tensor | float]
"""(outputs, targets) of all examples → one number, or one of each example, whose mean is the score."""

DRAWS = 2000
"""The number of permutations of a paired test, and of resamples of an interval."""


def paired_p_value(score: Score, measure: Measure, before: Tensor, after: Tensor, targets: Tensor) -> float:
    """Return the two-sided p-value of the difference that a score has between two models on the same examples.

    It is McNemar's exact test where the score is right or wrong for each example, such as accuracy. Other scores have a
    permutation test, which exchanges the two models' outputs for an example; of the AUC it exchanges ranks, since the
    AUC depends on the order of outputs alone.
    """
    one, other = (torch.as_tensor(measure(outputs, targets)) for outputs in (before, after))
    if one.dtype == torch.bool and one.shape == targets.shape[:1]:
        only_after, only_before = int((other & ~one).sum()), int((one & ~other).sum())
        apart = only_after + only_before
        return float(binomtest(only_after, apart).pvalue) if apart else 1.0
    if score == AUC:
        before, after = (torch.from_numpy(rankdata(margins_of(outputs).numpy())) for outputs in (before, after))
    seen = abs(_value(measure, after, targets) - _value(measure, before, targets))
    rng, as_large = np.random.default_rng(0), 0
    for _ in range(DRAWS):
        swapped = torch.from_numpy(rng.random(len(targets)) < 0.5).reshape(-1, *[1] * (before.dim() - 1))
        first, second = torch.where(swapped, after, before), torch.where(swapped, before, after)
        drawn = abs(_value(measure, second, targets) - _value(measure, first, targets))
        as_large += not drawn < seen - 1e-9  # also where it has no value
    return (1 + as_large) / (1 + DRAWS)


def interval_of(score: Score, measure: Measure, outputs: Tensor, targets: Tensor) -> tuple[float, float] | None:
    """Return the 95 % interval of a score by its test examples, None where it has no value.

    It is Wilson's for accuracy; for balanced accuracy the mean of the classes' intervals, which is conservative;
    otherwise the bootstrap's percentiles.
    """
    found = torch.as_tensor(measure(outputs, targets))
    if score == BALANCED_ACCURACY:
        right = outputs.argmax(dim=1) == targets
        ends = np.array([_wilson(right[targets == each]) for each in torch.unique(targets)])
        return float(ends[:, 0].mean()), float(ends[:, 1].mean())
    if found.dtype == torch.bool and found.shape == targets.shape[:1]:
        return _wilson(found)
    rng = np.random.default_rng(0)
    chosen = (torch.from_numpy(rng.integers(0, len(targets), len(targets))) for _ in range(DRAWS))
    values: NDArray[np.float64] = np.array([_value(measure, outputs[rows], targets[rows]) for rows in chosen])
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def _wilson(right: Tensor) -> tuple[float, float]:
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def _value(measure: Measure, outputs: Tensor, targets: Tensor) -> float:
    return torch.as_tensor(measure(outputs, targets)).double().mean().item()
