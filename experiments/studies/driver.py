"""The one way in which a study is carried out: its runs go through the pool, and its results are collected."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fairbloom.errors import FairbloomError
from fairbloom.server.run_folder.errors import check_place, explain_write_errors
from fairbloom.server.run_folder.lock import locked_folder
from fairbloom.server.run_folder.tables import format_csv
from fairbloom.system.files import write_whole

from ..results.comparison import Plan
from ..results.run import COMPARISON
from .pool import RunKey, check_runs, run_pool
from .study import Study

Result = TypeVar("Result")

Failures = Mapping[Path, str]
"""Why runs failed, by their folders."""


def run_study(
    study: Study,
    jobs: int,
    on_run: Callable[[], None],
    collect: Callable[[Failures], Result],
    *,
    plan: Plan | None = None,
    stop_at_failure: bool = False,
    log_level: int = logging.WARNING,
) -> Result:
    """Run what is missing of a study, and return what is collected from its runs.

    Runs that are finished are not run again, interrupted ones continue, and finished ones that are to have more rounds
    are extended. One process at a time writes into the study's folder.

    Parameters
    ----------
    study
        What is run. Its grids are searched first; then the best candidates are run with all seeds.
    jobs
        How many runs go on at a time, each in a process of its own.
    on_run
        Called after each run, and for each that was finished before.
    collect
        Called with the failures when all runs are over; it may write into the study's folder.
    plan
        The file that says what a comparison runs, written before the first run.
    stop_at_failure
        Whether the first failure ends the study; if not, it goes on unless all runs fail.
    log_level
        From which level on the runs' log lines are printed.

    Raises
    ------
    FairbloomError
        When a run cannot be started or continued, as far as that can be known before the first is, or when runs fail.
    """
    failed: dict[RunKey, FairbloomError] = {}
    on_failure = raise_failure if stop_at_failure else failed.__setitem__
    first = study.first_runs()
    check_runs(first)
    with _locked(study.out):
        if plan:
            plan.write(study.out)
        run_pool(first, jobs, on_run, on_failure, log_level)
        if len(failed) == len(first):
            raise_failure(*next(iter(failed.items())))
        done = {settings.out for settings in first.values()}
        rest = {key: settings for key, settings in study.chosen_runs().items() if settings.out not in done}
        run_pool(rest, jobs, on_run, on_failure, log_level)
        runs = first | rest
        return collect({Path(runs[key].out): str(error) for key, error in failed.items()})


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write tables into a study's folder, by the names of their files; a table without rows has no file."""
    with explain_write_errors("the tables", folder):
        for name, rows in tables.items():
            if rows:
                write_whole(folder / name, format_csv(tuple(rows[0]), rows, header=True).encode())


def raise_failure(key: RunKey, error: FairbloomError) -> None:
    """Raise the error of a run that failed, with the run's name."""
    label, seed = key
    raise FairbloomError(f"{label} with seed {seed}: {error}") from error


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock the folder that runs belong to, which is made if it is not there, and removed if no run came into it."""
    check_place(out)
    made = not out.exists()
    try:
        with locked_folder(out, wait=False):
            yield
    finally:
        if made and not (out / "runs").exists():
            (out / COMPARISON).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                out.rmdir()
