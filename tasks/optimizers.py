"""Optimizers of clients: of torch.optim by name, or a user's own by import string; each with its parameters.

PyTorch is imported late.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from fairbloom.errors import FairbloomError, ReportableError, did_you_mean
from fairbloom.imports import imported, is_import_string
from fairbloom.protocol.assignments import Argument, arguments
from fairbloom.protocol.settings import SETTINGS, RunSettings, SettingsError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

ELEMENTWISE = frozenset(
    {"sgd", "adam", "adamw", "adamax", "nadam", "radam", "adagrad", "adadelta", "rmsprop", "asgd", "rprop"}
)
"""Those that move each number by its own gradients alone, and so can move the models of several clients at once."""

SETTINGS_OF = {"lr": "learning-rate", "momentum": "momentum", "weight_decay": "weight-decay"}
"""The arguments of optimizers that are settings of a run."""


@dataclass(frozen=True)
class OptimizerChoice:
    """The optimizer a client trains with, by the settings `optimizer` and `optimizer-parameters`."""

    name: str = "sgd"
    parameters: tuple[tuple[str, Argument], ...] = ()

    @classmethod
    def of(cls, settings: RunSettings) -> OptimizerChoice:
        """Return the optimizer that a run's settings choose."""
        name = settings.optimizer if is_import_string(settings.optimizer) else settings.optimizer.casefold()
        try:
            return cls(name, tuple(arguments(settings.optimizer_parameters).items()))
        except ValueError as error:
            raise SettingsError(f"optimizer-parameters = {settings.optimizer_parameters!r}: {error}") from error

    def __str__(self) -> str:
        """Return the optimizer as a call: adamw(eps=1e-06)."""
        given = ", ".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.name}({given})" if given else self.name

    @property
    def is_plain_sgd(self) -> bool:
        """Whether it is stochastic gradient descent with nothing but a rate, momentum and weight decay."""
        return self == PLAIN_SGD

    @property
    def is_elementwise(self) -> bool:
        """Whether it moves each number by its own gradients alone."""
        return self.name in ELEMENTWISE

    @property
    def is_in_proportion(self) -> bool:
        """Whether it moves each number by its own gradients alone, and in proportion to the learning rate."""
        return self.name in ELEMENTWISE - {"asgd", "rprop"}  # what these two remember depends on the learning rate

    @property
    def maker(self) -> Callable[..., Any]:
        """What makes it."""
        if is_import_string(self.name):
            found = imported("optimizer", self.name)
            if not callable(found):
                raise FairbloomError(
                    f"optimizer = {self.name!r}: it is a {type(found).__name__}; an optimizer is a subclass of "
                    "torch.optim.Optimizer"
                )
            return found  # type: ignore[no-any-return]
        named = _of_pytorch()
        if self.name not in named:
            raise ReportableError(
                f"optimizer = {self.name!r}: {did_you_mean(self.name, named)}torch.optim has {', '.join(named)}; your "
                "own is named as in my_module:MyOptimizer"
            )
        return named[self.name]

    @property
    def arguments(self) -> Collection[str]:
        """The names of what it takes."""
        return _signature(self.maker)

    def make(
        self, parameters: Sequence[Tensor], *, learning_rate: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> Optimizer:
        """Return a new optimizer; it gets momentum and weight decay if it takes them, also when they are 0."""
        from torch.optim import Optimizer

        maker = self.maker
        taken = _signature(maker)
        rates = {"lr": learning_rate, "momentum": momentum, "weight_decay": weight_decay}
        for argument, value in rates.items():
            if value and argument != "lr" and argument not in taken:
                key = SETTINGS_OF[argument]
                raise ReportableError(
                    f"{key} = {value:g} has no effect with optimizer = {self.name!r}, which has no {argument}: leave "
                    f"{key} out, or choose another optimizer, sgd say"
                )
        chosen = {name: value for name, value in rates.items() if name in taken}
        try:
            made = maker(list(parameters), **chosen, **dict(self.parameters))
        except (ValueError, TypeError) as error:
            raise ReportableError(
                f"optimizer = {self.name!r} cannot be made with {', '.join(_said(chosen, self.parameters))}: {error}",
                f"optimizer = {self.name!r} cannot be made with its parameters ({type(error).__name__})",
            ) from error
        if not isinstance(made, Optimizer):
            raise FairbloomError(
                f"optimizer = {self.name!r}: it makes a {type(made).__name__}; it must make a torch.optim.Optimizer"
            )
        return made


PLAIN_SGD = OptimizerChoice()
"""Stochastic gradient descent, with momentum and weight decay perhaps."""


def check_optimizer(settings: RunSettings) -> None:
    """Raise FairbloomError if the run's optimizer cannot be made, or takes a step only with more than a gradient."""
    choice = OptimizerChoice.of(settings)
    if not choice.is_plain_sgd:
        _check(choice, settings.learning_rate, settings.momentum, settings.weight_decay)


def usual_learning_rate(settings: RunSettings) -> float | None:
    """Return the optimizer's own default where the run has SGD's, and that is ten times as high or more; else None."""
    choice, rate = OptimizerChoice.of(settings), settings.learning_rate
    if choice.name == PLAIN_SGD.name or rate != SETTINGS["learning-rate"].default:
        return None
    lr = _signature(choice.maker).get("lr")
    usual = None if lr is None else lr.default
    return float(usual) if isinstance(usual, int | float) and 10.0 * usual <= rate else None


@lru_cache(maxsize=64)
def _check(choice: OptimizerChoice, learning_rate: float, momentum: float, weight_decay: float) -> None:
    import torch

    _check_parameters(choice)
    tried = torch.ones(2, 2, requires_grad=True)
    optimizer = choice.make([tried], learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay)
    tried.grad = torch.ones(2, 2)
    try:
        optimizer.step()
    except Exception as error:  # whatever a user's own raises
        raise SettingsError(
            f"optimizer = {choice.name!r} cannot take a step by a gradient alone ({type(error).__name__}: {error}): "
            "choose one whose step() needs no closure and takes dense gradients, adamw say"
        ) from error


def _check_parameters(choice: OptimizerChoice) -> None:
    """Raise SettingsError when a parameter is none of the optimizer's, is a run's setting, or of another type."""
    taken = _signature(choice.maker)
    open_ended = inspect.Parameter.VAR_KEYWORD in {each.kind for each in taken.values()}
    named = {name: each for name, each in taken.items() if each.kind is not inspect.Parameter.VAR_KEYWORD}
    for name, value in choice.parameters:
        said = f"optimizer-parameters: {name} = {value!r}"
        if name in SETTINGS_OF:
            raise SettingsError(f"{said}: {SETTINGS_OF[name]} sets that: give it there")
        if name not in named:
            if open_ended:
                continue
            there = [each for each in list(named)[1:] if each not in SETTINGS_OF]
            hint = did_you_mean(name, there)
            raise SettingsError(f"{said}: {choice.name} has no such parameter: {hint}there are {', '.join(there)}")
        default = named[name].default
        if default is not None and default is not inspect.Parameter.empty and not _is_like(value, default):
            raise SettingsError(f"{said}: {choice.name} takes {_kind(default)} there, {default!r} by default")


@cache
def _of_pytorch() -> dict[str, type[Optimizer]]:
    """Return the classes of torch.optim by their names in lower case."""
    from torch import optim

    classes = {name: of for name, of in vars(optim).items() if isinstance(of, type) and of is not optim.Optimizer}
    return {name.casefold(): classes[name] for name in sorted(classes)}


def _signature(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(maker).parameters)


def _is_like(value: Argument, default: object) -> bool:
    """Return whether a value is of the type that a default has; a whole number will do for a fraction."""
    if isinstance(default, tuple):
        return isinstance(value, tuple) and len(value) == len(default)
    if isinstance(default, bool | str):
        return type(value) is type(default)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(default: object) -> str:
    if isinstance(default, tuple):
        return f"{len(default)} values in parentheses"
    if isinstance(default, bool):
        return "true or false"
    return "a word" if isinstance(default, str) else "a number"


def _said(*groups: Any) -> list[str]:
    return [f"{name}={value}" for group in groups for name, value in dict(group).items()]
