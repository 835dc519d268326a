"""A check of a user's method: it repeats and resumes, and goes by what clients reply.

Clients are made up: they reply with drawn updates and metrics, so that a check takes no training.
Everything else is the code of a run.
"""

import inspect
import logging
import math
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.logs import log_from
from fairbloom.protocol import names as wire
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.parameters import Parameter, Range, parameters_of
from fairbloom.protocol.settings import Value
from fairbloom.protocol.streams import generator
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.aggregation import screen_updates
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.rounds.clients import NOTHING, Replies, TrainReplies
from fairbloom.rounds.cohort import MethodError
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.refusals import Refusals
from fairbloom.server.checkpoint import load_checkpoint, save_checkpoint
from fairbloom.strategies import FairStrategy
from fairbloom.tasks.generators import all_seeded

# The rounds of a run that is checked; it is stopped after the first HALF.
ROUNDS = 4
HALF = 2

# The clients of a cohort.
CLIENTS = 6

# Steps that differ by less than this share are the same: some methods solve a program for them.
TOLERANCE = 1e-3

# The model that clients begin with.
MODEL: Mapping[str, tuple[int, ...]] = {"weight": (5, 3), "bias": (5,)}


@dataclass(frozen=True)
class MadeUpClients:
    """Clients that reply with what was drawn for their number, under any name.

    Each two clients, 0 and 1, 2 and 3, have the same metrics, and other updates.

    Attributes
    ----------
    method
        The method that asks them.
    numbers
        The number of each client by its name, in ascending order of names.
    still
        The numbers of the clients with an update of zero.
    """

    method: Method
    numbers: Mapping[str, int]
    still: Collection[int] = ()

    def online(self, fewest: int) -> Sequence[str]:
        """Return the names of all clients."""
        return [*self.numbers]

    def free(self) -> Sequence[str]:
        """Return the names of all clients."""
        return [*self.numbers]

    def wait_until_free(self, fewest: int) -> None:
        """Return at once."""

    def sizes(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return the number of training examples of each client."""
        return {name: self._value(wire.NUM_EXAMPLES, 0, name) for name in names}

    @property
    def accounts(self) -> Mapping[str, AccountStatus]:
        """No client has a privacy account."""
        return {}

    def keep(self, since: int) -> None:
        """Keep nothing: replies depend only on the round."""

    def train(
        self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING
    ) -> TrainReplies:
        """Return the replies of a round."""
        number = terms.server_round
        method = self.method
        replies = TrainReplies.empty(
            method.layout_of(model), refused=Refusals(number), second=method.second
        )
        for name in names:
            update, second = (self._update(which, number, name) for which in ("first", "second"))
            report = {
                metric: self._value(metric, number, name)
                for metric in (wire.NUM_EXAMPLES, method.weighted_by_key, *terms.measure)
            }
            state_round = terms.of_client(name).state_round
            if state_round is not None:
                report[wire.STATE_ROUND] = state_round
            if wire.UPDATE_NORM in report:
                report[wire.UPDATE_NORM] = float(np.linalg.norm(update))
            replies.add(name, report, _moved(model, update), _moved(model, second))
        screen_updates(method, replies, number)
        return replies

    def evaluate(
        self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]
    ) -> Replies:
        """Return the metrics that the terms ask for."""
        number = terms.server_round
        metrics = (wire.NUM_EXAMPLES, *terms.measure)
        reports = {}
        for name in names:
            reports[name] = {metric: self._value(metric, number, name) for metric in metrics}
        return Replies(metrics=reports, refused=Refusals(terms.server_round))

    def probe(self, names: Sequence[str], model: Model, terms: Terms) -> Replies:
        """Return the training losses of these clients at a model."""
        return self.evaluate(names, model, terms, names)

    def _update(self, which: str, server_round: int, name: str) -> FloatArray:
        number = self.numbers[name]
        size = sum(math.prod(shape) for shape in MODEL.values())
        drawn = _generator(which, server_round, number).normal(size=size)
        common = _generator(which, server_round).normal(size=size)
        return np.zeros(size) if number in self.still else 0.1 * (drawn + common)

    def _value(self, metric: str, server_round: int, name: str) -> float:
        """Return a metric; clients of the same pair have the same."""
        drawn = _generator(metric, server_round, self.numbers[name] // 2)
        if metric == wire.NUM_EXAMPLES or metric in wire.POSITIVES:
            return float(20 + drawn.integers(20))
        if metric in wire.HITS:
            return float(1 + drawn.integers(19))
        if metric in (wire.LEARNING_RATE, wire.STEP_SUM):
            return 0.1
        if metric == wire.DISPARITY:
            return float(drawn.uniform(-0.5, 0.5))
        return float(drawn.uniform(0.1, 0.9))


def check_method(method: type[FairStrategy], parameters: Mapping[str, Value] | None = None) -> None:
    """Raise MethodError with a line for each fault of a method; takes about a second.

    Checked are: the same replies give the same steps, also after the run was continued from a
    checkpoint; a step goes by what clients reply and not by their names, also where clients tie; a
    single client, updates of zero and the ends of the parameters' ranges give finite steps.

    Parameters
    ----------
    method
        The method's class.
    parameters
        Values of its parameters by name, as {"share": 0.3}; others have their defaults.

    Raises
    ------
    MethodError
        When the method has a fault.
    """
    given = dict(parameters or {})
    with log_from(logging.ERROR):  # a run would warn of clients that took no step
        faults = _check_repeats(method, given)
        if not faults:
            faults = [*_check_names(method, given), *_check_corners(method, given)]
    if faults:
        raise MethodError("\n".join(f"{method.__name__}: {fault}" for fault in faults))


def _check_repeats(method: type[FairStrategy], given: Mapping[str, Value]) -> list[str]:
    """Return the faults of a run that is repeated, and of one that is continued."""
    with all_seeded(1):
        first = _run(_make(method, given), ROUNDS)
    with all_seeded(2):
        again = _run(_make(method, given), ROUNDS)
    if isinstance(first, str):
        return [f"a run of {CLIENTS} clients fails: {first}"]
    if isinstance(again, str) or not _is_same(first, again, tolerance=0.0):
        return [
            "a repeated run ends with another model: draw from fairbloom.protocol.streams.generator"
            "(self.seed, 'what for', cohort.round), and read no clock"
        ]
    continued = _run_in_halves(method, given)
    if isinstance(continued, str) or not _is_same(first, continued, tolerance=0.0):
        return [
            "a run that is continued from a checkpoint ends with another model: what weigh uses of"
            " earlier rounds must be in a Decision's memory or kept rows, not in attributes"
        ]
    return []


def _check_names(method: type[FairStrategy], given: Mapping[str, Value]) -> list[str]:
    """Return the fault if clients with other names, so in another order, give another step."""
    names = [f"client-{number}" for number in range(CLIENTS)]
    numbers = range(CLIENTS)
    plain = dict(zip(names, numbers, strict=True))
    turned = dict(zip(names, reversed(numbers), strict=True))
    steps = [_run(_make(method, given), 1, numbered) for numbered in (plain, turned)]
    before, after = steps
    if isinstance(before, str) or isinstance(after, str) or _is_same(before, after, TOLERANCE):
        return []
    return [
        "the same replies under other names, so in another order, give another step: go by what"
        " clients reply, not by their places; clients with equal values must get equal weights"
        " (argsort ranks them by place, scipy.stats.rankdata does not)"
    ]


def _check_corners(method: type[FairStrategy], given: Mapping[str, Value]) -> list[str]:
    """Return the faults with a single client, with updates of zero, and at the ends of ranges."""
    single = {"client-0": 0}
    everybody = {f"client-{number}": number for number in range(CLIENTS)}
    tried = {
        "a single client": _run(_make(method, given), HALF, single),
        "updates of zero": _run(_make(method, given), HALF, everybody, still=range(CLIENTS)),
        "one update of zero": _run(_make(method, given), HALF, everybody, still=[0]),
    }
    for parameter in parameters_of(method.__name__.lower(), method):
        for end in _ends_of(parameter):
            what = f"{parameter.argument} = {end:g}, an end of its range,"
            with suppress(ValueError):  # it does not go with the other parameters
                tried[what] = _run(_make(method, {**given, parameter.argument: end}), HALF)
    return [
        f"with {what} a run fails: {fault}"
        for what, fault in tried.items()
        if isinstance(fault, str)
    ]


def _ends_of(parameter: Parameter) -> list[float]:
    """Return the finite ends that belong to a number's range."""
    if not isinstance(parameter.allowed, Range):
        return []
    return [
        parameter.kind(end)
        for end in parameter.allowed.ends
        if math.isfinite(end) and end in parameter.allowed
    ]


def _make(method: Callable[..., FairStrategy], given: Mapping[str, Value]) -> FairStrategy:
    """Return a method that refuses no reply by its size, and no run that changes nothing."""
    limits = {"update_limit": math.inf, "loss_limit": math.inf, "unused_rounds": 0}
    return method(**given, fraction_evaluate=0.0, **limits)


def _run(
    method: FairStrategy,
    rounds: int,
    numbers: Mapping[str, int] | None = None,
    *,
    still: Collection[int] = (),
    model: Model | None = None,
) -> Model | str:
    """Return the model after the next rounds of a method, or why they fail."""
    everybody = {f"client-{number}": number for number in range(CLIENTS)}
    clients = MadeUpClients(method, numbers or everybody, still)
    first = model or {name: _generator(name).normal(size=shape) for name, shape in MODEL.items()}
    loop = Rounds(method, clients, ROUNDS).run(first, measure=lambda number: (), measure_after=())
    try:
        finished = [*islice(loop, rounds)]
    except FairbloomError as error:
        return str(error)
    except Exception as error:  # whatever code of the user's raises
        return f"{type(error).__name__}: {error}{_place_of(error, method)}"
    for each in finished:
        for name, reason in each.refused.items():
            return f"in round {each.number}, the reply of {name} is refused: {reason}"
    return dict(finished[-1].arrays)


def _place_of(error: Exception, method: FairStrategy) -> str:
    """Return in brackets the last line of the method's own file behind an error, or ""."""
    file = inspect.getsourcefile(type(method))
    frames = [at for at in traceback.extract_tb(error.__traceback__) if at.filename == file]
    if not frames:
        return ""
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line})"


