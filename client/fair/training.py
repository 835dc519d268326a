"""A user's own training and test functions on the terms of a server. It does not know Flower."""

import copy
import inspect
import math
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import BatchSampler, DataLoader, Subset

from fairbloom.errors import ReportableError
from fairbloom.protocol.names import ACCURACY, LEARNING_RATE, LOSS
from fairbloom.protocol.terms import Terms
from fairbloom.tasks.generators import all_seeded, seed_all
from fairbloom.text import text_if

from ..frozen import check_frozen_unchanged
from ..metrics import (
    AFTER,
    BEFORE,
    OF_EVALUATION,
    ON_TRAINING,
    WORK_METRICS,
    Measurement,
    WorkDone,
    requested_metrics,
)
from ..rules.base import Rule, hooks_of
from ..rules.personal import PersonalParameters
from ..rules.registry import kinds_of
from ..rules.steps import ClientMomentum, ProximalTerm
from ..support import Support

Function = Callable[..., Any]

# The rules and metrics that a user's functions support; their local work is the user's own.
SUPPORTED = Support(
    hooks=hooks_of(Rule.pull, Rule.replace_steps, Rule.personal_arrays),
    work=frozenset(),
    metrics=frozenset(
        {
            *WORK_METRICS,
            *(m.pattern for m in (BEFORE, AFTER, *OF_EVALUATION) if m is not ON_TRAINING),
        }
    ),
    rules=frozenset({ProximalTerm, ClientMomentum, PersonalParameters}),
)


