"""Progress bars, in a terminal and in a notebook, and silence of the log meanwhile."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairbloom.errors import FairbloomError
from fairbloom.logs import colour_on_terminals_alone


@contextmanager
def progress(measures: str, *, shown: bool = True) -> Iterator[Progress]:
    """Show a progress bar with `measures` beside the count; nothing is drawn where nobody watches.

    An error that the user can correct takes the bar away, so that its line stands alone. A notebook draws it with
    ipywidgets, and nothing without them.
    """
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(measures),
        TimeElapsedColumn(),
        console=console,
        disable=not (shown and (console.is_terminal or console.is_jupyter)),
    )
    with quiet_log(), bar:
        try:
            yield bar
        except FairbloomError:
            bar.live.transient = True
            raise


@contextmanager
def quiet_log() -> Iterator[None]:
    """Let Flower's logger, of which ours is a child, print only warnings and errors for a while."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(max(level, logging.WARNING))
    colour_on_terminals_alone()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", 'install "ipywidgets"')
            yield
    finally:
        log.setLevel(level)
