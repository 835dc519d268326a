"""Adam and AdamW over the models of several clients at once."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from fairbloom.client.capture import states_of
from fairbloom.client.work import LocalWork, step_by


class RowOptimizer:
    """One elementwise optimizer over the arrays of k clients, shape (k, *shape).

    Clients that are done drop out at the end, and the optimizer's state with them.
    """

    def __init__(self, arrays: Sequence[Tensor], work: LocalWork) -> None:
        self._work = work
        self._most = len(arrays[0])
        self._by_count = {self._most: self._make(arrays, self._most)}

    def of_first(self, count: int) -> tuple[list[Tensor], Optimizer]:
        """Return the arrays of the first clients, as leaves of autograd, and their optimizer.

        The other clients are done.
        """
        if count not in self._by_count:
            leaves_before, optimizer_before = self._by_count[
                min(each for each in self._by_count if each > count)
            ]
            leaves, optimizer = self._make(leaves_before, count)
            for fewer, leaf in zip(leaves, leaves_before, strict=True):
                state = dict(optimizer_before.state[leaf])
                for name, value in state.items():
                    # it has arrays of the leaf's shape, and others, such as a step count
                    if isinstance(value, Tensor) and value.shape == leaf.shape:
                        state[name] = value[:count]
                optimizer.state[fewer] = state
            self._by_count[count] = (leaves, optimizer)
        return self._by_count[count]

    def prepare_recording(self) -> None:
        """Make the state of all clients before their first step; it is used in every round."""
        leaves, optimizer = self._by_count[self._most]
        step_by(optimizer, leaves, [torch.zeros_like(leaf) for leaf in leaves], 0.0)

    def states(self) -> list[Tensor]:
        """Return the tensors of the state of all clients."""
        return states_of(self._by_count[self._most][1])

    def _make(self, arrays: Sequence[Tensor], count: int) -> tuple[list[Tensor], Optimizer]:
        leaves = [array.detach()[:count].requires_grad_() for array in arrays]
        optimizer = self._work.make_optimizer(leaves)
        if optimizer is None:
            raise ValueError(f"{self._work.optimizer} takes its steps without an optimizer object")
        return leaves, optimizer
