"""Frozen parameters: they are sent once, and never change."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fairbloom.client.app import app
from fairbloom.client.frozen import frozen_of
from fairbloom.client.local import load_task_and_model
from fairbloom.protocol.names import CLIENT, FROZEN
from fairbloom.protocol.settings import RunSettings
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.round import Round, size_on_the_wire
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg
from fairbloom.tasks.models import frozen_parameters
from tests.client import nets

from .implementations import bits, method_and_model

SETTINGS: dict[str, Any] = {
    **{"clients": 4, "model": "tests.nets:Adapted", "num-rounds": 3, "method": "fedfv"},
    **{"device": "cpu", "batch-size": 0},
}

Node = Callable[[Message, Callable[[Message], Message]], Message]
"""A client that misbehaves: maps a message and the honest answer to its answer."""


class Grid(InProcessGrid):
    """Clients in this process, of which some are `nodes` of their own; it notes what travels,
    unpacked."""

    def __init__(self, settings: Settings, nodes: Mapping[int, Node] | None = None) -> None:
        super().__init__(app, settings.run_config(), settings.clients)
        self.nodes = nodes or {}
        self.sent: list[tuple[int, str, RecordDict]] = []

    def _answer(self, message: Message) -> Message:
        place = message.metadata.dst_node_id - 2
        self.sent.append((place, message.metadata.message_type, message.content))
        node = self.nodes.get(place)
        return super()._answer(message) if node is None else node(message, super()._answer)

    def whole(self, place: int, kind: str = MessageType.TRAIN) -> list[bool]:
        """Return of each message to a client whether it has the frozen parameters."""
        found = [
            content.array_records["arrays"]
            for to, what, content in self.sent
            if (to, what) == (place, kind)
        ]
        return ["second.weight" in record for record in found]


def run(nodes: Mapping[int, Node] | None = None, **changes: Any) -> tuple[Grid, list[Round]]:
    """Run as a deployed server does."""
    settings = Settings.of({**SETTINGS, **changes})
    method, model = method_and_model(settings)
    grid = Grid(settings, nodes)
    loop = Rounds(method, FlowerClients(method, grid, 60.0), settings.num_rounds)
    return grid, list(loop.run(model, measure=lambda number: [], measure_after=[]))


class Elsewhere:
    """A client on a machine of its own, which has built other frozen parameters and begins with
    these in round 3."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._model = load_task_and_model(RunSettings.of(config))[1]
        self.trained = 0

    def __call__(self, message: Message, answer: Callable[[Message], Message]) -> Message:
        self.trained += message.metadata.message_type == MessageType.TRAIN
        restarts = self.trained == 3 and message.metadata.message_type == MessageType.TRAIN
        ours = {name: tensor.clone() for name, tensor in frozen_of(self._model).items()}
        if restarts:
            self._model.load_state_dict(
                {name: tensor + 0.25 for name, tensor in ours.items()}, strict=False
            )
        reply = answer(message)
        self._model.load_state_dict(ours, strict=False)
        return reply


@pytest.fixture(scope="module")
def plain() -> tuple[Grid, list[Round]]:
    """A run with clients that build the frozen parameters themselves."""
    return run()


# Which clients have them --------------------------------------------------------------------------


def test_the_first_message_alone_has_them(
    plain: tuple[Grid, list[Round]], subtests: pytest.Subtests
) -> None:
    grid, rounds = plain
    assert all(not finished.refused for finished in rounds)
    for place in range(4):
        with subtests.test(place=place):
            assert grid.whole(place) == [True, False, False]
            assert grid.whole(place, MessageType.EVALUATE) == [False] * 3
    method, model = method_and_model(Settings.of(SETTINGS))
    whole = sum(map(size_on_the_wire, model.values()))
    changing = whole - sum(size_on_the_wire(model[name]) for name in method.frozen)
    assert changing < 0.2 * whole
    assert [finished.bytes_sent for finished in rounds] == [
        4 * whole + 4 * changing,
        8 * changing,
        8 * changing,
    ]
    assert [finished.bytes_received for finished in rounds] == [4 * changing] * 3
    travelled = [
        each
        for _, _, content in grid.sent
        for record in content.array_records.values()
        for each in record.values()
    ]
    assert sum(len(array.data) for array in travelled) == sum(
        finished.bytes_sent for finished in rounds
    )


def test_a_client_that_has_lost_them_misses_one_round() -> None:
    grid, rounds = run({2: Elsewhere(Settings.of(SETTINGS).run_config())}, **{"num-rounds": 4})
    assert grid.whole(2) == [True, False, False, False]
    assert grid.whole(2, MessageType.EVALUATE) == [False, False, True, False]
    assert [list(finished.refused) for finished in rounds] == [[], [], ["client-2"], []]
    assert "frozen parameters" in rounds[2].refused["client-2"]


