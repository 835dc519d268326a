"""What a client with a privacy account tells the server of it."""

import math
from typing import NamedTuple, Self

from .parameters import Range

# The budget of an account, on a device or simulated: ε, beyond which the noise protects no row; δ,
# also at most 1/(10 n) for n rows; and the numbers of training steps and of tests.
EPSILONS = Range("(0, 100]")
DELTAS = Range("(0, 1)")
COUNTS = Range("[1, 1000000]")

# The least units of a training step, and of a reported loss.
STEP_UNITS = 4
LOSS_UNITS = 1

# C, the norm to which the gradient of a row is clipped.
CLIP = 1.0

# The largest loss of a row that counts, over that of guessing.
LOSS_BOUND = 1.5

# The largest number of a status that is accepted: float64 has every integer up to here.
LARGEST = 2.0**53

# The units that a run may spend of each account, by the words for them; 0: the lowest price of each
# round. With "lowest", an account need not last for all rounds.
SPENDS = {"": 0.0, "lowest": 0.0, "all": math.inf}


def largest_loss(classes: int) -> float:
    """Return B, the largest loss of a row in a report of an account."""
    return LOSS_BOUND * math.log(classes)


class AccountStatus(NamedTuple):
    """What a client's account says to the server, in each reply: all of it is public.

    Attributes
    ----------
    epsilon, delta, steps, tests
        What the account was opened for, over its life, or what its owner has tightened it to.
    sigma
        Noise of a training step at the lowest price, in clipped norms of a row.
    rows
        n, the number of training rows.
    units, reports
        What is left: units of steps and losses, and test reports.
    spent
        Units that this reply was charged.
    step_sigma
        Noise of a step of this reply, in clipped norms of a row; 0 without one.
    loss_deviation, accuracy_deviation
        Standard deviations of the noise in this reply's loss, in nats, and in its accuracy, a share
        of the test rows; 0 without one.
    """

    epsilon: float
    delta: float
    steps: float
    tests: float
    sigma: float
    rows: float
    units: float
    reports: float
    spent: float = 0.0
    step_sigma: float = 0.0
    loss_deviation: float = 0.0
    accuracy_deviation: float = 0.0

    @classmethod
    def of(cls, values: object) -> Self | None:
        """Return the status in a reply, None without one or with numbers that none has."""
        if not isinstance(values, list) or len(values) != len(cls._fields):
            return None
        if not all(isinstance(value, int | float) and 0.0 <= value <= LARGEST for value in values):
            return None
        status = cls(*map(float, values))
        return status if status.is_possible else None

    @property
    def is_possible(self) -> bool:
        """Whether an account may have been opened for these numbers, and have so much left."""
        return (
            self.epsilon in EPSILONS
            and self.delta in DELTAS
            and self.steps in COUNTS
            and self.tests in COUNTS
            and self.rows >= 1.0
            and self.units <= (STEP_UNITS + LOSS_UNITS) * self.steps
            and self.reports <= self.tests
        )
