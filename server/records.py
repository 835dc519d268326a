"""The run folder: whose it is, what a run leaves in it, and what an interrupted run continues from."""

import copy
import json
import logging
import os
import platform
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fairbloom import __version__
from fairbloom.files import write_whole
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.rounds.method import Method
from fairbloom.rounds.round import Round

from .checkpoint import Arrays, checkpoints, load_last, load_model, save_model, save_round
from .files import RunFolderError, check_place, usable, written
from .lock import LOCK
from .rows import Row, Table, client_columns, client_rows, furthest_round, round_columns, round_row
from .settings import default_config, may_differ, may_grow

log = logging.getLogger("flwr").getChild("fairbloom")

FORMAT = 3
"""The number of the run folder's format; it is raised when a folder of before can no longer be continued."""

MODEL, SCORES, AGREED, DATA, SPLIT, ENGINE = (
    "model.safetensors",
    *("scores.json", "agreed.json", "data.json", "split.npz", "engine.json"),
)
"""Files of a run folder: the final model, what clients measured, what they have agreed on about their data, and where
all of them are on one machine the checksums of the files that they read, who has which examples of a data set that is
dealt to them, and how they are computed."""

FIRST_LAID = (
    LOCK,
    "checkpoint",
    *(name for file in ("env.json", SCORES, "config.toml") for name in (file, f".{file}.draft")),
)
"""What a folder may hold whose making was interrupted before its settings were written."""


SHARED_SECONDS = 0.5
"""Where rounds share checkpoints, one is written once the rounds since the last one have taken so long together."""


