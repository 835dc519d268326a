"""A search: arms compared on validation examples, and the best of each method tested."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, join_names
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.server.run_folder.files import CLIENTS, ROUNDS
from fairbloom.strategies.named import title
from fairbloom.text import text_if

from ..arms import Arm
from ..study import Study
from .comparison import Comparison, read_comparison
from .measures import ClientScores, Measure, find_measure
from .presentation import Shown
from .run import OpenedRuns, Run

# The fewest test examples of a client that has a part in the choice: with the default shares, it
# has at least 20 examples in all, three of them for validation.
JUDGED_FROM = 4

# How arms are judged ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArmScore:
    """The value of an arm by a measure, over the seeds that judge it."""

    arm: Arm
    values: Sequence[float] = ()  # the measure by seed; empty if it cannot be chosen
    means: Sequence[float] = ()  # the mean over the clients by seed
    # why it cannot be chosen although its runs are finished, or which run failed
    fault: str = ""

    @property
    def mean(self) -> float:
        """The mean of the measure over the seeds."""
        return statistics.fmean(self.values)

    @property
    def error(self) -> float | None:
        """The standard error of `mean`; None with fewer than two seeds."""
        count = len(self.values)
        return statistics.stdev(self.values) / math.sqrt(count) if count > 1 else None


def judge_arms(
    measure: Measure, arms: Sequence[Arm], runs: Sequence[Sequence[Run | None]]
) -> list[ArmScore]:
    """Return the value of arms by a measure on validation examples; `runs` has one a seed for each.

    An arm cannot be chosen if a run is missing, or a client's score that others have. Test examples
    are used only if a run sets no validation examples apart, as in recipes of papers that mention
    none.
    """
    served = list[tuple[list[ClientScores], str]]()
    for arm, by_seed in zip(arms, runs, strict=True):
        try:
            of_arm = [read_scores(run, arm.evaluated) for run in by_seed if run is not None]
            served.append((of_arm if len(of_arm) == len(by_seed) else [], ""))
        except FairbloomError as error:
            served.append(([], str(error)))
    wanted = [
        set[str]().union(*(scores.values for scores in of_seed))
        for of_seed in zip(*(of_arm for of_arm, _ in served if of_arm), strict=True)
    ]
    compute_mean = find_measure("mean").of
    judged = []
    for arm, (mine, fault) in zip(arms, served, strict=True):
        values = [measure.of(scores) for scores in mine]
        fault = fault or _find_fault(measure, values, mine, wanted)
        means = [compute_mean(scores) for scores in mine]
        judged.append(ArmScore(arm, fault=fault) if fault else ArmScore(arm, values, means))
    return judged


def _find_fault(
    measure: Measure,
    values: Sequence[float],
    served: Sequence[ClientScores],
    wanted: Sequence[set[str]],
) -> str:
    """Return why an arm cannot be chosen, "" if it can; `wanted` has the clients of each seed."""
    lacking = {
        client
        for scores, clients in zip(served, wanted, strict=False)
        for client in clients.difference(scores.values)
    }
    if lacking:
        return (
            f"it lacks the validation {served[0].score.words} of {join_names(sorted(lacking))},"
            f" which others have: see what was refused or missing in {ROUNDS.name} of its runs"
        )
    return text_if(
        not all(map(math.isfinite, values)),
        f"there is no {measure.name} of so few validation examples",
    )


def read_scores(run: Run, evaluated: str) -> ClientScores:
    """Return a run's scores on validation examples, or on test examples if it has no others."""
    apart = run.of_app or float(run.settings.get("validation-share", 0.0)) > 0.0
    split = "validation" if apart else "test"
    model = run.serves if evaluated == "global" else evaluated
    scores = run.final(model=model, split=split)
    if not scores:
        of_models = text_if(model == "personal", " of personal models")
        raise FairbloomError(
            f"{CLIENTS.path_in(run.folder)} has no {split} {run.score.words}{of_models}: give"
            " clients more examples, so that validation-share leaves each of them some, or set"
            " validation-share = 0 where a recipe has it"
        )
    few = few_examples(run)
    judged = {client: score for client, score in scores.items() if client not in few}
    return ClientScores(judged or scores, run.score, groups=run.by_group(model, split))


def few_examples(run: Run) -> set[str]:
    """Return the clients with too few examples for a part in the choice, if others have one."""
    return {client for client, count in run.test_examples().items() if count < JUDGED_FROM}


def choose(measure: Measure, score: Score, among: Sequence[ArmScore]) -> ArmScore | None:
    """Return the best of the arms that can be chosen, the first of equals; None without any."""
    return max(
        (arm_score for arm_score in among if arm_score.values),
        key=lambda arm_score: measure.better(arm_score.mean, 0.0, score),
        default=None,
    )


def near_best_mean(
    score: Score, judged: Sequence[ArmScore], within: float | None
) -> list[ArmScore]:
    """Return the arms that can be chosen, without those with a mean too far from the best one.

    `within` is by how much an arm's mean over the clients may be worse than the best one of all
    arms, in the score's unit; None: by any number.
    """
    arms = [arm_score for arm_score in judged if arm_score.values]
    if within is None or not arms:
        return arms
    means = [statistics.fmean(arm_score.means) for arm_score in arms]
    best = max(means) if score.higher_is_better else min(means)
    return [
        arm_score
        for arm_score, mean in zip(arms, means, strict=True)
        if score.better(best, mean) <= within
    ]


