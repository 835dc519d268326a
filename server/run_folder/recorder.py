"""Write a run's files round by round, and continue an interrupted run from them."""

import math
import os
import platform
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fairbloom import __version__
from fairbloom.logs import log
from fairbloom.protocol.names import (
    LOSS_BEFORE,
    NUM_EXAMPLES,
    TRAIN_LOSS,
)
from fairbloom.protocol.settings import RunSettings
from fairbloom.rounds.round import Round
from fairbloom.rounds.run_state import RunState, ScoreSoFar
from fairbloom.strategies import FairStrategy
from fairbloom.system.files import sync_folder
from fairbloom.system.supervise import finish_first
from fairbloom.system.values import decode

from ..checkpoint import Arrays, list_checkpoints, load_last, save_round
from ..settings import find_grown
from .attendance import describe_rare
from .checks import check_folder, digest_code
from .csv_rows import (
    OVER,
    Row,
)
from .errors import RunFolderError, explain_write_errors
from .files import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    EXAMPLES,
    MODEL,
    MODULES,
    ROUNDS,
    SCORES,
    is_finished,
    is_run_folder,
    record_trained,
)
from .run_tables import Records, RoundsTable, tables_of
from .values import RecordedSettings

# In one process, a checkpoint is written once the rounds since the last one have taken this long
# in total.
SHARED_SECONDS = 0.5


