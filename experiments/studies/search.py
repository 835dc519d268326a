"""Optuna searches ranges: trials are drawn by those before, stopped early where others were better by that round.

A trial is a point with all its seeds; its value is the mean of the criterion, turned such that higher is better. Trials
come in batches of a fixed size, and what a batch draws is a function of the seed and of the trials before it. So the
points depend neither on how many runs go on at a time nor on interruptions: only whole batches are kept in Optuna's
journal, and a batch that was cut off is drawn again, and its runs go on where they were.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value, digest
from fairbloom.server.settings import Settings, may_differ, may_grow

from ..recipes.axes import Axis, Span
from ..recipes.recipe import Point
from .driver import Execution
from .study import Candidate, PlannedRun, Study, StudyRow

BATCH = 4
"""So many trials are drawn at a time, and run side by side."""

PARTS = (9, 3, 1)
"""Trials are looked at after a ninth and a third of their rounds; those below the median of the finished ones end."""

JOURNAL = "optuna.journal"
"""The file with the trials in a sweep's folder, which Optuna's own programs read."""

DIGITS = 4
"""Drawn numbers are rounded to so many digits, as one would write them."""

FAULT, ROUNDS = "fault", "rounds"
"""What the journal has of a trial beside Optuna's own: why it failed, and how many rounds its runs have."""


@dataclass(frozen=True)
class Trial:
    """What became of a point that was drawn.

    Attributes
    ----------
    candidate
        The point.
    rounds
        How many rounds its runs have.
    pruned
        Whether it was stopped after these.
    fault
        Why it failed; "" where it did not.
    """

    candidate: Candidate
    rounds: int
    pruned: bool
    fault: str


def search(
    axes: Mapping[str, Axis],
    candidate_at: Callable[[Point], Candidate],
    count: int,
    study: Study,
    work: Execution,
    on_batch: Callable[[Sequence[Trial]], None],
) -> None:
    """Draw points of a space, and run them with the seeds of a study.

    Parameters
    ----------
    axes
        The settings that are drawn, each from values or from a range.
    candidate_at
        Returns the candidate at a point.
    count
        How many points are drawn altogether; those in the folder's journal are among them.
    study
        Has the seeds of each trial, the folder and the criterion; its rows are not looked at.
    work
        Carries out the runs.
    on_batch
        Called with all trials up to now, before the first batch and after each.

    Raises
    ------
    FairbloomError
        When Optuna is not installed, or its journal cannot be used.
    """
    with _quiet_optuna() as optuna:
        settings = study.settings(PlannedRun(candidate_at(lowest(axes)), study.seeds[0]))
        kept = _kept(optuna, axes, settings, study)
        distributions = {key: _distribution(optuna, axis) for key, axis in axes.items()}
        while True:
            done = kept.trials
            on_batch([_trial(each, candidate_at(_point(each.params, axes))) for each in done[:count]])
            if len(done) >= count:
                return
            memory = optuna.create_study(
                direction="maximize",
                sampler=optuna.samplers.TPESampler(seed=study.seeds[0] + len(done), constant_liar=True),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=BATCH),
            )
            memory.add_trials(done)
            asked = [memory.ask(distributions) for _ in range(min(BATCH, count - len(done)))]
            candidates = [candidate_at(_point(trial.params, axes)) for trial in asked]
            _run_batch(memory, asked, candidates, study, work, rungs_of(settings))
            kept.add_trials(memory.trials[len(done) :])


def lowest(axes: Mapping[str, Axis]) -> dict[str, Value]:
    """Return one point of a space: the first of the values, and the lowest number of a range."""
    return {key: axis.low if isinstance(axis, Span) else axis[0] for key, axis in axes.items()}


