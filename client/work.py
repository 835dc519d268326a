"""Local work, said once: its fields, where settings and terms set them, and what they mean for a step."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fairbloom.errors import ReportableError
from fairbloom.protocol.names import DISPARITY, DISPARITY_HARD
from fairbloom.protocol.schedules import UNCHANGED, Schedule
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator, seed_of
from fairbloom.protocol.terms import DEMOGRAPHIC_PARITY, Terms
from fairbloom.tasks.optimizers import PLAIN_SGD, OptimizerChoice

from .objectives import Transform, transform_of, unchanged
from .rules import NamedRule, rule_of


@dataclass(frozen=True)
class LocalWork:
    """How a client trains; `descend` says what it means for a step, `fairbloom.client.training` which steps there are.

    Attributes
    ----------
    epochs
        Passes over the training set.
    batch_size
        Examples a step; 0: all of them.
    learning_rate, momentum, weight_decay
        Of the optimizer as PyTorch defines it; momentum, and whatever else it remembers, starts afresh in every round.
    optimizer
        Which one takes the steps; by default SGD.
    schedule
        How the learning rate changes over the steps.
    gradient_clip
        Largest Euclidean norm of a step's gradient over all parameters, with the pull's and without weight decay's;
        longer ones are shortened to it. 0: none is.
    pull
        Strength of (pull/2)‖x − w‖², w the received model.
    steps
        How many steps are taken, whatever the epochs; None: as many as the epochs have.
    snapshot_step
        The step after which the model is kept, None: it is not.
    time_budget
        Seconds after which no further step begins.
    class_weights
        What the training loss is weighted by, as the setting `class-weights` has it; "": each example counts the same.
    precision
        Of a step's forward pass: bfloat16 is autocast to that; with float32 the model computes as it is.
    transform
        What becomes of the mean loss of a minibatch.
    rule
        What corrects the gradient, the pull and weight decay in it, by what the client keeps between rounds; None: it
        is not corrected.
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
    optimizer: OptimizerChoice = PLAIN_SGD
    schedule: Schedule = UNCHANGED
    gradient_clip: float = 0.0
    pull: float = 0.0
    steps: int | None = None
    snapshot_step: int | None = None
    time_budget: float = math.inf
    class_weights: str = ""
    precision: str = "float32"
    transform: Transform = unchanged
    rule: NamedRule | None = None
    random: np.random.Generator | None = None
    draws: int = 0

    def at_step(self, done: int, count: int) -> "LocalWork":
        """Return the work of the step before which `done` of `count` are over: its learning rate is the schedule's."""
        if self.schedule == UNCHANGED:
            return self
        return replace(self, learning_rate=self.learning_rate * self.schedule.factor(done, count))

    def rates(self, count: int) -> tuple[float, ...]:
        """Return the learning rate of each of so many steps."""
        if self.schedule == UNCHANGED:
            return (self.learning_rate,) * count
        return tuple(self.at_step(done, count).learning_rate for done in range(count))

    def make_optimizer(self, parameters: Sequence[Tensor]) -> Optimizer | None:
        """Return the optimizer of these parameters; None where `descend` takes the steps by itself, as it does SGD's.

        The first optimizer object of a process imports PyTorch's compiler, which takes a second.
        """
        if self.optimizer.is_plain_sgd:
            return None
        rates = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return self.optimizer.make(parameters, learning_rate=self.learning_rate, **rates)


OF_STEPS = frozenset({"epochs", "batch_size", "steps", "snapshot_step", "time_budget", "random", "draws"})
"""The fields that say which steps are taken, and when; all others say what a step does."""


def set_fields(of: Any) -> Mapping[str, Any]:
    """Return the fields of local work, or of terms, that are not at the default with which they have no effect."""
    defaults = _defaults(type(of))  # type: ignore[arg-type] # mypy takes a class for unhashable
    return {name: value for name, default in defaults.items() if (value := getattr(of, name)) != default}


@cache  # each client of each round asks
def _defaults(kind: Any) -> Mapping[str, Any]:
    return {
        each.name: each.default if each.default_factory is MISSING else each.default_factory() for each in fields(kind)
    }


