"""Lets the tracker that the setting `track` names show a run; a tracker that fails ends no run."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.logs import log

from ..run_folder.files import CLIENTS, CONFIG, ENVIRONMENT, ROUNDS, SCORES
from ..run_folder.recorded import OnRound, RecordedRound, ignore
from .tracker import TrackedRun, Tracker, metrics_of

PACKAGES = {"mlflow": ("mlflow", "sqlalchemy", "alembic"), "tensorboard": ("tensorboard",), "wandb": ("wandb",)}
"""What each tracker needs; its extra in pyproject.toml brings that."""


class TrackingError(FairbloomError):
    """A tracker that cannot be used; the message says what to do."""


def check_tracker(track: str) -> None:
    """Raise TrackingError when the tracker that the setting `track` names is not installed."""
    missing = [package for package in PACKAGES.get(track, ()) if not _is_installed(package)]
    if missing:
        raise TrackingError(
            f"track = {track!r} needs {' and '.join(missing)}, which is not installed: pip install 'fairbloom[{track}]'"
        )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


@contextmanager
def tracked(track: str, run: TrackedRun) -> Iterator[OnRound]:
    """Give what shows each recorded round in the tracker; "" is none. If a tracker fails, one warning says so."""
    if not track:
        yield ignore
        return
    careful = _CarefulTracker(track, run)
    try:
        yield careful.on_round
    except BaseException:
        careful.end(finished=False)
        raise
    careful.end(finished=True)


class _CarefulTracker:
    """A tracker that only warns when it fails."""

    def __init__(self, track: str, run: TrackedRun) -> None:
        self._track, self._run = track, run
        self._tracker: Tracker | None = None
        self._attempt(self._begin)

    def on_round(self, recorded: RecordedRound) -> None:
        """Let the tracker show a round."""
        if (tracker := self._tracker) is not None:
            self._attempt(lambda: tracker.log(recorded.number, metrics_of(recorded, self._run.score)))

    def end(self, *, finished: bool) -> None:
        """Let the tracker end."""
        if (tracker := self._tracker) is not None:
            self._attempt(lambda: tracker.end(_small_files(self._run.folder), finished=finished))

    def _begin(self) -> None:
        self._tracker = _begin(self._track, self._run)

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            with warnings.catch_warnings(action="ignore"):  # what libraries warn each other of
                step()
        except Exception as error:
            self._tracker = None
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            log.warning(
                "%s shows this run no further, and the run goes on without it: %s. Correct that and continue, or "
                "extend, the run: it is shown from there on",
                self._track,
                reason,
            )


def _begin(track: str, run: TrackedRun) -> Tracker:
    """Return the tracker of a name; each is imported late, for it takes seconds."""
    if track == "mlflow":
        from .mlflow import MlflowTracker

        return MlflowTracker(run)
    if track == "tensorboard":
        from .tensorboard import TensorboardTracker

        return TensorboardTracker(run)
    from .wandb import WandbTracker

    return WandbTracker(run)


def _small_files(folder: Path) -> list[Path]:
    """Return the files of a run folder that are attached to the run: small ones, no models."""
    paths = [entry.path_in(folder) for entry in (CONFIG, ENVIRONMENT, SCORES, ROUNDS, CLIENTS)]
    return [path for path in paths if path.exists() and path.stat().st_size <= 20_000_000]
