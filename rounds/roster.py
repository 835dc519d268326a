"""Who is there, by client name, and who still owes a reply."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fairbloom.logs import log
from fairbloom.protocol.streams import generator


@dataclass(frozen=True)
class Debt:
    """An unanswered message: when it dies, and until when its node is asked nothing else (Unix time, seconds)."""

    node_id: int
    dies: float
    until: float


class Roster:
    """The clients online by name, across rounds.

    A node's name is the one that an operator registered with its key; else what it answered when asked, once; else
    its node id. Of nodes that claim the same name, the one that had it first keeps it while it is online.
    """

    def __init__(self) -> None:
        self.online: Mapping[str, int] = {}
        """Node ids by client name, in ascending order of names."""
        self._claims: dict[int, str] = {}
        self._debts: dict[str, Debt] = {}
        self._silences: Counter[int] = Counter()

    @property
    def free(self) -> list[str]:
        """The names of clients online that owe no earlier reply, in ascending order."""
        self._debts = self._lasting()
        return self.clear

    @property
    def clear(self) -> list[str]:
        """The names of clients online that owe nothing, in order; pauses that ended since `free` do not count."""
        owing = self.owing
        return [name for name, node_id in self.online.items() if node_id not in owing]

    @property
    def owing(self) -> set[int]:
        """The nodes that owe a reply; pauses that ended since `free` do not count."""
        return {debt.node_id for debt in self._debts.values()}

    @property
    def unpaid(self) -> list[str]:
        """The ids of messages that have not been answered."""
        return list(self._debts)

    @property
    def debts(self) -> list[str]:
        """The ids of those of them that a SuperLink still takes replies to."""
        now = time.time()
        return [message_id for message_id, debt in self._debts.items() if now < debt.dies]

    def owe(self, message_id: str, node_id: int, made: float, lives: float) -> None:
        """Note that a node has not answered a message that was made at a moment and `lives` for some seconds.

        The debt outlives the message by a pause as long as the message's life. The pause doubles with each unanswered
        message.
        """
        # a day, or longer where messages live longer
        pause = min(lives * 2.0 ** min(self._silences[node_id], 30), max(lives, 86400.0))
        self._silences[node_id] += 1
        self._debts[message_id] = Debt(node_id, made + lives, made + lives + pause)

    def mark_answered(self, message_ids: Iterable[str]) -> None:
        """Strike off debts, by the message that was answered at last."""
        for message_id in message_ids:
            if debt := self._debts.pop(message_id, None):
                self.heard(debt.node_id)

    def forgive(self, message_ids: Iterable[str]) -> None:
        """Strike off debts, by the message, of nodes that have gone: they may come back as good as new."""
        for message_id in message_ids:
            self._debts.pop(message_id, None)

    def heard(self, node_id: int) -> None:
        """Note that a node has answered."""
        self._silences.pop(node_id, None)

    def pay(self, node_id: int) -> None:
        """Strike off all debts of a node that has answered a later question: it answers one after the other."""
        self._debts = {message_id: debt for message_id, debt in self._debts.items() if debt.node_id != node_id}
        self.heard(node_id)

    def refresh(self, nodes: Mapping[int, str], ask: Callable[[list[int]], Mapping[int, str]]) -> None:
        """Take in the nodes online: node ids with their registered names ("" for none); `ask` names the new ones."""
        registered = {node_id: name for node_id, name in nodes.items() if name}
        self._claims = {node_id: name for node_id, name in self._claims.items() if node_id in nodes}
        asked = {debt.node_id for debt in self._lasting().values()}
        unknown = sorted(nodes.keys() - registered.keys() - self._claims.keys() - asked)
        self._claims |= ask(unknown) if unknown else {}
        # The operator's word, bound to a key, is worth more than a node's own; then who had a name before keeps it.
        held = {node_id: name for name, node_id in self.online.items() if node_id in nodes}
        names, ids = dict(registered), set(map(str, nodes))
        taken = set(names.values())
        for node_id, name in [*held.items(), *sorted(self._claims.items())]:
            if node_id not in names:
                stolen = name in taken or (name != str(node_id) and name in ids)
                if not stolen:
                    names[node_id] = name
                    taken.add(name)
                elif node_id in unknown or node_id in held:
                    log.warning("node %d calls itself %s, as another node does: it takes no part", node_id, name)
        self.online = {name: node_id for node_id, name in sorted(names.items(), key=lambda each: each[1])}

    def _lasting(self) -> dict[str, Debt]:
        now = time.time()
        return {message_id: debt for message_id, debt in self._debts.items() if now < debt.until}


def usual_fraction(clients: int) -> float:
    """Return the share of the clients that trains by default: half, but all of a few, so that two can train."""
    return 1.0 if clients <= 9 else 0.5


def share(fraction: float, of: int, minimum: int) -> int:
    """Return ⌈`fraction` · `of`⌉, at least `minimum` and at most `of`.

    The fraction is read in decimal: 0.29 of 100 is 29.
    """
    return min(max(math.ceil(Fraction(str(fraction)) * of), minimum), of)


def sample(names: Sequence[str], wanted: int, seed: int, purpose: str, number: int) -> list[str]:
    """Draw `wanted` names uniformly without replacement, from (seed, round) alone; return them in ascending order.

    `names` are in ascending order: what is drawn are places in it. The work grows with `wanted`, not with the names.
    """
    if wanted >= len(names):
        return list(names)
    places = generator(seed, purpose, number).choice(len(names), wanted, replace=False, shuffle=False)
    return [names[place] for place in sorted(places.tolist())]
