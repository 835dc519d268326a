"""The registry of measures: single numbers computed from the scores of clients or of groups."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.scores import Score
from fairbloom.server.fairness import against_baseline, count_of_share, summarize
from fairbloom.server.run_folder.csv_rows import MEASURES
from fairbloom.server.run_folder.files import NOT_IN_TRAINING
from fairbloom.text import text_if

from .group_scores import GroupReport

# The prefix of a measure of one client.
CLIENT = "client:"

# The prefix of a measure of a gap between groups: a score follows, and `:NAME` for the gap within
# one client.
GAP = "group-gap:"

# How errors spell the measures that hold a name.
NAMED = (f"{CLIENT}NAME", f"{GAP}SCORE", f"{GAP}SCORE:NAME")


@dataclass(frozen=True)
class ClientScores:
    """The scores of clients under a model, with their examples and their groups."""

    values: Mapping[str, float]
    score: Score
    examples: Mapping[str, int] = field(default_factory=dict)
    groups: GroupReport | None = None
    baseline: Mapping[str, float] = field(default_factory=dict)
    training: Mapping[str, float] = field(default_factory=dict)  # see `Run.training`
    # measures of clients that are not in training, by name; see `ComparedScores.held_out`
    held_out: Mapping[str, float] = field(default_factory=dict)


# The unit of a measure: the score's, its square, a percentage, or none; angles are in radians.
Unit = Literal["score", "score²", "%", ""]


@dataclass(frozen=True)
class Measure:
    """A measure: its name, its function and how tables show it."""

    name: str  # in files, options and recipes: "worst_10"; options may also write "worst-10"
    of: Callable[[ClientScores], float]  # NaN if a client or a gap is missing
    good: Literal["as score", "high", "low"] = "as score"  # which values serve clients better
    decimals: int = 2  # in tables of recipes, as papers print it
    unit: Unit = "score"
    # whether it is known after each round: not of a whole run, nor compared with another run
    by_round: bool = True

    def better(self, value: float, than: float, score: Score) -> float:
        """Return by how much a number is better than another; negative if it is worse."""
        good_high = score.higher_is_better if self.good == "as score" else self.good == "high"
        return value - than if good_high else than - value

    def axis(self, score: Score) -> str:
        """Return the title of its axis: "mean, test accuracy, %", or "improved, %"."""
        if self.name.startswith(GAP):  # of a score of its own
            return self.title()
        if self.unit == "score":
            return f"{self.title()}, test {score.title}"
        if self.unit == "score²":
            return f"{self.title()}, test {score.words} squared"
        return self.title() + text_if(self.unit, f", {self.unit}")

    def title(self, clients: int = 0) -> str:
        """Return its title in tables: "worst 10 %", or "worst client" if these are one client."""
        if self.name.startswith(CLIENT):
            return self.name.removeprefix(CLIENT)
        if self.name.startswith(GAP):
            score, client = parse_gap(self.name)
            gap = f"{Score(score).words} gap"
            return f"{gap}, {client}" if client else gap
        end, _, share = self.name.partition("_")
        if end == "percentile":
            return f"{share}th percentile"
        if end in ("worst", "best") and (not share or count_of_share(int(share), clients) == 1):
            return f"{end} client"
        return f"{end} {share} %" if share.isdigit() else self.name.replace("_", " ")


def parse_gap(measure: str) -> tuple[str, str]:
    """Return the score and the client of a measure of a gap; the client is "" for all clients."""
    score, _, client = measure.removeprefix(GAP).partition(":")
    return score, client


def find_measure(name: str) -> Measure:
    """Return the measure with a name; raise FairbloomError if it is unknown."""
    if name.startswith(CLIENT) and name != CLIENT:
        client = name.removeprefix(CLIENT)
        return Measure(name, lambda served: served.values.get(client, math.nan))
    if re.fullmatch(rf"{GAP}[a-z0-9-]+(:.+)?", name, re.DOTALL):
        return Measure(name, partial(_gap_size, *parse_gap(name)), "low")
    if name.startswith(NOT_IN_TRAINING):
        return Measure(name, lambda served: served.held_out.get(name, math.nan), by_round=False)
    key = name.replace("-", "_")
    if key not in REGISTRY:
        raise FairbloomError(
            f"unknown measure {name!r}: {did_you_mean(key, REGISTRY)}there are"
            f" {', '.join((*REGISTRY, *NAMED))}"
        )
    return REGISTRY[key]


def _gap_size(score: str, client: str, served: ClientScores) -> float:
    """Return the gap between groups by a score; NaN without groups, or without a gap."""
    sizes = {} if served.groups is None else served.groups.sizes(client or None)
    return sizes.get(score, math.nan)


def _spread(name: str) -> Callable[[ClientScores], float]:
    """Return the function of a measure that `summarize` computes."""
    return lambda served: summarize(
        served.values, lower_is_better=not served.score.higher_is_better
    )[name]


def _percentile(percent: int) -> Callable[[ClientScores], float]:
    return lambda served: float(np.percentile([*served.values.values()], percent))


def _against(name: str) -> Callable[[ClientScores], float]:
    """Return the function of a measure that `against_baseline` computes."""
    return lambda served: against_baseline(
        served.values, served.baseline, lower_is_better=not served.score.higher_is_better
    )[name]


# The measures of `against_baseline`, and which numbers are good.
AGAINST_BASELINE: Mapping[str, Literal["high", "low"]] = {
    "suffering_share": "high",
    "suffering_change": "high",
    "well_performing_share": "low",
    "well_performing_change": "high",
    "mean_change": "high",
}

GOOD: Mapping[str, Literal["high", "low"]] = {
    **dict.fromkeys(("std", "var", "gap", "gini"), "low"),  # of inequality
    **dict.fromkeys(("jain", "entropy", "cosine"), "high"),
}
BARE = ("jain", "gini", "entropy", "cosine")

# The units of computed measures that do not have the score's.
UNITS: Mapping[str, Unit] = {
    **dict.fromkeys(BARE, ""),
    "var": "score²",
    "suffering_share": "%",
    "well_performing_share": "%",
}

# The measures by name, except the measures in NAMED, which `find_measure` makes.
REGISTRY: Mapping[str, Measure] = {
    **{
        name: Measure(
            name,
            _spread(name),
            GOOD.get(name, "as score"),
            3 if name in BARE else 2,
            UNITS.get(name, "score"),
        )
        for name in MEASURES
    },
    "angle": Measure(
        "angle", lambda served: math.acos(min(1.0, _spread("cosine")(served))), "low", 3, unit=""
    ),
    "uniform": Measure(  # the mean over all examples
        "uniform",
        lambda s: (
            sum(s.examples[name] * value for name, value in s.values.items())
            / sum(s.examples[name] for name in s.values)
        ),
    ),
    "percentile_5": Measure("percentile_5", _percentile(5)),
    "percentile_95": Measure("percentile_95", _percentile(95)),
    "improved": Measure(
        "improved", lambda s: s.training.get("improved", math.nan), "high", unit="%"
    ),
    "improved_last_third": Measure(
        "improved_last_third",
        lambda s: s.training.get("improved_last_third", math.nan),
        "high",
        unit="%",
        by_round=False,
    ),
    "train_loss": Measure(
        "train_loss", lambda s: s.training.get("train_loss", math.nan), "low", 4, unit=""
    ),
    **{
        name: Measure(name, _against(name), good, unit=UNITS.get(name, "score"), by_round=False)
        for name, good in AGAINST_BASELINE.items()
    },
    "3*mean+worst": Measure(
        "3*mean+worst", lambda s: 0.75 * _spread("mean")(s) + 0.25 * _spread("worst")(s)
    ),
}
