"""Clients behind a Flower grid: messages, and what becomes of them. The one file of this package that knows Flower."""

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from fairbloom.flower import is_simulated
from fairbloom.protocol.frozen import digest_arrays
from fairbloom.protocol.helper import ADVICE, advice_on
from fairbloom.protocol.names import (
    ABOUT,
    AGREED,
    ARRAYS,
    CLIENT,
    CONFIG,
    FROZEN,
    HONOURS,
    KEEP,
    KEEPS_NONE,
    KEPT,
    LONGEST_NAME,
    METRICS,
    NAME,
    NUM_EXAMPLES,
    PROTOCOL,
    SNAPSHOT,
    TRAIN_LOSS,
    is_usable_name,
)
from fairbloom.protocol.terms import Terms

from .aggregation import recalled_rows
from .clients import NOTHING, Replies, Reports, Trained
from .fits import GRAM, GRAM_BY_ARRAY
from .method import Method
from .quorum import MAX_LISTED, Quorum, SimulationError, listed
from .roster import Roster
from .round import size_on_the_wire
from .screening import LARGEST_COUNT, MissingSecondError, Refusals, one_line, usable_evaluation, usable_metrics
from .updates import Layout, Model, Updates

FLOWER = logging.getLogger("flwr")
log = FLOWER.getChild("fairbloom")

WAIT_SECONDS = 0.5
"""Seconds between two looks at the roster while too few clients are online."""

EXPIRED = (3, 4)
"""Flower's error codes for a message, or a reply, that has outlived its deadline."""

PATIENCE_SECONDS = 3600.0
"""How long a user's own ServerApp waits, where all clients were silent, until they are online and owe nothing."""

UNNAMED = f"clients are named by their node ids, so a seed does not determine which are drawn; for names, {ADVICE}"
"""What it means that an app answers no QUERY, and what to do about it."""

FAILED_QUERY = (
    "%d nodes fail when they are asked for their name. They are named by their node ids, so a seed does not determine "
    "which are drawn. Node %d reports: %s. Mods of ClientApp(mods=[...]) run on QUERY too, and many refuse a message "
    "without arrays: give them to @app.train(mods=[...]), or to fair(..., mods=[...])"
)
"""A warning: how many nodes, one of them, and its reason."""

NO_QUERY = ("No query function registered", "Invalid message type: query")
"""An app without a query function answers with an error that has one of these texts; the second is of a NumPyClient."""

LACKS = "it does not keep this model"
"""What is said of a client that keeps models, and has not this one."""

MAX_ABOUT_CHARACTERS = 1_000_000
"""The longest text that a client may report about its data."""


