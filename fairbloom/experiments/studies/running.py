"""Carry out a study: check its measures and its folder, and run its runs in a pool."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.errors import (
    RunFolderError,
    check_place,
    explain_access_errors,
    explain_write_errors,
)
from fairbloom.server.run_folder.files import CHECKPOINTS, FRAMES, is_run_folder
from fairbloom.server.run_folder.lock import locked_folder
from fairbloom.server.run_folder.tables import format_csv
from fairbloom.server.settings import Settings
from fairbloom.system.files import write_whole
from fairbloom.tables.groups import NAMING
from fairbloom.tasks import check_data, load_task

from ..results.measures import CLIENT, GAP, parse_gap
from ..results.run import Run, load
from ..study import STUDY, Runs, Study, find_study, is_done
from .pool import check_runs, check_threads, run_all
from .progress import StudyBar

# The lowest level of log lines that are printed of searches and reproductions: the warnings of
# hundreds of runs would be too many, and rounds.csv has them.
QUIET = logging.ERROR


# Called with each run of a study that has finished. An exception ends the study, which can be
# continued.
OnRun = Callable[[Run], None]


def ignore_run(run: Run) -> None:
    """Do nothing with a finished run."""


@dataclass
class StudyRunner:
    """Carries out the runs of a study in processes of this machine.

    `jobs` is the number of processes. The bar also counts runs that were finished
    before. `failed` has the reasons of failed runs, by their folders within the study's, which is
    `out`. `on_run` is called with each run that finishes.
    """

    out: Path
    jobs: int
    bar: StudyBar
    log_level: int
    on_run: OnRun
    failed: dict[str, str] = field(default_factory=dict)

    def run(self, runs: Runs, *, some: bool = False) -> None:
        """Run the unfinished runs; raise FairbloomError if `some` must succeed and all fail."""
        unfinished = {name: run for name, run in runs.items() if not is_done(run)}
        for _ in range(len(runs) - len(unfinished)):
            self.bar.count()
        if unfinished:
            run_all(unfinished, self.jobs, self.log_level, self._note_end)
        if some and self.failed.keys() >= runs.keys():
            name = next(iter(runs))
            raise FairbloomError(f"{name}: {self.failed[name]}")

    def _note_end(self, name: str, error: FairbloomError | None) -> None:
        run = Path(name).name
        if error is None:
            self.bar.count(f"{run} has finished")
            self.on_run(load(self.out / name))
        else:
            self.failed[name] = str(error)
            self.bar.count(f"{run} has failed: {error}")


@contextlib.contextmanager
def carry_out(
    study: Study,
    out: Path,
    jobs: int,
    bar: StudyBar,
    on_run: OnRun = ignore_run,
) -> Iterator[StudyRunner]:
    """Check and lock the folder of a study, write study.json, and yield the runner of its runs."""
    runs = study.runs(out)
    check_runs(runs)
    check_threads(runs, jobs)
    log_level = logging.WARNING if study.kind == "compare" else QUIET
    with study_folder(study, out):
        # `flwr run` gives a run all processors
        at_a_time = 1 if study.app and study.app.flwr else jobs
        yield StudyRunner(out, at_a_time, bar, log_level, on_run)


@contextlib.contextmanager
def study_folder(study: Study, out: Path) -> Iterator[None]:
    """Check and lock the folder of a study, and write study.json.

    The folder is created if necessary, and removed after an error if no run was started.
    """
    check_place(out)
    if is_run_folder(out):  # its clients.csv would be replaced
        raise RunFolderError(f"{out} is the folder of a single run: choose another folder (--out)")
    with explain_access_errors(out):
        created = not out.exists()
        names = set[str]() if created else {path.name for path in out.iterdir()}
    visible = {name for name in names if not name.startswith(".") and name != FRAMES.name}
    with contextlib.suppress(RunFolderError):  # a damaged study is written again
        there = find_study(out)
        # the tables of another kind would be replaced, or remain among the new ones
        if there and there.noun != study.noun:
            raise FairbloomError(
                f"{out} holds a {there.noun}: choose another folder for the {study.noun} (--out)"
            )
        if there and there.app and study.app and any(out.glob(f"runs/*/{CHECKPOINTS.name}/*")):
            study.app.check_same(there.app, out)
    # files of the same names would be replaced
    if visible and STUDY not in visible and "runs" not in visible:
        raise RunFolderError(f"{out} exists and holds no study: choose another folder (--out)")
    try:
        with locked_folder(out, wait=False):
            study.write(out)
            yield
    except BaseException:
        if created and not (out / "runs").exists():
            (out / STUDY).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                out.rmdir()
        raise


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write tables into a study's folder, by the names of their files.

    The file of a table without rows is removed.
    """
    with explain_write_errors("the tables", folder):
        for name, rows in tables.items():
            if rows:
                text = format_csv(tuple(rows[0]), rows)
                write_whole(folder / name, text.encode())
            else:
                (folder / name).unlink(missing_ok=True)


# The score ----------------------------------------------------------------------------------------


def fix_score(settings: Settings, *, deployed: bool = False) -> dict[str, Value]:
    """Return the setting that gives all runs of a study the same score, {} if not needed.

    Seeds may draw different clients, for which different scores might be chosen, so the run with
    the first seed decides for all. Its settings are `settings`. No data are read for `deployed`
    runs: other machines have them.
    """
    # imported late, as PyTorch is with it
    from fairbloom.tasks.score import decide_score, has_natural_clients

    if not settings.score and not has_natural_clients(settings):
        return {}
    if not deployed:
        check_data(settings)
    return {"score": decide_score(settings, load_task(settings), deployed=deployed).name}


# The measures -------------------------------------------------------------------------------------


def check_measures(names: Iterable[str], settings: Settings, option: str) -> None:
    """Raise SettingsError if measures name a client or groups that the task of a run does not have.

    `option` is where the user gave the measures; the message begins with it.
    """
    named = [name for name in names if name.startswith((CLIENT, GAP))]
    if not named:
        return
    check_data(settings)
    task = load_task(settings)
    groups = [each.name for each in task.group_scores] if task.reported_groupings else []
    for name in named:
        of_gap = name.startswith(GAP)
        score, client = parse_gap(name) if of_gap else ("", name.removeprefix(CLIENT))
        if score and not groups:
            raise SettingsError(
                f"{option} = {name!r}: the task has no groups of examples: name a column {NAMING}"
            )
        if score and score not in groups:
            raise SettingsError(
                f"{option} = {name!r}: {score} is not a score of groups:"
                f" {did_you_mean(score, groups)}there are {', '.join(groups)}"
            )
        if client and client not in task.clients:
            raise SettingsError(
                f"{option} = {name!r}: {client} is not a client:"
                f" {did_you_mean(client, task.clients)}there are {', '.join(task.clients)}"
            )
