"""Repeat in one process the run that the records of a run folder describe."""

import csv
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Message, MessageType
from flwr.app.error import Error

from benchmarks.deployment import rounds
from fairbloom.client.app import app
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.method import Method
from fairbloom.server.app import federate
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import computing_with

# The starts of reasons for refusals that are not about the reply of a round's training.
NOT_OF_THE_ROUND = (
    "evaluation: ",
    "it answers no message of this round",
    "a second reply to the same message",
)


@dataclass(frozen=True)
class Part:
    """The participants of a round's training, and the clients with used replies."""

    participants: frozenset[str]
    used: frozenset[str]


def parts_of(folder: Path, names: Collection[str]) -> list[Part]:
    """Return the participants of each round in a run's tables; ValueError if they contradict."""
    with (folder / "clients.csv").open(newline="") as file:
        measured: dict[str, dict[str, str]] = {}
        for row in csv.DictReader(file):
            measured.setdefault(row["round"], {})[row["client"]] = row["participated"]
    return [part_of(row, measured.get(row["round"], {}), names) for row in rounds(folder)]


def part_of(row: Mapping[str, str], measured: Mapping[str, str], names: Collection[str]) -> Part:
    """Return the participants of one round.

    If the table has no column `offline`, the evaluation shows which of the unnamed clients were
    away.
    """
    reasons = dict(words.partition(": ")[::2] for words in row["refused"].split(" | ") if words)
    refused = {name for name, reason in reasons.items() if not reason.startswith(NOT_OF_THE_ROUND)}
    absent = {*shlex.split(row.get("offline", ""))}
    missing = {*shlex.split(row["missing"])}
    used = {
        name
        for name in names
        if name not in absent | missing | refused and measured.get(name, "1") == "1"
    }
    if len(used) > int(row["replies_used"]):
        used &= measured.keys()
    participants = used | missing | refused
    if (len(used), len(participants)) != (int(row["replies_used"]), int(row["participants"])):
        raise ValueError(
            f"round {row['round']}: {sorted(used)} of {sorted(participants)} do not fit {dict(row)}"
        )
    return Part(frozenset(participants), frozenset(used))


class RecordedSettings(InProcessGrid):
    """Clients in this process that are online, and answer, when they did in a recorded run."""

    def __init__(
        self, settings: Settings, method: Method, names: Sequence[str], parts: Sequence[Part]
    ) -> None:
        super().__init__(app, settings.run_config(), settings.clients)
        self._method = method
        self._parts = parts
        self._names = dict(zip(super().get_node_ids(), names, strict=True))

    def _part(self) -> Part:
        return self._parts[min(self._method.run_state.finished_rounds, len(self._parts) - 1)]

    def get_node_ids(self) -> list[int]:
        return [node for node, name in self._names.items() if name in self._part().participants]

    def _answer(self, message: Message) -> Message:
        name = self._names[message.metadata.dst_node_id]
        if message.metadata.message_type == MessageType.TRAIN and name not in self._part().used:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "away"), reply_to=message)
        return super()._answer(message)


def trained_again(
    folder: Path, settings: Mapping[str, Any], names: Sequence[str], to: Path
) -> Path:
    """Train in this process what a run folder's records describe; return the new run folder."""
    chosen = Settings.of({**settings, "evaluate-every": 0, "out": str(to)})
    parts = parts_of(folder, names)
    with computing_with(1):
        return federate(
            chosen,
            lambda method: FlowerClients(
                method, RecordedSettings(chosen, method, names, parts), 2.0
            ),
        )
