"""Local work as a user writes it by hand, with torch.optim.SGD."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fairbloom.client.rules.base import StepsTaken
from fairbloom.client.training import batches
from fairbloom.client.work import LocalWork
from fairbloom.tasks import Examples, Task


def train_by_torch(
    model: nn.Module,
    task: Task,
    examples: Examples,
    work: LocalWork,
    anchor: Sequence[Tensor] | None = None,
    *,
    correct: None = None,
    after_step: None = None,
) -> StepsTaken:
    """Stand in for fairbloom.client.training.train, without its snapshots, its limit of time, and rules.

    A last batch of one example is left out where there is BatchNorm. The optimizer's two ways, of which `foreach` is
    one, differ by a rounding in float16 alone.
    """
    model.train()
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=work.learning_rate,
        momentum=work.momentum,
        weight_decay=work.weight_decay,
        foreach=True,
    )
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    received = [tensor.detach().clone() for tensor in (trainable if anchor is None else anchor)]
    normed = any("BatchNorm" in type(module).__name__ for module in model.modules())
    with torch.random.fork_rng():
        torch.manual_seed(work.draws)
        for batch in batches(len(examples), work):
            if normed and len(batch) == 1:
                continue
            inputs, targets = examples[batch]
            optimizer.zero_grad()
            torch.autograd.backward(task.loss(model(inputs), targets).mean())
            for parameter, start in zip(trainable, received, strict=True):
                if work.pull and parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - start, alpha=work.pull)
            if work.gradient_clip:
                torch.nn.utils.clip_grad_norm_(trainable, work.gradient_clip)
            optimizer.step()
    optimizer.zero_grad()
    return StepsTaken()
