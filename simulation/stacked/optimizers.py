"""Adam and AdamW over the models of several clients at once."""

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from fairbloom.client.work import LocalWork


class RowOptimizer:
    """One elementwise optimizer over the arrays of k clients, shape (k, *shape).

    Clients that are done drop out at the end, and the optimizer's state with them.
    """

    def __init__(self, arrays: Sequence[Tensor], work: LocalWork) -> None:
        self._work = work
        self._leaves, self._optimizer = self._made(arrays, len(arrays[0]))

    def of_first(self, count: int) -> tuple[list[Tensor], Optimizer]:
        """Return the arrays of the first clients, as leaves of autograd, and their optimizer.

        The others are done.
        """
        if count < len(self._leaves[0]):
            before = zip(
                self._leaves, [self._optimizer.state[leaf] for leaf in self._leaves], strict=True
            )
            self._leaves, self._optimizer = self._made(self._leaves, count)
            for fewer, (leaf, state) in zip(self._leaves, before, strict=True):
                self._optimizer.state[fewer] = {
                    name: value[:count]
                    if isinstance(value, Tensor) and value.shape == leaf.shape
                    else value
                    for name, value in state.items()
                }
        return self._leaves, self._optimizer

    def _made(self, arrays: Sequence[Tensor], count: int) -> tuple[list[Tensor], Optimizer]:
        leaves = [array.detach()[:count].requires_grad_() for array in arrays]
        optimizer = self._work.make_optimizer(leaves)
        if optimizer is None:
            raise ValueError(f"{self._work.optimizer} takes its steps without an optimizer object")
        return leaves, optimizer
