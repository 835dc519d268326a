"""What owners of devices tell the operator, in the federation's folder `profiles`, by client.

Each client has a folder: its letters by the day on which they came, `table`, the last one of its
rows, and `accepts`, its last answer on a schema. A file is there whole or not at all.
"""

from pathlib import Path
from typing import Any

from fairbloom.logs import log
from fairbloom.system.files import make_folder, write_private

from .members import timestamp
from .wire_pb2 import Told

# The folder in a federation's folder; in that of a client the letters, the last table, its answer.
FOLDER = "profiles"
LETTER = "*.json"
TABLE = "table"
ANSWER = "accepts"

# The answers on a schema: UNKNOWN if the last one may be wrong, and no further one left the device.
ANSWERS = {True: "yes", False: "no"}
UNKNOWN = "unknown"


def keep(folder: Path, name: str, message: Told) -> None:
    """Keep a client's message in a federation's folder.

    Raise ValueError if no device of this name sends it.
    """
    # late: a server needs no tables before
    from fairbloom.tables.letters import decode_letter
    from fairbloom.tables.site_table import SiteTable

    kind = message.WhichOneof("content")
    place = folder / FOLDER / name
    file = place / ANSWER
    content = UNKNOWN.encode() if kind == "unknown" else ANSWERS[message.accepts].encode()
    if kind == "profile":
        letter = decode_letter(message.profile)
        if letter.client != name:
            raise ValueError(
                f"the profile is of client {letter.client!r}, and client {name!r} sent it"
            )
        file = place / f"{timestamp()[:10]}.json"
        content = message.profile
    elif kind == "table":
        file = place / TABLE
        content = message.table
        if any(each.client != name for each in SiteTable.decode(content).letters.values()):
            raise ValueError(f"the table is of another client than {name!r}, which sent it")
    elif kind is None:
        raise ValueError("the call has neither a profile nor an answer nor a table")
    make_folder(place)
    write_private(file, content)
    log.info("client %s: %s is kept", name, file.name)


def find_letter(folder: Path, name: str) -> Path | None:
    """Return the newest letter of a client, None if it has sent none."""
    return max((folder / FOLDER / name).glob(LETTER), default=None)


def describe_told(folder: Path, name: str) -> dict[str, Any]:
    """Return the day of a client's newest letter, and its last answer on a schema, if any.

    The answer is "yes", "no" or "unknown".
    """
    letter = find_letter(folder, name)
    answer = folder / FOLDER / name / ANSWER
    accepts = answer.read_text() if answer.exists() else None
    return {"profile": letter and letter.stem, "accepts": accepts}
