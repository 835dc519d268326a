"""The thresholds that the clients of a run have chosen, as its table has them."""

from pathlib import Path

from fairbloom.protocol.thresholds import HALF, THRESHOLD, TOGETHER

from .files import CLIENTS, CONFIG


def read_threshold(folder: Path, client: str = "", last: int | None = None) -> float | None:
    """Return the probability from which the positive class is predicted, None if none is chosen up to round `last`."""
    mode = CONFIG.read(folder).settings.get("threshold", HALF)
    if mode == HALF:
        return None
    found = [
        row[THRESHOLD]
        for row in CLIENTS.read(folder)
        if (mode == TOGETHER or row["client"] == client) and (last is None or int(row["round"]) <= last)
    ]
    return next((float(each) for each in reversed(found) if each), None)
