"""The run folder: whose it is, what a run leaves in it, and what an interrupted run continues from."""

import copy
import json
import logging
import math
import os
import platform
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fairbloom import __version__
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.protocol.settings import Mark, marked
from fairbloom.rounds.average import Average
from fairbloom.rounds.limits import BrokenModelError
from fairbloom.rounds.loop import NothingLearnedError
from fairbloom.rounds.method import Method
from fairbloom.rounds.round import Round
from fairbloom.system.files import write_whole

from ..checkpoint import (
    EARLIER,
    Arrays,
    Merit,
    find_checkpoint,
    format_rounds,
    list_checkpoints,
    list_reachable,
    load_checkpoint,
    load_last,
    load_model,
    make_last,
    path_of_best,
    save_model,
    save_round,
)
from ..settings import default_config, may_differ, may_grow
from .errors import RunFolderError, check_place, explain_access_errors, explain_write_errors, write_link
from .lock import LOCK
from .tables import Row, TableWriter, client_columns, client_rows, furthest_round, last_step, round_columns, round_row

log = logging.getLogger("flwr").getChild("fairbloom")

FORMAT = 3
"""The number of the run folder's format; it is raised when a folder of before can no longer be continued."""

MODEL, SCORES, AGREED, DATA, SPLIT, ENGINE, KNOWN = (
    "model.safetensors",
    *("scores.json", "agreed.json", "data.json", "split.npz", "engine.json", "known.json"),
)
"""Files of a run folder: the final model, what clients measured, what they have agreed on about their data, and where
all of them are on one machine the checksums of the files that they read, who has which examples of a data set that is
dealt to them, and how they are computed; where they are others' machines, which clients the run has known."""

BEST = "model-best.safetensors"
"""The file of the model with the best mean score."""

TAKEN_BACK, UNDER_WAY = "taken-back", "under-way"
"""Where config.toml says when the run was taken back to an earlier round, and that it is being taken back."""

FIRST_LAID = (
    LOCK,
    "checkpoint",
    *(name for file in ("env.json", SCORES, "config.toml") for name in (file, f".{file}.draft")),
)
"""What a folder may hold whose making was interrupted before its settings were written."""


SHARED_SECONDS = 0.5
"""Where rounds share checkpoints, one is written once the rounds since the last one have taken so long together."""


@dataclass(frozen=True)
class Known:
    """The deployed clients that a run knows, by name and in order: those that it began with, and all up to now."""

    began: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


