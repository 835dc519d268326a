"""The interface between a round and its clients: Flower's nodes, or clients in this process."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np

from fairbloom.errors import FairbloomError, did_you_mean, join_names
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.names import ROWS_MISSING, ROWS_VERSION, SNAPSHOT
from fairbloom.protocol.terms import Terms

from .arrays import FloatArray, Model
from .layout import Layout
from .refusals import Refusals
from .updates import Updates
from .vectors import Matrix, Vectors

# A round's metrics, by name.
Metrics = dict[str, Any]

# The metrics of each client, by client name in ascending order: finite numbers by their name on the
# wire.
Reports = dict[str, dict[str, float]]

# Only the model is sent, and no vectors.
NOTHING: Mapping[str, Model] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Replies:
    """The replies of a round's evaluation.

    Attributes
    ----------
    metrics
        The metrics of the usable replies.
    refused
        Why the other replies cannot be used, by client.
    missing
        The clients that did not answer.
    bytes_sent
        The size of all arrays that went out, as messages hold them.
    sizes
        The size of the arrays in each reply, as messages hold them.
    at_rest
        The clients that report that all their steps had a learning rate of 0.
    not_finite
        The metrics that clients replied as NaN or infinite, which are left out, with such a value.
    accounts
        The status of each client's privacy account in its reply, usable or not.
    """

    metrics: Reports
    refused: Refusals
    missing: tuple[str, ...] = ()
    bytes_sent: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    at_rest: frozenset[str] = frozenset()
    not_finite: Mapping[str, float] = field(default_factory=dict)
    accounts: Mapping[str, AccountStatus] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The clients with usable replies, in the order of names."""
        return tuple(self.metrics)

    @property
    def bytes_received(self) -> int:
        """The size of the arrays in the usable replies."""
        return sum(map(self.sizes.get, self.metrics, repeat(0)))

    def refuse(self, reasons: Mapping[str, ValueError | str]) -> None:
        """Remove replies that were added as usable, by client name."""
        for name, reason in reasons.items():
            del self.metrics[name]
            self.refused.add(name, reason)

    def summarize(self, asked: int, weight_key: str) -> Metrics:
        """Return the means over the clients, and how many clients were asked and replied."""
        return {
            **average_metrics(self.metrics, weight_key),
            "participants": asked,
            "replies-used": len(self.metrics),
            "replies-refused": self.refused.count,
            "replies-missing": len(self.missing),
        }


