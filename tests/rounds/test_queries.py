"""Clients' names by QUERY, and apps that answer none."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp

from fairbloom.protocol.helper import ADVICE
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg, Round
from tests.federation import Answer, MemoryGrid, initial_model, quadratics, record, run

FLOWER = logging.getLogger("flwr")
SAID = (
    "the clients' app answers no QUERY: clients are named by their node ids, so a seed does not determine which are "
    f"drawn; for names, {ADVICE}"
)


def plain() -> ClientApp:
    """Return an app as Flower's templates are."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 3})})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 3, "eval_acc": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


class Counting(InProcessGrid):
    """Notes who is asked for a name."""

    def __init__(self, app: ClientApp, clients: int) -> None:
        super().__init__(app, {}, clients)
        self.asked: list[int] = []

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        self.asked += [m.metadata.dst_node_id for m in messages if m.metadata.message_type == MessageType.QUERY]
        return super().push_messages(messages)


def test_an_app_without_a_query_function_is_asked_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid, finished = Counting(plain(), 5), list[Round]()
    with caplog.at_level(logging.INFO, "flwr"):
        FedAvg().start(grid, record(initial_model()), 3, on_round=finished.append)
    assert grid.asked == [2]
    assert caplog.messages.count(SAID) == 1
    assert all(each.participants == ("2", "3", "4", "5", "6") for each in finished)
    assert all(each.evaluations["4"]["eval_acc"] == 0.5 for each in finished)


def test_the_first_node_is_asked_alone_and_the_others_together() -> None:
    class Grid(MemoryGrid):
        def push_messages(self, messages: Any) -> list[str]:
            messages = list(messages)
            at_once.append([message.metadata.message_type for message in messages].count(MessageType.QUERY))
            return super().push_messages(messages)

    at_once: list[int] = []
    _, (finished,) = run(FedAvg(), Grid(quadratics(5)), rounds=1)
    assert [count for count in at_once if count] == [1, 4]
    assert finished.participants == tuple(f"site-{k}" for k in range(5))


def test_a_silent_first_node_is_asked_again_later() -> None:
    clients: dict[str, Answer] = dict(quadratics(4))
    nodes = MemoryGrid(clients).nodes
    first, asked = nodes[min(nodes)], list[Message]()

    def slow(message: Message, client: Answer = clients[first]) -> Message | None:
        query = message.metadata.message_type == MessageType.QUERY
        asked.extend([message] if query else [])
        return None if query else client(message)

    _, rounds = run(FedAvg(), MemoryGrid(clients | {first: slow}), rounds=2, timeout=0.001)
    assert all(each.participants == tuple(sorted(clients.keys() - {first})) for each in rounds)
    assert len(asked) >= 1


def test_a_node_without_a_query_is_called_by_its_id() -> None:
    """The first one, and a later one: the others keep their names."""
    clients: dict[str, Answer] = dict(quadratics(4))
    grid = MemoryGrid(clients)
    for node, reason in ((min(grid.nodes), "out of memory"), (max(grid.nodes), "No query function registered")):
        name = grid.nodes[node]

        def bare(message: Message, client: Answer = clients[name], reason: str = reason) -> Message | None:
            query = message.metadata.message_type == MessageType.QUERY
            return Message(Error(2, reason), reply_to=message) if query else client(message)

        _, (finished,) = run(FedAvg(), MemoryGrid(clients | {name: bare}), rounds=1)
        assert set(finished.participants) == (clients.keys() - {name}) | {str(node)}


# What Flower's simulation logs --------------------------------------------------------------------------------------


def simulated(reason: str) -> Callable[[Message], Message | None]:
    """Return a client that answers QUERY as a simulated node does: with an error that the same process logs."""
    client = quadratics(1)["site-0"]

    def answer(message: Message) -> Message | None:
        if message.metadata.message_type != MessageType.QUERY:
            return client(message)
        error = ValueError(reason)
        FLOWER.log(logging.ERROR, "An exception was raised when processing a message by %s", "RayBackend")
        FLOWER.log(logging.ERROR, error)
        FLOWER.log(logging.ERROR, f"Traceback (most recent call last):\nValueError: {reason}\n")
        return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    return answer


def test_only_the_simulations_traceback_about_query_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    reason = "No query function registered with name 'default'"
    with caplog.at_level(logging.INFO, "flwr"):
        _, (finished,) = run(FedAvg(), MemoryGrid(dict.fromkeys("abc", simulated(reason))), rounds=1)
        FLOWER.error("No query function registered, somebody else says")
    assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1
    assert len(finished.participants) == 3


# Names that fail ----------------------------------------------------------------------------------------------------


def test_failures_at_query_are_one_warning_with_a_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(message: Message) -> Message | None:
        if message.metadata.message_type == MessageType.QUERY:
            return Message(Error(2, f"LocalDpMod is not compatible {'x' * 1000}"), reply_to=message)
        return quadratics(1)["site-0"](message)

    grid = MemoryGrid({**quadratics(1), "site-1": failing, "site-2": failing})
    with caplog.at_level(logging.WARNING, "flwr"):
        _, rounds = run(FedAvg(), grid, rounds=3)
    (warning,) = [each.getMessage() for each in caplog.records if "QUERY" in each.getMessage()]
    for words in ("2 nodes", "LocalDpMod is not compatible", "@app.train(mods=[...])"):
        assert words in warning
    assert len(warning) < 1000
    assert len(rounds[-1].participants) == 3
