"""What a client with a privacy account tells the server of it."""

from typing import NamedTuple, Self

# The beginning of the reason of a client that has no budget left.
SPENT = "the privacy budget is spent"


class AccountStatus(NamedTuple):
    """What a client's account says to the server, in each reply.

    `units` of the steps and loss reports, and `reports` on tests, are left.
    """

    epsilon: float
    delta: float
    steps: float
    tests: float
    sigma: float
    units: float
    reports: float

    @classmethod
    def of(cls, values: object) -> Self | None:
        """Return the status in a reply, None if there is none or it is malformed."""
        if not isinstance(values, list) or len(values) != len(cls._fields):
            return None
        if not all(isinstance(value, int | float) and value >= 0.0 for value in values):
            return None
        return cls(*map(float, values))
