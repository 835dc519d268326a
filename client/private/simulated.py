"""Accounts in one process: the noise of real ones, from the run's seed, so no row is protected."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch

from fairbloom.errors import ReportableError
from fairbloom.protocol import names as wire
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.private import check_settings, epsilon_of_client
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator
from fairbloom.protocol.sums import SharedNoise
from fairbloom.protocol.terms import Terms

from ..local import LocalClient, Metrics
from ..local_round import Update, evaluate_client, train_client
from ..states import StateDict, Version
from .budget import REPORTS, UNITS, Budget, check_budget
from .mechanism import Testing, Training
from .noise import DEVIATION_BITS, Draw, Integers, Naturals, draw_gaussian
from .rows import split_rows
from .sums import Partner, price_of

# The states with what a client has spent of its account, in units of steps, in reports, and in
# units of losses that it reported by themselves, each with the cost of the last reply of its kind.
STEPS = "privacy-train"
TESTS = "privacy-evaluate"
LOSSES = "privacy-loss"

TOTAL = "total"


@dataclass(frozen=True, kw_only=True)
class SimulatedAccount(Budget):
    """The account of a client in one process."""

    seed: int

    def train(
        self, client: LocalClient, received: StateDict, terms: Terms, sent: Mapping[str, StateDict]
    ) -> Update:
        """Return the reply of a round of training; raise ReportableError if it is spent."""
        training = Training(client, received, terms, sent)
        left = self.status_of(client, terms.server_round).units
        draw = self._draw("train", terms.server_round, client)
        mechanism = training.mechanism(self, draw, int(left))
        cost = training.cost(mechanism)
        self._charge(client, terms.server_round, STEPS, cost)
        return training.run(mechanism)

    def add(
        self, client: LocalClient, received: StateDict, terms: Terms, asked: SharedNoise
    ) -> Integers:
        """Return the client's part of a sum, at the received model; raise as `train`."""
        partner = Partner(client, received, terms, asked)
        price = price_of(self, asked.sigma)
        cost = {"spent": price.step, "step_sigma": asked.sigma}
        self._charge(client, terms.server_round, STEPS, cost)
        return partner.add(self._draw("train", terms.server_round, client))

    def report_loss(
        self, client: LocalClient, received: StateDict, terms: Terms, asked: SharedNoise
    ) -> float:
        """Return the client's mean loss at the received model, with noise; raise as `train`."""
        partner = Partner(client, received, terms, asked)
        price = price_of(self, asked.sigma)
        lattice = partner.loss_lattice(self, price.loss)
        cost = {"spent": price.loss, "loss_deviation": lattice.deviation / partner.count}
        self._charge(client, terms.server_round, LOSSES, cost)
        return partner.report_loss(lattice, self._draw("loss", terms.server_round, client))

    def evaluate(self, client: LocalClient, received: StateDict, terms: Terms) -> Metrics:
        """Return the exact results, and if one is left a test report as a device would send it."""
        testing = Testing(client, received, terms)
        exact = evaluate_client(client, received, replace(terms, measure=()))
        if not self.status_of(client, terms.server_round).reports:
            return exact
        mechanism = testing.mechanism(self, self._draw("evaluate", terms.server_round, client), 0)
        cost = testing.cost(mechanism)
        self._keep(client, terms.server_round, TESTS, cost)
        reported = testing.run(mechanism).metrics
        return {
            **exact,
            wire.REPORTED_ACCURACY: reported[wire.ACCURACY],
            wire.REPORTED_LOSS: reported[wire.LOSS],
            wire.ACCURACY_DEVIATION: cost["accuracy_deviation"],
            wire.LOSS_DEVIATION: cost["loss_deviation"],
        }

    def status_of(self, client: LocalClient, before: int) -> AccountStatus:
        """Return what a device would tell after its last reply of the rounds before one."""
        kept = {name: client.states.find(name, before) for name in (STEPS, TESTS, LOSSES)}
        last = max(filter(None, kept.values()), key=lambda each: each.made, default=None)
        spent = {name: _total_of(version) for name, version in kept.items()}
        units = int(spent[STEPS] + spent[LOSSES])
        left = {UNITS: self.units - units, REPORTS: max(0, self.tests - int(spent[TESTS]))}
        cost = {} if last is None else {key: float(each) for key, each in last.state.items()}
        cost.pop(TOTAL, None)
        return self.status(left, len(client.splits.train))._replace(**cost)

    def _draw(self, kind: str, number: int, client: LocalClient) -> Draw:
        """Return the source of noise that depends on the seed, the round and the client."""
        random = generator(self.seed, f"privacy {kind}", number, client.key)

        def words(count: int) -> Naturals:
            return np.frombuffer(random.bytes(8 * count), np.uint64)

        # the time of a draw in one process is no secret
        return partial(draw_gaussian, bits=DEVIATION_BITS, words=words, block=1)

    def _charge(
        self, client: LocalClient, number: int, name: str, cost: Mapping[str, float]
    ) -> None:
        """Keep what a reply of a round costs; raise ReportableError if less is left.

        A loss that was reported in the same round is spent before its step.
        """
        losses_before = number
        if name == STEPS:
            losses_before += 1
        steps = client.states.find(STEPS, number)
        losses = client.states.find(LOSSES, losses_before)
        left = self.units - int(_total_of(steps) + _total_of(losses))
        if cost["spent"] > left:
            raise ReportableError(
                f"the privacy budget is spent: {cost['spent']} units are asked for, and {left} are"
                " left",
                code=ErrorCode.BUDGET_SPENT,
            )
        self._keep(client, number, name, cost)

    def _keep(self, client: LocalClient, number: int, name: str, cost: Mapping[str, float]) -> None:
        spent = 1 if name == TESTS else cost["spent"]
        state = {**cost, TOTAL: _total_of(client.states.find(name, number)) + spent}
        client.states.keep(name, number, {key: torch.tensor(each) for key, each in state.items()})


def _total_of(version: Version | None) -> float:
    """Return what the state of a kind of reply says that was spent for it."""
    if version is None:
        return 0.0
    return float(version.state[TOTAL])


class NoAccount:
    """The account of a client without one: its replies leave as they are."""

    train = staticmethod(train_client)
    evaluate = staticmethod(evaluate_client)


Account = NoAccount | SimulatedAccount


def with_account(client: LocalClient, settings: RunSettings) -> tuple[LocalClient, Account]:
    """Return a client with the split of its simulated account, and the account."""
    epsilon = epsilon_of_client(settings, client.name)
    if epsilon is None:
        return client, NoAccount()
    check_settings(settings)
    splits = split_rows(client.splits, settings.seed, settings.test_share)
    given: dict[str, float] = {
        "epsilon": epsilon,
        "steps": settings.privacy__steps,
        "tests": settings.privacy__tests,
    }
    if settings.privacy__delta:
        given["delta"] = settings.privacy__delta
    budget = check_budget("privacy", given, len(splits.train) + len(splits.test))
    return replace(client, splits=splits), SimulatedAccount(**asdict(budget), seed=settings.seed)
