"""A search: arms judged on validation examples, and the best of each method tested with fresh seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.server.run_folder.files import CLIENTS, ROUNDS

from ..arms import Arm
from ..study import SearchOutcome, Study
from .comparison import Comparison, read_comparison
from .differences import Difference
from .measures import ClientScores, Measure, find_measure
from .presentation import Shown
from .run import OpenedRuns, Run

NAMED = 3
"""Of at most so many arms that failed a sentence says why."""

# How arms are judged ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArmScore:
    """What an arm is worth by a measure, over the seeds by which it is judged."""

    arm: Arm
    values: Sequence[float] = ()  # the measure by seed; empty where it cannot be chosen
    means: Sequence[float] = ()  # the mean over the clients by seed
    # why it cannot be chosen though its runs are finished, or which of them failed; "" where it can
    fault: str = ""

    @property
    def mean(self) -> float:
        """The mean of the measure over the seeds."""
        return statistics.fmean(self.values)

    @property
    def error(self) -> float | None:
        """The standard error of `mean`; None with one seed."""
        count = len(self.values)
        return statistics.stdev(self.values) / math.sqrt(count) if count > 1 else None


def judge_arms(
    measure: Measure, arms: Sequence[Arm], runs: Sequence[Sequence[Run | None]]
) -> list[ArmScore]:
    """Return what arms are worth by a measure on validation examples.

    `runs` has those of each arm, one a seed.

    An arm that lacks a run, or the score of a client that others have, cannot be chosen. Test
    examples are read only of runs that set no validation examples apart, as recipes of papers do
    that say no more.
    """
    served = list[list[ClientScores]]()
    faults = list[str]()
    for arm, by_seed in zip(arms, runs, strict=True):
        try:
            served.append([serve(run, arm.evaluated) for run in by_seed if run is not None])
            faults.append("")
        except FairbloomError as error:
            served.append([])
            faults.append(str(error))
        if len(served[-1]) < len(by_seed):
            served[-1] = []
    wanted = [
        set[str]().union(*(each.values for each in of))
        for of in zip(*filter(None, served), strict=True)
    ]
    judged = []
    for arm, mine, fault in zip(arms, served, faults, strict=True):
        values = [measure.of(each) for each in mine]
        lacking = {
            name
            for each, names in zip(mine, wanted, strict=False)
            for name in names.difference(each.values)
        }
        if lacking:
            what = (
                f"the validation {mine[0].score.words} of {', '.join(sorted(lacking))}, which"
                " others have"
            )
            fault = f"it lacks {what}: see what was refused or missing in {ROUNDS.name} of its runs"
        elif not all(map(math.isfinite, values)):
            fault = f"there is no {measure.name} of so few validation examples"
        mean = find_measure("mean").of
        judged.append(
            ArmScore(arm, fault=fault)
            if fault
            else ArmScore(arm, values, [mean(each) for each in mine])
        )
    return judged


def serve(run: Run, evaluated: str) -> ClientScores:
    """Return how a run serves its clients on validation examples, or on test examples where it set none apart."""
    tests = not float(run.settings.get("validation-share", 0.0)) > 0.0
    model = run.serves if evaluated == "global" else evaluated
    split = "test" if tests else "validation"
    scores = run.final(model=model, split=split, hostile=tests)
    if not scores:
        of_which = " of personal models" if model == "personal" else ""
        raise FairbloomError(
            f"{CLIENTS.path_in(run.folder)} has no {split} {run.score.words}{of_which}: give"
            " clients more examples, so that validation-share leaves each of them some, or set"
            " validation-share = 0 where a recipe has it"
        )
    return ClientScores(scores, run.score, groups=run.by_group(model, split))


def choose(
    measure: Measure,
    score: Score,
    among: Sequence[ArmScore],
    within: float | None = None,
    base: ArmScore | None = None,
) -> ArmScore | None:
    """Return the best of the arms that can be chosen, of equals the first.

    None where there is none.

    With `within`, the mean over the clients may be at most so many points below that of `base`.
    """
    best: ArmScore | None = None
    for each in (each for each in among if each.values):
        if within is not None and base is not None:
            lost = score.better(statistics.fmean(base.means), statistics.fmean(each.means))
            if lost > within:
                continue
        if best is None or measure.better(each.mean, best.mean, score) > 0.0:
            best = each
    return best


# What was found -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Search(Shown):
    """What a search has found.

    Attributes
    ----------
    study
        What was searched.
    judged
        What each arm is worth by the criterion on validation examples.
    score
        The score that fairness is measured in.
    comparison
        The best arm of each method on the test examples of fresh seeds; None while runs are
        missing.
    folder
        Where tables, figure and runs lie.
    notes
        What limits the search, in sentences.
    """

    study: Study
    judged: Sequence[ArmScore]
    score: Score
    comparison: Comparison | None = None
    folder: Path = field(default_factory=Path)
    notes: tuple[str, ...] = ()

    @property
    def found(self) -> SearchOutcome:
        """Which arms were chosen, by which seeds, and with which they are tested; empty before."""
        return self.study.found or SearchOutcome()

    @property
    def measure(self) -> Measure:
        """The criterion."""
        return find_measure(self.study.criterion)

    @property
    def best(self) -> str:
        """The label of the arm that is best on validation examples.

        "" before anything was chosen.
        """
        return next(iter(self.found.best), "")

    @property
    def baseline(self) -> str:
        """The label of the arm that the others are compared with; "" before anything was chosen."""
        if self.study.reference and self.best:
            return self.study.reference.label
        methods = {arm.label: arm.method for arm in self.study.arms}
        return next(
            (label for label in self.found.best if methods[label] == self.study.baseline), ""
        )

    def of(self, label: str) -> ArmScore:
        """Return what an arm is worth."""
        return next(each for each in self.judged if each.arm.label == label)

    def promise(self, label: str) -> float:
        """Return by how much better than the baseline an arm is on validation examples."""
        return self.measure.better(self.of(label).mean, self.of(self.baseline).mean, self.score)

    def tested(self, label: str) -> str:
        """Return what the comparison calls an arm: its personal models where these are judged."""
        personal = self.comparison.personal_row(label) if self.comparison else ""
        return personal if personal and self.of(label).arm.evaluated == "personal" else label

    def difference(self, label: str) -> Difference | None:
        """Return by how much better than the baseline an arm is on test examples.

        None where it was not tested.
        """
        method = self.tested(label)
        if (
            self.comparison is None
            or method not in self.comparison.methods
            or method == self.comparison.baseline
        ):
            return None
        return self.comparison.differences(self.measure.name)[method]

    @property
    def sentences(self) -> tuple[str, ...]:
        """Which arm is best, and what it gains, and what limits that."""
        if not self.best:
            return ("Nothing is chosen yet: the same command continues.", *self.notes)
        measure = self.measure
        title = measure.title(self.comparison.client_count if self.comparison else 0)
        said = f"{self.best} is best by the {title} on validation examples"
        if (found := self.difference(self.best)) is None:
            return (
                f"{said}{'' if self.best == self.baseline else ': it is not tested yet'}.",
                *self.notes,
            )
        unit = f" {self.score.unit}" if measure.unit and self.score.unit else ""
        differs = "does not clearly differ from"
        if found.low > 0.0 or found.high < 0.0:
            verb = "loses" if found.mean < 0.0 else "gains"
            interval = f"({found.low:+.3g} to {found.high:+.3g})"
            differs = f"{verb} {abs(found.mean):.3g}{unit} {interval} against"
        said += (
            f"; on the test examples of {len(self.found.fresh)} fresh seeds it {differs}"
            f" {self.baseline}"
        )
        return (
            f"{said}, where validation had promised {self.promise(self.best):+.3g}{unit}.",
            *self.notes,
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """What --json prints: of each arm what it is worth on validation examples, and what it gains on test ones."""
        arms = []
        for each in self.judged:
            label = each.arm.label
            worth = each if each.values else None
            chosen = label in self.found.best
            found = self.difference(label) if chosen else None
            about: dict[str, Any] = {
                "arm": label,
                "method": each.arm.method,
                "settings": dict(each.arm.settings),
            }
            about |= {
                "validation": worth and worth.mean,
                "error": worth and worth.error,
                "chosen": chosen,
            }
            about |= {
                "promised": self.promise(label) if chosen else None,
                "gained": found and found.mean,
            }
            arms.append(about | {"fault": each.fault})
        return {
            "criterion": self.study.criterion,
            "best": self.best,
            "baseline": self.baseline,
            "judged": list(self.found.judged),
            "fresh": list(self.found.fresh),
            "sentences": list(self.sentences),
            "arms": arms,
            "comparison": None if self.comparison is None else self.comparison.as_json,
            "folder": str(self.folder),
        }

    def __repr__(self) -> str:
        """Return the search in a line."""
        best = f"best {self.best}" if self.best else "nothing chosen"
        return f"Search({str(self.folder)!r}: {len(self.judged)} arms, {best})"


def read_search(folder: Path, study: Study) -> Search:
    """Return a search from the runs that are finished."""
    found = study.found or SearchOutcome(study.seeds)
    opened = OpenedRuns(study, folder)
    runs = [[opened.get(arm, seed) for seed in found.judged] for arm in study.arms]
    judged = [
        ArmScore(arm, fault=next(iter(failed.values())))
        if (failed := study.failures(arm))
        else each
        for arm, each in zip(
            study.arms, judge_arms(find_measure(study.criterion), study.arms, runs), strict=True
        )
    ]
    first = next((run for by_seed in runs for run in by_seed if run is not None), None)
    if first is None:
        return Search(study, judged, ACCURACY, folder=folder)
    # What limits it: seeds that time did not allow, arms that failed, clients that had no part in
    # the choice.
    notes = []
    if study.found and len(found.judged) < len(study.seeds):
        notes.append(
            f"Judged by {len(found.judged)} of {len(study.seeds)} seeds, begun in {study.minutes:g}"
            " minutes: the same command goes on."
        )
    failing = [each for each in judged if each.fault]
    notes += [f"{each.arm.label} was not judged: {each.fault}." for each in failing[:NAMED]]
    if len(failing) > NAMED:
        notes.append(
            f"{len(failing) - NAMED} more arms were not judged; the table of the report says why."
        )
    if lacking := sorted({*first.final()} - {*first.final(split="validation")}):
        notes.append(
            f"Without a validation {first.score.words}, and so without a part in the choice:"
            f" {', '.join(lacking)}. Give more examples, or raise validation-share."
        )
    search = Search(study, judged, first.score, None, folder, tuple(notes))
    tested = study.of(found.best, found.fresh)
    if not search.best or tested.unfinished(folder):
        return search
    plan = replace(tested, kind="compare", baseline=search.baseline)
    return replace(search, comparison=read_comparison(folder, plan))
