"""Progress bars in a terminal and in a notebook, with a quiet log while they are shown."""

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairbloom.command import Terminal
from fairbloom.errors import FairbloomError
from fairbloom.logs import colour_on_terminals_alone, follow_stderr, log_from
from fairbloom.protocol.scores import Score
from fairbloom.server.run_folder.recorded import RecordedRound

from ..results.measures import measure_title


@contextmanager
def progress(*, shown: bool = True) -> Iterator[Progress]:
    """Show progress bars, each with its text `measured` next to its count.

    They are drawn only in a terminal, and in a notebook with ipywidgets. A FairbloomError removes
    the bar, so that only the line of the error remains.
    """
    console = Terminal(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[measured]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not (shown and (console.is_terminal or console.is_jupyter)),
    )
    colour_on_terminals_alone()
    with log_from(logging.WARNING), warnings.catch_warnings():
        warnings.filterwarnings("ignore", 'install "ipywidgets"')
        with bar, follow_stderr():
            try:
                yield bar
            except FairbloomError:
                bar.live.transient = True
                raise


class RunBar:
    """The bar of a run: its rounds, the last scores, and the progress within a long round."""

    def __init__(self, bar: Progress, title: str, num_rounds: int) -> None:
        self._bar = bar
        self._num_rounds = num_rounds
        self._task = bar.add_task(title, total=num_rounds, measured="")
        self._rounds = 0
        self._measured = ""
        self._began = time.monotonic()

    def count(self, recorded: RecordedRound, score: Score) -> None:
        """Count a recorded round."""
        if recorded.scores:
            mean = score.written(recorded.measures["mean"])
            worst = score.written(recorded.measures["worst_10"])
            title = measure_title("worst_10", len(recorded.scores))
            self._measured = f"mean {mean}, {title} {worst}"
        self._rounds = recorded.number
        self._began = time.monotonic()
        self._bar.update(self._task, completed=recorded.number, measured=self._measured)

    def show_within(self, done: int, of: int) -> None:
        """Show how many of a round's clients have trained, if the round takes long."""
        if time.monotonic() - self._began >= 2.0:  # seconds
            words = f"{self._measured}  {done} of {of} clients trained".strip()
            self._bar.update(self._task, completed=self._rounds + done / (of + 1), measured=words)

    def end(self) -> None:
        """Show that all rounds are done."""
        self._bar.update(self._task, completed=self._num_rounds, measured=self._measured)


@contextmanager
def study_progress(title: str, *, shown: bool = True) -> Iterator["StudyBar"]:
    """Show how many runs of a study are done."""
    with progress(shown=shown) as bar:
        yield StudyBar(bar, title)


class StudyBar:
    """The bar of a study's runs."""

    def __init__(self, bar: Progress, title: str) -> None:
        self._bar = bar
        self._study = bar.add_task(title, total=None, measured="runs done")

    def expect(self, total: int) -> None:
        """Set the number of runs, as far as it is known."""
        self._bar.update(self._study, total=total)

    def count(self) -> None:
        """Count a run that is done."""
        self._bar.advance(self._study)
