"""A log file for processes that write to stdout and stderr: one process of its own has the file, and rotates it.

The others write into a pipe, so that no line is lost when the file is continued, or when one of them is killed.
"""

import logging
import os
import signal
import subprocess
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fairbloom.errors import FairbloomError

from .lock import LockedError, exclusive_lock
from .supervise import STOPPING

LARGEST_BYTES, KEPT_FILES = 10 << 20, 5
"""Size at which the log is continued in a new file, and how many older ones are kept; FILE.1 is the newest of them."""

LONGEST_LINE = 1 << 16
"""Longest line, in bytes; a longer one becomes several."""

LOCK_SECONDS = 5.0
"""How long to wait for the process that had the file before: it ends once it has written everything."""


class LogFileError(FairbloomError):
    """The log file cannot be written; stderr has the reason."""


def log_to_file(file: Path | None) -> None:
    """Send to a file, if one is named, what this process and those that it starts write to stdout and stderr."""
    if file is None:
        return
    reading, writing = os.pipe()
    command = [sys.executable, "-P", "-m", "fairbloom.system.log_file", str(file.absolute())]
    begun, ready = os.pipe()
    subprocess.Popen(command, stdin=reading, stdout=ready, start_new_session=True)  # noqa: S603
    for descriptor in (reading, ready):
        os.close(descriptor)
    if not os.read(begun, 1):
        raise LogFileError(f"--log-file {file} cannot be used")
    for standard in (sys.stdout, sys.stderr):
        standard.flush()
    for descriptor in (1, 2):
        os.dup2(writing, descriptor)
    for descriptor in (writing, begun):
        os.close(descriptor)


def main() -> int:
    """Write the lines of stdin to a file until all processes that may write them have ended."""
    file = Path(sys.argv[1])
    os.umask(0o077)
    for number in STOPPING:  # which come to all processes of a service; the last words are still to come
        signal.signal(number, signal.SIG_IGN)
    try:
        with exclusive_lock(file.with_name(f"{file.name}.lock"), seconds=LOCK_SECONDS):
            handler = RotatingFileHandler(file, maxBytes=LARGEST_BYTES, backupCount=KEPT_FILES, encoding="utf-8")
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            os.write(1, b"1")
            os.close(1)
            for line in iter(lambda: sys.stdin.buffer.readline(LONGEST_LINE), b""):
                words = line.decode(errors="replace").rstrip("\n")
                handler.handle(logging.makeLogRecord({"msg": words}))
    except LockedError as error:
        print(f"{file} is another process's log ({error.holder}): name another file", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{file}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
