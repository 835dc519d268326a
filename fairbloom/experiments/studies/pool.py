"""Several runs at a time, each in its own process where there may be others."""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection, wait
from multiprocessing.process import current_process
from multiprocessing.synchronize import Lock
from pathlib import Path
from types import ModuleType

from fairbloom.errors import FairbloomError
from fairbloom.imports import check_seen
from fairbloom.logs import log, log_from
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.run_folder.checks import check_folder, check_same_data
from fairbloom.server.settings import Settings
from fairbloom.system.machine import processors_here
from fairbloom.system.supervise import finish_first, hold_signals, release_signals
from fairbloom.tasks import check_data, digests

from ..apps import AppRun
from ..study import Runs
from .app_process import check_begun, run_app


def check_runs(runs: Runs) -> None:
    """Raise FairbloomError if it is already known that a run cannot start or continue."""
    read: dict[tuple[str, str], Mapping[str, str]] = {}
    for run in runs.values():
        if isinstance(run, AppRun):  # the app decides on its data
            check_seen("method", run.method, "the app's processes")
            check_begun(run)
            continue
        for key in ("task", "model", "method", "partition", "optimizer", "client-rule"):
            check_seen(key, getattr(run, key.replace("-", "_")), "the processes of several runs")
        if not run.test_share:
            raise SettingsError(
                "test-share = 0: methods are compared by test examples: leave it out, and train the"
                " chosen method on all rows by fairbloom refit"
            )
        check_data(run)
        check_folder(Path(run.out), run.run_config())
        place = (run.task, run.data_dir)
        if place not in read:
            read[place] = digests(run)
        check_same_data(Path(run.out), read[place])


def check_threads(runs: Runs, jobs: int) -> None:
    """Raise SettingsError if several runs at a time have more threads than there are processors.

    A single run may have more: it continues with as many as it has begun with.
    """
    of_tasks = [run for run in runs.values() if isinstance(run, Settings)]
    threads = max((run.threads for run in of_tasks), default=1)
    at_a_time = min(jobs, len(runs))
    processors = processors_here()
    if threads > 1 and at_a_time > 1 and at_a_time * threads > processors:
        raise SettingsError(
            f"threads = {threads}: {at_a_time} runs at a time would have {at_a_time * threads}"
            f" threads, and {processors} processors are here: set --jobs"
            f" {max(1, processors // threads)}, or leave threads out: runs side by side are faster"
        )


# Called with the name of a run that has ended, and with its error if it failed.
Ended = Callable[[str, FairbloomError | None], None]


def run_all(runs: Runs, jobs: int, log_level: int, ended: Ended) -> None:
    """Carry out runs in processes of their own, or here if this process may start none."""
    if current_process().daemon:  # in a multiprocessing.Pool, for example
        if len(runs) > 1:
            log.warning(
                "this process is a worker that may start no others, so %d runs follow one after the"
                " other in it",
                len(runs),
            )
        run_in_turn(runs, log_level, ended)
    else:
        run_in_processes(runs, jobs, log_level, ended)


def run_in_turn(runs: Runs, log_level: int, ended: Ended) -> None:
    """Carry out runs one after the other in this process, without log lines below a level."""
    for name, run in runs.items():
        failed: FairbloomError | None = None
        try:
            with log_from(log_level):
                carry_out_run(run)
        except FairbloomError as error:
            failed = error
        ended(name, failed)


