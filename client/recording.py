"""Each message of a device and its reply, noted in the device's log."""

from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fairbloom.errors import reportable
from fairbloom.protocol.names import CONFIG, FROZEN

from .record import NOTED, note


def recording(message: Message, context: Context, answer: ClientAppCallable) -> Message:
    """Note what a deployed client is asked and what it sends, where it has a state-dir, which `fairbloom client` makes.

    A mod of Flower's.
    """
    folder = Path(str(context.node_config.get("state-dir", "")))
    if not context.node_config.get("state-dir") or not folder.is_dir():
        return answer(message, context)
    config = message.content.config_records.get(CONFIG, ConfigRecord())
    entry: dict[str, Any] = {"run": message.metadata.run_id, "asked": message.metadata.message_type}
    entry["terms"] = {key: value for key, value in config.items() if key != FROZEN}
    if entry["asked"] == "query":
        entry["settings"] = dict(context.run_config)
    noted: dict[str, Any] = {}
    token = NOTED.set(noted)
    try:
        reply = answer(message, context)
    except Exception as error:
        note(folder, {**entry, "refused": reportable(error)})
        raise
    finally:
        NOTED.reset(token)
    sent = plain_values(reply.content) if reply.has_content() else {}
    note(folder, {**entry, "sent": sent, **noted})
    return reply


def plain_values(content: RecordDict) -> dict[str, Any]:
    """Return the records of a reply in plain values; of arrays their types and shapes."""
    arrays = {
        name: {key: f"{array.dtype}, {'×'.join(map(str, array.shape))}" for key, array in record.items()}
        for name, record in content.array_records.items()
    }
    return {name: arrays.get(name) or dict(record) for name, record in content.items()}