def step_fields(work: LocalWork) -> frozenset[str]:
    """Return the fields that change what a step does: whoever takes it another way than `descend` has to know them."""
    return frozenset(set_fields(work)) - OF_STEPS


def learning_rate_in(settings: RunSettings, number: int) -> float:
    """Return the learning rate of round `number`, from 1: by the run's decay, and by its schedule over rounds."""
    factor = settings.schedule_of_rounds.factor(number - 1, settings.num_rounds)
    return settings.learning_rate * settings.learning_rate_decay ** (number - 1) * factor


def global_work(settings: RunSettings, terms: Terms) -> LocalWork:
    """Return the work on the global model that the run's settings and the server's terms add to, as for any client.

    Raises
    ------
    FairbloomError
        When the server reads a gradient off the distance that plain SGD moves, and the settings ask for other steps; or
        as `rule_of` does.
    """
    whole = terms.full_batch_step
    if whole and settings.beyond_plain_sgd:
        raise ReportableError(f"full-batch-step = True is a step of plain SGD: leave out {settings.beyond_plain_sgd}")
    check_disparity(settings, terms)
    return LocalWork(
        epochs=1 if whole else settings.local_epochs,
        batch_size=0 if whole else settings.batch_size,
        learning_rate=learning_rate_in(settings, terms.server_round),
        momentum=settings.momentum if terms.client_momentum is None else terms.client_momentum,
        weight_decay=settings.weight_decay,
        optimizer=OptimizerChoice.of(settings),
        schedule=settings.schedule_of_steps,
        gradient_clip=settings.gradient_clip,
        class_weights=settings.class_weights,
        precision=settings.precision,
        pull=terms.proximal_mu + (terms.dynamic_alpha or 0.0),
        steps=terms.local_steps,
        snapshot_step=terms.snapshot_step,
        time_budget=settings.time_budget or math.inf,
        transform=transform_of(terms),
        rule=rule_of(settings, terms),
    )


def check_disparity(settings: RunSettings, terms: Terms) -> None:
    """Raise FairbloomError where a disparity is asked for and is not named, or does not go with what else is asked."""
    asked = [name for name in terms.measure if name in (DISPARITY, DISPARITY_HARD)]
    if asked and not terms.disparity:
        raise ReportableError(
            f"measure = {asked[0]}: the terms do not say which disparity: let the method's terms have one, as in "
            f"replace(super().terms(server_round), disparity={DEMOGRAPHIC_PARITY!r})"
        )
    if terms.disparity and settings.weight_decay:
        raise ReportableError(
            f"disparity = {terms.disparity!r} goes with the gradient of the plain loss: leave out weight-decay = "
            f"{settings.weight_decay!r}"
        )
    if terms.disparity and terms.snapshot_step is not None:
        raise ReportableError(
            f"disparity = {terms.disparity!r} and snapshot-step = {terms.snapshot_step} ask for a second model each, "
            "and a reply has one: leave out one of them"
        )


def personal_work(settings: RunSettings, terms: Terms) -> LocalWork:
    """Return the work on the personal model: as on the global one, but pulled to it, and on the plain loss.

    SGD is plain: without momentum and weight decay, which other optimizers keep, and SGD with further parameters.
    """
    optimizer = OptimizerChoice.of(settings)
    kept = 0.0 if optimizer.is_plain_sgd else 1.0
    return LocalWork(
        epochs=terms.personal_epochs or 1,
        batch_size=settings.batch_size,
        learning_rate=learning_rate_in(settings, terms.server_round),
        momentum=kept * settings.momentum,
        weight_decay=kept * settings.weight_decay,
        optimizer=optimizer,
        schedule=settings.schedule_of_steps,
        gradient_clip=settings.gradient_clip,
        class_weights=settings.class_weights,
        precision=settings.precision,
        pull=terms.personal_lambda or 0.0,
    )