def run_in_processes(runs: Runs, jobs: int, log_level: int, ended: Ended) -> None:
    """Run at most `jobs` runs at a time; any error that is not of a run ends the others.

    This process prints what the others log from a level on.
    """
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as opened:
        over, held_open = context.Pipe(duplex=False)
        records, sent = context.Pipe(duplex=False)
        for end in (over, held_open, records, sent):
            opened.enter_context(end)
        printer = threading.Thread(target=print_records, args=(records, over), daemon=True)
        printer.start()
        # in seconds: a killed worker may leave half a record, which the printer waits for
        opened.callback(printer.join, 5.0)
        # ends these workers only, and no other process of the caller
        opened.callback(held_open.send_bytes, b"end")
        pool = ProcessPoolExecutor(
            min(jobs, len(runs)),
            mp_context=context,
            initializer=begin_worker,
            initargs=(over, sent, context.Lock()),
        )
        opened.enter_context(hide_main())
        try:
            # Ctrl-C goes to all processes of a terminal: a worker that is still importing would
            # print its traceback, and so would one that this process stops to start. A thread
            # of this process may get the signal, which none of them holds back.
            with finish_first(), hold_signals(signal.SIGINT):
                started = {
                    pool.submit(run_quietly, run, log_level): name for name, run in runs.items()
                }
            for done in as_completed(started):
                ended(started[done], _error_of(done))
        except BaseException:
            held_open.send_bytes(b"end")
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _error_of(done: Future[None]) -> FairbloomError | None:
    """Return the error of a run that has failed; raise one that ends all runs."""
    try:
        done.result()
    except FairbloomError as error:
        return error
    except BrokenProcessPool as error:
        raise FairbloomError(
            "the system has ended the process of a run, as it does when memory runs short: lower"
            " --jobs, and run the same command again, which continues"
        ) from error
    return None


@contextlib.contextmanager
def hide_main() -> Iterator[None]:
    """Hide the calling script from spawned processes, which would run it again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def begin_worker(over: Connection, records: Connection, turn: Lock) -> None:
    """Prepare a worker process: its driver prints its log records and ends it through a pipe.

    The pipe also ends it when the driver is killed. Ctrl-C ends it at once and silently: the driver
    prints the message.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    release_signals(signal.SIGINT)  # it has waited since the process began
    threading.Thread(target=_end_with_pipe, args=(over,), daemon=True).start()
    send_records(records, turn)


def _end_with_pipe(over: Connection) -> None:
    # No worker reads the message, so all see it; poll also returns when the other end closes.
    over.poll(None)
    os._exit(1)  # an interrupted run continues with the same command


def run_quietly(run: Settings | AppRun, log_level: int) -> None:
    """Run in a worker process, without log lines below a level."""
    logging.getLogger("flwr").setLevel(log_level)
    carry_out_run(run)


def carry_out_run(run: Settings | AppRun) -> None:
    """Carry out a run of a task in this process, or start an app's and wait for its end."""
    if isinstance(run, AppRun):
        run_app(run)
        return
    from fairbloom.simulation.run import simulate  # imported late, as PyTorch is with it

    simulate(run)


# Log records of workers, printed by their driver: its progress bar makes room for them ------------


def send_records(pipe: Connection, turn: Lock) -> None:
    """Send this process's log records and Python's warnings to another process.

    A process holds the lock `turn` while it sends.
    """
    logging.captureWarnings(True)
    for name in ("flwr", "py.warnings"):
        logging.getLogger(name).handlers = [_Sender(pipe, turn)]


class _Sender(QueueHandler):
    """Sends log records through a pipe into which several processes write."""

    def __init__(self, pipe: Connection, turn: Lock) -> None:
        super().__init__(pipe)  # type: ignore[arg-type]  # `enqueue` below is all that uses it
        self._pipe = pipe
        self._turn = turn

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record."""
        with self._turn:
            self._pipe.send(record)


def print_records(pipe: Connection, ended: Connection) -> None:
    """Print the log records of other processes here, until a message comes through `ended`.

    On a terminal, equal lines of several processes are printed once.
    """
    printed: set[str] = set()
    while pipe in wait([pipe, ended]):
        record: logging.LogRecord = pipe.recv()
        record.msg = str(record.msg).rstrip("\n")  # Python's warnings end a line
        # `sys.stderr` may be that of a progress bar, so the descriptor is asked
        if record.msg not in printed or not os.isatty(2):
            logging.getLogger(record.name).handle(record)
        printed.add(record.msg)
