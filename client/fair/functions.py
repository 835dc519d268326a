"""A user's own training and test functions, made to work on a server's terms. It knows no Flower."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fairbloom.errors import ReportableError
from fairbloom.protocol import names as wire
from fairbloom.protocol.helper import ADVICE
from fairbloom.protocol.terms import Terms

from ..honoured import Honoured
from ..metrics import AFTER, BEFORE, OF_EVALUATION, ON_TRAINING, WORK_METRICS, Measurement, WorkDone, requested_metrics
from ..round import ClientRound
from ..rules.registry import kinds_of
from ..states import KeptVersions, StateDict
from ..work import LocalWork
from . import randomness
from .loaders import Data, draw_examples, epochs_of, generators_kept, is_dataset, one_batch, steps_of, whole
from .steps import Anchor, OptimizerSteps, Request, TransformedLoss

Function = Callable[..., Any]

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of arrays by their names."""

HONOURED = Honoured(
    hooks=frozenset({"replace_steps", "pull", "loss", "after_step", "after"}),
    work=frozenset(),
    metrics=frozenset({*(each.pattern for each in (BEFORE, AFTER, *OF_EVALUATION)), *WORK_METRICS}),
)
"""What a user's functions can do; their local work is the user's own. Anything else is an error that names it."""


def find_unsupported(terms: Terms) -> str:
    """Return the first thing that terms ask for and that is not made of a user's functions, as key = value."""
    unsupported = [kind.asked_in(terms) for kind in kinds_of(terms) if not HONOURED.follows(kind)]
    return unsupported[0] if unsupported else HONOURED.find_unsupported(terms, ())


class Measured(BaseException):
    """Leaves the training function, and the handler that calls it, once the received model has been measured."""


@dataclass(frozen=True)
class Helpers:
    """What a user hands to `fair` in addition to the two functions.

    `loader` makes of a dataset what the test function takes; None: a DataLoader. `arrays` returns a model's own tensors
    by the names that they travel under; None: its state_dict, or a part of it.
    """

    loader: Callable[[Any], Any] | None = None
    arrays: Callable[[nn.Module], Mapping[str, Tensor]] | None = None

    def load(self, data: Data) -> Any:
        """Return what the test function takes for the data that a training function was called with."""
        if isinstance(data, DataLoader):
            return data
        if self.loader is not None:
            return self.loader(data)
        remedy = "give fair(..., loader=make_loader), a function of yours that makes a DataLoader of a dataset"
        if not isinstance(data, Dataset):
            raise ReportableError(f"a {type(data).__name__} needs a collator to be measured: {remedy}")
        loader = DataLoader(data, batch_size=32)
        try:
            next(iter(loader), None)
        except Exception as error:  # whatever its examples or the default collator raise
            why = type(error).__name__
            raise ReportableError(f"batches of the training dataset cannot be made ({why}): {remedy}") from error
        return loader

    def named(self, model: nn.Module, received: Shapes) -> dict[str, Tensor]:
        """Return a model's own tensors by the names of the received arrays.

        Without `arrays`, they are those of its state_dict, or all lie in one of its modules, which the names leave out:
        "head.weight" is the model's "heads.head.weight". Shapes, and which parameters are trained, say in which one.
        """
        there = dict(model.state_dict(keep_vars=True) if self.arrays is None else self.arrays(model))
        missing = [name for name in received if name not in there]
        if not missing:
            return {name: there[name] for name in received}
        places = [] if self.arrays else parts_of(there, received)
        if len(places) == 1:
            return {name: there[places[0] + name] for name in received}
        if places:
            problem = f"{missing[0]!r} may be each of {', '.join(place + missing[0] for place in places)}"
        else:
            problem = f"it has no {missing[0]!r}"
        source = "what fair(..., arrays=...) returns" if self.arrays else "the model of the training function"
        raise ReportableError(
            f"{source} does not fit the received arrays: {problem}. Send arrays by the names of the model's "
            "state_dict(), or of that of a module which is trained alone; or give fair(..., arrays=function), which "
            "returns a model's tensors by the names that travel, as peft's get_peft_model_state_dict does"
        )


