"""Optimizers of clients: SGD, Adam, AdamW, or a user's own by import string.

PyTorch is imported late.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from fairbloom.errors import FairbloomError, ReportableError, did_you_mean
from fairbloom.imports import import_callable, is_import_string
from fairbloom.protocol.settings import SETTINGS, RunSettings, SettingsError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

# The optimizers by name, with their classes in torch.optim. They work elementwise, so that one
# optimizer can train the stacked models of several clients.
SGD = "sgd"
OF_PYTORCH = {SGD: "SGD", "adam": "Adam", "adamw": "AdamW"}

# Which of their arguments are settings of a run: a check of the settings needs no PyTorch.
ARGUMENTS = {
    SGD: ("lr", "momentum", "weight_decay"),
    "adam": ("lr", "weight_decay"),
    "adamw": ("lr", "weight_decay"),
}


def optimizer_in(settings: RunSettings) -> str:
    """Return the name of a run's optimizer: a key of OF_PYTORCH, or an import string."""
    name = settings.optimizer
    return name if is_import_string(name) else name.casefold()


def arguments_of(name: str) -> Collection[str]:
    """Return the names of an optimizer's arguments, at least of those that are settings."""
    return ARGUMENTS.get(name) or inspect.signature(_maker_of(name)).parameters.keys()


def make_optimizer(
    name: str,
    parameters: Sequence[Tensor],
    *,
    learning_rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Return a new optimizer.

    It gets momentum and weight decay if it has these arguments, also when they are 0. Raises
    ReportableError if it has no argument for one that is not 0, or cannot be made.
    """
    from torch.optim import Optimizer

    chosen: dict[str, Any] = {"lr": learning_rate} if "lr" in arguments_of(name) else {}
    chosen |= _find_rates(name, momentum, weight_decay)
    try:
        made = _maker_of(name)(list(parameters), **chosen)
    except (ValueError, TypeError) as error:
        given = ", ".join(f"{argument}={value}" for argument, value in chosen.items())
        raise ReportableError(
            f"optimizer = {name!r} cannot be made with {given}: {error}",
            f"optimizer = {name!r} cannot be made ({type(error).__name__})",
        ) from error
    if not isinstance(made, Optimizer):
        raise FairbloomError(
            f"optimizer = {name!r}: it makes a {type(made).__name__}; it must make a"
            " torch.optim.Optimizer"
        )
    return made


def _find_rates(name: str, momentum: float, weight_decay: float) -> dict[str, float]:
    """Return momentum and weight decay as far as an optimizer has these arguments.

    Raise ReportableError if it has no argument for one that is not 0.
    """
    accepted = arguments_of(name)
    rates = {"momentum": momentum, "weight_decay": weight_decay}
    for argument, value in rates.items():
        if value and argument not in accepted:
            key = argument.replace("_", "-")
            raise ReportableError(
                f"{key} = {value:g} has no effect with optimizer = {name!r}, which has no"
                f" {argument}: leave {key} out, or choose another optimizer, sgd say"
            )
    return {argument: value for argument, value in rates.items() if argument in accepted}


def check_optimizer(settings: RunSettings) -> None:
    """Raise FairbloomError if an optimizer is unknown, or has no use for a setting."""
    name = optimizer_in(settings)
    if settings.nesterov and (name != SGD or not settings.momentum):
        raise SettingsError(
            "nesterov = true has an effect only with optimizer = 'sgd' and a momentum, got"
            f" optimizer = {name!r} and momentum = {settings.momentum:g}: set momentum, to 0.9 say,"
            " or leave nesterov out"
        )
    _find_rates(name, settings.momentum, settings.weight_decay)


def usual_learning_rate(settings: RunSettings) -> float | None:
    """Return the optimizer's default learning rate if the run has left SGD's, ten times as high.

    None if the run sets a rate, or if the default is not ten times lower.
    """
    name = optimizer_in(settings)
    rate = settings.learning_rate
    if name == SGD or rate != SETTINGS["learning-rate"].default:
        return None
    lr = inspect.signature(_maker_of(name)).parameters.get("lr")
    usual = None if lr is None else lr.default
    return float(usual) if isinstance(usual, int | float) and 10.0 * usual <= rate else None


def _maker_of(name: str) -> Callable[..., Any]:
    """Return the class, or function, that makes an optimizer."""
    if name in OF_PYTORCH:
        from torch import optim

        maker: Callable[..., Any] = getattr(optim, OF_PYTORCH[name])
        return maker
    if not is_import_string(name):
        raise ReportableError(
            f"optimizer = {name!r}: {did_you_mean(name, OF_PYTORCH)}there are"
            f" {', '.join(OF_PYTORCH)}; any other is named as in my_module:MyOptimizer, or"
            " torch.optim:RMSprop"
        )
    return import_callable("optimizer", name, "an optimizer is a subclass of torch.optim.Optimizer")
