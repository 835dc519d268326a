"""The runs in a folder: their settings, progress and scores, or the fault of a damaged run."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.server.run_folder.files import CHECKPOINTS, CONFIG, MODEL, ROUNDS

from .run import ALL_TRAINED, load
from .tables import LARGEST_SHOWN

# The measures of a run in a list, from the last row of rounds.csv that has them.
MEASURED = ("mean", "worst_10")


def find_runs(folder: Path) -> list[dict[str, Any]]:
    """Return a description of each run in a folder and below; a damaged run has a `fault`."""
    found = []
    for path in sorted(run_folders(folder)):
        files = [
            file for entry in (ROUNDS, MODEL, CONFIG) if (file := entry.path_in(path)).exists()
        ]
        changed = max((file.stat().st_mtime for file in files), default=0.0)
        about: dict[str, Any] = {
            "name": str(path if path == folder else path.relative_to(folder)),
            "folder": str(path.absolute()),
            "when": datetime.fromtimestamp(changed).astimezone().isoformat(" ", "minutes")[:16],
        }
        found.append(about)
        try:
            run = load(path)
            # the worst tenth of scores with noise means little without an interval
            keys = MEASURED if run.privacy.get("simulated", True) else MEASURED[:1]
            rows = run.rounds.filter([f"{run.score.column(run.serves)}_{key}" for key in keys])
            last = rows[(rows.abs() <= LARGEST_SHOWN).all(axis="columns")].tail(1)
            about |= {
                "task": run.settings.get("task", ""),
                "method": run.label,
                "seed": run.settings.get("seed"),
                "state": run.state,
                "rounds": run.rounds_done,
                "of_rounds": run.num_rounds,
            }
        except FairbloomError as error:
            about |= {"state": "damaged", "fault": str(error)}
            continue
        if run.untested:
            about["score"] = {"title": ALL_TRAINED.partition(":")[0]}
        if last.size == len(keys):
            measured = dict(zip(keys, map(float, last.iloc[0]), strict=True))
            words = {f"{key}_in_words": run.score.written(value) for key, value in measured.items()}
            about["score"] = {"title": run.score.title, **measured, **words}
    return found


def run_folders(folder: Path, depth: int = 4) -> Iterator[Path]:
    """Yield the run folders in a folder and below, such as a comparison's.

    Folders that cannot be read are skipped.
    """
    try:
        inside = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return
    if CONFIG.exists_in(folder) and CHECKPOINTS.path_in(folder).is_dir():
        yield folder
    elif depth:
        for path in inside:
            yield from run_folders(path, depth - 1)