def parts_of(there: Mapping[str, Tensor], received: Shapes) -> list[str]:
    """Return what may precede the names of received arrays in a model: where all fit, and something is trained."""
    first = next(iter(received))
    prefixes = [known.removesuffix(first) for known in there if known.endswith(f".{first}")]
    found = {
        prefix: [there[prefix + name] for name in received]
        for prefix in prefixes
        if all(prefix + name in there and there[prefix + name].shape == shape for name, shape in received.items())
    }
    trained = [prefix for prefix, arrays in found.items() if any(each.requires_grad for each in arrays)]
    return trained or list(found)


@dataclass(frozen=True)
class TrainingCall:
    """One call of a training function; `given_data` is its first DataLoader, or else its first dataset."""

    function: Function
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    model: nn.Module
    given_data: Data | None

    @classmethod
    def of(cls, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "TrainingCall":
        """Return a call; model and data are found by their types."""
        given = [*args, *kwargs.values()]
        modules = [each for each in given if isinstance(each, nn.Module) and next(each.parameters(), None) is not None]
        if not modules:
            raise ReportableError(
                f"{_name(function)}() was called without a torch.nn.Module with parameters: the server's terms need "
                "one among its arguments"
            )
        data = [each for each in given if isinstance(each, DataLoader)] + [each for each in given if is_dataset(each)]
        return cls(function, args, kwargs, modules[0], data[0] if data else None)

    def data(self, term: str) -> Data:
        """Return the data that a term needs."""
        if self.given_data is None:
            raise ReportableError(
                f"{term}: {_name(self.function)}() was called without a torch.utils.data.DataLoader or Dataset: give "
                "it the training data as an argument"
            )
        return self.given_data

    def run(self, data: Any = None) -> Any:
        """Call the function; with data in place of its own where they are given."""
        if data is None:
            return self.function(*self.args, **self.kwargs)
        args = [data if value is self.given_data else value for value in self.args]
        return self.function(*args, **{k: data if v is self.given_data else v for k, v in self.kwargs.items()})

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
        """Return the arguments by the name of their parameters, defaults included, without model and data."""
        return {
            name: value
            for name, value in self._bound().items()
            if value is not self.model and value is not self.given_data and not isinstance(value, DataLoader)
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
    seed
        Seeds the global generators for a purpose.
    received
        The shapes of the received arrays by their names.
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
        received: Shapes,
        helpers: Helpers,
        *,
        measure_only: bool = False,
    ) -> None:
        self.metrics: dict[str, float] = {}
        """What was measured, by its name on the wire."""
        self.second: StateDict = {}
        """A second model, where a rule replies one."""
        self.record = ""
        """The record in which it is replied."""
        self._train, self._test, self.terms = train, test, terms
        self.seed, self.personal, self._measure_only = seed, personal, measure_only
        self.received, self.helpers = received, helpers
        self.rules = [kind(terms) for kind in kinds_of(terms)]
        self._plain = not measure_only and not terms.measure and not self.rules
        self._called = False

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the training function on the terms; return what it returns.

        ValueError names a term that the functions cannot do.
        """
        if self._plain:
            self.seed("train")
            return self._train(*args, **kwargs)
        if self._called:
            raise ReportableError(
                f"{_name(self._train)}() was called twice for one message: its terms hold for one call, and "
                f"the server asks for {self._asks()}"
            )
        self._called = True
        call = TrainingCall.of(self._train, args, kwargs)
        if self._measure_only:
            self.measure(call, ON_TRAINING)
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
        measures = [f"measure = {' '.join(self.terms.measure)}"] if self.terms.measure else []
        return ", ".join([*map(str, self.rules), *measures])

    def _work(self, call: TrainingCall) -> Any:
        training = _Round(self, call)
        training.run()
        return training.outcome

    def report(self, steps: OptimizerSteps, anchor: Anchor) -> None:
        """Note what is asked for of these steps, and of the model as it is after the work on the received one."""
        done = WorkDone(steps.learning_rate, lambda: ((old, new) for new, old in anchor.items()), steps.rate_sum)
        self.metrics |= requested_metrics(self.terms.measure, {}, done)

    def without_frozen(self, model: nn.Module) -> StateDict:
        """Return a model's arrays by its own names and by those that travel; frozen ones are as in the global model."""
        arrays = {**model.state_dict(keep_vars=True), **self.helpers.named(model, self.received)}
        return {name: each for name, each in arrays.items() if each.requires_grad or not isinstance(each, nn.Parameter)}

    def measure(self, call: TrainingCall, measurement: Measurement) -> None:
        """Measure the model as it is now, where that is asked for, and note it by the names on the wire."""
        if asked := measurement.requests(self.terms.measure):
            measured = self._measured(call, self.helpers.load(call.data(f"measure = {', '.join(asked)}")))
            for name, score in asked.items():
                if score not in measured:
                    raise ReportableError(f"measure = {name}: {_name(self._test)}() returns no {score}; {RETURNED}")
                self.metrics[name] = measured[score]

    def _measured(self, call: TrainingCall, data: Any) -> dict[str, float]:
        """Return the means of loss and accuracy over the training examples; nothing is left changed by that."""
        modes = [(module, module.training) for module in call.model.modules()]
        totals: dict[str, float] = {}
        count = 0
        with randomness.kept(), generators_kept(data), torch.no_grad():
            call.model.eval()
            for part in whole(data):
                args, kwargs = arguments_of(self._test, call, part)
                for name, value in read_scores(self._test, self._test(*args, **kwargs)).items():
                    totals[name] = totals.get(name, 0.0) + value * _size(part)
                count += _size(part)
        for module, training in modes:
            module.training = training
        return {name: total / count for name, total in totals.items()}


ASKED_NOTHING = LocalWork(epochs=0, batch_size=-1, learning_rate=0.0, momentum=-1.0)
"""Local work of which no rule asks for any part: what a rule makes of it shows what it asks for."""


@dataclass(frozen=True)
class NamedModel:
    """The model of a call in the midst of its steps, by the names that travel."""

    model: nn.Module
    received: Shapes
    helpers: Helpers

    def copy(self) -> StateDict:
        """Return a copy of its arrays, as they are now."""
        arrays = self.helpers.named(self.model, self.received)
        return {name: array.detach().clone() for name, array in arrays.items()}


class _Round(ClientRound):
    """What rules make of a call of the training function."""

    def __init__(self, session: Session, call: TrainingCall) -> None:
        self.outcome: Any = None
        self._session, self._call, self._rules = session, call, session.rules
        self._anchor = call.anchor()
        self._with_own_models = [rule for rule in self._rules if "after" in rule.hooks()]
        self._received = call.states() if self._with_own_models else []
        self._asked = {
            each.name: Request(str(rule), value)
            for rule in self._rules
            for each in fields(LocalWork)
            if (value := getattr(rule.replace_steps(ASKED_NOTHING), each.name)) != getattr(ASKED_NOTHING, each.name)
        }
        self._wanted: Request[int] | None = self._asked.get("steps")
        self._whole: Request[int] | None = self._asked.get("batch_size")
        self._idle: Request[bool] | None = self._asked.get("idle")

    def before(self) -> None:
        """Refuse what would be refused after the training."""
        if any(rule.hooks() & {"after_step", "after"} for rule in self._rules):
            self._session.helpers.named(self._call.model, self._session.received)

    def measure(self, measurement: Measurement) -> None:
        self._session.measure(self._call, measurement)

    def report(self) -> None:
        """Report nothing: HONOURED has no such hook."""

    def start(self) -> None:
        pulls = [Request(str(rule), rule.pull()) for rule in self._rules if "pull" in rule.hooks()]
        watching = [rule for rule in self._rules if "after_step" in rule.hooks()]
        model = NamedModel(self._call.model, self._session.received, self._session.helpers)

        def after_step(count: int) -> None:
            for rule in watching:
                rule.after_step(count, model, last=False)

        self._steps = OptimizerSteps(
            self._anchor,
            pull=pulls[0] if pulls else None,
            momentum=self._asked.get("momentum"),
            plain=self._whole.by if self._whole else "",
            after_step=after_step,
        )
        self._pulls = pulls
        changing = [rule for rule in self._rules if "loss" in rule.hooks()]
        self._transformed = TransformedLoss(str(changing[0]), changing[0].loss) if changing else None

    def take_steps(self) -> None:
        if self._idle:
            return
        data: Any = None
        if self._whole is not None:
            data = one_batch(self._call.data(self._whole.by), self._whole.by)
        elif self._wanted is not None:
            data = self._data_of(self._wanted)
        self._session.seed("train")
        with self._steps.watched(), self._transformed or nullcontext():
            self.outcome = self._call.run(data)

    def _data_of(self, steps: Request[int]) -> Any:
        """Return the data of this many steps: batches of a loader, or examples of a dataset for one pass over them."""
        data, helpers = self._call.data(steps.by), self._session.helpers
        if isinstance(data, DataLoader):
            return steps_of(data, steps.value)
        size = getattr(helpers.loader and helpers.loader(data), "batch_size", None)
        if size is None:
            raise ReportableError(
                f"{steps.by}: a Dataset does not say how many examples a step takes: give "
                "fair(..., loader=make_loader), whose DataLoader has the batch_size that "
                f"{_name(self._call.function)}() takes"
            )
        return draw_examples(data, steps.value * size)

    def finish(self) -> None:
        """Raise ReportableError where the steps that were taken are not those of the terms."""
        if self._idle:
            return
        steps = self._steps
        if self._transformed:
            self._transformed.check_calls(steps)
        for asked in (*self._pulls, self._asked.get("momentum")):
            if asked is not None:
                steps.check_taken(asked.by)
        if self._whole is not None:
            steps.check_taken(self._whole.by, 1)
        elif self._wanted is not None:
            steps.check_taken(self._wanted.by, self._wanted.value)
        for rule in self._rules:
            if rule.replies:
                if not rule.second():
                    raise ReportableError(f"{rule}: the training took fewer steps")
                self._session.second, self._session.record = rule.second(), rule.replies

    def reply(self) -> None:
        if not self._idle:
            self._session.report(self._steps, self._anchor)

    def after(self) -> None:
        if self._idle and not self._with_own_models:
            raise ReportableError(f"{self._idle.by} came without a personal model: there is nothing to train")
        for rule in self._with_own_models:
            work = rule.after(ASKED_NOTHING)
            outcome, steps = self._train_own(Request(str(rule), work.pull), work.epochs)
            if self._idle:
                self.outcome = outcome
                self._session.report(steps, self._anchor)

    def _train_own(self, pull: Request[float], epochs: int) -> tuple[Any, OptimizerSteps]:
        """Train a model of the client's own, pulled to the received one, and keep it; the call's stays as it is."""
        call, session = self._call, self._session
        steps = OptimizerSteps(self._anchor, pull=pull)
        with call.states_kept():
            load(self._received)
            last = session.personal.before(session.terms.server_round)
            if last is not None:
                there = call.model.state_dict()
                call.model.load_state_dict({name: last.get(name, array) for name, array in there.items()})
            session.seed("personal")
            with steps.watched():
                outcome = call.run(epochs_of(call.given_data, epochs))
            steps.check_taken(pull.by)
            session.personal.keep(session.terms.server_round, session.without_frozen(call.model))
        return outcome, steps


RETURNED = "it must return (loss, accuracy), (loss, a dict with accuracy) or a dict with loss and accuracy"


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
        raise ReportableError(
            f"{_name(function)}() returned the accuracy {numbers[wire.ACCURACY]:g}: it must be a share in [0, 1]"
        )
    return numbers


def arguments_of(test: Function, call: TrainingCall, data: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return what the test function is called with: the call's model, a loader, and the call's values by their names.

    Of its parameters without default that the training function has no value for, the first takes the model and the
    second the loader; one that is called as the training function's model takes the model wherever it stands.
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
    place, *others = [name for name in vacant if name != model]
    if others:
        raise ReportableError(
            f"{_name(test)}() has the parameter {others[0]!r}, for which {trained}() has no value: give it a default, "
            f"or {trained}() a parameter of that name"
        )
    values |= {model: call.model, place: data}
    given = [(p.kind is p.POSITIONAL_ONLY, p.name) for p in parameters if p.name in values]
    return [values[name] for first, name in given if first], {name: values[name] for first, name in given if not first}


def _size(data: Any) -> int:
    """Return how many examples there are; where their dataset has no length, it counts as one."""
    examples: Any = data.dataset if isinstance(data, DataLoader) else data
    try:
        return len(examples)
    except TypeError:
        return 1


def _name(function: Function) -> str:
    return getattr(function, "__name__", "the function")
