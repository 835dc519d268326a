"""Progress bars in a terminal and in a notebook, lines in a log; other log lines are fewer then."""

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from fairbloom.command import Terminal
from fairbloom.errors import FairbloomError
from fairbloom.logs import colour_on_terminals_alone, follow_stderr, log_from, warn_once
from fairbloom.protocol.scores import Score
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.text import text_if

from ..results.measures import find_measure

# Without a progress bar: the time between two lines on a run's rounds, and the time after which
# each finished run of a study has a line. Shorter work prints none.
SECONDS_BETWEEN_LINES = 60.0
SECONDS_BEFORE_LINES = 10.0


class Bars(Progress):
    """Progress bars, or lines on standard error where none are drawn, as in a log."""

    in_lines = False

    def print_line(self, text: str) -> None:
        """Print a line, in one piece also where it is longer than the terminal is wide."""
        self.console.print(Text(text), soft_wrap=True)


@contextmanager
def progress(*, shown: bool = True) -> Iterator[Bars]:
    """Show progress bars, each with its text `measured` next to its count.

    They are drawn only in a terminal, and in a notebook with ipywidgets. A FairbloomError removes
    the bar, so that only the line of the error remains.
    """
    console = Terminal(stderr=True)
    drawn = console.is_terminal or console.is_jupyter
    bar = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[measured]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not (shown and drawn),
    )
    bar.in_lines = shown and not drawn
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
    """The bar of a run: its rounds, and the last scores."""

    def __init__(self, bar: Bars, title: str, num_rounds: int) -> None:
        self._bar = bar
        bar.add_task(title, total=num_rounds, measured="")
        self._task = bar.tasks[-1]
        self._measured = ""
        self._printed = time.monotonic()

    def count(self, recorded: RecordedRound, score: Score) -> None:
        """Count a recorded round."""
        if recorded.scores:
            self._measured = (
                f"mean {score.written(recorded.measures['mean'])},"
                f" {find_measure('worst_10').title(len(recorded.scores))}"
                f" {score.written(recorded.measures['worst_10'])}"
            )
        self._bar.update(self._task.id, completed=recorded.number, measured=self._measured)
        self._print_sometimes(f"round {recorded.number} of {self._task.total}")

    def _print_sometimes(self, text: str) -> None:
        """Without a progress bar, print a line from time to time."""
        now = time.monotonic()
        if self._bar.in_lines and now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            self._bar.print_line(
                f"{self._task.description}: {text}{text_if(self._measured, f', {self._measured}')}"
            )

    def end(self) -> None:
        """Show that all rounds are done."""
        self._bar.update(self._task.id, completed=self._task.total, measured=self._measured)


@contextmanager
def study_progress(title: str, *, shown: bool = True) -> Iterator["StudyBar"]:
    """Show how many runs of a study are done; meanwhile, no warning is printed twice."""
    with progress(shown=shown) as bar, warn_once():
        yield StudyBar(bar, title)


class StudyBar:
    """The bar of a study's runs."""

    def __init__(self, bar: Bars, title: str) -> None:
        self._bar = bar
        bar.add_task(title, total=None, measured="runs done")
        self._task = bar.tasks[-1]
        self._began = time.monotonic()

    def expect(self, total: int) -> None:
        """Set the number of runs, as far as it is known."""
        self._bar.update(self._task.id, total=total)

    def count(self, ended: str = "") -> None:
        """Count a run that is done; `ended` says for a log which one has ended, and how."""
        self._bar.advance(self._task.id)
        long = time.monotonic() - self._began >= SECONDS_BEFORE_LINES
        if ended and long and self._bar.in_lines:
            task = self._task
            of = text_if(task.total, f" of {task.total}")
            self._bar.print_line(f"{task.description}: {task.completed}{of} runs done, {ended}")
