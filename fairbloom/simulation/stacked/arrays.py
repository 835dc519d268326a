"""The arrays of a block of clients that train together."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from fairbloom.client import dropout
from fairbloom.client.capture import (
    MAX_GRAPHS,
    Capture,
    StepKind,
    find_unsupported,
    key_of,
    make_rate,
)
from fairbloom.client.work import LocalWork, step_fields
from fairbloom.tasks.optimizers import SGD

from .blocks import Stretch
from .optimizers import RowOptimizer
from .programs import ADDED_AT_ONCE, Chain, Program, StepArrays

# So often a stretch comes before it is taken whole.
SEEN = 1


class BlockArrays(StepKind):
    """The arrays that a block's steps use besides their batches, with a row for each client."""

    def __init__(
        self,
        program: Program,
        work: LocalWork,
        weights: Sequence[Tensor],
        anchor: Sequence[Tensor],
        shift: Sequence[Tensor],
        rate: Tensor | None = None,
    ) -> None:
        super().__init__(program.model, rate)
        self._program = program
        self._seen = Counter[Hashable]()
        self.draws = dropout.make_draws(len(weights[0]), weights[0].device)
        self.weights = weights
        self.anchor = anchor
        self.shift = shift
        self.optimizer = None if work.optimizer == SGD else RowOptimizer(weights, work)
        has_velocity = self.optimizer is None and work.momentum > 0.0
        self.velocity = [torch.zeros_like(array) for array in weights] if has_velocity else []

    def begin(
        self,
        weights: Sequence[Tensor],
        anchor: Sequence[Tensor],
        shift: Sequence[Tensor],
        rate: float,
    ) -> list[Tensor]:
        """Prepare the first step of a recorded block; return the weights that its steps change."""
        for array, given in zip(
            (*self.weights, *self.anchor, *self.shift), (*weights, *anchor, *shift), strict=True
        ):
            array[: len(given)].copy_(given)
        for array in self._states():
            array.zero_()
        self.set_rate(rate)
        return [array[: len(weights[0])] for array in self.weights]

    def of_first(self, sizes: Sequence[int]) -> StepArrays:
        """Return the arrays of the first clients, which still train, on so many examples each."""
        count = len(sizes)
        return StepArrays(
            [array[:count] for array in self.weights],
            [array[:count] for array in self.velocity],
            [array[:count] for array in self.anchor],
            self.optimizer,
            [array[:count] for array in self.shift],
            self.draws.masks(self._program.drops, sizes),
            self.rate,
        )

    def divide(self, stretch: Stretch) -> Iterable[Stretch]:
        """Return a stretch whole if one like it has come before, else step by step.

        Where cohorts or learning rates differ from round to round, so may all stretches: their
        single steps are alike.
        """
        if stretch.times == 1 or not stretch.shared:
            return stretch.singles()
        like = (stretch.key, *(tensor.shape for tensor in stretch.tensors()))
        self._seen[like] += len(self.graphs) < MAX_GRAPHS // 2  # the others are for single steps
        return [stretch] if self._seen[like] > SEEN else stretch.singles()

    def changing(self) -> list[Tensor]:
        """Return weights, velocity, the optimizer's tensors and dropout's."""
        return [*self.weights, *self._states(), *self.draws.states]

    def _states(self) -> list[Tensor]:
        return [*self.velocity, *([] if self.optimizer is None else self.optimizer.states())]


def find_recorded(
    capture: Capture,
    most: int,
    program: Program,
    work: LocalWork,
    weights: Sequence[Tensor],
    anchor: Sequence[Tensor],
    shift: Sequence[Tensor],
) -> BlockArrays | None:
    """Return the arrays of recorded steps of up to `most` clients; None if none can be recorded."""
    others = (*anchor, *shift)

    def rate() -> Tensor | None:
        # A chain that adds products to the weights multiplies them by it: it must be a number.
        adds = isinstance(program, Chain) and step_fields(work) <= ADDED_AT_ONCE and not shift
        return None if adds else make_rate(work, weights[0])

    def key() -> Hashable:
        return (
            *(program, most, len(shift), work.learning_rate if rate() is None else None),
            *key_of(work),
            *(weight.shape[1:] for weight in weights),
            *(len(other) == 1 for other in others),
        )

    def make() -> BlockArrays:
        wide = [weight.new_zeros(most, *weight.shape[1:]) for weight in weights]
        kept = [
            other.new_zeros(1 if len(other) == 1 else most, *other.shape[1:]) for other in others
        ]
        made = BlockArrays(program, work, wide, kept[: len(anchor)], kept[len(anchor) :], rate())
        if made.optimizer is not None:
            made.optimizer.prepare_recording()
        return made

    def why_not() -> str:
        drawn = program.drops and weights[0].device.type not in dropout.COUNTED
        unsupported = find_unsupported(program.model, work)
        if not unsupported and drawn:
            return "dropout draws from generators of the processor"
        return unsupported

    return capture.find_kind(key, make, why_not)