class Records:
    """What a run leaves on disk, and what it continues from.

    Rows are written before the checkpoint of their last round, which is written whole; rows of later rounds than the
    checkpoint's are dropped when the run continues. So a run killed at any moment loses at most the round under way
    and, where rounds share checkpoints, SHARED_SECONDS of finished ones. The checkpoint before the last is kept: where
    the last is damaged, the run continues from there, to the same bits.

    Parameters
    ----------
    path
        The folder; made if it is not there.
    config
        The settings that make the run what it is, with those that leave the numbers unchanged.
    method
        Of the run; asked for the columns of its own, and for its state after a round.
    scores
        What clients measure on their test sets; fairness is measured in the first.
    shared
        Whether rounds shorter than SHARED_SECONDS share a checkpoint.
    keep
        Called before a checkpoint is written, with the round of the oldest one that the run may go back to if that
        fails, 0 where there is none: lets the clients store what they keep for themselves.
    validated
        Whether clients have validation examples: the best model is then the one with the best mean score on these, and
        not on the test examples.

    Raises
    ------
    RunFolderError
        As `check_folder` does, or when the folder cannot be written.
    """

    def __init__(
        self,
        path: Path,
        config: Mapping[str, object],
        method: Method,
        scores: Sequence[Score] = (ACCURACY,),
        *,
        shared: bool = False,
        keep: Callable[[int], None] = lambda since: None,
        validated: bool = False,
    ) -> None:
        self.path = path
        self.saved = 0
        """The round of the last checkpoint, 0 where there is none."""
        self.method = method
        self._scores, self._score = scores, scores[0]
        self._shared, self._keep = shared, keep
        self._rounds = Table(path / "rounds.csv", round_columns(method, self._score, validated=validated))
        self._clients = Table(path / "clients.csv", client_columns(scores, validated=validated))
        self._validated = validated
        self._best_by = f"{self._score.column(split='validation' if validated else 'test')}_mean"
        self._best: Mapping[str, float] = {}
        self._new_best: Arrays | None = None
        self._unsaved: _Unsaved | None = None
        self._seconds = 0.0
        check_folder(path, config)
        if not (path / "config.toml").exists():
            self._lay_out(config)
            return
        _, there = _read(path)
        if _extends(there, config) and method.paced:
            raise RunFolderError(
                f"{path} holds a run whose steps decay over {there['num-rounds']} rounds, so it cannot be extended to "
                f"{config['num-rounds']}: choose another folder (--out) for a run of that length"
            )
        if self.finished and _extends(there, config):
            with written("the run folder", path):
                (path / MODEL).unlink()  # before the settings: a folder that says more rounds has no final model yet
        if not self.finished and there != config:
            self._write_settings(config)

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return is_finished(self.path)

    def resume(self) -> tuple[Arrays, Mapping[str, Any]] | None:
        """Return the model and the method's state after the last finished round, None where there is none yet.

        Raises
        ------
        RunFolderError
            When the checkpoints or tables are damaged.
        """
        arrays, state = load_last(self.path / "checkpoint") or (None, {"strategy": {"round": 0}, "best": {}})
        self._best, self.saved = state["best"], state["strategy"]["round"]
        with written(f"what is there up to round {self.saved}", self.path):
            furthest = furthest_round(self._rounds.path, self.saved, SHARED_SECONDS)
            for table in (self._rounds, self._clients):
                table.cut_back(self.saved, furthest)
        return None if arrays is None else (arrays, state["strategy"])

    def record(self, finished: Round, seconds: float) -> Row:
        """Take in a finished round, which took so long, and return its row of rounds.csv.

        The rows that wait, the best model so far and the checkpoint are written, unless this round is to share it.

        Raises
        ------
        RunFolderError
            When the disk does not take it; the checkpoints are intact.
        """
        row = round_row(finished, seconds, self.method.reports, self._score)
        self._rounds.add([[row.get(column) for column in self._rounds.columns]])
        self._clients.add(client_rows(finished, self._scores, validated=self._validated))
        mean = row.get(self._best_by)
        if isinstance(mean, float) and (not self._best or self._score.better(mean, self._best["mean"]) > 0.0):
            self._best, self._new_best = {"mean": mean, "round": finished.number}, finished.evaluated
        self._seconds += float(str(row["seconds"]))
        shares = self._shared and self._seconds < SHARED_SECONDS
        method = _as_it_is(self.method) if shares else self.method
        self._unsaved = _Unsaved(finished.number, finished.arrays, method)
        if not shares:
            self.write()
        return row

    def write(self) -> None:
        """Write what waits: rows, the best model and the checkpoint of the last finished round.

        Where it was interrupted, it can be called again.

        Raises
        ------
        RunFolderError
            When the disk does not take it; the checkpoints are intact.
        """
        if (last := self._unsaved) is None:
            return
        first, folder = self.saved + 1, self.path / "checkpoint"
        with written(f"round {first}" if first == last.number else f"rounds {first} to {last.number}", self.path):
            self._rounds.write()
            self._clients.write()
            if self._new_best is not None:
                about = {"round": self._best["round"], self._best_by: self._best["mean"]}
                save_model(self.path / "model-best.safetensors", _as_numpy(self._new_best), about)
            self._keep(min((int(path.stem) for path in checkpoints(folder)), default=0))
            state = {"strategy": last.method.state_dict(), "best": self._best}
            save_round(folder, last.number, _as_numpy(last.arrays), state, before=self.saved)
        self.saved, self._unsaved, self._new_best, self._seconds = last.number, None, None, 0.0

    @contextmanager
    def all_written(self) -> Iterator[None]:
        """Write what waits when the block ends, also where an exception or Ctrl-C ends it, which goes on afterwards."""
        try:
            yield
        except BaseException as stopped:
            # What the disk has refused is not tried again. Clients with personal models may be in the midst of the next
            # round, with which they cannot go back to the last finished one: that is run again.
            if not isinstance(stopped, RunFolderError) and self.method.terms(1).personal_lambda is None:
                try:
                    self.write()
                except Exception as error:
                    log.error("the rounds after round %d are run again when the run continues: %s", self.saved, error)
            raise
        self.write()

    def finish(self, arrays: Arrays) -> None:
        """Write what waits and then the final model, which marks the run as finished."""
        self.write()
        with written("the final model", self.path):
            save_model(self.path / MODEL, arrays, {})

    def keep_agreed(self, agreed: str) -> None:
        """Write what the clients have agreed on about their data, if there is anything."""
        if not agreed:
            return
        with written("what the clients agreed on", self.path):
            write_whole(self.path / AGREED, agreed.encode())

    def keep_data(self, digests: Mapping[str, str]) -> None:
        """Write the checksums of the files that the clients read, if they read any here."""
        if digests and not (self.path / DATA).exists():
            with written("the checksums of the data", self.path):
                write_whole(self.path / DATA, json.dumps(digests, indent=2).encode())

    def keep_split(self, made: Callable[[], bytes]) -> None:
        """Write who has which examples, unless it is there."""
        if not (self.path / SPLIT).exists():
            with written("the split of the data", self.path):
                write_whole(self.path / SPLIT, made())

    def keep_engine(self, choice: Mapping[str, object]) -> None:
        """Write how the clients are computed, unless the run that goes on here has been begun with another choice."""
        if not (self.path / ENGINE).exists():
            with written("the engine", self.path):
                write_whole(self.path / ENGINE, json.dumps(choice, indent=2).encode())

    def _lay_out(self, config: Mapping[str, object]) -> None:
        with written("the run folder", self.path):
            (self.path / "checkpoint").mkdir(parents=True, exist_ok=True)
            about = {"machine": platform.platform(), "processors": os.cpu_count(), "python": platform.python_version()}
            packages = {name: version(name) for name in ("flwr", "torch", "numpy", "cvxopt")}
            about |= {"fairbloom": __version__, **packages}
            write_whole(self.path / "env.json", json.dumps(about, indent=2).encode())
            measured = [{"column": score.column(), **asdict(score)} for score in self._scores]
            write_whole(self.path / SCORES, json.dumps(measured, indent=2).encode())
        # The settings come last: a folder without them was killed while it was made, and is made again.
        self._write_settings(config)

    def _write_settings(self, config: Mapping[str, object]) -> None:
        with written("the run folder", self.path):
            write_whole(self.path / "config.toml", tomli_w.dumps({"run-folder-format": FORMAT, **config}).encode())


