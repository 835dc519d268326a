"""Locks on files, each held by one process at a time and freed with its end."""

import contextlib
import fcntl
import math
import os
import re
import socket
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from fairbloom.errors import FairbloomError
from fairbloom.logs import log

# The pause between two attempts to get a lock that another process holds.
LOOK_SECONDS = 0.5


class LockedError(FairbloomError):
    """A lock that another process holds; `holder` names that process."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is locked by {holder}: wait for it to end")
        self.holder = holder


class Lock:
    """A lock that this process holds until the block ends; its file is removed then."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        _held_here.add(descriptor)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _held_here.discard(self._descriptor)
        # Removed while it is held: a waiting process sees that the file is another one, and opens
        # that.
        with contextlib.suppress(OSError):
            if _lies_at(self._path, self._descriptor):
                self._path.unlink()
        os.close(self._descriptor)


def exclusive_lock(
    path: Path, *, seconds: float = 0.0, on_wait: Callable[[str], None] = lambda holder: None
) -> Lock:
    """Lock a file, made if missing, which names its process: `with exclusive_lock(path): ...`.

    Wait up to `seconds`, after one call of `on_wait` with the other process's name; then raise
    LockedError.
    """
    deadline = time.monotonic() + seconds
    said = False
    while True:
        try:
            lock = Lock(path, descriptor := open_locked(path, wait=seconds == math.inf))
            break
        except BlockingIOError:
            try:
                holder = path.read_text(errors="replace") or "another process"
            except FileNotFoundError:  # that process has just ended
                continue
        if time.monotonic() >= deadline:
            raise LockedError(path, holder)
        if not said:
            on_wait(holder)
            said = True
        time.sleep(LOOK_SECONDS)
    # a full disk does not take the name, and the lock holds nevertheless
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return lock


def is_held(path: Path) -> bool:
    """Return whether a process seems to hold the lock of a file, without disturbing it."""
    try:
        holder = re.fullmatch(r"process (\d+) on (.+)", path.read_text())
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


def open_locked(path: Path, *, wait: bool = False, mode: int = 0o666) -> int:
    """Open a file, made if missing, and lock it until it is closed; return its descriptor.

    A symbolic link is not followed. Without `wait`, raise BlockingIOError when another process has
    locked it.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            _lock(descriptor, path, wait=wait)
            if _lies_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # the process that held it has removed or replaced it: the next file is locked instead
        os.close(descriptor)


def _lock(descriptor: int, path: Path, *, wait: bool) -> None:
    """Lock an open file; raise BlockingIOError where another process has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:  # as of network file systems without locks
        _warn_once(path.parent, str(error.strerror))


@lru_cache(maxsize=1000)
def _warn_once(folder: Path, reason: str) -> None:
    log.warning("%s cannot be locked (%s): let one process alone write there", folder, reason)


def _lies_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


# The locks of this process, which a process that is forked from it must not hold on to when this
# one ends.
_held_here: set[int] = set()


def _release_after_fork() -> None:
    for descriptor in _held_here:
        os.close(descriptor)


os.register_at_fork(after_in_child=_release_after_fork)
