"""Packed messages at the server: who is sent them, who is not, and what becomes of replies that are damaged."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp

from fairbloom.client.packing import packing
from fairbloom.protocol import packing as wire
from fairbloom.rounds import flower
from fairbloom.rounds.flower import FlowerClients, pack_content, unpack_content
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.round import Round
from fairbloom.rounds.updates import Model
from fairbloom.strategies import FedAvg
from tests.strategies.helpers import BUFFERS, MemoryGrid, Quadratic, initial_model, quadratics

from .implementations import bits

Node = Callable[[Message], Message]


def that_packs(client: Quadratic) -> Node:
    """Return the client behind the mod that packs."""
    app = ClientApp(mods=[packing])
    for register in (app.train(), app.evaluate(), app.query()):
        register(lambda message, context: client(message))
    return lambda message: app(message, None)  # type: ignore[arg-type]


def run(nodes: Mapping[str, Any], rounds: int) -> tuple[MemoryGrid, list[Round]]:
    """Run as a deployed server does."""
    grid, method = MemoryGrid(nodes), FedAvg(buffers=BUFFERS)
    loop = Rounds(method, FlowerClients(method, grid, 60.0), rounds)
    return grid, list(loop.run(initial_model(), measure=lambda number: [], measure_after=[]))


def forms(grid: MemoryGrid, name: str) -> list[bool]:
    """Return of each message to a client whether it was packed."""
    sent = [message for message in grid.sent if grid.nodes[message.metadata.dst_node_id] == name]
    return [wire.PACKED in message.content for message in sent if message.metadata.message_type != MessageType.QUERY]


@pytest.mark.parametrize("piece", [64, 1 << 20])
def test_who_packs_is_sent_packed_messages_and_no_number_changes(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE_BYTES", piece)
    clients = quadratics(4)
    nodes = {name: that_packs(client) if name < "site-2" else client for name, client in clients.items()}
    grid, rounds = run(nodes, rounds=3)
    _, plain = run(quadratics(4), rounds=3)
    assert [bits(finished.arrays) for finished in rounds] == [bits(finished.arrays) for finished in plain]
    assert all(not finished.refused for finished in rounds)
    assert forms(grid, "site-1") == [True] * 6
    assert forms(grid, "site-3") == [False] * 6


def damaged(how: str, reply: Message) -> Message:
    content = reply.content
    if how == "not of protobuf":
        content[wire.PACKED] = ConfigRecord({wire.BYTES: b"\xff" * 100})
    elif how == "no bytes":
        content[wire.PACKED] = ConfigRecord({wire.BYTES: "text"})
    elif how == "nothing in it":
        content[wire.PACKED] = ConfigRecord()
    elif how == "a piece too many":
        content["packed-7"] = ConfigRecord({wire.BYTES: b"x"})
    else:
        content[wire.PACKED] = ConfigRecord({wire.BYTES: content.config_records[wire.PACKED][wire.BYTES][:-9]})  # type: ignore[index]
    return reply


@pytest.mark.parametrize("how", ["not of protobuf", "no bytes", "nothing in it", "a piece too many", "cut off"])
def test_a_damaged_packed_reply_is_refused_by_name(how: str) -> None:
    clients = quadratics(3)
    honest = that_packs(clients["site-1"])

    def lying(message: Message) -> Message:
        reply = honest(message)
        trains = message.metadata.message_type == MessageType.TRAIN
        return damaged(how, reply) if trains and wire.PACKED in reply.content else reply

    nodes = {name: lying if name == "site-1" else client for name, client in clients.items()}
    _, (finished,) = run(nodes, rounds=1)
    assert set(finished.refused) == {"site-1"}


def test_after_an_error_a_node_is_sent_plain_messages_again() -> None:
    """It may have been given an app that cannot unpack."""
    clients = quadratics(2)
    packs, state = that_packs(clients["site-0"]), {"trained": 0}

    def exchanged(message: Message) -> Message:
        if message.metadata.message_type == MessageType.TRAIN:
            state["trained"] += 1
        if state["trained"] < 2:
            return packs(message)
        if wire.PACKED in message.content:
            return Message(Error(2, "KeyError: arrays"), reply_to=message)
        return clients["site-0"](message)

    _, rounds = run({"site-0": exchanged, "site-1": clients["site-1"]}, rounds=3)
    assert [set(finished.refused) for finished in rounds] == [set(), {"site-0"}, set()]


def test_a_model_that_is_too_large_travels_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "MAX_PACKED_BYTES", 10)
    grid, _ = run({name: that_packs(client) for name, client in quadratics(2).items()}, rounds=2)
    assert not any(forms(grid, "site-0"))


def test_named_nodes_get_packed_messages_after_their_first_reply() -> None:
    """Nobody asks those nodes anything before they train."""
    nodes = {name: that_packs(client) for name, client in quadratics(2).items()}
    grid, method = MemoryGrid(nodes, registered=nodes), FedAvg(buffers=BUFFERS)
    loop = Rounds(method, FlowerClients(method, grid, 60.0), 2)
    list(loop.run(initial_model(), measure=lambda number: [], measure_after=[]))
    assert forms(grid, "site-0") == [False, True, True, True]


def test_flowers_hooks_send_arrays_by_name() -> None:
    """Who wraps a strategy, as Flower's own differential privacy does, works on them."""
    grid = MemoryGrid({name: that_packs(client) for name, client in quadratics(2).items()})
    FedAvg(buffers=BUFFERS).start(grid, initial_arrays=flower.record_of(initial_model()), num_rounds=2)
    assert forms(grid, "site-0") == [False] * 4


def test_packing_keeps_every_record_to_the_bit() -> None:
    rng = np.random.default_rng(3)
    model: Model = {
        "a": rng.normal(size=(3, 4)),
        "b": np.arange(5, dtype=np.int64),
        "half": rng.normal(size=7).astype(np.float16),
        "scalar": np.array(2.5, dtype=np.float32),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "turned": np.asfortranarray(rng.normal(size=(2, 5))),
    }
    told: dict[str, Any] = {"text": "ä", "list": [1, 2], "float": 0.1, "flag": True, "bytes": b"\x00"}
    content = RecordDict({"arrays": flower.record_of(model), "config": ConfigRecord(told)})
    back = unpack_content(pack_content(content))
    assert json.dumps(dict(back.config_records["config"]), default=str) == json.dumps(told, default=str)
    for name, array in flower.model_of(back.array_records["arrays"]).items():
        assert (array.dtype, array.shape) == (model[name].dtype, model[name].shape)
        assert array.tobytes() == model[name].tobytes()
