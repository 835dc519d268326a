"""An objective: what is to be as good as possible for the clients, and what that may not cost.

`fairbloom recommend` calls it a wish; sweeps and recipes call it a criterion. It is judged on validation examples. Test
examples are read only of runs that set no validation examples apart, as recipes of papers do that say no more.
"""

import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.scores import GroupScore, Score
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.fairness import SHARES
from fairbloom.server.run_folder.files import CLIENTS, ROUNDS
from fairbloom.tasks.groups import NAMING

from ..recipes.variants import Variant, split_parts, variants
from ..results.comparison import Comparison, personal_label
from ..results.groups import GroupReport
from ..results.measures import GAP
from ..results.outcome import scores_of
from ..results.run import Run, measures

LEVELS = ("mean", "worst", *(f"{end}-{share}" for end in ("worst", "best") for share in SHARES))
"""Measures that are as good as the score itself."""

SPREADS = ("std", "gap")
"""Measures of how much clients differ, which are good when they are low."""

GRAMMAR = (
    "GOAL[, CONSTRAINT]...; a GOAL is MEASURE, MEASURE as high|low as possible, or the weighted mean, such as "
    "mean+worst or 3*mean+worst, of several; a CONSTRAINT is MEASURE within N points of METHOD, DIFFERENCE at most N "
    "points, or no client loses more than N points [against METHOD], which needs no GOAL; a MEASURE is "
    f"{', '.join((*LEVELS, *SPREADS))}, client NAME or group-gap:SCORE[:NAME]; a DIFFERENCE is "
    f"{', '.join(SPREADS)} or group-gap:SCORE[:NAME]"
)
"""What an objective may be."""

EXAMPLE = "worst as high as possible, mean within 1 point of FedAvg"

LOSES = re.compile(
    r"no\s+\S+\s+loses\s+more\s+than\s+(\S+)\s+points?(?:\s+against\s+(\S.*))?", re.IGNORECASE | re.DOTALL
)
"""What no client, or hospital or site, is to lose: points, and the method against which they are counted."""

Key = TypeVar("Key")


# How clients are served -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientScores:
    """The score of each client under a model, and what the clients report of groups; None where there are none."""

    scores: Mapping[str, float]
    groups: GroupReport | None = None

    @classmethod
    def under(cls, comparison: Comparison, label: str) -> "list[ClientScores]":
        """Return how a method serves the clients in a comparison, seed by seed, by its personal models if any."""
        method = served_label(comparison, label)
        reports = comparison.by_group.get(method, [None] * len(comparison.seeds))
        return [cls(scores, groups) for scores, groups in zip(comparison.values[method], reports, strict=True)]

    @classmethod
    def by(cls, run: Run, evaluated: str, after: int | None, with_groups: bool) -> "ClientScores":
        """Return how a run serves the clients; raise FairbloomError where none of them has a score."""
        model, split = model_of(run, evaluated), "validation"
        if float(run.settings.get("validation-share", 0.0)) > 0.0:
            scores = run.final(model=model, split=split, after=after)
        else:
            scores, split = scores_of(run, evaluated), "test"
        if not scores:
            of_which = " of personal models" if model == "personal" else ""
            raise FairbloomError(
                f"{CLIENTS.path_in(run.folder)} has no validation {run.score.name}{of_which}: give clients more "
                "examples, so that validation-share leaves each of them some, or set validation-share = 0 where a "
                "recipe has it"
            )
        return cls(scores, run.by_group(model, split, after=after) if with_groups else None)


def serve(
    runs: Sequence[Run | None], evaluated: str, after: int | None, *, with_groups: bool
) -> list[ClientScores] | str:
    """Return how runs, one a seed, serve the clients; [] where a run is missing, and a text why one has no score.

    `evaluated` is "global", or "personal" for personal models; `after` is a round, None for the last one.
    """
    finished = [run for run in runs if run is not None]
    if len(finished) < len(runs):
        return []
    try:
        return [ClientScores.by(run, evaluated, after, with_groups) for run in finished]
    except FairbloomError as error:
        return str(error)


