"""What the server's status page tells of runs and disks, which the SuperLink does not know."""

import shutil
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.server.progress import describe_progress, find_announced

from .supervisor import RUN_FOLDERS

RECENT_RUNS = 5

UNKNOWN = "its run folder is not known: the run has not begun, or its app is one that leaves none"


def read_overview(state: Path) -> dict[str, Any]:
    """Return the progress of the latest runs, and how much room there is."""
    place = state / RUN_FOLDERS
    try:
        noted = sorted(place.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    except OSError:
        noted = []
    runs = {file.name: read_progress(place, file.name) for file in noted[:RECENT_RUNS] if file.name.isdecimal()}
    folders = [Path(run["folder"]) for run in runs.values() if "folder" in run]
    return {
        "runs": runs,
        "disk": {"state-free-bytes": free_bytes(state), "runs-free-bytes": free_bytes(folders[0]) if folders else None},
    }


def read_progress(place: Path, run_id: str) -> dict[str, Any]:
    """Return how far a run is, or as `unknown` why that is not known."""
    folder = find_announced(place, run_id)
    if folder is None:
        return {"unknown": UNKNOWN}
    try:
        return describe_progress(folder)
    except (FairbloomError, ValueError, OSError) as error:
        return {"folder": str(folder), "unknown": str(error)}


def free_bytes(folder: Path) -> int | None:
    """Return how much room is left on the disk of a folder, None where it cannot be asked."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
