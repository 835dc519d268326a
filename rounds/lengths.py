"""How long an update and a step may be, in proportion to the others and to those of the rounds before.

The usual length r of a round is the larger of two lower medians: that of ‖u_k‖ over the round's updates that are not
zero, where there are at least two of them; and that of ‖u_k‖/e_k over the replies that were used in the rounds t − 5 to
t − 1. Where there is neither, or both are zero, r is the larger of the received model's length and 1. The allowance e_k
is a client's number of examples over their lower median in the round, at least 1 and at most 1000: who has more rows
takes more steps.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from .updates import FloatArray

ROUNDS_BACK = 5
"""How many earlier rounds a round is compared with, by their numbers; a skipped one has nothing to compare."""

LARGEST_ALLOWANCE = 1000.0
"""However many examples a client has, its update may be longer than others' by no more than this."""


@dataclass(frozen=True)
class Lengths:
    """What a run remembers of the lengths of its updates and steps.

    `used` has ‖u_k‖/e_k of the used replies, by round, of the last ROUNDS_BACK rounds; `longest_step` is the length of
    the run's longest step.
    """

    used: Mapping[int, FloatArray] = field(default_factory=dict)
    longest_step: float = 0.0

    def before(self, server_round: int) -> FloatArray:
        """Return ‖u_k‖/e_k of all replies that were used in the rounds that this one is compared with."""
        recent = [found for number, found in self.used.items() if server_round - ROUNDS_BACK <= number < server_round]
        return np.concatenate(recent) if recent else np.empty(0)

    def plus(self, server_round: int, used: FloatArray, step: float) -> Self:
        """Return the same with one more round: ‖u_k‖/e_k of its used replies, and the length of its step."""
        kept = {number: found for number, found in self.used.items() if number > server_round - ROUNDS_BACK}
        return type(self)({**kept, server_round: used}, max(step, self.longest_step))

    def state_dict(self) -> dict[str, Any]:
        """Return it as str, numbers, arrays and dicts."""
        return {"used": {str(number): found for number, found in self.used.items()}, "longest-step": self.longest_step}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """Return what `state_dict` returned."""
        used = {int(number): np.asarray(found, np.float64) for number, found in state["used"].items()}
        return cls(used, float(state["longest-step"]))


class Refused(NamedTuple):
    """An update that is too long: its place among the replies, and the length that it might have had."""

    place: int
    bound: float


@dataclass(frozen=True)
class Usual:
    """What is usual among the replies that are left: the length r, and each client's e_k."""

    length: float
    allowances: FloatArray

    def times(self, factor: float) -> FloatArray:
        """Return `factor` · e_k · r for each reply."""
        with np.errstate(over="ignore"):
            return factor * self.length * self.allowances


def usual(lengths: FloatArray, counts: FloatArray, past: FloatArray, model_length: Callable[[], float]) -> Usual:
    """Return the usual length of a round's updates, and each client's allowance, by ‖u_k‖ and n_k, shape (m,).

    `past` is what `Lengths.before` returns; `model_length` computes ‖w‖ where it is needed.
    """
    moving = lengths[lengths > 0.0]
    medians = [lower_median(each) for each in (moving[:0] if len(moving) == 1 else moving, past) if len(each)]
    length = max(medians, default=0.0)
    allowances = np.clip(counts / lower_median(counts), 1.0, LARGEST_ALLOWANCE)
    return Usual(length if length > 0.0 else max(model_length(), 1.0), allowances)


def too_long(
    lengths: FloatArray,
    counts: FloatArray,
    past: FloatArray,
    model_length: Callable[[], float],
    limit: float,
    longest: FloatArray | None = None,
) -> tuple[list[Refused], Usual | None]:
    """Return which updates are longer than ‖w‖ and than `limit` · e_k · r, and what is usual among the others.

    The one furthest beyond its bound is left out first; then r and e are computed again without it. Nothing is usual
    where no update is left. `longest` replaces ‖u_k‖ in the comparison where a reply has another model as well.
    """
    compared = lengths if longest is None else longest
    left, refused = np.arange(len(lengths)), list[Refused]()
    while len(left):
        found = usual(lengths[left], counts[left], past, model_length)
        bounds = found.times(limit)
        if (compared[left] <= bounds).all():  # all that a round of plausible replies needs
            return refused, found
        # an update as long as the model, but for rounding, is never refused
        bounds = np.maximum(bounds, model_length() * (1.0 + 1e-6))
        excess = compared[left] / bounds
        furthest = int(np.argmax(excess))
        if excess[furthest] <= 1.0:
            return refused, found
        refused.append(Refused(int(left[furthest]), float(bounds[furthest])))
        left = np.delete(left, furthest)
    return refused, None


def lower_median(values: FloatArray) -> float:
    """Return the median, of an even number of values the lower one of the two in the middle."""
    return float(np.sort(values)[(len(values) - 1) // 2])