def model_of(run: Run, evaluated: str) -> str:
    """Return which model of a run is judged: "personal" also where the method trains no other one."""
    return run.serves if evaluated == "global" else evaluated


def served_label(comparison: Comparison, label: str) -> str:
    """Return what a comparison calls the models that serve the clients of a method: its personal models, if any."""
    personal = personal_label(label)
    return personal if personal in comparison.personal else label


# What is stated -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A measure over the clients, the score of one client, or a gap between groups."""

    name: str  # one of LEVELS and SPREADS, "client", or "group-gap:SCORE"
    client: str = ""  # "" for all clients

    @property
    def title(self) -> str:
        """What an objective calls it: `worst-10`, `client site-a`, `gap:selection-rate:site-a`."""
        return f"{self.name}{':' if self.gap_score else ' '}{self.client}" if self.client else self.name

    @property
    def gap_score(self) -> str:
        """The score whose gap between groups it is; "" for other measures."""
        return self.name.removeprefix(GAP) if self.name.startswith(GAP) else ""

    @property
    def is_difference(self) -> bool:
        """Whether it says how unequal clients or groups are, so that a lower number is better whatever the score."""
        return self.name in SPREADS or bool(self.gap_score)

    def of(self, served: ClientScores, score: Score) -> float:
        """Return the measure; raise FairbloomError where a client or a gap has too few examples for it."""
        if self.gap_score and not self.is_reported(served):
            who = f"client {self.client} reports" if self.client else "the clients report"
            raise FairbloomError(
                f"the wish is about {self.title}, and {who} the {self.gap_score} of fewer than two groups, as they "
                "have too few test or validation examples: raise test-share and validation-share, lower "
                "smallest-group, or give clients more examples"
            )
        if self.gap_score:
            return self._gaps(served)[self.gap_score]
        if self.client and self.client not in served.scores:
            raise FairbloomError(
                f"the wish is about {self.title}, which has no {score.name}, as an AUC over a single class is none: "
                "give it more examples, or wish for another measure"
            )
        if self.client:
            return served.scores[self.client]
        if self.name == "mean":  # exact, so that candidates with the same scores in another order tie
            return statistics.fmean(served.scores.values())
        return measures(served.scores, score)[self.name.replace("-", "_")]

    def is_reported(self, served: ClientScores) -> bool:
        """Return whether enough examples stand behind a gap; of other measures it is always so."""
        return not self.gap_score or self.gap_score in self._gaps(served)

    def _gaps(self, served: ClientScores) -> Mapping[str, float]:
        return served.groups.sizes(self.client) if served.groups else {}

    def is_good_high(self, score: Score) -> bool:
        """Return whether a higher number is better for the clients."""
        return not self.is_difference and score.higher_is_better

    def better(self, value: float, than: float, score: Score) -> float:
        """Return by how much a number is better than another; negative where it is worse."""
        return value - than if self.is_good_high(score) else than - value


@dataclass(frozen=True)
class Goal:
    """A measure, or the weighted mean of several: `3*mean+worst`. The shares of `weights` sum to one."""

    title: str
    weights: Mapping[Measure, float]

    @property
    def first(self) -> Measure:
        """The first measure; a higher number of all of them is better, or of none."""
        return next(iter(self.weights))

    @property
    def heading(self) -> str:
        """What tables call it: `mean`, `worst client`, `0.75 mean + 0.25 worst 10 %`."""
        names = {measure: _heading(measure) for measure in self.weights}
        if len(names) == 1:
            return names[self.first]
        return " + ".join(f"{share:.3g} {names[measure]}" for measure, share in self.weights.items())

    def of(self, served: ClientScores, score: Score) -> float:
        """Return it of how a model serves the clients; raises as `Measure.of` does."""
        return sum(share * measure.of(served, score) for measure, share in self.weights.items())