@dataclass(frozen=True, kw_only=True)
class TrainReplies(Replies):
    """The replies of a round's training.

    `second` has the updates of their second models, None if none were requested.
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
        matrices: Sequence[Matrix] = (),
    ) -> Self:
        """Return an object without replies yet.

        `second` names the record of each reply's second model. With `matrices`, flat models are
        written into their rows; without, each model is added with its own arrays.
        """
        second_matrix = matrices[1] if len(matrices) > 1 else None
        return cls(
            metrics={},
            refused=refused,
            missing=tuple(missing),
            updates=Updates(layout, matrices[0] if matrices else None),
            second=(
                Updates(layout_of_second(layout, second), second_matrix, second) if second else None
            ),
        )

    def without_updates(self) -> Replies:
        """Return the same replies without the updates; later refusals show in both."""
        return Replies(
            metrics=self.metrics,
            refused=self.refused,
            missing=self.missing,
            bytes_sent=self.bytes_sent,
            sizes=self.sizes,
        )

    def add(self, name: str, report: dict[str, float], arrays: Model, second: Model) -> None:
        """Add a reply; names come in ascending order."""
        self.updates.add(arrays)
        if self.second is not None:
            self.second.add(second)
        self.metrics[name] = report

    def add_rows(
        self, reports: Reports, others: Sequence[Model], others_of_second: Sequence[Model] = ()
    ) -> None:
        """Add replies with flat models in the rows of `updates.matrix` after those in use.

        The `reports` are in ascending order of names, and so are the rows. `others` has the buffers
        and integer arrays of each row's model, `others_of_second` those of the models in the rows
        of `second.matrix`.
        """
        self.updates.add_rows(others)
        if self.second is not None:
            self.second.add_rows(others_of_second)
        self.metrics.update(reports)

    def screen(
        self, *, gram: bool = False, by_array: bool = False, below: Sequence[Vectors] = ()
    ) -> None:
        """Refuse the replies that are not finite, once all are added; see `Updates.screen`."""
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
        """Remove replies that were added as usable, by client name."""
        if not reasons:
            return
        places = [place for place, name in enumerate(self.names) if name in reasons]
        for updates in (self.updates, self.second):
            if updates is not None:
                updates.remove(*places)
        super().refuse(reasons)


def layout_of_second(layout: Layout, record: str) -> Layout:
    """Return the layout of second models: snapshots are whole ones, others trained arrays."""
    if record == SNAPSHOT:
        return layout
    return Layout({name: layout.arrays[name] for name in layout.trainable}, buffers=())


def average_metrics(reports: Reports, weight_key: str) -> Metrics:
    """Return the mean of each metric that at least half of the reports have.

    A mean is over the reports that have the metric, weighted by `weight_key`. Rarer metrics are
    left out, so that a single client adds none, and so are reports without the weight: see
    `usable_evaluation`.
    """
    weighted = [report for report in reports.values() if weight_key in report]
    counts = Counter(chain.from_iterable(weighted))
    for key in (weight_key, ROWS_VERSION, ROWS_MISSING):  # of which a mean says nothing
        del counts[key]
    averaged: Metrics = {}
    for key, count in counts.items():
        if 2 * count < len(weighted):
            continue
        used = [report for report in weighted if key in report]
        values = np.array([report[key] for report in used], np.float64)
        weights = np.array([report[weight_key] for report in used], np.float64)
        # A client may report any float64.
        with np.errstate(over="ignore"):
            averaged[key] = float(values @ (weights / weights.sum()))
    return averaged


class ClientPool(Protocol):
    """The clients of a run, which train and evaluate."""

    def online(self, fewest: int) -> Sequence[str]:
        """Wait a while for `fewest` clients; return those online, in ascending order of names."""

    def free(self) -> Sequence[str]:
        """Return the clients online that owe no earlier reply, in ascending order of names."""

    def wait_until_free(self, fewest: int) -> None:
        """Wait until this many training clients are online and owe nothing.

        Raises
        ------
        QuorumError
            When the wait was in vain.
        """

    def sizes(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return the training examples of those of these clients that report them."""

    def train(
        self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING
    ) -> TrainReplies:
        """Train the model on each of these clients, on the given terms.

        `sent` holds the vectors that each client gets in addition, by record.
        """

    def evaluate(
        self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]
    ) -> Replies:
        """Evaluate the model on each of these clients.

        Only `participants` report the metrics in `terms.measure`.
        """

    def probe(self, names: Sequence[str], model: Model, terms: Terms) -> Replies:
        """Return the training losses of these clients at a model, which the method reads."""

    @property
    def accounts(self) -> Mapping[str, AccountStatus]:
        """The privacy accounts that clients have before the first round."""

    def keep(self, since: int) -> None:
        """Store the clients' state, before a checkpoint is written.

        The run may go back to round `since`.
        """


class ModelMakers(ClientPool, Protocol):
    """Clients that make the model of a task themselves."""

    @property
    def form(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """The shape and the type of an example's inputs by name, {} if they are not known here."""

    def announce(self, made: str) -> None:
        """Tell clients in other processes how the model is made, which they make themselves."""


def check_names(key: str, named: Sequence[str], clients: Sequence[str]) -> None:
    """Raise FairbloomError if a setting names an unknown client."""
    known = set(clients)
    for name in named:
        if name not in known:
            raise FairbloomError(
                f"{key} names {name!r}, which is not a client:"
                f" {did_you_mean(name, clients)}there are {join_names(clients)}"
            )
