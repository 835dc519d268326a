"""What a device's owner learns of a schema, and the answers on schemas that leave.

The answers that have left are files in the folder of the device's book.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path

from fairbloom.client.guard.accepted_schemas import counting_keys
from fairbloom.client.guard.log_entries import NO_RUN
from fairbloom.client.guard.log_files import open_log
from fairbloom.system.files import make_folder, write_private
from fairbloom.system.lock import exclusive_lock
from fairbloom.system.versions import FOLDER
from fairbloom.tables.encoding import encode_files
from fairbloom.tables.letters import ROW
from fairbloom.tables.reasons import DataError
from fairbloom.tables.releases import YEAR
from fairbloom.tables.schema import fold
from fairbloom.tasks.sides import keep_columns

from ..errors import DeployError
from ..fleet.client import tell
from ..fleet.wire_pb2 import Told
from .client import ClientSettings
from .today import check_may_leave, paths_of, schema_of

# Answers on schemas that have left, in the same folder as the book.
ANSWER = "*.answer"

# Answers that leave in twelve months: a schema's ranges would bisect a largest cell.
MAX_ANSWERS = 12

# How long an answer waits for another one to be written down.
SECONDS = 10.0


def send_yes(client: ClientSettings, day: str) -> None:
    """Tell the server that the owner has accepted a schema; of another answer nothing leaves.

    Raise FairbloomError if nothing may leave, or the server does not take it. Where no further
    answer may leave, the server learns that it cannot know.
    """
    check_may_leave(client, by_wire=True)
    folder = Path(client.state_dir, FOLDER)
    make_folder(folder)
    with exclusive_lock(folder / "answers.lock", seconds=SECONDS):
        may_leave = _note_answer(folder, day)
    if not may_leave:
        send_unknown(client)
        raise DeployError(f"{MAX_ANSWERS} answers on schemas have left in twelve months, the most")
    open_log(Path(client.state_dir)).note(
        {"run": NO_RUN, "asked": "answer", "sent": {"accepts": "True"}}, {}
    )
    tell(client, Told(accepts=True))


def _note_answer(folder: Path, day: str) -> bool:
    """Write down an answer before it leaves; return whether it may, after those of a year."""
    since = str(date.fromisoformat(day) - YEAR)
    every = sorted(folder.glob(ANSWER))
    if sum(path.read_text() > since for path in every) >= MAX_ANSWERS:
        return False
    write_private(folder / f"{len(every):04}.answer", day.encode())
    return True


def send_unknown(client: ClientSettings) -> None:
    """Tell the server that its last answer on a schema may be wrong; this is no answer.

    Raise FairbloomError if nothing may leave, or the server does not take it.
    """
    check_may_leave(client, by_wire=True)
    open_log(Path(client.state_dir)).note(
        {"run": NO_RUN, "asked": "answer", "sent": {"accepts": "unknown"}}, {}
    )
    tell(client, Told(unknown=True))


def note_columns(client: ClientSettings, schema: str) -> None:
    """Keep which columns the device's files have by a schema that is accepted now."""
    if not client.data_dir or "classes" in counting_keys(schema):
        return
    with suppress(DataError):  # which is shown as a fault
        file = encode_files(paths_of(client), client.name, schema_of(client, schema))
        keep_columns(Path(client.state_dir), file.found)


def find_faults(client: ClientSettings, schema: str) -> Sequence[str]:
    """Return the faults of the device's own files by a schema, for their owner's eyes only.

    Raise DeployError if the schema has another unit than the owner has said.
    """
    if "classes" in counting_keys(schema):  # of images
        return ()
    parsed = schema_of(client, schema)
    names = parsed.file("", client.name).names_of(parsed.unit) if parsed.unit else (ROW,)
    if client.unit and fold(client.unit) not in map(fold, names):
        raise DeployError(
            f"the schema's unit is {' or '.join(names)}, and owner.toml says unit ="
            f" {client.unit!r}: numbers would count other persons than a profile. Say which column"
            f' it is by fields.{parsed.unit or "UNIT"}.name under [files."*"], or change the schema'
        )
    if not client.data_dir:
        return ()
    try:
        return [*map(str, encode_files(paths_of(client), client.name, parsed).faults)]
    except DataError as error:
        return [str(error)]
