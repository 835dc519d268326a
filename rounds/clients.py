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
"""Only the model is sent, and no vectors."""


@dataclass(frozen=True, kw_only=True)
class Replies:
    """The replies of a round's evaluation: what the usable ones report, and why others cannot be used, by name.

    `more_sent` and `more_received` are extra bytes: frozen arrays and repeated messages. Arrays that a round changes
    are counted elsewhere. `hostile` are the clients that attack in an experiment: means leave them out.
    """

    metrics: Reports
    refused: Refusals
    missing: tuple[str, ...] = ()
    more_sent: int = 0
    more_received: int = 0
    hostile: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The clients with usable replies, in the order of names."""
        return tuple(self.metrics)


@dataclass(frozen=True, kw_only=True)
class Trained(Replies):
    """The replies of a round's training.

    `second` are their second models as updates, None where none were requested.
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
        borrowed: bool = False,
        hostile: frozenset[str] = frozenset(),
    ) -> Self:
        """Return an object without replies yet, for up to `capacity` of them.

        `second` names the record of each reply's second model; `memory` decides where the updates lie; `borrowed` is as
        in Updates.
        """

        def updates(layout: Layout, of: str = "") -> Updates:
            room = memory or Memory()
            matrix = None if borrowed else room.matrix(capacity, layout.size, layout.dtype, of=2 if second else 1)
            return Updates(layout, capacity, matrix, of, borrowed=borrowed)

        return cls(
            metrics={},
            refused=refused,
            missing=tuple(missing),
            hostile=hostile,
            updates=updates(layout),
            second=updates(layout_of_second(layout, second), second) if second else None,
        )

    def add(self, name: str, report: dict[str, float], arrays: Model, second: Model) -> None:
        """Take in a reply, in ascending order of names.

        ValueError says that an array is not finite and nothing is taken in.
        """
        self.updates.add(arrays)
        if self.second is not None:
            try:
                self.second.add(second)
            except ValueError:
                self.updates.remove(len(self.metrics))
                raise
        self.metrics[name] = report

    def screen_borrowed(self, *, gram: bool, by_array: bool = False, below: Sequence[Vectors] = ()) -> None:
        """Refuse the borrowed replies that are not finite, once all are added; see `Updates.screen_borrowed`."""
        wrong = self.updates.screen_borrowed(gram=gram, by_array=by_array, below=below)
        if self.second is not None:
            wrong = self.second.screen_borrowed(gram=False) | wrong
        for name, reason in [(self.names[place], reason) for place, reason in sorted(wrong.items())]:
            self.refuse(name, reason)

    def add_rows(self, reports: Reports, others: Sequence[Model], others_of_second: Sequence[Model] = ()) -> None:
        """Take in replies whose flat models lie in the rows of `updates.matrix` after those in use.

        Refuse those not finite.

        The `reports` are in ascending order of names, which is that of the rows. `others` has the buffers and integer
        arrays of each row's model, `others_of_second` those of the models in the rows of `second.matrix`.
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
    """Return the layout of second models: a snapshot is a whole model, any other record counts for its update alone."""
    return layout if record == SNAPSHOT else layout.trainable_part


class Clients(Protocol):
    """The clients of a run, which train and evaluate."""

    def online(self, fewest: int) -> Sequence[str]:
        """Return the names of the clients online, in ascending order, after waiting a while for this many."""

    def free(self) -> Sequence[str]:
        """Return the names of those online, in ascending order, that can be asked now: they owe no earlier reply."""

    def wait_until_free(self, fewest: int) -> None:
        """Wait until this many training clients are online and owe nothing.

        QuorumError says that the wait was in vain.
        """

    def about(self, names: Sequence[str]) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, str]]:
        """Ask these clients what is to be agreed about their data; return what each reports, and why some cannot."""

    def sizes(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return how many training examples each of these clients has, of those where that is known or can be asked."""

    def train(self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING) -> Trained:
        """Let these clients train the model on the terms, each on its data; vectors are `sent` to each, by record."""

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure."""

    def keep(self, since: int) -> None:
        """Store what clients keep, before a checkpoint is written; the run may go back to round `since`."""
