"""One CSV file, read into columns: by pyarrow where it is installed and the file is plain, else by Python."""

from functools import lru_cache
from pathlib import Path

from .arrow import read_by_arrow
from .progress import show_progress
from .reasons import DataError
from .table import ColumnHints, Table
from .text import read_by_python

KEPT = 128
"""So many files are kept."""

LARGE = 2**20
"""So many bytes take Python as long as it takes to load pyarrow."""


def read(path: Path, hints: ColumnHints) -> Table:
    """Return the columns of a CSV file; it is read again only where it has changed.

    Raises
    ------
    DataError
        When it is no table with a line of names.
    """
    try:
        stamp = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "unreadable") from error
    return _read(path, (stamp.st_mtime_ns, stamp.st_size), hints)


@lru_cache(maxsize=KEPT)
def _read(path: Path, stamp: tuple[int, int], hints: ColumnHints) -> Table:
    _, size = stamp
    with show_progress(path, size) as show:
        table = read_by_arrow(path, hints, show) if size >= LARGE else None
        return table or read_by_python(path, hints, show)
