"""A recipe is run, what is missing of it, and what was measured stands beside what was printed."""

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.imports import only_trusted_imports
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.settings import Settings, check_used

from ..arms import Arm, format_value
from ..recipe import Case, Recipe, load_recipe
from ..results.measures import find_measure
from ..results.outcome import Outcome, measures_of
from ..results.presentation import write_figure, write_report
from ..results.reproduction import Reproduction
from ..results.run import REPORT, Run, load
from ..results.search import choose, judge_arms
from ..study import STUDY, RunKey, Study
from .on_ray import OnRay, Pool, place_of
from .progress import study_progress
from .running import QUIET, carry_out, fix_score, raise_if_all_failed, rehearse, with_failures, write_tables

MAX_SEEDS = 1_000
"""Each seed is a run of each row, so that more would only fill the memory with plans."""


@dataclass(frozen=True)
class Plan:
    """A recipe as it is run: its rows, each with the arms of its grid, of which the best is shown."""

    recipe: Recipe
    cases: Sequence[Case]
    rows: Sequence[Sequence[Arm]]
    study: Study
    out: Path

    @property
    def search_seeds(self) -> Sequence[int]:
        """The seeds with which grids are searched."""
        return self.study.seeds[: self.recipe.grid_seeds or len(self.study.seeds)]

    def seeds_of(self, row: Sequence[Arm]) -> Sequence[int]:
        """Return the seeds of a row before its grid is decided; without a grid these are all."""
        return self.study.seeds if len(row) == 1 else self.search_seeds

    def first_runs(self) -> dict[RunKey, Settings]:
        """Return the runs of all rows before the grids are decided, seed by seed; without grids these are all."""
        pairs = [(row, seed) for seed in self.study.seeds for row in self.rows if seed in self.seeds_of(row)]
        return self.study.runs_of([(arm, seed) for row, seed in pairs for arm in row], self.out)

    def chosen_runs(self) -> dict[RunKey, Settings]:
        """Return the runs of each row's best arm, seed by seed."""
        best = [arm for row in self.rows if (arm := self.choose(row)) is not None]
        return self.study.runs_of([(arm, seed) for seed in self.study.seeds for arm in best], self.out)

    @property
    def count(self) -> int:
        """How many runs there are: those that search the grids, and those at the points that are found."""
        later = sum(len(self.study.seeds) - len(self.search_seeds) for row in self.rows if len(row) > 1)
        return len(self.first_runs()) + later

    def choose(self, row: Sequence[Arm]) -> Arm | None:
        """Return the best arm of a row; None where there is none whose runs of the search are finished."""
        if len(row) == 1:
            return row[0]
        runs = [[self.load(arm, seed) for seed in self.search_seeds] for arm in row]
        first = next((run for by_seed in runs for run in by_seed if run is not None), None)
        if first is None:
            return None
        measure = find_measure(self.recipe.criterion)
        best = choose(measure, first.score, judge_arms(measure, row, runs))
        return None if best is None else best.arm

    def fault_of(self, row: Sequence[Arm]) -> str:
        """Return why no arm of a row could be chosen, as far as their scores say; "" where they do not."""
        runs = [[self.load(arm, seed) for seed in self.search_seeds] for arm in row]
        judged = judge_arms(find_measure(self.recipe.criterion), row, runs)
        return next((f"{each.arm.label}: {each.fault}" for each in judged if each.fault), "")

    def load(self, arm: Arm, seed: int) -> Run | None:
        """Return a run that is finished, else None."""
        done = self.study.is_done(arm, seed, self.out)
        return load(self.out / self.study.folder(arm, seed)) if done else None


