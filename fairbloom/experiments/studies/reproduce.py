"""Run a recipe's missing runs and compare them with the published numbers."""

import contextlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.imports import only_trusted_imports
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.settings import Settings, check_used
from fairbloom.strategies.named import format_value
from fairbloom.system.machine import processors_here
from fairbloom.text import text_if

from ..arms import Arm
from ..options import merge_settings
from ..recipe import Recipe, Row, load_recipe
from ..results.presentation import page_of, write_figure, write_report
from ..results.reproduction import Reproduction, choose_arm, read_reproduction, seeds_of
from ..results.run import REPORT, OpenedRuns
from ..study import STUDY, Study, find_study
from .compare import warn_of_idle
from .progress import StudyBar, study_progress
from .running import carry_out, check_measures, fix_score, write_tables


def reproduce(
    name: str,
    *,
    seeds: int | None = None,
    quick: bool = False,
    rows: Sequence[str] = (),
    grid: bool = False,
    settings: Mapping[str, Value] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    progress: bool = True,
) -> Reproduction:
    """Repeat a published experiment, and print its numbers next to the published ones.

    The same call continues an interrupted one. Table, figure and report are written unless rows
    are left out. The other parameters are as in `compare`.

    Parameters
    ----------
    name
        The recipe: a name that `fairbloom reproduce --list` has, or the path of your TOML file.
    seeds
        The number of seeds, from 0; by default the recipe's, and one with `quick`.
    quick
        Run a tenth of the rounds, at most 20, as a trial; its numbers cannot be compared.
    rows
        Parts of names, separated by commas or repeated: only rows with one of them in their
        name are run.
    grid
        Search the recipe's grid, also for settings that the paper prints best values of.
    settings
        Settings of all runs, which replace the recipe's.
    data_dir
        The folder of the data.
    out
        The folder of the table, the figure and the runs; by default runs/reproduce/NAME.

    Raises
    ------
    FairbloomError
        When a recipe or row is unknown, a setting is impossible or unused, a folder or the data
        cannot be used, or no run succeeds.
    """
    recipe = load_recipe(name)
    usual = 1 if quick else recipe.seeds
    count = usual if seeds is None else seeds
    if count < 1:
        raise SettingsError(f"seeds = {count}: a reproduction takes at least one")
    overrides = merge_settings({}, settings or {})
    if data_dir is not None:
        overrides["data-dir"] = os.fspath(data_dir)
    place = str(Path(name).absolute()) if name.endswith(".toml") else name
    plan = Study(
        "reproduce",
        arms=[],
        seeds=list(range(count)),
        recipe=place,
        quick=quick,
        overrides=overrides,
    )
    study = study_of(recipe, choose_rows(recipe, rows), plan, grid=grid)
    default = Path("runs", "reproduce", f"{recipe.name}-quick" if quick else recipe.name)
    folder = Path(out or default).absolute()
    with study_progress(recipe.name, shown=progress) as bar:
        return _carry_out(recipe, study, folder, jobs or processors_here(), bar)


def choose_rows(recipe: Recipe, words: Sequence[str]) -> list[Row]:
    """Return the rows with one of the words in their names; all rows without words.

    One text may have several words, separated by commas outside parentheses.
    """
    words = [
        part.strip() for text in words for part in re.split(r",(?![^(]*\))", text) if part.strip()
    ]
    names = {recipe.name_of(row): row for row in recipe.rows}
    if not words:
        return list(names.values())
    wanted = []
    for name, row in names.items():
        if any(word.casefold() in name.casefold() for word in words):
            wanted.append(row)
    if not wanted:
        raise FairbloomError(
            f"--rows {' '.join(words)}: recipe {recipe.name} has no such row: there are"
            f" {', '.join(names)}"
        )
    return wanted


# The study of a recipe ----------------------------------------------------------------------------

# A plan of whole runs with one seed.
ONE_SEED = Study("reproduce", [], [0])


def study_of(
    recipe: Recipe,
    rows: Sequence[Row],
    plan: Study = ONE_SEED,
    *,
    grid: bool = False,
) -> Study:
    """Return the study of a recipe's rows, with `grid` also of the values that a row fixes.

    The `plan` is the study without its arms and settings. The user's `overrides` in it replace all
    other values, and are not varied. Raise FairbloomError, with the row's name, for an unknown,
    impossible or unused setting.
    """
    overrides = plan.overrides
    _check_overrides(overrides, recipe, rows)
    shared = {**recipe.settings, **overrides}
    if plan.quick:
        shared = {**_shorten(shared), **overrides}
    study = replace(
        plan,
        arms=[
            arm
            for row in rows
            for arm in _arms(recipe, row, overrides, quick=plan.quick, grid=grid)
        ],
        settings=shared,
    )
    settings = dict[str, Settings]()
    for arm in study.arms:
        try:
            config = study.config(arm)
            chosen = Settings.of(config)
            settings[arm.label] = chosen
            check_used(config, [arm.method], chosen.task)
            if arm.evaluated == "personal" and not chosen.strategy().terms(1).has_personal_models:
                raise SettingsError(
                    "it has no personal models: leave evaluated out, or take a method that has some"
                )
        except FairbloomError as error:
            raise FairbloomError(f"recipe {recipe.name}: row {arm.row!r}: {error}") from error
    warn_of_idle(settings)
    if not shared.get("score"):  # if the recipe names it, no data are needed
        scores: dict[str, dict[str, Value]] = {}
        for task, arm in _first_of_tasks(study).items():
            run = study.run(arm, study.seeds[0], Path())
            scores[task] = fix_score(run)
        if len(scores) == 1:
            (score,) = scores.values()
            study = replace(study, settings={**score, **shared})
        else:
            arms = []
            for arm in study.arms:
                score = scores[_task_of(study, arm)]
                arms.append(replace(arm, settings={**score, **arm.settings}))
            study = replace(study, arms=arms)
    return study


