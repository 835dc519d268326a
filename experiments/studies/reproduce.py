"""A recipe is run, what is missing of it, and what was measured stands beside what was printed."""

import logging
import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.imports import only_trusted_imports
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.settings import Settings, check_used

from ..recipes.labels import format_value
from ..recipes.recipe import Case, Recipe, load_recipe
from ..results.outcome import Outcome, measures_of
from ..results.presentation import write_figure, write_report
from ..results.reproduction import Reproduction, ReproductionPlan
from ..results.run import REPORT, Run
from .driver import run_study, write_tables
from .objective import Objective
from .on_ray import Pool, place_of
from .progress import study_progress
from .rehearsal import Failures
from .score import fix_score
from .study import Candidate, PlannedRun, Study, StudyRow, folder_name

MAX_SEEDS = 1_000
"""Each seed is a run of each row, so that more would only fill the memory with plans."""

QUIET = logging.ERROR
"""From which level on log lines are printed: hundreds of runs have too many warnings; rounds.csv has what they say."""


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
    """Run what is missing of a published experiment, and compare what comes out with what was printed.

    The same call continues what was interrupted. Table and figure are written where no rows are left out.

    Parameters
    ----------
    name
        The recipe: a name that `fairbloom reproduce --list` has, or the path of a TOML file of one's own.
    seeds
        The number of seeds, from 0; by default the recipe's, and one with `quick`.
    quick
        Whether to run a tenth of the rounds, at most 20: a trial, whose numbers mean nothing.
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
    pool, gpus_per_run
        Where runs go on, as for `fairbloom.compare`.
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
    study = Study(
        [_row(case, overrides, quick) for case in cases],
        range(chosen_seeds),
        Path(out or default_out).absolute(),
        recipe.grid_seeds,
        _criterion(recipe),
    )

    def collect(study: Study, failures: Failures) -> Reproduction:
        pairs = zip(cases, study.rows, strict=True)
        outcomes = [_outcome(case, row, study, failures) for case, row in pairs]
        return Reproduction(recipe, outcomes, study.seeds, study.out, overrides, quick)

    def collect_and_write(failures: Failures) -> Reproduction:
        reproduction = collect(study, failures)
        if all(outcome.fault for outcome in reproduction.outcomes):
            raise FairbloomError(f"row {cases[0].name!r}: {reproduction.outcomes[0].fault}")
        if reproduction.whole:
            _write(reproduction)
        return reproduction

    def try_results(short: Study, failures: Failures) -> None:
        for case, (candidate,) in zip(cases, short.rows, strict=True):
            if (run := short.finished(PlannedRun(candidate, short.seeds[0]))) is not None:
                _try_measures(run, case)
        _write(collect(short, failures))

    if not run:
        return collect(study, {})
    plan = ReproductionPlan(recipe_path(name), chosen_seeds, quick, overrides)
    keep = bool(rows) and (study.out / plan.file).exists()  # which says how all rows are run
    kept, place = None if keep else plan, place_of(jobs, pool, gpus_per_run)
    with study_progress(recipe.name, study.count, shown=progress) as bar:
        return run_study(study, place, bar.count, collect_and_write, try_results, kept, plan.kind, QUIET)


def recipe_path(name: str) -> str:
    """Return a recipe's name, or the path of its file from wherever it is looked at."""
    return str(Path(name).absolute()) if name.endswith(".toml") else name


def _criterion(recipe: Recipe) -> Objective:
    """Return by what the best points of rows are chosen; raise SettingsError where it is against another row."""
    objective = Objective.of(recipe.criterion, "criterion")
    if any(each.compares for each in objective.constraints):
        raise SettingsError(
            f"criterion = {objective.text!r}: each row is chosen by itself, and compares with no method: leave that "
            "constraint out, or use fairbloom sweep"
        )
    return objective


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


def _row(case: Case, overrides: Mapping[str, Value], quick: bool) -> StudyRow:
    """Return a recipe's row as a study has it; what the user has set goes before all others, and is not varied."""
    set_here = {key: value for key, value in overrides.items() if case.takes(key)}
    candidates: list[Candidate] = []
    for whole_point in case.points():
        point = {key: value for key, value in whole_point.items() if key not in overrides}
        if any(point == other.point for other in candidates):
            continue
        config = case.config | point
        config = (_shorten(config) if quick else config) | set_here
        if not config.get("score"):  # a recipe that names it is shown without the data
            config |= fix_score(case.settings(config))
        at = ", ".join(f"{key} = {format_value(value)}" for key, value in point.items())
        name = f"{case.name} at {at}" if at else case.name
        candidates.append(Candidate(name, config, folder_name(config), point, case.row.evaluated))
    return candidates


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


def _outcome(case: Case, row: StudyRow, study: Study, failures: Failures) -> Outcome:
    """Return what came out of a row."""
    searched, chosen = study.search(row), study.choose(row)
    found = {study.folder(planned): study.finished(planned) for planned in (*searched, *chosen)}
    runs = {planned.seed: run for planned in chosen if (run := found[study.folder(planned)]) is not None}
    folders = [study.folder(planned) for planned in chosen or searched]
    fault = next((failures[folder] for folder in folders if folder in failures), "")
    fault = fault or study.fault_of(row)
    unfinished = frozenset(folder for folder, run in found.items() if run is None) - failures.keys()
    return Outcome.of(case, chosen[0].candidate.point if chosen else {}, runs, unfinished, fault)


def load_reproduction(folder: Path, trust: Collection[str] = ()) -> Reproduction:
    """Return what a reproduction has measured, by its folder; nothing is run."""
    plan = ReproductionPlan.read(folder)
    try:
        with only_trusted_imports(trust):
            return reproduce(plan.recipe, seeds=plan.seeds, quick=plan.quick, settings=plan.set, out=folder, run=False)
    except FairbloomError as error:
        raise FairbloomError(f"{folder / plan.file}: {error}") from error


def _write(reproduction: Reproduction) -> None:
    """Write what was reproduced: results.csv, the figure and the report."""
    write_tables(reproduction.folder, {"results.csv": reproduction.rows()})
    write_figure(reproduction, reproduction.folder / "figure")
    write_report(reproduction, reproduction.folder / REPORT)
