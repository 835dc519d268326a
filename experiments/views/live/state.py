"""What a folder shows of the runs in it at one moment. It is read only, and its locks are left alone."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.server.run_folder.errors import check_place, explain_access_errors
from fairbloom.server.run_folder.files import CLIENTS, CONFIG, KNOWN, LOCK, MODEL, ROUNDS, is_run_folder
from fairbloom.server.run_folder.lock import is_running
from fairbloom.server.run_folder.rows import parse_refusals

from ...results.comparison import Plan
from ...results.measured import measure_title
from ...results.run import COMPARISON, SWEEP, Run, load
from ...results.sweep import SweepPlan
from ..listing import run_folders
from ..report.lines import worst_first

LATEST = 10
"""The seconds of a round are the median of so many rounds."""

UNREADABLE_SECONDS = 5.0
"""What cannot be read for so long is damaged; for a shorter time, it was being written."""

RESTART_SECONDS = 60.0
"""A deployed run whose process was lost is given to another one, which begins within this time."""


class Point(NamedTuple):
    """The mean score over the clients after an evaluated round, and the mean of the worst tenth of them."""

    round: int
    mean: float
    worst: float


@dataclass(frozen=True)
class Client:
    """A client after the last evaluated round: its score, and its coefficient where its update was used."""

    name: str
    score: float
    coefficient: float | None


@dataclass(frozen=True)
class LiveRun:
    """A run at one moment."""

    folder: Path
    name: str
    state: str  # waiting, running, finished, interrupted or damaged
    about: str = ""  # the method with parameters, and the task
    rounds: int = 0
    num_rounds: int = 0
    seconds: float | None = None  # of a round
    score: Score = ACCURACY
    points: Sequence[Point] = ()
    clients: Sequence[Client] = ()  # worst first
    absences: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)  # by kind: client and rounds
    refusals: Sequence[tuple[int, str, str]] = ()  # the latest first: round, client and reason
    deployed: bool = False
    fault: str = ""  # why it cannot be read

    @property
    def worst_title(self) -> str:
        """What the mean of the worst tenth of the clients is called: of up to ten, it is one client."""
        return measure_title("worst_10", len(self.clients))

    @property
    def measured(self) -> str:
        """The mean and the worst after the last evaluated round, in words."""
        _, mean, worst = self.points[-1]
        return describe_spread(self.score, mean, worst, len(self.clients))

    @property
    def share(self) -> float:
        """How much of the run is recorded, from 0 to 1."""
        return min(1.0, self.rounds / max(1, self.num_rounds))

    @property
    def seconds_left(self) -> float | None:
        """How long the other rounds will take, where the run goes on and rounds have told how long they take."""
        if self.seconds is None or self.state != "running":
            return None
        return self.seconds * (self.num_rounds - self.rounds)


@dataclass(frozen=True)
class Snapshot:
    """What a folder shows at one moment: a run that lies in the folder itself (`alone`), or those of a study."""

    folder: Path
    runs: Sequence[LiveRun] = ()
    alone: bool = False
    going_on: bool = False  # somebody writes there

    @property
    def state(self) -> str:
        """What becomes of the folder: waiting, running, finished or interrupted."""
        if not self.runs and not self.going_on:
            return "waiting"
        if self.going_on:
            return "running"
        return "finished" if all(run.state == "finished" for run in self.runs) else "interrupted"

    @property
    def deployed(self) -> bool:
        """Whether a run has others' machines as clients."""
        return any(run.deployed for run in self.runs)

    @property
    def done(self) -> int:
        """The number of finished runs."""
        return sum(run.state == "finished" for run in self.runs)


def describe_spread(score: Score, mean: float, worst: float, clients: int) -> str:
    """Return in words the mean of a score over so many clients, and the mean of the worst tenth of them."""
    return f"mean {score.written(mean)}, {measure_title('worst_10', clients)} {score.written(worst)}"


