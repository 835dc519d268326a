"""Local work: the settings of a client's training, the batches of its steps, and one step."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import cache
from math import fsum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from fairbloom.errors import ReportableError
from fairbloom.protocol.schedule import learning_rate_in
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator, seed_of
from fairbloom.tasks.optimizers import OF_PYTORCH, SGD, make_optimizer, optimizer_in

# The value of `augment` that leaves the examples as they are.
NO_AUGMENTATION = "none"

# Maps the mean loss of a minibatch to the loss that is minimised, elementwise for several.
Transform = Callable[[Tensor], Tensor]

# Returns a copy of a model in the middle of its steps, or of the models of several clients.
Copy = Callable[[], Any]


# What computes a field of local work. CHAIN: also a stacked chain that adds gradients as it
# computes them; STEP: other steps, one by one or stacked; PLAN: no step, as it chooses which steps
# are taken, and on which inputs; ALONE: the same, but only where a client is computed by itself.
Kind = Enum("Kind", ["CHAIN", "STEP", "PLAN", "ALONE"])


def unchanged(loss: Tensor) -> Tensor:
    """Return the loss."""
    return loss


@dataclass(frozen=True)
class LocalWork:
    """How a client trains.

    `batches` has the examples of each step, and `descend` takes one step by these settings.

    Attributes
    ----------
    batch_size
        Examples per step; 0: all of them.
    nesterov
        Whether SGD uses Nesterov momentum.
    optimizer
        A name of `fairbloom.tasks.optimizers`, or an import string.
    gradient_clip
        Largest Euclidean norm of a step's gradient over all parameters, including the pull and
        without weight decay. Longer gradients are scaled down to it. 0 disables clipping.
    pull
        Strength of (pull/2)‖x − w‖², w the received model.
    in_full
        Whether a straggler does all of it, too.
    idle
        Whether no step is taken.
    steps
        Number of steps, regardless of `epochs`; None: `epochs` passes over the examples.
    smallest_batch
        A last batch of fewer examples joins the one before it.
    time_budget
        Seconds after which no further step begins.
    random
        Draws the order of the examples in each epoch. Steps on all examples need no order.
    draws
        Seed for the model's own random numbers, for example those of dropout, and for those of
        augmentation.
    augment
        How the images of each batch are changed: see `fairbloom.client.augmentation`.
    bfloat16
        Whether forward pass and loss are computed in bfloat16, by torch.autocast.
    """

    epochs: int = field(metadata={Kind: Kind.PLAN})
    batch_size: int = field(metadata={Kind: Kind.PLAN})
    learning_rate: float = field(metadata={Kind: Kind.CHAIN})
    momentum: float = field(default=0.0, metadata={Kind: Kind.CHAIN})
    weight_decay: float = field(default=0.0, metadata={Kind: Kind.CHAIN})
    nesterov: bool = field(default=False, metadata={Kind: Kind.STEP})
    optimizer: str = field(default=SGD, metadata={Kind: Kind.STEP})
    gradient_clip: float = field(default=0.0, metadata={Kind: Kind.STEP})
    pull: float = field(default=0.0, metadata={Kind: Kind.CHAIN})
    in_full: bool = field(default=False, metadata={Kind: Kind.PLAN})
    idle: bool = field(default=False, metadata={Kind: Kind.PLAN})
    steps: int | None = field(default=None, metadata={Kind: Kind.PLAN})
    smallest_batch: int = field(default=1, metadata={Kind: Kind.PLAN})
    time_budget: float = field(default=math.inf, metadata={Kind: Kind.ALONE})
    transform: Transform = field(default=unchanged, metadata={Kind: Kind.CHAIN})
    random: np.random.Generator | None = field(default=None, metadata={Kind: Kind.PLAN})
    draws: int = field(default=0, metadata={Kind: Kind.PLAN})
    augment: str = field(default=NO_AUGMENTATION, metadata={Kind: Kind.PLAN})
    bfloat16: bool = field(default=False, metadata={Kind: Kind.STEP})

    def make_optimizer(self, parameters: Sequence[Tensor]) -> Optimizer | None:
        """Return the optimizer of these parameters, or None for SGD, which `descend` computes."""
        # The first optimizer object of a process imports PyTorch's compiler: that takes a second.
        if self.optimizer == SGD:
            return None
        made = make_optimizer(
            self.optimizer,
            parameters,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        if self.optimizer in OF_PYTORCH and parameters[0].device.type == "cuda":
            made.param_groups[0]["capturable"] = True  # it counts its steps on the device
        return made


@dataclass(frozen=True)
class StepsTaken:
    """The local steps of a round, by the learning rate of each."""

    learning_rates: Sequence[float] = ()

    @property
    def count(self) -> int:
        """K, the number of steps."""
        return len(self.learning_rates)

    @property
    def rate_sum(self) -> float:
        """H, the sum of their learning rates."""
        return fsum(self.learning_rates)


def set_fields(of: Any) -> Mapping[str, Any]:
    """Return the fields of a LocalWork, or of Terms, that differ from their defaults."""
    defaults = _defaults(type(of))  # type: ignore[arg-type] # mypy takes a class for unhashable
    return {
        name: value for name, default in defaults.items() if (value := getattr(of, name)) != default
    }


@cache  # called once per client and round
def _defaults(kind: Any) -> Mapping[str, Any]:
    return {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(kind)
    }


def fields_of(*kinds: Kind) -> frozenset[str]:
    """Return the names of the fields of `LocalWork` of these kinds."""
    return frozenset(each.name for each in fields(LocalWork) if each.metadata[Kind] in kinds)


STEP_FIELDS = fields_of(Kind.CHAIN, Kind.STEP)


def step_fields(work: LocalWork) -> frozenset[str]:
    """Return the set fields that change a step; code that replaces `descend` must support them."""
    return STEP_FIELDS.intersection(set_fields(work))


def run_work(settings: RunSettings, number: int) -> LocalWork:
    """Return the work of round `number` by the run's settings only."""
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
        augment=settings.augment,
        bfloat16=settings.precision == "bfloat16",
    )


