"""A user's own training and test functions on the terms of a server. It knows no Flower."""

import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import BatchSampler, DataLoader, Subset

from fairbloom.errors import ReportableError
from fairbloom.protocol.names import ACCURACY, LEARNING_RATE, LOSS
from fairbloom.protocol.terms import Terms

from ..generators import seed_all
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
from ..rules.base import Rule
from ..rules.proximal import ProximalTerm
from ..rules.registry import kinds_of
from ..rules.steps import ClientMomentum
from ..support import Support

Function = Callable[..., Any]

SUPPORTED = Support(
    hooks=frozenset({"pull", "replace_steps"}),
    work=frozenset({"pull", "momentum"}),
    metrics=frozenset(
        {
            *WORK_METRICS,
            *(m.pattern for m in (BEFORE, AFTER, *OF_EVALUATION) if m is not ON_TRAINING),
        }
    ),
    rules=frozenset({ProximalTerm, ClientMomentum}),
)
"""What a user's functions can do; their local work is the user's own."""


@dataclass
class Session:
    """The work for one message: what its terms make of a call of the training function.

    `received` has the shapes of the received arrays by their names. `load` makes a loader of the
    training data; None: they are those of the call's only loader. The training draws from `seed`;
    None: from one that nobody knows. `is_checked` says whether the test function is known to return
    a mean. `metrics` are named as on the wire.
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

    def __post_init__(self) -> None:
        self._rules = [kind(self.terms) for kind in kinds_of(self.terms)]
        self.asked = ", ".join(
            [*map(str, self._rules), *(f"measure = {name}" for name in self.terms.measure)]
        )

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the training function on the terms.

        ReportableError names what the functions cannot do.
        """
        self.calls += 1
        arguments = name_arguments(self.train, args, kwargs) if self.asked else {}
        model = find_model(arguments, self.received) if self.asked else nn.Identity()
        steps = ModelSteps(model, self._rules, seeded=self.seed is not None)
        self._measure(BEFORE, model, arguments)
        seed_all(self.seed)
        with register_optimizer_step_pre_hook(steps.begin):
            outcome = self.train(*args, **kwargs)
        if not steps.rates and (self._rules or LEARNING_RATE in self.terms.measure):
            raise ReportableError(
                f"{self.asked}: no optimizer of torch.optim took a step on the model of the"
                " training"
            )
        self._measure(AFTER, model, arguments)
        changes = [(old, new) for new, old in steps.anchor.items()]
        done = WorkDone(
            lambda: steps.single_rates()[0],
            lambda: changes,
            lambda: math.fsum(steps.single_rates()),
        )
        self.metrics |= requested_metrics(self.terms.measure, {}, done)
        return outcome

    def _measure(
        self, measurement: Measurement, model: nn.Module, arguments: Mapping[str, Any]
    ) -> None:
        """Measure the model as it is now on all training examples, batch by batch, where that is asked for."""
        asked = measurement.requests(self.terms.measure)
        if not asked:
            return
        loader = find_loader(arguments, self.load, f"measure = {', '.join(asked)}")
        examples = range(len(loader.dataset))  # type: ignore[arg-type] # Sized
        size = loader.batch_size or 32

        def scores_of(batch: Sequence[int]) -> Mapping[str, float]:
            part = DataLoader(
                Subset(loader.dataset, batch), batch_size=len(batch), collate_fn=loader.collate_fn
            )
            return read_scores(
                self.test(**arguments_of(self.test, model, part, arguments)),
                {LOSS, *asked.values()},
            )

        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        with torch.no_grad():
            if not self.is_checked:
                # 5: its error tells the server a mean over these
                check_mean(scores_of, examples[: max(size, 5)])
                self.is_checked = True
            found = [
                (len(batch), scores_of(batch))
                for batch in BatchSampler(examples, size, drop_last=False)
            ]
        for module, training in modes:
            module.training = training
        for name, score in asked.items():
            self.metrics[name] = math.fsum(count * scores[score] for count, scores in found) / len(
                examples
            )


