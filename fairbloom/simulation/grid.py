"""A Flower grid with clients in this process as its nodes."""

import copy
import itertools
import secrets
from collections.abc import Iterable

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from fairbloom.client.device import check_device
from fairbloom.errors import failure_reason
from fairbloom.flower import address, identify, set_message_id
from fairbloom.protocol.error_codes import code_of
from fairbloom.server.polling import OwnGrid

# The node id that Flower gives the server.
SERVER = 1


class InProcessGrid(OwnGrid):
    """Hands each message to the ClientApp in this process, with a persistent context per client.

    Node i + 2 is the client of partition i. A client that raises answers with an error, as a
    deployed one does, and its changes to its context are dropped.

    Parameters
    ----------
    client_app
        The app that plays every client.
    run_config
        The run config in the clients' contexts.
    clients
        The number of clients.
    """

    def __init__(self, client_app: ClientApp, run_config: UserConfig, clients: int) -> None:
        # Messages are stamped with the process's identity, which Flower's own runtimes set as well.
        identify(run_id=SERVER, node_id=SERVER, task_id=SERVER)
        # Each grid has its own run id, as each submission of an app has.
        super().__init__(secrets.randbits(63))
        self._app = client_app
        self._message_ids = map(str, itertools.count(1))
        self._replies: dict[str, Message] = {}
        self.contexts: dict[int, Context] = {}
        for partition in range(clients):
            node = SERVER + 1 + partition
            self.contexts[node] = Context(
                run_id=SERVER,
                node_id=node,
                node_config={"partition-id": partition, "num-partitions": clients},
                state=RecordDict(),
                run_config=dict(run_config),
            )

    @property
    def most_nodes(self) -> int:
        """The number of clients; no others come."""
        return len(self.contexts)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids; all clients are always online."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Call the ClientApp for one message after the other; return the ids of the messages."""
        message_ids = []
        for message in messages:
            message_id = next(self._message_ids)
            set_message_id(message, message_id)
            self._replies[message_id] = self._answer(message)
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages; each is handed out once."""
        return [
            self._replies.pop(message_id)
            for message_id in message_ids
            if message_id in self._replies
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Call the ClientApp for each message; return the replies. `timeout` has no effect."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        before = copy.deepcopy(context.state)
        try:
            return address(self._app(message, context), message)
        except Exception as error:  # any failure of one client is one error reply
            check_device(error)
            context.state = before
            return Message(
                Error(code_of(error), failure_reason(error)),
                reply_to=message,
            )
