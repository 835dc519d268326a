"""By what the best of several candidates is chosen: measures over clients of the score on their validation examples.

This is the one place of the choice: grids of recipes and sweeps go through it. It reads test examples only of runs
that set no validation examples apart, as recipes of papers do that say no more.
"""

import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.fairness import SHARES
from fairbloom.server.run_folder.files import CLIENTS, ROUNDS

from ..results.measured import scores_of
from ..results.run import Run, measures

CHOICES = ("mean", "worst", *(f"worst-{share}" for share in SHARES))
"""The measures that a criterion is made of: over all clients, the worst one, and the worst N %."""

GRAMMAR = (
    f"one of {', '.join(CHOICES)}, or several with + between them, as in mean+worst or 3*mean+worst, of which the "
    "weighted mean is taken"
)
"""What a criterion may be, in words."""


@dataclass(frozen=True)
class Criterion:
    """By what is chosen.

    Attributes
    ----------
    text
        As it was written: `mean+worst`.
    weights
        The measures, by their names in `CHOICES`, with their shares; these sum to one.
    """

    text: str
    weights: Mapping[str, float]

    @classmethod
    def of(cls, text: str) -> "Criterion":
        """Return the criterion that a text states: a measure, or a weighted sum of some.

        Raises
        ------
        SettingsError
            When the text states none; the message names what is wrong, and what would do.
        """
        weights: dict[str, float] = {}
        for term in text.split("+"):
            match = re.fullmatch(r"\s*(?:(\d+\.?\d*|\.\d+)\s*\*)?\s*([a-z][a-z0-9_-]*)\s*", term, re.IGNORECASE)
            if match is None:
                raise SettingsError(f"criterion = {text!r}: {term.strip()!r} is no measure: write {GRAMMAR}")
            measure, weight = match[2].lower().replace("_", "-"), float(match[1] or 1.0)
            if measure not in CHOICES:
                hint = did_you_mean(measure, CHOICES)
                raise SettingsError(f"criterion = {text!r}: there is no measure {match[2]}: {hint}write {GRAMMAR}")
            if measure in weights:
                raise SettingsError(f"criterion = {text!r}: {match[2]} is there twice: give it once, with its weight")
            if weight == 0.0:
                raise SettingsError(f"criterion = {text!r}: the weight of {match[2]} is 0: leave it out")
            weights[measure] = weight
        total = sum(weights.values())
        return cls("".join(text.split()).lower(), {name: weight / total for name, weight in weights.items()})

    @property
    def title(self) -> str:
        """What tables call it: `mean`, `worst client`, `0.75 mean + 0.25 worst 10 %`."""
        names = {name: _title(name) for name in self.weights}
        if len(names) == 1:
            return next(iter(names.values()))
        return " + ".join(f"{weight:.3g} {names[name]}" for name, weight in self.weights.items())

    def measure(self, values: Mapping[str, float], run: Run) -> float:
        """Return it of the score of each client, in the unit of the score."""
        # The exact mean is the same for the same scores in any order, so that such candidates tie.
        found = {**measures(values, run.score), "mean": statistics.fmean(values.values())}
        return sum(weight * found[name.replace("-", "_")] for name, weight in self.weights.items())


def _title(measure: str) -> str:
    name, _, share = measure.partition("-")
    return f"{name} {share} %" if share else {"worst": "worst client"}.get(name, name)


MEAN = Criterion.of("mean")
"""The mean over the clients, by which recipes choose."""


@dataclass(frozen=True)
class Judgement:
    """What a candidate is worth.

    Attributes
    ----------
    values
        The criterion with each seed, in the unit of the score; empty where the candidate cannot be chosen.
    quality
        By what candidates are ordered, higher is better; minus infinity where it cannot be chosen.
    fault
        Why a candidate whose runs are all finished cannot be chosen; "" where it can, or runs are missing.
    """

    values: Sequence[float] = ()
    quality: float = -math.inf
    fault: str = ""


def judge(
    criterion: Criterion,
    candidates: Sequence[Sequence[Run | None]],
    evaluated: Sequence[str] = (),
    after: int | None = None,
) -> list[Judgement]:
    """Return what each candidate is worth.

    Parameters
    ----------
    criterion
        By what is chosen.
    candidates
        The runs of each, one a seed and all with the same seeds; None stands for one that is not finished or failed.
    evaluated
        Which model of each is judged, "global", or "personal" for personal models; () for the global models of all.
    after
        The round after which the model is judged, or the last evaluated before it; None for the last of all.
    """
    models = evaluated or ["global"] * len(candidates)
    judged = [_scores_by_seed(runs, model, after) for runs, model in zip(candidates, models, strict=True)]
    there = [by_seed for by_seed in judged if not isinstance(by_seed, str)]
    everyone = [set[str]().union(*each) for each in zip(*filter(None, there), strict=True)]
    return [
        Judgement(fault=each) if isinstance(each, str) else _judgement(criterion, runs, each, everyone)
        for runs, each in zip(candidates, judged, strict=True)
    ]


def best_of(judgements: Sequence[Judgement]) -> int | None:
    """Return which candidate is best, the first of several; None where none can be chosen."""
    best = max(judgements, key=lambda judgement: judgement.quality, default=Judgement())
    return None if best.quality == -math.inf else judgements.index(best)


def _scores_by_seed(
    runs: Sequence[Run | None], evaluated: str, after: int | None
) -> Sequence[Mapping[str, float]] | str:
    """Return the score of each client, seed by seed; [] where a run is missing, and in words why one has no score."""
    finished = [run for run in runs if run is not None]
    if len(finished) < len(runs):
        return []
    try:
        return [_scores(run, evaluated, after) for run in finished]
    except FairbloomError as error:
        return str(error)


def _scores(run: Run, evaluated: str, after: int | None) -> Mapping[str, float]:
    """Return the score of each client on its validation examples, or on its test examples where none are set apart."""
    if not float(run.settings.get("validation-share", 0.0)) > 0.0:
        return scores_of(run, evaluated)
    values = run.final(model=model_of(run, evaluated), split="validation", after=after)
    if not values:
        of_which = " of personal models" if model_of(run, evaluated) == "personal" else ""
        raise FairbloomError(
            f"{CLIENTS.path_in(run.folder)} has no validation {run.score.name}{of_which}: give clients more examples, "
            "so that validation-share leaves each of them some, or set validation-share = 0 where a recipe has it"
        )
    return values


def model_of(run: Run, evaluated: str) -> str:
    """Return which model of a run is judged: "personal" also where the method trains no other one."""
    return run.serves if evaluated == "global" else evaluated


def _judgement(
    criterion: Criterion,
    runs: Sequence[Run | None],
    by_seed: Sequence[Mapping[str, float]],
    everyone: Sequence[Collection[str]],
) -> Judgement:
    """Return what a candidate is worth whose clients have these scores; `everyone` has those of all candidates."""
    values, quality = [], 0.0
    for run, scores, clients in zip(runs, by_seed, everyone, strict=False):
        if run is None:
            continue
        if lacking := sorted({*clients} - {*scores}):
            return Judgement(
                fault=f"{run.folder} lacks the score of {', '.join(lacking)}, which others have: see what was refused "
                f"or missing in {ROUNDS.path_in(run.folder)}"
            )
        values.append(criterion.measure(scores, run))
        quality += run.score.better(values[-1], 0.0)
    return Judgement(values, quality) if values else Judgement()
