"""How much of a large file has been read, shown on a terminal."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairbloom.logs import escape_unprintable

SHOWN = 32 * 2**20
"""Files of at least this many bytes show their progress."""


@contextmanager
def show_progress(path: Path, size: int) -> Iterator[Callable[[float], None]]:
    """Show on a terminal how much of a large file is read; yield what is called with the share."""
    if size < SHOWN or multiprocessing.parent_process() is not None:
        yield lambda share: None
        return
    from rich.console import Console  # imported late: small files need none
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"reading {escape_unprintable(path.name)}", total=1.0)
        yield lambda share: bar.update(task, completed=share)