class Looker:
    """Looks at a folder, which need not be there yet, again and again; what has not changed is not read again."""

    def __init__(self, folder: Path) -> None:
        check_place(folder)
        self.folder = folder.absolute()
        self._read: dict[Path, tuple[object, LiveRun]] = {}

    def look(self) -> Snapshot:
        """Return what is there now; raise FairbloomError where the plan of a study or a single run cannot be read."""
        with explain_access_errors(self.folder):
            return self._look()

    def _look(self) -> Snapshot:
        folder = self.folder
        if is_run_folder(folder):
            run = self._look_at(folder, folder.name)
            if run.fault:
                raise FairbloomError(run.fault)
            return Snapshot(folder, (run,), alone=True, going_on=run.state == "running")
        going_on = is_running(folder)
        runs = [self._look_at(path, path.name) for path in _paths_of_runs(folder)]
        return Snapshot(folder, runs, going_on=going_on or any(run.state == "running" for run in runs))

    def look_at_running(self) -> list[LiveRun]:
        """Return the runs of a study that go on; one that cannot be read at this moment is left out."""
        locks = sorted(self.folder.glob(f"runs/*/{LOCK.name}"))
        runs = [self._look_at(lock.parent, lock.parent.name) for lock in locks]
        return [run for run in runs if run.state == "running"]

    def _look_at(self, folder: Path, name: str) -> LiveRun:
        if not is_run_folder(folder):
            return LiveRun(folder, name, "waiting")
        signature = _signature(folder)
        if folder not in self._read or self._read[folder][0] != signature:
            try:
                self._read[folder] = signature, _read_run(load(folder), name)
            except FairbloomError as error:
                return LiveRun(folder, name, "damaged", fault=str(error))
        return self._read[folder][1]


def follow(folder: Path, interval: float) -> Iterator[Snapshot]:
    """Yield what a folder shows, every `interval` seconds until it is over: the last one says how it ended.

    An empty folder is waited for. What cannot be read is looked at again for a few seconds, as it may be half written.
    """
    looker = Looker(folder)
    unreadable_since = over_since = None
    went_on = False
    while True:
        started = time.monotonic()
        try:
            snapshot = looker.look()
            unreadable_since = None
        except FairbloomError:
            unreadable_since = unreadable_since or started
            if started - unreadable_since >= UNREADABLE_SECONDS:
                raise
        else:
            yield snapshot
            went_on = went_on or snapshot.going_on
            if snapshot.state in ("running", "waiting"):
                over_since = None
            else:
                over_since = over_since or started
                lost = snapshot.state == "interrupted" and snapshot.deployed and went_on
                if started - over_since >= (RESTART_SECONDS if lost else 0.0):
                    return
        time.sleep(max(interval, time.monotonic() - started))  # a folder of many runs is not read all the time


def _paths_of_runs(folder: Path) -> list[Path]:
    """Return where the runs of a study lie, those that are planned and those that are there."""
    if (folder / COMPARISON).exists():
        return Plan.read(folder).paths(folder)
    there = dict.fromkeys(sorted(run_folders(folder)))
    if not (folder / SWEEP).exists():
        return list(there)
    plan = SweepPlan.read(folder)
    failed = {folder / name for point in plan.points if point.fault for name in point.runs(plan.seeds)}
    planned = (folder / name for point in plan.points for name in point.runs(plan.searched))
    return [path for path in dict.fromkeys([*planned, *there]) if path not in failed]


def _signature(folder: Path) -> object:
    stats = []
    for entry in (CONFIG, ROUNDS, CLIENTS, MODEL):
        try:
            stat = entry.path_in(folder).stat()
            stats.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except OSError:
            stats.append((0, 0, 0))
    return is_running(folder), *stats


def _read_run(run: Run, name: str) -> LiveRun:
    state, rows, score = run.state, run.rows_of_rounds(), run.score
    columns = [f"{score.column(run.serves)}_{measure}" for measure in ("mean", "worst_10")]
    evaluated = [row for row in rows if all(row.get(column) for column in columns)]
    seconds = [float(row["seconds"]) for row in rows[-LATEST:] if row.get("seconds")]
    final, coefficients = run.final(), run.coefficients()
    refusals = [
        (int(row["round"]), client, reason)
        for row in reversed(rows[-LATEST:])
        for client, reason in parse_refusals(row.get("refused", ""))
    ]
    task = f" on {run.settings['task']}" if run.settings.get("task") else ""
    return LiveRun(
        folder=run.folder,
        name=name,
        state=state,
        about=f"{run.label}{task}",
        rounds=run.rounds_done,
        num_rounds=run.num_rounds,
        seconds=statistics.median(seconds) if seconds else None,
        score=score,
        points=[Point(int(row["round"]), *(float(row[column]) for column in columns)) for row in evaluated],
        clients=[Client(client, final[client], coefficients.get(client)) for client in worst_first(final, score)],
        absences=run.absences(),
        refusals=refusals[:3],
        deployed=KNOWN.exists_in(run.folder),
    )