def rungs_of(settings: Settings) -> list[int]:
    """Return after how many rounds a trial is looked at; a method whose steps decay over all rounds runs them all."""
    if settings.strategy().paced or settings.paced:
        return [settings.num_rounds]
    return sorted({-(-settings.num_rounds // part) for part in PARTS})


def _run_batch(
    memory: Any,
    asked: Sequence[Any],
    candidates: Sequence[Candidate],
    study: Study,
    work: Execution,
    rungs: Sequence[int],
) -> None:
    """Run trials from rung to rung, and tell Optuna of each that ends: its value, or that it was pruned, or failed."""
    going = list(zip(asked, candidates, strict=True))
    for rung in rungs:
        stage = replace(study, rows=[StudyRow([candidate for _, candidate in going])], rounds=rung)
        work.run(stage.first_runs())
        judgements = stage.judge(stage.rows[0])
        next_going = []
        for (trial, candidate), judgement in zip(going, judgements, strict=True):
            trial.set_user_attr(ROUNDS, rung)
            folders = (stage.folder(PlannedRun(candidate, seed)) for seed in stage.seeds)
            fault = judgement.fault or next((work.failures[each] for each in folders if each in work.failures), "")
            if fault:
                trial.set_user_attr(FAULT, fault)
                memory.tell(trial, state=_state("FAIL"))
                continue
            value = judgement.quality / len(stage.seeds)
            trial.report(value, rung)
            if rung == rungs[-1]:
                memory.tell(trial, value)
            elif trial.should_prune():
                memory.tell(trial, state=_state("PRUNED"))
            else:
                next_going.append((trial, candidate))
        if not (going := next_going):
            return


def _trial(stored: Any, candidate: Candidate) -> Trial:
    """Return what the journal has of a trial."""
    about = stored.user_attrs
    return Trial(candidate, about[ROUNDS], stored.state == _state("PRUNED"), about.get(FAULT, ""))


def _point(params: Mapping[str, Any], axes: Mapping[str, Axis]) -> dict[str, Value]:
    """Return the point of what Optuna has drawn, its numbers as one would write them."""
    point: dict[str, Value] = {}
    for key, axis in axes.items():
        value = params[key]
        if isinstance(axis, Span) and not axis.whole:
            value = min(max(float(f"{value:.{DIGITS}g}"), axis.low), axis.high)
        point[key] = value
    return point


# Optuna -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[ModuleType]:
    """Import Optuna, and let it print only warnings for a while.

    Raises
    ------
    FairbloomError
        When it is not installed.
    """
    optuna = import_optuna()
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield optuna
    finally:
        optuna.logging.set_verbosity(level)


def import_optuna() -> ModuleType:
    """Return Optuna; raise FairbloomError with the remedy where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise FairbloomError("a search of ranges needs Optuna: pip install 'fairbloom[optuna]'") from error
    return optuna


def _kept(optuna: ModuleType, axes: Mapping[str, Axis], settings: Settings, study: Study) -> Any:
    """Return the search in the folder's journal; another is begun where trials would have other values.

    So it is with other settings, seeds, axes, criteria or numbers of rounds.
    """
    free = {*may_differ(finished=True), *axes, "seed"}.difference(may_grow())
    config = {key: value for key, value in settings.run_config().items() if key not in free}
    about: dict[str, Any] = {"settings": digest(config), "axes": {key: str(axis) for key, axis in axes.items()}}
    about |= {"criterion": study.criterion.text, "seeds": list(study.seeds)}
    file = study.out / JOURNAL
    try:
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))
        return optuna.create_study(
            study_name=f"{settings.method}-{digest(about)}",
            storage=storage,
            direction="maximize",
            load_if_exists=True,
        )
    except (OSError, ValueError, KeyError) as error:
        raise FairbloomError(
            f"{file} cannot be used: {error}. Move it away: the search begins anew, and runs no finished run again"
        ) from error


def _distribution(optuna: ModuleType, axis: Axis) -> Any:
    """Return what Optuna draws a setting from."""
    if not isinstance(axis, Span):
        return optuna.distributions.CategoricalDistribution(list(axis))
    if axis.whole:
        return optuna.distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.log)


def _state(name: str) -> Any:
    """Return one of Optuna's states of a trial."""
    from optuna.trial import TrialState

    return TrialState[name]
