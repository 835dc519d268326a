"""Functions, and our command line among them, in processes of their own that start at once.

Each process is forked from one that has imported the command line and PyTorch, and in which nothing else has happened:
that takes a hundredth of the time of starting Python and importing them.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import rich

STARTED = multiprocessing.get_context("forkserver")
STARTED.set_forkserver_preload(["fairbloom.cli", "fairbloom.experiments.api", "fairbloom.client.local"])


def fairbloom(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `fairbloom` with these words in a folder; return its exit code and what it printed."""
    return call(_command_line, *words, folder=folder, environment=environment)


def call(
    function: Callable[..., None], *arguments: str, folder: Path, environment: dict[str, str], seconds: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Call a module's function in a process whose directory is the folder, with variables beside those of this one."""
    with tempfile.TemporaryDirectory() as written:
        printed = tuple(str(Path(written, name)) for name in ("stdout", "stderr"))
        process = STARTED.Process(target=_called, args=(function, arguments, folder, os.environ | environment, printed))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(arguments, seconds)
        return subprocess.CompletedProcess(arguments, process.exitcode, *(Path(file).read_text() for file in printed))


def _called(
    function: Callable[..., None],
    arguments: tuple[str, ...],
    folder: Path,
    environment: dict[str, str],
    printed: tuple[str, ...],
) -> None:
    for number, file in enumerate(printed, start=1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    rich.reconfigure()  # to these variables: the width of tables is one
    os.chdir(folder)
    function(*arguments)


def _command_line(*words: str) -> None:
    from fairbloom.cli import main

    sys.argv = ["fairbloom", *words]
    main()
