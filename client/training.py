"""Local work of one client: stochastic gradient descent from the received model, and its measures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tasks import Examples, Task
from tasks.randomness import generator

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
    proximal_mu
        Strength of (mu/2)‖x − w‖², w the received model.
    seed, round, client
        What the order of batches is drawn from.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float
    weight_decay: float
    proximal_mu: float
    seed: int
    round: int
    client: str

    @classmethod
    def of(cls, run_config: Mapping[str, Any], told: Mapping[str, Any], client: str) -> "LocalWork":
        """Return the work that the run config sets and the server's message adds to."""
        return cls(
            epochs=int(run_config["local-epochs"]),
            batch_size=int(run_config["batch-size"]),
            learning_rate=float(run_config["learning-rate"]),
            momentum=float(run_config["momentum"]),
            weight_decay=float(run_config["weight-decay"]),
            proximal_mu=float(told.get("proximal-mu", 0.0)),
            seed=int(run_config["seed"]),
            round=int(told["server-round"]),
            client=client,
        )


def train(model: nn.Module, task: Task, examples: Examples, work: LocalWork) -> None:
    """Run the local steps on `model` in place."""
    model.train()
    parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    received = [parameter.detach().clone() for parameter in parameters]
    velocity: list[Tensor] = []
    for batch in batches(len(examples), work):
        chosen = batch.to(examples.targets.device)
        loss = task.loss(model(examples.inputs[chosen]), examples.targets[chosen]).mean()
        gradients = list(torch.autograd.grad(loss, parameters))
        with torch.no_grad():
            descend(parameters, gradients, received, velocity, work)


def descend(
    parameters: list[Tensor],
    gradients: list[Tensor],
    received: list[Tensor],
    velocity: list[Tensor],
    work: LocalWork,
) -> None:
    """Take one step of SGD in place, as torch.optim.SGD does with the proximal term in the gradient.

    Written out because the first optimizer object of a process imports PyTorch's compiler, which takes seconds.
    """
    if work.proximal_mu > 0.0:
        away = torch._foreach_sub(parameters, received)
        torch._foreach_add_(gradients, away, alpha=work.proximal_mu)
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
    """Yield the indices of each step's examples, in an order drawn from (seed, round, client)."""
    random = generator(work.seed, "batches", work.round, work.client)
    for _ in range(work.epochs):
        order = torch.from_numpy(random.permutation(count))
        yield from torch.split(order, work.batch_size or count)


@torch.no_grad()
def measure(model: nn.Module, task: Task, examples: Examples) -> tuple[float, float]:
    """Return mean loss and share of right answers of `model`, in eval mode, over all `examples`."""
    model.eval()
    loss = right = 0.0
    for start in range(0, len(examples), EVALUATION_BATCH):
        part = slice(start, start + EVALUATION_BATCH)
        outputs, targets = model(examples.inputs[part]), examples.targets[part]
        loss += task.loss(outputs, targets).double().sum().item()
        right += (outputs.argmax(dim=1) == targets).sum().item()
    return loss / len(examples), right / len(examples)