def reproduce(
    name: str,
    *,
    seeds: int | None = None,
    quick: bool = False,
    rows: Sequence[str] = (),
    settings: Mapping[str, Value] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    pool: Pool = "processes",
    gpus_per_run: float = 0.0,
    run: bool = True,
    progress: bool = True,
) -> Reproduction:
    """Repeat a published experiment, and print its numbers next to the published ones.

    The same call continues what was interrupted. Table and figure are written where no rows are left out.

    Parameters
    ----------
    name
        The recipe: a name that `fairbloom reproduce --list` has, or the path of your TOML file.
    seeds
        The number of seeds, from 0; by default the recipe's, and one with `quick`.
    quick
        Run a tenth of the rounds, at most 20: a trial, whose numbers cannot be compared.
    rows
        Parts of names: only rows whose name has one of them are run.
    settings
        Settings of all runs, in place of the recipe's.
    data_dir
        The folder of the data.
    out
        The folder of the table, the figure and the runs; by default runs/reproduce/NAME.
    jobs
        The number of runs at a time; by default one a processor.
    pool
        Where runs go on: processes of this machine, or ray, an existing Ray cluster.
    gpus_per_run
        With the pool ray: how many GPUs each run gets, or which part of one.
    run
        Whether to run what is missing; if not, what is finished is read, and nothing is written.
    progress
        Whether to show a progress bar, in a terminal or notebook.

    Raises
    ------
    FairbloomError
        When there is no such recipe or row, a setting is impossible or unused, a folder or the data cannot be used, or
        no run succeeds.
    """
    recipe = load_recipe(name)
    chosen_seeds = seeds if seeds is not None else 1 if quick else recipe.seeds
    if not 1 <= chosen_seeds <= MAX_SEEDS:
        raise SettingsError(f"seeds = {chosen_seeds}: a reproduction takes 1 to {MAX_SEEDS}")
    overrides = dict(settings or {}) | ({} if data_dir is None else {"data-dir": os.fspath(data_dir)})
    default_out = Path("runs", "reproduce", f"{recipe.name}-quick" if quick else recipe.name)
    cases = choose_rows(recipe, rows)
    check_overrides(overrides, cases)
    plan = _plan(recipe, name, cases, range(chosen_seeds), quick, overrides, Path(out or default_out).absolute())
    if not run:
        return _collect(plan)
    with study_progress(recipe.name, plan.count, shown=progress) as bar:
        return _carry_out(plan, place_of(jobs, pool, gpus_per_run), bar.count)


def _plan(
    recipe: Recipe,
    name: str,
    cases: Sequence[Case],
    seeds: Sequence[int],
    quick: bool,
    overrides: Mapping[str, Value],
    out: Path,
) -> Plan:
    """Return how rows of a recipe are run; what the user has set goes before all others, and is not varied."""
    shared = {**recipe.settings, **overrides}
    if quick:
        shared = {**_shorten(shared), **overrides}
    rows = [_arms(case, overrides, quick) for case in cases]
    study = Study(
        "reproduce",
        [arm for row in rows for arm in row],
        list(seeds),
        settings=shared,
        recipe=str(Path(name).absolute()) if name.endswith(".toml") else name,
        quick=quick,
        overrides=overrides,
    )
    if not shared.get("score"):  # a recipe that names it is shown without the data
        first = [Settings.of({**study.config(row[0]), "seed": seeds[0]}) for row in rows]
        by_task = {each.task: each for each in reversed(first)}
        scores = {task: fix_score(each) for task, each in by_task.items()}
        rows = [
            [replace(arm, settings={**scores[each.task], **arm.settings}) if len(scores) > 1 else arm for arm in row]
            for row, each in zip(rows, first, strict=True)
        ]
        of_all = {} if len(scores) > 1 else next(iter(scores.values()))
        study = replace(study, arms=[arm for row in rows for arm in row], settings={**of_all, **shared})
    for case, row in zip(cases, rows, strict=True):
        for arm in row:
            case.settings(study.config(arm))
    return Plan(recipe, cases, rows, study, out)


def _arms(case: Case, overrides: Mapping[str, Value], quick: bool) -> list[Arm]:
    """Return the arms of a recipe's row, one for each point of its grid."""
    arms: list[Arm] = []
    for whole_point in case.points():
        point = {key: value for key, value in whole_point.items() if key not in overrides}
        own = {key: value for key, value in case.row.settings.items() if key not in overrides and key != "method"}
        at = ", ".join(f"{key} = {format_value(value)}" for key, value in point.items())
        settings = own | point
        if quick and "num-rounds" in settings:
            settings = _shorten(settings)
        arm = Arm(f"{case.name} at {at}" if at else case.name, case.method, settings, case.row.evaluated)
        if not any(arm.settings == other.settings for other in arms):
            arms.append(arm)
    return arms


def _carry_out(plan: Plan, jobs: int | OnRay, on_run: Callable[[], None]) -> Reproduction:
    """Run what is missing of a recipe, and write what came out, where no rows are left out."""
    study, out, first = plan.study, plan.out, plan.first_runs()
    kept = study
    if len(plan.cases) < len(plan.recipe.cases()):
        with contextlib.suppress(RunFolderError):  # which says how all rows are run
            kept = Study.read(out)
    with carry_out(kept if kept.kind == study.kind else study, out, jobs, on_run, QUIET) as work:
        rehearse(study, jobs, out, partial(_try_results, plan), [row[0].label for row in plan.rows])
        work.run(first)
        raise_if_all_failed(first, work)
        done = {settings.out for settings in first.values()}
        work.run({key: run for key, run in plan.chosen_runs().items() if run.out not in done})
        study = with_failures(study, out, work)
        done_plan = replace(plan, study=study)
        if kept is plan.study:
            study.write(out)
        reproduction = _collect(done_plan)
        if all(outcome.fault for outcome in reproduction.outcomes):
            raise FairbloomError(f"row {plan.cases[0].name!r}: {reproduction.outcomes[0].fault}")
        if reproduction.whole:
            _write(reproduction)
        return reproduction


