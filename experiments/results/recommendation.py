"""A recommended method: what it is expected to gain on data it was not chosen by, at which price, and how to run it."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.errors import explain_read_errors
from fairbloom.system.values import decode_as

from .differences import prediction_interval
from .measures import GAP, measure_title, parse_gap
from .plans import RECOMMENDATION
from .presentation import Shown

FRESH_SEEDS = 10
"""`Improvement.low` and `Improvement.high` are for the mean gain over so many fresh seeds."""


@dataclass(frozen=True)
class Improvement:
    """By how much a method is better than another on fresh seeds, in the unit of the score; positive is better.

    Attributes
    ----------
    measure
        What is measured, as the wish calls it.
    mean
        The mean difference over the fresh seeds.
    low, high
        Between these lies the mean difference over ten other fresh seeds: a 95 % prediction interval. Its lower end
        counts one more seed, with which nothing is gained.
    against
        The label of the other method.
    """

    measure: str
    mean: float
    low: float
    high: float
    against: str

    @classmethod
    def of(cls, measure: str, differences: Sequence[float], against: str) -> "Improvement":
        """Return the gain that differences show, one a fresh seed.

        A method may fail with one seed in twenty, and none of these may be among the seeds seen, which vary little then
        and promise too much. So the lower end is the lower one of two intervals: that of the differences, and that of
        the differences and 0. Seeds that split the same data again are draws like those seen, so `test_share` is 0.
        """
        low, high = prediction_interval(differences, count=FRESH_SEEDS)
        with_failure, _ = prediction_interval([*differences, 0.0], count=FRESH_SEEDS)
        return cls(measure, statistics.fmean(differences), min(low, with_failure), high, against)


@dataclass(frozen=True)
class Cost:
    """What the recommended method costs against the baseline, on fresh seeds.

    Attributes
    ----------
    mean
        By how much the mean over the clients is better; negative where it is worse.
    percent_worse_off
        The percentage of clients that are worse off.
    losing
        By how much each client that loses is worse off, where clients are few: by the score that fairness goes by, or
        by another one in which it loses while it gains in that.
    bytes_a_round, seconds_a_round
        What a round sends and takes more, over all clients.
    losing_by
        The name of that other score, by client.
    """

    mean: float = 0.0
    percent_worse_off: float = 0.0
    losing: Mapping[str, float] = field(default_factory=dict)
    bytes_a_round: float = 0.0
    seconds_a_round: float = 0.0
    losing_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """How far a candidate came on validation examples: rounds and seeds with which it was judged last."""

    method: str
    rounds: int
    seeds: int
    value: float  # the mean of the wished measure
    misses: float  # by how much it missed constraints


@dataclass(frozen=True)
class Recommendation(Shown):
    """Which method to take for a wish.

    Attributes
    ----------
    wish
        The wish, as it was written.
    label
        What tables call the method with its parameters.
    method
        The method as settings have it.
    parameters, settings
        Its parameters, and all settings of its runs, by their names on the command line.
    gain
        What it is expected to gain against the baseline.
    price
        What that costs.
    command, deploy
        The command that runs it on this machine, and the one that submits it to deployed clients.
    fresh_seeds
        The seeds with which gain and price were measured.
    as_good
        The labels of other candidates that are not told from it.
    tried
        How far each candidate came, the furthest first.
    untried
        The labels of those that the budget left out.
    failed
        Why candidates could not be judged, by their labels.
    notes
        What else is to be known, in sentences.
    clients
        How many clients the gain is measured over.
    score
        What fairness is measured in.
    judged
        What the measure of the wish is in: `score`, or the score of groups whose gap it is.
    folder
        Where all runs lie.
    """

    wish: str
    label: str
    method: str
    parameters: Mapping[str, Value]
    settings: Mapping[str, Value]
    gain: Improvement
    price: Cost
    command: str
    deploy: str = ""
    fresh_seeds: tuple[int, ...] = ()
    as_good: tuple[str, ...] = ()
    tried: tuple[Attempt, ...] = ()
    untried: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    clients: int = 0
    score: Score = ACCURACY
    judged: Score = ACCURACY
    folder: Path = field(default_factory=Path)

    @property
    def as_json(self) -> dict[str, Any]:
        """The answer as `fairbloom recommend --json` prints it."""
        return {
            "method": self.method,
            "parameters": dict(self.parameters),
            "settings": dict(self.settings),
            "gain": asdict(self.gain),
            "price": asdict(self.price),
            "command": self.command,
        }

    @property
    def record(self) -> dict[str, Any]:
        """The answer with how it was found, as `recommendation.json` has it."""
        return {
            **self.as_json,
            "wish": self.wish,
            "label": self.label,
            "clients": self.clients,
            "score": asdict(self.score),
            "judged": asdict(self.judged),
            "deploy": self.deploy,
            "fresh_seeds": list(self.fresh_seeds),
            "as_good": list(self.as_good),
            "tried": [asdict(each) for each in self.tried],
            "untried": list(self.untried),
            "failed": dict(self.failed),
            "notes": list(self.notes),
        }

    @property
    def is_baseline(self) -> bool:
        """Whether the answer is to stay with the baseline."""
        return self.label == self.gain.against

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in words, the most important first."""
        return (self._headline(), *self._about_price(), *self._about_others(), *self.notes)

    def _headline(self) -> str:
        if self.is_baseline:
            return f"Stay with {self.label}: no candidate is shown to be better for this wish."
        gain, unit = self.gain, self.judged.unit
        verb = "shrinks by" if gain.measure in ("std", "gap") or gain.measure.startswith(GAP) else "gains"
        return (
            f"Take {self.label}. Against {gain.against}, {self._subject()} {verb} {gain.mean:.3g} {unit} on the "
            f"test examples of {len(self.fresh_seeds)} fresh seeds; over ten others, expect {gain.low:.3g} to "
            f"{gain.high:.3g}."
        )

    def _subject(self) -> str:
        """Return what sentences call the measure of the wish."""
        measure = self.gain.measure
        if measure.startswith("client "):
            return measure
        if measure.startswith(GAP):
            _, client = parse_gap(measure)
            return f"the {measure_title(measure, self.clients)}{'' if client else ' between groups'}"
        known = {
            "mean": "the mean over the clients",
            "std": "the standard deviation over the clients",
            "gap": "the gap between best and worst client",
        }
        return known.get(measure, f"the {measure_title(measure.replace('-', '_'), self.clients)}")

    def _about_price(self) -> list[str]:
        if self.is_baseline:
            return []
        price, unit = self.price, self.score.unit
        paid = [f"The mean over the clients changes by {price.mean:+.3g} {unit}."]
        paid.append(f"Of the clients, {price.percent_worse_off:.0f} % are worse off.")
        if losing := {name: change for name, change in price.losing.items() if name not in price.losing_by}:
            losses = ", ".join(f"{name} {change:+.3g}" for name, change in losing.items())
            paid.append(f"Who pays, in {unit}: {losses}.")
        sent = f"{abs(price.bytes_a_round):,.0f} bytes {_more(price.bytes_a_round)}"
        taken = f"{abs(price.seconds_a_round):.2g} seconds {_more(price.seconds_a_round)}"
        paid.append(f"A round takes {taken} here, and sends {sent if price.bytes_a_round else 'as many bytes'}.")
        return paid

    def _about_others(self) -> list[str]:
        others = []
        if self.as_good:
            others.append(f"Not significantly different: {', '.join(self.as_good)}.")
        if self.untried and self.tried:
            others.append(f"The budget left out {len(self.untried)}: {', '.join(self.untried)}.")
        if len(self.failed) > 3:  # too many reasons to read
            others.append(
                f"{len(self.failed)} could not be judged ({RECOMMENDATION} says why): {', '.join(self.failed)}."
            )
        else:
            others += [f"{label} could not be judged: {reason}." for label, reason in self.failed.items()]
        return others

    def __repr__(self) -> str:
        """Return the recommendation in a line."""
        gain = self.gain
        about = f"{gain.mean:+.3g} {self.judged.unit} of {gain.measure} against {gain.against}"
        return f"Recommendation({str(self.folder)!r}: {self.label}, {about} ({gain.low:.3g} to {gain.high:.3g}))"


def load_recommendation(folder: Path) -> Recommendation:
    """Return a recommendation by its folder; raise RunFolderError where its file is damaged."""
    file = folder / RECOMMENDATION
    with explain_read_errors(file, "Run the same fairbloom recommend again, which writes it again"):
        return decode_as(Recommendation, {**json.loads(file.read_bytes()), "folder": str(folder)}, finite=False)


def _more(change: float) -> str:
    return "more" if change > 0.0 else "less"


def rows_of(tried: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Return the rows of tried.csv: one a candidate."""
    return [asdict(each) for each in tried]
