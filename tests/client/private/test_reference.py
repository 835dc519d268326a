"""Budgets against dp-accounting, which lives in an environment of its own, and an audit of whole
accounts: make test-privacy."""

import json
import os
import subprocess

import numpy as np
import pytest
import torch
from torch import nn

from fairbloom.client.private.budget import Budget, Price, epsilon_of
from fairbloom.client.private.mechanism import Mechanism
from fairbloom.client.private.noise import draw_noise
from fairbloom.client.private.rows import Rows
from fairbloom.tasks import Examples

PYTHON = os.environ.get("DP_ACCOUNTING_PYTHON", "")

pytestmark = pytest.mark.skipif(not PYTHON, reason="needs dp-accounting: make test-privacy")

# Prints ε of each (noise, count, δ) by dp-accounting's privacy loss distributions.
SCRIPT = """
import json, sys
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent, pld
found = []
for sigma, count, delta in json.load(sys.stdin):
    accountant = pld.PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(sigma), count))
    found.append(accountant.get_epsilon(delta))
print(json.dumps(found))
"""


def test_budgets_are_those_of_dp_accounting() -> None:
    """Within its discretisation, 1e-4; whole accounts of steps and losses spend their ε."""
    cases = [(5.0, 20, 1e-5), (8.0, 177, 1e-5), (8.0, 33, 1e-5), (1.0, 1, 1e-3)]
    ours = [epsilon_of(count**0.5 / sigma, delta) for sigma, count, delta in cases]
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-5), (3.0, 1e-5), (8.0, 1e-3)):
        budget = Budget(epsilon, delta, 90, 10)
        cases += [(budget.sigma, 90 * 5 // 4, delta), (budget.test_sigma, 10, delta)]
        ours += [epsilon_of((90 * 5 // 4) ** 0.5 / budget.sigma, delta), epsilon]
        assert ours[-2] <= epsilon
    answer = subprocess.run(
        [PYTHON, "-c", SCRIPT], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    assert json.loads(answer.stdout) == pytest.approx(ours, rel=2e-3, abs=1e-3)


# Accounts with the row, and as many without it.
ACCOUNTS = 2000


@pytest.mark.parametrize("price", [Price(), Price(12, 3)], ids=["lowest", "higher"])
def test_whole_accounts_measure_what_they_claim(price: Price) -> None:
    """The likelihood of a planted row, over all that an account of ε = 3 releases, is that of μ.

    Its gradient and its loss are the largest, and the weights are the server's: they stay.
    """
    budget = Budget(3.0, 1e-5)
    model = nn.Sequential(nn.Linear(2, 2))
    nn.init.constant_(model[0].weight, 0.0)
    model[0].weight.data[0] = 100.0
    inputs = torch.tensor([[1.0, 1.0], [-0.1, 0.2], [0.3, -0.2]])
    sides = [
        Rows(model, Examples(inputs[place:], torch.ones(3 - place).long()), 2) for place in (0, 1)
    ]
    pool = draw_noise(ACCOUNTS * 2000)
    places = iter(range(len(pool)))
    mechanism = Mechanism(budget, lambda count: pool[[next(places) for _ in range(count)]], price)
    row = sides[0].clipped_sum() - sides[1].clipped_sum()
    steps = budget.units // sum(price)
    noise = budget.sigma_of(price.step), budget.sigma_of(price.loss)
    found = np.zeros((2, ACCOUNTS))
    for side, rows in enumerate(sides):
        for account in range(ACCOUNTS):
            for _ in range(steps):
                step = mechanism.mean_gradient(rows) * len(rows) - sides[1].clipped_sum()
                loss = mechanism.mean_loss(rows) * len(rows) - float(sides[1].losses().sum())
                found[side, account] += float(step @ row) / noise[0] ** 2
                found[side, account] += loss / rows.bound / noise[1] ** 2
    apart = (found[0].mean() - found[1].mean()) / np.sqrt(found.var(axis=1).mean())
    assert apart == pytest.approx(
        budget.mu * np.sqrt(steps * sum(price) / budget.units), abs=4.0 * np.sqrt(2.0 / ACCOUNTS)
    )
