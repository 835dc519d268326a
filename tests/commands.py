"""Our command line in processes of its own that start at once.

Each process is forked from one that has imported the command line and PyTorch, and in which nothing
else has happened: that takes a hundredth of the time of starting Python and importing them.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

STARTED = multiprocessing.get_context("forkserver")
PRELOADED = [
    "tests.environment",
    "fairbloom.cli.main",
    "fairbloom.experiments.api",
    "fairbloom.client.local_round",
]
STARTED.set_forkserver_preload(PRELOADED)


def fairbloom(
    folder: Path, *words: str, seconds: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Run `fairbloom` with these words in a folder; return its exit code and what it printed."""
    return forked(folder, _command, *words, seconds=seconds)


def forked(
    folder: Path, function: Callable[..., None], *words: str, seconds: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Call a function of a module in a folder, in a process of its own; return its exit code and
    what it printed."""
    with tempfile.TemporaryDirectory() as written:
        printed = tuple(Path(written, name) for name in ("stdout", "stderr"))
        process = STARTED.Process(
            target=_run, args=(function, words, folder, dict(os.environ), printed)
        )
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, seconds)
        return subprocess.CompletedProcess(
            words, process.exitcode, *(file.read_text() for file in printed)
        )


def _run(
    function: Callable[..., None],
    words: tuple[str, ...],
    folder: Path,
    environment: dict[str, str],
    printed: tuple[Path, ...],
) -> None:
    for number, file in enumerate(printed, start=1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    function(*words)


def _command(*words: str) -> None:
    from fairbloom.cli.main import main

    sys.argv = ["fairbloom", *words]
    main()


class BeginWorker:
    """Prepares a worker as `begin_worker` does, in the environment of the process that starts
    it."""

    def __call__(self, *arguments: Any) -> None:
        from fairbloom.experiments.studies.pool import begin_worker

        begin_worker(*arguments)

    def __getstate__(self) -> dict[str, str]:
        return dict(os.environ)

    def __setstate__(self, environment: dict[str, str]) -> None:
        os.environ.clear()
        os.environ.update(environment)


@pytest.fixture(autouse=True, scope="package")
def forked_workers() -> Iterator[None]:
    """Fork the workers of all comparisons, those of fixtures of a module too: a spawned one imports
    PyTorch anew."""
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch)
        yield


def fork_workers(patch: pytest.MonkeyPatch) -> None:
    """Let the processes of comparisons be forked from one that has imported PyTorch, so that they
    start at once."""
    from fairbloom.experiments.studies import pool

    def get_context(method: str) -> ForkServerContext:
        return STARTED

    def executor(*arguments: Any, initializer: Any, **options: Any) -> pool.ProcessPoolExecutor:
        return started(*arguments, initializer=BeginWorker(), **options)

    # what is forked holds back no signal, which the pool does where it starts processes
    forkserver.ensure_running()
    started = pool.ProcessPoolExecutor
    patch.setattr(pool, "multiprocessing", SimpleNamespace(get_context=get_context))
    patch.setattr(pool, "ProcessPoolExecutor", executor)
