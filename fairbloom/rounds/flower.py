"""Clients behind a Flower grid: messages to them, and their replies.

With `records`, the only file of this package that imports Flower.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fairbloom.errors import FairbloomError, join_names
from fairbloom.flower import SimulationError
from fairbloom.logs import log, log_from
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.advice import ADVICE, OLDER_APP, SECURE_AGGREGATION
from fairbloom.protocol.codec import digest_arrays
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.names import (
    ACCURACY_DEVIATION,
    FROZEN,
    LOSS,
    LOSS_DEVIATION,
    MODEL_MADE,
    PROTOCOL,
    RUN_FOLDER,
    TRAIN_LOSS,
)
from fairbloom.protocol.terms import Terms
from fairbloom.system.deadline import Deadline

from .aggregation import screen_updates
from .arrays import Model
from .clients import NOTHING, Replies, Reports, TrainReplies
from .courier import Courier, courier_of
from .layout import Layout
from .method import Method
from .quorum import Quorum, note_nothing
from .records import (
    check_rounded,
    check_supported,
    claims_impossible_account,
    has_no_query,
    has_zero_rate,
    holds_frozen,
    is_expired,
    message_of,
    model_of,
    read_account,
    read_arrays,
    read_context_state,
    read_examples,
    read_metrics,
    read_missing,
    read_name,
    read_second,
    read_supported,
    record_of,
    size_of,
)
from .refusals import Refusals, one_line
from .roster import Roster
from .screening import usable_evaluation, usable_metrics

# Seconds between two queries of the nodes online while too few clients are.
WAIT_SECONDS = 0.5

# How long a user's own ServerApp waits for clients that are online and owe no reply, if none has
# answered.
PATIENCE_SECONDS = 3600.0

# Words of another app that cannot answer our messages, in its error, and the remedy.
OTHER_APPS = {"secaggplus_configs": SECURE_AGGREGATION, "fitins.parameters": OLDER_APP}

# The consequence of an app that answers no QUERY, and the remedy.
UNNAMED = (
    "clients are named by their node ids, so a seed does not determine which are drawn; for names,"
    f" {ADVICE}"
)

# A warning: the client's name, or its node id.
IMPOSSIBLE_ACCOUNT = (
    "client %s says of its privacy account what none has, so it counts as a client without one: if"
    " it is yours, look at its owner's log; else revoke it"
)

# A warning: how many nodes, one of them, and its reason.
FAILED_QUERY = (
    "%d nodes fail when they are asked for their name. They are named by their node ids, so a seed"
    " does not determine which are drawn. Node %d reports: %s. Mods of ClientApp(mods=[...]) run on"
    " QUERY too, and many refuse a message without arrays: give them to @app.train(mods=[...]), or"
    " to fair(..., mods=[...])"
)


# A warning about a continued run; nodes are those of stock Flower.
LOST_STATES = (
    "this run continues an earlier one, and %s, because these nodes keep it for one flwr run only:"
    " the run does not end like an uninterrupted one"
)


class FlowerClients:
    """The nodes behind a grid, as clients.

    `train` and `evaluate` send messages and read the replies. Flower's hooks do both halves one by
    one: `write_train_messages`, `read_train_replies`, `write_evaluate_messages`,
    `read_evaluate_replies`.

    Parameters
    ----------
    grid
        Carries the messages; it may be given later.
    timeout
        Seconds that clients have to reply; messages live no longer. None: Flower's limit. The
        attribute may be changed from round to round.
    quorum
        How many must be online, and how long a round waits for them. None: as many as a round asks
        for, until the timeout.
    protocol
        The version that every message with content names. None: no version, because the clients'
        app may be a user's own.
    keys
        Further keys and values in the config of every message with content.
    """

    def __init__(
        self,
        method: Method,
        grid: Grid | None = None,
        timeout: float | None = None,
        quorum: Quorum | None = None,
        *,
        protocol: int | None = None,
        keys: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.courier = None if grid is None else courier_of(grid)
        self._keys: dict[str, Any] = {**keys}
        if protocol is not None:
            self._keys[PROTOCOL] = protocol
        self._method = method
        self.timeout = timeout
        self._quorum = quorum or Quorum(
            PATIENCE_SECONDS,
            method.training_clients,
            setting="min_available_nodes",
            on_wait=note_nothing if self.courier is None else self.courier.note_wait,
        )
        self._roster = Roster(self._quorum.clock)
        self._layout = Layout({})
        self._training = Exchange()
        self._evaluation = Exchange()
        # The ids of the messages that were answered at the last delivery.
        self._delivered = set[str]()
        self._answers_query: bool | None = None  # None before a node has answered
        # The clients with a state of their context that their node keeps for one run only.
        self.with_state = set[str]()
        # In a continued run, those that had such a state, until their loss is logged.
        self.lost_states: frozenset[str] | None = None
        self._digest = ""  # of the model's frozen parameters, once it is known

    @property
    def simulated(self) -> bool:
        """Whether the nodes are those of Flower's simulation, which gets no further ones."""
        return self.courier is not None and self.courier.simulated

    @property
    def form(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Nothing of the examples is known: {}."""
        return {}

    def announce(self, made: str) -> None:
        """Send each client with every model how it is made."""
        self._keys[MODEL_MADE] = made

    # Clients online -------------------------------------------------------------------------------

    def online(self, fewest: int) -> Sequence[str]:
        """Wait for `fewest` clients until the timeout; return the names of all that are online."""
        self._refresh_nodes()
        while not self._quorum.is_met(self._roster.online):
            self._look_again()
        remedy = "lower min_available_nodes, min_train_nodes or min_evaluate_nodes"
        most = self._carrier().most_nodes
        if most is not None and most < fewest:
            raise SimulationError(most, fewest, remedy, in_process=True)
        deadline = Deadline.after(self.timeout, self._quorum.clock.monotonic)
        before = 0
        while (online := len(self._roster.online)) < fewest and not deadline.is_over:
            if self.simulated and online == before > 0:
                raise SimulationError(online, fewest, remedy)
            before = online
            log.info("waiting for clients: %d of %d are online", online, fewest)
            self._look_again()
        return list(self._roster.online)

    def free(self) -> Sequence[str]:
        """Return the names of the clients online that owe no reply, in order.

        Late replies are collected first. A grid may also know which clients are idle again, though
        their replies came too late to be kept.
        """
        if owed := self._roster.pending:
            courier = self._carrier()
            with suppress(NotImplementedError):  # a grid that only has send_and_receive
                late = [reply for reply in courier.pull_messages(owed) if not is_expired(reply)]
                self._roster.clear(reply.metadata.reply_to_message_id for reply in late)
            self._roster.clear(set(owed).difference(courier.find_owed(owed)))
        return self._roster.free

    def wait_until_free(self, fewest: int) -> None:
        """Wait until this many training clients are online and owe nothing.

        Raises
        ------
        QuorumError
            When the wait takes longer than the quorum's patience.
        """
        of_training = min(fewest, len(self._method.training_clients) or fewest)
        while (
            not self._quorum.is_met_by_free(self.free(), of_training)
            or len(self._roster.online) < fewest
        ):
            self._look_again()

    @property
    def accounts(self) -> Mapping[str, AccountStatus]:
        """The privacy accounts of clients online that have one, by their answers to QUERY."""
        return {
            name: account
            for name, node_id in self._roster.online.items()
            if (account := self._roster.nodes[node_id].account)
        }

    def _look_again(self) -> None:
        self._quorum.clock.sleep(WAIT_SECONDS)
        self._refresh_nodes()

    def _refresh_nodes(self) -> None:
        nodes = {node.node_id: node.name for node in self._carrier().get_nodes()}
        self._roster.refresh(nodes, self._ask_names)
        self._quorum.observe(self._roster.online)

    def _ask_names(self, node_ids: list[int]) -> dict[int, str]:
        """Return new nodes' client names.

        A node that answers with an error, or without a name, gets its node id as its name.
        """
        replies: dict[int, Message] = {}
        if self._answers_query is None:
            # One node first: if its app answers no QUERY, the others would each log a traceback.
            with log_from(logging.CRITICAL):  # Flower's simulation logs what its apps raise
                replies = self._query(node_ids[:1])
            node_ids = node_ids[1:]
            if any(map(has_no_query, replies.values())):
                self._answers_query = False
                log.info("the clients' app answers no QUERY: %s", UNNAMED)
            elif replies:
                self._answers_query = True
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
        return {node_id: read_name(reply) or str(node_id) for node_id, reply in replies.items()}

    def _query(self, node_ids: list[int]) -> dict[int, Message]:
        """Ask nodes for their names.

        Return their replies by node, and note their supported terms and examples.
        """
        exchange = Exchange(
            messages={
                str(node_id): Message(RecordDict(), node_id, MessageType.QUERY, ttl=self.timeout)
                for node_id in node_ids
            }
        )
        replies: dict[int, Message] = {}
        delivered = self.deliver(exchange.messages.values())
        find_sender = exchange.senders()  # after delivery: the grid sets the messages' ids
        for reply in delivered:
            name = find_sender(reply)
            if name is not None and not is_expired(reply):
                replies.setdefault(int(name), reply)
        exchange.answered = set(map(str, replies))
        self._note_pending(exchange)
        for node_id, reply in replies.items():
            node = replace(self._roster.nodes[node_id], examples=0, refusal="", fault="")
            if reply.has_content():
                if claims_impossible_account(reply.content):
                    log.warning(IMPOSSIBLE_ACCOUNT, read_name(reply) or node_id)
                node = replace(
                    node,
                    terms=read_supported(reply.content),
                    examples=read_examples(reply.content),
                    missing=read_missing(reply.content),
                    account=read_account(reply.content),
                )
            elif has_no_query(reply):
                node = replace(node, terms=frozenset())
            elif reply.error.code == ErrorCode.INVALID_FAB:
                node = replace(node, examples=None, refusal=one_line(str(reply.error.reason)))
            else:
                node = replace(node, fault=one_line(str(reply.error.reason)))
            self._roster.nodes[node_id] = node
        return replies

    def sizes(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return the training examples that online clients report.

        A node that an operator has named was not asked for its name, so it is asked now, once; and
        one whose privacy account is halted, each time.
        """
        nodes = {name: self._roster.online[name] for name in names if name in self._roster.online}
        free = set(self._roster.free)
        halted = self._method.run_state.halted
        silent = [
            node_id
            for name, node_id in nodes.items()
            if name in free and (name in halted or self._roster.nodes[node_id].examples is None)
        ]
        if silent and self._answers_query is not False:
            self._query(silent)
        return {
            name: float(examples)
            for name, node_id in nodes.items()
            if (examples := self._roster.nodes[node_id].examples)
        }

    @property
    def missing_rows(self) -> Mapping[str, int]:
        """How many fewer rows than before clients online have, of those with fewer."""
        return {
            name: missing
            for name, node_id in self._roster.online.items()
            if (missing := self._roster.nodes[node_id].missing)
        }

    @property
    def refusing(self) -> Mapping[str, str]:
        """Why clients online have refused the run when they were asked for their examples."""
        return {
            name: reason
            for name, node_id in self._roster.online.items()
            if (reason := self._roster.nodes[node_id].refusal)
        }

    @property
    def unable(self) -> Mapping[str, str]:
        """Why clients online cannot take part: they refuse the run, or could not answer."""
        return {
            name: reason
            for name, node_id in self._roster.online.items()
            if (reason := self._roster.nodes[node_id].refusal or self._roster.nodes[node_id].fault)
        }

    def _read_contents(
        self, exchange: "Exchange", replies: Iterable[Message], refused: Refusals
    ) -> list[tuple[str, RecordDict]]:
        """Return client and content of each reply, in the order of names.

        Note who owes a reply, who has the frozen arrays, and the privacy accounts.
        """
        contents = exchange.sort(replies, self._roster.online, refused)
        for name, content in contents:
            node_id = exchange.messages[name].metadata.dst_node_id
            node = self._roster.nodes[node_id]
            if account := read_account(content):
                exchange.accounts[name] = account
            self._roster.nodes[node_id] = replace(
                node, has_frozen=node.has_frozen or holds_frozen(content, self._digest)
            )
        self._note_pending(exchange)
        reasons = refused.reasons
        if reasons and not contents:  # all of them: an error of one client must not end the run
            if refused.with_code(ErrorCode.UNKNOWN_TERM) >= reasons.keys():
                raise FairbloomError(f"the clients refuse: {next(iter(reasons.values()))}")
            for record, advice in OTHER_APPS.items():
                if all(record in reason for reason in reasons.values()):
                    raise FairbloomError(advice)
        return contents

    # Training -------------------------------------------------------------------------------------

    def train(
        self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING
    ) -> TrainReplies:
        """Train the model on each of these clients, on the given terms.

        `sent` holds the vectors that each client gets in addition, by record.
        """
        self.write_train_messages(names, record_of(model), terms, sent)
        self._leave_out_frozen(self._training, model)
        return self.read_train_replies(self.deliver(self._training.messages.values()))

    def write_train_messages(
        self,
        names: Sequence[str],
        arrays: ArrayRecord,
        terms: Terms,
        sent: Mapping[str, Model] = NOTHING,
    ) -> list[Message]:
        """Return a message to each client, with the `sent` vectors by record."""
        self._layout = self._method.layout_of(model_of(arrays))
        vectors = {record: record_of(vector) for record, vector in sent.items()}
        self._training = Exchange(terms)
        # By the answers to QUERY; others may declare terms in their replies.
        supported = [self._roster.nodes[self._roster.online[name]].terms for name in names]
        if terms.server_round == 1 and self._method.unused_rounds and all(supported):
            check_supported(terms.work, frozenset[str]().union(*filter(None, supported)))
        arrays = message_of(arrays, self._layout, terms.codec)
        for name in names:
            self._training.messages[name] = self._message(
                MessageType.TRAIN, name, arrays, terms.of_client(name).to_config(), vectors
            )
        return list(self._training.messages.values())

    def read_train_replies(self, replies: Iterable[Message]) -> TrainReplies:
        """Return the usable replies to the last `write_train_messages`."""
        exchange = self._training
        method = self._method
        terms = exchange.terms
        refused = Refusals(terms.server_round)
        if not terms.server_round:
            raise RuntimeError(
                "there are no messages that these could be replies to: call configure_train first;"
                " your own calls super().configure_train and changes what that returns"
            )
        contents = self._read_contents(exchange, replies, refused)
        self._note_states_of_contexts(contents)
        work = terms.work
        supported = self._find_supported_terms(contents, work)
        trained = TrainReplies.empty(
            self._layout, refused=refused, missing=exchange.missing, second=method.second
        )
        for name, content in contents:
            try:
                check_supported(work, supported[name])
                report = usable_metrics(read_metrics(content), method.weighted_by_key, method.needs)
                if terms.codec.rounds_updates:
                    check_rounded(report)
                second = read_second(content, method.second, trained.second, terms.codec)
                trained.add(
                    name,
                    report,
                    read_arrays(
                        content,
                        method.arrayrecord_key,
                        self._layout,
                        terms.codec,
                        method.second,
                    ),
                    second,
                )
            except ValueError as reason:
                refused.add(name, reason)
        screen_updates(method, trained, terms.server_round)
        return replace(
            trained,
            bytes_sent=exchange.bytes_sent,
            sizes={name: size_of(content) for name, content in contents},
            accounts=exchange.accounts,
            at_rest=frozenset(name for name, content in contents if has_zero_rate(content)),
        )

    def _note_states_of_contexts(self, contents: Sequence[tuple[str, RecordDict]]) -> None:
        """Note which clients have a state; in a continued run, log once which were lost."""
        if RUN_FOLDER not in self._keys or not contents:
            return
        stated = {name: read_context_state(content) for name, content in contents}
        self.with_state |= {name for name, has_state in stated.items() if has_state}
        if self.lost_states is None:
            return
        lost = sorted(self.lost_states & stated.keys())
        silent = [name for name, has_state in stated.items() if has_state is None]
        if lost:
            log.warning(LOST_STATES, f"the state of {join_names(lost)} in context.state is lost")
        elif silent:
            log.warning(
                LOST_STATES, f"what {join_names(silent)} may have kept in context.state is lost"
            )
        if lost or silent:
            self.lost_states = None

    def _find_supported_terms(
        self, contents: Sequence[tuple[str, RecordDict]], work: Mapping[str, Any]
    ) -> dict[str, frozenset[str]]:
        """Return the terms that each client supports, by its reply and its node's answer to QUERY.

        A node that an operator has named was not asked for its name, so it is asked now if its
        reply does not declare them.
        """
        nodes = {name: self._training.messages[name].metadata.dst_node_id for name, _ in contents}
        declared = {name: read_supported(content) for name, content in contents}
        silent = [
            nodes[name]
            for name, terms in declared.items()
            if not terms and self._roster.nodes[nodes[name]].terms is None
        ]
        if work and silent and self.courier is not None and self._answers_query is not False:
            self._query(silent)
        return {
            name: terms | (self._roster.nodes[nodes[name]].terms or frozenset())
            for name, terms in declared.items()
        }

    # Evaluation -----------------------------------------------------------------------------------

    def evaluate(
        self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]
    ) -> Replies:
        """Evaluate the model on each of these clients.

        Only `participants` report the metrics in `terms.measure`.
        """
        self.write_evaluate_messages(names, record_of(model), terms, participants)
        self._leave_out_frozen(self._evaluation, model)
        return self.read_evaluate_replies(self.deliver(self._evaluation.messages.values()))

    def probe(self, names: Sequence[str], model: Model, terms: Terms) -> Replies:
        """Return the training losses of these clients at a model, which the method reads."""
        return self.evaluate(names, model, terms, names)

    def write_evaluate_messages(
        self, names: Sequence[str], arrays: ArrayRecord, terms: Terms, participants: Collection[str]
    ) -> list[Message]:
        """Return a message to each of the clients."""
        self._evaluation = Exchange(terms)
        arrays = message_of(arrays, self._method.layout_of(model_of(arrays)), terms.codec)
        measuring = terms.to_config()
        plain = {key: value for key, value in measuring.items() if key != "measure"}
        if TRAIN_LOSS in terms.measure:
            # A client may need the user's own config values to load its training data.
            measuring = {**self._training.terms.others, **measuring}
        for name in names:
            config = measuring if terms.measure and name in participants else plain
            self._evaluation.messages[name] = self._message(
                MessageType.EVALUATE, name, arrays, config
            )
        return list(self._evaluation.messages.values())

    def read_evaluate_replies(self, replies: Iterable[Message]) -> Replies:
        """Return the usable replies to the last `write_evaluate_messages`."""
        exchange = self._evaluation
        refused = Refusals(exchange.terms.server_round)
        reports: Reports = {}
        not_finite: dict[str, float] = {}
        weight_key = self._method.weighted_by_key
        for name, content in self._read_contents(exchange, replies, refused):
            try:
                record = read_metrics(content)
                reports[name] = usable_evaluation(record, weight_key)
                if LOSS in record and (account := exchange.accounts.get(name)):
                    reports[name] |= {
                        ACCURACY_DEVIATION: account.accuracy_deviation,
                        LOSS_DEVIATION: account.loss_deviation,
                    }
                not_finite |= {
                    metric: value
                    for metric, value in record.items()
                    if isinstance(value, float) and not math.isfinite(value)
                }
            except ValueError as reason:
                refused.add(name, reason)
        return Replies(
            metrics=reports,
            refused=refused,
            missing=tuple(exchange.missing),
            bytes_sent=exchange.bytes_sent,
            not_finite=not_finite,
            accounts=exchange.accounts,
        )

    def keep(self, since: int) -> None:
        """Do nothing: deployed clients store their state before they reply."""

    # Messages -------------------------------------------------------------------------------------

    def contents(self, replies: Iterable[Message], names: Collection[str]) -> list[RecordDict]:
        """Return the contents of these clients' replies to the last messages, by name."""
        senders = {
            MessageType.TRAIN: self._training.senders(),
            MessageType.EVALUATE: self._evaluation.senders(),
        }
        contents: dict[str, RecordDict] = {}
        for reply in replies:
            name = senders[reply.metadata.message_type](reply)
            if name is not None and name in names and name not in contents and reply.has_content():
                contents[name] = reply.content
        return [contents[name] for name in sorted(contents)]

    def _message(
        self,
        message_type: str,
        name: str,
        arrays: ArrayRecord,
        config: Mapping[str, Any],
        vectors: Mapping[str, ArrayRecord] = MappingProxyType({}),
    ) -> Message:
        records: dict[str, Any] = {
            self._method.arrayrecord_key: arrays,
            self._method.configrecord_key: ConfigRecord({**config, **self._keys}),
        }
        return Message(
            RecordDict({**records, **vectors}),
            dst_node_id=self._roster.online[name],
            message_type=message_type,
            ttl=self.timeout,
        )

    def deliver(self, messages: Iterable[Message]) -> list[Message]:
        """Send messages and return the replies that come in time."""
        messages = list(messages)
        if not messages:
            return []  # before a grid is needed
        replies = list(self._carrier().send_and_receive(messages, timeout=self.timeout))
        self._delivered = {
            reply.metadata.reply_to_message_id for reply in replies if not is_expired(reply)
        }
        for reply in replies:
            if reply.has_error():  # perhaps because it lacks the frozen parameters
                node_id = reply.metadata.src_node_id
                self._roster.nodes[node_id] = replace(self._roster.nodes[node_id], has_frozen=False)
        return replies

    # Frozen parameters ----------------------------------------------------------------------------

    def _leave_out_frozen(self, exchange: "Exchange", model: Model) -> None:
        """Leave the frozen parameters out of the messages to nodes that have the same ones.

        Each message names their digest. The first message to a node has all arrays, and its reply
        names the digest of what the node holds then. A node that has lost them replies with an
        error to a message without them, and the next message has all.

        A client with a privacy account gets all arrays each time: a message that is asked again
        after a restart must have the same words, so that its reply is not charged again.
        """
        if not self._method.frozen:
            return
        frozen = frozenset(self._method.frozen)
        self._digest = self._digest or digest_arrays({name: model[name] for name in frozen})
        arrays = self._method.arrayrecord_key
        config = self._method.configrecord_key
        accounts = self._method.run_state.accounts
        for name, message in exchange.messages.items():
            content = message.content
            whole = content.array_records[arrays]
            named = ConfigRecord({**content.config_records[config], FROZEN: self._digest})
            message.content = RecordDict({**content, config: named})
            has_frozen = self._roster.nodes[message.metadata.dst_node_id].has_frozen
            if has_frozen and name not in accounts:
                message.content[arrays] = ArrayRecord(
                    {name: array for name, array in whole.items() if name not in frozen}
                )

    def _note_pending(self, exchange: "Exchange") -> None:
        for name in exchange.missing:
            sent = exchange.messages[name].metadata
            # A reply that was delivered and is missing here was held back by a hook.
            if sent.message_id and sent.message_id not in self._delivered:
                self._roster.expect_reply(
                    sent.message_id, sent.dst_node_id, sent.created_at, sent.ttl
                )
        for name in exchange.answered:
            self._roster.reset_backoff(exchange.messages[name].metadata.dst_node_id)
        self._roster.clear(exchange.strays)

    def _carrier(self) -> Courier:
        if self.courier is None:
            raise RuntimeError(
                "there is no grid to send messages by: configure_train has not been called"
            )
        return self.courier


@dataclass
class Exchange:
    """The Flower messages of one phase of a round, and which were answered, by client name.

    Messages that were sent without terms have the defaults, of round 0. `strays` are the ids of
    late replies to other messages, and `accounts` the statuses of privacy accounts in the replies.
    """

    terms: Terms = field(default_factory=lambda: Terms(server_round=0))
    messages: dict[str, Message] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    strays: set[str] = field(default_factory=set)
    accounts: dict[str, AccountStatus] = field(default_factory=dict)

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
        find_sender = self.senders()
        contents: dict[str, RecordDict] = {}
        for reply in replies:
            name = find_sender(reply)
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
                    code = reply.error.code
                    refused.add(name, f"error {code}: {reply.error.reason}", code)
                else:
                    contents[name] = reply.content
        return sorted(contents.items())

    def senders(self) -> Callable[[Message], str | None]:
        """Return a function that maps a reply to its client, a reply of another round to None."""
        # By message id, because Flower reports a lost node with the server's id; by node id if the
        # messages have no ids.
        sent = {
            (message.metadata.message_id or message.metadata.dst_node_id): name
            for name, message in self.messages.items()
        }
        return lambda reply: sent.get(
            reply.metadata.reply_to_message_id or reply.metadata.src_node_id
        )
