"""Accounts in one process: the noise of real ones, from the run's seed, so nobody is protected."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from fairbloom.errors import ReportableError
from fairbloom.protocol import names as wire
from fairbloom.protocol.accounts import SPENT
from fairbloom.protocol.private import check_settings, epsilon_of_client
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator
from fairbloom.protocol.terms import Terms

from ..local import LocalClient, Metrics
from ..local_round import Update, evaluate_client, train_client
from ..states import StateDict
from .budget import REPORTS, UNITS, Budget
from .mechanism import Mechanism, Testing, Training
from .noise import Vector, normal_of
from .opening import DELTA
from .rows import split_rows

# The name of the state that counts what a client has spent of its account.
SPENDING = "privacy"


@dataclass(frozen=True, kw_only=True)
class SimulatedAccount(Budget):
    """The account of a client in one process."""

    seed: int

    def train(
        self, client: LocalClient, received: StateDict, terms: Terms, sent: Mapping[str, StateDict]
    ) -> Update:
        """Return the reply of a round of training; raise ReportableError if it is spent."""
        training = Training(client, received, terms, sent)
        left = self.left(client, terms.server_round)[UNITS]
        if training.units > left:
            raise ReportableError(f"{SPENT}: {training.units} units are asked for, {left} are left")
        self._spend(client, UNITS, training.units, terms.server_round)
        return training.run(self._mechanism("train", terms.server_round, client))

    def evaluate(self, client: LocalClient, received: StateDict, terms: Terms) -> Metrics:
        """Return a test report; without one left, the number of test rows."""
        testing = Testing(client, received, terms)
        if not self.left(client, terms.server_round)[REPORTS]:
            return {wire.NUM_EXAMPLES: len(client.splits.test)}
        self._spend(client, REPORTS, 1, terms.server_round)
        return testing.run(self._mechanism("evaluate", terms.server_round, client)).metrics

    def left(self, client: LocalClient, before: int) -> dict[str, int]:
        """Return what is left of units and reports before a round."""
        return {
            kind: most - self._spent(client, kind, before) for kind, most in self.limits.items()
        }

    def _mechanism(self, kind: str, number: int, client: LocalClient) -> Mechanism:
        """Return a mechanism with noise that depends on the seed, the round and the client."""
        random = generator(self.seed, f"privacy {kind}", number, client.key)

        def draw(count: int) -> Vector:
            return normal_of(random.integers(0, 2**64, count, "uint64"))

        return Mechanism(self, draw)

    def _spent(self, client: LocalClient, kind: str, before: int) -> int:
        found = client.states.find(f"{SPENDING}-{kind}", before)
        return 0 if found is None else int(found.state[kind])

    def _spend(self, client: LocalClient, kind: str, amount: int, number: int) -> None:
        spent = self._spent(client, kind, number) + amount
        client.states.keep(f"{SPENDING}-{kind}", number, {kind: torch.tensor(spent)})


class NoAccount:
    """The account of a client without one: what it has trained and measured leaves as it is."""

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
    rows = len(splits.train) + len(splits.test)
    account = SimulatedAccount(
        epsilon=epsilon,
        delta=settings.privacy__delta or min(DELTA, 1.0 / (10 * rows)),
        steps=settings.privacy__steps or settings.num_rounds * settings.local_epochs,
        tests=settings.privacy__tests,
        seed=settings.seed,
    )
    return replace(client, splits=splits), account