class FlowerClients:
    """The nodes behind a grid, as clients.

    `train` and `evaluate` send messages and read the replies. Flower's hooks do the halves of it one by one:
    `ask_to_train`, `trained`, `ask_to_evaluate`, `evaluated`.

    Parameters
    ----------
    grid
        Carries the messages; it may be given later.
    timeout
        Seconds that clients have to reply; messages live no longer. None: as long as Flower lets them.
    quorum
        How many must be online, and how long a round waits for them. None: as many as a round asks for, until the
        timeout.
    protocol
        The version that every message with content names. None: none, since the clients' app may be anybody's.
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
        self.has_asked = False
        """Whether `ask_to_train` or `ask_to_evaluate` was called since somebody set this to False."""
        self._fits: Mapping[str, Any] = {} if protocol is None else {PROTOCOL: protocol}
        self._method = method
        self._timeout = timeout
        self._quorum = quorum or Quorum(PATIENCE_SECONDS, method.training_clients, setting="min_available_nodes")
        self._roster = Roster()
        self._layout = Layout({})
        self._training, self._evaluation = Exchange(), Exchange()
        self._sent: OutgoingModel | None = None
        self._sent_to_train: Mapping[str, Any] = {}
        self._work: Mapping[str, Any] = {}
        self._questions = dict[str, int]()  # by message id, the nodes that are asked if they are free
        self._answers_query: bool | None = None  # not known before a node has answered
        self._have_frozen: dict[int, bool | None] = {}  # by node; None: its app takes whole models alone
        self._honours: dict[int, frozenset[str]] = {}  # by node, the terms that it says it honours when asked
        self._sizes: dict[int, int] = {}  # by node, the examples that it says it trains on when asked; 0: none
        self._not_finite = set[str]()  # the metrics of which some client replied no finite number

    @property
    def simulated(self) -> bool:
        """Whether the nodes are those of Flower's simulation: no further ones will come."""
        return is_simulated(self.grid)

    # Who is there ---------------------------------------------------------------------------------------------------

    def online(self, fewest: int) -> Sequence[str]:
        """Return the names of the clients online, in order, after waiting for `fewest` of them until the timeout."""
        self._look()
        while not self._quorum.holds(self._roster.online):
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
        """Return the names of those online that owe no reply, in order; late replies are looked for first."""
        self._hear_late(self._roster.unpaid)
        return self._roster.free

    def wait_until_free(self, fewest: int) -> None:
        """Wait until this many training clients are online and owe nothing.

        Ask nodes that owe a reply if they are free.

        Meanwhile no pause ends a debt. QuorumError ends a wait that takes longer than the patience.
        """
        of_training = min(fewest, len(self._method.training_clients) or fewest)
        enough = False
        while True:
            self._look()
            self._hear_late(self._roster.debts)
            self._ask_if_free()
            before = enough
            enough = self._quorum.holds_without_debts(self._roster.clear, of_training)
            enough = enough and len(self._roster.online) >= fewest
            if enough and before:  # a moment later, so that those who come back together all take part
                return
            time.sleep(WAIT_SECONDS)

    def _ask_if_free(self) -> None:
        """Send a QUERY to each node online that owes a reply and was not sent one: it answers once it is free."""
        nodes = self._roster.owing.intersection(self._roster.online.values()).difference(self._questions.values())
        asked = [Message(RecordDict(), node_id, MessageType.QUERY, ttl=self._timeout) for node_id in sorted(nodes)]
        if asked:
            sent = zip(self._grid().push_messages(asked), asked, strict=True)
            self._questions |= {message_id: each.metadata.dst_node_id for message_id, each in sent if message_id}

    def _hear_late(self, debts: Collection[str]) -> None:
        """Strike off those of these debts, by message, that are paid by now, and all of a node that says it is free."""
        if not debts and not self._questions:
            return
        try:
            replies = list(self._grid().pull_messages([*debts, *self._questions]))
        except NotImplementedError:  # a grid that answers by send_and_receive alone
            return
        for reply in replies:
            message_id = reply.metadata.reply_to_message_id
            free = self._questions.pop(message_id, None)  # asked again if it has no answer
            if is_expired(reply):
                continue
            if is_unavailable(reply):
                self._roster.forgive([message_id])
                continue
            if free is None:
                self._roster.mark_answered([message_id])
                continue
            self._roster.pay(free)
            if reply.has_error() and not has_no_query(reply):
                name = next((name for name, node_id in self._roster.online.items() if node_id == free), str(free))
                words = "client %s owed a reply and answers with error %d: %s"
                log.warning(words, name, reply.error.code, one_line(str(reply.error.reason)), extra={"client": name})

    def _look(self) -> None:
        nodes = {node.node_id: node.name for node in self._grid().get_nodes()}
        self._roster.refresh(nodes, self._ask_names)
        self._quorum.met(self._roster.online)

    def _ask_names(self, node_ids: list[int]) -> dict[int, str]:
        """Return new nodes' client names.

        One that answers with an error, or without a name, is called after its node id.

        One node is asked first: if its app answers no QUERY, the others are not asked, since each would log a
        traceback.
        """
        replies: dict[int, Message] = {}
        if self._answers_query is None:
            first, node_ids = node_ids[:1], node_ids[1:]
            with quiet_simulation() as hidden:
                replies = self._query(first)
                if any(map(has_no_query, replies.values())):
                    self._answers_query = False
                    log.info("the clients' app answers no QUERY: %s", UNNAMED)
                else:
                    self._answers_query = True if replies else None
                    hidden.show()
        if self._answers_query is False:
            return {node_id: str(node_id) for node_id in (*replies, *node_ids)}
        replies |= self._query(node_ids)
        failed = {node_id: reply for node_id, reply in replies.items() if reply.has_error() and not has_no_query(reply)}
        if failed:
            node_id, reply = next(iter(failed.items()))
            log.warning(FAILED_QUERY, len(failed), node_id, str(reply.error.reason)[:500])
        return {node_id: name_in(reply) or str(node_id) for node_id, reply in replies.items()}

    def _query(self, node_ids: list[int], config: Mapping[str, Any] | None = None) -> dict[int, Message]:
        """Ask nodes for their names; return their replies by node, and note which terms they honour."""
        asked = Exchange()
        for node_id in node_ids:
            content = RecordDict() if config is None else RecordDict({CONFIG: ConfigRecord({**config, **self._fits})})
            message = Message(content, dst_node_id=node_id, message_type=MessageType.QUERY, ttl=self._timeout)
            asked.messages[str(node_id)] = message
        replies, delivered = dict[int, Message](), self.deliver(asked.messages.values())
        sender = asked.senders()  # by the ids that the grid has given the messages
        for reply in delivered:
            node = sender(reply)
            if node is not None and not is_expired(reply):
                replies.setdefault(int(node), reply)
        asked.answered = asked.heard = set(map(str, replies))
        self._note_debts(asked)
        for node_id, reply in replies.items():
            if reply.has_content() or has_no_query(reply):
                self._honours[node_id] = read_honoured(reply.content) if reply.has_content() else frozenset()
            self._sizes[node_id] = examples_in(reply.content) if reply.has_content() else 0
        return replies

    def sizes(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return how many training examples these clients say they have, of those online that say it when asked.

        A node that an operator has named was not asked for its name, so it is asked now, once.
        """
        nodes = {name: self._roster.online[name] for name in names if name in self._roster.online}
        free = set(self._roster.free)
        silent = [node_id for name, node_id in nodes.items() if node_id not in self._sizes and name in free]
        if silent and self._answers_query is not False:
            self._query(silent)
        return {name: float(size) for name, node_id in nodes.items() if (size := self._sizes.get(node_id))}

    def about(self, names: Sequence[str]) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, str]]:
        """Ask these clients what is to be agreed about their data; return what each reports, and why some cannot."""
        refused = Refusals(0)
        asked = self._ask_each(names, {CONFIG: ConfigRecord({ABOUT: True, **self._fits})})
        reported: dict[str, Mapping[str, Any]] = {}
        for name, content in asked.sort(self.deliver(asked.messages.values()), self._roster.online, refused):
            self._sizes[asked.messages[name].metadata.dst_node_id] = examples_in(content)
            try:
                reported[name] = usable_about(content)
            except ValueError as reason:
                refused.add(name, reason)
        self._note_debts(asked)
        refused.log()
        return reported, refused.reasons

    def keep_final(self, names: Sequence[str], model: Model, terms: Terms) -> Mapping[str, str]:
        """Send the final model to the clients that lack it; return each client's reason for not storing it.

        The reason is "" where it is stored; clients that did not answer in time are left out. The `terms` have the
        model's checksum as KEEP and the run's name as RUN.
        """
        said = self._ask_to_keep(names, terms)
        lacking = [name for name, reason in said.items() if reason == LACKS]
        if lacking:
            log.info("sending the final model to %s", listed(lacking))
            said |= self._ask_to_keep(lacking, terms, self._prepare(lacking, model, terms))
        return said

    def _ask_to_keep(self, names: Sequence[str], terms: Terms, sent: "OutgoingModel | None" = None) -> dict[str, str]:
        """Ask clients whether they keep a model, which they get with the question where it is `sent`."""
        refused, config = Refusals(terms.server_round), ConfigRecord({**terms.to_config(), **self._fits})
        asked = self._ask_each(names, {CONFIG: config, **({} if sent is None else {ARRAYS: sent.whole})})
        replies = self.deliver(asked.messages.values()) if sent is None else self._exchange(asked, sent)
        said = {
            name: why_not_kept(content, str(terms.others[KEEP]))
            for name, content in asked.sort(replies, self._roster.online, refused)
        }
        self._note_debts(asked)
        refused.log()
        reasons = {name: reason for name, reason in refused.reasons.items() if name in asked.messages}
        return said | reasons

    def _ask_each(self, names: Sequence[str], records: Mapping[str, Any]) -> "Exchange":
        """Return an exchange of a QUERY with these records to each of the clients."""
        nodes, asked = self._roster.online, Exchange()
        for name in names:
            asked.messages[name] = Message(RecordDict({**records}), nodes[name], MessageType.QUERY, ttl=self._timeout)
        return asked

    # Training -------------------------------------------------------------------------------------------------------

    def train(self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING) -> Trained:
        """Let these clients train the model on the terms, each on its data; vectors are `sent` to each, by record."""
        prepared = self._prepare(names, model, terms)
        self.ask_to_train(names, prepared.whole, terms, sent)
        return self.trained(self._exchange(self._training, prepared))

    def ask_to_train(
        self, names: Sequence[str], arrays: ArrayRecord, terms: Terms, sent: Mapping[str, Model] = NOTHING
    ) -> list[Message]:
        """Return a message to each of the clients, with the vectors that are `sent` next to the model, by record."""
        self.has_asked = True
        self._layout = self._method.layout_of(model_of(arrays))
        vectors = {record: record_of(each) for record, each in sent.items()}
        self._training = Exchange(terms.server_round, vectors=vectors)
        self._sent_to_train, self._work = terms.others, terms.work
        for name in names:
            asked = terms.of_client(name).to_config()
            self._training.messages[name] = self._message(MessageType.TRAIN, name, arrays, asked, vectors)
        self._training.more_sent = len(names) * self._size_of_frozen(self._layout.arrays)
        return list(self._training.messages.values())

    def trained(self, replies: Iterable[Message]) -> Trained:
        """Return what is usable of the replies to the last `ask_to_train`."""
        asked, method, refused = self._training, self._method, Refusals(self._training.server_round)
        if not asked.server_round:
            raise RuntimeError(
                "there are no messages that these could be replies to: call configure_train first, and where start and "
                "configure_train are both overridden, super().configure_train"
            )
        contents = asked.sort(replies, self._roster.online, refused)
        honours = self._honoured_by(contents)
        trained = Trained.empty(
            self._layout,
            len(contents),
            refused=refused,
            missing=asked.missing,
            second=method.second,
            borrowed=True,
        )
        more_received: dict[str, int] = {}
        for name, content in contents:
            try:
                check_honoured(self._work, honours[name])
                report = usable_metrics(reported(content), method.weighted_by_key, method.needs)
                self._warn_of_not_finite(name, reported(content), report)
                second, ignored = usable_second(content, method.second, trained.second)
                arrays = usable_arrays(content, method.arrayrecord_key, self._layout, method.second)
                trained.add(name, report, arrays, second)
                more_received[name] = self._size_of_frozen(arrays) + self._size_of_frozen(second) + ignored
            except ValueError as reason:
                refused.add(name, reason)
        kept = recalled_rows(method, trained, asked.server_round).values()
        gram = GRAM in method.requires and not method.has_second_rows
        trained.screen_borrowed(gram=gram, by_array=GRAM_BY_ARRAY in method.requires, below=[*kept])
        self._note_debts(asked)
        return replace(trained, more_sent=asked.more_sent, more_received=sum(more_received[n] for n in trained.names))

    def _honoured_by(self, contents: Sequence[tuple[str, RecordDict]]) -> dict[str, frozenset[str]]:
        """Return which terms each client honours, by its reply and by what its node answers when asked.

        A node that an operator has named was not asked for its name, so it is asked now if its reply does not say it.
        """
        nodes = {name: self._training.messages[name].metadata.dst_node_id for name, _ in contents}
        says = {name: read_honoured(content) for name, content in contents}
        silent = [nodes[name] for name, honours in says.items() if not honours and nodes[name] not in self._honours]
        if self._work and silent and self.grid is not None and self._answers_query is not False:
            self._query(silent)
        return {name: honours | self._honours.get(nodes[name], frozenset()) for name, honours in says.items()}

    # Messages of a hook of the user's own -----------------------------------------------------------------------------

    def names_of(self, messages: Iterable[Message]) -> list[str]:
        """Return the names of the clients online that messages go to, in order."""
        self._look()
        nodes = {message.metadata.dst_node_id for message in messages}
        return [name for name, node_id in self._roster.online.items() if node_id in nodes]

    def add_content(self, asked: list[Message], own: Iterable[Message], arrays: ArrayRecord) -> list[Message]:
        """Return the messages `asked`, with what the user's `own` ones to the same nodes hold beside the `arrays`."""
        config = self._method.configrecord_key
        contents = {message.metadata.dst_node_id: message.content for message in own}
        for message in asked:
            theirs = contents[message.metadata.dst_node_id]
            both = {**theirs.config_records.get(config, {}), **message.content.config_records[config]}
            others = {name: record for name, record in theirs.items() if record is not arrays}
            message.content = RecordDict({**message.content, **others, config: ConfigRecord(both)})
        return asked

    # Evaluation -----------------------------------------------------------------------------------------------------

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure."""
        sent = self._prepare(names, model, terms)
        self.ask_to_evaluate(names, sent.whole, terms, participants)
        return self.evaluated(self._exchange(self._evaluation, sent))

    def ask_to_evaluate(
        self, names: Sequence[str], arrays: ArrayRecord, terms: Terms, participants: Collection[str]
    ) -> list[Message]:
        """Return a message to each of the clients.

        A client that measures its training loss gets the user's own config values as well: it may need them to load its
        data.
        """
        self.has_asked = True
        self._evaluation = Exchange(terms.server_round)
        asked = terms.to_config()
        plain = {key: value for key, value in asked.items() if key != "measure"}
        if TRAIN_LOSS in terms.measure:
            asked = {**self._sent_to_train, **asked}
        for name in names:
            config = asked if terms.measure and name in participants else plain
            self._evaluation.messages[name] = self._message(MessageType.EVALUATE, name, arrays, config)
        if self._method.frozen:
            self._evaluation.more_sent = len(names) * self._size_of_frozen(model_of(arrays))
        return list(self._evaluation.messages.values())

    def evaluated(self, replies: Iterable[Message]) -> Replies:
        """Return what is usable of the replies to the last `ask_to_evaluate`."""
        asked, refused = self._evaluation, Refusals(self._evaluation.server_round)
        reports: Reports = {}
        for name, content in asked.sort(replies, self._roster.online, refused):
            try:
                reports[name] = usable_evaluation(reported(content), self._method.weighted_by_key)
                self._warn_of_not_finite(name, reported(content), reports[name])
            except ValueError as reason:
                refused.add(name, reason)
        self._note_debts(asked)
        return Replies(metrics=reports, refused=refused, missing=tuple(asked.missing), more_sent=asked.more_sent)

    def _warn_of_not_finite(self, client: str, metrics: MetricRecord, used: Mapping[str, float]) -> None:
        """Warn once of each metric that a client replies as no finite number, of MAX_LISTED metrics at the most."""
        for metric, value in metrics.items():
            if (
                isinstance(value, float)
                and metric not in {*used, *self._not_finite}
                and len(self._not_finite) < MAX_LISTED
            ):
                self._not_finite.add(metric)
                log.warning(
                    "client %s replies %s as %r: means and measures of fairness leave out a client without a finite "
                    "number",
                    *(client, value, one_line(metric)),
                    extra={"client": client},
                )

    def keep(self, since: int) -> None:
        """Do nothing: deployed clients store what they keep before they reply."""

    # Messages -------------------------------------------------------------------------------------------------------

    def contents(self, replies: Iterable[Message], names: Collection[str]) -> list[RecordDict]:
        """Return what these clients replied to the last question of its kind, in the order of names."""
        senders = {MessageType.TRAIN: self._training.senders(), MessageType.EVALUATE: self._evaluation.senders()}
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
        records: dict[str, Any] = {self._method.arrayrecord_key: arrays, self._method.configrecord_key: config}
        content = RecordDict({**records, **vectors})
        node_id = self._roster.online[name]
        return Message(content, dst_node_id=node_id, message_type=message_type, ttl=self._timeout)

    def deliver(self, messages: Iterable[Message]) -> list[Message]:
        """Send messages and return the replies that come in time; no messages need no grid."""
        messages = list(messages)
        if not messages:
            return []
        replies = list(self._grid().send_and_receive(messages, timeout=self._timeout))
        for reply in replies:
            if reply.has_error():  # the node may have been given another app
                self._have_frozen.pop(reply.metadata.src_node_id, None)
        return replies

    # Frozen parameters ----------------------------------------------------------------------------------------------

    def _prepare(self, names: Sequence[str], model: Model, terms: Terms) -> "OutgoingModel":
        """Return a model as Flower sends it, after asking each new node once whether it has the frozen parameters.

        Nodes that do not say so get the whole model with each message. The model that was evaluated is the one that
        trains next.
        """
        if self._sent is None or self._sent.model is not model:
            self._sent = OutgoingModel.of(model, self._method.frozen)
        nodes = [self._roster.online[name] for name in names]
        unknown = [node_id for node_id in nodes if node_id not in self._have_frozen]
        if self._sent.digest and unknown and self._answers_query is not False:
            config = {FROZEN: self._sent.digest, **({AGREED: terms.agreed} if terms.agreed else {})}
            for node_id, reply in self._query(unknown, config).items():
                theirs = frozen_digest(reply)
                self._have_frozen[node_id] = None if theirs is None else theirs == self._sent.digest
        return self._sent

    def _exchange(self, asked: "Exchange", sent: "OutgoingModel") -> list[Message]:
        """Send an exchange's messages, without the frozen parameters where a node has them; return the replies.

        A node that has lost them, such as a restarted device, replies with their digest, and gets them with a second
        message.
        """
        whole = {name: message.content for name, message in asked.messages.items()}
        contents = {name: self._fitting(message, sent) for name, message in asked.messages.items()}
        shortened = {name for name in contents if contents[name] is not whole[name] and FROZEN not in contents[name]}
        usual = sum(map(size_of_record, (sent.changing, *asked.vectors.values())))
        asked.more_sent = sum(map(size_of_arrays, contents.values())) - len(contents) * usual
        replies = self._send(asked, contents)
        sender, again, others = asked.senders(), dict[str, RecordDict](), list[Message]()
        for reply in replies:
            name = sender(reply)
            if name is not None and name in shortened and name not in again and lacks_frozen(reply):
                log.info("client %s has other frozen parameters than the global model, and is sent these", name)
                again[name] = RecordDict({**contents[name], FROZEN: sent.frozen})
            else:
                others.append(reply)
        for name in again:
            old = asked.messages[name].metadata
            asked.messages[name] = Message(RecordDict(), old.dst_node_id, old.message_type, ttl=self._timeout)
        asked.more_sent += sum(map(size_of_arrays, again.values()))
        return others + self._send(asked, again)

    def _send(self, asked: "Exchange", contents: Mapping[str, RecordDict]) -> list[Message]:
        """Send some of an exchange's messages with these contents.

        A node that answers to frozen parameters has them.
        """
        for name, content in contents.items():
            asked.messages[name].content = content
        replies = self.deliver([asked.messages[name] for name in contents])
        sender = asked.senders()
        for reply in replies:
            client = sender(reply)
            if client is not None and FROZEN in contents.get(client, {}) and reply.has_content():
                self._have_frozen[asked.messages[client].metadata.dst_node_id] = True
        return replies

    def _fitting(self, message: Message, sent: "OutgoingModel") -> RecordDict:
        """Return a message's content as its node needs it: its app may know only whole models, or the node has all."""
        content, has = message.content, self._have_frozen.get(message.metadata.dst_node_id)
        if not sent.digest or has is None:
            return content
        arrays, config = self._method.arrayrecord_key, self._method.configrecord_key
        asked = ConfigRecord({**content.config_records[config], FROZEN: sent.digest})
        return RecordDict({**content, arrays: sent.changing, config: asked, **({} if has else {FROZEN: sent.frozen})})

    def _size_of_frozen(self, arrays: Model) -> int:
        return sum(size_on_the_wire(arrays[name]) for name in self._method.frozen if name in arrays)

    def _note_debts(self, exchange: "Exchange") -> None:
        for name in exchange.missing:
            asked = exchange.messages[name].metadata
            if asked.message_id:
                self._roster.owe(asked.message_id, asked.dst_node_id, asked.created_at, asked.ttl)
        for name in exchange.heard:
            self._roster.heard(exchange.messages[name].metadata.dst_node_id)
        self._roster.mark_answered(exchange.strays)

    def _grid(self) -> Grid:
        if self.grid is None:
            raise RuntimeError("there is no grid to send messages by: configure_train has not been called")
        return self.grid


@dataclass
class Exchange:
    """The Flower messages of one phase of a round, and which were answered, by client name.

    `heard` are those of `answered` that replied themselves; the grid reports the others as gone. `strays` are the ids
    of late replies to other messages. `more_sent` counts bytes as `Replies` does. `vectors` are in each message, by
    record.
    """

    server_round: int = 0
    messages: dict[str, Message] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    heard: set[str] = field(default_factory=set)
    strays: set[str] = field(default_factory=set)
    more_sent: int = 0
    vectors: Mapping[str, ArrayRecord] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """The clients that were sent a message and did not answer, in the order of names."""
        return sorted(set(self.messages) - self.answered)

    def sort(
        self, replies: Iterable[Message], online: Mapping[str, int], refused: Refusals
    ) -> list[tuple[str, RecordDict]]:
        """Return client name and content of each reply to this exchange, in the order of names; refuse the others."""
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
                if not is_unavailable(reply):
                    self.heard.add(name)
                if reply.has_error():
                    refused.add(name, f"error {reply.error.code}: {reply.error.reason}")
                    continue
                contents[name] = reply.content
        return sorted(contents.items())

    def senders(self) -> Callable[[Message], str | None]:
        """Return a look-up of the client whose message a reply answers, None for a message of another round.

        It goes by message id, since Flower reports a lost node with the server's id; without one, it goes by node id.
        """
        sent = {(m.metadata.message_id or m.metadata.dst_node_id): name for name, m in self.messages.items()}
        return lambda reply: sent.get(reply.metadata.reply_to_message_id or reply.metadata.src_node_id)


@dataclass(frozen=True)
class OutgoingModel:
    """A model as it is sent: `whole`, the arrays that a round may change, and the frozen ones with their digest."""

    model: Model
    whole: ArrayRecord
    changing: ArrayRecord
    frozen: ArrayRecord
    digest: str

    @classmethod
    def of(cls, model: Model, frozen: Collection[str]) -> "OutgoingModel":
        """Return a model, of which these parameters are frozen, as it is sent."""
        named, whole = frozenset(frozen), record_of(model)
        changing = ArrayRecord({name: array for name, array in whole.items() if name not in named})
        digest = digest_arrays({name: model[name] for name in named}) if named else ""
        return cls(model, whole, changing, ArrayRecord({name: whole[name] for name in model if name in named}), digest)


def frozen_digest(reply: Message) -> str | None:
    """Return the digest that a client says its frozen parameters have, None where it says nothing that can be one."""
    client = reply.content.config_records.get(CLIENT, ConfigRecord()) if reply.has_content() else ConfigRecord()
    said = client.get(FROZEN)
    return said if isinstance(said, str) else None


def lacks_frozen(reply: Message) -> bool:
    """Return whether a reply asks for the frozen parameters: it has their digest, and no arrays or metrics."""
    if not reply.has_content():
        return False
    work = reply.content.array_records or reply.content.metric_records
    return not work and frozen_digest(reply) is not None


def size_of_arrays(content: RecordDict) -> int:
    """Return the bytes of all arrays of a content."""
    return sum(map(size_of_record, content.array_records.values()))


def size_of_record(arrays: ArrayRecord) -> int:
    """Return the bytes of the arrays of a record."""
    return sum(len(array.data) for array in arrays.values())


def name_in(reply: Message) -> str:
    """Return the name that a client gives itself in its answer to a QUERY, "" where there is none that can be used.

    It stands in logs and tables, so it has printable characters alone, and not too many.
    """
    client = reply.content.config_records.get(CLIENT) if reply.has_content() else None
    name = str(client[NAME]) if client and client.get(NAME) else ""
    if is_usable_name(name):
        return name
    if name:
        words = "the client of node %d calls itself %s: a name has printable characters, at most %d; it is called by %s"
        node = reply.metadata.src_node_id
        log.warning(words, node, one_line(name[:LONGEST_NAME]), LONGEST_NAME, "its node's number")
    return ""


def examples_in(content: RecordDict) -> int:
    """Return how many training examples a client says it has in its answer to a QUERY, 0 where that is no number."""
    said = content.config_records.get(CLIENT, ConfigRecord()).get(NUM_EXAMPLES)
    return said if type(said) is int and 1 <= said <= LARGEST_COUNT else 0


def read_honoured(content: RecordDict) -> frozenset[str]:
    """Return the terms of local work on which a client says that it acts."""
    keys = content.config_records.get(CLIENT, ConfigRecord()).get(HONOURS)
    return frozenset(map(str, keys)) if isinstance(keys, list) else frozenset()


def check_honoured(work: Mapping[str, Any], honours: Collection[str]) -> None:
    """Raise ValueError, with the remedy, where a client does not say that it acts on all terms of its local work."""
    lacking = [key for key in work if key not in honours]
    if lacking:
        terms = ", ".join(f"{key} = {work[key]}" for key in lacking)
        raise ValueError(
            f"it does not support {terms}, which the method requires: a client that acts on it lists "
            f"{', '.join(map(repr, lacking))} under {HONOURS!r} in its answer to QUERY; else {advice_on(lacking)}"
        )


def is_expired(reply: Message) -> bool:
    """Return whether a reply is the grid's word that no answer came in time."""
    return not reply.has_content() and reply.error.code in EXPIRED


def is_unavailable(reply: Message) -> bool:
    """Return whether a reply is the grid's word that the node is offline."""
    return not reply.has_content() and reply.error.code == 5  # Flower's code for a node that is offline


def has_no_query(reply: Message) -> bool:
    """Return whether a reply is the error of an app that answers no QUERY."""
    return reply.has_error() and any(words in str(reply.error.reason) for words in NO_QUERY)


class Hidden(logging.Filter):
    """Hides what Flower's simulation logs, as errors with a traceback, about an app that answers no QUERY."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[logging.LogRecord] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is shown."""
        text = record.getMessage()
        hides = any(words in text for words in (*NO_QUERY, "An exception was raised when processing a message by"))
        if hides:
            self._records.append(record)
        return not hides

    def show(self) -> None:
        """Show what was hidden: it was about something else."""
        for record in self._records:
            FLOWER.callHandlers(record)
        self._records = []


@contextmanager
def quiet_simulation() -> Iterator[Hidden]:
    """Hide what Flower's simulation, which may run in this process, logs meanwhile about an unanswered QUERY."""
    hidden = Hidden()
    FLOWER.addFilter(hidden)
    try:
        yield hidden
    finally:
        FLOWER.removeFilter(hidden)


def record_of(model: Model) -> ArrayRecord:
    """Return a model's arrays as Flower sends them."""
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def model_of(arrays: ArrayRecord) -> Model:
    """Return the arrays of a model that came from Flower, without a copy and read-only."""
    return {name: view(array) for name, array in arrays.items()}


def reported(content: RecordDict) -> MetricRecord:
    """Return the metrics of a reply."""
    record: MetricRecord = _only(content.metric_records, METRICS, "MetricRecord")
    return record


def usable_about(content: RecordDict) -> Mapping[str, Any]:
    """Return what a client reports of its data; raise ValueError where that is nothing, too much, or no JSON object."""
    text = content.config_records.get(CLIENT, ConfigRecord()).get(ABOUT)
    if not isinstance(text, str):
        raise ValueError("it reports nothing about its data")
    if len(text) > MAX_ABOUT_CHARACTERS:
        raise ValueError(f"it reports {len(text)} characters about its data: {MAX_ABOUT_CHARACTERS} are the most")
    try:
        reported = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"what it reports about its data is no JSON: {error}") from error
    if not isinstance(reported, dict):
        raise ValueError(f"what it reports about its data is a JSON {type(reported).__name__}, not an object")
    return reported