class ModelSteps:
    """The steps that optimizers take on a model.

    The proximal term and the momentum of rules are added to each.

    Steps of optimizers that have none of its trained parameters are left alone. With `seeded`, the
    server knows the seed of what the training draws, so an optimizer that adds noise is refused.

    `anchor` has the model's trained parameters, each with a copy of what it was at first, to which
    it is pulled; `rates` the learning rates of each step, several where groups of parameters have
    their own.
    """

    def __init__(self, model: nn.Module, rules: Sequence[Rule], *, seeded: bool) -> None:
        self.anchor = {
            each: each.detach().clone() for each in model.parameters() if each.requires_grad
        }
        self.rates = list[list[float]]()
        self._pull = sum(rule.pull() for rule in rules)
        self._momentum = next(
            (rule.momentum for rule in rules if isinstance(rule, ClientMomentum)), None
        )
        self._by = ", ".join(map(str, rules))
        self._seeded = seeded
        self._known = set[Optimizer]()

    def single_rates(self) -> list[float]:
        """Return the learning rate of each step; raise ReportableError where one has several."""
        if several := [rates for rates in self.rates if len(rates) > 1]:
            raise ReportableError(
                f"the optimizer has several learning rates, {several[0]}, and one is measured"
            )
        return [rate for (rate,) in self.rates]

    def begin(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Add to a step that begins; return its arguments where its closure was called here."""
        if self._seeded and optimizer not in self._known:
            refuse_noise(optimizer)
        self._known.add(optimizer)
        mine = [
            each
            for group in optimizer.param_groups
            for each in group["params"]
            if each in self.anchor
        ]
        if not mine:
            return None
        self.rates.append(sorted({float(group["lr"]) for group in optimizer.param_groups}))
        for group in optimizer.param_groups if self._momentum is not None else ():
            if "momentum" not in group:
                raise ReportableError(
                    f"{self._by}: {type(optimizer).__name__} has no momentum; torch.optim.SGD has"
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
        # by which a fused optimizer divides gradients itself
        scale = getattr(optimizer, "grad_scale", None)
        for parameter in mine:
            if parameter.grad is not None:
                away = parameter.detach() - self.anchor[parameter].to(parameter.device)
                parameter.grad.add_(away if scale is None else away * scale, alpha=self._pull)
        return None if closure is None else (args[:1], {**kwargs, "closure": lambda: loss})


def refuse_noise(optimizer: Optimizer) -> None:
    """Raise ReportableError where an optimizer adds noise, or another that calls its step: hooks do not see Opacus'."""
    callers = (
        frame.f_locals.get("self")
        for frame, _ in islice(traceback.walk_stack(inspect.currentframe()), 10)
    )
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
    """Return the arguments of a call by the names of their parameters, with defaults.

    Others by their places.
    """
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    by_place = {f"argument {place}": each for place, each in enumerate(bound.args, start=1)}
    return {**by_place, **bound.arguments, **bound.kwargs}


def find_model(arguments: Mapping[str, Any], received: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """Return the one module with trained parameters among arguments.

    Of several, the one that fits what came.
    """
    modules = {each: name for name, each in arguments.items() if isinstance(each, nn.Module)}
    trained = {
        each: name
        for each, name in modules.items()
        if any(p.requires_grad for p in each.parameters())
    }
    shapes = {
        each: {name: (*array.shape,) for name, array in each.state_dict().items()}
        for each in trained
    }
    found = [each for each in trained if len(trained) == 1 or shapes[each] == received]
    if len(found) != 1:
        given = (
            f"the models {', '.join(trained.values())}"
            if trained
            else "no torch.nn.Module with trained parameters"
        )
        remedy = (
            "give it the one that is trained, and freeze others (requires_grad_(False)) or leave"
            " them out"
        )
        raise ReportableError(f"the training function was called with {given}: {remedy}")
    return found[0]


def find_loader(
    arguments: Mapping[str, Any], load: Callable[[], Any] | None, term: str
) -> DataLoader[Any]:
    """Return a loader with the training data: what `load` returns, or the only one among arguments."""
    offered = arguments if load is None else {"training_data": load()}
    given = {each: name for name, each in offered.items() if isinstance(each, DataLoader)}
    one = next(iter(given)) if len(given) == 1 else None
    if (
        one is None
        or one.batch_sampler is None
        or not isinstance(one.dataset, Sized)
        or not len(one.dataset)
    ):
        raise ReportableError(
            f"{term} needs one DataLoader that makes batches of a dataset with a length above 0,"
            f" and there is {', '.join(given.values()) or 'none'}: give fair(...,"
            " training_data=load), where load(context) returns it"
        )
    return one


def arguments_of(
    test: Function, model: nn.Module, loader: Any, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a test function is called with: model, loader, and values of the training function by their names.

    The model takes the parameter that has its name in the training function, or else the first; the
    loader the next one, of those without such a value if there are any.
    """
    values = {
        name: each
        for name, each in arguments.items()
        if each is not model and not isinstance(each, DataLoader)
    }
    parameters = inspect.signature(test).parameters
    needed = [
        name
        for name, each in parameters.items()
        if each.default is each.empty and str(each)[0] != "*"
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


def check_mean(scores_of: Callable[[Sequence[int]], Mapping[str, float]], batch: range) -> None:
    """Raise ReportableError where a batch and the same batch doubled have different losses."""
    once, twice = (scores_of(each)[LOSS] for each in (batch, [*batch, *batch]))
    if math.isfinite(once) and math.isfinite(twice) and not math.isclose(once, twice, rel_tol=1e-3):
        raise ReportableError(
            f"the test function must return the mean loss over examples: it returned {once:.6g} for"
            f" {len(batch)} examples, and {twice:.6g} for the same examples twice; divide a sum"
            " over examples by their number, and a sum of batches' means by the number of batches"
        )


def read_scores(returned: Any, needed: set[str]) -> dict[str, float]:
    """Return loss and accuracy among what a test function returned, as far as they are needed."""
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
