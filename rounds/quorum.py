"""How many clients must be online for a run to go on, and for how long it waits for them."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from fairbloom.errors import FairbloomError
from fairbloom.logs import log

NOTICE_SECONDS = 10.0
AGAIN_SECONDS = 300.0
"""After how long a wait for clients is said, and after how long it is said again."""

MAX_LISTED = 20
"""How many names a message lists; it counts the others."""


class QuorumError(FairbloomError):
    """A run that has waited in vain for enough clients.

    The message names the missing ones, and what to do.
    """


class SimulationError(QuorumError):
    """A simulation with too few nodes; `remedy` says what would do with those that are there."""

    def __init__(self, there: int, wanted: int, remedy: str) -> None:
        super().__init__(
            f"{some(there, wanted)}, and no others come in Flower's simulation: run it with"
            f" --federation-config num-supernodes={wanted}, or {remedy}"
        )


class Wait:
    """One wait for clients, of `patience` seconds at the most."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._since: float | None = None
        self._next = NOTICE_SECONDS

    def goes_on(self, words: str) -> bool:
        """Return whether the wait, which begins with the first call, goes on.

        `words` say what is waited for.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._next = NOTICE_SECONDS
        waited = now - self._since
        if waited >= self.patience:
            return False
        if waited >= self._next:
            self._next = waited + AGAIN_SECONDS
            log.warning(
                "%s; this run waits for %.0f s more (wait-for-clients)",
                words,
                self.patience - waited,
            )
        return True

    def end(self) -> None:
        """End the wait: the next call of `goes_on` begins another."""
        if self._since is not None and self._next > NOTICE_SECONDS:
            log.info(
                "enough clients are online after %.0f s, and the run goes on",
                time.monotonic() - self._since,
            )
        self._since = None


class Quorum:
    """Says whether enough clients are online, and how long a run still waits for them.

    The wait lasts `patience` seconds. `among` names the clients that count, all if it is empty, and
    `known` those that the run has known before. `setting` is the one that errors name.
    """

    def __init__(
        self,
        patience: float = math.inf,
        among: Collection[str] = (),
        known: Iterable[str] = (),
        setting: str = "min-clients",
    ) -> None:
        self.fewest = 0
        """How many of those who count must be online; 0 before that is decided."""
        self._among = frozenset(among)
        self._known = set(known)
        self._setting = setting
        self._names: dict[int, str] = {}
        self._wait = Wait(patience)

    def counted(self, names: Iterable[str]) -> list[str]:
        """Return those of the clients that count."""
        return [name for name in names if not self._among or name in self._among]

    def of(self, clients: int) -> int:
        """Return how many must be online where a run begins with this many clients and no setting says it."""
        return quorum_of(min(clients, len(self._among)) if self._among else clients)

    def met(self, online: Mapping[str, int]) -> None:
        """Take in which clients are online, with their node ids."""
        self._known.update(online)
        self._names.update({node_id: name for name, node_id in online.items()})

    def strike_off(
        self, nodes: Iterable[int], kept: Callable[[Iterable[str]], Collection[str]]
    ) -> set[int]:
        """Remove the nodes of clients that are not `kept` from those that are waited for, and return them."""
        names = {node_id: self._names[node_id] for node_id in nodes if node_id in self._names}
        gone = set(names.values()).difference(kept(names.values()))
        self._known -= gone
        return {node_id for node_id, name in names.items() if name in gone}

    def holds(self, online: Collection[str]) -> bool:
        """Return whether enough of the clients that count are online.

        Raise QuorumError once the patience is over.
        """
        there = len(self.counted(online))
        words = f"{some(there, self.fewest)} that this run needs (min-clients)"
        return self._suffice(there, self.fewest, words, self._known.difference(online))

    def holds_without_debts(self, clear: Collection[str], fewest: int) -> bool:
        """Return whether this many of the counted clients are `clear`: online, and without an earlier reply to give."""
        there = len(self.counted(clear))
        state = (
            "is online and owes no earlier reply"
            if there == 1
            else "are online and owe no earlier reply"
        )
        words = f"{there} of {fewest} clients that this run needs ({self._setting}) {state}"
        return self._suffice(there, fewest, words, {*self.counted(self._known)}.difference(clear))

    def _suffice(self, there: int, fewest: int, words: str, absent: Collection[str]) -> bool:
        if there >= fewest:
            self._wait.end()
            return True
        go_on = f", and {self._setting} = {there} would go on without them" if there else ""
        words = f"{words}; awaited: {listed(sorted(absent))}"
        if not self._wait.goes_on(words + go_on):
            raise QuorumError(
                f"after {self._wait.patience:g} s (wait-for-clients) {words}. The same command"
                f" continues this run after its last finished round, once they are back{go_on}"
            )
        return False

    def holds_by_nodes(self, online: Iterable[int]) -> bool:
        """Return the same for nodes; one that was not asked for its name counts by its number."""
        return self.holds(self._named(online))

    def would_hold(self, online: Iterable[int]) -> bool:
        """Return whether this many nodes would be enough, without a wait for more."""
        return len(self.counted(self._named(online))) >= self.fewest

    def _named(self, nodes: Iterable[int]) -> set[str]:
        return {self._names.get(node_id, str(node_id)) for node_id in nodes}


def quorum_of(clients: int) -> int:
    """Return how many of these clients must be online where no setting says it: half, and two where there are two."""
    return max(-(-clients // 2), min(2, clients), 1)


def some(there: int, of: int) -> str:
    """Return in words how many clients are online, of how many."""
    return f"{there} of {of} clients {'is' if there == 1 else 'are'} online"


def listed(names: Iterable[str]) -> str:
    """Return names with commas, "others" where there are none, and how many there are beyond MAX_LISTED."""
    names = list(names)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more if names else "others"
