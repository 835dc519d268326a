"""Rules of local work as users write them."""

from typing import Any

import torch
from torch import Tensor

Arrays = dict[str, Tensor]


class Plain:
    """A rule that changes and keeps nothing."""

    def start(self, received: Arrays, kept: Arrays, sent: dict[str, Arrays]) -> Any:
        return None

    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return gradients

    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> tuple[Arrays, Arrays]:
        return trained, {}


class Momentum(Plain):
    """Local momentum that goes on from round to round: v ← 0.9 v + g."""

    def start(self, received: Arrays, kept: Arrays, sent: dict[str, Arrays]) -> Arrays:
        return kept or {name: torch.zeros_like(array) for name, array in received.items()}

    def correct(self, gradients: Arrays, state: Arrays, step: int) -> Arrays:
        for name, gradient in gradients.items():
            state[name] = 0.9 * state[name] + gradient
        return dict(state)

    def finish(self, received: Arrays, trained: Arrays, state: Arrays, steps: Any) -> tuple[Arrays, Arrays]:
        return trained, state


class Half(Plain):
    """A rule that replies half of its way, and keeps how many steps there have been."""

    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> tuple[Arrays, Arrays]:
        return {name: 0.5 * (received[name] + trained[name]) for name in trained}, {"steps": torch.tensor(steps.count)}


class Greedy(Plain):
    """A rule that changes in place whatever it is given."""

    def start(self, received: Arrays, kept: Arrays, sent: dict[str, Arrays]) -> Arrays:
        state = {name: array.clone() for name, array in (kept or received).items()}
        for arrays in (received, kept, *sent.values()):
            for array in arrays.values():
                array.fill_(torch.nan)
        return state

    def finish(self, received: Arrays, trained: Arrays, state: Arrays, steps: Any) -> tuple[Arrays, Arrays]:
        for array in received.values():
            array.fill_(torch.nan)
        return trained, {name: array + 1.0 for name, array in state.items()}


class Lacking:
    def start(self, received: Arrays, kept: Arrays, sent: dict[str, Arrays]) -> Any:
        return None

    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return gradients


class Asking(Plain):
    def __init__(self, strength: float) -> None:
        self.strength = strength


class WithoutBias(Plain):
    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return {name: gradient for name, gradient in gradients.items() if name != "bias"}


class Flat(Plain):
    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return {name: gradient.sum() for name, gradient in gradients.items()}


class Numbers(Plain):
    def correct(self, gradients: Arrays, state: Any, step: int) -> Any:
        return dict.fromkeys(gradients, 0.0)


class Nothing(Plain):
    def correct(self, gradients: Arrays, state: Any, step: int) -> Any:
        return None


class Alone(Plain):
    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> Any:
        return trained


class Stranger(Plain):
    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> tuple[Arrays, Arrays]:
        return {**trained, "theirs": torch.zeros(1)}, {}


class Endless(Plain):
    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> tuple[Arrays, Arrays]:
        return {name: array / 0.0 for name, array in trained.items()}, {}


class KeepsWords(Plain):
    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> Any:
        return trained, {"mood": "good"}


class KeepsNaN(Plain):
    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> tuple[Arrays, Arrays]:
        return trained, {"sum": torch.tensor(torch.nan)}


class KeepsByNumber(Plain):
    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> Any:
        return trained, {1: torch.zeros(1)}


def function(received: Arrays) -> Arrays:
    return received
