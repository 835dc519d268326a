"""A wish: which measure a recommended method is to make as good as possible, and what it may not cost."""

import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.scores import GroupScore, Score
from fairbloom.protocol.settings import SettingsError
from fairbloom.tasks.groups import NAMING

from ..recipes.recipe import GAP
from ..recipes.variants import Variant, split_parts, variants
from ..results.comparison import Comparison, personal_label
from ..results.groups import GroupReport
from ..results.run import measures

LEVELS, SPREADS = ("worst", "worst-10", "best-10", "mean"), ("std", "gap")
"""Measures that are as good as the score itself, and measures of how much clients differ, which are good when low."""

GRAMMAR = (
    "MEASURE as high|low as possible[, MEASURE within N points of METHOD]...[, DIFFERENCE at most N points]...[, no "
    "client loses more than N points [against METHOD]]..., or these alone for the worst client, with "
    f"MEASURE one of {', '.join((*LEVELS, *SPREADS))}, client NAME, gap:SCORE[:NAME], and DIFFERENCE one of "
    f"{', '.join(SPREADS)}, gap:SCORE[:NAME]"
)
"""What a wish may be."""

EXAMPLE = "worst as high as possible, mean within 1 point of FedAvg"

LOSES = re.compile(
    r"no\s+\S+\s+loses\s+more\s+than\s+(\S+)\s+points?(?:\s+against\s+(\S.*))?", re.IGNORECASE | re.DOTALL
)
"""What no client, or hospital or site, is to lose: points, and the method against which they are counted."""

EACH_CLIENT = "each client"
"""The measure of a constraint that is about each client by itself."""


@dataclass(frozen=True)
class Served:
    """How a model serves the clients.

    Attributes
    ----------
    scores
        The score of each client.
    groups
        What the clients report of groups; None where there are none.
    """

    scores: Mapping[str, float]
    groups: GroupReport | None = None

    @classmethod
    def under(cls, comparison: Comparison, label: str) -> "list[Served]":
        """Return how a method serves the clients in a comparison, seed by seed, by its personal models if any."""
        method = served_label(comparison, label)
        reports = comparison.by_group.get(method, [None] * len(comparison.seeds))
        return [cls(scores, groups) for scores, groups in zip(comparison.values[method], reports, strict=True)]


def served_label(comparison: Comparison, label: str) -> str:
    """Return what a comparison calls the models that serve the clients of a method: its personal models, if any."""
    personal = personal_label(label)
    return personal if personal in comparison.personal else label


@dataclass(frozen=True)
class Measure:
    """A measure over the clients, the score of one client, or a gap between groups.

    Attributes
    ----------
    name
        One of LEVELS and SPREADS; "client" for a single client; "gap:SCORE" for a gap between groups.
    client
        The name of the client; "" where the measure is over all of them.
    """

    name: str
    client: str = ""

    @property
    def title(self) -> str:
        """What a wish calls it: `worst-10`, `client site-a`, `gap:selection-rate`, `gap:selection-rate:site-a`."""
        return f"{self.name}{':' if self.between_groups else ' '}{self.client}" if self.client else self.name

    @property
    def between_groups(self) -> bool:
        """Whether it is a gap between groups."""
        return self.name.startswith(GAP)

    @property
    def is_difference(self) -> bool:
        """Whether it says how unequal clients or groups are, so that a lower number is better whatever the score."""
        return self.name in SPREADS or self.between_groups

    def of(self, served: Served, score: Score) -> float:
        """Return the measure of how a model serves the clients.

        Raises
        ------
        FairbloomError
            When the client of this measure has no score, or too few examples of a group are reported for a gap.
        """
        if self.between_groups:
            return self._gap(served)
        if self.client and self.client not in served.scores:
            raise FairbloomError(
                f"the wish is about {self.title}, which has no {score.name}, as an AUC over a single class is none: "
                "give it more examples, or wish for another measure"
            )
        if self.client:
            return served.scores[self.client]
        return measures(served.scores, score)[self.name.replace("-", "_")]

    def is_reported(self, served: Served) -> bool:
        """Return whether enough examples stand behind a gap; of other measures it is always so."""
        return not self.between_groups or self.name.removeprefix(GAP) in self._gaps(served)

    def _gaps(self, served: Served) -> Mapping[str, float]:
        return served.groups.sizes(self.client) if served.groups else {}

    def _gap(self, served: Served) -> float:
        sizes = self._gaps(served)
        if (score := self.name.removeprefix(GAP)) not in sizes:
            who = f"client {self.client} reports" if self.client else "the clients report"
            raise FairbloomError(
                f"the wish is about {self.title}, and {who} the {score} of fewer than two groups, as they have too few "
                "test or validation examples: raise test-share and validation-share, lower smallest-group, or give "
                "clients more examples"
            )
        return sizes[score]

    def is_good_high(self, score: Score) -> bool:
        """Return whether a higher number is better for the clients."""
        return not self.is_difference and score.higher_is_better

    def better(self, value: float, than: float, score: Score) -> float:
        """Return by how much a number is better than another; negative where it is worse."""
        return value - than if self.is_good_high(score) else than - value