def batch_order(
    seed: int | str, number: int, client: str, training: str = ""
) -> np.random.Generator:
    """Return the random stream for the order of a client's examples in round `number`.

    `seed` is the run's, or a device's secret. `training` names the training of a model of the
    client's own; "": that of the model to reply.
    """
    return generator(seed, f"{training} batches".lstrip(), number, client)


def draws_seed(seed: int | str, number: int, client: str, training: str = "") -> int:
    """Return the seed of the random numbers of a client's model in round `number`."""
    return seed_of(seed, f"{training} dropout".lstrip(), number, client)


def batches(count: int, work: LocalWork, min_batch: int = 1) -> Iterator[Tensor]:
    """Yield the indices of each step's examples.

    Every epoch has a new random order; if each step takes all examples, they keep their order. See
    `batch_sizes` for the last batch of an epoch.
    """
    size = batch_of(count, work)
    if size < min_batch:
        raise ReportableError(
            f"a batch has {size} example here, of {count} to train on, and the model's BatchNorm"
            f" needs {min_batch}: raise batch-size, leave out clients with a single example, or put"
            " GroupNorm or LayerNorm in its place"
        )
    sizes = batch_sizes(count, work, min_batch)
    random = None if sizes == [count] else work.random
    if random is None and sizes != [count]:
        raise ValueError(
            f"batches of {size} of {count} examples need an order: give the work a random generator"
        )
    epochs = range(work.epochs) if work.steps is None else itertools.count()
    steps = (
        batch
        for _ in epochs
        for batch in torch.split(_draw_order(count, random)[: sum(sizes)], sizes)
    )
    return itertools.islice(steps, work.steps)


def _draw_order(count: int, random: np.random.Generator | None) -> Tensor:
    return torch.arange(count) if random is None else torch.from_numpy(random.permutation(count))


