"""A user's own training and test functions on the terms of a server. It knows no Flower."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from fairbloom.errors import ReportableError
from fairbloom.protocol import names as wire
from fairbloom.protocol.helper import ADVICE
from fairbloom.protocol.terms import Terms

from ..honoured import Honoured
from ..metrics import AFTER, BEFORE, OF_EVALUATION, ON_TRAINING, WORK_METRICS, Measurement, WorkDone, requested_metrics
from ..rules.proximal import ProximalTerm
from ..rules.registry import kinds_of
from ..rules.steps import ClientMomentum
from . import randomness
from .steps import OptimizerSteps

Function = Callable[..., Any]
Loader = DataLoader[Any]

_MEASURED = {each.pattern for each in (BEFORE, AFTER, *OF_EVALUATION) if each is not ON_TRAINING}

HONOURED = Honoured(
    hooks=frozenset({"pull", "replace_steps"}),
    work=frozenset({"pull", "momentum"}),
    metrics=frozenset({*_MEASURED, *WORK_METRICS}),
    rules=frozenset({ProximalTerm, ClientMomentum}),
)
"""What a user's functions can do; their local work is the user's own."""

BATCH_SIZE = 32
"""Examples that are measured at once where a loader does not say how many."""

FEWEST_EXAMPLES = 5
"""Fewest examples whose mean loss an error may tell the server, where there are as many."""

RETURNED = "it must return (loss, accuracy), (loss, a dict with accuracy) or a dict with loss and accuracy"


class Session:
    """The work for one message: what its terms make of a call of the training function.

    Parameters
    ----------
    received
        The shapes of the received arrays by their names.
    load
        Makes a loader of the training data; None: they are those of the call's only loader.
    draw
        Seeds what the training draws; None: it draws from generators that nobody seeds.
    checked
        Whether the test function was checked before: it must return a mean over examples.
    """

    def __init__(
        self,
        train: Function,
        test: Function,
        terms: Terms,
        received: Mapping[str, tuple[int, ...]],
        *,
        load: Callable[[], Any] | None,
        draw: Callable[[], None] | None,
        checked: bool,
    ) -> None:
        self.metrics: dict[str, float] = {}
        """What was measured, by its name on the wire."""
        self._train, self._test, self._terms, self._received = train, test, terms, received
        self._load, self._draw, self.checked = load, draw, checked
        self._rules = [kind(terms) for kind in kinds_of(terms)]
        measures = [f"measure = {' '.join(terms.measure)}"] if terms.measure else []
        self._asked = ", ".join([*map(str, self._rules), *measures])
        self._called = False

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the training function on the terms; ReportableError names what the functions cannot do."""
        if self._called and self._asked:
            raise ReportableError(
                f"{_name(self._train)}() was called twice for one message: its terms hold for one call, and the server "
                f"asks for {self._asked}"
            )
        self._called = True
        arguments = name_arguments(self._train, args, kwargs) if self._asked else {}
        model = find_model(self._train, arguments, self._received) if self._asked else nn.Identity()
        anchor = {p: p.detach().clone() for p in model.parameters() if p.requires_grad}
        by = ", ".join(map(str, self._rules))
        pull = sum(rule.pull() for rule in self._rules)
        momentum = next((rule.momentum for rule in self._rules if isinstance(rule, ClientMomentum)), None)
        steps = OptimizerSteps(anchor, by, pull=pull, momentum=momentum, seeded=self._draw is not None)
        self._measure(BEFORE, model, arguments)
        if self._draw is not None:
            self._draw()
        with steps.watched():
            outcome = self._train(*args, **kwargs)
        if by:
            steps.check_taken(by)
        self._measure(AFTER, model, arguments)
        done = WorkDone(steps.learning_rate, lambda: ((old, new) for new, old in anchor.items()), steps.rate_sum)
        self.metrics |= requested_metrics(self._terms.measure, {}, done)
        return outcome

    def check_called(self) -> None:
        """Raise ReportableError when the terms ask for something, and the training function was not called."""
        if self._asked and not self._called:
            raise ReportableError(
                f"the server asks for {self._asked}, but the client's train handler did not call the function that "
                f"fair() returned: {ADVICE}"
            )

    def _measure(self, measurement: Measurement, model: nn.Module, arguments: Mapping[str, Any]) -> None:
        """Measure the model as it is now on all training examples, where that is asked for."""
        asked = measurement.requests(self._terms.measure)
        if not asked:
            return
        loader = self._loader(f"measure = {', '.join(asked)}", arguments)
        size, count = loader.batch_size or BATCH_SIZE, len(loader.dataset)  # type: ignore[arg-type] # it has a length
        batches = [range(start, min(start + size, count)) for start in range(0, count, size)]

        def scores_of(batch: Sequence[int]) -> dict[str, float]:
            part = DataLoader(Subset(loader.dataset, batch), batch_size=len(batch), collate_fn=loader.collate_fn)
            return read_scores(self._test, self._test(**self._arguments_of_test(model, part, arguments)))

        with left_unchanged(model), torch.no_grad():
            if not self.checked:
                check_mean(self._test, scores_of, range(min(max(size, FEWEST_EXAMPLES), count)))
                self.checked = True
            scores = [scores_of(batch) for batch in batches]
        for name, score in asked.items():
            if any(score not in each for each in scores):
                raise ReportableError(f"measure = {name}: {_name(self._test)}() returns no {score}; {RETURNED}")
            totals = (each[score] * len(batch) for each, batch in zip(scores, batches, strict=True))
            self.metrics[name] = math.fsum(totals) / count

    def _loader(self, term: str, arguments: Mapping[str, Any]) -> Loader:
        """Return a loader with the training data: the user's own, or the only one of the call."""
        remedy = "give fair(..., training_data=load), where load(context) returns a DataLoader of the training data"
        loaders = {name: value for name, value in arguments.items() if isinstance(value, DataLoader)}
        if self._load is not None:
            loaders = {"training_data": self._load()}
        elif len({id(each) for each in loaders.values()}) != 1:
            given = f"with the DataLoaders {', '.join(loaders)}" if loaders else "without a DataLoader"
            raise ReportableError(f"{term}: {_name(self._train)}() was called {given}: {remedy}")
        name, loader = next(iter(loaders.items()))
        if not isinstance(loader, DataLoader) or not hasattr(loader.dataset, "__len__") or loader.batch_sampler is None:
            needed = "a DataLoader that makes batches of a dataset with a length"
            raise ReportableError(f"{term}: {name} must be {needed}, got {type(loader).__name__}: {remedy}")
        if not len(loader.dataset):
            raise ReportableError(f"{term}: the dataset of {name} has no examples")
        return loader

    def _arguments_of_test(self, model: nn.Module, loader: Loader, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the test function is called with: model, loader, and the call's values by their names.

        Of its parameters without default that the training function has no value for, the one that has the name of the
        training function's model takes the model, or else the first; the next takes the loader.
        """
        own = {name for name, value in arguments.items() if value is model}
        taken = {name for name, value in arguments.items() if isinstance(value, DataLoader)} | own
        parameters = [p for p in inspect.signature(self._test).parameters.values() if p.kind not in _VARIABLE]
        values = {p.name: arguments[p.name] for p in parameters if p.name in arguments.keys() - taken}
        vacant = [p.name for p in parameters if p.name not in values and p.default is p.empty]
        vacant.sort(key=lambda name: name not in own)
        if len(vacant) != 2:
            raise ReportableError(
                f"{_name(self._test)}() must take the model, a loader, and values that {_name(self._train)}() has by "
                f"the same name or that have a default; without a value are {', '.join(vacant) or 'none'}"
            )
        return {**values, vacant[0]: model, vacant[1]: loader}


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@contextmanager
def left_unchanged(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode; its modes and the global random generators are afterwards as before."""
    modes = [(module, module.training) for module in model.modules()]
    with randomness.kept():
        model.eval()
        yield
    for module, training in modes:
        module.training = training


def check_mean(test: Function, scores_of: Callable[[Sequence[int]], dict[str, float]], batch: range) -> None:
    """Raise ReportableError where a batch and the same batch doubled have different losses."""
    once, twice = (scores_of(each)[wire.LOSS] for each in (batch, [*batch, *batch]))
    if math.isfinite(once) and math.isfinite(twice) and not math.isclose(once, twice, rel_tol=1e-3):
        raise ReportableError(
            f"{_name(test)}() must return the mean loss over examples: it returned {once:.6g} for {len(batch)} "
            f"examples, and {twice:.6g} for the same examples twice; divide a sum over examples by their number, and a "
            "sum of batches' means by the number of batches"
        )


def name_arguments(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of their parameters, defaults and those of * and ** included."""
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            named |= {f"{name}[{place}]": each for place, each in enumerate(value)}
        else:
            named |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return named


def find_model(train: Function, arguments: Mapping[str, Any], received: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """Return the one module with trained parameters among the arguments; of several, the one that fits what came."""
    modules = {name: each for name, each in arguments.items() if isinstance(each, nn.Module)}
    trained = {name: each for name, each in modules.items() if any(p.requires_grad for p in each.parameters())}
    if len({id(each) for each in trained.values()}) > 1:
        shapes = {name: {key: (*a.shape,) for key, a in each.state_dict().items()} for name, each in trained.items()}
        trained = {name: each for name, each in trained.items() if shapes[name] == received} or trained
    if len({id(each) for each in trained.values()}) != 1:
        given = f"the models {', '.join(trained)}" if trained else "no torch.nn.Module that has trained parameters"
        raise ReportableError(
            f"{_name(train)}() was called with {given}: give it the model that is trained as an argument, and freeze "
            "others (requires_grad_(False)) or leave them out"
        )
    return next(iter(trained.values()))


def read_scores(function: Function, returned: Any) -> dict[str, float]:
    """Return loss and accuracy among what a test function returned; without the accuracy where there is none."""
    found = {}
    if isinstance(returned, tuple | list) and len(returned) == 2:
        loss, other = returned
        found = {wire.LOSS: loss, **({wire.ACCURACY: other} if not isinstance(other, Mapping) else other)}
    elif isinstance(returned, Mapping):
        found = dict(returned)
    try:
        numbers = {name: float(found[name]) for name in (wire.LOSS, wire.ACCURACY) if name in found}
    except (TypeError, ValueError):
        numbers = {}
    if wire.LOSS not in numbers:
        what = f"{_name(function)}() returned {type(returned).__name__}"
        raise ReportableError(f"{what} {str(returned)[:60]!r}; {RETURNED}", f"{what}; {RETURNED}")
    if not 0.0 <= numbers.get(wire.ACCURACY, 0.0) <= 1.0:
        accuracy = numbers[wire.ACCURACY]
        raise ReportableError(f"{_name(function)}() returned the accuracy {accuracy:g}: it must be a share in [0, 1]")
    return numbers


def _name(function: Function) -> str:
    return getattr(function, "__name__", "the function")
