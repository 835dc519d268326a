"""A rule that says what to try on a federation by one of its properties, and how often it is right.

`learn` chooses the rule on federations whose answers are known, `leave_one_out` asks it of each of
them with a rule that is chosen on the others.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from math import isfinite

from scipy import stats

LABELS = ("fedavg", "fair", "local")
"""What serves the worst tenth best: FedAvg, the median fair method with a common model, or Local.

Of labels that are right equally often, a rule gives the first.
"""

PROPERTIES = ("cosine", "spread", "unequal", "clients", "smallest")
"""Mean cosine between updates, spread of FedAvg's validation scores over their mean error, largest
over smallest client, number of clients, and examples of the smallest. Of equally good ones, a rule
takes the first.
"""

Properties = Mapping[str, float]
"""A federation's properties by name."""


@dataclass(frozen=True)
class Rule:
    """The label of a federation by intervals of one property.

    Attributes
    ----------
    name
        The property's name, one of PROPERTIES.
    thresholds
        At most two, rising. A value that equals one belongs to the interval below it.
    labels
        The label of each interval: one more than thresholds.
    """

    name: str
    thresholds: tuple[float, ...]
    labels: tuple[str, ...]

    def label(self, properties: Properties) -> str:
        """Return the label of a federation; raise ValueError if its property is not finite."""
        return self.labels[bisect_left(self.thresholds, finite(properties, self.name))]

    def hits(self, federations: Sequence[Properties], known: Sequence[str]) -> int:
        """Return the number of federations whose label is the known one."""
        return sum(self.label(p) == label for p, label in zip(federations, known, strict=True))

    def __str__(self) -> str:
        """Return the rule in words."""
        ends = [*(f"up to {each:.3g}" for each in self.thresholds), "above"]
        parts = [f"{label} {end}" for label, end in zip(self.labels, ends, strict=True)]
        return f"{self.name}: {', '.join(parts)}" if self.thresholds else f"always {self.labels[0]}"


def finite(properties: Properties, name: str) -> float:
    """Return a property; raise ValueError if it is not finite, as no threshold is beside it."""
    value = properties[name]
    if not isfinite(value):
        raise ValueError(f"{name} = {value}: a rule needs finite properties")
    return value


def label_of(worst: Mapping[str, float]) -> str:
    """Return the label of a federation by what each of LABELS gains on FedAvg, in units of a bound.

    A gain up to the bound is none: the label is FedAvg.
    """
    best = max(LABELS, key=lambda label: worst[label])
    return best if worst[best] - worst["fedavg"] > 1.0 else "fedavg"


def learn(federations: Sequence[Properties], known: Sequence[str]) -> Rule:
    """Return the rule that is right most often; of several the one with the fewest thresholds."""
    rules = [rule for name in PROPERTIES for rule in rules_of(name, federations, known)]
    return max(rules, key=lambda rule: (rule.hits(federations, known), -len(rule.thresholds)))


def rules_of(name: str, federations: Sequence[Properties], known: Sequence[str]) -> Iterator[Rule]:
    """Yield the best rule of each choice of thresholds, midway between values of a property."""
    values = sorted({finite(each, name) for each in federations})
    middles = [(low + high) / 2.0 for low, high in pairwise(values)]
    for thresholds in chain.from_iterable(combinations(middles, count) for count in range(3)):
        inside: list[Counter[str]] = [Counter() for _ in range(len(thresholds) + 1)]
        for each, label in zip(federations, known, strict=True):
            inside[bisect_left(thresholds, each[name])][label] += 1
        labels = tuple(max(LABELS, key=lambda label: found[label]) for found in inside)
        yield Rule(name, thresholds, labels)


def leave_one_out(federations: Sequence[Properties], known: Sequence[str]) -> list[str]:
    """Return the label of each federation by the rule that the others choose."""
    return [
        learn(
            [*federations[:place], *federations[place + 1 :]], [*known[:place], *known[place + 1 :]]
        ).label(each)
        for place, each in enumerate(federations)
    ]


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Return the p-value of McNemar's exact test that two answers are right equally often."""
    only_first = sum(a and not b for a, b in zip(first, second, strict=True))
    differ = sum(a != b for a, b in zip(first, second, strict=True))
    return float(stats.binomtest(only_first, differ).pvalue) if differ else 1.0


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    found = stats.binomtest(hits, count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)