@dataclass(frozen=True)
class Constraint:
    """What the recommended method may not cost: so many points of a measure, at most.

    Attributes
    ----------
    measure
        The measure.
    points
        The points.
    method
        The method that it may be worse than by so many points; None where they bound the measure itself, or where each
        client is compared with the baseline.
    """

    measure: Measure
    points: float
    method: Variant | None = None

    def excess(self, by_seed: Sequence[Served], reference: Sequence[Served], score: Score) -> float:
        """Return by how much more than it may cost a method costs, in the mean over the seeds.

        Parameters
        ----------
        by_seed, reference
            How the method serves the clients, and how the one does that it is compared with, seed by seed.
        score
            What the clients measure.
        """
        if self.measure.name == EACH_CLIENT:
            return max(_losses(by_seed, reference, score).values()) - self.points
        costs = [self.measure.of(mine, score) for mine in by_seed]
        if self.method is not None:
            bases = [self.measure.of(theirs, score) for theirs in reference]
            costs = [self.measure.better(base, mine, score) for base, mine in zip(bases, costs, strict=True)]
        return statistics.fmean(costs) - self.points


def _losses(by_seed: Sequence[Served], reference: Sequence[Served], score: Score) -> dict[str, float]:
    """Return by how much each client is worse off, in the mean over the seeds that have its score."""
    losses: dict[str, list[float]] = {}
    for mine, theirs in zip(by_seed, reference, strict=True):
        for client in mine.scores.keys() & theirs.scores.keys():
            losses.setdefault(client, []).append(score.better(theirs.scores[client], mine.scores[client]))
    return {client: statistics.fmean(each) for client, each in losses.items()}


