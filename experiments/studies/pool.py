"""Several runs at a time, each in a process of its own, into the folder of whatever they belong to."""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from fairbloom.errors import FairbloomError
from fairbloom.imports import check_seen
from fairbloom.logs import colour_on_terminals_alone
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.run_folder.errors import check_place
from fairbloom.server.run_folder.recorder import check_folder, check_same_data, is_finished, rounds_in
from fairbloom.server.settings import Settings
from fairbloom.simulation.dispatch.processes import processors_here
from fairbloom.system.lock import alone
from fairbloom.tasks import check_data, digests
from fairbloom.tasks.files.reading import FileStamp, keep_tables, kept_tables
from fairbloom.tasks.files.table import Table

RunKey = tuple[str, int]
"""What a run is called among several: a label, and the seed."""

Runs = Mapping[RunKey, Settings]
"""The settings of each run."""


def check_runs(runs: Runs) -> None:
    """Raise FairbloomError where a run cannot be started or continued, as far as that can be known before."""
    read: dict[tuple[str, str], Mapping[str, str]] = {}
    for run in runs.values():
        for key, name in (("task", run.task), ("model", run.model), ("method", run.method)):
            check_seen(key, name, "the processes of several runs")
        if run.from_round >= 0:
            raise SettingsError(
                f"from-round = {run.from_round}: one run at a time is taken back: leave it out, or take back one of "
                "these by fairbloom run --from-round with its folder as --out"
            )
        check_data(run.run_config())
        check_folder(Path(run.out), run.run_config())
        place = (run.task, run.data_dir)
        if place not in read:
            read[place] = digests(run.run_config())
        check_same_data(Path(run.out), read[place])


@contextlib.contextmanager
def held(out: Path, plan: str = "") -> Iterator[None]:
    """Hold the folder that runs belong to, which is made if it is not there, and removed if no run came into it.

    Parameters
    ----------
    out
        The folder; the runs lie in its folder runs/.
    plan
        The file in it, if any, that says what is to be run, which goes with the folder.
    """
    check_place(out)
    made = not out.exists()
    try:
        with alone(out, wait=False):
            yield
    finally:
        if made and not (out / "runs").exists():
            if plan:
                (out / plan).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                out.rmdir()


def ends_all(key: RunKey, error: FairbloomError) -> None:
    """Raise the error of a run that failed, with the run's name."""
    label, seed = key
    raise FairbloomError(f"{label} with seed {seed}: {error}") from error


def run_all(
    runs: Runs,
    jobs: int,
    on_run: Callable[[], None],
    on_failure: Callable[[RunKey, FairbloomError], None] = ends_all,
    log_level: int = logging.WARNING,
) -> None:
    """Run everything that is not finished, `jobs` at a time.

    Parameters
    ----------
    runs
        The runs.
    jobs
        How many go on at a time.
    on_run
        Called after each run, and for each that was finished before.
    on_failure
        Called with the run that failed, and with its error; what it raises ends all.
    log_level
        From which level on the runs' log lines are printed.
    """
    unfinished = {key: run for key, run in runs.items() if not is_done(run)}
    for _ in range(len(runs) - len(unfinished)):
        on_run()
    if not unfinished:
        return
    at_a_time = min(jobs, len(unfinished))
    context = multiprocessing.get_context("spawn")
    ended, held_open = context.Pipe(duplex=False)
    with (
        held_open,
        ended,
        ProcessPoolExecutor(
            at_a_time, mp_context=context, initializer=begin_worker, initargs=(ended, kept_tables())
        ) as pool,
    ):
        with main_unseen():
            started = {pool.submit(run_quietly, run, at_a_time, log_level): key for key, run in unfinished.items()}
        try:
            for done in as_completed(started):
                try:
                    done.result()
                except FairbloomError as error:
                    on_failure(started[done], error)
                except BrokenProcessPool as error:
                    raise FairbloomError(
                        "the system has ended the process of a run, as it does when memory runs short: lower --jobs, "
                        "and run the same command again, which continues"
                    ) from error
                on_run()
        except BaseException:
            held_open.close()  # which ends these workers, and no other process of the caller's
            pool.shutdown(cancel_futures=True)
            raise


def is_done(run: Settings) -> bool:
    """Return whether a run is finished, with as many rounds as it is to have."""
    folder = Path(run.out)
    return is_finished(folder) and rounds_in(folder) == run.num_rounds


@contextlib.contextmanager
def main_unseen() -> Iterator[None]:
    """Hide the script that calls us from processes that are spawned, which would run it once more."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def begin_worker(ended: Connection, tables: Mapping[FileStamp, Table]) -> None:
    """Prepare a worker process, which is given the tables that its driver has read, so that it does not read them."""
    end_with_the_driver(ended)
    keep_tables(tables)


def end_with_the_driver(ended: Connection) -> None:
    """Let Ctrl-C end a worker at once and in silence, and let it end when its driver closes a pipe, or is killed.

    The driver says what there is to say. Without it the worker would wait for another run for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_the_pipe, args=(ended,), daemon=True).start()


def _end_with_the_pipe(ended: Connection) -> None:
    ended.poll(None)  # nothing is ever sent: it returns when the other end is closed
    os._exit(1)  # a run that is cut off continues with the same command


def run_quietly(settings: Settings, at_a_time: int, log_level: int) -> None:
    """Run in a worker process, beside others, with no log lines below a level."""
    logging.getLogger("flwr").setLevel(log_level)
    colour_on_terminals_alone()
    from fairbloom.simulation.run import simulate  # imported late, as PyTorch is with it

    simulate(settings, processors=max(1, processors_here() // at_a_time))
