"""How a study is carried out: its runs go through the pool, after its results have been rehearsed."""

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import AGREED
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.errors import RunFolderError, check_place, explain_access_errors, explain_write_errors
from fairbloom.server.run_folder.files import is_run_folder
from fairbloom.server.run_folder.lock import locked_folder
from fairbloom.server.run_folder.tables import format_csv
from fairbloom.server.settings import Settings
from fairbloom.system.files import write_whole
from fairbloom.tasks import Task, check_data, load_task

from ..study import NOUNS, STUDY, Runs, Study
from .on_ray import OnRay, RayWorkers
from .pool import Workers, check_runs, is_done

QUIET = logging.ERROR
"""From which level on log lines are printed: hundreds of runs have too many warnings; rounds.csv has what they say."""

SHORT_ROUNDS = 5
"""Studies of runs with at most so many rounds are not rehearsed: that would take about as long as they do."""


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


def rehearse(
    study: Study, jobs: int | OnRay, out: Path, try_results: Callable[[Study, Path], object], arms: Sequence[str]
) -> None:
    """Run these arms for one round with the first seed on this machine, and try to show the results; nothing stays.

    `try_results` takes the study of those that did not fail, and its folder.

    Raises FairbloomError where results could not be measured or shown. Runs that fail are the training's to report, as
    are scores that clients lack after one round.
    """
    if not any(run.num_rounds > SHORT_ROUNDS and not is_done(run) for run in study.runs(out).values()):
        return
    few = study.of(arms, study.seeds[:1])
    own = [{key: value for key, value in arm.settings.items() if key != "num-rounds"} for arm in few.arms]
    short = replace(
        few,
        arms=[replace(arm, settings=settings) for arm, settings in zip(few.arms, own, strict=True)],
        settings={**study.settings, "num-rounds": 1},
    )
    with tempfile.TemporaryDirectory(prefix="fairbloom-") as name:
        scratch = Path(name)
        try:
            with Workers(1 if isinstance(jobs, OnRay) else jobs, logging.CRITICAL) as here:
                here.run(short.runs(scratch))
            failed = with_failures(short, scratch, here)
            if going := [arm for arm in short.arms if not failed.failures(arm)]:
                try_results(replace(short, arms=going), scratch)
        except (SettingsError, RunFolderError):  # a setting that takes more rounds, or a score that is not there yet
            return
        except FairbloomError:
            raise
        except Exception as error:  # a mistake of this program, found in seconds rather than hours
            raise FairbloomError(
                f"the results of this study could not be shown ({type(error).__name__}: {error}), so nothing was "
                "trained: please report it"
            ) from error


def with_failures(study: Study, out: Path, work: Workers) -> Study:
    """Return a study with the failures of what has carried out its runs."""
    return replace(study, failed={str(path.relative_to(out)): reason for path, reason in work.failures.items()})


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
    return {"score": decide_score(settings, load_agreed(settings)).name}


def load_agreed(settings: Settings) -> Task:
    """Return the task with what its clients agree on about their data."""
    from fairbloom.server.app import agree  # imported late, as PyTorch is with them
    from fairbloom.simulation.loop import LoopClients

    config = settings.run_config()
    check_data(config)
    with closing(LoopClients(settings.strategy(), config)) as clients:
        return load_task({**config, AGREED: agree(settings, clients, deployed=False)})


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
