"""The registry of measures: one number for how clients, one of them or groups of examples are served."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.scores import Score
from fairbloom.server.fairness import count_of_share, summarize
from fairbloom.server.run_folder.csv_rows import MEASURES

from .group_scores import GroupReport

CLIENT = "client:"
"""What the measure of one client begins with."""

GAP = "group-gap:"
"""What the measure of a gap between groups begins with: a score follows, and `:NAME` where it is of
one client."""

NAMED = (f"{CLIENT}NAME", f"{GAP}SCORE", f"{GAP}SCORE:NAME")
"""How errors spell the measures that hold a name."""

LARGER_CLASS = "larger class, %"
"""What tables call the share of a client's test examples that are of the larger one of two
classes."""


@dataclass(frozen=True)
class ClientScores:
    """How a model serves clients: the score of each, its examples, and what the clients report of groups."""

    values: Mapping[str, float]
    score: Score
    examples: Mapping[str, int] = field(default_factory=dict)
    groups: GroupReport | None = None


@dataclass(frozen=True)
class Measure:
    """A measure."""

    name: str  # what files, options and recipes call it: "worst_10"; options may write "worst-10"
    of: Callable[[ClientScores], float]  # NaN where a client or a gap is not there
    good: Literal["as score", "high", "low"] = "as score"  # where it is, clients are better served
    decimals: int = 2  # in tables of recipes, as papers print it
    # whether it is in the unit of the score; others have none, but for the radians of the angle
    unit: bool = True

    def is_good_high(self, score: Score) -> bool:
        """Return whether a higher number is better for the clients."""
        return score.higher_is_better if self.good == "as score" else self.good == "high"

    def better(self, value: float, than: float, score: Score) -> float:
        """Return by how much a number is better than another; negative where it is worse."""
        return value - than if self.is_good_high(score) else than - value

    def title(self, clients: int = 0) -> str:
        """Return what tables call it over so many clients: "worst 10 %", which of four clients is "worst client"."""
        if self.name.startswith(CLIENT):
            return self.name.removeprefix(CLIENT)
        if self.name.startswith(GAP):
            score, client = parse_gap(self.name)
            return f"{Score(score).words} gap" + (f", {client}" if client else "")
        end, _, share = self.name.partition("_")
        if end == "percentile":
            return f"{share}th percentile"
        if end in ("worst", "best") and (not share or count_of_share(int(share), clients) == 1):
            return f"{end} client"
        return f"{end} {share} %" if share.isdigit() else self.name.replace("_", " ")


def parse_gap(measure: str) -> tuple[str, str]:
    """Return the score and the client of a measure of a gap between groups.

    "" for all clients together.
    """
    score, _, client = measure.removeprefix(GAP).partition(":")
    return score, client


def find_measure(name: str) -> Measure:
    """Return the measure that a name means; raise FairbloomError where there is none."""
    if name.startswith(CLIENT) and name != CLIENT:
        client = name.removeprefix(CLIENT)
        return Measure(name, lambda served: served.values.get(client, math.nan))
    if re.fullmatch(rf"{GAP}[a-z0-9-]+(:.+)?", name, re.DOTALL):
        score, client = parse_gap(name)
        return Measure(
            name,
            lambda s: s.groups.sizes(client).get(score, math.nan) if s.groups else math.nan,
            "low",
        )
    if (key := name.replace("-", "_")) not in REGISTRY:
        there = ", ".join((*REGISTRY, *NAMED))
        raise FairbloomError(
            f"unknown measure {name!r}: {did_you_mean(key, REGISTRY)}there are {there}"
        )
    return REGISTRY[key]


def measure_title(measure: str, clients: int = 0) -> str:
    """Return what tables call a measure over so many clients; see `Measure.title`."""
    return find_measure(measure).title(clients)


def _spread(name: str) -> Callable[[ClientScores], float]:
    """Return the function of a measure of how scores are spread over clients."""
    return lambda served: summarize(
        served.values, lower_is_better=not served.score.higher_is_better
    )[name]


def _percentile(percent: int) -> Callable[[ClientScores], float]:
    return lambda served: float(np.percentile([*served.values.values()], percent))


def _uniform(served: ClientScores) -> float:
    """Return the mean over all examples."""
    values = served.values
    examples = served.examples
    return sum(examples[name] * value for name, value in values.items()) / sum(
        examples[name] for name in values
    )


GOOD: Mapping[str, Literal["high", "low"]] = {
    **dict.fromkeys(("std", "var", "gap", "gini"), "low"),  # how unequal clients are
    **dict.fromkeys(("jain", "entropy", "cosine"), "high"),
}
BARE = ("jain", "gini", "entropy", "cosine")

REGISTRY: Mapping[str, Measure] = {
    **{
        name: Measure(
            name,
            _spread(name),
            GOOD.get(name, "as score"),
            3 if name in BARE else 2,
            name not in BARE,
        )
        for name in MEASURES
    },
    "angle": Measure(
        "angle", lambda served: math.acos(min(1.0, _spread("cosine")(served))), "low", 3, unit=False
    ),
    "uniform": Measure("uniform", _uniform),
    "percentile_5": Measure("percentile_5", _percentile(5)),
    "percentile_95": Measure("percentile_95", _percentile(95)),
    "3*mean+worst": Measure(
        "3*mean+worst", lambda s: 0.75 * _spread("mean")(s) + 0.25 * _spread("worst")(s)
    ),
}
"""The measures by their names; beside them stand those that hold a name, which `find_measure`
knows."""
