"""What leaves of a client with a privacy account: noisy steps, losses and test results.

A reply is built here from nothing: it has what this module puts into it, and nothing of an
ordinary reply.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fairbloom.protocol import names as wire
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
from .budget import LOSS_UNITS, STEP_UNITS, Budget
from .noise import Draw, release
from .rows import CLIP, Rows, check_model


@dataclass(frozen=True)
class Mechanism:
    """The noise of an account: its budget says how much, `draw` draws it."""

    budget: Budget
    draw: Draw

    def mean_gradient(self, rows: Rows) -> Tensor:
        """Return (1/n) [Σ g_i min(1, C/‖g_i‖) + σ (C + γ √d) z], flat, on the lattice."""
        total = rows.clipped_sum().numpy()
        return torch.from_numpy(release(total, self.budget.sigma, CLIP, self.draw)) / len(rows)

    def mean_loss(self, rows: Rows) -> float:
        """Return the loss report: (1/n) [Σ clip(loss, 0, B) + σ_l B z], in [0, B]."""
        total = np.array([rows.loss_sum()])
        (noisy,) = release(total, self.budget.loss_sigma, rows.bound, self.draw)
        return min(max(float(noisy) / len(rows), 0.0), rows.bound)

    def test(self, rows: Rows) -> dict[str, float]:
        """Return the test report: the accuracy, and the mean loss up to B."""
        total = np.array([rows.count_correct(), rows.loss_sum() / rows.bound])
        noisy = release(total, self.budget.test_sigma, math.sqrt(2.0), self.draw) / len(rows)
        accuracy, loss = noisy.clip(0.0, 1.0).tolist()
        return {wire.LOSS: loss * rows.bound, wire.ACCURACY: accuracy}


def load_received(client: LocalClient, received: StateDict, terms: Terms, metrics: Set[str]) -> int:
    """Load a received model, and return the number of its classes.

    Raise ReportableError for what no account does. All that is read is public: no row has a part
    in it.
    """
    check_terms(terms, metrics)
    classes = check_model(client.model, client.task)
    check_arrays(received, client.model.state_dict(), f"the record {wire.ARRAYS!r}")
    client.model.load_state_dict(received)
    return classes


class Training:
    """A round of training by an account: what is asked is checked before it is charged.

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
        self.units = STEP_UNITS * self._steps + LOSS_UNITS * (wire.LOSS_BEFORE in terms.measure)
        started = (
            start_rule(client, rule, received, terms, sent)
            for rule in rules_of(client.settings, terms)
            if isinstance(rule, Corrector)
        )
        self._started = next(started, None)  # one at most

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
        fixed.begin(parameters, work.learning_rate)
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

    units = 0

    def __init__(self, client: LocalClient, received: StateDict, terms: Terms) -> None:
        self._classes = load_received(client, received, terms, frozenset())
        self._client = client

    def run(self, mechanism: Mechanism) -> Update:
        """Return the report, without arrays."""
        client = self._client
        rows = Rows(client.model, client.splits.test, self._classes)
        return Update({}, {wire.NUM_EXAMPLES: len(rows), **mechanism.test(rows)}, {})
