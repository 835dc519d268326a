"""The parts of Flower in use outside its documented API.

No other module imports Flower from elsewhere than flwr.app, flwr.clientapp and flwr.serverapp.
"""

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from httpx import HTTPStatusError, TransportError  # what Flower's grid raises; it comes with Flower

from fairbloom.errors import FairbloomError, describe_online

__all__ = [
    "ErrorCode", "HTTPStatusError", "NodeInfo", "ObjectPushError", "Run", "TransportError",
    "address", "deserialize",
    "identify", "is_simulated", "log_start", "serialize", "set_created_at", "set_message_id",
]  # fmt: skip


def serialize(content: RecordDict) -> bytes:
    """Return a message's content in Flower's wire format."""
    return bytes(recorddict_to_proto(content).SerializeToString())


def deserialize(data: bytes) -> RecordDict:
    """Return the content that `serialize` was given; errors are those of Protocol Buffers."""
    return recorddict_from_proto(ProtoRecordDict.FromString(data))


def identify(*, run_id: int, node_id: int, task_id: int) -> None:
    """Give this process an identity, which Flower stamps on the messages that it writes."""
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id
    TaskIdentity.task_id = task_id


def is_simulated(grid: object) -> bool:
    """Return whether a grid is, or wraps, that of Flower's simulation: its nodes are fixed."""
    return bool(getattr(grid, "simulated", type(grid).__name__ == "InMemoryGrid"))


class SimulationError(FairbloomError):
    """A simulation has too few nodes; `remedy` names a setting with which these are enough."""

    def __init__(self, online: int, wanted: int, remedy: str) -> None:
        super().__init__(
            f"{describe_online(online, wanted)}, and no others come in Flower's simulation: run it"
            f" with --federation-config num-supernodes={wanted}, or {remedy}"
        )


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as Flower's grids do."""
    message.metadata.__dict__["_message_id"] = message_id


def address(reply: Message, message: Message) -> Message:
    """Return a reply to this message: some of Flower's mods answer their app's reply."""
    answers = reply.metadata.reply_to_message_id == message.metadata.message_id
    if answers or not reply.has_error():
        return reply
    return Message(reply.error, reply_to=message)


def set_created_at(message: Message, seconds: float) -> None:
    """Change the moment from which a message's time to live counts."""
    message.metadata.__dict__["_created_at"] = seconds


def log_start(
    num_rounds: int,
    arrays: ArrayRecord,
    train_config: ConfigRecord | None,
    evaluate_config: ConfigRecord | None,
) -> None:
    """Log what Flower's strategies log as they start."""
    from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info  # clients do without

    log_strategy_start_info(num_rounds, arrays, train_config, evaluate_config)
