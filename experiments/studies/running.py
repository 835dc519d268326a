"""How a study is carried out: what it measures is there, its folder is its own, and its runs go through the pool."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.errors import RunFolderError, check_place, explain_access_errors, explain_write_errors
from fairbloom.server.run_folder.files import is_run_folder
from fairbloom.server.run_folder.lock import locked_folder
from fairbloom.server.run_folder.tables import format_csv
from fairbloom.server.settings import Settings
from fairbloom.system.files import write_whole
from fairbloom.tasks import Task, check_data, load_task
from fairbloom.tasks.groups import NAMING

from ..results.measures import CLIENT, GAP, parse_gap
from ..study import NOUNS, STUDY, Runs, Study
from .on_ray import OnRay, RayWorkers
from .pool import Workers, check_runs

QUIET = logging.ERROR
"""From which level on log lines are printed: hundreds of runs have too many warnings; rounds.csv has what they say."""


@contextlib.contextmanager
def carry_out(
    study: Study, out: Path, jobs: int | OnRay, on_run: Callable[[], None], log_level: int = logging.WARNING
) -> Iterator[Workers]:
    """Check and lock the folder of a study, write study.json, and yield what carries out its runs.

    Up to `jobs` runs go on at a time, each in a process of its own, whose log lines are printed from `log_level` on; or
    as many as a Ray cluster has room for. `on_run` is called after each run, and for each that was finished before.
    """
    check_runs(study.runs(out))
    place = RayWorkers(jobs, log_level, on_run) if isinstance(jobs, OnRay) else Workers(jobs, log_level, on_run)
    with _locked(study, out), place as workers:
        study.write(out)
        yield workers


def with_failures(study: Study, work: Workers) -> Study:
    """Return a study with the failures of what has carried out its runs."""
    arms = {arm.label: arm for arm in study.arms}
    return replace(study, failed={study.folder(arms[key[0]], key[1]): str(e) for key, e in work.failed.items()})


def raise_if_all_failed(runs: Runs, work: Workers) -> None:
    """Raise the error of the first of these runs, with its name, where all of them failed."""
    if runs and work.failed.keys() >= runs.keys():
        label, seed = key = next(iter(runs))
        raise FairbloomError(f"{label} with seed {seed}: {work.failed[key]}") from work.failed[key]


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write tables into a study's folder, by the names of their files; a table without rows has no file any more."""
    with explain_write_errors("the tables", folder):
        for name, rows in tables.items():
            if rows:
                write_whole(folder / name, format_csv(tuple(rows[0]), rows, header=True).encode())
            else:
                (folder / name).unlink(missing_ok=True)


# The score ------------------------------------------------------------------------------------------------------------


def fix_score(settings: Settings) -> dict[str, Value]:
    """Return the setting that all runs of a study need to go by one score; none where they do without.

    Other seeds test other examples, by which another score might fit the data: one run decides for all.

    The settings are those of the run with the first seed.
    """
    from fairbloom.tasks.score import decide_score, has_natural_clients  # imported late, as PyTorch is with it

    if not settings.score and not has_natural_clients(settings):
        return {}
    return {"score": decide_score(settings, load_checked(settings)).name}


def load_checked(settings: Settings) -> Task:
    """Return the task, with data of its clients that can be used."""
    config = settings.run_config()
    check_data(config)
    return load_task(config)


# The measures ---------------------------------------------------------------------------------------------------------


def check_measures(names: Iterable[str], settings: Settings, told: str) -> None:
    """Raise SettingsError where the task of a run has not the client or the groups that measures name.

    `told` begins the message, and is what the user has written the measures in.
    """
    named = [name for name in names if name.startswith((CLIENT, GAP))]
    if not named:
        return
    task = load_checked(settings)
    groups = [each.name for each in task.group_scores if task.groupings]
    for name in named:
        score, client = parse_gap(name) if name.startswith(GAP) else ("", name.removeprefix(CLIENT))
        if score and not groups:
            raise SettingsError(f"{told} = {name!r}: the task has no groups of examples: name a column {NAMING}")
        for word, what, there in ((score, "a score of groups", groups), (client, "a client", task.clients)):
            if word and word not in there:
                hint = did_you_mean(word, there)
                raise SettingsError(f"{told} = {name!r}: {word} is not {what}: {hint}there are {', '.join(there)}")


# The folder -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(study: Study, out: Path) -> Iterator[None]:
    """Lock the folder that runs belong to, which is made if it is not there, and removed if no run came into it."""
    check_place(out)
    if is_run_folder(out):  # its clients.csv would be replaced
        raise RunFolderError(f"{out} is the folder of a single run: choose another folder (--out)")
    with explain_access_errors(out):
        made = not out.exists()
        there = set() if made else {each.name for each in out.iterdir() if not each.name.startswith(".")}
    with contextlib.suppress(RunFolderError):  # none, or a damaged one, which is written again
        if (kind := Study.read(out).kind) != study.kind:  # its tables would be replaced, or stay beside others
            raise FairbloomError(
                f"{out} holds a {NOUNS[kind]}: choose another folder for the {NOUNS[study.kind]} (--out)"
            )
    if there and STUDY not in there and "runs" not in there:  # files of the same names would be replaced
        raise RunFolderError(f"{out} exists and holds no study: choose another folder (--out)")
    try:
        with locked_folder(out, wait=False):
            yield
    finally:
        if made and not (out / "runs").exists():
            (out / STUDY).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                out.rmdir()