class RunRecorder:
    """The files that a run writes and continues from.

    Rows are appended at each round. A checkpoint, which is written whole, has the size of each
    table: rows beyond it are dropped when the run continues. So a run that ends at any moment
    repeats at most the current round and, in one process, SHARED_SECONDS of finished rounds, to the
    same bits. The checkpoint before the last is kept: if the last is damaged, the run continues
    from there.

    In one process, a thread writes the checkpoint and the best model while the next round trains;
    the next checkpoint, `finish` and `close` wait for it. A kill meanwhile repeats its rounds, too.

    Parameters
    ----------
    keep
        Called before a checkpoint is written, with the round of the oldest checkpoint to which the
        run may go back, or 0: makes the clients store their states.
    """

    def __init__(
        self,
        path: Path,
        method: FairStrategy,
        records: Records,
        *,
        keep: Callable[[int], None] = lambda since: None,
    ) -> None:
        self.path = path
        # The round of the last checkpoint, which may not be written yet, or 0.
        self.saved = 0
        # Why the run ends before its last round, or "".
        self.stopped = ""
        self.method = method
        self.records = records
        self._keep = keep
        self._rounds = RoundsTable(path, method, records)
        self._tables = (self._rounds, *tables_of(path, method, records))
        # The score that chooses the best model in the last round that this process has evaluated,
        # NaN before it.
        self._last = math.nan
        self._new_best: Arrays | None = None
        # The last round and its model, while it has no checkpoint.
        self._unsaved: tuple[int, Mapping[str, Any]] | None = None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[None] | None = None
        self._seconds = 0.0
        # The new settings of a run that is continued or extended, until it begins.
        self._changed: RecordedSettings | None = None
        self._open({**digest_code(records.config), **records.code})

    def _open(self, code: Mapping[str, str]) -> None:
        """Prepare the folder for the first round of a new, continued or extended run."""
        config = self.records.config
        check_folder(self.path, config, code)
        if not is_run_folder(self.path):
            with explain_write_errors("the run folder", self.path):
                self._checkpoints.mkdir(parents=True, exist_ok=True)
            about = {
                "date": f"{date.today():%Y-%m-%d}",
                "machine": platform.platform(),
                "processors": os.cpu_count(),
                "python": platform.python_version(),
                "fairbloom": __version__,
                **_library_versions(),
            }
            if self.records.app_metrics:
                about["run-folder"] = secrets.token_hex(8)
            ENVIRONMENT.write(self.path, about)
            SCORES.write(self.path, self.records.scores)
            if code:
                MODULES.write(self.path, code)
            # The settings come last: if the process is killed before, the folder has no settings
            # and is made again.
            CONFIG.write(self.path, RecordedSettings(config))
            return
        recorded = CONFIG.read(self.path)
        before = recorded.num_rounds
        grown = find_grown(recorded.settings, config)
        if recorded.settings == config or (self.finished and not grown):
            return
        now = config["num-rounds"]
        if before != now and (self.method.paced or RunSettings.of(config).paced):
            change = "be extended to" if now > before else "end after"
            raise RunFolderError(
                f"{self.path} holds a run with steps that decay over {before} rounds, so it cannot"
                f" {change} {now}: choose another folder (--out) for a run of that length"
            )
        self._changed = replace(recorded, settings=config)

    def begin(self) -> None:
        """Write the new settings of a run that is continued or extended.

        Until then nothing is changed, so that a refused run stays intact. Recording the first round
        calls it, too.
        """
        if self._changed is None:
            return
        # The final model goes before the settings: with more rounds in the settings, the run must
        # not count as finished.
        with explain_write_errors("the run folder", self.path):
            MODEL.path_in(self.path).unlink(missing_ok=True)
        CONFIG.write(self.path, self._changed)
        self._changed = None

    @property
    def id(self) -> str:
        """The id of an app's run folder, by which devices keep states, "" if it is unknown."""
        return str(ENVIRONMENT.read(self.path).get("run-folder", ""))

    @property
    def finished(self) -> bool:
        """Whether the run is over, and is not extended."""
        return is_finished(self.path) and self._changed is None

    def resume(self) -> tuple[Arrays, Mapping[str, Any]] | None:
        """Return model and state after the last finished round, or None before it.

        Raise RunFolderError if all checkpoints are damaged.
        """
        checkpoint = load_last(self._checkpoints)
        if checkpoint is not None:
            written = checkpoint[1]["strategy"]
            self.saved = written["finished_rounds"]
            self.stopped = self.records.stopping.reason(decode(ScoreSoFar, written["stopping"]))
        with explain_write_errors(f"the run up to round {self.saved}", self.path):
            if checkpoint is None:
                rows = ROUNDS.read(self.path)
                # A second checkpoint is begun once the first is written, and then a third round.
                unwritten = self.records.in_process and not is_finished(self.path)
                if self._count_due(rows[:-1]) > int(unwritten):
                    raise RunFolderError(
                        f"{self.path} has rows of {len(rows)} rounds and no checkpoint: restore the"
                        f" folder {CHECKPOINTS.name} from a copy, or choose another folder (--out)"
                    )
                self._checkpoints.mkdir(exist_ok=True)
                for table in self._tables:
                    table.writer.begin()
                return None
            for table in self._tables:
                writer = table.writer
                writer.cut_back(checkpoint[1]["tables"][writer.path.name])
        log.info("the run continues after round %d", self.saved)
        return checkpoint[0], checkpoint[1]["strategy"]

    def _count_due(self, rows: Iterable[Mapping[str, str]]) -> int:
        """Return how many checkpoints were due in the rounds with these first rows of the table."""
        shared = SHARED_SECONDS if self.records.in_process else 0.0
        due = 0
        since_last = 0.0
        for row in rows:
            since_last += float(row.get("seconds") or 0.0)
            if since_last >= shared:
                due += 1
                since_last = 0.0
        return due

    def knows_losses(self, clients: Iterable[str]) -> bool:
        """Return whether the losses of the next round's first model are known for these clients."""
        return self.records.in_process and self.method.run_state.losses.keys() >= set(clients)

    def record(self, finished: Round, seconds: float) -> Row:
        """Record a finished round and return its row of rounds.csv."""
        self.begin()
        known = self.method.run_state
        if self.records.in_process:
            finished = with_losses(finished, known.losses)
        state = known.counted(finished)
        with explain_write_errors(f"round {finished.number}", self.path):
            row = self._rounds.row(finished, seconds)
            for table in self._tables:
                table.add(finished, state, row)
        if EXAMPLES.exists_in(self.path):
            trained = {
                name: own[NUM_EXAMPLES]
                for name, own in finished.train_metrics.items()
                if NUM_EXAMPLES in own
            }
            record_trained(self.path, trained)
        state = self._judged(state, finished, row)
        self.method.enter(state)
        self.stopped = self.records.stopping.reason(state.stopping)
        self._seconds += float(str(row["seconds"]))
        self._unsaved = finished.number, finished.arrays
        if not self.records.in_process or self._seconds >= SHARED_SECONDS:
            self._save()
        return row

    def _judged(self, state: RunState, finished: Round, row: Row) -> RunState:
        """Return the state that also knows the round's scores and losses; keep a best model."""
        chosen_by = self.records.chosen_by
        value = row.get(chosen_by.column)
        best = state.best
        if isinstance(value, float):
            self._last = value
            best = best.after(finished.number, value, chosen_by.score.better)
            if best.best_round == finished.number:
                self._new_best = finished.evaluated
        stopping = self.records.stopping.after(state.stopping, finished)
        after = {name: m[TRAIN_LOSS] for name, m in finished.evaluations.items() if TRAIN_LOSS in m}
        # the averaged model, which was measured, is not the one of the next round
        losses = after if finished.average is None else {}
        return state.recorded(best, stopping, losses)

    def record_initial(self, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of the user's `evaluate_fn` for the initial model."""
        for table in self._tables:
            table.add_initial(metrics)

    def _save(self) -> None:
        """Save the best model and a checkpoint of the last round, if it has none yet.

        What is written is collected here: `learn`, `record` and the clients change it later.
        """
        if self._unsaved is None:
            return
        self.flush()
        number, arrays = self._unsaved
        before = self.saved
        with explain_write_errors(f"round {number}", self.path):
            # Clients that train use these states: another thread may not store and drop them.
            kept = [int(path.stem) for path in list_checkpoints(self._checkpoints)]
            self._keep(min(kept, default=0))
        writers = [table.writer for table in self._tables]
        state: dict[str, Any] = {
            "strategy": self.method.state_dict(),
            "tables": {writer.path.name: writer.size for writer in writers},
        }
        new_best = self._new_best
        best = self.method.run_state.best

        def write() -> None:
            with explain_write_errors(f"round {number}", self.path):
                for writer in writers:
                    sync_folder(writer.path)
                if new_best is not None:
                    about = {"round": best.best_round, self.records.chosen_by.column: best.best}
                    BEST.write(self.path, _to_numpy(new_best), {**self.records.about, **about})
                save_round(self._checkpoints, number, _to_numpy(arrays), state, before)

        self._saving = None
        if self.records.in_process:
            with suppress(RuntimeError):  # at the end of a program no thread begins any more
                self._saving = self._writer.submit(write)
        if self._saving is None:
            write()
        self.saved = number
        self._unsaved = None
        self._new_best = None
        self._seconds = 0.0

    def flush(self) -> None:
        """Wait for the last checkpoint; raise RunFolderError if it could not be written."""
        if self._saving is not None:
            self._saving.result()

    def close(self) -> None:
        """End the thread that writes checkpoints, once it is done; see `flush`."""
        with finish_first():  # a second Ctrl-C would free the folder while it is written to
            self._writer.shutdown()
        self.flush()

    def finish(self, arrays: Arrays) -> None:
        """Finish the run: write the last checkpoint and the final model."""
        self.begin()
        self._save()
        self.flush()
        for sentence in describe_rare(self.path, self.method.training_clients):
            log.warning("%s", sentence)
        with explain_write_errors("the final model", self.path):
            stopped = {"stopped": self.stopped} if self.stopped else {}
            MODEL.write(self.path, arrays, {**self.records.about, **stopped})
        if self.stopped:
            log.info(
                "the run is finished after round %d, before its last one: %s",
                self.saved,
                self.stopped,
            )
        self._warn_of_worse_end()

    def _warn_of_worse_end(self) -> None:
        """Log if the last score is worse than the best one by more than half of it."""
        score = self.records.chosen_by.score
        known = self.method.run_state.best
        best = known.best
        if best is None or score.better(best, self._last) <= abs(best) / 2.0:
            return
        log.warning(
            "the mean %s%s is %s at the end; it was %s after round %d (its model is in %s):"
            " lower the learning rate",
            score.name,
            OVER[self.records.chosen_by.measure],
            score.written(self._last),
            score.written(best),
            known.best_round,
            BEST.name,
        )

    @property
    def _checkpoints(self) -> Path:
        return CHECKPOINTS.path_in(self.path)


def with_losses(finished: Round, losses: Mapping[str, float]) -> Round:
    """Return a round in which clients report these losses, if known, from before their training."""
    before = {
        name: {LOSS_BEFORE: losses[name], **finished.train_metrics[name]}
        for name in losses.keys() & finished.train_metrics.keys()
    }
    return replace(finished, train_metrics={**finished.train_metrics, **before})


@cache  # to read them takes a twentieth of a small run
def _library_versions() -> dict[str, str]:
    return {name: version(name) for name in ("flwr", "torch", "numpy", "cvxopt")}


def _to_numpy(arrays: Mapping[str, Any]) -> Arrays:
    """Return NumPy arrays by name; the rounds of Flower's own loop have Flower's arrays."""
    return {
        name: array if isinstance(array, np.ndarray) else array.numpy()
        for name, array in arrays.items()
    }