@dataclass(frozen=True)
class _Unsaved:
    """The last finished round, while it has no checkpoint: what that will hold."""

    number: int
    arrays: Any
    method: Method


def _as_it_is(method: Method) -> Method:
    """Return a method that stays as this one is now, for its state to be told later.

    The parts of its progress are replaced with every round and never changed, so that copies are not needed.
    """
    then = copy.copy(method)
    then.progress, then.memory = replace(method.progress), copy.deepcopy(method.memory)
    return then


def _as_numpy(arrays: Mapping[str, Any]) -> Arrays:
    """Return arrays by name as NumPy's; those of a round under Flower's own loop are Flower's."""
    return {name: array if isinstance(array, np.ndarray) else array.numpy() for name, array in arrays.items()}


def check_same_data(path: Path, digests: Mapping[str, str]) -> None:
    """Raise RunFolderError when the run in a folder was begun with other data than those with these checksums."""
    file = path / DATA
    if not digests or not file.exists():
        return
    try:
        there = dict(json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}. Restore it from a copy") from error
    if there != digests:
        changed = sorted(name for name in {*there, *digests} if there.get(name) != digests.get(name))
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise RunFolderError(
            f"the data have changed since the run in {path} was begun ({', '.join(changed[:5])}{more}): put them back, "
            "or choose another folder (--out) for a run with the new data"
        )


def rounds_in(path: Path) -> int:
    """Return how many rounds the run in a folder has by its settings."""
    return int(recorded_settings(path).get("num-rounds", 0))


def settings_there(path: Path) -> dict[str, Any]:
    """Return the settings of the run in a folder, none where no run has been begun; see `recorded_settings`."""
    return recorded_settings(path) if (path / "config.toml").exists() else {}


def recorded_settings(path: Path) -> dict[str, Any]:
    """Return the settings of the run in a folder; raise RunFolderError when they cannot be read."""
    return _read(path)[1]


def agreed_in(path: Path) -> str:
    """Return what the clients of a run have agreed on about their data, "" where they have not."""
    file = path / AGREED
    try:
        return file.read_text() if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}. Restore it from a copy, or choose another folder (--out)"
        ) from error


def engine_in(path: Path) -> dict[str, Any] | None:
    """Return how the clients of the run in a folder are computed, None where no choice is recorded.

    Raises
    ------
    RunFolderError
        When the file is not as a run has written it.
    """
    file = path / ENGINE
    if not file.exists():
        return None
    try:
        choice = json.loads(file.read_bytes())
        if not isinstance(choice, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}. Restore it from a copy, or delete it") from error
    return choice


