"""Run a command until it ends, or until the file that $ENDS_WITH names is there.

With --lock FILE, only where no other container holds that file: two may not work on one volume. While it runs, it has
a shared lock on `running`, beside the file of the end; --last, on `serving`, and it ends when `running` is free.
"""

import argparse
import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

LOOK_SECONDS = 0.5
GRACE_SECONDS = 15.0


def main() -> int:
    """Run the command; return its exit code, 0 where it was ended because all is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--last", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    command = [word for word in given.command[:1] if word != "--"] + given.command[1:]
    with contextlib.ExitStack() as held:
        if given.lock:
            file = held.enter_context(given.lock.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"another container holds {given.lock}: it has this one's place", flush=True)
                return 0
        end = Path(os.environ["ENDS_WITH"]) if "ENDS_WITH" in os.environ else None
        others = None
        if end:
            mine = held.enter_context(end.with_name("serving" if given.last else "running").open())
            fcntl.flock(mine, fcntl.LOCK_SH)
            others = held.enter_context(end.with_name("running").open()) if given.last else None
        child = os.posix_spawnp(command[0], command, os.environ)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: os.kill(child, number))
        return watch(child, lambda: bool(end and end.exists() and (others is None or is_free(others))))


def watch(child: int, is_over: Callable[[], bool]) -> int:
    """Wait for a command to end, and stop it when the container stops; as the first process, reap every orphan."""
    ending_since = 0.0
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return 0 if ending_since else code if code >= 0 else 128 - code
        if ended:
            continue
        if not ending_since and is_over():
            ending_since = time.monotonic()
            os.kill(child, signal.SIGTERM)
        if ending_since and time.monotonic() > ending_since + GRACE_SECONDS:
            os.kill(child, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def is_free(file: TextIO) -> bool:
    """Return whether nobody holds a lock on a file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


if __name__ == "__main__":
    sys.exit(main())
