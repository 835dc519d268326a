"""What owners of devices tell the operator, in the federation's folder `profiles`, by client.

Each client has a folder: its last letter, named by the day on which it came, `table`, the last one
of its rows, and `accepts`, its last answer on a schema. A file is there whole or not at all.
Letters and tables lie there unread: to check one takes longer than to send it.
"""

import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from fairbloom.logs import log
from fairbloom.system.files import SMALL_BYTES, make_folder, write_private
from fairbloom.text import plural

from .members import timestamp
from .wire_pb2 import Told

# The folder in a federation's folder; in that of a client the letters, the last table, its answer.
FOLDER = "profiles"
LETTER = "*.json"
TABLE = "table"
ANSWER = "accepts"

# The answers on a schema: a no never leaves a device. UNKNOWN if the last one may be wrong, and no
# further one left the device.
YES = "yes"
UNKNOWN = "unknown"

# What a client may tell the server in an hour. An owner accepts a schema, or sends a profile, a few
# times a year.
MOST_TOLD = 10
HOUR = 3600.0


def keep(folder: Path, name: str, message: Told) -> None:
    """Keep a client's message in a federation's folder, a letter or table as the bytes that came.

    Who reads it checks it. The newest letter takes the place of earlier ones. Raise ValueError for
    an empty message, for an answer that no device gives, and for more bytes than a reader takes.
    """
    kind = message.WhichOneof("content")
    if kind is None:
        raise ValueError("the call has neither a profile nor an answer nor a table")
    if kind == "accepts" and not message.accepts:
        raise ValueError("the only answer on a schema is yes: of another one nothing leaves")
    place = folder / FOLDER / name
    file = place / ANSWER
    content = (UNKNOWN if kind == "unknown" else YES).encode()
    if kind == "profile":
        file = place / f"{timestamp()[:10]}.json"
        content = message.profile
    elif kind == "table":
        file = place / TABLE
        content = message.table
    if len(content) > SMALL_BYTES:
        raise ValueError(f"it has {len(content):,} bytes, and {SMALL_BYTES:,} are the most")
    make_folder(place)
    write_private(file, content)
    for earlier in place.glob(LETTER):
        if kind == "profile" and earlier != file:
            earlier.unlink(missing_ok=True)  # the operator may have deleted it
    log.info("client %s: %s is kept", name, file.name)


class Hourly:
    """How many messages each client has sent the server in the last hour."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        # The moments of the last hour, the oldest first, by client.
        self._moments: dict[str, list[float]] = {}

    def count(self, name: str) -> None:
        """Count a message of a client; raise ValueError beyond MOST_TOLD in an hour."""
        now = self._clock()
        moments = [each for each in self._moments.get(name, ()) if now - each < HOUR]
        if len(moments) >= MOST_TOLD:
            wait = math.ceil((HOUR - (now - moments[0])) / 60.0)
            raise ValueError(
                f"client {name!r} has sent the server {MOST_TOLD} messages in an hour, and that is"
                f" the most: repeat the command in {wait} {plural(wait, 'minute', 'minutes')}"
            )
        self._moments[name] = [*moments, now]


def find_letter(folder: Path, name: str) -> Path | None:
    """Return the newest letter of a client, None if it has sent none."""
    return max((folder / FOLDER / name).glob(LETTER), default=None)


def describe_told(folder: Path, name: str) -> dict[str, Any]:
    """Return the day of a client's newest letter, and its last answer on a schema, if any.

    The answer is YES or UNKNOWN.
    """
    letter = find_letter(folder, name)
    answer = folder / FOLDER / name / ANSWER
    accepts = answer.read_text() if answer.exists() else None
    return {"profile": letter and letter.stem, "accepts": accepts}
