"""Who is there, by client name, and who still owes a reply."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from fairbloom.logs import log
from fairbloom.protocol.streams import generator

LONGEST_PAUSE = 86400.0
"""Seconds for which a node that never answers is asked nothing, at the most, unless messages live
longer."""


class Roster:
    """The clients online by name, across rounds.

    A node's name is the one that an operator registered with its key; else what it answered when
    asked, once; else its node id. Of nodes that claim the same name, the one that had it first
    keeps it while it is online.

    A client that was asked is not asked again before it has answered or its time is over: that of
    the message and as much again, which doubles with each further message that it leaves
    unanswered.
    """

    def __init__(self) -> None:
        self.online: Mapping[str, int] = {}
        """Node ids by client name, in ascending order of names."""
        self._claims: dict[int, str] = {}
        # by message id, the node that owes a reply, and until when
        self._debts: dict[str, tuple[int, float]] = {}
        self._silences: Counter[int] = Counter()

    @property
    def owed(self) -> list[str]:
        """The ids of messages that are not answered, and whose time is not over."""
        now = time.time()
        self._debts = {
            message_id: debt for message_id, debt in self._debts.items() if now < debt[1]
        }
        return list(self._debts)

    @property
    def owing(self) -> set[int]:
        """The nodes that owe a reply."""
        return {self._debts[message_id][0] for message_id in self.owed}

    @property
    def free(self) -> list[str]:
        """The names of clients online that owe no reply, in ascending order."""
        owing = self.owing
        return [name for name, node_id in self.online.items() if node_id not in owing]

    def owe(self, message_id: str, node_id: int, made: float, lives: float) -> None:
        """Note that a node has not answered a message that was `made` at a Unix time and `lives` so many seconds."""
        pause = min(lives * 2.0 ** min(self._silences[node_id], 30), max(lives, LONGEST_PAUSE))
        self._silences[node_id] += 1
        self._debts[message_id] = node_id, made + lives + pause

    def strike_off(self, message_ids: Iterable[str]) -> None:
        """Strike off debts, by the message that was answered at last."""
        for message_id in message_ids:
            if message_id in self._debts:
                self.heard(self._debts.pop(message_id)[0])

    def heard(self, node_id: int) -> None:
        """Note that a node has answered."""
        self._silences.pop(node_id, None)

    def refresh(
        self, nodes: Mapping[int, str], ask: Callable[[list[int]], Mapping[int, str]]
    ) -> None:
        """Take in the nodes online: node ids with their registered names ("" for none).

        `ask` names the new ones.
        """
        registered = {node_id: name for node_id, name in nodes.items() if name}
        owing = self.owing
        # One that owes a reply is asked nothing, so its name is kept until it is back.
        self._claims = {
            node_id: name
            for node_id, name in self._claims.items()
            if node_id in nodes or node_id in owing
        }
        unknown = sorted(nodes.keys() - registered.keys() - self._claims.keys() - owing)
        self._claims |= ask(unknown) if unknown else {}
        # The operator's word, bound to a key, is worth more than a node's own; then who had a name
        # before keeps it.
        held = {node_id: name for name, node_id in self.online.items() if node_id in nodes}
        names = dict(registered)
        ids = set(map(str, nodes))
        taken = set(names.values())
        for node_id, name in [*held.items(), *sorted(self._claims.items())]:
            if node_id in nodes and node_id not in names:
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
            name: node_id for node_id, name in sorted(names.items(), key=lambda each: each[1])
        }


def usual_fraction(clients: int) -> float:
    """Return the share of the clients that trains by default: half, but all of a few, so that two can train."""
    return 1.0 if clients <= 9 else 0.5


def share(fraction: float, of: int, minimum: int) -> int:
    """Return ⌈`fraction` · `of`⌉, at least `minimum` and at most `of`.

    The fraction is read in decimal: 0.29 of 100 is 29.
    """
    return min(max(math.ceil(Fraction(str(fraction)) * of), minimum), of)


def sample(names: Sequence[str], wanted: int, seed: int, purpose: str, number: int) -> list[str]:
    """Draw `wanted` names uniformly without replacement, from (seed, round) alone.

    Return them in ascending order.

    `names` are in ascending order: what is drawn are places in it. The work grows with `wanted`,
    not with the names.
    """
    if wanted >= len(names):
        return list(names)
    places = generator(seed, purpose, number).choice(
        len(names), wanted, replace=False, shuffle=False
    )
    return [names[place] for place in sorted(places.tolist())]
