"""Disturb one run at many moments.

killed
    Run n dies by SIGKILL just before it opens, makes or renames its n-th file.
full
    In run n no file can grow beyond n · STEP bytes; it is tried twice, and its FOLDER/n.txt tells
    what came of it.

For n = 0, 1, … until a run is not disturbed, with a checkpoint after `every` rounds. Each is a
forked process, so that PyTorch and the data are loaded once; the loop over clients needs no more
than that.
"""

import itertools
import logging
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tasks import load_task

from .helpers import checkpoints_every, small

# Bytes between the limits of the full disks.
STEP = 128

# Rounds of the runs on a full disk: FedAvg's tables outgrow its checkpoint, so that every file gets
# to fail first.
LONG = 12

# The task of these runs. It has no data set to split: split.npz would be the largest file from the
# beginning.
UNDEALT = "synthetic"

# Rounds of the runs that are killed.
SHORT = 5

UNDISTURBED = 0
DISTURBED = 1
BROKEN = 2


def die_before_touching_file(number: int, folder: Path) -> None:
    """Let this process be killed before its `number`-th touch of a file under `folder`."""
    touched = itertools.count()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        writes = (
            event == "open"
            and isinstance(arguments[2], int)
            and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        ours = event in ("os.rename", "os.mkdir", "os.truncate") or writes
        if ours and str(arguments[0]).startswith(str(folder)) and next(touched) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def killed(number: int, settings: Settings) -> int:
    """Run until the kill."""
    die_before_touching_file(number, Path(settings.out))
    simulate(settings)
    return UNDISTURBED


def full(number: int, settings: Settings) -> int:
    """Run against a full disk, and once more while it is still full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    outcomes = []
    for _ in range(2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (number * STEP, hard))
        try:
            simulate(settings)
            outcomes.append("finished")
        except (OSError, RunFolderError) as error:
            outcomes.append(f"{type(error).__name__}: {error}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    Path(settings.out).with_suffix(".txt").write_text("\n".join(outcomes))
    return UNDISTURBED if outcomes[0] == "finished" else DISTURBED


def main(kind: str, folder: str, method: str, every: str) -> None:
    """Fork one process a moment until one is not disturbed."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    disturbed, rounds, task = {"killed": (killed, SHORT, "digits"), "full": (full, LONG, UNDEALT)}[
        kind
    ]
    load_task(small("", task=task).run_config())
    for number in itertools.count():
        process = os.fork()
        if process == 0:
            status = BROKEN
            try:
                with checkpoints_every(int(every)):
                    averaged = kind == "killed"  # there is most to lose then: see test_killed.py
                    settings = small(
                        f"{folder}/{number}",
                        task=task,
                        method=method,
                        num_rounds=rounds,
                        engine="loop",
                        average_models=averaged,
                    )
                    status = disturbed(number, settings)
            except Exception:
                traceback.print_exc()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status not in (DISTURBED, -signal.SIGKILL):
            sys.exit(status)
