"""The audit log of a device: what each message asked, and what left in reply."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from fairbloom.errors import ReportableError, reportable
from fairbloom.protocol.names import CONFIG, FROZEN
from fairbloom.system.retry import deadline, write_until

from .accepted_schemas import SHOWN, digest_of
from .accepted_settings import FINGERPRINT, SCHEMA_KEY
from .log_entries import shorten
from .log_files import open_log

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message, RecordDict

    from fairbloom.flower import ClientAppCallable

# Further notes on the reply that is being made; None if replies are not logged.
NOTED: ContextVar[dict[str, Any] | None] = ContextVar("NOTED", default=None)


def hold_back(words: str) -> None:
    """Note that a number is not sent, and why."""
    noted = NOTED.get()
    if noted is not None and words not in noted.setdefault("held-back", []):
        noted["held-back"].append(words)


def log_exchange(message: Message, context: Context, answer: ClientAppCallable) -> Message:
    """Log a message and its reply, if the client has a state-dir; a mod of Flower's.

    `fairbloom client` makes the state-dir, and puts this mod around an owner's own app, too.
    """
    place = str(context.node_config.get("state-dir", ""))
    folder = Path(place)
    # another one of this mod, around the app, logs already
    if NOTED.get() is not None or not place or not folder.is_dir():
        return answer(message, context)
    until = deadline(message.metadata.ttl)
    config: Mapping[str, Any] = message.content.config_records.get(CONFIG) or {}
    settings = context.run_config
    entry: dict[str, Any] = {
        "run": message.metadata.run_id,
        "message": message.metadata.message_id,
        "asked": message.metadata.message_type,
        "task": shorten(settings.get("task", "unknown")),
        "settings-digest": str(settings.get(FINGERPRINT, ""))[:SHOWN],
        "terms": shorten({key: value for key, value in config.items() if key != FROZEN}),
    }
    if schema := str(settings.get(SCHEMA_KEY, "")):
        entry["schema"] = digest_of(schema)[:SHOWN]
    if models := message.content.array_records:
        entry["received"] = {name: digest_record(each) for name, each in models.items()}
    noted: dict[str, Any] = {}
    token = NOTED.set(noted)
    try:
        reply = answer(message, context)
    except (Exception, SystemExit) as error:
        open_log(folder).note({**entry, "refused": reportable(error)}, settings)
        raise
    finally:
        NOTED.reset(token)
    if reply.has_error():  # of another mod
        open_log(folder).note({**entry, "refused": str(reply.error.reason)}, settings)
        return reply
    sent = {**entry, "sent": plain_values(reply.content), **noted}
    try:  # before it leaves
        write_until(lambda: open_log(folder).note({**sent}, settings), until, folder)
    except OSError as error:
        raise ReportableError(
            "the log of what leaves this client cannot be written to its state-dir"
            f" ({error.strerror}), and nothing leaves unlogged: free space on its disk"
        ) from error
    return reply


def digest_record(arrays: ArrayRecord) -> str:
    """Return the beginning of the digest of arrays with their names, after its algorithm.

    It is of their bytes as they came: an own app's arrays need not be NumPy's, and `digest_arrays`
    would have to decode a hostile server's before they are logged.
    """
    from fairbloom.recorddict import view_of  # loads Flower, which not all users of this module do

    total = blake3()
    for name, array in arrays.items():
        total.update(f"{name} {array.dtype} {array.shape} ".encode())
        total.update(view_of(array))
    return f"blake3 {total.hexdigest()[:SHOWN]}"


def plain_values(content: RecordDict) -> dict[str, Any]:
    """Return the records of a reply as plain values; arrays as their types and shapes."""
    arrays = {
        name: {
            key: f"{array.dtype}, {'×'.join(map(str, array.shape))}"
            for key, array in record.items()
        }
        for name, record in content.array_records.items()
    }
    return {
        shorten(name): shorten(arrays.get(name) or dict(record)) for name, record in content.items()
    }
