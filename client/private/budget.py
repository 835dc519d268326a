"""The budget of a privacy account, in Gaussian differential privacy (GDP).

A budget of (ε, δ) is one of μ, and every release of noise σ costs 1/σ² of μ². Costs are counted in
units of u = μ²/(5 steps): a release that costs c of them has noise 1/√(c u). Sums are whole
numbers, and the account is never passed by rounding. A training step costs at least 4 and a
reported loss 1; a run that needs few steps may buy better ones.

Sources: Dong, Roth, Su, Gaussian Differential Privacy, 2019; Balle, Wang, ICML 2018 (δ of ε);
Koskela et al., arXiv 2209.15596, and Smith, Thakurta, arXiv 2210.17520 (adaptive composition).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

from fairbloom.errors import FairbloomError
from fairbloom.protocol.accounts import (
    LOSS_UNITS as LOSS_UNITS,
    STEP_UNITS as STEP_UNITS,
    AccountStatus,
)

# The names of the two counts: units of steps and loss reports, and test reports.
UNITS = "units"
REPORTS = "reports"


class Price(NamedTuple):
    """The units of each training step of a message, and of its loss report."""

    step: int = STEP_UNITS
    loss: int = LOSS_UNITS

    @classmethod
    def of(cls, left: int, rounds: int, steps: int, *, with_loss: bool) -> Self:
        """Return the price that spends `left` units evenly over rounds of `steps` steps each."""
        of_round = STEP_UNITS * steps + LOSS_UNITS * with_loss
        step = max(STEP_UNITS, left * STEP_UNITS // (rounds * of_round))
        return cls(step, max(LOSS_UNITS, step // STEP_UNITS))


# The largest δ unless one is set.
DELTA = 1e-5

# The largest and the least μ that are searched; ε of a μ beyond says nothing.
MU_RANGE = (1e-9, 1e3)


@dataclass(frozen=True)
class Budget:
    """What an account allows over its life.

    Attributes
    ----------
    epsilon, delta
        The (ε, δ) of everything that leaves about a row of the training split, and the same of a
        row of the test split. They hold if a row is blanked; see `replacement_epsilon`.
    steps
        Training steps, with as many loss reports; without these, a quarter more.
    tests
        Test reports.
    """

    epsilon: float
    delta: float
    steps: int = 90
    tests: int = 1

    @cached_property
    def mu(self) -> float:
        """The budget in GDP."""
        return mu_of(self.epsilon, self.delta)

    @property
    def units(self) -> int:
        """Units of all steps and loss reports."""
        return (STEP_UNITS + LOSS_UNITS) * self.steps

    @property
    def limits(self) -> dict[str, int]:
        """The most units and test reports."""
        return {UNITS: self.units, REPORTS: self.tests}

    def sigma_of(self, units: int) -> float:
        """σ of a release at a price of c units: 1/√(c u), in its sensitivity."""
        return math.sqrt(self.units / units) / self.mu

    def units_for(self, sigma: float) -> int:
        """Return the least whole units that pay for a release of noise σ: ⌈1/(σ² u)⌉.

        Rounding of u does not make it one more.
        """
        return max(1, math.ceil((1.0 - 1e-12) * self.units / (sigma * self.mu) ** 2))

    @property
    def sigma(self) -> float:
        """σ of a training step at the lowest price, in clipped norms of a row: 1/(2 √u)."""
        return self.sigma_of(STEP_UNITS)

    @property
    def test_sigma(self) -> float:
        """σ of a test report, in its sensitivity."""
        return math.sqrt(self.tests) / self.mu

    def units_within(self, mu: float) -> int:
        """Return the units that a smaller budget allows: ⌊N μ′²/μ²⌋."""
        return math.floor(self.units * min(1.0, (mu / self.mu) ** 2))

    def epsilon_after(self, units: float) -> float:
        """Return ε of all releases for a number of units."""
        return epsilon_of(self.mu * math.sqrt(units / self.units), self.delta)

    def status(self, left: Mapping[str, int], rows: int) -> AccountStatus:
        """Return what the server gets, with the units and test reports that are left."""
        return AccountStatus(
            *(self.epsilon, self.delta, self.steps, self.tests, self.sigma, rows),
            *(left[UNITS], left[REPORTS]),
        )

    def epsilon_with(self, honest: int, followed: int) -> float:
        """Return ε of shared noise for `honest` clients, if `followed` of them do their part."""
        return epsilon_of(self.mu * math.sqrt(honest / followed), self.delta)

    @property
    def replacement_epsilon(self) -> float:
        """ε if a row is replaced by another: that costs 2μ."""
        return epsilon_of(2.0 * self.mu, self.delta)


def check_budget(called: str, given: Mapping[str, Any], rows: int) -> Budget:
    """Return the budget of an account for rows, on a device or simulated.

    `given` has its epsilon, and perhaps delta, steps and tests, each in its declared range.
    `called` is what names them in errors: "limits.privacy" or "privacy".

    Raises
    ------
    FairbloomError
        If δ is above 1/(10 n), or no noise can be computed for ε and δ.
    """
    most = 1.0 / (10 * rows)
    delta = float(given.get("delta", min(DELTA, most)))
    if not delta <= most:
        raise FairbloomError(
            f"{called}.delta = {delta:g}: at most 1/(10 n) = {most:.2g} for {rows} rows: lower it,"
            " or leave it out"
        )
    counts = {key: int(given[key]) for key in ("steps", "tests") if key in given}
    try:
        budget = Budget(float(given["epsilon"]), delta, **counts)
        _ = budget.mu
    except ValueError as error:
        raise FairbloomError(f"{called} has {error}") from error
    return budget


def log_delta(epsilon: float, mu: float) -> float:
    """Return ln δ of (ε, μ): δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)."""
    from scipy.special import log_ndtr  # imported late: most devices have no account

    above = float(log_ndtr(mu / 2.0 - epsilon / mu))
    below = epsilon + float(log_ndtr(-mu / 2.0 - epsilon / mu))
    return above + math.log1p(-math.exp(below - above)) if below < above else -math.inf


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ that is (ε, δ)-private; raise ValueError if no μ is."""
    from scipy.optimize import brentq

    if not (epsilon > 0.0 and 0.0 < delta < 1.0):
        raise ValueError(f"ε = {epsilon}, δ = {delta}: ε must be above 0, and δ between 0 and 1")
    if not log_delta(epsilon, MU_RANGE[0]) <= math.log(delta) <= log_delta(epsilon, MU_RANGE[1]):
        raise ValueError(f"ε = {epsilon}, δ = {delta}: beyond what can be computed with")
    mu = float(brentq(lambda each: log_delta(epsilon, each) - math.log(delta), *MU_RANGE))
    return mu * (1.0 - 1e-9)  # the root may lie above the true one by its tolerance


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least ε ≥ 0 with which μ is (ε, δ)-private."""
    from scipy.optimize import brentq

    if log_delta(0.0, mu) <= math.log(delta):
        return 0.0
    high = 1.0
    while log_delta(high, mu) > math.log(delta):
        high *= 2.0
    return float(brentq(lambda each: log_delta(each, mu) - math.log(delta), 0.0, high))
