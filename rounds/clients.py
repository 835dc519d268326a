"""The seam between a round and those who compute it: Flower's nodes, or clients in this process."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np

from fairbloom.protocol.names import SNAPSHOT
from fairbloom.protocol.terms import Terms

from .memory import Memory
from .screening import Refusals
from .updates import FloatArray, Layout, Model, Updates, Vectors

Reports = dict[str, dict[str, float]]
"""What each client reports, by its name, in the order of names: finite numbers by the metric's name on the wire."""


NOTHING: Mapping[str, Model] = MappingProxyType({})
"""No vectors are sent beside the model."""


@dataclass(frozen=True, kw_only=True)
class Replies:
    """The replies of a round's evaluation.

    Attributes
    ----------
    metrics
        What the usable ones report, in the order of names.
    refused
        Why others cannot be used.
    missing
        Who was asked and did not answer in time, in the order of names.
    more_sent, more_received
        Bytes of arrays in the messages, and in the usable replies, beside those that change, once in each: those of
        frozen arrays, and of what was sent twice.
    """

    metrics: Reports
    refused: Refusals
    missing: tuple[str, ...] = ()
    more_sent: int = 0
    more_received: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The clients whose replies are usable, in the order of names."""
        return tuple(self.metrics)


@dataclass(frozen=True, kw_only=True)
class Trained(Replies):
    """The replies of a round's training.

    Attributes
    ----------
    updates
        The usable ones, in the order of names.
    second
        The second models of these replies, as updates in the order of names; None where nobody asked for them.
    """

    updates: Updates
    second: Updates | None = None

    @classmethod
    def empty(
        cls,
        layout: Layout,
        capacity: int,
        *,
        refused: Refusals,
        missing: Sequence[str],
        second: str = "",
        memory: Memory | None = None,
        lent: bool = False,
    ) -> Self:
        """Return an object without replies yet, for up to `capacity` of them.

        Parameters
        ----------
        second
            The record with the second model of each reply; "": they have none.
        memory
            Says where the updates are to lie; None: where half of the machine's memory is the budget.
        lent
            Whether the arrays that `add` is given stay as they are, as in Updates; `memory` is then not needed.

        Raises
        ------
        FairbloomError
            When they are to lie in a file, and its disk has no room.
        """

        def updates(layout: Layout, of: str = "") -> Updates:
            room = memory or Memory()
            matrix = None if lent else room.matrix(capacity, layout.size, layout.dtype, of=2 if second else 1)
            return Updates(layout, capacity, matrix, of, lent=lent)

        return cls(
            metrics={},
            refused=refused,
            missing=tuple(missing),
            updates=updates(layout),
            second=updates(layout_of_second(layout, second), second) if second else None,
        )

    def add(self, name: str, report: dict[str, float], arrays: Model, second: Model) -> None:
        """Take in a reply; names come in ascending order.

        Raises
        ------
        ValueError
            When an array is not finite; nothing is taken in then.
        """
        self.updates.add(arrays)
        if self.second is not None:
            try:
                self.second.add(second)
            except ValueError:
                self.updates.remove(len(self.metrics))
                raise
        self.metrics[name] = report

    def settle(self, *, gram: bool, by_array: bool = False, below: Sequence[Vectors] = ()) -> None:
        """Refuse those of the lent replies, once all were added, that are not finite; see `Updates.settle`."""
        wrong = self.updates.settle(gram=gram, by_array=by_array, below=below)
        if self.second is not None:
            wrong = self.second.settle(gram=False) | wrong
        for name, reason in [(self.names[place], reason) for place, reason in sorted(wrong.items())]:
            self.refuse(name, reason)

    def add_rows(self, reports: Reports, others: Sequence[Model], others_of_second: Sequence[Model] = ()) -> None:
        """Take in replies whose flat models lie in the rows of `updates.matrix` after those in use.

        One with an array that is not finite is refused.

        Parameters
        ----------
        reports
            What each reports, by its name; names come in ascending order, those of the rows.
        others
            The buffers and integer arrays of each row's model.
        others_of_second
            The same of the second models, whose rows lie in `second.matrix`; unused where nobody asked for them.
        """
        first, names = len(self.metrics), list(reports)
        wrong = self.updates.add_rows(others)
        if self.second is not None:
            wrong_second = self.second.add_rows(others_of_second)
            for updates, gone, others_gone in ((self.updates, wrong, wrong_second), (self.second, wrong_second, wrong)):
                left = [place for place in range(len(names)) if place not in gone]
                updates.remove(*(first + row for row, place in enumerate(left) if place in others_gone))
            wrong = wrong_second | wrong
        self.metrics.update(reports)
        for place, reason in sorted(wrong.items()):
            del self.metrics[names[place]]
            self.refused.add(names[place], reason)

    def column(self, metric: str) -> FloatArray:
        """Return one metric of all usable replies, shape (m,)."""
        return np.array([report[metric] for report in self.metrics.values()], np.float64)

    def refuse(self, name: str, reason: ValueError | str) -> None:
        """Leave a reply out that was taken for usable."""
        place = self.names.index(name)
        for updates in (self.updates, self.second):
            if updates is not None:
                updates.remove(place)
        del self.metrics[name]
        self.refused.add(name, reason)


def layout_of_second(layout: Layout, record: str) -> Layout:
    """Return the layout of the second models of replies to a model with this layout.

    A snapshot is a whole model, from which the next one may be made; any other record counts for its update alone.
    """
    return layout if record == SNAPSHOT else layout.trainable_part


class Clients(Protocol):
    """Those who train and evaluate."""

    def online(self, fewest: int) -> Sequence[str]:
        """Return the names of the clients that are online, in ascending order, after waiting a while for so many."""

    def free(self) -> Sequence[str]:
        """Return the names of those online, in ascending order, that can be asked now: they owe no earlier reply."""

    def wait_until_free(self, fewest: int) -> None:
        """Wait until so many of those who train are online and owe nothing; raise QuorumError if nobody comes."""

    def about(self, names: Sequence[str]) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, str]]:
        """Ask these clients what is to be agreed about their data; return what each reports, and why some cannot."""

    def sizes(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return how many training examples each of these clients has, of those where that is known or can be asked."""

    def train(self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING) -> Trained:
        """Let these clients train the model on the terms, each on its data; vectors are `sent` to each, by record."""

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure."""

    def keep(self, since: int) -> None:
        """Store what clients keep for themselves, before the run's checkpoint is written.

        The run may go back to round `since`.
        """