def lonely_work(settings: RunSettings, client: str, epoch: int) -> LocalWork:
    """Return the work of an epoch in which a client trains alone: on the plain loss, at the run's first learning rate.

    Nothing pulls it, neither time nor a straggler's share ends it early, and whatever the optimizer remembers starts
    afresh, as it does in a round.
    """
    return LocalWork(
        epochs=1,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        optimizer=OptimizerChoice.of(settings),
        gradient_clip=settings.gradient_clip,
        class_weights=settings.class_weights,
        precision=settings.precision,
        random=generator(settings.seed, "lonely batches", epoch, client),
        draws=seed_of(settings.seed, "lonely dropout", epoch, client),
    )


def batch_order(settings: RunSettings, number: int, client: str, *, personal: bool = False) -> np.random.Generator:
    """Return the stream that draws the order of a client's examples in round `number`."""
    return generator(settings.seed, "personal batches" if personal else "batches", number, client)


def client_work(
    work: LocalWork, settings: RunSettings, terms: Terms, client: str, *, personal: bool = False
) -> LocalWork:
    """Return the work as one client does it: in its own order, and for fewer epochs where it is a straggler.

    Raises
    ------
    StragglerError
        When this client is a straggler in this round and stragglers are dropped.
    """
    number = terms.server_round
    in_full = personal or terms.full_batch_step
    return replace(
        work,
        epochs=work.epochs if in_full else epochs_in_time(settings, number, client),
        random=batch_order(settings, number, client, personal=personal),
        draws=seed_of(settings.seed, "personal dropout" if personal else "dropout", number, client),
    )


class StragglerError(ReportableError):
    """A client that is too slow for this round, where such clients are dropped."""


def epochs_in_time(settings: RunSettings, number: int, client: str) -> int:
    """Return the epochs that this client gets done in round `number`: fewer for a straggler.

    Source: Li et al., MLSys 2020 (FedProx), section 5.2: systems heterogeneity.
    """
    epochs, share = settings.local_epochs, settings.stragglers
    if share == 0.0:
        return epochs
    random = generator(settings.seed, "stragglers", number, client)
    if random.random() >= share:
        return epochs
    if settings.drop_stragglers:
        raise StragglerError(f"{client} is a straggler in round {number}, and drop-stragglers is on")
    return int(random.integers(1, epochs + 1))


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

    The gradient, the pull in it, is clipped as torch.nn.utils.clip_grad_norm_ does it; weight decay and momentum come
    after. A parameter without a gradient stays as it is, and so does its velocity; where gradients are corrected, it
    has one of 0.

    SGD's is written out because the first optimizer object of a process imports PyTorch's compiler.

    Parameters
    ----------
    parameters, gradients
        What the step changes, and the gradient by each, None where there is none; gradients are changed too.
    received
        What the parameters are pulled to, where there is a pull.
    velocity
        Those of the parameters, where there is momentum; changed in place.
    work
        Rate, momentum, decay, pull and clipping.
    optimizer
        Of the parameters; None: SGD, without further parameters.
    correct
        What a rule makes of the gradients, the pull and weight decay in them.
    stacked
        Whether each array has several clients' side by side, along its first dimension.
    """
    if correct is not None:
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    places = [place for place, gradient in enumerate(gradients) if gradient is not None]
    touched = [parameters[place] for place in places]
    directions = [gradient for gradient in gradients if gradient is not None]
    if not touched:
        return
    if work.pull > 0.0:
        away = torch._foreach_sub(touched, [received[place] for place in places])
        torch._foreach_add_(directions, away, alpha=work.pull)
    if work.gradient_clip > 0.0:
        clip_norms(directions if stacked else [each.unsqueeze(0) for each in directions], work.gradient_clip)
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
        directions = moving
    torch._foreach_add_(touched, directions, alpha=-work.learning_rate)


def step_by(
    optimizer: Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Tensor], learning_rate: float
) -> None:
    """Let an optimizer take a step with these gradients; its other parameters have none, and stay as they are."""
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
    norms = torch.stack([torch.linalg.vector_norm(each.reshape(len(each), -1), dim=1) for each in gradients])
    factors = (longest / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)  # as PyTorch has it
    for each in gradients:
        each.mul_(factors.view(-1, *[1] * (each.dim() - 1)))
