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
        self._leaves, self._optimizer = self._make(arrays, len(arrays[0]))

    def of_first(self, count: int) -> tuple[list[Tensor], Optimizer]:
        """Return the arrays of the first clients, as leaves of autograd, and their optimizer.

        The other clients are done.
        """
        if count < len(self._leaves[0]):
            leaves_before = self._leaves
            states_before = [self._optimizer.state[leaf] for leaf in leaves_before]
            self._leaves, self._optimizer = self._make(leaves_before, count)
            for fewer, leaf, state in zip(self._leaves, leaves_before, states_before, strict=True):
                # The state has arrays of the leaf's shape, and others, such as a step count.
                shortened = dict(state)
                for name, value in state.items():
                    if isinstance(value, Tensor) and value.shape == leaf.shape:
                        shortened[name] = value[:count]
                self._optimizer.state[fewer] = shortened
        return self._leaves, self._optimizer

    def _make(self, arrays: Sequence[Tensor], count: int) -> tuple[list[Tensor], Optimizer]:
        leaves = [array.detach()[:count].requires_grad_() for array in arrays]
        optimizer = self._work.make_optimizer(leaves)
        if optimizer is None:
            raise ValueError(f"{self._work.optimizer} takes its steps without an optimizer object")
        return leaves, optimizer
