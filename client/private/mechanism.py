"""What leaves of a client with a privacy account: noisy steps, losses and test results.

A reply is built here from nothing: it has what this module puts into it, and nothing of an
ordinary reply.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fairbloom.errors import ReportableError
from fairbloom.protocol import names as wire
from fairbloom.protocol.accounts import LOSS_BOUND, largest_loss
from fairbloom.protocol.private import METRICS, check_terms
from fairbloom.protocol.terms import Terms

from ..capture import FixedStep
from ..local import LocalClient, Metrics
from ..local_round import Update
from ..metrics import WorkDone, requested_metrics
from ..plan import global_work, work_of_client
from ..rules.arrays import check_arrays
from ..rules.base import Corrector
from ..rules.registry import rules_of
from ..rules.rule_round import finish_rules, start_rule
from ..states import StateDict
from ..training import seeded
from ..work import StepsTaken, count_steps, descend
from .budget import Budget, Price
from .noise import Draw, Lattice, Vector, release
from .rows import CLIP, Rows, check_model

# The weight of a row's loss, over its bound B, next to its right class in a test report; and the
# length of what one row adds: a wrong row has (0, 0.3), a right one up to (1, 0.3/1.5).
LOSS_WEIGHT = 0.3
TEST_SENSITIVITY = math.hypot(1.0, LOSS_WEIGHT / LOSS_BOUND)


@dataclass(frozen=True)
class Mechanism:
    """The noise of a reply: its budget and its price say how much, `draw` draws it."""

    budget: Budget
    draw: Draw
    price: Price = Price()  # noqa: RUF009 (it never changes)

    def of_step(self, width: int) -> Lattice:
        """Return the lattice of a clipped sum of this width."""
        return Lattice(self.budget.sigma_of(self.price.step), CLIP, width)

    def of_loss(self, bound: float) -> Lattice:
        """Return the lattice of a sum of losses up to this bound."""
        return Lattice(self.budget.sigma_of(self.price.loss), bound, 1)

    @property
    def of_test(self) -> Lattice:
        """The lattice of a test report."""
        return Lattice(self.budget.test_sigma, TEST_SENSITIVITY, 2)

    def mean_gradient(self, rows: Rows) -> Tensor:
        """Return (1/n) [Σ g_i min(1, C/‖g_i‖) + σ C′ z], flat."""
        noisy = self._release(rows.clipped_sum().numpy(), self.of_step(rows.width))
        return torch.from_numpy(noisy) / len(rows)

    def mean_loss(self, rows: Rows) -> float:
        """Return the loss report: (1/n) [Σ clip(loss, 0, B) + σ_l B′ z]."""
        total = float(rows.losses().sum())
        noisy = self._release(np.array([total]), self.of_loss(rows.bound))
        return float(noisy[0]) / len(rows)

    def test(self, rows: Rows) -> dict[str, float]:
        """Return the test report: the accuracy, and the mean loss; neither is cut."""
        right, losses = rows.test()
        total = np.array([right, LOSS_WEIGHT * losses / rows.bound])
        accuracy, loss = (self._release(total, self.of_test) / len(rows)).tolist()
        return {wire.LOSS: loss * rows.bound / LOSS_WEIGHT, wire.ACCURACY: accuracy}

    def _release(self, total: Vector, lattice: Lattice) -> Vector:
        return release(lattice.places(total), lattice.spacing, self.draw)


def load_received(client: LocalClient, received: StateDict, terms: Terms, metrics: Set[str]) -> int:
    """Load a received model, and return the number of its classes.

    Raise ReportableError for what no account does. All that is read is public: no row has a part
    in it.
    """
    check_terms(terms, metrics)
    classes = check_model(client.model, client.task)
    check_arrays(received, client.model.state_dict(), f"the record {wire.ARRAYS!r}")
    client.model.load_state_dict(received)
    row, _ = client.splits.train[slice(0, 1)]
    with torch.no_grad():
        outputs = client.model.eval()(torch.zeros_like(cast(Tensor, row)))
    if outputs.shape != (1, classes):
        raise ReportableError(
            f"the model has outputs of shape {tuple(outputs.shape)} for a row, and the task has"
            f" {classes} classes: take a model with an output for each"
        )
    return classes


class Training:
    """A round of training by an account: a message is checked before it is charged.

    For arguments see `train_client`.
    """

    def __init__(
        self,
        client: LocalClient,
        received: StateDict,
        terms: Terms,
        sent: Mapping[str, StateDict],
    ) -> None:
        self._classes = load_received(client, received, terms, METRICS)
        self._client = client
        self._received = received
        self._terms = terms
        self._work = work_of_client(
            global_work(client.settings, terms), client.settings, terms, client.key
        )
        self._steps = count_steps(1, self._work)  # each is of all rows
        self._with_loss = wire.LOSS_BEFORE in terms.measure
        started = (
            start_rule(client, rule, received, terms, sent)
            for rule in rules_of(client.settings, terms)
            if isinstance(rule, Corrector)
        )
        self._started = next(started, None)  # one at most

    def mechanism(self, budget: Budget, draw: Draw, left: int) -> Mechanism:
        """Return the mechanism at the price of this message, with `left` units in the account.

        Raise ReportableError if its arithmetic would not be exact.
        """
        terms = self._terms
        price = Price()
        if terms.privacy_units is not None and terms.privacy_rounds is not None:
            left = min(left, terms.privacy_units)
            price = Price.of(left, terms.privacy_rounds, self._steps, with_loss=self._with_loss)
        found = Mechanism(budget, draw, price)
        trained = [each for _, each in self._client.trainable()]
        count = len(self._client.splits.train)
        width = sum(each.numel() for each in trained)
        found.of_step(width).check(count)
        found.of_loss(largest_loss(self._classes)).check(count)
        return found

    def cost(self, mechanism: Mechanism) -> Mapping[str, float]:
        """Return what the account's status says of the reply: units, and deviations of noise."""
        step, loss = mechanism.price
        return {
            "spent": step * self._steps + loss * self._with_loss,
            "step_sigma": mechanism.budget.sigma_of(step),
            "loss_deviation": mechanism.of_loss(largest_loss(self._classes)).deviation
            / len(self._client.splits.train)
            * self._with_loss,
        }

    def run(self, mechanism: Mechanism) -> Update:
        """Return the reply after the noisy steps."""
        client = self._client
        terms = self._terms
        rows = Rows(client.model, client.splits.train, self._classes)
        scores: dict[str, float] = {}
        if wire.LOSS_BEFORE in terms.measure:
            scores[wire.LOSS_BEFORE] = mechanism.mean_loss(rows)
        steps = self._descend(rows, mechanism)
        trained = {name: each.detach() for name, each in client.trainable()}
        if self._started is not None:
            finish_rules([(client, self._started, trained, steps)], terms)
        done = WorkDone(
            lambda: self._work.learning_rate,
            lambda: [(self._received[name], each) for name, each in trained.items()],
            lambda: steps.rate_sum,
        )
        metrics: Metrics = {
            wire.NUM_EXAMPLES: len(rows),
            **requested_metrics(terms.measure, scores, lambda: done),
        }
        if terms.state_round is not None:
            metrics[wire.STATE_ROUND] = 0 if self._started is None else self._started.origin
        return Update({**self._received, **trained}, metrics, {})

    def _descend(self, rows: Rows, mechanism: Mechanism) -> StepsTaken:
        """Take the steps on the client's model, each by a noisy mean gradient."""
        work = self._work
        parameters = [each for _, each in self._client.trainable()]
        sizes = [parameter.numel() for parameter in parameters]
        started = self._started
        fixed = FixedStep(self._client.model.train(), parameters, work)
        fixed.begin(parameters, work.learning_rate, work.draws)
        with seeded(work.draws, torch.device("cpu")):
            for step in range(1, self._steps + 1):
                rows.load(parameters)
                parts = torch.split(mechanism.mean_gradient(rows), sizes)
                gradients = [
                    part.view_as(each).to(each)
                    for part, each in zip(parts, parameters, strict=True)
                ]
                with torch.no_grad():
                    descend(
                        parameters,
                        gradients,
                        fixed.received,
                        fixed.velocity,
                        work,
                        optimizer=fixed.optimizer,
                        correct=None if started is None else partial(started.correct, step=step),
                    )
        return StepsTaken((work.learning_rate,) * self._steps)


class Testing:
    """A test report by an account; like `Training`, it is checked before it is charged."""

    def __init__(self, client: LocalClient, received: StateDict, terms: Terms) -> None:
        self._classes = load_received(client, received, terms, frozenset())
        self._client = client

    def mechanism(self, budget: Budget, draw: Draw, left: int) -> Mechanism:
        """Return the mechanism of a test report, which costs one of these."""
        found = Mechanism(budget, draw)
        found.of_test.check(len(self._client.splits.test))
        return found

    def cost(self, mechanism: Mechanism) -> Mapping[str, float]:
        """Return the deviations of the report's noise."""
        of_mean = mechanism.of_test.deviation / len(self._client.splits.test)
        of_loss = of_mean * largest_loss(self._classes) / LOSS_WEIGHT
        return {"spent": 0, "loss_deviation": of_loss, "accuracy_deviation": of_mean}

    def run(self, mechanism: Mechanism) -> Update:
        """Return the report, without arrays."""
        client = self._client
        rows = Rows(client.model, client.splits.test, self._classes)
        return Update({}, {wire.NUM_EXAMPLES: len(rows), **mechanism.test(rows)}, {})
