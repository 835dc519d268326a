"""A client that lies about its numbers, from its reply to the run folder: the run ends as without
it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MessageType, MetricRecord
from flwr.app.error import Error
from safetensors.numpy import load_file

from fairbloom.client.app import app
from fairbloom.rounds.flower import FlowerClients
from fairbloom.server.app import federate
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from tests.simulation.helpers import table

Lie = Callable[[Message, Message], Message]


class LyingGrid(InProcessGrid):
    """Replies to TRAIN messages come changed from one client."""

    def __init__(self, settings: Settings, state: Path, lie: Lie) -> None:
        super().__init__(app, {**settings.run_config(), "state-dir": str(state)}, settings.clients)
        self._lie = lie

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        is_liar = self.contexts[message.metadata.dst_node_id].node_config["partition-id"] == 1
        if is_liar and message.metadata.message_type == MessageType.TRAIN:
            return self._lie(message, reply)
        return reply


def reporting(since: int = 1, **numbers: Any) -> Lie:
    """A lie that clients report from a round on."""

    def lie(message: Message, reply: Message) -> Message:
        if int(str(message.content.config_records["config"]["server-round"])) >= since:
            reported = {key.replace("_", "-"): value for key, value in numbers.items()}
            reply.content["metrics"] = MetricRecord(
                {**reply.content.metric_records["metrics"], **reported}
            )
        return reply

    return lie


def failing(since: int = 1) -> Lie:
    """No usable reply from a round on."""

    def fail(message: Message, reply: Message) -> Message:
        late = int(str(message.content.config_records["config"]["server-round"])) >= since
        return Message(Error(2, "out of memory"), reply_to=message) if late else reply

    return fail


def run(out: Path, lie: Lie, **changes: Any) -> tuple[dict[str, bytes], list[dict[str, str]]]:
    """Return the bits of the final model, and rounds.csv."""
    plain: dict[str, Any] = {
        "clients": 4,
        "num-rounds": 3,
        "fraction": 1.0,
        "device": "cpu",
        "out": str(out),
    }
    settings = Settings.of(plain | changes)
    grid = LyingGrid(settings, out.with_suffix(".state"), lie)
    folder = federate(settings, lambda method: FlowerClients(method, grid))
    return {
        name: array.tobytes() for name, array in load_file(folder / "model.safetensors").items()
    }, table(folder / "rounds.csv")


def test_a_jump_after_a_restart_of_the_server_is_still_one(tmp_path: Path) -> None:
    whole, rows = run(tmp_path / "whole", reporting(since=3, num_examples=10**6))
    assert whole == run(tmp_path / "without", failing(since=3))[0]

    def interrupted(message: Message, reply: Message) -> Message:
        if message.content.config_records["config"]["server-round"] == 3:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", interrupted)
    continued, after = run(tmp_path / "run", reporting(since=3, num_examples=10**6))
    assert continued == whole
    assert [row["refused"] for row in after] == [row["refused"] for row in rows]
    assert "max_growth" in after[2]["refused"]
