"""Who was asked, who answered, whose replies were used, and how far they pointed along the step."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fairbloom.rounds.round import Round


@dataclass
class Participation:
    """One client's training in all rounds so far.

    Attributes
    ----------
    asked, answered, counted
        The number of rounds in which it was asked to train, answered in time, and its reply was
        used.
    measured
        The number of rounds with a contribution; the sums below are over these.
    cosines, along_others
        The sums of what a `Contribution` has.
    """

    asked: int = 0
    answered: int = 0
    counted: int = 0
    measured: int = 0
    cosines: float = 0.0
    along_others: float = 0.0

    @property
    def contribution(self) -> float | None:
        """The mean of the cosines between its updates and the steps."""
        return self.cosines / self.measured if self.measured else None

    @property
    def mean_along_others(self) -> float | None:
        """The mean of the inner products of its updates with the others' part of the steps."""
        return self.along_others / self.measured if self.measured else None


# The columns of clients.csv, by the attributes that they show.
COLUMNS = {
    "rounds_asked": "asked",
    "rounds_answered": "answered",
    "rounds_counted": "counted",
    "contribution": "contribution",
    "product_with_others_step": "mean_along_others",
}

CONTRIBUTION = "contribution"


class Participations:
    """The participation of all clients that a run has asked to train.

    It continues from the `state` that `state_dict` returned.
    """

    def __init__(self, state: Mapping[str, Sequence[Any]] = MappingProxyType({})) -> None:
        self._of = defaultdict(
            Participation, {name: Participation(*each) for name, each in state.items()}
        )

    def state_dict(self) -> dict[str, list[float]]:
        """Return it as JSON."""
        return {name: [*vars(each).values()] for name, each in self._of.items()}

    def add(self, finished: Round) -> None:
        """Add a finished round."""
        missing = frozenset(finished.missing)
        # A round that nobody answers has no participants.
        for name in dict.fromkeys((*finished.participants, *finished.missing)):
            one = self._of[name]
            one.asked += 1
            one.answered += name not in missing
            one.counted += name in finished.coefficients
            if name in finished.contributions:
                found = finished.contributions[name]
                one.measured += 1
                one.cosines += found.cosine
                one.along_others += found.along_others

    def cells(self, clients: Sequence[str]) -> list[list[object]]:
        """Return the columns for these clients; a client that was never asked has zeros."""
        found = [self._of.get(name, Participation()) for name in clients]
        return [[getattr(each, attribute) for each in found] for attribute in COLUMNS.values()]
