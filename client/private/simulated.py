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
from fairbloom.protocol.terms import Terms

from ..local import LocalClient, Metrics
from ..local_round import Update, evaluate_client, train_client
from ..states import StateDict
from .budget import REPORTS, UNITS, Budget, check_budget
from .mechanism import Testing, Training
from .noise import DEVIATION_BITS, Draw, Naturals, draw_gaussian
from .rows import split_rows

# The names of the states with what a client has spent of its account, in units and in reports, and
# with the cost of its last reply.
STATES = ("privacy-train", "privacy-evaluate")

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
        if cost["spent"] > left:
            raise ReportableError(
                f"the privacy budget is spent: {cost['spent']} units are asked for, {left:g} are"
                " left",
                code=ErrorCode.BUDGET_SPENT,
            )
        self._keep(client, terms.server_round, cost, 0)
        return training.run(mechanism)

    def evaluate(self, client: LocalClient, received: StateDict, terms: Terms) -> Metrics:
        """Return the exact results, and if one is left a test report as a device would send it."""
        testing = Testing(client, received, terms)
        exact = evaluate_client(client, received, replace(terms, measure=()))
        if not self.status_of(client, terms.server_round).reports:
            return exact
        mechanism = testing.mechanism(self, self._draw("evaluate", terms.server_round, client), 0)
        cost = testing.cost(mechanism)
        self._keep(client, terms.server_round, cost, 1)
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
        found = [client.states.find(each, before) for each in STATES]
        last = max(filter(None, found), key=lambda each: each.made, default=None)
        spent = [0.0 if each is None else float(each.state[TOTAL]) for each in found]
        left = {UNITS: self.units - int(spent[0]), REPORTS: max(0, self.tests - int(spent[1]))}
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

    def _keep(
        self, client: LocalClient, number: int, cost: Mapping[str, float], reports: int
    ) -> None:
        name = STATES[reports]
        found = client.states.find(name, number)
        before = 0.0 if found is None else float(found.state[TOTAL])
        spent = reports or cost["spent"]
        state = {**cost, TOTAL: before + spent}
        client.states.keep(name, number, {key: torch.tensor(each) for key, each in state.items()})


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
