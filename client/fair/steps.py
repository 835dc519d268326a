"""What a server's terms add to the steps of a user's own optimizer, by one hook where `step` begins."""

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fairbloom.errors import ReportableError

Anchor = Mapping[nn.Parameter, Tensor]
"""The trained parameters of a model, each with the value that it had when the training function was called."""


class OptimizerSteps:
    """The steps that optimizers take on a model: proximal term and momentum are added to each.

    Steps of optimizers that have none of the anchor's parameters are left alone.

    Parameters
    ----------
    by
        What errors call the terms that ask for more than plain steps, as key = value.
    pull
        Strength μ of the pull to the anchor's values w, whose gradient μ · (p − w) is added; 0: there is none.
    momentum
        The momentum of each step; None: the optimizer's own.
    seeded
        Whether the server knows the seed of what the training draws; an optimizer that adds noise is refused then.
    """

    def __init__(self, anchor: Anchor, by: str, *, pull: float, momentum: float | None, seeded: bool) -> None:
        self._anchor, self._by, self._seeded = anchor, by, seeded
        self._pull, self._momentum = pull, momentum
        self._rates: list[set[float]] = []  # of each step: one, or several where groups of parameters have their own

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch, and add to, the steps that are taken meanwhile."""
        hook = register_optimizer_step_pre_hook(self._before)
        try:
            yield
        finally:
            hook.remove()

    def check_taken(self, term: str) -> None:
        """Raise ReportableError, naming a term, when no optimizer took a step on the model."""
        if not self._rates:
            raise ReportableError(
                f"{term}: no optimizer of torch.optim took a step on the model of the training function"
            )

    def learning_rate(self) -> float:
        """Return the learning rate of the first step; raise ReportableError where there is none, or more than one."""
        self.check_taken("measure = learning-rate")
        return _single("measure = learning-rate", self._rates[0])

    def rate_sum(self) -> float:
        """Return the sum of the learning rates of all steps, 0 without steps; ReportableError: a step has several."""
        return math.fsum(_single("measure = step-sum", rates) for rates in self._rates)

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Add to a step that begins; return its arguments where its closure was replaced."""
        if self._seeded:
            _refuse_noise(optimizer)
        mine = [p for group in optimizer.param_groups for p in group["params"] if p in self._anchor]
        if not mine:
            return None
        self._rates.append({float(group["lr"]) for group in optimizer.param_groups})
        self._set_momentum(optimizer)
        if not self._pull:
            return None
        if isinstance(optimizer, LBFGS):
            raise ReportableError(f"{self._by}: LBFGS computes several gradients in a step; use another optimizer")
        if getattr(optimizer, "grad_scale", None) is not None:
            raise ReportableError(f"{self._by}: a fused optimizer with a GradScaler is not supported; use fused=False")
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if closure is None:
            self._add_pull(mine)
            return None

        def pulled() -> Any:
            loss = closure()
            self._add_pull(mine)
            return loss

        return args[:1], {**kwargs, "closure": pulled}

    @torch.no_grad()
    def _add_pull(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                away = parameter - self._anchor[parameter].to(parameter.device)
                parameter.grad.add_(away, alpha=self._pull)

    def _set_momentum(self, optimizer: Optimizer) -> None:
        if self._momentum is None:
            return
        for group in optimizer.param_groups:
            if "momentum" not in group:
                name = type(optimizer).__name__
                raise ReportableError(f"{self._by}: {name} has no momentum; torch.optim.SGD has")
            group["momentum"] = self._momentum


def _single(term: str, rates: set[float]) -> float:
    if len(rates) != 1:
        raise ReportableError(f"{term}: the optimizer has several learning rates, {sorted(rates)}")
    return next(iter(rates))


def _refuse_noise(optimizer: Optimizer) -> None:
    """Refuse an optimizer with a `noise_multiplier`, or one whose step such an optimizer calls, as Opacus' does."""
    frame = sys._getframe(1)
    for _ in range(8):  # the hook, PyTorch's wrappers of `step`, and Opacus' step
        for each in (optimizer, frame.f_locals.get("self")):
            if isinstance(each, Optimizer) and getattr(each, "noise_multiplier", False):
                raise ReportableError(
                    f"{type(each).__name__} adds noise for differential privacy, but this app is seeded, so the server "
                    "can draw the same noise and remove it: write fair(..., seeded=False)"
                )
        if frame.f_back is None:
            return
        frame = frame.f_back
