"""How far a run has come, without the memory of its method."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from .arrays import FloatArray, Model
from .cohort import Kept
from .server_optimizer import Moments
from .states import States
from .vectors import Vectors

# A round is compared with this many earlier rounds, by number; skipped rounds have no norms.
ROUNDS_BACK = 5

# The key of the server optimizer and its moments in a state.
SERVER_OPTIMIZER = "server-optimizer"


@dataclass(frozen=True)
class NormHistory:
    """The norms of a run's updates and steps.

    `used` has ‖u_k‖/e_k of the used replies by round, for the last ROUNDS_BACK rounds;
    `longest_step` is the norm of the run's longest step.
    """

    used: Mapping[int, FloatArray] = field(default_factory=dict)
    longest_step: float = 0.0

    def before(self, server_round: int) -> FloatArray:
        """Return ‖u_k‖/e_k of all used replies in the rounds that this one is compared with."""
        recent = [
            norms
            for number, norms in self.used.items()
            if server_round - ROUNDS_BACK <= number < server_round
        ]
        return np.concatenate(recent) if recent else np.empty(0)

    def plus(self, server_round: int, used: FloatArray, step: float) -> Self:
        """Return the history with one more round.

        `used` has ‖u_k‖/e_k of its used replies, and `step` is the norm of its step.
        """
        kept = {
            number: norms
            for number, norms in self.used.items()
            if number > server_round - ROUNDS_BACK
        }
        return type(self)({**kept, server_round: used}, max(step, self.longest_step))

    def state_dict(self) -> dict[str, Any]:
        """Return the history as str, numbers, arrays and dicts."""
        return {
            "used": {str(number): norms for number, norms in self.used.items()},
            "longest-step": self.longest_step,
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the history of a state that `state_dict` returned."""
        return cls(
            {int(number): np.asarray(norms, np.float64) for number, norms in state["used"].items()},
            float(state["longest-step"]),
        )


@dataclass(frozen=True)
class Average:
    """The sum in float64 of the global models after some rounds, which gives their mean."""

    rounds: int = 0
    sums: Mapping[str, FloatArray] = field(default_factory=dict)

    def plus(self, model: Model) -> Self:
        """Return the sum with one more model."""
        sums = {
            name: np.asarray(np.add(self.sums.get(name, 0.0), array, dtype=np.float64))
            for name, array in model.items()
            if array.dtype.kind == "f"
        }
        return type(self)(self.rounds + 1, sums)

    def mean(self, last: Model) -> Model:
        """Return the mean, in the dtypes of the last model and with its integer arrays.

        It is the last model itself if no model was added.
        """
        if not self.rounds:
            return last
        means = {
            name: np.asarray(total / self.rounds, last[name].dtype)
            for name, total in self.sums.items()
        }
        return {name: means.get(name, array) for name, array in last.items()}


@dataclass
class Progress:
    """How far a run has come, and what it knows of its clients.

    Attributes
    ----------
    finished_rounds
        The number of the last finished round.
    steps
        How many rounds took a step.
    skipped
        How many rounds in a row, up to the last one, took none.
    changed
        Whether any reply has changed a trainable parameter.
    unchanged
        How many rounds had usable replies before one did.
    evaluated
        The last round with a usable evaluation, 0 without one.
    unevaluated
        How many rounds in a row, up to the last one, asked for evaluations and could use none.
    kept
        The rows of the method's memory.
    first_counts
        The weight that each client stated first: in its first usable reply, or before it.
    first_tests
        The same of evaluations.
    average
        The mean of the global models, if the method averages them.
    norms
        The norms of the last rounds' updates, and of the longest step.
    roster
        Training examples of every known client, if the method requires them.
    moments
        The moments of the server optimizer.
    states
        The rounds of the clients' states.
    """

    finished_rounds: int = 0
    steps: int = 0
    skipped: int = 0
    changed: bool = False
    unchanged: int = 0
    evaluated: int = 0
    unevaluated: int = 0
    kept: dict[Kept, Vectors] = field(default_factory=dict)
    first_counts: dict[str, float] = field(default_factory=dict)
    first_tests: dict[str, float] = field(default_factory=dict)
    average: Average = field(default_factory=Average)
    norms: NormHistory = field(default_factory=NormHistory)
    roster: dict[str, float] = field(default_factory=dict)
    moments: Moments | None = None
    states: States = field(default_factory=States)