@dataclass(frozen=True)
class Wish:
    """What a user wishes of a method.

    Attributes
    ----------
    text
        As it was written.
    measure
        What is to be as good as possible.
    high
        Whether the wish says high, not low; None where it says neither.
    constraints
        What that may not cost.
    """

    text: str
    measure: Measure
    high: bool | None
    constraints: tuple[Constraint, ...] = ()

    @classmethod
    def of(cls, text: str) -> "Wish":
        """Return the wish that a sentence states.

        Raises
        ------
        FairbloomError
            When it states none, or names a method that there is not; the message has the grammar.
        """
        try:
            first, *others = split_parts(text) or [""]
        except SettingsError as error:
            raise _refusal(text, "a parenthesis or quotation mark is open at one end") from error
        aim = re.fullmatch(r"(.+?)\s+as\s+(high|low)\s+as\s+possible", first, re.IGNORECASE | re.DOTALL)
        if aim is not None:
            measure, high = _measure(aim[1], text), aim[2].lower() == "high"
        elif LOSES.fullmatch(first):
            measure, high, others = Measure("worst"), None, [first, *others]
        else:
            raise _refusal(text, f"{first!r} is no MEASURE as high|low as possible")
        return cls(text, measure, high, tuple(_constraint(other, text) for other in others))

    def check(self, score: Score) -> None:
        """Raise SettingsError where the wish is for worse service of the clients, by what their score is."""
        good = self.measure.is_good_high(score)
        if self.high in (good, None):
            return
        better, other = ("higher", "high") if good else ("lower", "low")
        of_what = f"{self.measure.title} is a difference," if self.measure.is_difference else f"{score.name} is"
        raise SettingsError(
            f"wish = {self.text!r} wishes the clients worse service: {of_what} better when it is {better}: write "
            f"{self.measure.title} as {other} as possible"
        )

    def check_groups(self, scores: Collection[GroupScore]) -> None:
        """Raise SettingsError where a gap is between groups that the task has not, or in a score they do not have.

        `scores` is what clients measure in each group, nothing where there are none.
        """
        there = [each.name for each in scores]
        for gap in self.gap_scores:
            if not there:
                raise SettingsError(
                    f"wish = {self.text!r} is about {GAP}{gap}, and the task has no groups of examples: name a column "
                    f"{NAMING}"
                )
            if gap not in there:
                hint = did_you_mean(gap, there)
                raise SettingsError(
                    f"wish = {self.text!r}: groups have no score {gap}: {hint}write {GAP}SCORE with one of "
                    f"{', '.join(there)}"
                )

    def is_reported(self, served: Served) -> bool:
        """Return whether enough examples stand behind all gaps that the wish names."""
        return all(each.is_reported(served) for each in self._measures)

    def measured_in(self, score: Score, in_groups: Collection[GroupScore]) -> Score:
        """Return what the measure is in: the clients' score, or that of groups whose gap it is."""
        return next((each for each in in_groups if self.measure.name == f"{GAP}{each.name}"), score)

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that the wish names."""
        return tuple(measure.client for measure in self._measures if measure.client)

    @property
    def gap_scores(self) -> tuple[str, ...]:
        """The scores whose gaps between groups the wish names, each once."""
        gaps = [measure.name.removeprefix(GAP) for measure in self._measures if measure.between_groups]
        return tuple(dict.fromkeys(gaps))

    @property
    def _measures(self) -> tuple[Measure, ...]:
        return (self.measure, *(each.measure for each in self.constraints))


def _constraint(clause: str, text: str) -> Constraint:
    if losing := LOSES.fullmatch(clause):
        method = _method(losing[2]) if losing[2] else None
        return Constraint(Measure(EACH_CLIENT), _points(losing[1], text), method)
    match = re.fullmatch(
        r"(.+?)\s+(?:within\s+(\S+)\s+points?\s+of\s+(\S.*)|at\s+most\s+(\S+)\s+points?)",
        clause,
        re.IGNORECASE | re.DOTALL,
    )
    if match is None:
        raise _refusal(
            text,
            f"{clause!r} is neither a MEASURE within N points of METHOD, a DIFFERENCE at most N points, nor no client "
            "loses more than N points",
        )
    measure, points = _measure(match[1], text), _points(match[2] or match[4], text)
    if match[4] and not measure.is_difference:
        raise _refusal(text, f"{measure.title} is no DIFFERENCE, which alone is at most N points")
    return Constraint(measure, points, _method(match[3]) if match[3] else None)


def _points(text: str, wish: str) -> float:
    if not re.fullmatch(r"\d+\.?\d*|\.\d+", text, re.ASCII):
        raise _refusal(wish, f"{text!r} is no number of points, such as 1 or 0.5")
    return float(text)


def _method(text: str) -> Variant:
    found: Sequence[Variant] = variants(text)
    return found[0]


def _measure(text: str, wish: str) -> Measure:
    words = text.split(maxsplit=1)
    if words[0].lower() == "client" and len(words) == 2:
        return Measure("client", _unquoted(words[1]))
    if gap := re.fullmatch(rf"({GAP}[a-z0-9-]+)(?::(.+))?", text, re.IGNORECASE | re.DOTALL):
        return Measure(gap[1].lower(), _unquoted(gap[2] or ""))
    if text.lower() in (*LEVELS, *SPREADS):
        return Measure(text.lower())
    raise _refusal(wish, f"there is no measure {text!r}")


def _unquoted(name: str) -> str:
    quoted = re.fullmatch(r"([\"'])(.+)\1", name, re.DOTALL)
    return quoted[2] if quoted else name


def _refusal(text: str, fault: str) -> SettingsError:
    return SettingsError(f"wish = {text!r}: {fault}: write {GRAMMAR}; for example {EXAMPLE!r}")