@dataclass(frozen=True)
class Constraint:
    """The most points of a measure that the goal may cost."""

    measure: Measure | None  # None: the score of each client, against the method or the baseline
    points: float
    method: Variant | None = None  # None: the points bound the measure itself

    @property
    def compares(self) -> bool:
        """Whether it is against another method."""
        return self.method is not None or self.measure is None

    def excess(self, by_seed: Sequence[ClientScores], reference: Sequence[ClientScores], score: Score) -> float:
        """Return by how much more than it may cost a method costs against a reference, in the mean over the seeds."""
        if self.measure is None:
            return max(_losses(by_seed, reference, score).values()) - self.points
        costs = [self.measure.of(mine, score) for mine in by_seed]
        if self.method is not None:
            bases = [self.measure.of(theirs, score) for theirs in reference]
            costs = [self.measure.better(base, mine, score) for base, mine in zip(bases, costs, strict=True)]
        return statistics.fmean(costs) - self.points


def _losses(by_seed: Sequence[ClientScores], reference: Sequence[ClientScores], score: Score) -> dict[str, float]:
    """Return by how much each client is worse off, in the mean over the seeds that have its score."""
    losses: dict[str, list[float]] = {}
    for mine, theirs in zip(by_seed, reference, strict=True):
        for client in mine.scores.keys() & theirs.scores.keys():
            losses.setdefault(client, []).append(score.better(theirs.scores[client], mine.scores[client]))
    return {client: statistics.fmean(each) for client, each in losses.items()}


