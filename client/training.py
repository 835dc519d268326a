"""Local work of one client: stochastic gradient descent from the received model, and its measures."""

import copy
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairbloom.protocol.streams import generator
from fairbloom.protocol.terms import Terms
from fairbloom.tasks import Examples, Task

from .objectives import Transform, transform_of, unchanged

StateDict = dict[str, Tensor]

EVALUATION_BATCH = 4096
"""Examples that are measured at once; bounds memory, not the result."""


@dataclass(frozen=True)
class LocalWork:
    """How a client trains.

    Attributes
    ----------
    epochs
        Passes over the training set.
    batch_size
        Examples a step; 0: all of them.
    learning_rate, momentum, weight_decay
        Of SGD as PyTorch defines it; momentum starts afresh in every round.
    pull
        Strength of (pull/2)‖x − w‖², w the received model.
    random
        Draws the order of batches.
    steps
        How many steps are taken, whatever the epochs; None: as many as the epochs have.
    snapshot_step
        The step after which the model is kept, None: it is not.
    seconds
        Time after which no further step begins.
    transform
        What becomes of the mean loss of a minibatch.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float
    weight_decay: float
    pull: float
    random: np.random.Generator
    steps: int | None = None
    snapshot_step: int | None = None
    seconds: float = math.inf
    transform: Transform = unchanged


def global_work(run_config: Mapping[str, Any], terms: Terms, client: str) -> LocalWork:
    """Return the work on the global model that the run config sets and the server's terms add to.

    Raises
    ------
    StragglerError
        When this client is a straggler in this round and stragglers are dropped.
    """
    seed, number = run_config["seed"], terms.server_round
    whole = terms.full_batch_step
    return LocalWork(
        epochs=1 if whole else epochs_in_time(run_config, number, client),
        batch_size=0 if whole else run_config["batch-size"],
        learning_rate=run_config["learning-rate"],
        momentum=run_config["momentum"] if terms.client_momentum is None else terms.client_momentum,
        weight_decay=run_config["weight-decay"],
        pull=terms.proximal_mu,
        random=generator(seed, "batches", number, client),
        steps=terms.local_steps,
        snapshot_step=terms.snapshot_step,
        seconds=run_config.get("time-budget", 0.0) or math.inf,
        transform=transform_of(terms),
    )


def personal_work(run_config: Mapping[str, Any], terms: Terms, client: str) -> LocalWork:
    """Return the work on the personal model: plain SGD on the plain loss, pulled to the received model."""
    return LocalWork(
        epochs=terms.personal_epochs or 1,
        batch_size=run_config["batch-size"],
        learning_rate=run_config["learning-rate"],
        momentum=0.0,
        weight_decay=0.0,
        pull=terms.personal_lambda or 0.0,
        random=generator(run_config["seed"], "personal batches", terms.server_round, client),
    )


class StragglerError(Exception):
    """A client that is too slow for this round, where such clients are dropped."""


def epochs_in_time(run_config: Mapping[str, Any], number: int, client: str) -> int:
    """Return the epochs that this client gets done in round `number`: fewer for a straggler.

    Source: Li et al., MLSys 2020 (FedProx), section 5.2: systems heterogeneity.
    """
    random = generator(run_config["seed"], "stragglers", number, client)
    if random.random() >= run_config.get("stragglers", 0.0):
        return int(run_config["local-epochs"])
    if run_config["drop-stragglers"]:
        raise StragglerError(f"{client} is a straggler in round {number}, and drop-stragglers is on")
    return int(random.integers(1, run_config["local-epochs"] + 1))


def train(
    model: nn.Module, task: Task, examples: Examples, work: LocalWork, anchor: Sequence[Tensor] | None = None
) -> StateDict:
    """Run the local steps on `model` in place; return the state after `snapshot_step`, empty if there was none.

    `anchor` holds the trainable parameters that the pull goes to, in the model's order; None: where training starts.
    """
    model.train()
    parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    received = [tensor.detach().clone() for tensor in (parameters if anchor is None else anchor)]
    velocity: list[Tensor] = []
    snapshot: StateDict = {}
    ends = time.monotonic() + work.seconds
    for step, batch in enumerate(batches(len(examples), work), start=1):
        inputs, targets = examples[batch.to(examples.targets.device)]
        loss = work.transform(task.loss(model(inputs), targets).mean())
        gradients = list(torch.autograd.grad(loss, parameters))
        with torch.no_grad():
            descend(parameters, gradients, received, velocity, work)
        if step == work.snapshot_step:
            snapshot = copy.deepcopy(model.state_dict())
        if time.monotonic() > ends:
            break
    if work.snapshot_step is not None and not snapshot:  # time was over before
        snapshot = copy.deepcopy(model.state_dict())
    return snapshot


def descend(
    parameters: list[Tensor],
    gradients: list[Tensor],
    received: list[Tensor],
    velocity: list[Tensor],
    work: LocalWork,
) -> None:
    """Take one step of SGD in place, as torch.optim.SGD does with the pull to `received` in the gradient.

    Written out because the first optimizer object of a process imports PyTorch's compiler, which takes seconds.
    """
    if work.pull > 0.0:
        away = torch._foreach_sub(parameters, received)
        torch._foreach_add_(gradients, away, alpha=work.pull)
    if work.weight_decay > 0.0:
        torch._foreach_add_(gradients, parameters, alpha=work.weight_decay)
    if work.momentum > 0.0:
        if velocity:
            torch._foreach_mul_(velocity, work.momentum)
            torch._foreach_add_(velocity, gradients)
        else:
            velocity.extend(gradients)
        gradients = velocity
    torch._foreach_add_(parameters, gradients, alpha=-work.learning_rate)


def batches(count: int, work: LocalWork) -> Iterator[Tensor]:
    """Yield the indices of each step's examples: a new random order in every epoch."""
    epochs = range(work.epochs) if work.steps is None else itertools.count()
    steps = (
        batch
        for _ in epochs
        for batch in torch.split(torch.from_numpy(work.random.permutation(count)), work.batch_size or count)
    )
    return itertools.islice(steps, work.steps)


@torch.no_grad()
def measure(model: nn.Module, task: Task, examples: Examples) -> tuple[float, float]:
    """Return mean loss and accuracy of `model`, in eval mode, over all `examples`."""
    model.eval()
    loss = right = 0.0
    for start in range(0, len(examples), EVALUATION_BATCH):
        inputs, targets = examples[start : start + EVALUATION_BATCH]
        outputs = model(inputs)
        loss += task.loss(outputs, targets).double().sum().item()
        right += task.right(outputs, targets).double().sum().item()
    return loss / len(examples), right / len(examples)