@dataclass
class TrainingCall:
    """The work for one message: a call of the training function on its terms.

    Attributes
    ----------
    received
        The shapes of the received arrays, by name.
    load
        Makes a loader of the training data; None: use the call's only loader.
    seed
        The seed of the training's random numbers; None: from the system's entropy.
    is_checked
        Whether the test function is known to return a mean.
    metrics
        The metrics to reply, by their names on the wire.
    has_zero_rate
        Whether optimizers took steps, all with a learning rate of 0.
    sizes
        The batches and examples of the only loader that the training function was called with.
    """

    train: Function
    test: Function
    terms: Terms
    received: Mapping[str, tuple[int, ...]]
    load: Callable[[], Any] | None
    seed: int | None
    is_checked: bool
    metrics: dict[str, float] = field(default_factory=dict)
    calls: int = 0
    has_zero_rate: bool = False
    sizes: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self._rules = [kind(self.terms) for kind in kinds_of(self.terms)]
        self.asked = ", ".join(
            [*map(str, self._rules), *(f"measure = {name}" for name in self.terms.measure)]
        )

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the training function on the terms.

        Raise ReportableError, with the name of the term, if the functions do not support a term.
        """
        self.calls += 1
        self.sizes = sizes_of([*args, *kwargs.values()])
        arguments = name_arguments(self.train, args, kwargs) if self.asked else {}
        model = find_model(arguments, self.received) if self.asked else nn.Identity()
        steps = ModelSteps(model, self._rules, seeded=self.seed is not None)
        self._measure(BEFORE, model, arguments)
        seed_all(self.seed)
        with register_optimizer_step_pre_hook(steps.begin):
            try:
                outcome = self.train(*args, **kwargs)
            except RuntimeError as error:
                if not self.metrics or "Inference tensors" not in str(error):
                    raise
                raise ReportableError(
                    "the test function, which measures the received model before training, leaves"
                    " tensors of torch.inference_mode outside the model's modules: take"
                    " torch.no_grad in it"
                ) from error
        self.has_zero_rate = steps.largest_rate == 0.0
        if not steps.rates and (self._rules or LEARNING_RATE in self.terms.measure):
            raise ReportableError(
                f"{self.asked}: no optimizer of torch.optim took a step on the model of the"
                " training: answer it without PyTorch as docs/flower.md shows"
            )
        self._measure(AFTER, model, arguments)
        done = WorkDone(
            lambda: steps.single_rates()[0],
            lambda: [(old, new) for new, old in steps.anchor.items()],
            lambda: math.fsum(steps.single_rates()),
        )
        self.metrics |= requested_metrics(self.terms.measure, {}, lambda: done)
        return outcome

    def _measure(
        self, measurement: Measurement, model: nn.Module, arguments: Mapping[str, Any]
    ) -> None:
        """Measure the current model on all training examples, if the terms ask for it."""
        asked = measurement.requests(self.terms.measure)
        if not asked:
            return
        loader = find_loader(arguments, self.load, f"measure = {', '.join(asked)}")
        examples = range(len(loader.dataset))  # type: ignore[arg-type] # Sized
        size = loader.batch_size or 32
        restore = remember(model)

        def scores_of(part: DataLoader[Any]) -> Mapping[str, float]:
            model.eval()
            with check_frozen_unchanged(model):
                try:
                    return read_scores(
                        self.test(**arguments_of(self.test, model, part, arguments)),
                        {LOSS, *asked.values()},
                    )
                finally:
                    restore()

        def batch_of(batch: Sequence[int]) -> DataLoader[Any]:
            return DataLoader(
                Subset(loader.dataset, batch), batch_size=len(batch), collate_fn=loader.collate_fn
            )

        with torch.no_grad():
            if not self.is_checked:
                # At least 5 examples: the error sends their mean loss to the server.
                check_mean(lambda part: scores_of(part)[LOSS], loader, examples[: max(size, 5)])
                self.is_checked = True
            measured = [
                (len(batch), scores_of(batch_of(batch)))
                for batch in BatchSampler(examples, size, drop_last=False)
            ]
        for name, score in asked.items():
            total = math.fsum(count * scores[score] for count, scores in measured)
            self.metrics[name] = total / len(examples)


# The objects in which a module holds its tensors, modules and own values.
HOLDERS = (dict, OrderedDict, list)


def remember(model: nn.Module) -> Callable[[], None]:
    """Return a function that makes a model what it is now: its modules, flags, dtypes and values.

    Frozen parameters are not copied: values that are written into them stay.
    """
    modes = [(module, module.training) for module in model.modules()]
    containers: list[tuple[Any, Any]] = []
    for module, _ in modes:
        held = (vars(module), *vars(module).values())
        containers += [(each, copy.copy(each)) for each in held if type(each) in HOLDERS]
    tensors: dict[Tensor, tuple[Tensor, Tensor, bool, Tensor | None]] = {}
    for container, _ in containers:
        for each in container.values() if isinstance(container, dict) else container:
            # the values of others, sparse ones for example, cannot be compared
            if not isinstance(each, Tensor) or not each.is_leaf or not _is_plain(each):
                continue
            values = each.data
            if each.requires_grad or not isinstance(each, nn.Parameter):
                values = values.clone()
            gradient = None if each.grad is None else each.grad.detach()
            tensors[each] = (each.data, values, each.requires_grad, gradient)

    @torch.no_grad()
    def restore() -> None:
        for container, contents in containers:
            container.clear()
            (container.update if isinstance(container, dict) else container.extend)(contents)
        for module, training in modes:  # a scripted one has it elsewhere
            module.training = training
        for tensor, (data, values, is_trained, gradient) in tensors.items():
            tensor.data = data
            tensor.requires_grad_(is_trained)
            # Another object each time: a cast of the model changes it in place.
            tensor.grad = None if gradient is None else gradient.detach()
            # NaN is NaN; most are equal, which is seen in one pass
            is_same = torch.equal(data, values) or bool(
                ((data == values) | ((data != data) & (values != values))).all()
            )
            if not is_same:
                data.copy_(values)

    return restore


def _is_plain(tensor: Tensor) -> bool:
    is_dense = tensor.layout == torch.strided and not tensor.is_nested
    return is_dense and tensor.device.type != "meta"


class ModelSteps:
    """The steps that optimizers take on a model, with the proximal term and momentum of rules.

    Optimizers of other parameters are not changed. With `seeded`, the server knows the seed of the
    training's random numbers, so an optimizer that adds noise is refused.

    Attributes
    ----------
    anchor
        The model's trained parameters, each with a copy of its first values, to which it is pulled.
    rates
        The learning rates of each step; several, if groups of parameters have their own, and none
        if the optimizer chooses them by itself.
    """

    def __init__(self, model: nn.Module, rules: Sequence[Rule], *, seeded: bool) -> None:
        self.anchor = {
            parameter: parameter.detach().clone()
            for parameter in model.parameters()
            if parameter.requires_grad
        }
        self.rates = list[list[float]]()
        self._pull = sum(rule.pull() for rule in rules)
        self._momentum = next(
            (rule.momentum for rule in rules if isinstance(rule, ClientMomentum)), None
        )
        self._by = ", ".join(map(str, rules))
        self._seeded = seeded
        # The largest learning rate of any optimizer's step, None without one.
        self.largest_rate: float | None = None
        self._known = set[Optimizer]()

    def single_rates(self) -> list[float]:
        """Return the learning rate of each step; raise ReportableError unless each has one."""
        wrong = [rates for rates in self.rates if len(rates) != 1]
        if wrong:
            has = f"several learning rates, {wrong[0]}" if wrong[0] else "no learning rate"
            raise ReportableError(f"the optimizer has {has}, and one is measured")
        return [rate for (rate,) in self.rates]

    def begin(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Prepare a step; return its new arguments, or None to leave them unchanged.

        The proximal term needs the gradients, so a closure is called here, and replaced by its
        loss.
        """
        if self._seeded and optimizer not in self._known:
            refuse_noise(optimizer)
        self._known.add(optimizer)
        rates = sorted(
            {float(group["lr"]) for group in optimizer.param_groups if group.get("lr") is not None}
        )
        if rates:
            self.largest_rate = max(rates[-1], self.largest_rate or 0.0)
        mine = []
        for group in optimizer.param_groups:
            mine += [each for each in group["params"] if each in self.anchor]
        if not mine:
            return None
        self.rates.append(rates)
        if self._momentum is not None:
            for group in optimizer.param_groups:
                if "momentum" not in group:
                    raise ReportableError(
                        f"{self._by}: {type(optimizer).__name__} has no momentum; torch.optim.SGD"
                        " has"
                    )
                group["momentum"] = self._momentum
        if not self._pull:
            return None
        if isinstance(optimizer, LBFGS):
            raise ReportableError(
                f"{self._by}: LBFGS computes several gradients in a step; use another optimizer"
            )
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        with torch.enable_grad():
            loss = None if closure is None else closure()
        # A fused optimizer divides gradients by it, so the proximal term is multiplied by it.
        scale = getattr(optimizer, "grad_scale", None)
        for parameter in mine:
            if parameter.grad is not None:
                away = parameter.detach() - self.anchor[parameter].to(parameter.device)
                parameter.grad.add_(away if scale is None else away * scale, alpha=self._pull)
        return None if closure is None else (args[:1], {**kwargs, "closure": lambda: loss})


