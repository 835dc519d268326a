"""One writer for a run folder at a time, whatever becomes of the process that writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairbloom.logs import log
from fairbloom.system.lock import LockedError, exclusive_lock, is_held

from .errors import RunFolderError, explain_write_errors

# The file that says which process writes to a folder; it is there no longer than that process
# works.
LOCK = ".lock"

# How long to wait for another process to end: a process that has lost its run notices it within
# that time.
WAIT_SECONDS = 60.0


@contextmanager
def locked_folder(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a folder, made if missing, for this process alone.

    RunFolderError if another process holds it.

    With `wait`, wait up to a minute for a process that holds it, such as one with a run taken
    over.
    """

    def say(holder: str) -> None:
        log.warning("%s is written by %s: waiting up to a minute for it to end", folder, holder)

    with explain_write_errors(f"the file {LOCK}", folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = exclusive_lock(folder / LOCK, seconds=WAIT_SECONDS if wait else 0.0, on_wait=say)
        except LockedError as error:
            raise RunFolderError(
                f"{folder} is written by {error.holder}: wait for it to end, or choose another"
                " folder (--out)"
            ) from None
    with lock:
        yield


def is_running(folder: Path) -> bool:
    """Return whether a process seems to write to a folder, without disturbing it."""
    return is_held(folder / LOCK)
