"""Who was asked to train, who answered, and whose replies were used."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from .round import Round

# The columns of clients.csv: in how many rounds so far a client was asked to train, answered in
# time, and had its reply used.
COLUMNS = ("rounds_asked", "rounds_answered", "rounds_counted")


@dataclass(frozen=True)
class Participations:
    """The participation of all clients that a run has asked to train: their COLUMNS, by client."""

    rounds_asked: Mapping[str, int] = field(default_factory=dict)
    rounds_answered: Mapping[str, int] = field(default_factory=dict)
    rounds_counted: Mapping[str, int] = field(default_factory=dict)

    def after(self, finished: Round) -> Self:
        """Return the participation after a finished round."""
        # A round that nobody answers has no participants.
        asked = dict.fromkeys((*finished.participants, *finished.missing))
        missing = frozenset(finished.missing)
        answered = [name for name in asked if name not in missing]
        return type(self)(
            _count(self.rounds_asked, asked),
            _count(self.rounds_answered, answered),
            _count(self.rounds_counted, finished.coefficients),
        )

    def cells(self, clients: Sequence[str]) -> list[list[int]]:
        """Return the columns for these clients; a client that was never asked has zeros."""
        return [
            _cells(self.rounds_asked, clients),
            _cells(self.rounds_answered, clients),
            _cells(self.rounds_counted, clients),
        ]


def _cells(counts: Mapping[str, int], clients: Sequence[str]) -> list[int]:
    return [counts.get(name, 0) for name in clients]


def _count(before: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    counts = Counter(before)
    counts.update(list(names))  # of a mapping it would add the values
    return dict(counts)