def why_not_kept(content: RecordDict, checksum: str) -> str:
    """Return why a client does not keep the model with this checksum, as it says; "" where it does."""
    about = content.config_records.get(CLIENT, ConfigRecord())
    if reason := about.get(KEEPS_NONE):
        return f"{one_line(str(reason))}, so it keeps no models"
    if not isinstance(about.get(KEPT), str):
        return "its app does not know of kept models: upgrade fairbloom there, or leave it without"
    return "" if about[KEPT] == checksum else LACKS


def usable_arrays(content: RecordDict, key: str, layout: Layout, second: str = "") -> Model:
    """Return a reply's arrays, if their names, shapes and kinds of dtype are the model's.

    The record may have another name than `key`, if it is the only one apart from that of a `second` model.
    """
    return _readable(_only(content.array_records, key, "ArrayRecord", second), layout)


def usable_second(content: RecordDict, record: str, into: Updates | None) -> tuple[Model, int]:
    """Return the second model of a reply, checked as a first one is, and the bytes of arrays that are ignored.

    Of a record that is no snapshot, arrays that are no part of an update are ignored.
    """
    if into is None:
        return {}, 0
    if record not in content.array_records:
        raise MissingSecondError(record)
    received, layout = content.array_records[record], into.layout
    used = {name: array for name, array in received.items() if record == SNAPSHOT or name in layout.arrays}
    try:
        arrays = _readable(used, layout)
    except ValueError as error:
        raise ValueError(f"ArrayRecord {record!r}: {error}") from error
    return arrays, sum(len(array.data) for name, array in received.items() if name not in used)


