"""A log file for processes that write to stdout and stderr: one process of its own has the file, and rotates it.

The others write into a pipe, so that no line is lost when the file is continued, or when one of them is killed. They
would end by a pipe that nobody reads, so the process that has the file is a child of another one, which replaces it.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from itertools import chain
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fairbloom.errors import FairbloomError

from .lock import LockedError, exclusive_lock
from .supervise import STOPPING

LARGEST_BYTES, KEPT_FILES = 10 << 20, 5
"""Size at which the log is continued in a new file, and how many older ones are kept; FILE.1 is the newest of them."""


class LogFileError(FairbloomError):
    """The log file cannot be written; stderr has the reason."""


def log_to_file(file: Path | None) -> None:
    """Send to a file, if one is named, what this process and those that it starts write to stdout and stderr."""
    if file is None:
        return
    reading, writing = os.pipe()
    begun, ready = os.pipe()
    command = [sys.executable, "-P", "-m", "fairbloom.system.log_file", str(file.absolute())]
    subprocess.Popen(command, stdin=reading, stdout=ready, start_new_session=True)  # noqa: S603
    for descriptor in (reading, ready):
        os.close(descriptor)
    if not os.read(begun, 1):
        raise LogFileError(f"--log-file {file} cannot be used")
    for descriptor in (1, 2):
        os.dup2(writing, descriptor)
    for descriptor in (writing, begun):
        os.close(descriptor)


def main() -> int:
    """Have the lines of stdin written to a file, by another process whenever one is killed, until nobody writes any."""
    for number in STOPPING:  # which come to all processes of a service; the last words are still to come
        signal.signal(number, signal.SIG_IGN)
    killed = False
    while child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0 or (code > 0 and not killed):
            return code
        time.sleep(1.0 if killed else 0.0)
        killed = True
    return write(Path(sys.argv[1]), killed)


def write(file: Path, killed: bool) -> int:
    """Write the lines of stdin to a file until all processes that may write them have ended."""
    os.umask(0o077)
    try:
        # A process that had the file before ends once it has written everything.
        with exclusive_lock(file.with_name(f"{file.name}.lock"), seconds=5.0):
            handler = RotatingFileHandler(file, maxBytes=LARGEST_BYTES, backupCount=KEPT_FILES, encoding="utf-8")
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            with contextlib.suppress(BrokenPipeError):  # who waits for this has heard it from the process before
                os.write(1, b"1")
            os.close(1)
            first = [b"the process that writes this log was killed: lines may be missing here"] if killed else []
            lines = iter(lambda: sys.stdin.buffer.readline(1 << 16), b"")  # a longer one becomes several
            for line in chain(first, lines):
                handler.handle(logging.makeLogRecord({"msg": line.decode(errors="replace").rstrip("\n")}))
    except LockedError as error:
        print(f"{file} is another process's log ({error.holder}): name another file", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{file}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
