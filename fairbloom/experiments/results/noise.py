"""What the noise of privacy accounts leaves of the clients' scores: intervals, and who is named.

A client with an account reports its score with noise of a known deviation. The mean of such scores
is unbiased. The worst served of K clients seem worse than they are, as the lowest of K noises is
among them, so the interval of a tenth W, m of K clients, is asymmetric. Let S be the clients of
the tenth without noise. Their reports have a mean of W plus noise of deviation σ/√m, and W(x), that
of the reported tenth, is at most that. And W(x) is at least W minus the mean of the m largest of K
noises. So W lies in [W(x) − 1.96 max σ/√m, W(x) + q], with q the 97.5 % quantile of the latter.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from fairbloom.protocol.scores import Score
from fairbloom.server.fairness import count_of_share, summarize

# Half the width of a 95 % interval, in standard deviations.
REACH = 1.96

# How often at most a report names a client as served worst, or best, that is not: half of it each.
# Of clients that are served alike two reports then name different ones in fewer than one of 10,000
# pairs, as both must be wrong.
WRONGLY_NAMED = 0.01

# So many draws, over all clients, give a quantile: of 20 clients 97.5 % within 0.1 %.
DRAWS = 1_000_000

# A number by client.
Values = Mapping[str, float]

# The noise of exact scores.
EXACT: Values = {}


class Estimate(NamedTuple):
    """A measure, and how far it may be from its value without noise; an exact one is not.

    Its 95 % interval reaches from `below` it to `above` it; `bias` is how far its expectation may
    be, at most.
    """

    value: float
    below: float = 0.0
    above: float = 0.0
    bias: float = 0.0

    def written(self, score: Score, decimals: int | None = None) -> str:
        """Return it as text, with its interval if it has one."""
        texts = [
            score.written(each, decimals)
            for each in (self.value, self.value - self.below, self.value + self.above)
        ]
        return f"{texts[0]} ({texts[1]} to {texts[2]})" if self.above > 0.0 else texts[0]


def estimates(values: Values, score: Score, noise: Values = EXACT) -> dict[str, Estimate]:
    """Return the measures of fairness of the clients' scores, with their intervals.

    Of scores with noise only those that have a meaning: the mean, the worst and the best tenth, and
    the gap between the best and the worst client. The others, such as the standard deviation, would
    measure the noise.

    Parameters
    ----------
    values
        The score of each client, at least one.
    score
        The score.
    noise
        The deviation of the noise, in the unit of the values, of each client with noise.
    """
    found = summarize(values, lower_is_better=not score.higher_is_better)
    deviations = tuple(sorted(noise.get(client, 0.0) for client in values))
    if not any(deviations):
        return {name: Estimate(value) for name, value in found.items()}
    count = count_of_share(10, len(values))
    of_mean = REACH * math.hypot(*deviations) / len(values)
    of_single = REACH * max(deviations)
    bias, shift = extreme(deviations, count)
    worst = (of_single / math.sqrt(count), shift)
    up = 1 if score.higher_is_better else -1
    reaches = {
        "mean": (of_mean, of_mean, 0.0),
        "worst_10": (*worst[::up], bias),
        "best_10": (*worst[::-up], bias),
        "gap": (2.0 * extreme(deviations, 1)[1], 2.0 * of_single, 2.0 * extreme(deviations, 1)[0]),
    }
    return {name: Estimate(found[name], *reach) for name, reach in reaches.items()}


def described(found: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return measures in plain values, with `intervals` of those with noise."""
    return {name: each.value for name, each in found.items()} | {
        "intervals": {
            name: (each.value - each.below, each.value + each.above)
            for name, each in found.items()
            if each.above > 0.0
        }
    }


@lru_cache(maxsize=1024)
def extreme(deviations: Sequence[float], count: int) -> tuple[float, float]:
    """Return mean and 97.5 % quantile of the mean of the `count` largest of clients' noises.

    They are of draws with a fixed seed. `deviations` is a tuple with one number a client.
    """
    size = len(deviations)
    draws = np.random.default_rng(0).standard_normal((DRAWS // size, size))
    largest = np.partition(draws * deviations, size - count, axis=1)[:, size - count :].mean(axis=1)
    return float(largest.mean()), float(np.quantile(largest, 0.975))


def is_apart(client: str, values: Values, noise: Values) -> bool:
    """Return whether a client differs from all others by more than noise makes it differ.

    Named by this, the worst and the best of the values are not those in at most `WRONGLY_NAMED` of
    reports. Of exact values it is true.
    """
    deviations = NormalDist().inv_cdf(1.0 - 0.5 * WRONGLY_NAMED / len(values))
    mine = noise.get(client, 0.0)
    return all(
        abs(value - values[client]) >= deviations * math.hypot(mine, noise.get(other, 0.0))
        for other, value in values.items()
        if other != client
    )