class RunRecorder:
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
    back
        The round that the run is taken back to, and for whom; None: it goes on where it was.

    Raises
    ------
    RunFolderError
        As `check_folder` does, when the folder cannot be written, or the run cannot be taken back to that round.
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
        back: "TakeBack | None" = None,
    ) -> None:
        self.path = path
        self.saved = 0
        """The round of the last checkpoint, 0 where there is none."""
        self.method = method
        self._scores, self._score = scores, scores[0]
        self._shared, self._keep = shared, keep
        self._rounds = TableWriter(path / "rounds.csv", round_columns(method, self._score, validated=validated))
        self._clients = TableWriter(path / "clients.csv", client_columns(scores, validated=validated))
        self._validated = validated
        self._best_by = f"{self._score.column(split='validation' if validated else 'test')}_mean"
        self._best: Mapping[str, float] = {}
        self._merits: dict[int, Merit] = {}
        self._new_best: Arrays | None = None
        self._unsaved: _Unsaved | None = None
        self._seconds = 0.0
        back = back if back is not None and back.is_new(path) else None
        check_folder(path, config, back)
        if not (path / "config.toml").exists():
            self._lay_out(config)
            return
        there = recorded_settings(path)
        if any(entry.get(UNDER_WAY) for entry in taken_back_in(path)):
            self._go_back(there)
        if _extends(there, config) and method.paced:
            raise RunFolderError(
                f"{path} holds a run whose steps decay over {there['num-rounds']} rounds, so it cannot be extended to "
                f"{config['num-rounds']}: choose another folder (--out) for a run of that length"
            )
        if self.finished and _extends(there, config):
            with explain_write_errors("the run folder", path):
                (path / MODEL).unlink()  # before the settings: a folder that says more rounds has no final model yet
        if back is not None:
            self._take_back(back, there, config)
        elif not self.finished and there != config:
            self._write_settings(config, taken_back_in(path))

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
        self._merits = {int(number): Merit(*merit) for number, merit in state.get("merits", {}).items()}
        with explain_write_errors(f"what is there up to round {self.saved}", self.path):
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
        score = self._score.better(mean, 0.0) if isinstance(mean, float) else None
        self._unsaved = _Unsaved(finished.number, finished.arrays, method, score)
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
        with explain_write_errors(
            f"round {first}" if first == last.number else f"rounds {first} to {last.number}", self.path
        ):
            self._rounds.write()
            self._clients.write()
            if self._new_best is not None:
                about = {"round": self._best["round"], self._best_by: self._best["mean"]}
                save_model(self.path / BEST, _as_numpy(self._new_best), about)
            self._keep(min((int(path.stem) for path in list_checkpoints(folder)), default=0))
            if self._best and self._best["round"] != last.number:
                (folder / EARLIER).mkdir(exist_ok=True)
                write_link(path_of_best(folder, last.number), self.path / BEST)
            self._merits = {number: self._merits[number] for number in self._merits.keys() & list_reachable(folder)}
            self._merits[last.number] = Merit.of(last.number, self.saved, last.score)
            state = {"strategy": last.method.state_dict(), "best": self._best, "merits": self._plain_merits()}
            # Clients keep the personal models that belong to the last two checkpoints, so that no others are of use.
            earlier = {} if self._personal else self._merits
            save_round(folder, last.number, _as_numpy(last.arrays), state, self.saved, earlier)
        self.saved, self._unsaved, self._new_best, self._seconds = last.number, None, None, 0.0

    @contextmanager
    def all_written(self) -> Iterator[None]:
        """Write what waits when the block ends, also where an exception or Ctrl-C ends it, which goes on afterwards."""
        try:
            yield
        except BaseException as stopped:
            # What the disk has refused is not tried again. Clients with personal models may be in the midst of the next
            # round, with which they cannot go back to the last finished one: that is run again.
            if not isinstance(stopped, RunFolderError) and not self._personal:
                try:
                    self.write()
                except Exception as error:
                    log.error("the rounds after round %d are run again when the run continues: %s", self.saved, error)
            raise
        self.write()

    @contextmanager
    def naming_the_way_back(self) -> Iterator[None]:
        """Add to the error of a run that learns nothing, or has a broken model, to which round it can be taken back.

        A model is broken by the longest step of all. Rounds without a step leave it as it is: what else is wrong has
        come by the last one.
        """
        try:
            yield
        except (NothingLearnedError, BrokenModelError) as error:
            longest = self.method.progress.lengths.longest.round
            last = longest if isinstance(error, BrokenModelError) else last_step(self._rounds.path)
            before = [number for number in sorted({0} | list_reachable(self.path / "checkpoint")) if number < last]
            if not before:
                raise
            others = f" ({format_rounds(before[:-1])} can be reached, too)" if before[1:] else ""
            raise type(error)(
                f"{error}. Where a client has broken the model, which was changed last in round {last}, take the run "
                f"back to before that by --from-round {before[-1]}{others}, and name the other clients by "
                "training-clients"
            ) from error

    def finish(self, arrays: Arrays) -> None:
        """Write what waits and then the final model, which marks the run as finished."""
        self.write()
        with explain_write_errors("the final model", self.path):
            save_model(self.path / MODEL, arrays, {})

    def keep_agreed(self, agreed: str) -> None:
        """Write what the clients have agreed on about their data, if there is anything."""
        if not agreed:
            return
        with explain_write_errors("what the clients agreed on", self.path):
            write_whole(self.path / AGREED, agreed.encode())

    def keep_data(self, digests: Mapping[str, str]) -> None:
        """Write the checksums of the files that the clients read, if they read any here."""
        if digests and not (self.path / DATA).exists():
            with explain_write_errors("the checksums of the data", self.path):
                write_whole(self.path / DATA, json.dumps(digests, indent=2).encode())

    def keep_split(self, made: Callable[[], bytes]) -> None:
        """Write who has which examples, unless it is there."""
        if not (self.path / SPLIT).exists():
            with explain_write_errors("the split of the data", self.path):
                write_whole(self.path / SPLIT, made())

    def keep_known(self, names: Iterable[str]) -> Known:
        """Write which clients the run knows, where some are new; those that come first are those it began with."""
        before = known_in(self.path)
        known = Known(before.began or tuple(sorted(names)), tuple(sorted({*before.known, *names})))
        if known != before:
            with explain_write_errors("the names of the clients", self.path):
                write_whole(self.path / KNOWN, json.dumps(asdict(known), indent=2).encode())
        return known

    def keep_engine(self, choice: Mapping[str, object]) -> None:
        """Write how the clients are computed, unless the run that goes on here has been begun with another choice."""
        if not (self.path / ENGINE).exists():
            with explain_write_errors("the engine", self.path):
                write_whole(self.path / ENGINE, json.dumps(choice, indent=2).encode())

    @property
    def _personal(self) -> bool:
        """Whether clients keep personal models."""
        return self.method.terms(1).personal_lambda is not None

    def _plain_merits(self) -> dict[str, list[float | int | None]]:
        return {str(number): [merit.score, merit.crossed] for number, merit in self._merits.items()}

    def _take_back(self, back: "TakeBack", there: Mapping[str, object], config: Mapping[str, object]) -> None:
        """Take the run back to an earlier round.

        All is checked first. Then config.toml gets the settings and the record that the run is being taken back, in one
        write; from there on every start brings it to its end.
        """
        self._check_reachable(back.number, there, config)
        for table in (self._rounds, self._clients):
            table.check(back.number)
        noted = marked(Mark.LIMIT, Mark.RECONSIDERED, Mark.GROWS).keys() & there.keys()
        changed = {key: there[key] for key in sorted(noted & _differing(there, config))}
        last = max(list_reachable(self.path / "checkpoint"), default=0)
        entry = {"to": back.number, "after": last, "submission": back.submission, "before": changed, UNDER_WAY: True}
        with explain_write_errors("the run folder", self.path):
            (self.path / MODEL).unlink(missing_ok=True)  # which the last checkpoint still stands for
        self._write_settings(config, [*taken_back_in(self.path), entry])
        self._go_back(config)
        words = "%s, which had %d rounds, is taken back to round %d; without --from-round the same command continues it"
        log.warning(words, self.path, last, back.number)

    def _check_reachable(self, number: int, there: Mapping[str, object], config: Mapping[str, object]) -> None:
        """Raise RunFolderError when the run cannot be taken back to a round."""
        folder = self.path / "checkpoint"
        have = {0} | list_reachable(folder)
        if number not in have:
            raise RunFolderError(
                f"{self.path} cannot be taken back to round {number}: {format_rounds(have)} can be reached, as by "
                f"--from-round {max((each for each in have if each < number), default=0)}"
            )
        if number and self._personal and (differing := marked(Mark.RECONSIDERED).keys() & _differing(there, config)):
            raise RunFolderError(
                f"{self.path} cannot be taken back to round {number} with another {min(differing)}: clients keep their "
                "personal models by that setting; begin anew by --from-round 0"
            )
        if number:
            load_checkpoint(find_checkpoint(folder, number))

    def _go_back(self, config: Mapping[str, object]) -> None:
        """Bring the last taking back to its end, wherever it was interrupted."""
        *earlier, entry = taken_back_in(self.path)
        number, folder = int(entry["to"]), self.path / "checkpoint"
        with explain_write_errors(f"round {number}", self.path):
            make_last(folder, number)
            self._restore_best(number)
            for table in (self._rounds, self._clients):
                table.cut_back(number, math.inf)
        done = {key: value for key, value in entry.items() if key != UNDER_WAY}
        self._write_settings(config, [*earlier, done])

    def _restore_best(self, number: int) -> None:
        """Make the best model that of the rounds up to a checkpoint's."""
        folder, path = self.path / "checkpoint", self.path / BEST
        arrays, state = load_checkpoint(find_checkpoint(folder, number)) if number else ({}, {"best": {}})
        best, copy_ = state["best"], path_of_best(folder, number)
        if not best:
            path.unlink(missing_ok=True)
        elif best["round"] == number:
            average = Average.of_state(state["strategy"].get("average", {"rounds": 0, "sums": {}}))
            save_model(path, average.mean(arrays), {"round": number, self._best_by: best["mean"]})
        elif copy_.exists():
            write_whole(path, copy_.read_bytes())
        elif not path.exists() or load_model(path)[1]["round"] != best["round"]:  # by a version that kept no copies
            path.unlink(missing_ok=True)
            log.warning("the best model up to round %d, of round %d, was not kept", number, best["round"])

    def _lay_out(self, config: Mapping[str, object]) -> None:
        with explain_write_errors("the run folder", self.path):
            (self.path / "checkpoint").mkdir(parents=True, exist_ok=True)
            about = {"machine": platform.platform(), "processors": os.cpu_count(), "python": platform.python_version()}
            packages = {name: version(name) for name in ("flwr", "torch", "numpy", "cvxopt")}
            about |= {"fairbloom": __version__, **packages}
            write_whole(self.path / "env.json", json.dumps(about, indent=2).encode())
            measured = [{"column": score.column(), **asdict(score)} for score in self._scores]
            write_whole(self.path / SCORES, json.dumps(measured, indent=2).encode())
        # The settings come last: a folder without them was killed while it was made, and is made again.
        self._write_settings(config, [])

    def _write_settings(self, config: Mapping[str, object], taken_back: "list[dict[str, Any]]") -> None:
        """Write config.toml: the settings, and when the run was taken back, if it was."""
        about = {"run-folder-format": FORMAT, **config} | ({TAKEN_BACK: taken_back} if taken_back else {})
        with explain_write_errors("the run folder", self.path):
            write_whole(self.path / "config.toml", tomli_w.dumps(about).encode())


