"""Deadlines, and the clocks that measure them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self


class Clock(Protocol):
    """The clock of a run's waits: the module `time`, or one that only sleeping moves."""

    def monotonic(self) -> float:
        """Return the seconds since some moment; setting the clock does not change them."""

    def time(self) -> float:
        """Return the Unix time."""

    def sleep(self, seconds: float, /) -> None:
        """Return after these seconds."""


@dataclass(frozen=True)
class Deadline:
    """The end of `seconds` that began at the time `since`; `now` returns the present time."""

    since: float
    seconds: float
    now: Callable[[], float]

    @classmethod
    def after(cls, seconds: float | None, now: Callable[[], float]) -> Self:
        """Return the deadline in `seconds` from now; None: it never passes."""
        return cls(now(), math.inf if seconds is None else seconds, now)

    @property
    def elapsed(self) -> float:
        """The seconds since the beginning."""
        return self.now() - self.since

    @property
    def left(self) -> float:
        """The seconds until the deadline, 0 after it."""
        return max(0.0, self.seconds - self.elapsed)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.elapsed >= self.seconds