@dataclass(frozen=True)
class Objective:
    """A goal and its constraints."""

    text: str  # as written
    goal: Goal
    high: bool | None  # whether the text says high, not low; None: neither
    constraints: tuple[Constraint, ...]
    called: str  # in errors: "wish" or "criterion"

    @classmethod
    def of(cls, text: str, called: str = "wish") -> "Objective":
        """Return the objective that a text states; errors have the grammar."""
        try:
            first, *others = split_parts(text) or [""]
            aim = re.fullmatch(r"(.+?)\s+as\s+(high|low)\s+as\s+possible", first, re.IGNORECASE | re.DOTALL)
            if LOSES.fullmatch(first):
                goal, others = _goal("worst"), [first, *others]
            else:
                goal = _goal(aim[1] if aim else first)
            constraints = tuple(map(_constraint, others))
        except SettingsError as error:
            fault = f"{error}{'' if str(error).endswith('?') else ':'}"
            raise SettingsError(f"{called} = {text!r}: {fault} write {GRAMMAR}; for example {EXAMPLE!r}") from error
        return cls(text, goal, aim and aim[2].lower() == "high", constraints, called)

    def check(self, score: Score, clients: Collection[str], groups: Collection[GroupScore]) -> None:
        """Raise SettingsError where it asks for worse service, or names what a task's clients or groups do not have."""
        about, goal, there = f"{self.called} = {self.text!r}", self.goal, [each.name for each in groups]
        good = goal.first.is_good_high(score)
        if self.high not in (good, None):
            better, other = ("higher", "high") if good else ("lower", "low")
            of_what = f"{goal.title} is a difference," if goal.first.is_difference else f"{score.name} is"
            raise SettingsError(
                f"{about} asks for worse service of the clients: {of_what} better when it is {better}: write "
                f"{goal.title} as {other} as possible"
            )
        for gap in self.gap_scores:
            if not there:
                raise SettingsError(
                    f"{about} is about {GAP}{gap}, and the task has no groups of examples: name a column {NAMING}"
                )
            if gap not in there:
                hint = did_you_mean(gap, there)
                raise SettingsError(
                    f"{about}: groups have no score {gap}: {hint}write {GAP}SCORE with one of {', '.join(there)}"
                )
        for name in (each.client for each in self.measures if each.client):
            if name not in clients:
                hint = did_you_mean(name, clients)
                raise SettingsError(f"{about}: there is no client {name!r}: {hint}there are {', '.join(clients)}")

    def is_reported(self, served: ClientScores) -> bool:
        """Return whether enough examples stand behind all gaps that it names."""
        return all(each.is_reported(served) for each in self.measures)

    def measured_in(self, score: Score, in_groups: Collection[GroupScore]) -> Score:
        """Return what the goal is in: the clients' score, or that of groups whose gap it is."""
        return next((each for each in in_groups if self.goal.first.gap_score == each.name), score)

    @property
    def gap_scores(self) -> tuple[str, ...]:
        """The scores whose gaps between groups it names, each once."""
        return tuple(dict.fromkeys(each.gap_score for each in self.measures if each.gap_score))

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All measures that it names."""
        of_constraints = [each.measure for each in self.constraints if each.measure is not None]
        return (*self.goal.weights, *of_constraints)


# How it is read -------------------------------------------------------------------------------------------------------


def _goal(text: str) -> Goal:
    if re.match(rf"client\s|{GAP}", text, re.IGNORECASE) or text.lower() in SPREADS:
        measure = _measure(text)
        return Goal(measure.title, {measure: 1.0})
    weights: dict[Measure, float] = {}
    for term in text.split("+"):
        match = re.fullmatch(r"(?:(\d+\.?\d*|\.\d+)\s*\*)?\s*(.*)", term.strip(), re.DOTALL)
        weight, name = (float(match[1] or 1.0), match[2]) if match else (1.0, term)
        if (measure := _measure(name)).name not in LEVELS:
            raise SettingsError(f"{name!r} cannot be part of a sum, which has {', '.join(LEVELS)} alone")
        if measure in weights:
            raise SettingsError(f"{name} is there twice: give it once, with its weight")
        if weight == 0.0:
            raise SettingsError(f"the weight of {name} is 0: leave it out")
        weights[measure] = weight
    total = sum(weights.values())
    return Goal("".join(text.split()).lower(), {measure: weight / total for measure, weight in weights.items()})


def _constraint(clause: str) -> Constraint:
    if losing := LOSES.fullmatch(clause):
        return Constraint(None, _points(losing[1]), variants(losing[2])[0] if losing[2] else None)
    match = re.fullmatch(
        r"(.+?)\s+(?:within\s+(\S+)\s+points?\s+of\s+(\S.*)|at\s+most\s+(\S+)\s+points?)",
        clause,
        re.IGNORECASE | re.DOTALL,
    )
    if match is None:
        raise SettingsError(f"{clause!r} is no CONSTRAINT")
    measure, points = _measure(match[1]), _points(match[2] or match[4])
    if match[4] and not measure.is_difference:
        raise SettingsError(f"{measure.title} is no DIFFERENCE, which alone is at most N points")
    return Constraint(measure, points, variants(match[3])[0] if match[3] else None)


def _points(text: str) -> float:
    if not re.fullmatch(r"\d+\.?\d*|\.\d+", text, re.ASCII):
        raise SettingsError(f"{text!r} is no number of points, such as 1 or 0.5")
    return float(text)


def _measure(text: str) -> Measure:
    words = text.split(maxsplit=1)
    if len(words) == 2 and words[0].lower() == "client":
        return Measure("client", _unquoted(words[1]))
    if gap := re.fullmatch(rf"({GAP}[a-z0-9-]+)(?::(.+))?", text, re.IGNORECASE | re.DOTALL):
        return Measure(gap[1].lower(), _unquoted(gap[2] or ""))
    name = text.lower().replace("_", "-")
    if name not in (*LEVELS, *SPREADS):
        hint = did_you_mean(name, (*LEVELS, *SPREADS)).strip()
        raise SettingsError(f"there is no measure {text!r}{hint and f': {hint}'}")
    return Measure(name)


def _unquoted(name: str) -> str:
    quoted = re.fullmatch(r"([\"'])(.+)\1", name, re.DOTALL)
    return quoted[2] if quoted else name


def _heading(measure: Measure) -> str:
    if measure.name not in LEVELS:
        return measure.title
    end, _, share = measure.name.partition("-")
    return f"{end} {share} %" if share else "worst client" if end == "worst" else end


MEAN = Objective.of("mean", "criterion")
"""The mean over the clients, by which recipes choose."""


# What candidates are worth --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rating:
    """A candidate's values of the goal and of the constraints."""

    values: Sequence[float] = ()  # the goal by seed; empty where the candidate cannot be chosen
    excesses: Sequence[float] = ()  # of constraints, means over the seeds; 0 or less where kept
    high: bool = True  # whether a higher goal is better
    fault: str = ""  # why a candidate with finished runs cannot be chosen

    @property
    def mean(self) -> float:
        """The mean of the goal over the seeds."""
        return statistics.fmean(self.values)

    @property
    def violation(self) -> float:
        """By how much constraints are missed, all together."""
        return sum(max(0.0, excess) for excess in self.excesses)

    @property
    def merit(self) -> float:
        """What candidates are ordered by: a point by which a constraint is missed counts like one of the goal."""
        return (self.mean if self.high else -self.mean) - self.violation if self.values else -math.inf


