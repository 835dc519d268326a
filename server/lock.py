"""One writer for a run folder at a time, whatever becomes of the process that writes."""

import contextlib
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from .records import LOCK, RunFolderError, written

log = logging.getLogger("flwr").getChild("fairbloom")

WAIT_SECONDS = 60.0
"""For another process to end: one whose run was given to this one notices it within that time."""

LOOK_SECONDS = 0.5


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a run folder, made if it is not there; no other process holds it meanwhile.

    The lock is the kernel's, on a file in the folder: it ends with the process, however that ends. The file says who
    holds it, and is removed in the end.

    Raises
    ------
    RunFolderError
        When another process still holds the folder after a minute, or the folder cannot be written.
    """
    path = folder / LOCK
    descriptor = _held(path)
    try:
        yield
    finally:
        # Removed while it is held: whoever waits for it sees that the file is another one, and opens that.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _held(path: Path) -> int:
    """Return the open lock file once it is this process's."""
    deadline, told = time.monotonic() + WAIT_SECONDS, False
    while True:
        with written("the run folder", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        if _taken(descriptor, path):
            return descriptor
        holder = os.pread(descriptor, 1000, 0).decode(errors="replace") or "another process"
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise RunFolderError(f"{path.parent} is written by {holder}: wait for it to end, or choose another --out")
        if not told:
            log.warning("%s is written by %s: waiting up to a minute for it to end", path.parent, holder)
            told = True
        time.sleep(LOOK_SECONDS)


def _taken(descriptor: int, path: Path) -> bool:
    """Lock the file and write into it who did; return False where another process has, or the file is not at `path`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # as of network file systems without locks
        log.warning("%s cannot be locked (%s): see to it that one run alone writes there", path.parent, error.strerror)
    try:
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            return False
    except FileNotFoundError:
        return False
    # A full disk does not take the name; the lock holds without it.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return True