def _readable(record: Mapping[str, Array], layout: Layout) -> Model:
    """Return the arrays of a record, if their names, shapes and kinds of dtype are those of a layout."""
    arrays = {}
    for name, array in record.items():
        try:
            arrays[name] = view(array)
        except Exception as error:  # nothing bounds what a client's bytes make NumPy raise
            raise ValueError(f"array {name!r} can't be read: {error}") from error
    if (mismatch := layout.mismatch(arrays)) is not None:
        raise ValueError(mismatch)
    return arrays


def view(array: Array) -> NDArray[Any]:
    """Return the values of a Flower Array, read-only: its bytes are a file as numpy.save writes it.

    They are a copy only where their byte order is not this machine's.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError(f"serialised as {array.stype!r}, not as 'numpy.ndarray'")
    file = BytesIO(array.data)
    if read_magic(file) == (1, 0):
        shape, fortran, dtype = read_array_header_1_0(file)
    else:
        shape, fortran, dtype = read_array_header_2_0(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    values = np.frombuffer(array.data, dtype, offset=file.tell())
    return values.astype(dtype.newbyteorder("="), copy=False).reshape(shape, order="F" if fortran else "C")


def _only(records: Mapping[str, Any], key: str, kind: str, second: str = "") -> Any:
    """Return the record named `key`, or the only one there is: foreign clients choose its name."""
    if key in records:
        return records[key]
    others = [record for name, record in records.items() if name not in (SNAPSHOT, second)]
    if len(others) != 1:
        raise ValueError(f"{kind} {key!r} is missing")
    return others[0]
