"""Rules of local work as users write them."""

from collections.abc import Callable
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

    def finish(
        self, received: Arrays, trained: Arrays, state: Any, steps: Any
    ) -> tuple[Arrays, Arrays]:
        return trained, {}


class Momentum(Plain):
    """Local momentum that goes on from round to round: v ← 0.9 v + g."""

    def start(self, received: Arrays, kept: Arrays, sent: dict[str, Arrays]) -> Arrays:
        return kept or {name: torch.zeros_like(array) for name, array in received.items()}

    def correct(self, gradients: Arrays, state: Arrays, step: int) -> Arrays:
        for name, gradient in gradients.items():
            state[name] = 0.9 * state[name] + gradient
        return dict(state)

    def finish(
        self, received: Arrays, trained: Arrays, state: Arrays, steps: Any
    ) -> tuple[Arrays, Arrays]:
        return trained, state


class Half(Plain):
    """A rule that replies half of its way, and keeps how many steps there have been."""

    def start(self, received: Arrays, kept: Arrays, sent: dict[str, Arrays]) -> int:
        return int(kept.get("steps", 0))

    def finish(
        self, received: Arrays, trained: Arrays, state: Any, steps: Any
    ) -> tuple[Arrays, Arrays]:
        return {name: 0.5 * (received[name] + trained[name]) for name in trained}, {
            "steps": torch.tensor(state + steps.count)
        }


class Greedy(Plain):
    """A rule that changes in place whatever it is given."""

    def start(self, received: Arrays, kept: Arrays, sent: dict[str, Arrays]) -> Arrays:
        state = {name: array.clone() for name, array in (kept or received).items()}
        for arrays in (received, kept, *sent.values()):
            for array in arrays.values():
                array.fill_(torch.nan)
        return state

    def finish(
        self, received: Arrays, trained: Arrays, state: Arrays, steps: Any
    ) -> tuple[Arrays, Arrays]:
        for array in received.values():
            array.fill_(torch.nan)
        return trained, {name: array + 1.0 for name, array in state.items()}


class Asking(Plain):
    def __init__(self, strength: float) -> None:
        self.strength = strength


def broken(**functions: Callable[..., Any]) -> type:
    """Return a rule in which these functions are wrong."""
    return type("Broken", (Plain,), functions)


Lacking = type("Lacking", (), {"start": Plain.start, "correct": Plain.correct})
WithoutBias = broken(correct=lambda self, gradients, state, step: {"x": gradients["x"]})
Flat = broken(
    correct=lambda self, gradients, state, step: {
        name: each.sum() for name, each in gradients.items()
    }
)
Numbers = broken(correct=lambda self, gradients, state, step: dict.fromkeys(gradients, 0.0))
Nothing = broken(correct=lambda self, gradients, state, step: None)
Alone = broken(finish=lambda self, received, trained, state, steps: trained)
Stranger = broken(
    finish=lambda self, received, trained, *_: ({**trained, "theirs": torch.zeros(1)}, {})
)
Endless = broken(
    finish=lambda self, received, trained, *_: ({n: each / 0.0 for n, each in trained.items()}, {})
)
KeepsWords = broken(finish=lambda self, received, trained, *_: (trained, {"mood": "good"}))
KeepsNaN = broken(
    finish=lambda self, received, trained, *_: (trained, {"sum": torch.tensor(torch.nan)})
)
KeepsByNumber = broken(finish=lambda self, received, trained, *_: (trained, {1: torch.zeros(1)}))


def function(received: Arrays) -> Arrays:
    return received
