"""The nodes of a run: which are online, what they have reported, and which owe a reply."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from fairbloom.logs import log
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.system.deadline import Clock, Deadline

# The longest pause, in seconds, before a node that never answers gets a message again, unless
# messages live longer.
LONGEST_PAUSE = 86400.0


@dataclass(frozen=True)
class Node:
    """What is known of a node, by its replies.

    `claim` is the name that it gave when it came online, "" if it gave none. The `terms` of local
    work that it supports and the number of its training `examples`, 0 if it reports none, are None
    before it was asked. A device's data have `missing` fewer rows than before. `refusal` is why it
    refuses the run, which its owner may end, and `fault` the error that it answered with, such as
    that its data do not fit the schema. `has_frozen` says
    whether it holds all frozen parameters of the run's model. It has left `missed` messages
    unanswered since its last reply.
    """

    claim: str = ""
    terms: frozenset[str] | None = None
    examples: int | None = None
    missing: int = 0
    refusal: str = ""
    fault: str = ""
    account: AccountStatus | None = None
    has_frozen: bool = False
    missed: int = 0


class Roster:
    """The nodes of a run by id, and the clients online by name, across rounds.

    A node's name is the one that an operator registered with its key; else the one that the node
    gave when it was first asked; else its node id. If several nodes claim the same name, the one
    that had it first keeps it while it is online.

    A client that owes a reply gets no message before it has answered, though too late, or its time
    is over: the life of the message and as much again, which doubles with each further message that
    it leaves unanswered.
    """

    def __init__(self, clock: Clock) -> None:
        self.nodes = defaultdict[int, Node](Node)
        # Node ids by client name, in ascending order of names.
        self.online: Mapping[str, int] = {}
        self._clock = clock
        # by message id: the node that owes a reply, and until when it is awaited
        self._pending: dict[str, tuple[int, Deadline]] = {}

    @property
    def pending(self) -> list[str]:
        """The ids of messages that are neither answered nor expired."""
        self._pending = {
            message_id: (node_id, deadline)
            for message_id, (node_id, deadline) in self._pending.items()
            if not deadline.is_over
        }
        return list(self._pending)

    @property
    def pending_nodes(self) -> set[int]:
        """The nodes that owe a reply."""
        return {self._pending[message_id][0] for message_id in self.pending}

    @property
    def free(self) -> list[str]:
        """The names of clients online that owe no reply, in ascending order."""
        pending = self.pending_nodes
        return [name for name, node_id in self.online.items() if node_id not in pending]

    def expect_reply(self, message_id: str, node_id: int, made: float, lives: float) -> None:
        """Note that a node has not answered a message made at a Unix time that `lives` seconds."""
        node = self.nodes[node_id]
        self.nodes[node_id] = replace(node, missed=node.missed + 1)
        pause = min(lives * 2.0 ** min(node.missed, 30), max(lives, LONGEST_PAUSE))
        self._pending[message_id] = node_id, Deadline(made, lives + pause, self._clock.time)

    def clear(self, message_ids: Iterable[str]) -> None:
        """Note that no reply to these messages is owed any more."""
        for message_id in message_ids:
            if message_id in self._pending:
                node_id, _ = self._pending.pop(message_id)
                self.reset_backoff(node_id)

    def reset_backoff(self, node_id: int) -> None:
        """Note that a node has answered: its next pause is a short one again."""
        self.nodes[node_id] = replace(self.nodes[node_id], missed=0)

    def refresh(
        self, nodes: Mapping[int, str], ask: Callable[[list[int]], Mapping[int, str]]
    ) -> None:
        """Update the nodes online: node ids with their registered names ("" without one).

        `ask` returns the names of new nodes.
        """
        registered = {node_id: name for node_id, name in nodes.items() if name}
        pending = self.pending_nodes
        # A node that owes a reply is not asked for its name, so the name is kept until it is back.
        gone = self.nodes.keys() - nodes.keys() - pending
        self.nodes |= {node_id: replace(self.nodes[node_id], claim="") for node_id in gone}
        others = nodes.keys() - registered.keys() - pending
        unknown = sorted(node_id for node_id in others if not self.nodes[node_id].claim)
        if unknown:
            self.nodes |= {
                node_id: replace(self.nodes[node_id], claim=name)
                for node_id, name in ask(unknown).items()
            }
        claims = {node_id: node.claim for node_id, node in self.nodes.items() if node.claim}
        # Names that the operator has bound to a key come first, then held ones, then claims.
        held = {node_id: name for name, node_id in self.online.items() if node_id in nodes}
        names = dict(registered)
        ids = set(map(str, nodes))
        taken = set(names.values())
        for node_id, name in [*held.items(), *sorted(claims.items())]:
            if node_id not in nodes or node_id in names:
                continue
            stolen = name in taken or (name != str(node_id) and name in ids)
            if not stolen:
                names[node_id] = name
                taken.add(name)
            elif node_id in unknown or node_id in held:
                log.warning(
                    "node %d calls itself %s, as another node does: it takes no part",
                    node_id,
                    name,
                )
        self.online = {
            name: node_id for node_id, name in sorted(names.items(), key=lambda item: item[1])
        }
