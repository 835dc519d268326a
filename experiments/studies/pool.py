"""Several runs at a time, each in a process of its own."""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Lock
from pathlib import Path
from types import ModuleType

from fairbloom.errors import FairbloomError
from fairbloom.imports import check_seen
from fairbloom.server.run_folder.checks import check_folder, check_same_data
from fairbloom.server.run_folder.files import CONFIG, is_finished
from fairbloom.server.settings import Settings
from fairbloom.system.interrupts import hold_signals, release_signals
from fairbloom.system.processors import processors_here
from fairbloom.tasks import check_data, digests

from ..study import RunKey, Runs
from .log_records import print_records, send_records


def check_runs(runs: Runs) -> None:
    """Raise FairbloomError where a run cannot be started or continued, as far as that can be known before."""
    read: dict[tuple[str, str], Mapping[str, str]] = {}
    for run in runs.values():
        for key, name in {
            "task": run.task,
            "model": run.model,
            "method": run.method,
            "partition": run.partition,
            "optimizer": run.optimizer,
            "client-rule": run.client_rule,
        }.items():
            check_seen(key, name, "the processes of several runs")
        check_data(run)
        check_folder(Path(run.out), run.run_config())
        place = (run.task, run.data_dir)
        if place not in read:
            read[place] = digests(run)
        check_same_data(Path(run.out), read[place])


class Workers:
    """The processes in which runs go on, several at a time; they are started with the first run that is not finished.

    They stay from one call of `run` to the next, as do the errors of runs that `failed`. Leaving the `with` block with
    an error ends the runs that go on.
    """

    def __init__(self, jobs: int, log_level: int, on_run: Callable[[], None] = lambda: None) -> None:
        self._jobs, self._log_level, self._on_run = jobs, log_level, on_run
        self.failed: dict[RunKey, FairbloomError] = {}
        self._size = 0
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Workers":
        """Return the workers, none of which is started."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes."""
        self._open.close()

    def run(self, runs: Runs, until: float | None = None) -> None:
        """Run everything that is not finished; call `on_run` after each run, and for each that was finished before.

        At the time `until`, by `time.monotonic`, TimeoutError is raised, and runs end that continue when run again.
        """
        unfinished = {key: run for key, run in runs.items() if not is_done(run)}
        for _ in range(len(runs) - len(unfinished)):
            self._on_run()
        if not unfinished:
            return
        if until is not None and time.monotonic() >= until:
            raise TimeoutError
        self._carry_out(unfinished, until)

    def _carry_out(self, unfinished: Runs, until: float | None) -> None:
        at_a_time = min(self._jobs, len(unfinished))
        if at_a_time > self._size:
            self._start(at_a_time)
        try:
            # Ctrl-C goes to all processes of a terminal: one that still imports would print its traceback.
            with hide_main(), hold_signals(signal.SIGINT):
                started = {
                    self._pool.submit(run_quietly, run, at_a_time, self._log_level): key
                    for key, run in unfinished.items()
                }
            for done in as_completed(started, None if until is None else max(0.0, until - time.monotonic())):
                try:
                    done.result()
                except FairbloomError as error:
                    self.failed[started[done]] = error
                except BrokenProcessPool as error:
                    raise FairbloomError(
                        "the system has ended the process of a run, as it does when memory runs short: lower --jobs, "
                        "and run the same command again, which continues"
                    ) from error
                self._on_run()
        except BaseException:
            self._held_open.send_bytes(b"end")  # to these workers, and to no other process of the caller's
            self._pool.shutdown(cancel_futures=True)
            self._size = 0  # the next runs need others
            raise

    def _start(self, count: int) -> None:
        """Start so many processes, in place of any fewer that there are."""
        self._open.close()
        context = multiprocessing.get_context("spawn")
        ended, held_open = context.Pipe(duplex=False)
        records, sent = context.Pipe(duplex=False)
        for end in (ended, held_open, records, sent):
            self._open.enter_context(end)
        printer = threading.Thread(target=print_records, args=(records, ended), daemon=True)
        printer.start()
        self._open.callback(printer.join, 5.0)  # seconds, as a worker that was killed may leave half a record
        self._open.callback(held_open.send_bytes, b"end")
        begin = (ended, sent, context.Lock())
        self._pool = self._open.enter_context(
            ProcessPoolExecutor(count, mp_context=context, initializer=begin_worker, initargs=begin)
        )
        self._held_open, self._size = held_open, count


def is_done(run: Settings) -> bool:
    """Return whether a run is finished, with as many rounds as it is to have."""
    folder = Path(run.out)
    return is_finished(folder) and CONFIG.read(folder).num_rounds == run.num_rounds


@contextlib.contextmanager
def hide_main() -> Iterator[None]:
    """Hide the script that calls us from processes that are spawned, which would run it once more."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def begin_worker(ended: Connection, records: Connection, turn: Lock) -> None:
    """Prepare a worker process: its driver prints its log records."""
    end_with_driver(ended)
    send_records(records, turn)


def end_with_driver(ended: Connection) -> None:
    """Let Ctrl-C end a worker at once and in silence, and let it end when its driver says so by a pipe, or is killed.

    The driver says what there is to say. Without it the worker would wait for another run for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    release_signals(signal.SIGINT)  # it has waited since the process began
    threading.Thread(target=_end_with_pipe, args=(ended,), daemon=True).start()


def _end_with_pipe(ended: Connection) -> None:
    ended.poll(None)  # nobody reads what is sent, so all workers see it; it returns when the other end is closed, too
    os._exit(1)  # a run that is cut off continues with the same command


def run_quietly(settings: Settings, at_a_time: int, log_level: int) -> None:
    """Run in a worker process, beside others, with no log lines below a level."""
    logging.getLogger("flwr").setLevel(log_level)
    from fairbloom.simulation.run import simulate  # imported late, as PyTorch is with it

    simulate(settings, processors=max(1, processors_here() // at_a_time))
