"""What a server's terms add to the steps of a user's own optimizer, and to the loss that she differentiates."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from fairbloom.errors import ReportableError

from ..objectives import Transform

Anchor = Mapping[nn.Parameter, Tensor]
"""The parameters of a model, each with the value that it was received with."""


class Steps:
    """The steps that optimizers take on a model, and what the terms add to each of them.

    Parameters
    ----------
    anchor
        The model's parameters; steps of optimizers that have none of them are none of ours.
    pull
        μ of the proximal term, whose gradient μ · (p − w) is added; w are the anchor's values.
    pull_term
        The term that asks for it.
    momentum
        The momentum of every step; None: the optimizer's own.
    plain
        Whether the step must be one of gradient descent, without momentum.
    after_step
        Called after every step with how many there have been.
    """

    def __init__(
        self,
        anchor: Anchor,
        *,
        pull: float = 0.0,
        pull_term: str = "proximal-mu",
        momentum: float | None = None,
        plain: bool = False,
        after_step: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.counts: Counter[Optimizer] = Counter()
        """How many steps each optimizer has taken."""
        self.rates: list[set[float]] = []
        """The learning rates of each step: one, or several where groups of parameters have their own."""
        self._anchor, self._pull, self._pull_term = anchor, pull, f"{pull_term} = {pull:g}"
        self._momentum, self._plain, self._after_step = momentum, plain, after_step

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch, and add to, the steps that are taken meanwhile."""
        hooks = register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def check_taken(self, term: str, wanted: int | None = None) -> None:
        """Raise ValueError, naming a term, when there was no step, or an optimizer took more or fewer than wanted."""
        if not self.counts:
            raise ReportableError(
                f"{term}: no optimizer of torch.optim took a step on the model of the training function"
            )
        for optimizer, count in self.counts.items():
            if wanted is not None and count != wanted:
                raise ReportableError(
                    f"{term}: {type(optimizer).__name__} took {count} steps in {wanted} batches, but each batch must "
                    "be one step: without accumulated gradients, and with an epoch at least"
                )

    def learning_rate(self) -> float:
        """Return the learning rate of the first step.

        Raises
        ------
        ValueError
            When there is none, or more than one.
        """
        self.check_taken("measure = learning-rate")
        return self._rates_of("measure = learning-rate", self.rates[:1])[0]

    def rate_sum(self) -> float:
        """Return the sum of the learning rates of all steps, 0 where there is none.

        Raises
        ------
        ValueError
            When a step has more than one.
        """
        return math.fsum(self._rates_of("measure = step-sum", self.rates))

    @staticmethod
    def _rates_of(term: str, steps: list[set[float]]) -> list[float]:
        for rates in steps:
            if len(rates) != 1:
                raise ReportableError(f"{term}: the optimizer has several learning rates, {sorted(rates)}")
        return [rate for rates in steps for rate in rates]

    def _mine(self, optimizer: Optimizer) -> list[nn.Parameter]:
        return [p for group in optimizer.param_groups for p in group["params"] if p in self._anchor]

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mine = self._mine(optimizer)
        if not mine:
            return
        self.rates.append({float(group["lr"]) for group in optimizer.param_groups})
        self._set_momentum(optimizer)
        if self._pull:
            self._check_gradients(optimizer, args, kwargs)
            for parameter in mine:
                if parameter.grad is not None:
                    value = parameter.detach()
                    parameter.grad.add_(value - self._anchor[parameter].to(value.device), alpha=self._pull)

    def _set_momentum(self, optimizer: Optimizer) -> None:
        name, momentum = type(optimizer).__name__, 0.0 if self._plain else self._momentum
        if self._plain and not isinstance(optimizer, SGD):
            raise ReportableError(f"full-batch-step = True: the optimizer must be torch.optim.SGD, and it is {name}")
        if momentum is None:
            return
        for group in optimizer.param_groups:
            if "momentum" not in group:
                raise ReportableError(f"client-momentum = {momentum:g}: {name} has no momentum; torch.optim.SGD has")
            group["momentum"] = momentum

    def _check_gradients(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise ValueError where the gradients are not there yet, or are still scaled."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None:
            raise ReportableError(
                f"{self._pull_term}: {type(optimizer).__name__} computes its gradients in a closure, where the "
                "proximal term cannot be added; call step() without one"
            )
        if getattr(optimizer, "grad_scale", None) is not None:
            raise ReportableError(
                f"{self._pull_term}: a fused optimizer with a GradScaler is not supported; use fused=False"
            )

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._mine(optimizer):
            self.counts[optimizer] += 1
            self._after_step(self.counts[optimizer])


class TransformedLoss(TorchFunctionMode):
    """Within it, `loss.backward()` differentiates a transform of the loss."""

    def __init__(self, term: str, transform: Transform) -> None:
        super().__init__()
        self._term, self._transform = term, transform
        self._calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of PyTorch, `backward` with another loss."""
        if func is torch._amp_foreach_non_finite_check_and_unscale_:
            raise ReportableError(
                f"{self._term}: a GradScaler scales the loss, so it is not the loss that is transformed; "
                "train without a scaler, in bfloat16 for example"
            )
        if func is Tensor.backward:
            self._calls += 1
            args = (self._transform(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))

    def check_calls(self, steps: Steps) -> None:
        """Raise ValueError when not each step has had one call of `backward`."""
        steps.check_taken(self._term)
        for count in steps.counts.values():
            if count != self._calls:
                raise ReportableError(
                    f"{self._term}: {self._calls} calls of loss.backward() for {count} steps, but each step must have "
                    "one: accumulated gradients, several losses and torch.autograd.grad are not supported"
                )