def _first_of_tasks(study: Study) -> dict[str, Arm]:
    return {_task_of(study, arm): arm for arm in reversed(study.arms)}


def _task_of(study: Study, arm: Arm) -> str:
    return str(study.config(arm).get("task", Settings.model_fields["task"].default))


def _arms(
    recipe: Recipe, row: Row, overrides: Mapping[str, Value], *, quick: bool, grid: bool
) -> list[Arm]:
    """Return the arms of a recipe's row, one for each point of its grid."""
    arms: list[Arm] = []
    name = recipe.name_of(row)
    own = {
        key: value
        for key, value in row.settings.items()
        if key not in overrides and key != "method"
    }
    for whole_point in recipe.points(row, every_axis=grid):
        point = {key: value for key, value in whole_point.items() if key not in overrides}
        settings = own | point
        if quick and "num-rounds" in settings:
            settings = _shorten(settings)
        values = ", ".join(f"{key} = {format_value(value)}" for key, value in point.items())
        arm = Arm(
            f"{name}{text_if(point, f' at {values}')}",
            recipe.method(row),
            settings,
            row.evaluated,
            name,
        )
        if not any(arm.settings == other.settings for other in arms):
            arms.append(arm)
    return arms


def _check_overrides(overrides: Mapping[str, Value], recipe: Recipe, rows: Sequence[Row]) -> None:
    """Raise SettingsError for an unknown override, or one that no run uses."""
    options = {"seed": "--seeds", "out": "--out", "method": "--rows"}
    for key, value in overrides.items():
        if key in options:
            raise SettingsError(
                f"{key} = {value!r}: a recipe sets {key} run by run: use {options[key]}"
            )
    methods = [recipe.method(row) for row in recipe.rows]
    kept = {key: value for key, value in recipe.settings.items() if key not in overrides}
    for task in recipe.tasks:
        check_used(kept, methods, task)
    for task in {str(overrides.get("task", recipe.task(row))) for row in rows}:
        check_used(overrides, [recipe.method(row) for row in rows], task)


def _shorten(config: Mapping[str, Value]) -> dict[str, Value]:
    """Return settings with a tenth of the rounds, at most 20, evaluated in each round if at all."""
    full = config.get("num-rounds", Settings.model_fields["num_rounds"].default)
    return {
        **config,
        "num-rounds": min(20, math.ceil(int(full) / 10)),
        "evaluate-every": min(1, int(config.get("evaluate-every", 1))),
    }


# The runs -----------------------------------------------------------------------------------------


def _carry_out(recipe: Recipe, study: Study, out: Path, jobs: int, bar: StudyBar) -> Reproduction:
    """Run the missing runs of a recipe, and write the results unless rows are left out."""
    kept = study
    if len(study.groups) < len(recipe.rows):
        with contextlib.suppress(RunFolderError):  # a study of all rows is kept
            kept = find_study(out) or study
    for arm in _first_of_tasks(study).values():
        check_measures(
            recipe.measures, study.run(arm, study.seeds[0], out), f"recipe {recipe.name}: measures"
        )
    seeds = {
        arm.label: seeds_of(recipe, arms, study) for arms in study.groups.values() for arm in arms
    }
    first = study.runs(
        out, [(arm, seed) for seed in study.seeds for arm in study.arms if seed in seeds[arm.label]]
    )
    # the chosen arm of each grid runs with the other seeds
    later = sum(len(study.seeds) - len(seeds[arms[0].label]) for arms in study.groups.values())
    bar.expect(len(first) + later)
    with carry_out(kept if kept.kind == study.kind else study, out, jobs, bar) as work:
        work.run(first, some=True)
        opened = OpenedRuns(study, out)
        chosen = [choose_arm(recipe, arms, opened)[0] for arms in study.groups.values()]
        best = study.runs(
            out, [(arm, seed) for seed in study.seeds for arm in chosen if arm is not None]
        )
        work.run({name: run for name, run in best.items() if name not in first})
        whole = kept is study
        study = replace(study, failed=work.failed)
        if whole:
            study.write(out)
        reproduction = read_reproduction(recipe, study, out, opened)
        if all(outcome.fault for outcome in reproduction.outcomes):
            raise FairbloomError(f"row {study.arms[0].row!r}: {reproduction.outcomes[0].fault}")
        if reproduction.whole:
            write_tables(out, {"results.csv": reproduction.rows()})
            if page_of(reproduction).figure is not None:
                write_figure(reproduction, out / "figure.png", out / "figure.svg")
            write_report(reproduction, out / REPORT)
        return reproduction


def load_reproduction(folder: Path, study: Study, *, trust: bool) -> Reproduction:
    """Return a reproduction from its finished runs; nothing is run."""
    try:
        with only_trusted_imports(trust):
            return read_reproduction(load_recipe(study.recipe), study, folder)
    except FairbloomError as error:
        raise FairbloomError(f"{folder / STUDY}: {error}") from error
