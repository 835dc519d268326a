"""How a client's data become inputs is kept in its own folder, for predictions after the run."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from fairbloom.logs import log
from fairbloom.system.files import make_folder, write_private
from fairbloom.tasks import Task
from fairbloom.tasks.preprocessing import PREPROCESSING, Preprocessing


def keep_preprocessing(folder: Path | None, task: Task, client: str) -> None:
    """Write a client's preprocessing into its folder, if it has one; a disk that does not take it is logged."""
    if folder is None or task.preprocessing is None:
        return
    path, content = folder / PREPROCESSING, _encode(task.preprocessing, client)
    try:
        if path.exists() and path.read_bytes() == content:
            return
        make_folder(folder)
        write_private(path, content)
    except OSError as error:
        log.warning("%s cannot be written, so that nothing can be predicted by it: %s", path, error.strerror)


@lru_cache(maxsize=1)  # a deployed client asks with every message
def _encode(preprocessing: Callable[[str], Preprocessing], client: str) -> bytes:
    return preprocessing(client).encode()