# The outcome --------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Search(Shown):
    """The outcome of a search.

    Attributes
    ----------
    study
        The arms and seeds that were searched.
    judged
        Each arm's value by the criterion on validation examples.
    score
        The score that fairness is measured in.
    comparison
        The best arm of each method on the test examples of fresh seeds; None while runs are
        missing.
    folder
        The folder of tables, figure and runs.
    notes
        Sentences on the limits of the search.
    """

    study: Study
    judged: Sequence[ArmScore]
    score: Score
    comparison: Comparison | None = None
    folder: Path = field(default_factory=Path)
    notes: tuple[str, ...] = ()

    @property
    def measure(self) -> Measure:
        """The criterion."""
        return find_measure(self.study.criterion)

    @property
    def near(self) -> list[ArmScore]:
        """The arms with a mean that `mean_within` allows."""
        return near_best_mean(self.score, self.judged, self.study.mean_within)

    @property
    def bound(self) -> str:
        """The words for `mean_within`, "" without it."""
        if self.study.mean_within is None:
            return ""
        return f"a mean within {self.study.mean_within:g} {self.score.unit} of the best"

    @property
    def too_far(self) -> tuple[str, ...]:
        """In a sentence the methods without an arm that `mean_within` allows."""
        judged = {arm_score.arm.method for arm_score in self.judged if arm_score.values}
        methods = judged.difference(arm_score.arm.method for arm_score in self.near)
        if not methods:
            return ()
        names = join_names(sorted(map(title, methods)))
        base = self.study.baseline
        still = text_if(base in methods, f"; {title(base)} is tested as the baseline")
        return (f"No arm of {names} has {self.bound}{still}.",)

    @property
    def title(self) -> str:
        """The words for the criterion."""
        return self.measure.title(self.comparison.client_count if self.comparison else 0)

    @property
    def best(self) -> str:
        """The label of the best arm on validation examples, "" before the choice."""
        return next(iter(self.study.found.best), "")

    @property
    def baseline(self) -> str:
        """The label of the arm that the others are compared with, "" before the choice."""
        methods = {arm.label: arm.method for arm in self.study.arms}
        return next(
            (label for label in self.study.found.best if methods[label] == self.study.baseline), ""
        )

    def of(self, label: str) -> ArmScore:
        """Return the value of an arm."""
        return next(arm_score for arm_score in self.judged if arm_score.arm.label == label)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Which arm is best, what the comparison on test examples found, and the notes."""
        if not self.best:
            return ("Nothing is chosen yet: the same command continues.", *self.notes)
        among = text_if(self.bound, f", of the arms with {self.bound}")
        sentence = f"{self.best} is best by the {self.title} on validation examples{among}"
        if self.comparison is None:
            return (f"{sentence}: it is not tested yet.", *self.too_far, *self.notes)
        return (
            f"{sentence}.",
            f"On the test examples of {len(self.study.found.fresh)} fresh seeds:"
            f" {self.comparison.verdict.headline}",
            *self.comparison.verdict.sentences,
            *self.too_far,
            *self.notes,
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """The output of --json, with each arm's validation value and the comparison."""
        return {
            "criterion": self.study.criterion,
            "mean_within": self.study.mean_within,
            "best": self.best,
            "baseline": self.baseline,
            "fresh": list(self.study.found.fresh),
            "sentences": list(self.sentences),
            "arms": [
                {
                    "arm": judged.arm.label,
                    "method": judged.arm.method,
                    "settings": dict(judged.arm.settings),
                    "validation": judged.mean if judged.values else None,
                    "mean": statistics.fmean(judged.means) if judged.means else None,
                    "error": judged.error,
                    "chosen": judged.arm.label in self.study.found.best,
                    "fault": judged.fault,
                }
                for judged in self.judged
            ],
            "comparison": None if self.comparison is None else self.comparison.as_json,
            "folder": str(self.folder),
        }


def read_search(folder: Path, study: Study) -> Search:
    """Return a search from the runs that are finished."""
    opened = OpenedRuns(study, folder)
    runs = [[opened.get(arm, seed) for seed in study.seeds] for arm in study.arms]
    judged = [
        ArmScore(each.arm, fault=next(iter(failed.values())))
        if (failed := study.failures(each.arm))
        else each
        for each in judge_arms(find_measure(study.criterion), study.arms, runs)
    ]
    first = next((run for by_seed in runs for run in by_seed if run is not None), None)
    if first is None:
        return Search(study, judged, ACCURACY, folder=folder)
    search = Search(study, judged, first.score, None, folder, _notes(first))
    tested = study.of(study.found.best, study.found.fresh)
    if not search.best or tested.unfinished(folder):
        return search
    return replace(
        search,
        comparison=read_comparison(
            folder, replace(tested, kind="compare", baseline=search.baseline)
        ),
    )


def _notes(first: Run) -> tuple[str, ...]:
    """Return the limits of a search: the clients that have no part in the choice."""
    notes = []
    if lacking := sorted({*first.final()} - {*first.final(split="validation")}):
        notes.append(
            f"Without a validation {first.score.words}, and so without a part in the choice:"
            f" {', '.join(lacking)}. Give more examples, or raise validation-share."
        )
    few = few_examples(first)
    if few and len(few) < len(first.test_examples()):
        notes.append(
            f"Tested, but without a part in the choice, because they have fewer than {JUDGED_FROM}"
            f" test examples: {join_names(sorted(few))}."
        )
    return tuple(notes)