def judge(
    objective: Objective,
    candidates: Mapping[Key, Sequence[ClientScores] | str],
    score: Score,
    references: Sequence[Sequence[ClientScores]] = (),
    everyone: Sequence[Collection[str]] = (),
) -> dict[Key, Rating]:
    """Return the rating of each candidate; all have been served with the same seeds.

    `references` has, for each constraint, how its method serves the clients. `everyone` has, by seed, the clients of
    which a candidate must have a score; by default all that some candidate has.
    """
    there = [by_seed for by_seed in candidates.values() if by_seed and not isinstance(by_seed, str)]
    wanted = everyone or [set[str]().union(*(each.scores for each in of_seed)) for of_seed in zip(*there, strict=True)]
    against = references or [[]] * len(objective.constraints)
    return {key: _rating(objective, by_seed, score, against, wanted) for key, by_seed in candidates.items()}


def judge_runs(
    objective: Objective,
    evaluated: Sequence[str],
    runs: Sequence[Sequence[Run | None]],
    reference: Sequence[ClientScores] = (),
) -> list[Rating]:
    """Return the rating of each candidate, whose runs are given by seed; all constraints are against one reference.

    `evaluated` is as in `serve`.
    """
    first = next((run for of_each in runs for run in of_each if run is not None), None)
    if first is None:
        return [Rating() for _ in runs]
    groups = bool(objective.gap_scores)
    pairs = zip(runs, evaluated, strict=True)
    served = {i: serve(of_each, model, None, with_groups=groups) for i, (of_each, model) in enumerate(pairs)}
    return list(judge(objective, served, first.score, [reference] * len(objective.constraints)).values())


def _rating(
    objective: Objective,
    by_seed: Sequence[ClientScores] | str,
    score: Score,
    references: Sequence[Sequence[ClientScores]],
    wanted: Sequence[Collection[str]],
) -> Rating:
    if isinstance(by_seed, str) or not by_seed:
        return Rating(fault=str(by_seed or ""))
    lacking = {client for mine, clients in zip(by_seed, wanted, strict=True) for client in {*clients} - {*mine.scores}}
    if lacking:
        return Rating(
            fault=f"it lacks the validation {score.name} of {', '.join(sorted(lacking))}, which others have: see what "
            f"was refused or missing in {ROUNDS.name} of its runs"
        )
    try:
        values = [objective.goal.of(each, score) for each in by_seed]
        pairs = zip(objective.constraints, references, strict=True)
        excesses = [constraint.excess(by_seed, reference, score) for constraint, reference in pairs]
    except FairbloomError as error:
        return Rating(fault=str(error))
    return Rating(values, excesses, objective.goal.first.is_good_high(score))


def best_first(ratings: Mapping[Key, Rating]) -> list[Key]:
    """Return the candidates in the order of their merit."""
    return sorted(ratings, key=lambda name: -ratings[name].merit)


def choose(ratings: Mapping[Key, Rating]) -> Key | None:
    """Return the best of those that keep all constraints; None where nobody does. Of equals, the first is taken."""
    keeping = {name: each for name, each in ratings.items() if each.values and each.violation == 0.0}
    return next(iter(best_first(keeping)), None)
