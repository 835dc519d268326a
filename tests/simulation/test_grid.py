"""Clients in this process, behind the interface that real nodes are behind."""

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.simulation.grid import InProcessGrid

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