def scores_in(path: Path) -> list[Score]:
    """Return what clients measured in a run, first what fairness is measured in; a folder without a word has accuracy.

    Raises
    ------
    RunFolderError
        When the file is not as a run has written it.
    """
    file = path / SCORES
    if not file.exists():
        return [ACCURACY]
    try:
        return [
            Score(each["name"], each["higher_is_better"], each["percent"]) for each in json.loads(file.read_bytes())
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}. Restore it from a copy") from error


def is_finished(path: Path) -> bool:
    """Return whether the run in a folder is over."""
    return (path / MODEL).exists()


def check_folder(path: Path, config: Mapping[str, object]) -> None:
    """Raise RunFolderError when a run with these settings cannot be, go on or be shown in `path`; nothing is changed.

    It cannot where the place holds something else: a file, another program's files, a run with other settings, one of
    another version, or a finished one whose model is damaged.
    """
    check_place(path)
    with usable(path):
        begun = (path / "config.toml").exists()
        entries = [entry.name for entry in path.iterdir()] if path.exists() else []
    if begun:
        _check_same_run(path, config)
    elif any(name not in FIRST_LAID for name in entries):
        raise RunFolderError(f"{path} is there already and is no run folder: choose another folder (--out)")


def _check_same_run(path: Path, config: Mapping[str, object]) -> None:
    """Raise RunFolderError when the run in a folder has other settings or another format, or its model is damaged."""
    number, there = _read(path)
    finished = is_finished(path)
    if number > FORMAT:
        raise RunFolderError(
            f"{path} was written by a newer version (run-folder-format = {number}, this version knows {FORMAT}): "
            "upgrade fairbloom or choose another folder (--out)"
        )
    if number < FORMAT:
        remedy = "read its tables and models as they are" if finished else "continue it with that version"
        raise RunFolderError(
            f"{path} was written by an older version (run-folder-format = {number}, this version knows {FORMAT}): "
            f"{remedy}, or choose another folder (--out) for a new run"
        )
    # A setting that is newer than the folder had its default.
    there = {key: value for key, value in default_config().items() if key in config} | there
    grows = [key for key in may_grow() if _grown(there, config, key)]
    keys = (config.keys() | there.keys()).difference(may_differ(finished=finished and not grows), grows)
    if config.get("fraction") == 0.0:  # a run that goes on keeps the one that was decided when it began
        keys -= {"fraction"}
    differing = sorted(key for key in keys if config.get(key) != there.get(key))
    if differing:
        shown = ", ".join(f"{key} = {there.get(key)!r} there and {config.get(key)!r} here" for key in differing)
        raise RunFolderError(f"{path} belongs to a run with other settings ({shown}): choose another folder (--out)")
    if finished:
        _check_model(path / MODEL)


def _extends(there: Mapping[str, object], config: Mapping[str, object]) -> bool:
    """Return whether settings ask for more rounds than a folder's."""
    return any(_grown(there, config, key) for key in may_grow())


def _grown(there: Mapping[str, object], config: Mapping[str, object], key: str) -> bool:
    before, now = there.get(key), config.get(key)
    return isinstance(before, int) and isinstance(now, int) and now > before


def _check_model(path: Path) -> None:
    """Raise RunFolderError when the final model is not as it was written."""
    try:
        load_model(path)
    except RunFolderError as error:
        raise RunFolderError(
            f"{error}. Delete that file and run the same command again, which writes it anew from the last checkpoint"
        ) from error


def _read(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the number of a run folder's format, and its settings.

    Raises
    ------
    RunFolderError
        When config.toml is not as a run has written it.
    """
    file = path / "config.toml"
    remedy = "mend it, restore it from a copy, or choose another folder (--out)"
    try:
        there = tomllib.loads(file.read_bytes().decode())
    except OSError as error:
        raise RunFolderError(f"{file} cannot be read: {error.strerror}: {remedy}") from error
    except ValueError as error:
        raise RunFolderError(f"{file} is no valid TOML: {error}: {remedy}") from error
    number = there.pop("run-folder-format", None)
    if not isinstance(number, int):
        raise RunFolderError(f"{file} has run-folder-format = {number!r}, which is no format's number: {remedy}")
    return number, there
