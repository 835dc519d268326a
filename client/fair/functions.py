"""A user's own training and test functions, made to work on a server's terms. It knows no Flower."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from fairbloom.errors import ReportableError
from fairbloom.protocol import names as wire
from fairbloom.protocol.helper import ADVICE
from fairbloom.protocol.terms import Terms

from ..honoured import Honoured
from ..metrics import AFTER, BEFORE, ON_TRAINING, Measurement, WorkDone, requested_metrics
from ..objectives import transform_of
from ..states import KeptVersions, StateDict
from . import randomness
from .loaders import Batches, Loader, epochs_of, generators_kept, one_batch, steps_of, whole
from .steps import Anchor, Steps, TransformedLoss

Function = Callable[..., Any]

HONOURED = Honoured(
    work=frozenset(),
    terms=frozenset(
        {"server_round", "measure", "proximal_mu", "personal_lambda", "personal_epochs", "local_only", "local_steps"}
        | {"client_momentum", "full_batch_step", "snapshot_step", "loss_transform", "propfair_baseline"}
        | {"propfair_epsilon", "agreed", "others"}
    ),
    metrics=frozenset(
        {
            "{}-before",
            "{}-after",
            "learning-rate",
            "update-norm",
            "step-sum",
            "{}",
            "train-{}",
            "{}-validation",
            "{}-personal",
        }
        | {"{}-validation-personal"}
    ),
)
"""What is made of a user's functions; the local work itself is hers. What else is asked is an error that names it."""


class Measured(BaseException):
    """Leaves the training function, and the handler that calls it, once the received model has been measured."""


