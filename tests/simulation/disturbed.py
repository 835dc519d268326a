"""Disturb one run at many moments: python -m tests.simulation.disturbed KIND FOLDER.

killed
    Run n dies by SIGKILL just before it opens, makes or renames its n-th file.
full
    In run n no file can grow beyond n · STEP bytes; it is tried twice, and its FOLDER/n.txt tells what came of it.

For n = 0, 1, … until a run is not disturbed. Each is a forked process, so that PyTorch and the data are loaded once.
"""

import itertools
import logging
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server.records import RunFolderError
from simulation.run import simulate
from tasks import load_task

from .helpers import small

STEP = 128
"""Bytes between the limits of the full disks."""

AVERAGED = {"method": "fedavg", "num_rounds": 12}
"""Settings of the runs on a full disk: the tables outgrow the checkpoint, so that every file is the first to fail."""

UNDISTURBED, DISTURBED, BROKEN = 0, 1, 2


def die_before_touching_file(number: int, folder: Path) -> None:
    """Let this process be killed before its `number`-th touch of a file under `folder`."""
    touched = itertools.count()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        ours = event in ("os.rename", "os.mkdir", "os.truncate") or writes
        if ours and str(arguments[0]).startswith(str(folder)) and next(touched) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def killed(number: int, folder: Path) -> int:
    """Run until the kill."""
    die_before_touching_file(number, folder)
    simulate(small(folder))
    return UNDISTURBED


def full(number: int, folder: Path) -> int:
    """Run against a full disk, and once more while it is still full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    outcomes = []
    for _ in range(2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (number * STEP, hard))
        try:
            simulate(small(folder, **AVERAGED))
            outcomes.append("finished")
        except (OSError, RunFolderError) as error:
            outcomes.append(f"{type(error).__name__}: {error}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    folder.with_suffix(".txt").write_text("\n".join(outcomes))
    return UNDISTURBED if outcomes[0] == "finished" else DISTURBED


def main() -> None:
    """Fork one process a moment until one is not disturbed."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    kinds: dict[str, Callable[[int, Path], int]] = {"killed": killed, "full": full}
    disturbed, folder = kinds[sys.argv[1]], Path(sys.argv[2])
    load_task(small(folder).run_config())
    for number in itertools.count():
        process = os.fork()
        if process == 0:
            status = BROKEN
            try:
                status = disturbed(number, folder / str(number))
            except Exception:
                traceback.print_exc()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status not in (DISTURBED, -signal.SIGKILL):
            sys.exit(status)


if __name__ == "__main__":
    main()
