"""Packed messages for an app that knows nothing of them; see protocol/packing.py."""

import copy

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fairbloom.flower import deserialize, serialize
from fairbloom.protocol.names import CLIENT
from fairbloom.protocol.packing import PACKED, PACKS, join_pieces, pieces


def packing(message: Message, context: Context, answer: ClientAppCallable) -> Message:
    """Unpack a message that comes packed and pack the reply; say in the other replies that messages may be packed.

    A mod of Flower's, the outermost: mods inside it see arrays by name. `ClientApp(mods=[packing, ...])`.
    """
    packed = PACKED in message.content.config_records
    if packed:
        message = copy.copy(message)  # in one process, the server holds this very object
        message.content = deserialize(join_pieces(message.content.config_records))
    reply = answer(message, context)
    if not reply.has_content():
        return reply
    if packed:
        records = pieces(serialize(reply.content))
        reply.content = RecordDict({name: ConfigRecord({**record}) for name, record in records.items()})
    else:
        about = reply.content.config_records.get(CLIENT, ConfigRecord())
        reply.content[CLIENT] = ConfigRecord({**about, PACKS: True})
    return reply
