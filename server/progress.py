"""The progress of a deployed run, for the server's status: its run folder, and its last rounds."""

import os
import time
from pathlib import Path
from statistics import median
from typing import Any

from fairbloom.logs import log
from fairbloom.protocol.names import ORDER_FOLDER, PLACE_FOLDER
from fairbloom.system.files import write_whole

from .run_folder.csv_rows import parse_refusals
from .run_folder.errors import RunFolderError
from .run_folder.files import CONFIG, PRIVACY, ROUNDS, state_of

# File in the folder of a deployed run's order with the path of the run folder; a relative path
# starts at the folder of the order.
ANNOUNCED = "folder"


def announce(folder: Path) -> None:
    """Write down this run's folder for the server's status, if it asks for that.

    A failure to write is only logged.
    """
    place = os.environ.get(ORDER_FOLDER)
    if not place:
        return
    # relative, if both are moved together
    is_near = folder.is_relative_to(os.environ.get(PLACE_FOLDER, place))
    try:
        announced = os.path.relpath(folder, place) if is_near else folder
        write_whole(Path(place, ANNOUNCED), os.fsencode(announced))
    except OSError as error:
        log.warning(
            "deploy status will not show the rounds of this run: %s cannot be written: %s",
            place,
            error.strerror,
        )


def find_announced(place: Path) -> Path | None:
    """Return the run folder that a run has announced in the folder of its order, or None."""
    try:
        announced = os.fsdecode((place / ANNOUNCED).read_bytes())
    except OSError:
        return None
    return Path(os.path.normpath(place.absolute() / announced))


def describe_progress(folder: Path) -> dict[str, Any]:
    """Return how far the run in a folder is.

    Raise RunFolderError when the folder holds no run, or cannot be read.
    """
    try:
        settings = CONFIG.read(folder).settings
        if not settings:
            raise RunFolderError(
                f"{folder} holds no run yet: it waits for its clients, or the folder was moved away"
            )
        state = state_of(folder)
        rows = ROUNDS.read(folder)
        changed = ROUNDS.path_in(folder).stat().st_mtime if rows else None
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be read: {error.strerror}") from error
    latest = rows[-10:]  # for the median seconds of a round, and for refused replies
    seconds = [float(row["seconds"]) for row in latest if row.get("seconds")]
    refused = [
        {"round": int(row["round"]), "client": name, "reason": reason}
        for row in reversed(latest)
        for name, reason in parse_refusals(row.get("refused", ""))
    ]
    last = next(reversed(rows), {})
    return {
        "folder": str(folder),
        "task": settings.get("task", ""),
        "method": settings.get("method", ""),
        "round": int(last.get("round", 0)),
        "of-rounds": int(settings.get("num-rounds", 0)),
        "state": state,
        "seconds-a-round": round(median(seconds), 3) if seconds else None,
        "seconds-since-round": (
            None if changed is None else round(max(0.0, time.time() - changed), 1)
        ),
        "missing": last.get("missing", ""),
        "offline": last.get("offline", ""),
        "owing": last.get("owing", ""),
        "revoked": last.get("revoked", ""),
        "excluded": last.get("excluded", ""),
        "accounts": PRIVACY.read(folder).get("clients", {}),
        "refused": refused[:5],
    }
