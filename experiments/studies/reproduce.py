"""A recipe is run, what is missing of it, and what was measured stands beside what was printed."""

import logging
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.imports import only_trusted_imports
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.settings import Settings, check_used

from ..recipes.labels import format_value
from ..recipes.recipe import AGAINST, ROUND, Case, Recipe, load_recipe
from ..results.outcome import Outcome
from ..results.plans import PlanFile
from ..results.reproduction import Reproduction
from ..results.run import REPORT
from ..views.progress import study_progress
from .driver import Failures, run_study, write_tables
from .objective import Objective
from .on_ray import Pool, place_of
from .score import fix_score
from .study import Candidate, Study, StudyRow, folder_name

MAX_SEEDS = 1_000
"""Each seed is a run of each row, so that more would only fill the memory with plans."""

QUIET = logging.ERROR
"""From which level on log lines are printed: hundreds of runs have too many warnings; rounds.csv has what they say."""


@dataclass(frozen=True)
class ReproductionPlan(PlanFile):
    """Which recipe was run, and how: the file that makes a folder that of a reproduction."""

    file, kind, command = "reproduction.json", "reproduction", "fairbloom reproduce"

    recipe: str
    seeds: int
    quick: bool
    set: Mapping[str, Value]  # the settings of all runs, in place of the recipe's


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
        The number of seeds, from 0; by default the recipe's.
    quick
        Whether to run one seed and a tenth of the rounds, at most 20: a trial, whose numbers mean nothing.
    rows
        Parts of names: only rows whose name has one of them are run, with the baseline where the recipe has one.
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
    if quick:
        seeds = 1
    if not 1 <= (chosen_seeds := recipe.seeds if seeds is None else seeds) <= MAX_SEEDS:
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

    def collect(failures: Failures) -> Reproduction:
        outcomes = _outcomes(recipe, cases, study, failures)
        return Reproduction(recipe, outcomes, study.seeds, study.out, overrides, quick)

    def collect_and_write(failures: Failures) -> Reproduction:
        reproduction = collect(failures)
        if reproduction.whole:
            _write(reproduction, name)
        return reproduction

    if not run:
        return collect({})
    with study_progress(recipe.name, study.count, shown=progress) as bar:
        return run_study(study, place_of(jobs, pool, gpus_per_run), bar.count, collect_and_write, QUIET)


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
    """Return the cases of the rows whose name has one of the words, all without words; the baseline is always there."""
    cases = recipe.cases()
    wanted = [
        case for case in cases if not words or any(word.casefold() in case.full_name.casefold() for word in words)
    ]
    if not wanted:
        there = ", ".join(dict.fromkeys(case.name for case in cases))
        raise FairbloomError(f"--rows {' '.join(words)}: recipe {recipe.name} has no such row: there are {there}")
    variants = {case.variant for case in wanted}
    return [
        case for case in cases if case in wanted or (recipe.baseline == case.row.label and case.variant in variants)
    ]


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
        name = f"{case.full_name} at {at}" if at else case.full_name
        candidates.append(Candidate(name, config, folder_name(config), point, case.row.evaluated))
    return candidates


def _shorten(config: Mapping[str, Value]) -> dict[str, Value]:
    """Return settings with a tenth of the rounds, at most 20, and no fewer evaluations than one a round has."""
    full = config.get("num-rounds", Settings.model_fields["num_rounds"].default)
    rounds = min(20, math.ceil(int(full) / 10))
    every = min(1, int(config.get("evaluate-every", 1)))
    return {**config, "num-rounds": rounds, "evaluate-every": every}


def _outcomes(recipe: Recipe, cases: Sequence[Case], study: Study, failures: Failures) -> list[Outcome]:
    """Return what came out, row by row."""
    rows = list(zip(cases, study.rows, strict=True))
    baselines: dict[str, Outcome] = {}
    if {*AGAINST} & {*recipe.measures}:
        baselines = {
            case.variant: _outcome(case, row, study, failures, None)
            for case, row in rows
            if case.row.label == recipe.baseline
        }
    return [_outcome(case, row, study, failures, baselines.get(case.variant)) for case, row in rows]


def _outcome(case: Case, row: StudyRow, study: Study, failures: Failures, baseline: Outcome | None) -> Outcome:
    """Return what came out of a row, of which the measures are against a baseline or none."""
    searched, chosen = study.search(row), study.choose(row)
    found = {study.folder(planned): study.finished(planned) for planned in (*searched, *chosen)}
    runs = {planned.seed: run for planned in chosen if (run := found[study.folder(planned)]) is not None}
    folders = [study.folder(planned) for planned in chosen or searched]
    fault = next((failures[folder] for folder in folders if folder in failures), "")
    unfinished = frozenset(folder for folder, run in found.items() if run is None) - failures.keys()
    if baseline is not None:
        runs = {seed: run for seed, run in runs.items() if seed in baseline.runs}
        unfinished, fault = unfinished | baseline.unfinished, fault or baseline.fault
    return Outcome(case, chosen[0].candidate.point if chosen else {}, runs, baseline, unfinished, fault)


def load_reproduction(folder: Path, trust: Collection[str] = ()) -> Reproduction:
    """Return what a reproduction has measured, by its folder; nothing is run."""
    plan = ReproductionPlan.read(folder)
    try:
        with only_trusted_imports(trust):
            return reproduce(plan.recipe, seeds=plan.seeds, quick=plan.quick, settings=plan.set, out=folder, run=False)
    except FairbloomError as error:
        raise FairbloomError(f"{folder / plan.file}: {error}") from error


def _write(reproduction: Reproduction, name: str) -> None:
    """Write what was reproduced, results.csv, the figure, curves.csv where that is over the rounds, and the report."""
    from ..views.figures import write_figure  # imported late: it takes a second
    from ..views.report import write_report

    recipe = str(Path(name).absolute()) if name.endswith(".toml") else name
    seeds = len(reproduction.seeds)
    ReproductionPlan(recipe, seeds, reproduction.quick, reproduction.overrides).write(reproduction.folder)
    figure = reproduction.recipe.figure
    tables = {"results.csv": reproduction.rows()}
    if figure and figure.x == ROUND:
        tables["curves.csv"] = reproduction.curves()
    write_tables(reproduction.folder, tables)
    write_figure(reproduction, reproduction.folder / "figure")
    write_report(reproduction, reproduction.folder / REPORT)
