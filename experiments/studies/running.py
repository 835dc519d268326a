"""How a study is carried out: what it measures is there, its folder is its own, and its runs go through the pool."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from fairbloom.server.run_folder.files import is_run_folder
from fairbloom.server.run_folder.lock import locked_folder
from fairbloom.server.run_folder.tables import format_csv
from fairbloom.server.settings import Settings
from fairbloom.system.files import write_whole
from fairbloom.tasks import Task, check_data, load_task
from fairbloom.tasks.groups import NAMING

from ..results.measures import CLIENT, GAP, parse_gap
from ..study import NOUNS, STUDY, Runs, Study, is_done
from .on_ray import OnRay, run_on_cluster
from .pool import check_runs, run_in_processes
from .progress import StudyBar

QUIET = logging.ERROR
"""From which level on log lines are printed: hundreds of runs have too many warnings; rounds.csv
has what they say."""


@dataclass
class StudyRunner:
    """What carries out the runs of a study: processes of this machine, so many at a time, or a Ray cluster.

    The bar counts each run, and each that was finished before; `failed` has why runs failed, by
    their folders in the study's.
    """

    place: int | OnRay
    bar: StudyBar
    log_level: int
    failed: dict[str, str] = field(default_factory=dict)

    def run(self, runs: Runs, *, some: bool = False) -> None:
        """Run what is not finished; raise FairbloomError if `some` must succeed and all fail."""
        unfinished = {name: run for name, run in runs.items() if not is_done(run)}
        for _ in range(len(runs) - len(unfinished)):
            self.bar.count()
        if unfinished:
            if isinstance(self.place, OnRay):
                run_on_cluster(unfinished, self.place, self.log_level, self._note_end)
            else:
                run_in_processes(unfinished, self.place, self.log_level, self._note_end)
        if some and self.failed.keys() >= runs.keys():
            name = next(iter(runs))
            raise FairbloomError(f"{name}: {self.failed[name]}")

    def _note_end(self, name: str, error: FairbloomError | None) -> None:
        if error is not None:
            self.failed[name] = str(error)
        self.bar.count()


@contextlib.contextmanager
def carry_out(
    study: Study, out: Path, place: int | OnRay, bar: StudyBar, log_level: int = logging.WARNING
) -> Iterator[StudyRunner]:
    """Check and lock the folder of a study, write study.json, and yield what carries out its runs.

    The folder is made if it is not there, and removed if no run came into it. Lines that runs log
    are printed from `log_level` on.
    """
    check_runs(study.runs(out))
    check_place(out)
    if is_run_folder(out):  # its clients.csv would be replaced
        raise RunFolderError(f"{out} is the folder of a single run: choose another folder (--out)")
    with explain_access_errors(out):
        made = not out.exists()
        there = (
            set()
            if made
            else {each.name for each in out.iterdir() if not each.name.startswith(".")}
        )
    with contextlib.suppress(RunFolderError):  # none, or a damaged one, which is written again
        # its tables would be replaced, or stay beside others
        if (kind := Study.read(out).kind) != study.kind:
            raise FairbloomError(
                f"{out} holds a {NOUNS[kind]}: choose another folder for the {NOUNS[study.kind]}"
                " (--out)"
            )
    # files of the same names would be replaced
    if there and STUDY not in there and "runs" not in there:
        raise RunFolderError(f"{out} exists and holds no study: choose another folder (--out)")
    try:
        with locked_folder(out, wait=False):
            study.write(out)
            yield StudyRunner(place, bar, log_level)
    finally:
        if made and not (out / "runs").exists():
            (out / STUDY).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                out.rmdir()


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write tables into a study's folder, by the names of their files.

    A table without rows has no file any more.
    """
    with explain_write_errors("the tables", folder):
        for name, rows in tables.items():
            if rows:
                write_whole(folder / name, format_csv(tuple(rows[0]), rows, header=True).encode())
            else:
                (folder / name).unlink(missing_ok=True)


# The score ----------------------------------------------------------------------------------------


def fix_score(settings: Settings) -> dict[str, Value]:
    """Return the setting that all runs of a study need to go by one score.

    None where they do without.

    Other seeds test other examples, by which another score might fit the data: one run decides for
    all.

    The settings are those of the run with the first seed.
    """
    # imported late, as PyTorch is with it
    from fairbloom.tasks.score import decide_score, has_natural_clients

    if not settings.score and not has_natural_clients(settings):
        return {}
    return {"score": decide_score(settings, load_checked(settings)).name}


def load_checked(settings: Settings) -> Task:
    """Return the task, with data of its clients that can be used."""
    config = settings.run_config()
    check_data(config)
    return load_task(config)


# The measures -------------------------------------------------------------------------------------


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
            raise SettingsError(
                f"{told} = {name!r}: the task has no groups of examples: name a column {NAMING}"
            )
        for word, what, there in (
            (score, "a score of groups", groups),
            (client, "a client", task.clients),
        ):
            if word and word not in there:
                hint = did_you_mean(word, there)
                raise SettingsError(
                    f"{told} = {name!r}: {word} is not {what}: {hint}there are {', '.join(there)}"
                )