def refuse_noise(optimizer: Optimizer) -> None:
    """Raise ReportableError if an optimizer, or another one that calls its step, adds noise.

    Opacus wraps an optimizer, and hooks of PyTorch see only the inner one.
    """
    frames = islice(traceback.walk_stack(inspect.currentframe()), 10)
    callers = (frame.f_locals.get("self") for frame, _ in frames)
    for each in (optimizer, *callers):
        if isinstance(each, Optimizer) and getattr(each, "noise_multiplier", False):
            raise ReportableError(
                f"{type(each).__name__} adds noise for differential privacy, but this app is"
                " seeded, so the server can draw the same noise and remove it: write fair(...,"
                " seeded=False)"
            )


def name_arguments(
    function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call, with defaults, by parameter names and by positions."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return {
        **{f"argument {place}": each for place, each in enumerate(bound.args, start=1)},
        **bound.arguments,
        **bound.kwargs,
    }


def _is_trained(model: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in model.parameters())


def _shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: (*array.shape,) for name, array in model.state_dict().items()}


def find_model(arguments: Mapping[str, Any], received: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """Return the only module with trained parameters; of several, that with `received` shapes."""
    modules = {each: name for name, each in arguments.items() if isinstance(each, nn.Module)}
    trained = {model: name for model, name in modules.items() if _is_trained(model)}
    matching = list(trained)
    if len(trained) > 1:
        matching = [model for model in trained if _shapes_of(model) == received]
    if len(matching) != 1:
        models = text_if(trained, f"the models {', '.join(trained.values())}")
        given = models or "no torch.nn.Module with trained parameters"
        raise ReportableError(
            f"the training function was called with {given}: give it the one that is trained, and"
            " freeze others (requires_grad_(False)) or leave them out; an app without PyTorch"
            " answers as docs/flower.md shows"
        )
    return matching[0]


def find_loader(
    arguments: Mapping[str, Any], load: Callable[[], Any] | None, term: str
) -> DataLoader[Any]:
    """Return the loader of the training data: from `load`, or the only loader among arguments."""
    offered = arguments if load is None else {"training_data": load()}
    given = {each: name for name, each in offered.items() if isinstance(each, DataLoader)}
    if len(given) == 1:
        (loader,) = given
        has_length = isinstance(loader.dataset, Sized) and len(loader.dataset) > 0
        if loader.batch_sampler is not None and has_length:
            return loader
    raise ReportableError(
        f"{term} needs one DataLoader that makes batches of a dataset with a length above 0,"
        f" and there is {', '.join(given.values()) or 'none'}: give fair(...,"
        " training_data=load), where load(context) returns it"
    )


def sizes_of(values: Sequence[Any]) -> tuple[int, int] | None:
    """Return the batches and examples of the only DataLoader among values, None if unknown."""
    loaders = [value for value in values if isinstance(value, DataLoader)]
    if len(loaders) != 1 or not isinstance(loaders[0].dataset, Sized):
        return None
    return len(loaders[0]), len(loaders[0].dataset)


def arguments_of(
    test: Function, model: nn.Module, loader: Any, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a test function: model, loader, and values of the training function.

    The model is the parameter with its name in the training function, or else the first one; the
    loader is the next one, preferably a parameter that the training function does not have.
    """
    values = {
        name: each
        for name, each in arguments.items()
        if each is not model and not isinstance(each, DataLoader)
    }
    parameters = inspect.signature(test).parameters
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and str(parameter)[0] != "*"
    ]
    needed.sort(key=lambda name: (arguments.get(name) is not model, name in values))
    if len(needed) < 2 or not values.keys() >= {*needed[2:]}:
        raise ReportableError(
            "the test function must take the model, a loader, and what has a default or is a"
            f" parameter of the training function; it takes {', '.join(needed)}"
        )
    return {
        **{name: values[name] for name in parameters if name in values},
        needed[0]: model,
        needed[1]: loader,
    }


def check_mean(
    loss_of: Callable[[DataLoader[Any]], float], loader: DataLoader[Any], batch: Sequence[int]
) -> None:
    """Raise ReportableError if a test function does not return the mean loss over examples.

    A sum is found by measuring examples, and the same examples twice. The data may draw at random,
    as augmentation does. So examples are loaded once, collate functions and test functions draw the
    same numbers, and the result must be the same with other numbers.
    """
    part = Subset(loader.dataset, batch)
    with all_seeded(0):
        examples: Any = part.__getitems__([*range(len(part))])

    def measure(times: int, seed: int, collate_seed: int) -> float:
        def collate(given: Any) -> Any:
            with all_seeded(collate_seed):
                if isinstance(given, list):  # some collate functions take keys out of an example
                    given = [copy.copy(each) for each in given]
                return loader.collate_fn(given)

        repeated: Any = Subset(loader.dataset, [*batch, *batch][: times * len(batch)])
        if isinstance(examples, list):  # others are made batch by batch
            repeated = examples * times
        with all_seeded(seed):
            return loss_of(DataLoader(repeated, batch_size=len(repeated), collate_fn=collate))

    losses = [(measure(1, seed, seed), measure(2, seed, seed)) for seed in (1, 2)]
    (once, twice), _ = losses
    if not np.isfinite(losses).all() or math.isclose(once, twice, rel_tol=1e-3):
        return
    for factor in (2.0, 0.5):
        if all(math.isclose(double, factor * single, rel_tol=0.1) for single, double in losses):
            raise ReportableError(
                "the test function must return the mean loss over examples: it returned"
                f" {once:.6g} for {len(batch)} examples, and {twice:.6g} for the same examples"
                " twice; divide a sum over examples by their number, and a sum of batches' means by"
                " the number of batches"
            )
    # A collate function with a generator of its own cannot be repeated.
    is_repeatable = math.isclose(once, measure(1, 1, 1), rel_tol=1e-3)
    other = measure(1, 2, 1)
    if is_repeatable and not math.isclose(once, other, rel_tol=1e-3):
        raise ReportableError(
            f"the same {len(batch)} examples give other losses, {once:.6g} and {other:.6g}: the"
            " test function draws at random, by dropout left on or random transforms: call"
            " model.eval() in it, and transform no examples there"
        )


def read_scores(returned: Any, needed: set[str]) -> dict[str, float]:
    """Return the needed ones of loss and accuracy from the result of a test function."""
    match returned:
        case (loss, Mapping() as others):
            returned = {LOSS: loss, **others}
        case (loss, accuracy):
            returned = {LOSS: loss, ACCURACY: accuracy}
    try:
        numbers = {name: float(returned[name]) for name in needed}
    except (LookupError, TypeError, ValueError):
        raise ReportableError(
            "the test function must return (loss, accuracy), (loss, a dict with accuracy) or a"
            f" dict with loss and accuracy, not {type(returned).__name__}"
        ) from None
    if not 0.0 <= numbers.get(ACCURACY, 0.0) <= 1.0:
        raise ReportableError(
            f"the test function returned the accuracy {numbers[ACCURACY]:g}: it must be in [0, 1]"
        )
    return numbers
