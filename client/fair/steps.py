"""What a server's terms add to the steps of a user's own optimizer, and to the user's loss."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from fairbloom.errors import ReportableError

from ..work import Transform

T = TypeVar("T")

Anchor = Mapping[nn.Parameter, Tensor]
"""The parameters of a model, each with the value that it was received with."""


@dataclass(frozen=True)
class Request(Generic[T]):
    """A value that the server asks for, and what asks for it, as key = value."""

    by: str
    value: T


class OptimizerSteps:
    """The steps that optimizers take on a model, and what the terms add to each of them.

    Parameters
    ----------
    anchor
        The model's parameters; steps of optimizers that have none of them are left alone.
    pull
        A pull to the anchor's values w of strength μ: its gradient μ · (p − w) is added.
    momentum
        The momentum of every step; None: it is the optimizer's own.
    plain
        What asks for gradient descent without momentum, as key = value; "": nothing does.
    after_step
        Called after every step with how many there have been.
    """

    def __init__(
        self,
        anchor: Anchor,
        *,
        pull: Request[float] | None = None,
        momentum: Request[float] | None = None,
        plain: str = "",
        after_step: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.counts: Counter[Optimizer] = Counter()
        """How many steps each optimizer has taken."""
        self.rates: list[set[float]] = []
        """The learning rates of each step: one, or several where groups of parameters have their own."""
        self._anchor, self._pull = anchor, pull
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
        """Return the learning rate of the first step; raise ValueError where there is none, or more than one."""
        self.check_taken("measure = learning-rate")
        return self._rates_of("measure = learning-rate", self.rates[:1])[0]

    def rate_sum(self) -> float:
        """Return the sum of the learning rates of all steps, 0 without steps.

        Raise ValueError where a step has several.
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
        if self._pull is not None and self._pull.value:
            self._check_gradients(self._pull.by, optimizer, args, kwargs)
            for parameter in mine:
                if parameter.grad is not None:
                    value = parameter.detach()
                    parameter.grad.add_(value - self._anchor[parameter].to(value.device), alpha=self._pull.value)

    def _set_momentum(self, optimizer: Optimizer) -> None:
        name, asked = type(optimizer).__name__, Request(self._plain, 0.0) if self._plain else self._momentum
        if self._plain and not isinstance(optimizer, SGD):
            raise ReportableError(f"{self._plain}: the optimizer must be torch.optim.SGD, and it is {name}")
        if asked is None:
            return
        for group in optimizer.param_groups:
            if "momentum" not in group:
                raise ReportableError(f"{asked.by}: {name} has no momentum; torch.optim.SGD has")
            group["momentum"] = asked.value

    def _check_gradients(self, by: str, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise ValueError where the gradients are not there yet, or are still scaled."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None:
            raise ReportableError(
                f"{by}: {type(optimizer).__name__} computes its gradients in a closure, where the "
                "proximal term cannot be added; call step() without one"
            )
        if getattr(optimizer, "grad_scale", None) is not None:
            raise ReportableError(f"{by}: a fused optimizer with a GradScaler is not supported; use fused=False")

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

    def check_calls(self, steps: OptimizerSteps) -> None:
        """Raise ValueError when not each step has had one call of `backward`."""
        steps.check_taken(self._term)
        for count in steps.counts.values():
            if count != self._calls:
                raise ReportableError(
                    f"{self._term}: {self._calls} calls of loss.backward() for {count} steps, but each step must have "
                    "one: accumulated gradients, several losses and torch.autograd.grad are not supported"
                )
