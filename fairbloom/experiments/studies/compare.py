"""A comparison: arms run with the same seeds, and so the same clients, draws and batches.

A refit trains one of its arms once more, on all rows, for a model to use.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median_high

from fairbloom.errors import join_names
from fairbloom.logs import log
from fairbloom.protocol.options import NO_TESTS
from fairbloom.protocol.settings import SETTINGS, SettingsError, Value
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import (
    BEST,
    CLIENTS,
    GROUPS,
    HELD_OUT,
    NOT_IN_TRAINING,
    is_finished,
)
from fairbloom.server.settings import Settings, check_used
from fairbloom.strategies import name_of
from fairbloom.tasks import find_task

from .. import pages as pages  # registers the page of a comparison
from ..apps import AppRun
from ..arms import Named, find_label
from ..results.comparison import Comparison, read_comparison
from ..results.presentation import write_figure, write_report
from ..results.run import REPORT, Run, load
from ..study import Study, find_study
from .pairs import check_pairs
from .progress import StudyBar
from .running import OnRun, carry_out, fix_score, ignore_run, write_tables

# The settings that differ between the runs of a study, with the options that set their values.
OPTIONS = {"method": "--methods", "seed": "--seed and --seeds", "out": "--out"}

# Settings without an effect in a run that measures no score.
OF_TESTS = {key for key, each in SETTINGS.items() if NO_TESTS in each.conditions}


def compare_arms(
    study: Study, out: Path, jobs: int, bar: StudyBar, on_run: OnRun = ignore_run
) -> Comparison:
    """Run the missing runs of a comparison, and write its tables, figure and report into `out`.

    A failed run does not end others; the same call tries it again. Errors that can be known before
    are raised before any run starts.
    """
    out = out.absolute()
    study = replace(prepare(study, out), extended_from=seeds_before(study, out))
    bar.expect(len(study.runs(out)))
    with carry_out(study, out, jobs, bar, on_run=on_run) as work:
        work.run(study.runs(out))
        study = replace(study, failed=work.failed)
        study.write(out)
        comparison = read_comparison(out, study)
        if study.app is not None:
            check_pairs(comparison)
        write_comparison(comparison, out)
        return comparison


def write_comparison(comparison: Comparison, out: Path) -> None:
    """Write the tables, the figure and the report of a comparison into a folder."""
    write_tables(out, tables_of(comparison))
    write_figure(comparison, out / "clients.png", out / "clients.svg")
    write_report(comparison, out / REPORT)


def prepare(study: Study, out: Path, *, deployed: bool = False) -> Study:
    """Return a study with one score for all runs; raise SettingsError for an unused setting.

    The clients of `deployed` runs are other machines.
    """
    for key, value in study.settings.items():
        if key in OPTIONS:
            raise SettingsError(
                f"{key} = {value!r}: a {study.noun} sets {key} run by run: give"
                f" {OPTIONS[key]} instead"
            )
    runs = {arm.label: study.planned(arm, study.seeds[0], out) for arm in study.arms}
    if study.app is not None:  # which decides on the score
        warn_of_idle(runs)
        return study
    first = study.run(study.arms[0], study.seeds[0], out)
    if deployed:
        first.check_deployed()
        first.check_schema()
    check_used(study.settings, ([arm.method for arm in study.arms]), first.task, deployed=deployed)
    warn_of_idle(runs)
    return replace(study, settings={**study.settings, **fix_score(first, deployed=deployed)})


def warn_of_idle(arms: Mapping[str, Settings | AppRun]) -> None:
    """Warn once of the arms, by their labels, in which a parameter changes nothing, and why.

    `arms` has a run of each.
    """
    labels = dict[str, list[str]]()
    for label, run in arms.items():
        reason = run.strategy().find_idle(run.num_rounds)
        labels.setdefault(reason, []).append(label)
    labels.pop("", None)
    if labels:
        said = [f"{join_names(names)}: {reason}" for reason, names in labels.items()]
        log.warning("%s", "; ".join(said))


def seeds_before(study: Study, out: Path) -> int:
    """Return with how many seeds a comparison was first finished, if it now has more; else 0.

    Who adds seeds after a look at the results finds differences by chance more often than a p-value
    says, so the results mention it.
    """
    with contextlib.suppress(RunFolderError):  # a damaged study is written again
        there = find_study(out)
        if there is not None and there.kind == study.kind and {*there.seeds} <= {*study.seeds}:
            before = there.extended_from
            if not before and not there.unfinished(out):
                before = len(there.seeds)
            return before if before < len(study.seeds) else 0
    return 0


def tables_of(comparison: Comparison) -> dict[str, Sequence[Mapping[str, object]]]:
    """Return the tables of a comparison by the names of their files."""
    return {
        "comparison.csv": comparison.rows(),
        "differences.csv": comparison.difference_rows(),
        CLIENTS.name: comparison.client_rows(),
        GROUPS.name: comparison.group_rows(),
        "gaps.csv": comparison.gap_rows(),
    }


# A refit ------------------------------------------------------------------------------------------


def settings_of_refit(folder: Path, method: Named, test_share: float = 0.0) -> dict[str, Value]:
    """Return the settings of a refit of a method of the study in a folder, and log their sources.

    The settings are the first finished run's, and the rounds the median over the method's runs.
    Raise FairbloomError if the folder holds no study of a task, the study has no such method, none
    of its runs is finished, or they spent privacy accounts.
    """
    study = find_study(folder)
    if study is None:
        raise RunFolderError(f"{folder} holds no study: name the folder of a comparison")
    arms = {arm.label: arm for arm in study.arms}
    label = find_label(method, list(arms))
    if label is None:
        raise SettingsError(
            f"method = {name_of(method)!r} names none of the methods in {folder}, or several: there"
            f" are {', '.join(arms)}"
        )
    places = [folder / study.folder(arms[label], seed) for seed in study.seeds]
    runs = [load(place) for place in places if is_finished(place)]
    if not runs:
        raise RunFolderError(f"{label} has no finished run in {folder}: the same command continues")
    if runs[0].of_app:
        raise SettingsError(f"an app trains {label}, and decides on which rows: run the app")
    if runs[0].privacy:
        raise SettingsError(
            f"{label} was trained under privacy accounts, which have fixed the split of their rows,"
            f" and their steps: use the model of a run that is there, {runs[0].folder}"
        )
    settings = runs[0].settings
    own = {
        "fraction": settings["fraction"],
        "test-share": test_share,
        "out": str(folder / f"refit-{arms[label].folder}"),
    }
    without = {"early-stopping"}
    if settings["pooled"]:
        without.add("fraction")
    info = find_task(str(settings["task"]))
    if not test_share:
        without |= OF_TESTS
        if info.held_out or settings.get(f"{info.name}.test") == "official":
            without.add("test-share")
            log.warning("task %s has test examples of its own, which stay out", info.name)
    held_out = HELD_OUT.read(runs[0].folder).get(NOT_IN_TRAINING)
    if held_out:
        log.warning("held out, as in the %s: %s", study.noun, join_names(held_out))
    config = {
        key: value for key, value in {**runs[0].differing(), **own}.items() if key not in without
    }
    ends = [*map(_round_of_model, runs)]
    chosen = Settings.of(config)
    # fewer rounds of steps that decay over them would be other steps
    is_paced = chosen.paced or chosen.strategy().paced
    rounds = chosen.num_rounds if is_paced else median_high(ends)
    why = "the median"
    if is_paced:
        why = "as steps decay over them, and not the median"
    log.warning(
        "%s: num-rounds = %d, %s of those after which its runs ended, or were best on validation"
        " examples: %s",
        label,
        rounds,
        why,
        ", ".join(map(str, ends)),
    )
    return {**config, "num-rounds": rounds}


def _round_of_model(run: Run) -> int:
    """Return the round in which validation examples found a run's best model, or else its last."""
    if run.settings.get("validation-share") and BEST.exists_in(run.folder):
        return int(BEST.read_about(run.folder)["round"])
    return run.rounds_done
