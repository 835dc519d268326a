"""Clients in this process, behind the interface that real nodes are behind."""

import re

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod

from fairbloom.client.app import app
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg, Round
from fairbloom.tasks import load_task
from tests.strategies.helpers import initial_model, quadratics, record

from .helpers import small

counting = ClientApp()


@counting.train()
def count(message: Message, context: Context) -> Message:
    """Reply how often this client was asked; fail where the message says so, after the count."""
    before = context.state.config_records.get("count", ConfigRecord({"asked": 0}))["asked"]
    context.state["count"] = ConfigRecord({"asked": int(str(before)) + 1})
    if message.content.config_records["config"]["fail"]:
        raise OSError("no such sensor")
    return Message(RecordDict({"count": context.state.config_records["count"]}), reply_to=message)


def counted(grid: InProcessGrid, node: int, *, fail: bool = False) -> Message:
    content = RecordDict({"config": ConfigRecord({"fail": fail})})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=node, message_type=MessageType.TRAIN)])
    return reply


def test_a_context_persists_and_is_its_clients_alone() -> None:
    grid = InProcessGrid(counting, {}, clients=3)
    first, second, _ = grid.get_node_ids()
    numbers = [counted(grid, node).content.config_records["count"]["asked"] for node in (first, first, second, first)]
    assert numbers == [1, 2, 1, 3]


def test_a_client_that_raises_answers_with_an_error() -> None:
    grid = InProcessGrid(counting, {}, clients=2)
    first, second = grid.get_node_ids()
    counted(grid, first)
    reply = counted(grid, first, fail=True)
    assert reply.has_error()
    assert "OSError: no such sensor" in str(reply.error.reason)
    assert counted(grid, first).content.config_records["count"]["asked"] == 2
    assert counted(grid, second).content.config_records["count"]["asked"] == 1


def test_each_reply_is_handed_out_once_and_answers_its_message() -> None:
    grid = InProcessGrid(counting, {}, clients=2)
    contents = [RecordDict({"config": ConfigRecord({"fail": False})}) for _ in range(2)]
    nodes = list(grid.get_node_ids())
    messages = [grid.create_message(c, MessageType.TRAIN, n, "1") for c, n in zip(contents, nodes, strict=True)]
    ids = list(grid.push_messages(messages))
    replies = list(grid.pull_messages(ids))
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert [reply.metadata.src_node_id for reply in replies] == nodes
    assert list(grid.pull_messages(ids)) == []


def test_every_node_knows_its_partition_and_the_run_config() -> None:
    grid = InProcessGrid(counting, {"seed": 4}, clients=3)
    assert [context.node_config["partition-id"] for context in grid.contexts.values()] == [0, 1, 2]
    assert all(context.run_config == {"seed": 4} for context in grid.contexts.values())


# A whole run in which one client fails ------------------------------------------------------------------------------

flaky = ClientApp()


@flaky.query()
def query(message: Message, context: Context) -> Message:
    """Answer as every client."""
    return app(message, context)


@flaky.train()
def train(message: Message, context: Context) -> Message:
    """Train as every client, but for one in the second round."""
    if context.node_config["partition-id"] == 2 and message.content.config_records["config"]["server-round"] == 2:
        raise RuntimeError("the disk of clinic 2 is gone")
    return app(message, context)


@flaky.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate as every client, but for one."""
    if context.node_config["partition-id"] == 3:
        raise RuntimeError("no test data")
    return app(message, context)


def test_a_users_client_that_raises_is_refused_with_its_reason() -> None:
    settings, seen = small("", fraction=1.0, num_rounds=3), list[Round]()
    grid = InProcessGrid(flaky, settings.run_config(), settings.clients)
    initial = ArrayRecord(load_task(settings.run_config()).model().state_dict())
    settings.strategy().start(grid, initial, num_rounds=3, on_round=seen.append)
    clients = tuple(f"client-{k}" for k in range(5))
    assert [finished.participants for finished in seen] == [clients] * 3
    for finished in seen:
        gone = {"client-2"} if finished.number == 2 else set()
        assert set(finished.refused) == {"client-3"} | gone
        assert set(finished.coefficients) == {*clients} - gone
        assert set(finished.evaluations) == {*clients} - {"client-3"}
        assert finished.refused["client-3"].startswith(
            "evaluation: error 2: RuntimeError: no test data (test_grid.py, "
        )
    assert seen[1].refused["client-2"].startswith("error 2: RuntimeError: the disk of clinic 2 is gone (test_grid.")


def test_a_mods_error_is_the_reply_of_its_client() -> None:
    """Flower's mods answer the app's reply, in place of the message, where that has no arrays."""
    private = ClientApp(mods=[LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=15.0, delta=1e-5)])
    client, finished = quadratics(1)["site-0"], list[Round]()
    private.train()(lambda message, context: client(message))
    private.evaluate()(lambda message, context: client(message))
    grid = InProcessGrid(private, {}, clients=3)
    FedAvg().start(grid, record(initial_model()), num_rounds=4, on_round=finished.append)
    assert [len(each.coefficients) for each in finished] == [3, 3, 3, 3]
    for each in finished:
        assert list(each.refused) == sorted(map(str, grid.get_node_ids()))
        assert all("LocalDpMod expects exactly one ArrayRecord" in reason for reason in each.refused.values())


def test_a_wrong_shape_in_an_app_names_file_and_line() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        np.ones((2, 3)) @ np.ones((2, 3))
        raise AssertionError

    grid = InProcessGrid(app, {}, 1)
    content = RecordDict({"config": ConfigRecord({"server-round": 1})})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=2, message_type=MessageType.TRAIN)])
    assert re.search(r"matmul.*test_grid\.py, line \d+", reply.error.reason)
