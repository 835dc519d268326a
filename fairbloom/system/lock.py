"""Locks on files: one process at a time holds a lock, which its end releases."""

import contextlib
import math
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.logs import log_once

try:
    import fcntl
except ImportError as error:
    raise ImportError("Fairbloom runs on Linux and macOS, and on Windows in WSL") from error

# The pause between two attempts to get a lock that another process holds.
LOCK_RETRY_SECONDS = 0.5


class LockedError(FairbloomError):
    """A lock that another process holds; `holder` names that process."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is locked by {holder}: wait for it to end")
        self.holder = holder


@contextlib.contextmanager
def exclusive_lock(
    path: Path, *, seconds: float = 0.0, on_wait: Callable[[str], None] = lambda holder: None
) -> Iterator[None]:
    """Lock a file, created if missing, until the block ends; the file is removed then.

    The file names the process that holds the lock. If another process holds it, call `on_wait`
    once with the name of that process and wait up to `seconds`; then raise LockedError.
    """
    deadline = time.monotonic() + seconds
    reported = False
    while True:
        try:
            descriptor = open_locked(path, wait=seconds == math.inf)
            break
        except BlockingIOError:
            try:
                holder = path.read_text(errors="replace") or "another process"
            except FileNotFoundError:  # that process has just ended
                continue
        if time.monotonic() >= deadline:
            raise LockedError(path, holder)
        if not reported:
            on_wait(holder)
            reported = True
        time.sleep(LOCK_RETRY_SECONDS)
    _held_here.add(descriptor)
    # on a full disk the name is missing, but the lock is held
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    try:
        yield
    finally:
        _held_here.discard(descriptor)
        # Remove the file while the lock is held: a waiting process then notices that the path has
        # another file, or none, and opens that.
        with contextlib.suppress(OSError):
            if _lies_at(path, descriptor):
                path.unlink()
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether a process seems to hold the lock of a file, without trying to lock it."""
    try:
        holder = re.fullmatch(r"process (\d+) on (.+)", path.read_text())
    except OSError:
        return False
    if holder is None or holder[2] != socket.gethostname():
        return True
    try:
        os.kill(int(holder[1]), 0)
    except OSError as error:  # a process of another account gives a PermissionError
        return not isinstance(error, ProcessLookupError)
    return True


def open_locked(path: Path, *, wait: bool = False, needed: bool = False, mode: int = 0o666) -> int:
    """Open a file, created if missing, and lock it until it is closed; return its descriptor.

    Symbolic links are refused. Without `wait`, raise BlockingIOError if another process has locked
    the file. Where the file system has no locks, raise OSError if one is `needed`, and log it if
    not.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            _lock(descriptor, path, wait=wait, needed=needed)
            if _lies_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # the process that held the lock has removed or replaced the file: open the new one
        os.close(descriptor)


def _lock(descriptor: int, path: Path, *, wait: bool, needed: bool) -> None:
    """Lock an open file; raise BlockingIOError if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:  # some network file systems have no locks
        if needed or isinstance(error, BlockingIOError):
            raise
        log_once(
            "%s cannot be locked (%s): let only one process write there",
            path.parent,
            error.strerror,
        )


def _lies_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


# Descriptors of the locks that this process holds. A forked child closes its copies: otherwise the
# locks would outlive this process.
_held_here: set[int] = set()


def _release_after_fork() -> None:
    for descriptor in _held_here:
        os.close(descriptor)


os.register_at_fork(after_in_child=_release_after_fork)
