"""Accounts in one process: the noise of real ones, from the run's seed, so nobody is protected."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from fairbloom.errors import ReportableError
from fairbloom.protocol import names as wire
from fairbloom.protocol.accounts import SPENT, AccountStatus
from fairbloom.protocol.private import check_settings, epsilon_of_client
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator
from fairbloom.protocol.terms import Terms

from ..local import LocalClient, Metrics
from ..local_round import Update
from ..states import StateDict
from .account import REPORTS, UNITS
from .budget import Budget
from .mechanism import Mechanism, Testing, Training
from .noise import Draw, Vector, normal_of
from .opening import DELTA
from .rows import split_rows

# The name of the state that counts what a client has spent of its account.
SPENDING = "privacy"


@dataclass(frozen=True)
class SimulatedAccount:
    """The account of a client in one process."""

    budget: Budget
    seed: int

    def train(
        self, client: LocalClient, received: StateDict, terms: Terms, sent: Mapping[str, StateDict]
    ) -> Update:
        """Return the reply of a round of training; raise ReportableError if it is spent."""
        training = Training(client, received, terms, sent)
        left = self.budget.units - self._spent(client, UNITS, terms.server_round)
        if training.units > left:
            raise ReportableError(f"{SPENT}: {training.units} units are asked for, {left} are left")
        self._spend(client, UNITS, training.units, terms.server_round)
        return training.run(Mechanism(self.budget, self.draw("train", terms.server_round, client)))

    def evaluate(self, client: LocalClient, received: StateDict, terms: Terms) -> Metrics:
        """Return a test report; without one left, the number of test rows."""
        testing = Testing(client, received, terms)
        if self._spent(client, REPORTS, terms.server_round) >= self.budget.tests:
            return {wire.NUM_EXAMPLES: len(client.splits.test)}
        self._spend(client, REPORTS, 1, terms.server_round)
        noise = Mechanism(self.budget, self.draw("evaluate", terms.server_round, client))
        return testing.run(noise).metrics

    def status(self, client: LocalClient, number: int) -> AccountStatus:
        """Return what is left of the account after a round."""
        units = self.budget.units - self._spent(client, UNITS, number + 1)
        return self.budget.status(
            units, self.budget.tests - self._spent(client, REPORTS, number + 1)
        )

    def draw(self, kind: str, number: int, client: LocalClient) -> Draw:
        """Return a source of noise that depends on the seed, the round and the client."""
        random = generator(self.seed, f"privacy {kind}", number, client.key)

        def draw(count: int) -> Vector:
            return normal_of(random.integers(0, 2**64, count, "uint64"))

        return draw

    def _spent(self, client: LocalClient, kind: str, before: int) -> int:
        found = client.states.find(f"{SPENDING}-{kind}", before)
        return 0 if found is None else int(found.state[kind])

    def _spend(self, client: LocalClient, kind: str, amount: int, number: int) -> None:
        spent = self._spent(client, kind, number) + amount
        client.states.keep(f"{SPENDING}-{kind}", number, {kind: torch.tensor(spent)})


def with_account(client: LocalClient, settings: RunSettings) -> LocalClient:
    """Return a client with the simulated account and split that the settings give it."""
    epsilon = epsilon_of_client(settings, client.name)
    if epsilon is None:
        return client
    check_settings(settings)
    splits = split_rows(client.splits, settings.seed, settings.test_share)
    rows = len(splits.train) + len(splits.test)
    delta = settings.privacy__delta or min(DELTA, 1.0 / (10 * rows))
    steps = settings.privacy__steps or settings.num_rounds * settings.local_epochs
    budget = Budget(epsilon, delta, steps, settings.privacy__tests)
    return replace(client, splits=splits, account=SimulatedAccount(budget, settings.seed))
