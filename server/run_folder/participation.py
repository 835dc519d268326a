"""Who was asked to train, who answered, and whose replies were used."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fairbloom.rounds.round import Round

# The columns of clients.csv: in how many rounds so far a client was asked to train, answered in
# time, and had its reply used.
COLUMNS = ("rounds_asked", "rounds_answered", "rounds_counted")


class Participations:
    """The participation of all clients that a run has asked to train.

    It continues from the `state` that `state_dict` returned.
    """

    def __init__(self, state: Mapping[str, Mapping[str, int]] = MappingProxyType({})) -> None:
        self._counts = {column: Counter(state.get(column)) for column in COLUMNS}

    def state_dict(self) -> dict[str, dict[str, int]]:
        """Return it as JSON."""
        return {column: {**counts} for column, counts in self._counts.items()}

    def add(self, finished: Round) -> None:
        """Add a finished round."""
        # A round that nobody answers has no participants.
        asked = dict.fromkeys((*finished.participants, *finished.missing))
        missing = frozenset(finished.missing)
        answered = [name for name in asked if name not in missing]
        for counts, names in zip(
            self._counts.values(), (asked, answered, finished.coefficients), strict=True
        ):
            for name in names:  # Counter.update calls a function for each
                counts[name] += 1

    def cells(self, clients: Sequence[str]) -> list[list[int]]:
        """Return the columns for these clients; a client that was never asked has zeros."""
        return [[counts[name] for name in clients] for counts in self._counts.values()]
