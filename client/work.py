"""Local work, said once: its fields, where settings and terms set them, and what they mean for a step."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fairbloom.client.schedules import Schedule
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator
from fairbloom.tasks.optimizers import SGD, make_optimizer, optimizer_in

Transform = Callable[[Tensor], Tensor]
"""(mean loss of a minibatch, or of several) → what is minimised, of each by itself."""


def unchanged(loss: Tensor) -> Tensor:
    """Return the loss."""
    return loss


@dataclass(frozen=True)
class LocalWork:
    """How a client trains; `descend` says what it means for a step, `fairbloom.client.training` which steps there are.

    Attributes
    ----------
    batch_size
        Examples a step; 0: all of them.
    nesterov
        Whether SGD's momentum is Nesterov's.
    optimizer
        A name of `fairbloom.tasks.optimizers`, or an import string.
    gradient_clip
        Largest Euclidean norm of a step's gradient over all parameters, with the pull's and without
        weight decay's; longer ones are shortened to it. 0: none is.
    pull
        Strength of (pull/2)‖x − w‖², w the received model.
    in_full
        Whether a straggler does all of it as well.
    idle
        Whether no step is taken.
    steps
        How many steps are taken, whatever the epochs; None: as many as the epochs have.
    time_budget
        Seconds after which no further step begins.
    random
        Draws the order of the examples in each epoch; a step that takes all of them needs none.
    draws
        Seed of what the model itself draws: dropout.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    optimizer: str = SGD
    gradient_clip: float = 0.0
    pull: float = 0.0
    in_full: bool = False
    idle: bool = False
    steps: int | None = None
    time_budget: float = math.inf
    transform: Transform = unchanged
    random: np.random.Generator | None = None
    draws: int = 0

    def make_optimizer(self, parameters: Sequence[Tensor]) -> Optimizer | None:
        """Return the optimizer of these parameters.

        None where `descend` takes the steps by itself, as it does SGD's.

        The first optimizer object of a process imports PyTorch's compiler, which takes a second.
        """
        if self.optimizer == SGD:
            return None
        return make_optimizer(
            self.optimizer,
            parameters,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )


NON_STEP_FIELDS = frozenset(
    {"epochs", "batch_size", "in_full", "idle", "steps", "time_budget", "random", "draws"}
)
"""The fields that say which steps are taken, and when; all others say what a step does."""


def set_fields(of: Any) -> Mapping[str, Any]:
    """Return the fields of local work, or of terms, that are not at the default with which they have no effect."""
    defaults = _defaults(type(of))  # type: ignore[arg-type] # mypy takes a class for unhashable
    return {
        name: value for name, default in defaults.items() if (value := getattr(of, name)) != default
    }


@cache  # each client of each round asks
def _defaults(kind: Any) -> Mapping[str, Any]:
    return {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(kind)
    }


def step_fields(work: LocalWork) -> frozenset[str]:
    """Return the fields that change what a step does: code that does not step by `descend` has to know them."""
    return frozenset(set_fields(work)) - NON_STEP_FIELDS


def learning_rate_in(settings: RunSettings, number: int) -> float:
    """Return the learning rate of round `number`, from 1: by the run's decay, and by its schedule."""
    factor = Schedule(settings.schedule, settings.warmup).factor(number - 1, settings.num_rounds)
    return settings.learning_rate * settings.learning_rate_decay ** (number - 1) * factor


def run_work(settings: RunSettings, number: int) -> LocalWork:
    """Return the work of round `number` by the run's settings alone."""
    return LocalWork(
        epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        learning_rate=learning_rate_in(settings, number),
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
        optimizer=optimizer_in(settings),
        gradient_clip=settings.gradient_clip,
        time_budget=settings.time_budget or math.inf,
    )


def batch_order(
    settings: RunSettings, number: int, client: str, *, personal: bool = False
) -> np.random.Generator:
    """Return the stream that draws the order of a client's examples in round `number`."""
    return generator(settings.seed, "personal batches" if personal else "batches", number, client)


Correct = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""(gradients) → those that a step goes down, both in the model's order."""


def descend(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    received: Sequence[Tensor],
    velocity: Sequence[Tensor],
    work: LocalWork,
    *,
    optimizer: Optimizer | None = None,
    correct: Correct | None = None,
    stacked: bool = False,
) -> None:
    """Take one step in place, by an optimizer or as torch.optim.SGD does, with the pull to `received` in the gradient.

    The gradient, including the pull, is clipped as torch.nn.utils.clip_grad_norm_ does it; weight
    decay, corrections and momentum come after. A parameter without a gradient stays as it is, and
    so does its velocity; where gradients are corrected, it has one of 0. SGD is written out because
    the first optimizer object of a process imports PyTorch's compiler.

    Gradients and velocity are changed too. `stacked` arrays have several clients' side by side,
    along the first dimension.
    """
    if correct is not None:
        gradients = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(parameters, gradients, strict=True)
        ]
    places = [place for place, gradient in enumerate(gradients) if gradient is not None]
    touched = [parameters[place] for place in places]
    directions = [gradient for gradient in gradients if gradient is not None]
    if not touched:
        return
    if work.pull > 0.0:
        away = torch._foreach_sub(touched, [received[place] for place in places])
        torch._foreach_add_(directions, away, alpha=work.pull)
    if work.gradient_clip > 0.0:
        clip_norms(
            directions if stacked else [each.unsqueeze(0) for each in directions],
            work.gradient_clip,
        )
    if optimizer is not None:
        step_by(optimizer, touched, directions, work.learning_rate)
        return
    if work.weight_decay > 0.0:
        torch._foreach_add_(directions, touched, alpha=work.weight_decay)
    if correct is not None:
        directions = list(correct(directions))
    if work.momentum > 0.0:
        moving = [velocity[place] for place in places]
        torch._foreach_mul_(moving, work.momentum)
        torch._foreach_add_(moving, directions)
        directions = (
            list(torch._foreach_add(directions, moving, alpha=work.momentum))
            if work.nesterov
            else moving
        )
    torch._foreach_add_(touched, directions, alpha=-work.learning_rate)


def step_by(
    optimizer: Optimizer,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    learning_rate: float,
) -> None:
    """Let an optimizer take a step with these gradients.

    Its other parameters have none, and stay as they are.
    """
    for group in optimizer.param_groups:
        if "lr" in group:
            group["lr"] = learning_rate
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def clip_norms(gradients: Sequence[Tensor], longest: float) -> None:
    """Shorten the gradients of k clients, shape (k, …) each, in place, to this norm over all arrays of a client."""
    norms = torch.stack(
        [torch.linalg.vector_norm(each.reshape(len(each), -1), dim=1) for each in gradients]
    )
    # as PyTorch has it
    factors = (longest / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for each in gradients:
        each.mul_(factors.view(-1, *[1] * (each.dim() - 1)))