@dataclass(frozen=True)
class TrainingCall:
    """One call of a training function.

    Attributes
    ----------
    function, args, kwargs
        What is called, and with what.
    model
        The first argument that is a module with parameters.
    loader
        The first argument that is a DataLoader.
    """

    function: Function
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    model: nn.Module
    loader: Loader

    @classmethod
    def of(cls, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "TrainingCall":
        """Return a call; model and loader are found by their types.

        Raises
        ------
        ValueError
            When one of them is not among the arguments.
        """
        given = [*args, *kwargs.values()]
        models = [
            value for value in given if isinstance(value, nn.Module) and next(value.parameters(), None) is not None
        ]
        loaders = [value for value in given if isinstance(value, DataLoader)]
        for kind, found in (("torch.nn.Module with parameters", models), ("torch.utils.data.DataLoader", loaders)):
            if not found:
                raise ReportableError(
                    f"{_name(function)}() was called without a {kind}: the server's terms need one among its arguments"
                )
        return cls(function, args, kwargs, models[0], loaders[0])

    def run(self, loader: Loader | Batches) -> Any:
        """Call the function with a loader in place of its own."""
        args = [loader if value is self.loader else value for value in self.args]
        return self.function(*args, **{k: loader if v is self.loader else v for k, v in self.kwargs.items()})

    def anchor(self) -> Anchor:
        """Return the model's parameters with the values that they have now."""
        return {parameter: parameter.detach().clone() for parameter in self.model.parameters()}

    @contextmanager
    def states_kept(self) -> Iterator[None]:
        """Give model, optimizers and schedulers among the arguments, at the end, the state that they have now."""
        states = self.states()
        try:
            yield
        finally:
            load(states)

    def states(self) -> "States":
        """Return a copy of the state of the model, and of optimizers and schedulers among the arguments."""
        given = [*self.args, *self.kwargs.values()]
        return [(each, copy.deepcopy(each.state_dict())) for each in given if hasattr(each, "load_state_dict")]

    @property
    def model_name(self) -> str:
        """The name of the parameter that takes the model."""
        return next((name for name, value in self._bound().items() if value is self.model), "")

    def named(self) -> dict[str, Any]:
        """Return the arguments by the name of their parameters, defaults included, without model and loaders."""
        return {
            name: value
            for name, value in self._bound().items()
            if value is not self.model and not isinstance(value, DataLoader)
        }

    def _bound(self) -> Mapping[str, Any]:
        bound = inspect.signature(self.function).bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        return bound.arguments


States = list[tuple[Any, dict[str, Any]]]
"""What has a state, with the state that it had."""


def load(states: States) -> None:
    """Give each its state again."""
    for each, state in states:
        each.load_state_dict(state)


class Session:
    """One message's work with a user's functions: what its terms make of a call of the training function.

    Parameters
    ----------
    train, test
        The functions.
    terms
        The terms of the message.
    seed
        Seeds the global generators for a purpose.
    personal
        The client's personal models.
    measure_only
        Whether the received model is measured, as `train-loss`, and nothing is trained.
    """

    def __init__(
        self,
        train: Function,
        test: Function,
        terms: Terms,
        seed: Callable[[str], None],
        personal: KeptVersions,
        *,
        measure_only: bool = False,
    ) -> None:
        self.metrics: dict[str, float] = {}
        """What was measured, by its name on the wire."""
        self.snapshot: StateDict = {}
        """The model in the midst of the work, where that was asked for."""
        self._train, self._test, self._terms = train, test, terms
        self._seed, self._personal, self._measure_only = seed, personal, measure_only
        self._plain = not measure_only and not terms.measure and not _asked(terms)
        self._called = False

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the training function on the terms; return what it returns.

        Raises
        ------
        ValueError
            When the functions cannot do what the terms ask; the message names the term.
        """
        if self._plain:
            self._seed("train")
            return self._train(*args, **kwargs)
        if self._called:
            raise ReportableError(
                f"{_name(self._train)}() was called twice for one message: its terms hold for one call, and "
                f"the server asks for {self._asks()}"
            )
        self._called = True
        call = TrainingCall.of(self._train, args, kwargs)
        if self._measure_only:
            self._measure(call, ON_TRAINING)
            raise Measured
        return self._work(call)

    def check_called(self) -> None:
        """Raise ValueError when the terms ask for something, and the training function was not called."""
        if not self._plain and not self._called:
            raise ReportableError(
                f"the server asks for {self._asks()}, but the client's train handler did not call the function that "
                f"fair() returned: {ADVICE}"
            )

    def _asks(self) -> str:
        """Return what the terms ask for, in words."""
        measures = [f"measure = {' '.join(self._terms.measure)}"] if self._terms.measure else []
        return ", ".join([*_asked(self._terms), *measures])

    def _work(self, call: TrainingCall) -> Any:
        terms, anchor = self._terms, call.anchor()
        received = call.states() if terms.personal_lambda is not None else []
        self._measure(call, BEFORE)
        outcome, steps = (None, None) if terms.local_only else self._global_work(call, anchor)
        self._measure(call, AFTER)
        if steps is not None:
            self._report(steps, anchor)
        if terms.personal_lambda is not None:
            of_personal, personal_steps = self._personal_work(call, anchor, received)
            if terms.local_only:
                outcome = of_personal
                self._report(personal_steps, anchor)
        elif terms.local_only:
            raise ReportableError("local-only = True came without personal-lambda: there is nothing to train")
        return outcome

    def _global_work(self, call: TrainingCall, anchor: Anchor) -> tuple[Any, Steps]:
        """Train the received model as the terms say."""
        terms = self._terms

        def after_step(count: int) -> None:
            if count == terms.snapshot_step:
                self.snapshot = copy.deepcopy(call.model.state_dict())

        steps = Steps(
            anchor,
            pull=terms.proximal_mu,
            momentum=terms.client_momentum,
            plain=terms.full_batch_step,
            after_step=after_step,
        )
        loader: Loader | Batches = call.loader
        if terms.full_batch_step:
            loader = one_batch(call.loader)
        elif terms.local_steps is not None:
            loader = steps_of(call.loader, terms.local_steps)
        term = f"loss-transform = {terms.loss_transform}"
        transformed = TransformedLoss(term, transform_of(terms)) if terms.loss_transform else None
        self._seed("train")
        with steps.watched(), transformed or nullcontext():
            outcome = call.run(loader)
        if transformed:
            transformed.check_calls(steps)
        self._check_taken(steps)
        return outcome, steps

    def _check_taken(self, steps: Steps) -> None:
        """Raise ValueError when the steps that were taken are not those of the terms."""
        terms = self._terms
        if terms.proximal_mu:
            steps.check_taken(f"proximal-mu = {terms.proximal_mu:g}")
        if terms.client_momentum is not None:
            steps.check_taken(f"client-momentum = {terms.client_momentum:g}")
        if terms.full_batch_step:
            steps.check_taken("full-batch-step = True", 1)
        elif terms.local_steps is not None:
            steps.check_taken(f"local-steps = {terms.local_steps}", terms.local_steps)
        if terms.snapshot_step is not None and not self.snapshot:
            raise ReportableError(f"snapshot-step = {terms.snapshot_step}: the training took fewer steps")

    def _personal_work(self, call: TrainingCall, anchor: Anchor, received: States) -> tuple[Any, Steps]:
        """Train the personal model, pulled to the received one, and keep it; the call's model stays as it is."""
        terms, pull = self._terms, self._terms.personal_lambda or 0.0
        steps = Steps(anchor, pull=pull, pull_term="personal-lambda")
        with call.states_kept():
            load(received)
            last = self._personal.before(terms.server_round)
            if last is not None:
                call.model.load_state_dict(last)
            self._seed("personal")
            with steps.watched():
                outcome = call.run(epochs_of(call.loader, terms.personal_epochs or 1))
            steps.check_taken(f"personal-lambda = {pull:g}")
            self._personal.keep(terms.server_round, call.model.state_dict())
        return outcome, steps

    def _report(self, steps: Steps, anchor: Anchor) -> None:
        """Note what is asked for of these steps, and of the model as it is after the work on the received one."""
        done = WorkDone(steps.learning_rate, lambda: ((old, new) for new, old in anchor.items()), steps.rate_sum)
        self.metrics |= requested_metrics(self._terms.measure, {}, done)

    def _measure(self, call: TrainingCall, measurement: Measurement) -> None:
        """Measure the model as it is now, where that is asked for, and note it by the names on the wire."""
        if asked := measurement.requests(self._terms.measure):
            measured = self._measured(call)
            for name, score in asked.items():
                if score not in measured:
                    raise ReportableError(f"measure = {name}: {_name(self._test)}() returns no {score}; {RETURNED}")
                self.metrics[name] = measured[score]

    def _measured(self, call: TrainingCall) -> dict[str, float]:
        """Return the means of loss and accuracy over the training examples; nothing is left changed by that."""
        modes = [(module, module.training) for module in call.model.modules()]
        totals: dict[str, float] = {}
        count = 0
        with randomness.kept(), generators_kept(call.loader), torch.no_grad():
            call.model.eval()
            for part in whole(call.loader):
                args, kwargs = arguments_of(self._test, call, part)
                for name, value in understood(self._test, self._test(*args, **kwargs)).items():
                    totals[name] = totals.get(name, 0.0) + value * _size(part)
                count += _size(part)
        for module, training in modes:
            module.training = training
        return {name: total / count for name, total in totals.items()}


RETURNED = "it must return (loss, accuracy), (loss, a dict with accuracy) or a dict with loss and accuracy"


def understood(function: Function, returned: Any) -> dict[str, float]:
    """Return loss and accuracy among what a test function returned; without the accuracy where there is none.

    Raises
    ------
    ValueError
        When there is no loss, or the accuracy is not a share in [0, 1].
    """
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
        raise ReportableError(
            f"{_name(function)}() returned the accuracy {numbers[wire.ACCURACY]:g}: it must be a share in [0, 1]"
        )
    return numbers


def arguments_of(test: Function, call: TrainingCall, loader: Loader) -> tuple[list[Any], dict[str, Any]]:
    """Return what the test function is called with: the call's model, a loader, and the call's values by their names.

    Of its parameters without default that the training function has no value for, the first takes the model and the
    second the loader; one that is called as the training function's model takes the model wherever it stands.

    Raises
    ------
    ValueError
        When a parameter is left without a value; the message names it.
    """
    known, trained = call.named(), _name(call.function)
    parameters = [
        p for p in inspect.signature(test).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    values = {p.name: known[p.name] for p in parameters if p.name in known}
    vacant = [p.name for p in parameters if p.name not in values and p.default is p.empty]
    if len(vacant) < 2:
        raise ReportableError(
            f"{_name(test)}() must take the model and a loader, whose parameters have other names than those of "
            f"{trained}() that take something else; it has {[p.name for p in parameters]}"
        )
    model = call.model_name if call.model_name in vacant else vacant[0]
    data, *others = [name for name in vacant if name != model]
    if others:
        raise ReportableError(
            f"{_name(test)}() has the parameter {others[0]!r}, for which {trained}() has no value: give it a default, "
            f"or {trained}() a parameter of that name"
        )
    values |= {model: call.model, data: loader}
    given = [(p.kind is p.POSITIONAL_ONLY, p.name) for p in parameters if p.name in values]
    return [values[name] for first, name in given if first], {name: values[name] for first, name in given if not first}


def _asked(terms: Terms) -> list[str]:
    """Return what the terms ask of the local work, as `name = value`."""
    plain = replace(terms, measure=(), others={}).to_config()
    return [f"{key} = {value}" for key, value in plain.items() if key not in ("server-round", "measure", "agreed")]


def _size(loader: Loader) -> int:
    """Return how many examples a loader has; one whose dataset has no length counts as one."""
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        return 1


def _name(function: Function) -> str:
    return getattr(function, "__name__", "the function")