@dataclass(frozen=True)
class _Unsaved:
    """The last finished round, while it has no checkpoint: what that will hold."""

    number: int
    arrays: Any
    method: Method
    score: float | None


@dataclass(frozen=True)
class TakeBack:
    """An order to take a run back.

    Attributes
    ----------
    number
        The round after which it goes on; 0 begins it anew.
    submission
        Of whom the order is. The process of a submission may be started anew, and then goes on where it was: an order
        is followed once. "" is nobody's, and followed each time.
    """

    number: int
    submission: str = ""

    def is_new(self, path: Path) -> bool:
        """Return whether the run in a folder has not been taken back by this order yet."""
        return not self.submission or all(entry["submission"] != self.submission for entry in taken_back_in(path))


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


def taken_back_in(path: Path) -> list[dict[str, Any]]:
    """Return when the run in a folder was taken back, in order.

    Each entry says to which round and after which one, the settings before that are others since, and whose order it
    was; the last one may be under way.
    """
    return _read(path)[2] if (path / "config.toml").exists() else []


def agreed_in(path: Path) -> str:
    """Return what the clients of a run have agreed on about their data, "" where they have not."""
    file = path / AGREED
    try:
        return file.read_text() if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}. Restore it from a copy, or choose another folder (--out)"
        ) from error