def _collect(plan: Plan) -> Reproduction:
    """Return what came out of the rows."""
    outcomes = [_outcome(case, row, plan) for case, row in zip(plan.cases, plan.rows, strict=True)]
    study = plan.study
    return Reproduction(plan.recipe, outcomes, study.seeds, plan.out, study.overrides, study.quick)


def _try_results(plan: Plan, short: Study, scratch: Path) -> None:
    """Measure and write what came out of runs of one round, of the rows whose run did not fail there."""
    by_label = {arm.label: arm for arm in short.arms}
    pairs = [
        (case, [by_label[row[0].label]])
        for case, row in zip(plan.cases, plan.rows, strict=True)
        if row[0].label in by_label
    ]
    tried = replace(plan, cases=[case for case, _ in pairs], rows=[row for _, row in pairs], study=short, out=scratch)
    for case, (arm,) in pairs:
        if (run := tried.load(arm, short.seeds[0])) is not None:
            _try_measures(run, case)
    _write(_collect(tried))


def choose_rows(recipe: Recipe, words: Sequence[str]) -> list[Case]:
    """Return the cases of the rows whose name has one of the words, all without words."""
    cases = recipe.cases()
    wanted = [case for case in cases if not words or any(word.casefold() in case.name.casefold() for word in words)]
    if not wanted:
        there = ", ".join(case.name for case in cases)
        raise FairbloomError(f"--rows {' '.join(words)}: recipe {recipe.name} has no such row: there are {there}")
    return wanted


def check_overrides(overrides: Mapping[str, Value], cases: Sequence[Case]) -> None:
    """Raise SettingsError when a setting cannot be set for all runs, or no run has a use for it."""
    options = {"seed": "--seeds", "out": "--out", "method": "--rows"}
    for key, value in overrides.items():
        if key in options:
            raise SettingsError(f"{key} = {value!r}: a recipe sets {key} run by run: use {options[key]}")
    methods = [case.method for case in cases]
    for task in {str({**case.config, **overrides}.get("task", "digits")) for case in cases}:
        check_used(overrides, methods, task)


def _shorten(config: Mapping[str, Value]) -> dict[str, Value]:
    """Return settings with a tenth of the rounds, at most 20, and no fewer evaluations than one a round has."""
    full = config.get("num-rounds", Settings.model_fields["num_rounds"].default)
    rounds = min(20, math.ceil(int(full) / 10))
    every = min(1, int(config.get("evaluate-every", 1)))
    return {**config, "num-rounds": rounds, "evaluate-every": every}


def _try_measures(run: Run, case: Case) -> None:
    """Raise FairbloomError, with the row's name, where a run has not all measures of its row."""
    try:
        measures_of(run, case)
    except RunFolderError:
        raise
    except FairbloomError as error:
        raise FairbloomError(f"row {case.name!r}: {error}") from error


def _outcome(case: Case, row: Sequence[Arm], plan: Plan) -> Outcome:
    """Return what came out of a row."""
    study, best = plan.study, plan.choose(row)
    searched = [(arm, seed) for arm in row for seed in plan.seeds_of(row)]
    chosen = [] if best is None else [(best, seed) for seed in study.seeds]
    found = {study.folder(*key): plan.load(*key) for key in (*searched, *chosen)}
    runs = {seed: run for arm, seed in chosen if (run := found[study.folder(arm, seed)]) is not None}
    folders = [study.folder(*key) for key in chosen or searched]
    fault = next((study.failed[each] for each in folders if each in study.failed), "") or (
        "" if best else plan.fault_of(row)
    )
    missing = [each for each, run in found.items() if run is None and each not in study.failed]
    points = {key for whole in case.points() for key in whole}
    point = {} if best is None else {key: value for key, value in best.settings.items() if key in points}
    return Outcome.of(case, point, runs, frozenset(plan.out / each for each in missing), fault)


def load_reproduction(folder: Path, *, trust: bool = False) -> Reproduction:
    """Return what a reproduction has measured, by its folder; nothing is run."""
    study = Study.read(folder)
    try:
        with only_trusted_imports(trust):
            return reproduce(
                study.recipe,
                seeds=len(study.seeds),
                quick=study.quick,
                settings=study.overrides,
                out=folder,
                run=False,
            )
    except FairbloomError as error:
        raise FairbloomError(f"{folder / STUDY}: {error}") from error


def _write(reproduction: Reproduction) -> None:
    """Write what was reproduced: results.csv, the figure and the report."""
    write_tables(reproduction.folder, {"results.csv": reproduction.rows()})
    write_figure(reproduction, reproduction.folder / "figure")
    write_report(reproduction, reproduction.folder / REPORT)
