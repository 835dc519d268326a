"""Taking a run back to an earlier round: checked whole before anything is changed, and completed however often killed.

config.toml first gets the settings and an entry that the run is being taken back, in one write. From there on every
start completes it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbloom.logs import log
from fairbloom.protocol.settings import Mark, marked
from fairbloom.rounds.average import Average
from fairbloom.system.files import write_whole

from ..checkpoint import find_checkpoint, format_rounds, list_reachable, load_checkpoint, make_last, path_of_best
from .checks import find_differing
from .errors import RunFolderError, explain_write_errors
from .files import BEST, CHECKPOINTS, CONFIG, MODEL
from .tables import TableWriter
from .values import Recorded

UNDER_WAY = "under-way"
"""Key of an entry in config.toml by which a run is being taken back."""


@dataclass(frozen=True)
class TakeBack:
    """An order to take a run back to the state after a round; 0 begins it again.

    A submission's order is followed once, also if its process is started again; submission "" is followed each time.
    """

    number: int
    submission: str = ""

    def is_new(self, path: Path) -> bool:
        """Return whether the run in a folder has not been taken back by this order yet."""
        if not self.submission:
            return True
        return all(entry["submission"] != self.submission for entry in CONFIG.read(path).taken_back)


@dataclass(frozen=True)
class StoredRun:
    """What a run keeps that is cut back with it; `best_by` is the column that the best model has the best value of."""

    path: Path
    tables: Sequence[TableWriter]
    best_by: str
    kept_by_clients: bool


def take_back(run: StoredRun, order: TakeBack, recorded: Recorded, config: Mapping[str, Any]) -> None:
    """Take a run back to an earlier round; raise RunFolderError, before anything is changed, when that cannot be."""
    path, there = run.path, recorded.settings
    _check_reachable(run, order.number, there, config)
    for table in run.tables:
        table.check(order.number)
    noted = marked(Mark.LIMIT, Mark.RECONSIDERED, Mark.EXTENDABLE).keys() & there.keys()
    changed = {key: there[key] for key in sorted(noted & find_differing(there, config))}
    last = max(list_reachable(CHECKPOINTS.path_in(path)), default=0)
    entry = {"to": order.number, "after": last, "submission": order.submission, "before": changed, UNDER_WAY: True}
    with explain_write_errors("the run folder", path):
        MODEL.path_in(path).unlink(missing_ok=True)  # which the last checkpoint still stands for
    begun = Recorded(config, [*recorded.taken_back, entry])
    CONFIG.write(path, begun)
    complete_taking_back(run, begun)
    words = "%s, which had %d rounds, is taken back to round %d; without --from-round the same command continues it"
    log.warning(words, path, last, order.number)


def complete_taking_back(run: StoredRun, recorded: Recorded) -> Recorded:
    """Bring a taking back that is under way to its end, wherever it was interrupted; return what config.toml says."""
    if not any(entry.get(UNDER_WAY) for entry in recorded.taken_back):
        return recorded
    *earlier, entry = recorded.taken_back
    number = int(entry["to"])
    with explain_write_errors(f"round {number}", run.path):
        make_last(CHECKPOINTS.path_in(run.path), number)
        _restore_best(run, number)
        for table in run.tables:
            table.cut_back(number, math.inf)
    done = {key: value for key, value in entry.items() if key != UNDER_WAY}
    completed = Recorded(recorded.settings, [*earlier, done])
    CONFIG.write(run.path, completed)
    return completed


def _check_reachable(run: StoredRun, number: int, there: Mapping[str, object], config: Mapping[str, object]) -> None:
    folder = CHECKPOINTS.path_in(run.path)
    have = {0} | list_reachable(folder)
    if number not in have:
        raise RunFolderError(
            f"{run.path} cannot be taken back to round {number}: {format_rounds(have)} can be reached, as by "
            f"--from-round {max((each for each in have if each < number), default=0)}"
        )
    differing = marked(Mark.RECONSIDERED).keys() & find_differing(there, config)
    if number and run.kept_by_clients and differing:
        raise RunFolderError(
            f"{run.path} cannot be taken back to round {number} with another {min(differing)}: clients keep their "
            "personal models, and what else they keep between rounds, by that setting; begin again by --from-round 0"
        )
    if number:
        load_checkpoint(find_checkpoint(folder, number))


def _restore_best(run: StoredRun, number: int) -> None:
    folder, path = CHECKPOINTS.path_in(run.path), BEST.path_in(run.path)
    arrays, state = load_checkpoint(find_checkpoint(folder, number)) if number else ({}, {"best": {}})
    best, copy = state["best"], path_of_best(folder, number)
    if not best:
        path.unlink(missing_ok=True)
    elif best["round"] == number:
        average = Average.of_state(state["strategy"].get("average", {"rounds": 0, "sums": {}}))
        BEST.write(run.path, average.mean(arrays), {"round": number, run.best_by: best["mean"]})
    elif copy.exists():
        write_whole(path, copy.read_bytes())
    elif not path.exists() or BEST.read_about(run.path)["round"] != best["round"]:
        path.unlink(missing_ok=True)
        log.warning("the best model up to round %d, of round %d, was not kept", number, best["round"])
