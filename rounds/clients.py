"""The seam between a round and those who compute it: Flower's nodes, or clients in this process."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fairbloom.protocol.names import SNAPSHOT
from fairbloom.protocol.terms import Terms

from .arrays import FloatArray, Model
from .layout import Layout
from .refusals import Refusals
from .updates import Updates
from .vectors import Vectors

Reports = dict[str, dict[str, float]]
"""What each client reports, by its name, in the order of names: finite numbers by the metric's name
on the wire."""

NOTHING: Mapping[str, Model] = MappingProxyType({})
"""Only the model is sent, and no vectors."""


@dataclass(frozen=True, kw_only=True)
class Replies:
    """The replies of a round's evaluation: what the usable ones report, and why others cannot be used, by name.

    `bytes_sent` is the size of all arrays that went out, `sizes` that of those in each reply, as
    messages hold them. `hostile` are the clients that attack in an experiment: means leave them
    out.
    """

    metrics: Reports
    refused: Refusals
    missing: tuple[str, ...] = ()
    bytes_sent: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    hostile: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The clients with usable replies, in the order of names."""
        return tuple(self.metrics)

    @property
    def bytes_received(self) -> int:
        """The size of the arrays in the usable replies."""
        return sum(self.sizes.get(name, 0) for name in self.metrics)


@dataclass(frozen=True, kw_only=True)
class TrainReplies(Replies):
    """The replies of a round's training.

    `second` are their second models as updates, None where none were requested.
    """

    updates: Updates
    second: Updates | None = None

    @classmethod
    def empty(
        cls,
        layout: Layout,
        *,
        refused: Refusals,
        missing: Sequence[str] = (),
        second: str = "",
        matrices: Sequence[NDArray[Any]] = (),
        hostile: frozenset[str] = frozenset(),
    ) -> Self:
        """Return an object without replies yet.

        `second` names the record of each reply's second model.

        Flat models are written into the rows of the `matrices`, where there are some; else models
        are added as they are.
        """
        first = matrices or (None,)
        other = matrices[1:] or (None,)
        return cls(
            metrics={},
            refused=refused,
            missing=tuple(missing),
            hostile=hostile,
            updates=Updates(layout, first[0]),
            second=Updates(layout_of_second(layout, second), other[0], second) if second else None,
        )

    def add(self, name: str, report: dict[str, float], arrays: Model, second: Model) -> None:
        """Take in a reply, in ascending order of names."""
        self.updates.add(arrays)
        if self.second is not None:
            self.second.add(second)
        self.metrics[name] = report

    def add_rows(
        self, reports: Reports, others: Sequence[Model], others_of_second: Sequence[Model] = ()
    ) -> None:
        """Take in replies whose flat models lie in the rows of `updates.matrix` after those in use.

        The `reports` are in ascending order of names, which is that of the rows. `others` has the
        buffers and integer arrays of each row's model, `others_of_second` those of the models in
        the rows of `second.matrix`.
        """
        self.updates.add_rows(others)
        if self.second is not None:
            self.second.add_rows(others_of_second)
        self.metrics.update(reports)

    def screen(
        self, *, gram: bool = False, by_array: bool = False, below: Sequence[Vectors] = ()
    ) -> None:
        """Refuse the replies that are not finite, once all are taken in; see `Updates.screen`."""
        wrong = {**self.updates.screen(gram=gram, by_array=by_array, below=below)}
        if self.second is not None:
            wrong = self.second.screen(gram=False) | wrong
        if wrong:
            names = self.names
            self.refuse({names[place]: wrong[place] for place in sorted(wrong)})

    def column(self, metric: str) -> FloatArray:
        """Return one metric of all usable replies, shape (m,)."""
        return np.array([report[metric] for report in self.metrics.values()], np.float64)

    def refuse(self, reasons: Mapping[str, ValueError | str]) -> None:
        """Leave replies out that were taken for usable, by client name."""
        if not reasons:
            return
        places = [place for place, name in enumerate(self.names) if name in reasons]
        for updates in (self.updates, self.second):
            if updates is not None:
                updates.remove(*places)
        for name, reason in reasons.items():
            del self.metrics[name]
            self.refused.add(name, reason)


def layout_of_second(layout: Layout, record: str) -> Layout:
    """Return the layout of second models: a snapshot is a whole model, any other record counts for its update alone."""
    return layout if record == SNAPSHOT else layout.trainable_part


class ClientPool(Protocol):
    """The clients of a run, which train and evaluate."""

    def online(self, fewest: int) -> Sequence[str]:
        """Return the names of the clients online, in ascending order, after waiting a while for this many."""

    def free(self) -> Sequence[str]:
        """Return the names of those online, in ascending order, that can be asked now: they owe no earlier reply."""

    def wait_until_free(self, fewest: int) -> None:
        """Wait until this many training clients are online and owe nothing.

        QuorumError says that the wait was in vain.
        """

    def sizes(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return how many training examples each of these clients has, of those where that is known or can be asked."""

    def train(
        self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING
    ) -> TrainReplies:
        """Let these clients train the model on the terms, each on its data.

        Vectors are `sent` to each, by record.
        """

    def evaluate(
        self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]
    ) -> Replies:
        """Let these clients evaluate the model.

        Of `participants` alone is asked what the terms ask to measure.
        """

    def keep(self, since: int) -> None:
        """Store what clients keep, before a checkpoint is written.

        The run may go back to round `since`.
        """
