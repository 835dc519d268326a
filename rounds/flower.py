"""Clients behind a Flower grid: messages, and what becomes of them.

The one file of this package that knows Flower.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fairbloom.flower import SimulationError, is_simulated
from fairbloom.protocol.advice import ADVICE
from fairbloom.protocol.frozen import digest_arrays
from fairbloom.protocol.names import FROZEN, PROTOCOL, TRAIN_LOSS
from fairbloom.protocol.terms import Terms

from .aggregation import screen_updates
from .arrays import Model
from .clients import NOTHING, Replies, Reports, TrainReplies
from .layout import Layout
from .method import Method
from .quorum import Quorum
from .records import (
    check_honoured,
    examples_in,
    frozen_digest,
    has_no_query,
    is_expired,
    model_of,
    name_in,
    read_honoured,
    record_of,
    reported,
    size_of,
    usable_arrays,
    usable_second,
)
from .refusals import Refusals
from .roster import Roster
from .screening import usable_evaluation, usable_metrics

FLOWER = logging.getLogger("flwr")
log = FLOWER.getChild("fairbloom")

WAIT_SECONDS = 0.5
"""Seconds between two looks at the roster while too few clients are online."""

PATIENCE_SECONDS = 3600.0
"""How long a user's own ServerApp waits, where all clients were silent, until they are online and
owe nothing."""

UNNAMED = (
    "clients are named by their node ids, so a seed does not determine which are drawn; for names,"
    f" {ADVICE}"
)
"""What it means that an app answers no QUERY, and what to do about it."""

FAILED_QUERY = (
    "%d nodes fail when they are asked for their name. They are named by their node ids, so a seed"
    " does not determine which are drawn. Node %d reports: %s. Mods of ClientApp(mods=[...]) run on"
    " QUERY too, and many refuse a message without arrays: give them to @app.train(mods=[...]), or"
    " to fair(..., mods=[...])"
)
"""A warning: how many nodes, one of them, and its reason."""


class FlowerClients:
    """The nodes behind a grid, as clients.

    `train` and `evaluate` send messages and read the replies. Flower's hooks do the halves of it
    one by one: `ask_to_train`, `trained`, `ask_to_evaluate`, `evaluated`.

    Parameters
    ----------
    grid
        Carries the messages; it may be given later.
    timeout
        Seconds that clients have to reply; messages live no longer. None: as long as Flower lets
        them.
    quorum
        How many must be online, and how long a round waits for them. None: as many as a round asks
        for, until the timeout.
    protocol
        The version that every message with content names. None: none, since the clients' app may be
        anybody's.
    """

    def __init__(
        self,
        method: Method,
        grid: Grid | None = None,
        timeout: float | None = None,
        quorum: Quorum | None = None,
        *,
        protocol: int | None = None,
    ) -> None:
        self.grid = grid
        self._fits: Mapping[str, Any] = {} if protocol is None else {PROTOCOL: protocol}
        self._method = method
        self._timeout = timeout
        self._quorum = quorum or Quorum(
            PATIENCE_SECONDS, method.training_clients, setting="min_available_nodes"
        )
        self._roster = Roster()
        self._layout = Layout({})
        self._training = Exchange()
        self._evaluation = Exchange()
        self._sent_to_train: Mapping[str, Any] = {}
        self._work: Mapping[str, Any] = {}
        # the messages that were answered when some were delivered last, by id
        self._delivered = set[str]()
        self._answers_query: bool | None = None  # not known before a node has answered
        self._digest = ""  # of the model's frozen parameters, once it is known
        self._have_frozen = set[int]()  # the nodes that have said that they have these
        # by node, the terms that it says it honours when asked
        self._honours: dict[int, frozenset[str]] = {}
        # by node, the examples that it says it trains on when asked; 0: none
        self._sizes: dict[int, int] = {}

    @property
    def simulated(self) -> bool:
        """Whether the nodes are those of Flower's simulation: no further ones will come."""
        return is_simulated(self.grid)

    # Who is there ---------------------------------------------------------------------------------

    def online(self, fewest: int) -> Sequence[str]:
        """Return the names of the clients online, in order, after waiting for `fewest` of them until the timeout."""
        self._look()
        while not self._quorum.is_met(self._roster.online):
            time.sleep(WAIT_SECONDS)
            self._look()
        deadline = time.monotonic() + (math.inf if self._timeout is None else self._timeout)
        before = 0
        while (online := len(self._roster.online)) < fewest and time.monotonic() < deadline:
            if self.simulated and online == before > 0:
                remedy = "lower min_available_nodes, min_train_nodes or min_evaluate_nodes"
                raise SimulationError(online, fewest, remedy)
            before = online
            log.info("waiting for clients: %d of %d are online", online, fewest)
            time.sleep(WAIT_SECONDS)
            self._look()
        return list(self._roster.online)

    def free(self) -> Sequence[str]:
        """Return the names of those online that owe no reply, in order.

        Late replies are looked for first.
        """
        if owed := self._roster.pending:
            with suppress(NotImplementedError):  # a grid that answers by send_and_receive alone
                late = [
                    reply for reply in self._grid().pull_messages(owed) if not is_expired(reply)
                ]
                self._roster.clear(reply.metadata.reply_to_message_id for reply in late)
        return self._roster.free

    def wait_until_free(self, fewest: int) -> None:
        """Wait until this many training clients are online and owe nothing.

        QuorumError ends a wait that takes longer than the patience.
        """
        of_training = min(fewest, len(self._method.training_clients) or fewest)
        while (
            not self._quorum.is_met_by_free(self.free(), of_training)
            or len(self._roster.online) < fewest
        ):
            time.sleep(WAIT_SECONDS)
            self._look()

    def _look(self) -> None:
        nodes = {node.node_id: node.name for node in self._grid().get_nodes()}
        self._roster.refresh(nodes, self._ask_names)
        self._quorum.observe(self._roster.online)

    def _ask_names(self, node_ids: list[int]) -> dict[int, str]:
        """Return new nodes' client names.

        One that answers with an error, or without a name, is called after its node id.

        One node is asked first: if its app answers no QUERY, the others are not asked, since each
        would log a traceback.
        """
        replies: dict[int, Message] = {}
        if self._answers_query is None:
            first = node_ids[:1]
            node_ids = node_ids[1:]
            with quiet_simulation():
                replies = self._query(first)
            if any(map(has_no_query, replies.values())):
                self._answers_query = False
                log.info("the clients' app answers no QUERY: %s", UNNAMED)
            else:
                self._answers_query = True if replies else None
        if self._answers_query is False:
            return {node_id: str(node_id) for node_id in (*replies, *node_ids)}
        replies |= self._query(node_ids)
        failed = {
            node_id: reply
            for node_id, reply in replies.items()
            if reply.has_error() and not has_no_query(reply)
        }
        if failed:
            node_id, reply = next(iter(failed.items()))
            log.warning(FAILED_QUERY, len(failed), node_id, str(reply.error.reason)[:500])
        return {node_id: name_in(reply) or str(node_id) for node_id, reply in replies.items()}

    def _query(self, node_ids: list[int]) -> dict[int, Message]:
        """Ask nodes for their names.

        Return their replies by node, and note which terms they honour.
        """
        asked = Exchange()
        for node_id in node_ids:
            asked.messages[str(node_id)] = Message(
                RecordDict(), node_id, MessageType.QUERY, ttl=self._timeout
            )
        replies = dict[int, Message]()
        delivered = self.deliver(asked.messages.values())
        sender = asked.senders()  # by the ids that the grid has given the messages
        for reply in delivered:
            node = sender(reply)
            if node is not None and not is_expired(reply):
                replies.setdefault(int(node), reply)
        asked.answered = set(map(str, replies))
        self._note_debts(asked)
        for node_id, reply in replies.items():
            if reply.has_content() or has_no_query(reply):
                self._honours[node_id] = (
                    read_honoured(reply.content) if reply.has_content() else frozenset()
                )
            self._sizes[node_id] = examples_in(reply.content) if reply.has_content() else 0
        return replies

    def sizes(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return how many training examples these clients say they have, of those online that say it when asked.

        A node that an operator has named was not asked for its name, so it is asked now, once.
        """
        nodes = {name: self._roster.online[name] for name in names if name in self._roster.online}
        free = set(self._roster.free)
        silent = [
            node_id
            for name, node_id in nodes.items()
            if node_id not in self._sizes and name in free
        ]
        if silent and self._answers_query is not False:
            self._query(silent)
        return {
            name: float(size)
            for name, node_id in nodes.items()
            if (size := self._sizes.get(node_id))
        }

    def _take(
        self, asked: "Exchange", replies: Iterable[Message], refused: Refusals
    ) -> list[tuple[str, RecordDict]]:
        """Return client and content of each reply, in the order of names.

        Note who owes one, and the frozen arrays.
        """
        contents = asked.sort(replies, self._roster.online, refused)
        for name, content in contents:
            if self._digest and frozen_digest(content) == self._digest:
                self._have_frozen.add(asked.messages[name].metadata.dst_node_id)
        self._note_debts(asked)
        return contents

    # Training -------------------------------------------------------------------------------------

    def train(
        self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING
    ) -> TrainReplies:
        """Let these clients train the model on the terms, each on its data.

        Vectors are `sent` to each, by record.
        """
        self.ask_to_train(names, record_of(model), terms, sent)
        self._leave_out_frozen(self._training, model)
        return self.trained(self.deliver(self._training.messages.values()))

    def ask_to_train(
        self,
        names: Sequence[str],
        arrays: ArrayRecord,
        terms: Terms,
        sent: Mapping[str, Model] = NOTHING,
    ) -> list[Message]:
        """Return a message to each of the clients, with the vectors that are `sent` next to the model, by record."""
        self._layout = self._method.layout_of(model_of(arrays))
        vectors = {record: record_of(each) for record, each in sent.items()}
        self._training = Exchange(terms.server_round)
        self._sent_to_train = terms.others
        self._work = terms.work
        for name in names:
            asked = terms.of_client(name).to_config()
            self._training.messages[name] = self._message(
                MessageType.TRAIN, name, arrays, asked, vectors
            )
        return list(self._training.messages.values())

    def trained(self, replies: Iterable[Message]) -> TrainReplies:
        """Return what is usable of the replies to the last `ask_to_train`."""
        asked = self._training
        method = self._method
        refused = Refusals(self._training.server_round)
        if not asked.server_round:
            raise RuntimeError(
                "there are no messages that these could be replies to: call configure_train first;"
                " your own calls super().configure_train and changes what that returns"
            )
        contents = self._take(asked, replies, refused)
        honours = self._honoured_by(contents)
        trained = TrainReplies.empty(
            self._layout, refused=refused, missing=asked.missing, second=method.second
        )
        for name, content in contents:
            try:
                check_honoured(self._work, honours[name])
                report = usable_metrics(reported(content), method.weighted_by_key, method.needs)
                second = usable_second(content, method.second, trained.second)
                arrays = usable_arrays(content, method.arrayrecord_key, self._layout, method.second)
                trained.add(name, report, arrays, second)
            except ValueError as reason:
                refused.add(name, reason)
        screen_updates(method, trained, asked.server_round)
        sizes = {name: size_of(content) for name, content in contents}
        return replace(trained, bytes_sent=asked.bytes_sent, sizes=sizes)

    def _honoured_by(self, contents: Sequence[tuple[str, RecordDict]]) -> dict[str, frozenset[str]]:
        """Return which terms each client honours, by its reply and by what its node answers when asked.

        A node that an operator has named was not asked for its name, so it is asked now if its
        reply does not say it.
        """
        nodes = {name: self._training.messages[name].metadata.dst_node_id for name, _ in contents}
        says = {name: read_honoured(content) for name, content in contents}
        silent = [
            nodes[name]
            for name, honours in says.items()
            if not honours and nodes[name] not in self._honours
        ]
        if self._work and silent and self.grid is not None and self._answers_query is not False:
            self._query(silent)
        return {
            name: honours | self._honours.get(nodes[name], frozenset())
            for name, honours in says.items()
        }

    # Evaluation -----------------------------------------------------------------------------------

    def evaluate(
        self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]
    ) -> Replies:
        """Let these clients evaluate the model.

        Of `participants` alone is asked what the terms ask to measure.
        """
        self.ask_to_evaluate(names, record_of(model), terms, participants)
        self._leave_out_frozen(self._evaluation, model)
        return self.evaluated(self.deliver(self._evaluation.messages.values()))

    def ask_to_evaluate(
        self, names: Sequence[str], arrays: ArrayRecord, terms: Terms, participants: Collection[str]
    ) -> list[Message]:
        """Return a message to each of the clients.

        A client that measures its training loss gets the user's own config values as well: it may
        need them to load its data.
        """
        self._evaluation = Exchange(terms.server_round)
        asked = terms.to_config()
        plain = {key: value for key, value in asked.items() if key != "measure"}
        if TRAIN_LOSS in terms.measure:
            asked = {**self._sent_to_train, **asked}
        for name in names:
            config = asked if terms.measure and name in participants else plain
            self._evaluation.messages[name] = self._message(
                MessageType.EVALUATE, name, arrays, config
            )
        return list(self._evaluation.messages.values())

    def evaluated(self, replies: Iterable[Message]) -> Replies:
        """Return what is usable of the replies to the last `ask_to_evaluate`."""
        asked = self._evaluation
        refused = Refusals(self._evaluation.server_round)
        reports: Reports = {}
        for name, content in self._take(asked, replies, refused):
            try:
                reports[name] = usable_evaluation(reported(content), self._method.weighted_by_key)
            except ValueError as reason:
                refused.add(name, reason)
        return Replies(
            metrics=reports,
            refused=refused,
            missing=tuple(asked.missing),
            bytes_sent=asked.bytes_sent,
        )

    def keep(self, since: int) -> None:
        """Do nothing: deployed clients store what they keep before they reply."""

    # Messages -------------------------------------------------------------------------------------

    def contents(self, replies: Iterable[Message], names: Collection[str]) -> list[RecordDict]:
        """Return what these clients replied to the last question of its kind, in the order of names."""
        senders = {
            MessageType.TRAIN: self._training.senders(),
            MessageType.EVALUATE: self._evaluation.senders(),
        }
        found: dict[str, RecordDict] = {}
        for reply in replies:
            name = senders[reply.metadata.message_type](reply)
            if name is not None and name in names and name not in found and reply.has_content():
                found[name] = reply.content
        return [found[name] for name in sorted(found)]

    def _message(
        self,
        message_type: str,
        name: str,
        arrays: ArrayRecord,
        asked: Mapping[str, Any],
        vectors: Mapping[str, ArrayRecord] = MappingProxyType({}),
    ) -> Message:
        config = ConfigRecord({**asked, **self._fits})
        records: dict[str, Any] = {
            self._method.arrayrecord_key: arrays,
            self._method.configrecord_key: config,
        }
        content = RecordDict({**records, **vectors})
        node_id = self._roster.online[name]
        return Message(content, dst_node_id=node_id, message_type=message_type, ttl=self._timeout)

    def deliver(self, messages: Iterable[Message]) -> list[Message]:
        """Send messages and return the replies that come in time; no messages need no grid."""
        messages = list(messages)
        if not messages:
            return []
        replies = list(self._grid().send_and_receive(messages, timeout=self._timeout))
        self._delivered = {
            reply.metadata.reply_to_message_id for reply in replies if not is_expired(reply)
        }
        for reply in replies:
            if reply.has_error():  # it may lack what a message has left out
                self._have_frozen.discard(reply.metadata.src_node_id)
        return replies

    # Frozen parameters ----------------------------------------------------------------------------

    def _leave_out_frozen(self, asked: "Exchange", model: Model) -> None:
        """Leave the frozen parameters out of the messages to nodes that have said that they have the very same ones.

        Each message names their digest. The first message to a node has all arrays, and its reply
        says what it has then. A node that has lost them refuses a message without them by an error,
        and the next one has all.
        """
        if not self._method.frozen:
            return
        frozen = frozenset(self._method.frozen)
        self._digest = self._digest or digest_arrays({name: model[name] for name in frozen})
        arrays = self._method.arrayrecord_key
        config = self._method.configrecord_key
        for message in asked.messages.values():
            content = message.content
            whole = content.array_records[arrays]
            named = ConfigRecord({**content.config_records[config], FROZEN: self._digest})
            message.content = RecordDict({**content, config: named})
            if message.metadata.dst_node_id in self._have_frozen:
                message.content[arrays] = ArrayRecord(
                    {n: each for n, each in whole.items() if n not in frozen}
                )

    def _note_debts(self, exchange: "Exchange") -> None:
        for name in exchange.missing:
            asked = exchange.messages[name].metadata
            # a hook may have held its reply back
            if asked.message_id and asked.message_id not in self._delivered:
                self._roster.expect_reply(
                    asked.message_id, asked.dst_node_id, asked.created_at, asked.ttl
                )
        for name in exchange.answered:
            self._roster.reset_backoff(exchange.messages[name].metadata.dst_node_id)
        self._roster.clear(exchange.strays)

    def _grid(self) -> Grid:
        if self.grid is None:
            raise RuntimeError(
                "there is no grid to send messages by: configure_train has not been called"
            )
        return self.grid


@dataclass
class Exchange:
    """The Flower messages of one phase of a round, and which were answered, by client name.

    `strays` are the ids of late replies to other messages.
    """

    server_round: int = 0
    messages: dict[str, Message] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    strays: set[str] = field(default_factory=set)

    @property
    def missing(self) -> list[str]:
        """The clients that were sent a message and did not answer, in the order of names."""
        return sorted(set(self.messages) - self.answered)

    @property
    def bytes_sent(self) -> int:
        """The size of all arrays in the messages."""
        return sum(size_of(message.content) for message in self.messages.values())

    def sort(
        self, replies: Iterable[Message], online: Mapping[str, int], refused: Refusals
    ) -> list[tuple[str, RecordDict]]:
        """Return client name and content of each reply to this exchange, in the order of names.

        Refuse the others.
        """
        sender = self.senders()
        contents: dict[str, RecordDict] = {}
        for reply in replies:
            name = sender(reply)
            if name is None:
                self.strays.add(reply.metadata.reply_to_message_id)
                node_id = reply.metadata.src_node_id
                known = (client for client, node in online.items() if node == node_id)
                refused.add(next(known, f"node {node_id}"), "it answers no message of this round")
            elif is_expired(reply):
                continue
            elif name in self.answered:
                refused.add(name, "a second reply to the same message")
            else:
                self.answered.add(name)
                if reply.has_error():
                    refused.add(name, f"error {reply.error.code}: {reply.error.reason}")
                    continue
                contents[name] = reply.content
        return sorted(contents.items())

    def senders(self) -> Callable[[Message], str | None]:
        """Return a look-up of the client whose message a reply answers, None for a message of another round.

        It goes by message id, since Flower reports a lost node with the server's id; without one,
        it goes by node id.
        """
        sent = {
            (m.metadata.message_id or m.metadata.dst_node_id): name
            for name, m in self.messages.items()
        }
        return lambda reply: sent.get(
            reply.metadata.reply_to_message_id or reply.metadata.src_node_id
        )


@contextmanager
def quiet_simulation() -> Iterator[None]:
    """Hide what Flower's simulation, which may run in this process, logs meanwhile of an app that answers no QUERY."""
    level = FLOWER.level
    FLOWER.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        FLOWER.setLevel(level)
