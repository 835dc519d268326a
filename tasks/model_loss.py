"""Marks a task for which the model computes the loss itself."""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def model_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Stand for the loss that a model returns by the name `loss`: `Task(loss=model_loss, ...)`.

    It must be the loss of each example, shape (n,). A model needs the targets among its inputs for it.
    """
    raise TypeError("model_loss stands for the loss that a model returns with its outputs; it cannot be called")


def is_of_model(loss: Callable[..., object]) -> bool:
    """Return whether a task's loss is the one that its model returns."""
    return unwrap(loss) is model_loss
