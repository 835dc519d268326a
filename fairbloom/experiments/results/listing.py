"""The runs in a folder, finished or not: their methods, progress and means."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.server.run_folder.files import is_run_folder

from .run import Run, load

# How far below a folder its runs are looked for: runs/NAME of a study in a folder of studies.
DEPTH = 3


@dataclass(frozen=True)
class ListedRun:
    """A run in a folder; one that cannot be read has a `fault`, and else only its name."""

    name: str  # its path within the folder
    method: str = ""
    rounds_done: int = 0
    num_rounds: int = 0
    mean: str = ""  # of the score over the clients, when it was last evaluated; "" if never
    fault: str = ""


def list_runs(folder: Path) -> list[ListedRun]:
    """Return the runs below a folder, by their names."""
    return [_list_run(path, folder) for path in sorted(_run_folders(folder, DEPTH))]


def _list_run(path: Path, folder: Path) -> ListedRun:
    name = str(path.relative_to(folder))
    try:
        run = load(path)
        return ListedRun(name, run.label, run.rounds_done, run.num_rounds, _last_mean(run))
    except FairbloomError as error:
        return ListedRun(name, fault=str(error))


def _last_mean(run: Run) -> str:
    column = f"{run.score.column(run.serves)}_mean"
    if column not in run.rounds:
        return ""
    evaluated = run.rounds[column].dropna()
    if evaluated.empty:
        return ""
    return f"{run.score.words} {run.score.written(float(evaluated.iloc[-1]))}"


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the run folders below a folder; one that cannot be read has none."""
    try:
        below = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return
    for path in below:
        if is_run_folder(path):
            yield path
        elif depth > 1:
            yield from _run_folders(path, depth - 1)
