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
    asked: dict[str, Any] = {"run": message.metadata.run_id}
    asked["asked"] = message.metadata.message_type
    asked["terms"] = {key: value for key, value in config.items() if key != FROZEN}
    if asked["asked"] == "query":
        asked["settings"] = dict(context.run_config)
    noted: dict[str, Any] = {}
    token = NOTED.set(noted)
    try:
        reply = answer(message, context)
    except Exception as error:
        note(folder, {**asked, "refused": reportable(error)})
        raise
    finally:
        NOTED.reset(token)
    sent = plain_values(reply.content) if reply.has_content() else {}
    note(folder, {**asked, "sent": sent, **noted})
    return reply


def plain_values(content: RecordDict) -> dict[str, Any]:
    """Return the records of a reply in plain values; of arrays their types and shapes."""
    found: dict[str, Any] = {}
    for name, record in content.items():
        if name in content.array_records:
            arrays = content.array_records[name].items()
            found[name] = {key: f"{array.dtype}, {'×'.join(map(str, array.shape))}" for key, array in arrays}
        else:
            found[name] = dict(record)
    return found
