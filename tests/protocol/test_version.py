"""A number, not the version, says whether a server and a client fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fairbloom import __version__
from fairbloom.client.app import app
from fairbloom.client.fair import fair
from fairbloom.errors import ReportableError
from fairbloom.protocol.names import CONFIG, PROTOCOL as KEY
from fairbloom.protocol.terms import Terms
from fairbloom.protocol.version import PROTOCOL, check_protocol
from fairbloom.rounds.flower import FlowerClients
from fairbloom.server.app import federate
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg

SETTINGS: dict[str, Any] = {
    "task": "digits",
    "clients": 2,
    "num-rounds": 1,
    "device": "cpu",
    "fraction": 1.0,
}


@pytest.mark.parametrize(
    ("theirs", "remedy"),
    [
        (PROTOCOL + 1, "upgrade fairbloom"),
        (PROTOCOL - 1, "upgrade the server"),
        ("x" * 5000, ""),
    ],
)
def test_a_misfit_names_both_numbers_and_the_remedy(theirs: Any, remedy: str) -> None:
    check_protocol({})
    check_protocol({KEY: PROTOCOL, "server-round": 3})
    with pytest.raises(ReportableError) as error:
        check_protocol({KEY: theirs})
    for words in (
        f"fairbloom {__version__}, protocol {PROTOCOL}",
        f"speaks protocol {theirs!r}"[:30],
        remedy,
    ):
        assert words in str(error.value)
    assert len(str(error.value)) < 300


def test_a_number_that_is_sent_is_none_of_the_terms() -> None:
    assert Terms.of(
        {"server-round": 2, "measure": ["loss-before"], KEY: PROTOCOL, "hers": 1}
    ).others == {"hers": 1}


def hers() -> ClientApp:
    """A ClientApp of a user's own, which trains nothing."""
    made = fair(lambda model, loader: None, lambda model, loader: (0.0, 0.0))

    @made.train()
    def train(message: Message, context: Context) -> Message:
        content = RecordDict(
            {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
        )
        return Message(content, reply_to=message)

    @made.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 0.0})}),
            reply_to=message,
        )

    return made


def replies(client_app: ClientApp, message_type: str, **config: Any) -> list[Message]:
    """Return what two clients answer to a message with this config."""
    arrays = ArrayRecord({"w": Array(np.zeros(2))})
    content = RecordDict(
        {"arrays": arrays, CONFIG: ConfigRecord({"server-round": 1, "measure": [], **config})}
    )
    return list(
        InProcessGrid(client_app, Settings.of(SETTINGS).run_config(), 2).send_and_receive(
            [Message(content, dst_node_id=2 + i, message_type=message_type) for i in (0, 1)]
        )
    )


@pytest.mark.parametrize("make", [lambda: app, hers])
@pytest.mark.parametrize("message_type", ["train", "evaluate"])
def test_a_client_refuses_messages_of_another_protocol(
    make: Callable[[], ClientApp], message_type: str
) -> None:
    for reply in replies(make(), message_type, **{KEY: PROTOCOL + 1}):
        assert f"the server speaks protocol {PROTOCOL + 1}" in reply.error.reason
        assert "upgrade fairbloom on this client" in reply.error.reason
    for reply in replies(make(), message_type, **{KEY: PROTOCOL}):
        assert not reply.has_error() or "protocol" not in reply.error.reason
    assert [
        reply.error.reason
        for reply in replies(app, "query", **{KEY: PROTOCOL - 1})  # and tells nothing of its data
        if "upgrade the server, or go back on this client" not in reply.error.reason
    ] == []


def test_every_message_with_content_has_the_number() -> None:
    """Or a client could not know that it misunderstands."""
    sent = list[Message]()

    class Watching(InProcessGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            sent.extend(messages)
            return super().push_messages(messages)

    grid = Watching(hers(), Settings.of(SETTINGS).run_config(), 2)
    clients = FlowerClients(FedAvg(), grid, protocol=PROTOCOL)
    names = clients.online(2)
    model = {"w": np.zeros(2, dtype="float32")}
    clients.train(names, model, Terms(server_round=1))
    clients.evaluate(names, model, Terms(server_round=1), ())
    assert [
        message.content.config_records[CONFIG][KEY] for message in sent if len(message.content)
    ] == [PROTOCOL] * 4


def test_a_run_of_misfits_says_why_by_each_clients_name(tmp_path: Path) -> None:
    settings = Settings.of({**SETTINGS, "out": str(tmp_path / "run"), "unused-rounds": 0})
    grid = InProcessGrid(app, settings.run_config(), 2)
    federate(settings, lambda method: FlowerClients(method, grid, protocol=PROTOCOL + 1))
    text = (tmp_path / "run" / "rounds.csv").read_text()
    said = f"error 2: the server speaks protocol {PROTOCOL + 1}"
    assert [name for name in ("client-0", "client-1") if f"{name}: {said}" not in text] == []
