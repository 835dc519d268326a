"""The settings of a refit: one run of a study's method on all rows, whose model is used from then.

A study judges methods by test examples, with several seeds; a refit gives these examples to
training.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fairbloom.errors import join_names
from fairbloom.logs import log
from fairbloom.protocol.settings import NO_TESTS, SettingsError, key_of
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import BEST, HELD_OUT, NOT_IN_TRAINING, is_finished
from fairbloom.server.settings import IDLE, Settings, default_config
from fairbloom.strategies import name_of
from fairbloom.tasks import find_task

from ..arms import Named, find_label
from ..results.run import Run, load
from ..study import find_study

# Settings without an effect if nothing is measured.
OF_TESTS = {"evaluate-every", *(key_of(name) for name, mark in IDLE if mark == NO_TESTS)}


def settings_of_refit(folder: Path, method: Named, test_share: float = 0.0) -> dict[str, Any]:
    """Return the settings of a refit of a method of the study in a folder, and log why.

    They are those of the method's first finished run, with the median of the rounds of all its
    runs. Raise FairbloomError if the folder holds no study of a task, the study has no such method,
    none of its runs is finished, or they spent privacy accounts.
    """
    study = find_study(folder)
    if study is None:
        raise RunFolderError(
            f"{folder} holds no study: name the folder of a comparison, by fairbloom compare --out"
        )
    arms = {arm.label: arm for arm in study.arms}
    label = find_label(method, list(arms))
    if label is None:
        raise SettingsError(
            f"method = {name_of(method)!r} names none of the study's methods, or several: there are"
            f" {', '.join(arms)}"
        )
    places = [folder / study.folder(arms[label], seed) for seed in study.seeds]
    runs = [load(place) for place in places if is_finished(place)]
    _check(runs, f"{label} in {folder}")
    recorded = runs[0].settings
    without = {"early-stopping"}
    info = find_task(str(recorded["task"]))
    if not test_share:
        without |= OF_TESTS
        if info.held_out or info.tests_by_seed(recorded) == "fixed":
            test_share = float(recorded["test-share"])
            log.warning("task %s has test examples of its own, which stay out", info.name)
    changed = {"test-share": test_share, "out": str(folder / f"refit-{arms[label].folder}")}
    defaults = default_config()
    config = {
        key: value
        for key, value in {**recorded, **changed}.items()
        if key not in without and value != defaults.get(key)
    }
    if held_out := HELD_OUT.read(runs[0].folder).get(NOT_IN_TRAINING):
        log.warning("held out, as in the %s: %s", study.noun, join_names(held_out))
    return {**config, "num-rounds": _choose_rounds(label, runs, Settings.of(config))}


def _check(runs: Sequence[Run], where: str) -> None:
    """Raise FairbloomError unless these runs of a method can be trained again."""
    if not runs:
        raise RunFolderError(f"{where} has no finished run: the command of the study continues it")
    if runs[0].of_app:
        raise SettingsError(f"{where} is trained by an app, which decides on its data: run the app")
    if runs[0].privacy:
        raise SettingsError(
            f"{where} was trained under privacy accounts, which have fixed the split of their rows,"
            f" and their steps: use the model of a run that is there, {runs[0].folder}"
        )


def _choose_rounds(label: str, runs: Sequence[Run], settings: Settings) -> int:
    """Return the rounds of a refit, the median of those of runs, rounded up, and log why.

    If steps depend on the number of rounds, it is that of the runs: others would be other steps.
    """
    if settings.paced or settings.strategy().paced:
        log.warning("%s: %d rounds, over which its steps decay", label, settings.num_rounds)
        return settings.num_rounds
    ends = []
    ended = "ended"
    for run in runs:
        ends.append(run.rounds_done)
        if run.settings.get("validation-share") and BEST.exists_in(run.folder):
            ends[-1] = int(BEST.read_about(run.folder)["round"])
            ended = "were best on validation examples"
    rounds = math.ceil(median(ends))
    listed = ", ".join(map(str, ends))
    log.warning(
        "%s: %d rounds, the median of those after which its runs %s: %s",
        label,
        rounds,
        ended,
        listed,
    )
    return rounds