def batch_sizes(count: int, work: LocalWork, min_batch: int = 1) -> list[int]:
    """Return the number of examples of each step of an epoch.

    A last batch of fewer than the work's `smallest_batch` joins the one before it. If one of fewer
    than `min_batch` is left, it is left out; it has other examples in the next epoch.
    """
    size = batch_of(count, work)
    whole, rest = divmod(count, size)
    sizes = [size] * whole
    if 0 < rest < work.smallest_batch:
        sizes[-1] += rest
    elif rest >= min_batch:
        sizes.append(rest)
    return sizes


def count_steps(count: int, work: LocalWork, min_batch: int = 1) -> int:
    """Return the number of steps of `batches`."""
    if work.steps is not None:
        return work.steps
    return work.epochs * len(batch_sizes(count, work, min_batch))


def count_rows(count: int, work: LocalWork, steps: int, min_batch: int = 1) -> int:
    """Return the number of different examples in the first `steps` steps of `batches`, at least.

    Examples of later epochs than the first are not counted.
    """
    return sum(batch_sizes(count, work, min_batch)[:steps])


def min_batch_of(model: nn.Module) -> int:
    """Return the fewest examples of a step: BatchNorm needs the variance of a batch."""
    return 1 + any(isinstance(module, _BatchNorm) and module.training for module in model.modules())


def batch_of(count: int, work: LocalWork) -> int:
    """Return the batch size with `count` examples; the last batch of an epoch may have another."""
    if not count:
        raise ReportableError(
            "there is no training example here, so nothing can be trained: leave this client out"
        )
    return min(work.batch_size or count, count)


# Maps the gradients of a step to the corrected gradients, both in the model's order.
Correct = Callable[[Sequence[Tensor]], Sequence[Tensor]]


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
    rate: Tensor | None = None,
) -> None:
    """Take one step in place, by `optimizer` or, if it is None, as torch.optim.SGD does.

    The pull to `received` is part of the gradient. The gradient, including the pull, is clipped as
    torch.nn.utils.clip_grad_norm_ does it; weight decay, corrections and momentum come after. A
    parameter without a gradient is left unchanged, and so is its velocity; if gradients are
    corrected, its gradient is 0. SGD is written out because the first optimizer object of a process
    imports PyTorch's compiler.

    Gradients and velocity are changed, too. `stacked` arrays hold one client per row. `rate` holds
    the learning rate in the place of the work's, so that a recorded step can have another one.
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
            directions if stacked else [direction.unsqueeze(0) for direction in directions],
            work.gradient_clip,
        )
    if optimizer is not None:
        step_by(optimizer, touched, directions, work.learning_rate if rate is None else rate)
        return
    if work.weight_decay > 0.0:
        torch._foreach_add_(directions, touched, alpha=work.weight_decay)
    if correct is not None:
        directions = list(correct(directions))
    if work.momentum > 0.0:
        moving = [velocity[place] for place in places]
        torch._foreach_mul_(moving, work.momentum)
        torch._foreach_add_(moving, directions)
        if work.nesterov:
            directions = list(torch._foreach_add(directions, moving, alpha=work.momentum))
        else:
            directions = moving
    if rate is None:
        torch._foreach_add_(touched, directions, alpha=-work.learning_rate)
    else:
        # The same rounding: a product and a sum in one operation.
        torch._foreach_addcmul_(touched, directions, [rate] * len(touched), value=-1.0)


def step_by(
    optimizer: Optimizer,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    learning_rate: float | Tensor,
) -> None:
    """Take one step of an optimizer with these gradients; leave its other parameters unchanged."""
    for group in optimizer.param_groups:
        if "lr" in group:
            group["lr"] = learning_rate
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def clip_norms(gradients: Sequence[Tensor], max_norm: float) -> None:
    """Clip the gradients of k clients, shape (k, …) each, in place.

    The norm of a client's gradient over all arrays is at most `max_norm` afterwards.
    """
    norms = torch.stack(
        [torch.linalg.vector_norm(each.reshape(len(each), -1), dim=1) for each in gradients]
    )
    # 1e-6 as in torch.nn.utils.clip_grad_norm_
    factors = (max_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))
