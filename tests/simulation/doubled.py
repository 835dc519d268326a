"""A user's task in float64, in which engines agree to the last digits, and models for it."""

from dataclasses import replace

from torch import Tensor, nn

from fairbloom.tasks import TASKS, Examples, Setup, Splits, Task


def doubled(setup: Setup, *, apart: bool = False) -> Task:
    """The digits in float64, each client with tensors of its own where they are to be `apart`."""
    task = TASKS["digits"].load(setup.model_copy(update={"model": setup.model or "logistic"}), {})
    shared = task.splits(task.clients[0]).train.inputs.double()

    def splits(client: str) -> Splits:
        return Splits(*(own(part) for part in task.splits(client)))

    def own(part: Examples) -> Examples:
        return Examples(part[:][0].double(), part[:][1]) if apart else replace(part, inputs=shared)

    return replace(task, model=lambda: task.model().double(), splits=splits)


class Contrasted(nn.Module):
    """Each example is seen in contrast to the mean of its batch."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        return self.last(flat - flat.mean(0))  # type: ignore[no-any-return]


class Branching(nn.Module):
    """Control flow on data."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.last(images.flatten(1))
        return outputs if outputs.sum() > 0 else 2.0 * outputs  # type: ignore[no-any-return]
