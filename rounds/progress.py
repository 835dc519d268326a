"""How far a run has come, without the memory of its method."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from .arrays import FloatArray
from .average import Average
from .cohort import Kept
from .server_optimizer import Moments
from .states import States
from .vectors import Vectors

ROUNDS_BACK = 5
"""How many earlier rounds a round is compared with, by their numbers; a skipped one has nothing to
compare."""

SERVER_OPTIMIZER = "server-optimizer"
"""Where a state has the server optimizer and what it keeps."""


@dataclass(frozen=True)
class NormHistory:
    """What a run remembers of the lengths of its updates and steps.

    `used` has ‖u_k‖/e_k of the used replies, by round, of the last ROUNDS_BACK rounds;
    `longest_step` is the length of the run's longest step.
    """

    used: Mapping[int, FloatArray] = field(default_factory=dict)
    longest_step: float = 0.0

    def before(self, server_round: int) -> FloatArray:
        """Return ‖u_k‖/e_k of all replies that were used in the rounds that this one is compared with."""
        recent = [
            found
            for number, found in self.used.items()
            if server_round - ROUNDS_BACK <= number < server_round
        ]
        return np.concatenate(recent) if recent else np.empty(0)

    def plus(self, server_round: int, used: FloatArray, step: float) -> Self:
        """Return the same with one more round: ‖u_k‖/e_k of its used replies, and the length of its step."""
        kept = {
            number: found
            for number, found in self.used.items()
            if number > server_round - ROUNDS_BACK
        }
        return type(self)({**kept, server_round: used}, max(step, self.longest_step))

    def state_dict(self) -> dict[str, Any]:
        """Return it as str, numbers, arrays and dicts."""
        return {
            "used": {str(number): found for number, found in self.used.items()},
            "longest-step": self.longest_step,
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """Return what `state_dict` returned."""
        used = {
            int(number): np.asarray(found, np.float64) for number, found in state["used"].items()
        }
        return cls(used, float(state["longest-step"]))


@dataclass
class Progress:
    """How far a run has come, and what it knows of its clients, in addition to the method's own memory.

    `finished_rounds` is the number of the last one; `steps` counts those that took a step, and
    `skipped` those in a row without one up to now; `first_counts` has the weight of each client's
    first usable reply, or what it said before.
    """

    finished_rounds: int = 0
    steps: int = 0
    skipped: int = 0
    kept: dict[Kept, Vectors] = field(default_factory=dict)
    first_counts: dict[str, float] = field(default_factory=dict)
    average: Average = field(default_factory=Average)
    norms: NormHistory = field(default_factory=NormHistory)
    roster: dict[str, float] = field(default_factory=dict)
    moments: Moments | None = None
    states: States = field(default_factory=States)
