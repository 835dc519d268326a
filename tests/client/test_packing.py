"""Packed messages: the app behind the mod sees nothing of them, and its replies say that they may be sent."""

import copy
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from fairbloom.client import app as ours
from fairbloom.client.packing import packing
from fairbloom.protocol import packing as wire
from fairbloom.rounds.flower import pack_content, unpack_content

from .helpers import ask as content_of
from .helpers import context, fresh


def message(kind: str) -> Message:
    from flwr.app import ArrayRecord

    sent = ArrayRecord(fresh()[1].state_dict())
    told = ConfigRecord({"server-round": 1, "measure": ["loss-before"], "snapshot-step": 1})
    return Message(RecordDict({"arrays": sent, "config": told}), dst_node_id=2, message_type=kind)


def packed(plain: Message) -> Message:
    sent = copy.deepcopy(plain)
    sent.content = pack_content(plain.content)
    return sent


def values(content: RecordDict) -> dict[str, Any]:
    arrays = {key: {name: a.data for name, a in record.items()} for key, record in content.array_records.items()}
    return {**arrays, **{key: dict(record) for key, record in content.metric_records.items()}}


@pytest.mark.parametrize("piece", [100, 1 << 20])
@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])
def test_a_packed_message_is_answered_packed_with_the_numbers(
    kind: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "PIECE_BYTES", piece)
    plain = message(kind)
    expected = ours.app(plain, context(1)).content
    reply = ours.app(packed(plain), context(1)).content
    assert set(reply) == {wire.name_of(number) for number in range(len(reply))}
    assert values(unpack_content(reply)) == values(expected)
    assert "packs" not in str(unpack_content(reply))


def test_a_packed_message_has_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record, and each array, is two calls or more of every client."""
    assert list(packed(message(MessageType.TRAIN)).content) == [wire.PACKED]
    assert list(ours.app(packed(message(MessageType.TRAIN)), context(1)).content) == [wire.PACKED]


def test_plain_messages_get_plain_replies_that_mention_packing() -> None:
    reply = content_of(MessageType.TRAIN, {}, context(1))
    assert reply.config_records["client"]["packs"] is True
    assert set(reply.array_records) == {"arrays"}


def test_an_own_apps_handlers_are_never_sent_packed_messages() -> None:
    """A mod of Flower's around them, for differential privacy say, must see the arrays."""
    own = ClientApp()
    own.train()(ours.train)
    about = own(message(MessageType.TRAIN), context(1)).content.config_records.get("client", ConfigRecord())
    assert "packs" not in about


def test_mods_within_see_arrays_by_name() -> None:
    seen: list[set[str]] = []

    def watch(sent: Message, where: Context, answer: ClientAppCallable) -> Message:
        seen.append(set(sent.content))
        reply = answer(sent, where)
        seen.append(set(reply.content))
        return reply

    own = ClientApp(mods=[packing, watch])
    own.train()(ours.train)
    own(packed(message(MessageType.TRAIN)), context(1))
    assert seen == [{"arrays", "config"}, {"arrays", "metrics", "snapshot"}]


def test_a_message_with_damaged_pieces_is_an_error_with_words() -> None:
    sent = packed(message(MessageType.TRAIN))
    sent.content[wire.name_of(2)] = ConfigRecord({wire.BYTES: b"..."})
    with pytest.raises(ValueError, match="a packed content has a piece that is missing"):
        ours.app(sent, context(1))
