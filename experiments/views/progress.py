"""Progress bars, in a terminal and in a notebook, and silence of the log meanwhile."""

import logging
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fairbloom.command import Terminal
from fairbloom.errors import FairbloomError
from fairbloom.logs import colour_on_terminals_alone, follow_stderr
from fairbloom.protocol.scores import Score
from fairbloom.server.run_folder.recorded import RecordedRound

from .live.state import LiveRun, Looker, describe_spread

LOOK_SECONDS = 1.0
"""The time between two looks at the runs of a study that go on."""


@contextmanager
def progress(*, shown: bool = True) -> Iterator[Progress]:
    """Show progress bars with what each has `measured` beside its count; nothing is drawn where nobody watches.

    An error that the user can correct takes the bar away, so that its line stands alone. A notebook draws it with
    ipywidgets, and nothing without them.
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
    with quiet_log(), bar, follow_stderr():
        try:
            yield bar
        except FairbloomError:
            bar.live.transient = True
            raise


class RunBar:
    """The bar of a run: its rounds, how the last evaluated one serves the clients, and how far a long one is."""

    def __init__(self, bar: Progress, title: str, num_rounds: int) -> None:
        self._bar, self._num_rounds = bar, num_rounds
        self._task = bar.add_task(title, total=num_rounds, measured="")
        self._rounds, self._measured, self._began = 0, "", time.monotonic()

    def count(self, recorded: RecordedRound, score: Score) -> None:
        """Count a recorded round."""
        if recorded.scores:
            measures = recorded.measures
            self._measured = describe_spread(score, measures["mean"], measures["worst_10"], len(recorded.scores))
        elif recorded.measures:  # a private round, in which nobody knows the worst
            self._measured = f"mean {score.written(recorded.measures['mean'])}"
        self._rounds, self._began = recorded.number, time.monotonic()
        self._bar.update(self._task, completed=recorded.number, measured=self._measured)

    def show_within(self, done: int, of: int) -> None:
        """Show how many of a round's clients have trained, where the round takes long."""
        if time.monotonic() - self._began >= 2.0:  # seconds
            words = f"{self._measured}  {done} of {of} clients trained".strip()
            self._bar.update(self._task, completed=self._rounds + done / (of + 1), measured=words)

    def end(self) -> None:
        """Show that all rounds are done, those of a finished run too."""
        self._bar.update(self._task, completed=self._num_rounds, measured=self._measured)


@contextmanager
def study_progress(
    title: str, total: float | None, out: Path, *, counted: str = "runs done", shown: bool = True
) -> Iterator["StudyBars"]:
    """Show how far a study is, and each run that goes on with its rounds and how it serves the clients.

    The runs are looked at where they lie, in the folder runs/ of `out`. `total` is None where it is not known yet, and
    `counted` says what it counts.
    """
    with progress(shown=shown) as bar:
        runs = StudyBars(bar, bar.add_task(title, total=total, measured=counted), Looker(out))
        ended = threading.Event()
        watcher = threading.Thread(target=runs.follow, args=(ended,), daemon=True)
        if not bar.disable:
            watcher.start()
        try:
            yield runs
        finally:
            ended.set()
            if watcher.ident is not None:
                watcher.join()
            runs.clear()


class StudyBars:
    """The bar of a study's runs, and below it one for each run that goes on."""

    def __init__(self, bar: Progress, study: TaskID, looker: Looker) -> None:
        self._bar, self._study, self._looker = bar, study, looker
        self._done, self._counts_runs = 0.0, True
        self.shown: dict[Path, TaskID] = {}
        """The bars of the runs that go on, by their folders."""

    def expect(self, total: int) -> None:
        """Take in how many runs there will be."""
        self._bar.update(self._study, total=total)

    def count(self) -> None:
        """Count a run that is done."""
        self._done += 1
        self._bar.update(self._study, completed=self._done)

    def set_stage(self, stage: str, completed: float) -> None:
        """Show in which stage a study is that counts something else than runs, and how much of that is done."""
        self._done, self._counts_runs = completed, False
        self._bar.update(self._study, description=stage, completed=completed)

    def follow(self, ended: threading.Event) -> None:
        """Look at the runs again and again until the study has ended."""
        while not ended.wait(LOOK_SECONDS):
            try:
                self.show(self._looker.look_at_running())
            except OSError:  # a folder that is being removed, say: the runs say what is wrong with them
                continue

    def clear(self) -> None:
        """Take the bars of single runs away."""
        self.show([])

    def refresh(self) -> None:
        """Draw the bars as they are now."""
        self._bar.refresh()

    def show(self, runs: list[LiveRun]) -> None:
        """Show these as the runs that go on."""
        for folder in self.shown.keys() - {run.folder for run in runs}:
            self._bar.remove_task(self.shown.pop(folder))
        for run in runs:
            if run.folder not in self.shown:
                self.shown[run.folder] = self._bar.add_task(f"  {run.name}", total=run.num_rounds, measured="")
            self._bar.update(self.shown[run.folder], completed=run.rounds, measured=self._measured(run))
        if self._counts_runs:
            going_on = sum(run.share for run in runs)
            self._bar.update(self._study, completed=self._done + going_on)

    def _measured(self, run: LiveRun) -> str:
        # A narrower terminal has no room for measures next to the bar.
        return run.measured if run.points and self._bar.console.width >= 90 else ""


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
