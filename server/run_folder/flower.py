"""The run folder for a user's ServerApp: any fair strategy records its rounds there, and continues from them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.protocol.settings import SETTINGS, Mark, Value
from fairbloom.rounds.flower import record_of
from fairbloom.rounds.method import OPTIONS
from fairbloom.rounds.ranges import whole
from fairbloom.rounds.round import Round
from fairbloom.strategies import FairStrategy

from ..observability import summarize_row
from ..polling import PollingGrid
from ..progress import announce
from ..tracking.tracked import check_tracker, tracked
from ..tracking.tracker import TrackedRun
from .files import MODEL
from .lock import locked_folder
from .recorder import RunRecorder
from .taking_back import TakeBack

FREE = {name for name, option in OPTIONS.items() if option.marks & {Mark.FREE, Mark.LIMIT}}
"""Options of a strategy that a continued run may change."""


class RunFolder:
    """A folder with the records of a run, which goes on from there when its process was lost.

    It holds what a run of Fairbloom's own app leaves: a row a round, a row per client, the last checkpoints, the best
    and the final model; `fairbloom show` and `fairbloom.load` read it.

    Parameters
    ----------
    path
        The folder; made if it is not there. A relative path begins at the process's current directory.
    score
        What fairness is measured in: the name of a metric that clients reply when they evaluate, or a Score that says
        whether lower is better, and whether it is a share that is shown in percent. The default is `accuracy`.
    wait
        Whether to wait, for up to a minute, for another process that writes the same folder.
    from_round
        The round that the run is taken back to before it continues, with other `training_clients` say; 0 begins it
        again. A process that Flower starts in place of a lost one does not take it back again. None: it goes on.
    track
        The tracker that the run is shown in: mlflow, tensorboard or wandb; "" shows it in none.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        score: str | Score = ACCURACY,
        wait: bool = True,
        from_round: int | None = None,
        track: str = "",
    ) -> None:
        self.path = Path(path).absolute()
        self.from_round = None if from_round is None else whole(0, from_round=from_round)
        self.score = score if isinstance(score, Score) else ACCURACY if score == ACCURACY.name else Score(score)
        self._wait = wait
        self._track = str(SETTINGS["track"].checked(track))

    def start(
        self,
        strategy: FairStrategy,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        on_round: Callable[[Round], None] | None = None,
    ) -> Result:
        """Run, continue or extend what the strategy says; arguments and result are those of `strategy.start`.

        Replies are looked for often, in place of every three seconds, and the run outlives a SuperLink that falls.

        The result of a continued run has the metrics of the rounds that ran now, and the arrays after the last one. A
        finished run is not run again: its result has the final arrays alone.

        Raises
        ------
        FairbloomError
            When the strategy is none of ours, the folder belongs to a run with another strategy or other options, the
            run cannot be taken back to that round, the tracker is not installed, or clients that evaluate do not reply
            the score.
        """
        check_tracker(self._track)

        if not isinstance(strategy, FairStrategy):
            raise FairbloomError(
                f"strategy is Flower's {type(strategy).__name__}, which reports nothing of single clients: take the "
                "one of fairbloom.strategies, which has FedAvg too"
            )
        announce(self.path)
        config = {"num-rounds": num_rounds, **collect_options(strategy), **_prefixed("train", train_config)}
        with locked_folder(self.path, wait=self._wait):
            back = None if self.from_round is None else TakeBack(self.from_round, str(grid.run.run_id))
            recorder = RunRecorder(self.path, config, strategy, (self.score,), back=back)
            if recorder.finished:
                log.info("%s is finished; nothing to run", self.path)
                return Result(arrays=record_of(MODEL.read(self.path)))
            log.info("run folder: %s", self.path)
            continued = recorder.resume()
            arrays, state = (initial_arrays, None) if continued is None else (record_of(continued[0]), continued[1])
            run = TrackedRun(self.path, config, self.score, recorder.saved)
            with tracked(self._track, run) as track:
                recorder.listeners.append(track)
                with recorder.suggest_taking_back():
                    result = strategy.start(
                        PollingGrid(grid),
                        arrays,
                        num_rounds,
                        timeout,
                        train_config,
                        evaluate_config,
                        evaluate_fn,
                        on_round=RoundWriter(recorder, self.score, on_round),
                        resume=state,
                    )
                recorder.finish({name: array.numpy() for name, array in result.arrays.items()})
            return result


class RoundWriter:
    """Writes each finished round into a run folder, then hands it on."""

    def __init__(self, recorder: RunRecorder, score: Score, on_round: Callable[[Round], None] | None) -> None:
        self._recorder, self._score, self._on_round = recorder, score, on_round
        self._started = time.perf_counter()

    def __call__(self, finished: Round) -> None:
        """Write the round.

        Raises
        ------
        FairbloomError
            When clients have evaluated and none has reported the score.
        """
        self._check_reported(finished)
        row = self._recorder.record(finished, seconds=time.perf_counter() - self._started)
        summary = summarize_row(row, self._score, finished, self._recorder.method.serves)
        log.info("round %d is recorded%s", finished.number, summary)
        if self._on_round is not None:
            self._on_round(finished)
        self._started = time.perf_counter()

    def _check_reported(self, finished: Round) -> None:
        reported = sorted({metric for metrics in finished.evaluations.values() for metric in metrics})
        if reported and self._score.name not in reported:
            raise FairbloomError(
                f"clients that evaluate reply {', '.join(reported)}, and not {self._score.name!r}, in which fairness "
                "is to be measured: name one of those, as in RunFolder(path, score=Score('eval_acc', percent=True))"
            )


def collect_options(strategy: FairStrategy) -> dict[str, Value]:
    """Return what makes a strategy's run what it is: its class, its parameters and the common options."""
    plain = {
        name: value
        for name, value in vars(strategy).items()
        if isinstance(value, bool | int | float | str) and not name.startswith("_") and name not in FREE
    }
    named = {name.replace("_", "-"): value for name, value in plain.items()}
    return {"method": type(strategy).__name__, **named, "training-clients": ",".join(strategy.training_clients)}


def _prefixed(what: str, config: ConfigRecord | None) -> dict[str, Any]:
    """Return the values that messages to the clients carry, each under the name of the message."""
    return {
        f"{what}.{key}": value for key, value in (config or {}).items() if isinstance(value, bool | int | float | str)
    }
