"""TensorBoard: event files in the run folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from ..run_folder.files import TENSORBOARD
from .tracker import TrackedRun


class TensorboardTracker:
    """Writes a run's metrics as scalars, and its settings with the last metrics as hyperparameters."""

    def __init__(self, run: TrackedRun) -> None:
        # What was written of rounds that are run again is shown no more.
        self._writer = SummaryWriter(str(TENSORBOARD.path_in(run.folder)), purge_step=run.saved + 1)
        self._settings = dict(run.settings)
        self._last: dict[str, float] = {}

    def log(self, number: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a round."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, number)
        self._last |= metrics

    def end(self, files: Sequence[Path], *, finished: bool) -> None:
        """End; the files lie beside the event files."""
        if finished:
            # As add_hparams does, without the points that it adds at round 0.
            for summary in hparams(self._settings, self._last):  # type: ignore[no-untyped-call]
                self._writer._get_file_writer().add_summary(summary)  # type: ignore[no-untyped-call]
        self._writer.close()
