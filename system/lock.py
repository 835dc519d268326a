"""One writer for a run folder at a time, whatever becomes of the process that writes."""

import contextlib
import fcntl
import logging
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from fairbloom.server.run_folder.errors import RunFolderError, explain_write_errors

log = logging.getLogger("flwr").getChild("fairbloom")

LOCK = ".lock"
"""The file that says which process writes to a folder; it is there no longer than that process works."""

WAIT_SECONDS = 60.0
"""How long to wait for another process to end: one whose run was given to this one notices it within that time."""

LOOK_SECONDS = 0.5
"""The pause between two looks at whether the other process has ended."""


@contextlib.contextmanager
def alone(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder, made if it is not there; no other process holds it meanwhile.

    The lock is the kernel's, on a file in the folder: it ends with the process, however that ends. The file says who
    holds it, and is removed in the end.

    Parameters
    ----------
    folder
        Where this process alone is to write.
    wait
        Whether to wait for up to a minute where another process holds the folder, as one does whose run was taken from
        it, rather than to be refused at once.

    Raises
    ------
    RunFolderError
        When another process holds the folder, or it cannot be written.
    """
    path = folder / LOCK
    descriptor = _held(path, time.monotonic() + (WAIT_SECONDS if wait else 0.0))
    _held_here.add(descriptor)
    try:
        yield
    finally:
        _held_here.discard(descriptor)
        # Removed while it is held: whoever waits for it sees that the file is another one, and opens that.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def is_running(folder: Path) -> bool:
    """Return whether a process writes to a folder, as far as can be told without disturbing it."""
    try:
        holder = re.fullmatch(r"process (\d+) on (.+)", (folder / LOCK).read_text())
    except OSError:
        return False
    if holder is None or holder[2] != socket.gethostname():
        return True
    try:
        os.kill(int(holder[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _held(path: Path, deadline: float) -> int:
    """Return the open lock file once it is this process's; raise RunFolderError at the deadline."""
    told = False
    while True:
        with explain_write_errors(f"the file {LOCK}", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        if _locked(descriptor, path.parent):
            if _lies_at(path, descriptor):
                _sign(descriptor)
                return descriptor
            os.close(descriptor)  # the process that held it has removed it: the next file is locked instead
            continue
        holder = os.pread(descriptor, 1000, 0).decode(errors="replace") or "another process"
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise RunFolderError(
                f"{path.parent} is written by {holder}: wait for it to end, or choose another folder (--out)"
            )
        if not told:
            log.warning("%s is written by %s: waiting up to a minute for it to end", path.parent, holder)
            told = True
        time.sleep(LOOK_SECONDS)


def _locked(descriptor: int, folder: Path) -> bool:
    """Lock the open file; return False where another process has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # as of network file systems without locks
        log.warning("%s cannot be locked (%s): see to it that one process alone writes there", folder, error.strerror)
    return True


def _lies_at(path: Path, descriptor: int) -> bool:
    """Return whether the open file is the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Write into the lock file which process holds it; a full disk does not take the name, and the lock holds so."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)


_held_here: set[int] = set()
"""The locks of this process, which one that is forked from it must not hold on to when this one ends."""


def _let_go() -> None:
    for descriptor in _held_here:
        os.close(descriptor)


os.register_at_fork(after_in_child=_let_go)