def _run_in_halves(method: type[FairStrategy], given: Mapping[str, Value]) -> Model | str:
    """Return the model of a run that is stopped after HALF rounds, stored, and continued."""
    stopped = _make(method, given)
    half = _run(stopped, HALF)
    if isinstance(half, str):
        return half
    with TemporaryDirectory() as folder:
        file = Path(folder, "checkpoint.safetensors")
        save_checkpoint(file, half, stopped.state_dict())
        model, state = load_checkpoint(file)
    continued = _make(method, given)
    continued.load_state_dict(state)
    return _run(continued, ROUNDS - HALF, model=model)


def _is_same(one: Model, other: Model, tolerance: float) -> bool:
    """Return whether two models differ by at most this share of their largest entry."""
    entries = [np.abs(array) for array in one.values()]
    differences = [np.abs(array - other[name]) for name, array in one.items()]
    largest = max(float(each.max()) for each in entries)
    apart = max(float(each.max()) for each in differences)
    return apart <= tolerance * largest


def _moved(model: Model, update: FloatArray) -> Model:
    """Return the model that a client with this update replies, shape (d,)."""
    ends = np.cumsum([array.size for array in model.values()])[:-1]
    parts = np.split(update, ends)
    return {
        name: array - part.reshape(array.shape)
        for (name, array), part in zip(model.items(), parts, strict=True)
    }


def _generator(*place: object) -> np.random.Generator:
    return generator(0, *map(str, place))
