"""Conditions that stand at a setting's declaration: where only some of its values are allowed.

Whoever asks, a device with a privacy account, clients that share noise, or a server of deployed
clients, goes through the settings in the order of their declaration, and says the first fault.
"""

from dataclasses import dataclass
from enum import Enum, auto


class Where(Enum):
    """Runs in which some values of a setting are refused."""

    ACCOUNT = auto()
    """Some clients have privacy accounts, on devices or simulated."""
    SUMS = auto()
    """Clients share the noise of their accounts."""


@dataclass(frozen=True, init=False)
class Under:
    """The only values that a setting may have in some runs, the usual one first: Under(SUMS, 1).

    Without values, it may have any.
    """

    where: Where
    values: tuple[bool | int | float | str | None, ...]

    def __init__(self, where: Where, *values: bool | int | float | str | None) -> None:
        object.__setattr__(self, "where", where)
        object.__setattr__(self, "values", values)

    def allows(self, value: object) -> bool:
        """Return whether a setting may have this value."""
        return not self.values or value in self.values


@dataclass(frozen=True)
class OnlyInProcess:
    """A mark of a setting that deployed clients cannot have but at its default, with the reason.

    `remedy` follows "leave it out with deployed clients".
    """

    why: str
    remedy: str = ""


# A setting may have any value with privacy accounts: it does not change what a row contributes, or
# acts on what is released.
WITH_ACCOUNTS = Under(Where.ACCOUNT)
