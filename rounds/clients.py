"""The seam between a round and those who compute it: Flower's nodes, or clients in this process."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from fairbloom.protocol.terms import Terms

from .screening import Refusals, check_snapshot
from .updates import FloatArray, Layout, Model, Updates

Reports = dict[str, dict[str, float]]
"""What each client reports, by its name, in the order of names: finite numbers by the metric's name on the wire."""


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
    """

    metrics: Reports
    refused: Refusals
    missing: tuple[str, ...] = ()

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
    snapshots
        The models in the midst of the local work, as updates in the order of names; None where nobody asked for them.
    """

    updates: Updates
    snapshots: Updates | None = None

    @classmethod
    def none(cls, layout: Layout, capacity: int, *, refused: Refusals, missing: Sequence[str], snapshots: bool) -> Self:
        """Return an object without replies yet, for up to `capacity` of them."""
        return cls(
            metrics={},
            refused=refused,
            missing=tuple(missing),
            updates=Updates(layout, capacity),
            snapshots=Updates(layout, capacity) if snapshots else None,
        )

    def add(self, name: str, report: dict[str, float], arrays: Model, snapshot: Model) -> None:
        """Take in a reply; names come in ascending order.

        Raises
        ------
        ValueError
            When an array is not finite; nothing is taken in then.
        """
        self.updates.add(arrays)
        if self.snapshots is not None:
            try:
                check_snapshot(snapshot)
                self.snapshots.add(snapshot)
            except ValueError:
                self.updates.remove(len(self.metrics))
                raise
        self.metrics[name] = report

    def column(self, metric: str) -> FloatArray:
        """Return one metric of all usable replies, shape (m,)."""
        return np.array([report[metric] for report in self.metrics.values()], np.float64)

    def refuse(self, name: str, reason: ValueError | str) -> None:
        """Leave a reply out that was taken for usable."""
        place = self.names.index(name)
        for updates in (self.updates, self.snapshots):
            if updates is not None:
                updates.remove(place)
        del self.metrics[name]
        self.refused.add(name, reason)


class Clients(Protocol):
    """Those who train and evaluate."""

    def online(self, fewest: int) -> Collection[str]:
        """Return the names of the clients that are online, after waiting a while for so many."""

    def free(self) -> Collection[str]:
        """Return the names of those online that can be asked now, since they owe no earlier reply."""

    def about(self, names: Sequence[str]) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, str]]:
        """Ask these clients what is to be agreed about their data; return what each tells, and why some cannot."""

    def train(self, names: Sequence[str], model: Model, terms: Terms) -> Trained:
        """Let these clients train the model on the terms, each on its own data."""

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure."""
