"""A lock that lets one process at a time write to a run folder, also if a process is killed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from fairbloom.logs import log
from fairbloom.system.lock import LockedError, exclusive_lock

from .errors import RunFolderError, explain_write_errors
from .files import LOCK

# How long to wait for another process to end: a process that has lost its run notices it within
# this time.
WAIT_SECONDS = 60.0


@contextmanager
def locked_folder(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a folder for this process; make the folder if it is missing.

    With `wait`, wait up to a minute for another process that holds the lock, such as one that has
    lost its run. Raise RunFolderError if it still holds the lock.
    """
    log_wait = partial(
        log.warning, "%s is written by %s: waiting up to a minute for it to end", folder
    )
    with ExitStack() as stack:
        with explain_write_errors(f"the file {LOCK.name}", folder):
            folder.mkdir(parents=True, exist_ok=True)
            seconds = WAIT_SECONDS if wait else 0.0
            try:
                stack.enter_context(
                    exclusive_lock(LOCK.path_in(folder), seconds=seconds, on_wait=log_wait)
                )
            except LockedError as error:
                raise RunFolderError(
                    f"{folder} is written by {error.holder}: wait for it to end, or choose another"
                    " folder (--out)"
                ) from None
        yield