def known_in(path: Path) -> Known:
    """Return which clients the run in a folder knows, none where that is not recorded.

    Raises
    ------
    RunFolderError
        When the file is not as a run has written it.
    """
    file = path / KNOWN
    if not file.exists():
        return Known()
    try:
        there = json.loads(file.read_bytes())
        began, known = (tuple(map(str, there[key])) for key in ("began", "known"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}. Restore it from a copy, or delete it") from error
    return Known(began, known)


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


def check_folder(path: Path, config: Mapping[str, object], back: TakeBack | None = None) -> None:
    """Raise RunFolderError when a run with these settings cannot be, go on or be shown in `path`; nothing is changed.

    With `back`, some settings may be others, and there must be a run.

    It cannot where the place holds something else: a file, another program's files, a run with other settings, one of
    another version, or a finished one whose model is damaged.
    """
    check_place(path)
    with explain_access_errors(path):
        begun = (path / "config.toml").exists()
        entries = [entry.name for entry in path.iterdir()] if path.exists() else []
    if begun:
        _check_same_run(path, config, taken_back=back is not None)
    elif back is not None:
        others = sorted(each.parent for each in path.parent.glob(f"{path.name.rpartition('-')[0]}*/config.toml"))
        there = f", {', '.join(map(str, others[:5]))} say" if others else ""
        raise RunFolderError(
            f"{path} holds no run that could be taken back to round {back.number}: name the run's folder{there} (--out)"
        )
    elif any(name not in FIRST_LAID for name in entries):
        raise RunFolderError(f"{path} is there already and is no run folder: choose another folder (--out)")


def _check_same_run(path: Path, config: Mapping[str, object], *, taken_back: bool) -> None:
    """Raise RunFolderError when the run in a folder has other settings or another format, or its model is damaged."""
    number, there, _ = _read(path)
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
    free = {*may_differ(finished=finished and not grows, taken_back=taken_back), *grows}
    if config.get("fraction") == 0.0:  # a run that goes on keeps the one that was decided when it began
        free |= {"fraction"}
    differing = sorted(_differing(there, config) - free)
    if differing:
        shown = ", ".join(f"{key} = {there.get(key)!r} there and {config.get(key)!r} here" for key in differing)
        way = " or take the run back to an earlier round (--from-round)" if {*differing} <= _reconsidered() else ""
        raise RunFolderError(
            f"{path} belongs to a run with other settings ({shown}): choose another folder (--out){way}"
        )
    if finished and not taken_back:
        _check_model(path / MODEL)


def _reconsidered() -> set[str]:
    return {*marked(Mark.RECONSIDERED)}


def _differing(there: Mapping[str, object], config: Mapping[str, object]) -> set[str]:
    """Return the keys of settings in which a folder and a run differ."""
    return {key for key in config.keys() | there.keys() if config.get(key) != there.get(key)}


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


def _read(path: Path) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Return the number of a run folder's format, its settings, and when the run was taken back.

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
    return number, there, there.pop(TAKEN_BACK, [])
