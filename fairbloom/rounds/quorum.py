"""How many clients must be online for a run to continue, and how long it waits for them."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fairbloom.errors import FairbloomError, describe_online, join_names
from fairbloom.logs import log
from fairbloom.system.deadline import Clock, Deadline
from fairbloom.text import plural, text_if

# A wait for clients is logged after NOTICE_SECONDS, and again every AGAIN_SECONDS.
NOTICE_SECONDS = 10.0
AGAIN_SECONDS = 300.0


class QuorumError(FairbloomError):
    """A run has waited in vain for enough clients.

    The message names the missing clients and the remedy.
    """


def note_nothing(text: str) -> None:
    """Take no note of a wait."""


@dataclass
class Wait:
    """One wait for clients, of at most `patience` seconds.

    `on_wait` is called with a text, which names the awaited clients and how long the wait has
    lasted, and with "" once it is over.
    """

    patience: float
    on_wait: Callable[[str], None]
    clock: Clock
    _deadline: Deadline | None = field(default=None, init=False)
    _next: float = field(default=NOTICE_SECONDS, init=False)

    def should_continue(self, text: str) -> bool:
        """Return whether there is time left to wait; the wait begins with the first call.

        `text` names the awaited clients, for the log.
        """
        if self._deadline is None:
            self._deadline = Deadline.after(self.patience, self.clock.monotonic)
        if self._deadline.is_over:
            return False
        waited = self._deadline.elapsed
        self.on_wait(f"{text}. It has waited for {waited:.0f} s")
        if waited >= self._next:
            self._next = waited + AGAIN_SECONDS
            log.warning(
                "%s; this run waits for %.0f s more (wait-for-clients)",
                text,
                self._deadline.left,
            )
        return True

    def end(self) -> None:
        """End the wait: the next call of `should_continue` begins another one."""
        if self._deadline is None:
            return
        if self._next > NOTICE_SECONDS:
            log.info(
                "enough clients are online after %.0f s, and the run goes on",
                self._deadline.elapsed,
            )
        self.on_wait("")
        self._deadline = None
        self._next = NOTICE_SECONDS


class Quorum:
    """Decides whether enough clients are online, and how long a run still waits for them.

    Parameters
    ----------
    patience
        Seconds that each wait may last.
    among
        Names of the clients that count; all, if empty.
    known
        Names of the clients that the run has known before.
    setting
        The setting that errors name as a remedy.
    on_wait
        Called with the clients that the run waits for, as `Wait.on_wait`.
    clock
        The clock of all waits of the run, also those for replies.
    enrolled
        Leaves the revoked clients out of some names: these are not awaited.
    """

    def __init__(
        self,
        patience: float = math.inf,
        among: Collection[str] = (),
        known: Iterable[str] = (),
        setting: str = "min-clients",
        on_wait: Callable[[str], None] = note_nothing,
        clock: Clock = time,
        enrolled: Callable[[Iterable[str]], Collection[str]] = tuple,
    ) -> None:
        # How many counted clients must be online; 0 before that is decided.
        self.fewest = 0
        self._among = frozenset(among)
        self._known = set(known)
        self._setting = setting
        self._names: dict[int, str] = {}
        self.clock = clock
        self._enrolled = enrolled
        self.wait = Wait(patience, on_wait, clock)

    def counted(self, names: Iterable[str]) -> list[str]:
        """Return the clients that count."""
        if not self._among:
            return list(names)
        return [name for name in names if name in self._among]

    def of(self, clients: int) -> int:
        """Return the default quorum of a run that begins with this many clients."""
        return quorum_of(min(clients, len(self._among)) if self._among else clients)

    def observe(self, online: Mapping[str, int]) -> None:
        """Record which clients are online, with their node ids."""
        self._known.update(online)
        self._names.update({node_id: name for name, node_id in online.items()})

    def find_revoked(self, nodes: Iterable[int]) -> set[int]:
        """Return the nodes among these that belong to revoked clients."""
        names = {node_id: self._names[node_id] for node_id in nodes if node_id in self._names}
        kept = set(self._enrolled(names.values()))
        return {node_id for node_id, name in names.items() if name not in kept}

    def is_met(self, online: Collection[str]) -> bool:
        """Return whether enough of the counted clients are online.

        Raises
        ------
        QuorumError
            If they are not, and the patience is over.
        """
        count = len(self.counted(online))
        text = f"{describe_online(count, self.fewest)} that this run needs (min-clients)"
        return self._is_enough(count, self.fewest, text, self._known.difference(online))

    def is_met_by_free(self, free: Collection[str], fewest: int) -> bool:
        """Return whether this many counted clients are `free`: online, and owing no reply."""
        count = len(self.counted(free))
        state = plural(
            count, "is online and owes no earlier reply", "are online and owe no earlier reply"
        )
        text = f"{count} of {fewest} clients that this run needs ({self._setting}) {state}"
        return self._is_enough(count, fewest, text, {*self.counted(self._known)}.difference(free))

    def _is_enough(self, count: int, fewest: int, text: str, absent: Collection[str]) -> bool:
        if count >= fewest:
            self.wait.end()
            return True
        remedy = text_if(count, f", and {self._setting} = {count} would go on without them")
        text = f"{text}; awaited: {join_names(sorted(self._enrolled(absent)))}"
        if not self.wait.should_continue(text + remedy):
            raise QuorumError(
                f"after {self.wait.patience:g} s (wait-for-clients) {text}. The same command"
                f" continues this run after its last finished round, once they are back{remedy}"
            )
        return False

    def named(self, nodes: Iterable[int]) -> set[str]:
        """Return the nodes' names; a node without a known name counts by its number."""
        return {self._names.get(node_id, str(node_id)) for node_id in nodes}


def quorum_of(clients: int) -> int:
    """Return the default quorum of this many clients: half of them, rounded up, and 2 of 2."""
    return max(-(-clients // 2), min(2, clients), 1)