def test_flowers_hooks_send_whole_models() -> None:
    settings = Settings.of(SETTINGS)
    method, model = method_and_model(settings)
    grid = Grid(settings)
    finished = list[Round]()
    arrays = ArrayRecord({name: Array(array) for name, array in model.items()})
    method.start(grid, initial_arrays=arrays, num_rounds=2, on_round=finished.append)
    assert grid.whole(0) == [True] * 2
    whole = sum(map(size_on_the_wire, model.values()))
    assert [each.bytes_sent for each in finished] == [8 * whole] * 2
    assert [each.bytes_received for each in finished] == [4 * whole] * 2


# Clients that lie ---------------------------------------------------------------------------------


def with_frozen(weight: Any) -> Node:
    """Return a client that replies another frozen parameter."""

    def node(message: Message, answer: Callable[[Message], Message]) -> Message:
        reply = answer(message)
        if message.metadata.message_type == MessageType.TRAIN:
            reply.content.array_records["arrays"]["second.weight"] = Array(weight)
        return reply

    return node


def test_clients_that_reply_others_are_refused_with_a_remedy() -> None:
    frozen = method_and_model(Settings.of(SETTINGS))[1]["second.weight"]
    wrong = (
        frozen + np.float32(1e-3),
        frozen * np.float32(np.nan),
        frozen[:3],
        frozen.astype(np.int64),
    )
    _, (finished,) = run(
        dict(enumerate(map(with_frozen, wrong), start=1)), clients=5, **{"num-rounds": 1}
    )
    assert set(finished.refused) == {f"client-{place}" for place in range(1, 5)}
    assert all("requires_grad = False" in reason for reason in finished.refused.values())
    assert finished.arrays["second.weight"].tobytes() == frozen.tobytes()


def silent(message: Message, answer: Callable[[Message], Message]) -> Message:
    """Answer like an app without support for frozen parameters."""
    config = message.content.config_records.get("config", ConfigRecord())
    known = ConfigRecord({key: value for key, value in config.items() if key != FROZEN})
    message.content = RecordDict({**message.content, "config": known})
    return answer(message)


def claiming(digest: Any) -> Node:
    """Return a client that reports another digest of its frozen parameters."""

    def node(message: Message, answer: Callable[[Message], Message]) -> Message:
        reply = answer(message)
        if FROZEN in reply.content.config_records.get(CLIENT, ConfigRecord()):
            reply.content.config_records[CLIENT][FROZEN] = digest
        return reply

    return node


def test_clients_that_do_not_know_frozen_arrays_get_all(plain: tuple[Grid, list[Round]]) -> None:
    grid, rounds = run({0: silent, 1: claiming(7), 2: claiming(["a"]), 3: claiming("0" * 64)})
    assert [bits(each.arrays) for each in rounds] == [bits(each.arrays) for each in plain[1]]
    assert [grid.whole(place) for place in range(4)] == [[True] * 3] * 4


def test_a_model_that_changes_them_in_training_is_refused() -> None:
    _, rounds = run(model="tests.nets:Following", **{"unused-rounds": 0, "num-rounds": 1})
    assert "'second.bias' as it trains" in rounds[0].refused["client-2"]
    assert "register_buffer" in rounds[0].refused["client-2"]


# What is an update --------------------------------------------------------------------------------


def test_tied_parameters_are_frozen_together() -> None:
    w = {"a": np.ones(3), "b": np.ones(3), "table": np.arange(4), "c": np.zeros(2)}
    layout = Layout(w, (), {"b": "a"}, ("a", "table"))
    assert (layout.trainable, layout.integers, layout.frozen) == (("c",), (), {"a", "b", "table"})
    module = nets.Tied(10)
    module.requires_grad_(False)
    assert set(frozen_parameters(module)) == {
        name for name, _ in module.named_parameters(remove_duplicate=False)
    }


@pytest.mark.parametrize("named", ["missing", "mean"])
def test_a_name_that_is_no_parameter_is_refused(named: str) -> None:
    with pytest.raises(ValueError, match=f"frozen names '{named}'"):
        Layout({"w": np.ones(2), "mean": np.ones(2)}, ("mean",), {}, (named,))
    with pytest.raises(ValueError, match="buffers names 'steps'"):
        Layout({"w": np.ones(2), "steps": np.array(1)}, ("steps",))
    with pytest.raises(ValueError, match="frozen must be a list or tuple of names"):
        FedAvg(frozen="w")
