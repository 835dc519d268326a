"""The one way in which a study is carried out: its runs go through the pool, and its results are collected."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fairbloom.errors import FairbloomError
from fairbloom.server.run_folder.errors import RunFolderError, check_place, explain_access_errors, explain_write_errors
from fairbloom.server.run_folder.files import is_run_folder
from fairbloom.server.run_folder.lock import locked_folder
from fairbloom.server.run_folder.tables import format_csv
from fairbloom.system.files import write_whole

from ..results.plans import PlanFile, kind_of
from .on_ray import OnRay, RayWorkers
from .pool import RunKey, Runs, Workers, check_runs
from .rehearsal import Failures, rehearse
from .study import Study

Result = TypeVar("Result")


def run_study(
    study: Study,
    jobs: int | OnRay,
    on_run: Callable[[], None],
    collect: Callable[[Failures], Result],
    try_results: Callable[[Study, Failures], object] = lambda study, failures: None,
    plan: PlanFile | None = None,
    kind: str = "",
    log_level: int = logging.WARNING,
) -> Result:
    """Run what is missing of a study, and return what `collect` makes of the failures.

    Its results are rehearsed by `try_results`. Its grids are searched then; at last the best candidates are run with
    all seeds. Runs that are finished are not run again, interrupted ones continue, and finished ones that are to have
    more rounds are extended. A run that fails ends no other, unless all fail.
    """
    first = study.first_runs()
    check_runs(first)
    with carry_out(study.out, jobs, on_run, kind, plan=plan, log_level=log_level) as work:
        rehearse(jobs, study, try_results)
        work.run(first)
        raise_if_all_failed(first, work)
        done = {settings.out for settings in first.values()}
        work.run({key: settings for key, settings in study.chosen_runs().items() if settings.out not in done})
        return collect(work.failures)


@contextlib.contextmanager
def carry_out(
    out: Path,
    jobs: int | OnRay,
    on_run: Callable[[], None],
    kind: str,
    *,
    plan: PlanFile | None = None,
    log_level: int = logging.WARNING,
) -> Iterator[Workers]:
    """Lock the folder of a study of a kind, write its plan if it has one, and yield what carries out its runs.

    Up to `jobs` runs go on at a time, each in a process of its own, whose log lines are printed from `log_level` on; or
    as many as a Ray cluster has room for.
    `on_run` is called after each run, and for each that was finished before.
    """
    place = RayWorkers(jobs, log_level, on_run) if isinstance(jobs, OnRay) else Workers(jobs, log_level, on_run)
    with _locked(out, kind, plan), place as workers:
        if plan:
            plan.write(out)
        yield workers


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write tables into a study's folder, by the names of their files; a table without rows has no file any more."""
    with explain_write_errors("the tables", folder):
        for name, rows in tables.items():
            if rows:
                write_whole(folder / name, format_csv(tuple(rows[0]), rows, header=True).encode())
            else:
                (folder / name).unlink(missing_ok=True)


def raise_failure(key: RunKey, error: FairbloomError) -> None:
    """Raise the error of a run that failed, with the run's name."""
    label, seed = key
    raise FairbloomError(f"{label} with seed {seed}: {error}") from error


def raise_if_all_failed(runs: Runs, work: Workers) -> None:
    """Raise the error of the first of these runs, with its name, where all of them failed."""
    if len(work.failed) == len(runs):
        key = next(iter(runs))
        raise_failure(key, work.failed[key])


@contextlib.contextmanager
def _locked(out: Path, kind: str, plan: PlanFile | None) -> Iterator[None]:
    """Lock the folder that runs belong to, which is made if it is not there, and removed if no run came into it."""
    check_place(out)
    if is_run_folder(out):  # its clients.csv would be replaced
        raise RunFolderError(f"{out} is the folder of a single run: choose another folder (--out)")
    with explain_access_errors(out):
        made = not out.exists()
        there = set() if made else {each.name for each in out.iterdir() if not each.name.startswith(".")}
    if (found := kind_of(out)) not in ("", kind):  # its tables would be replaced, or stay beside others' plans
        raise RunFolderError(f"{out} holds a {found}: choose another folder for the {kind} (--out)")
    if there and not found and "runs" not in there:  # files of the same names would be replaced
        raise RunFolderError(f"{out} exists and holds no study: choose another folder (--out)")
    try:
        with locked_folder(out, wait=False):
            yield
    finally:
        if made and not (out / "runs").exists():
            if plan:
                (out / plan.file).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                out.rmdir()
