"""The contract of a task."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TaskInfo:
    """What there is to know of a task before it is loaded."""

    name: str
    summary: str
    source: str
    models: tuple[str, ...]
    partitions: tuple[str, ...]
    classes: int


@dataclass(frozen=True)
class Examples:
    """Inputs and targets of one split of one client, first dimension the examples."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.targets)

    def to(self, device: torch.device) -> "Examples":
        """Return the same examples on `device`."""
        return Examples(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True, eq=False)
class Task:
    """Data split into clients, a model and a loss.

    Attributes
    ----------
    clients
        Client names in the order of partition ids.
    model
        Returns the freshly initialised model; the same weights every time.
    loss
        (outputs, targets) → the loss of each example, shape (n,).
    train, test
        The two splits of each client, by name.
    """

    clients: tuple[str, ...]
    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    train: dict[str, Examples]
    test: dict[str, Examples]

    def to(self, device: torch.device) -> "Task":
        """Return the same task with all examples on `device`."""
        moved = ({name: part.to(device) for name, part in split.items()} for split in (self.train, self.test))
        train, test = moved
        return Task(self.clients, self.model, self.loss, train, test)
