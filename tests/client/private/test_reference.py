"""Budgets against dp-accounting, which lives in an environment of its own: make test-privacy."""

import json
import os
import subprocess

import pytest

from fairbloom.client.private.budget import Budget, epsilon_of

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
