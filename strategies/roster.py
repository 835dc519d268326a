"""Who is there, by client name, and who still owes a reply."""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction

from .cohort import generator

log = logging.getLogger("flwr").getChild("fairbloom")


class Roster:
    """The clients online by name, across rounds.

    A node's name is the one that an operator registered with its key; else what it answered when asked, once; else
    its node id. A name that one online node holds is not given to a second one.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._nameless: set[int] = set()
        self._debts: dict[str, int] = {}

    @property
    def online(self) -> dict[str, int]:
        """Node ids by client name."""
        return {name: node_id for node_id, name in self._names.items()}

    @property
    def free(self) -> list[str]:
        """The names of clients online that owe no earlier reply, in ascending order."""
        owing = set(self._debts.values())
        return sorted(name for node_id, name in self._names.items() if node_id not in owing)

    @property
    def debts(self) -> list[str]:
        """The ids of messages that have not been answered."""
        return list(self._debts)

    def owe(self, message_id: str, node_id: int) -> None:
        """Note that a node has not answered a message."""
        self._debts[message_id] = node_id

    def settle(self, message_ids: Iterable[str]) -> None:
        """Strike off debts, by the message that was answered at last."""
        for message_id in message_ids:
            self._debts.pop(message_id, None)

    def refresh(self, nodes: Mapping[int, str], ask: Callable[[list[int]], Mapping[int, str]]) -> None:
        """Take in who is online: node ids with their registered names ("" for none); `ask` names the new ones."""
        self._names = {node_id: name for node_id, name in self._names.items() if node_id in nodes}
        self._nameless &= set(nodes)
        registered = {name: node_id for node_id, name in nodes.items() if name}
        for node_id in [n for n, name in self._names.items() if registered.get(name, n) != n]:
            del self._names[node_id]  # the operator's word, bound to a key, is worth more than the node's own
            self._nameless.add(node_id)
        self._names |= {node_id: name for name, node_id in registered.items()}
        unknown = sorted(n for n in nodes if n not in self._names and n not in self._nameless)
        answers = ask(unknown) if unknown else {}
        for node_id, name in sorted(answers.items()):
            if name in self._names.values():
                log.warning("node %d calls itself %s, a name that another node holds: it takes no part", node_id, name)
                self._nameless.add(node_id)
            else:
                self._names[node_id] = name


def sample(names: Collection[str], fraction: float, minimum: int, seed: int, purpose: str, number: int) -> list[str]:
    """Draw ⌈fraction·N⌉ of N names (at least `minimum`), uniformly without replacement, from (seed, round) alone.

    The fraction is taken as written, in decimal: 0.29 of 100 names is 29. The draw is returned in ascending order.
    """
    wanted = max(math.ceil(Fraction(str(fraction)) * len(names)), minimum)
    order = generator(seed, purpose, number).permutation(len(names))
    ascending = sorted(names)
    return sorted(ascending[i] for i in order[:wanted])
