"""A method as a Flower `Strategy` with its hooks.

The only file of this package that imports Flower.
"""

import inspect
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.advice import OLDER_APP
from fairbloom.protocol.names import CONTEXTS, FROZEN, PROTOCOL, RUN_FOLDER
from fairbloom.protocol.parameters import Value
from fairbloom.protocol.scores import Score
from fairbloom.protocol.terms import RULES
from fairbloom.rounds.clients import Metrics, Replies, average_metrics
from fairbloom.rounds.courier import courier_of
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.in_progress import RoundEvaluation
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.options import Aggregate, Options
from fairbloom.rounds.ranges import whole, within
from fairbloom.rounds.records import model_of, record_of
from fairbloom.rounds.round import Round, StopRun
from fairbloom.rounds.run_state import RunState
from fairbloom.rounds.screening import check_model
from fairbloom.strategies.message_configs import ChangingConfig

from .flowers import advise_on_argument
from .noise import check_noise

# Values of parameters to try, by their names in Python.
Tries = Mapping[str, Sequence[Value]]

# (a round's number, its model) → the metrics of an evaluation on the server.
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

# (the number of the finished round, the result so far) → whether the run ends.
ShouldStop = Callable[[int, Result], bool]

# Seconds that clients have to reply, or a function of the round's number that returns them. None is
# Flower's limit.
Timeout = float | None | Callable[[int], float | None]


class FairStrategy(Method, Strategy):
    """A method as a Flower strategy; parameters are those of `Options`.

    Flower's hooks take the steps of a round one by one, so that strategies such as Flower's for
    differential privacy can wrap them; `start` calls them in turn. A user-defined method is a
    subclass with a `weigh`.
    """

    tries: ClassVar[Tries] = {}
    """Values of parameters, usually those that the method's paper tunes. `fairbloom search` tries
    each combination of a method that is named without parameters. A subclass does not inherit
    them."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        clients = FlowerClients(self)
        self._session = StrategySession(self, clients, Rounds(self, clients))
        # Settings that `from_config` found in a run config, for RunFolder.
        self.run_folder_options: Mapping[str, Value] = {}

    def _advise_on(self, name: str, value: object) -> str:
        """Return what to write in place of an argument, such as one of Flower's strategies."""
        return advise_on_argument(name, value, self.own_parameters())

    @property
    def recorded_name(self) -> str:
        """Its name in the run folder of an app: that of its class."""
        return type(self).__name__

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: Timeout = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        should_stop: ShouldStop | None = None,
        *,
        on_round: Callable[[Round], None] | None = None,
        resume: Mapping[str, Any] | None = None,
        wrapper: Strategy | None = None,
        all_evaluate_last: bool = False,
    ) -> Result:
        """Run rounds up to `num_rounds`.

        Arguments and result are those of Flower's `Strategy.start`.

        Parameters
        ----------
        grid, initial_arrays, num_rounds, evaluate_fn
            As in Flower.
        timeout
            Seconds that clients have to reply in a round; its messages live no longer. A function
            of the round's number may return them.
        train_config, evaluate_config
            Sent with each message and read again in every round: what `configure_train` changes in
            one stays changed, and is part of the state. A list `measure` requests metrics besides
            those that the method needs; in evaluation, of the round's participants.
        should_stop
            Called after every round with its number and the result so far; True ends the run as
            finished after that round. It works with every version of Flower.
        on_round
            Called with every finished Round before the next one starts. StopRun, raised there or by
            any other function or hook, ends the run as finished after that round, or before it if
            its replies are not aggregated yet; any other exception ends the run.
        resume
            A state from `state_dict()`; `initial_arrays` are then the `arrays` of that Round.
        wrapper
            A strategy around this one, such as Flower's for differential privacy: its hooks are
            called, and they call the hooks of this one.
        all_evaluate_last
            Whether all clients evaluate the last round's model, even if `fraction_evaluate` is
            below 1; 0 still switches evaluation off.

        Returns
        -------
        Flower's Result. If models are averaged (`average_models`), its arrays are the mean, which
        `evaluate_fn` gets after each round as well.

        Raises
        ------
        NothingLearnedError, MethodError
            When the rounds take no step, or the method does not return coefficients: see
            Rounds.aggregate_train.
        BrokenModelError
            When a trainable array of `initial_arrays` is not finite, or none can be trained.
        """
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        check_keys({"train_config": train_config, "evaluate_config": evaluate_config})
        recording = self._session.recording
        if recording is None and self.run_folder_options:
            raise FairbloomError(
                f"{' and '.join(self.run_folder_options)} of the run config: a run folder does"
                " this: start the strategy by RunFolder(path).start(strategy, …)"
            )
        recording = recording or Recording(
            wrapper or self,
            on_round,
            resume,
            all_evaluate_last=all_evaluate_last,
        )
        initial_arrays = recording.arrays or initial_arrays
        outer = recording.outer
        clients = FlowerClients(self, grid, keys=recording.keys)
        rounds = Rounds(
            self,
            clients,
            whole(0, num_rounds=num_rounds),
            all_evaluate_last=recording.all_evaluate_last,
            scores=recording.scores,
        )
        session = StrategySession(
            outer,
            clients,
            rounds,
            {"train": ChangingConfig(train_config), "evaluate": ChangingConfig(evaluate_config)},
        )
        vars(self)["_session"] = session
        self.reset()
        if recording.resume is not None:
            self.load_state_dict(recording.resume)
            session.restore(self.run_state)
            if recording.loses_states:
                clients.lost_states = self.run_state.with_state
        check_model(self, model_of(initial_arrays))
        log.info("Starting %s strategy:", type(outer).__name__)
        log_start(num_rounds, initial_arrays, {"train": train_config, "evaluate": evaluate_config})
        result = Result(arrays=self._mean_arrays(initial_arrays))
        steps = _HookedSteps(
            self, grid, timeout, train_config, evaluate_config, evaluate_fn, result
        )
        with steps.stopping():
            outer.summary()
        began = time.monotonic()
        if evaluate_fn and not self.run_state.finished_rounds and steps.stopped is None:
            steps.evaluate_centrally(evaluate_fn, 0, initial_arrays)
            log.info(
                "Initial global evaluation results: %s", result.evaluate_metrics_serverapp.get(0)
            )
        remaining = rounds.run_by(steps.train, steps.evaluate, initial_arrays)
        for finished in remaining if steps.stopped is None else ():
            with steps.stopping():
                if recording.on_round is not None:
                    recording.on_round(finished)
                if steps.stopped is None and should_stop and should_stop(finished.number, result):
                    raise StopRun(f"should_stop returned True after round {finished.number}")
            if steps.stopped is not None:
                break
        log_result(result, time.monotonic() - began)
        recording.result = result
        recording.stopped = rounds.stopped if steps.stopped is None else steps.stopped.reason
        return result

    def initialize_parameters(self, client_manager: object) -> None:
        """Raise FairbloomError: only Flower's older servers and workflows call it."""
        raise FairbloomError(OLDER_APP)

    def record_by(self, recording: "Recording") -> None:
        """Record the next `start` by `recording`."""
        self._session.recording = recording

    def _note_skipped(self, number: int, replies: Collection[Message]) -> None:
        """Count a round as skipped if a wrapper has not passed its replies on.

        Flower's wrappers do this after an error.
        """
        if self.run_state.finished_rounds < number:
            session = self._session
            trained = session.clients.read_train_replies(replies)
            reason = (
                f"{type(session.outer).__name__} has passed no replies on, as wrappers do where one"
                " is an error"
            )
            trained.refuse(dict.fromkeys(trained.names, reason))
            session.rounds.aggregate_train(number, trained)

    def summary(self) -> None:
        """Log the options that Flower's strategies log, and all others with changed values."""
        defaults = {**vars(Method()), "weighting": self.default_weighting or "uniform"}
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        changed = {
            name: value
            for name, value in public.items()
            if name not in FLOWER_OPTIONS and (name not in defaults or value != defaults[name])
        }
        if "frozen" in changed:  # a large model has hundreds
            changed["frozen"] = f"{len(self.frozen)} arrays"
        _log_options("Sampling and keys", {name: getattr(self, name) for name in FLOWER_OPTIONS})
        _log_options(type(self).__name__, changed)

    # One round, as Flower's hooks -----------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients from (seed, round), and return a message to each."""
        if server_round == 1:
            # In Flower's own loop, only the calls show which strategies are around this one.
            frames = traceback.walk_stack(inspect.currentframe())
            callers = [frame.f_locals.get("self") for frame, _ in frames]
            has_scalars = any(
                not array.shape and "float" in array.dtype for array in arrays.values()
            )
            for caller in {id(each): each for each in callers}.values():
                check_noise(self, caller, has_scalars)
        session = self._session
        session.clients.courier = courier_of(grid)
        if session.recording is not None:
            raise LoopOfOwnError(session.recording.outer)
        measure, others = _split_config(config)
        current = session.rounds.configure_train(server_round, model_of(arrays), measure, others)
        names = list(current.draws)
        log.info(
            "configure_train: Sampled %s nodes (out of %s)", len(names), len(session.rounds.online)
        )
        return session.clients.write_train_messages(names, arrays, current.terms, current.vectors)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Screen the replies, weigh the updates and take the step.

        A skipped round returns no arrays: the model is unchanged.
        """
        replies = list(replies)
        log_replies("aggregate_train", replies)
        session = self._session
        trained = session.clients.read_train_replies(replies)
        model, metrics = session.rounds.aggregate_train(server_round, trained)
        after = None if model is None else record_of(model)
        # Behind a wrapper, as for differential privacy, this is not yet the model of the round.
        session.trained = (after if session.outer is self else None, MetricRecord(metrics))
        if self.train_metrics_aggr_fn is not None:
            metrics = self._replace_means(self.train_metrics_aggr_fn, metrics, trained, replies)
        return after, MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients that evaluate, if the round is evaluated, and return a message to each.

        If models are averaged, `arrays` are added to the mean, which the clients get.
        """
        session = self._session
        session.clients.courier = courier_of(grid)
        if not self.run_state.steps:  # a wrapper withholds all replies if one of them is an error
            log.warning(
                "up to round %d no step was taken; a wrapper that is started without RunFolder"
                " returns no arrays then",
                server_round,
            )
        measure, others = _split_config(config)
        names, terms, _ = session.rounds.configure_evaluate(
            server_round, model_of(arrays), measure, others
        )
        if names:
            log.info(
                "configure_evaluate: Sampled %s nodes (out of %s)",
                len(names),
                len(session.rounds.online),
            )
            arrays = self._mean_arrays(arrays)
        return session.clients.write_evaluate_messages(
            names, arrays, terms, session.rounds.current.participants
        )

    def _mean_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the mean of all global models if they are averaged, else `arrays`, the last."""
        if not self.average_models:
            return arrays
        return record_of(self._session.rounds.mean_model(model_of(arrays)))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the clients' mean metrics, weighted by examples; None if no client was asked."""
        replies = list(replies)
        log_replies("aggregate_evaluate", replies)
        session = self._session
        evaluated = session.clients.read_evaluate_replies(replies)
        metrics = session.rounds.aggregate_evaluate(evaluated)
        if metrics is None:
            return None
        session.evaluated = MetricRecord(metrics)
        if self.evaluate_metrics_aggr_fn is not None:
            metrics = self._replace_means(
                self.evaluate_metrics_aggr_fn, metrics, evaluated, replies
            )
        return MetricRecord(metrics)

    def _replace_means(
        self, aggregate: Aggregate, metrics: Metrics, used: Replies, replies: Collection[Message]
    ) -> Metrics:
        """Return a round's metrics with those of the user's function instead of the means."""
        weighted = [name for name in used.names if self.weighted_by_key in used.metrics[name]]
        if not weighted:
            return metrics
        averaged = average_metrics(used.metrics, self.weighted_by_key)
        return {
            **aggregate(self._session.clients.contents(replies, weighted), self.weighted_by_key),
            **{name: value for name, value in metrics.items() if name not in averaged},
        }


@dataclass
class StrategySession:
    """What a strategy has while it runs; nothing of it is in a checkpoint.

    Attributes
    ----------
    outer
        The strategy that is started: the FairStrategy, or one that wraps it.
    clients, rounds
        The clients, and the rounds with them.
    configs
        The user's configs of messages, by message.
    recording
        What records the next `start`.
    trained, evaluated
        What our own hooks have returned of the round, in case that another one raises StopRun.
    """

    outer: Strategy
    clients: FlowerClients
    rounds: Rounds
    configs: Mapping[str, ChangingConfig] = field(default_factory=dict)
    recording: "Recording | None" = None
    trained: tuple[ArrayRecord | None, MetricRecord | None] = (None, None)
    evaluated: MetricRecord | None = None

    def restore(self, state: RunState) -> None:
        """Repeat what the hooks of a run had changed: configs, and the values of wrappers."""
        for name, config in self.configs.items():
            config.repeat(state.configs.get(name, {}))
        for layer, values in zip(layers(self.outer)[:-1], state.wrappers, strict=False):
            vars(layer).update(values)
        self.clients.with_state = set(state.with_state)

    def note_hooks(self, method: FairStrategy) -> None:
        """Enter into the run's state what hooks have changed."""
        configs = {
            name: changes for name, config in self.configs.items() if (changes := config.changes())
        }
        wrappers = [plain_values(layer) for layer in layers(self.outer)[:-1]]
        method.enter(method.run_state.hooked(configs, wrappers, self.clients.with_state))


@dataclass
class _HookedSteps:
    """The steps of a round by the hooks of a strategy, which may be wrapped by others.

    They enter metrics and mean models into `result`. `stopped` is the last request to stop after a
    round.
    """

    strategy: FairStrategy
    grid: Grid
    timeout: Timeout
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn | None
    result: Result
    stopped: StopRun | None = None

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Note a request to stop."""
        try:
            yield
        except StopRun as stop:
            self.stopped = stop

    def train(
        self, number: int, arrays: ArrayRecord
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Call the hooks of training; return the model, None if unchanged, and mean metrics."""
        strategy = self.strategy
        session = strategy._session
        log.info("")
        log.info("[ROUND %s/%s]", number, session.rounds.num_rounds)
        session.trained = (None, None)
        try:
            session.clients.timeout = timeout_of(self.timeout, number)
            replies = session.clients.deliver(
                session.outer.configure_train(number, arrays, self.train_config, self.grid)
            )
            session.trained = session.outer.aggregate_train(number, replies)
            strategy._note_skipped(number, replies)
        except StopRun as stop:
            if strategy.run_state.finished_rounds < number:
                raise  # before the replies were aggregated: the round does not count
            self.stopped = stop
        session.note_hooks(strategy)
        _, metrics = session.trained
        if metrics is not None:
            log.info(AGGREGATED, metrics)
            self.result.train_metrics_clientapp[number] = metrics
        return session.trained

    def evaluate(self, number: int, arrays: ArrayRecord) -> RoundEvaluation:
        """Call the hooks of evaluation, and the user's function."""
        strategy = self.strategy
        session = strategy._session
        outer = session.outer
        session.evaluated = None
        with self.stopping():
            replies = session.clients.deliver(
                outer.configure_evaluate(number, arrays, self.evaluate_config, self.grid)
            )
            try:
                session.evaluated = outer.aggregate_evaluate(number, replies)
            except StopRun:
                if session.rounds.current.evaluation.refused.round != number:
                    # it was raised before our own hook
                    FairStrategy.aggregate_evaluate(strategy, number, replies)
                raise
        session.note_hooks(strategy)
        metrics = session.evaluated
        if metrics is not None:
            log.info(AGGREGATED, metrics)
            self.result.evaluate_metrics_clientapp[number] = metrics
        self.result.arrays = strategy._mean_arrays(arrays)
        central: MetricRecord | None = None
        if self.evaluate_fn:
            log.info("Global evaluation")
            central = self.evaluate_centrally(self.evaluate_fn, number, self.result.arrays)
            log.info("\t└──> MetricRecord: %s", central)
        return RoundEvaluation(
            self.result.arrays if strategy.average_models else None, metrics, central
        )

    def evaluate_centrally(
        self, evaluate_fn: EvaluateFn, number: int, arrays: ArrayRecord
    ) -> MetricRecord | None:
        """Enter the metrics of the user's function into the result, and return them."""
        try:
            central = evaluate_fn(number, arrays)
        except StopRun as stop:
            self.stopped = stop
            central = None if stop.metrics is None else MetricRecord({**stop.metrics})
        if central is not None:
            self.result.evaluate_metrics_serverapp[number] = central
        return central


@dataclass
class Recording:
    """What a `start` takes besides Flower's arguments, and how it ended.

    A run folder makes it before a user's own `start`, which may pass on only Flower's arguments.

    Attributes
    ----------
    outer
        The strategy that is started: the FairStrategy, or one that wraps it.
    on_round, resume, all_evaluate_last
        As in `FairStrategy.start`.
    arrays
        The model of a run that is continued.
    scores
        The scores that the run folder is given, with the loss.
    keys
        Keys and values that are added to the config of each message.
    loses_states
        Whether nodes lose the states of contexts where a run is continued.
    result
        The result of `FairStrategy.start`; None if it was not called.
    stopped
        The reason why the run ended before its last round, "" if it did not.
    """

    outer: Strategy
    on_round: Callable[[Round], None] | None
    resume: Mapping[str, Any] | None = None
    arrays: ArrayRecord | None = None
    scores: Sequence[Score] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    loses_states: bool = False
    all_evaluate_last: bool = True
    result: Result | None = None
    stopped: str = ""


class LoopOfOwnError(FairbloomError):
    """A `start` that calls the hooks itself, so that its rounds cannot be recorded or continued."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(
            f"{type(strategy).__name__}.start is a loop of its own: a run folder cannot record its"
            " rounds. Change the hooks (configure_train, aggregate_train, …), and call"
            " super().start(…), which is FairStrategy.start"
        )


def layers(strategy: Strategy) -> list[Strategy]:
    """Return a strategy, the one that it wraps, and so on down to one that wraps no other."""
    wrapped = [strategy]
    while not isinstance(wrapped[-1], FairStrategy):
        inside = [
            value
            for value in vars(wrapped[-1]).values()
            if isinstance(value, Strategy) and value not in wrapped
        ]
        if not inside:
            break
        wrapped.append(inside[0])
    return wrapped


def plain_values(strategy: Strategy) -> dict[str, bool | int | float | str]:
    """Return the public attributes of a strategy that are numbers, texts or flags."""
    return {
        name: value
        for name, value in vars(strategy).items()
        if isinstance(value, bool | int | float | str) and not name.startswith("_")
    }


# The keys of a config by which the strategy itself instructs clients.
OUR_KEYS = frozenset(
    {"server-round", "state-round", "seed", FROZEN, PROTOCOL, RUN_FOLDER, CONTEXTS}
).union(*(rule.keys for rule in RULES))


def check_keys(configs: Mapping[str, ConfigRecord]) -> None:
    """Raise FairbloomError if a user's config has a key of ours, which would change the work.

    Only `measure` is for users too: a list of names.
    """
    for name, config in configs.items():
        if taken := sorted(OUR_KEYS.intersection(config)):
            raise FairbloomError(
                f"{name} has the key {taken[0]!r}, by which the strategy itself tells clients what"
                " to do: rename it, or set the strategy's own parameter"
            )
        if not isinstance(measure := config.get("measure", []), list):
            raise FairbloomError(
                f"{name} has measure = {measure!r}: give a list of names, as in ['loss-before']"
            )


def timeout_of(timeout: Timeout, number: int) -> float | None:
    """Return the seconds that clients have to reply in a round; raise ValueError for 0 or less."""
    name = "timeout"
    if callable(timeout):
        name = f"timeout({number})"
        timeout = timeout(number)
    return None if timeout is None else within("(0, inf)", **{name: timeout})


AGGREGATED = "\t└──> Aggregated MetricRecord: %s"

# The options that Flower's strategies have too.
FLOWER_OPTIONS = (
    "fraction_train",
    "fraction_evaluate",
    "min_train_nodes",
    "min_evaluate_nodes",
    "min_available_nodes",
    "weighted_by_key",
    "arrayrecord_key",
    "configrecord_key",
)


def log_start(num_rounds: int, arrays: ArrayRecord, configs: Mapping[str, ConfigRecord]) -> None:
    """Log the beginning of a run, as Flower's strategies do."""
    log.info("\t├── Number of rounds: %d", num_rounds)
    size = sum(len(array.data) for array in arrays.values())
    log.info("\t├── ArrayRecord (%.2f MB)", size / 1024**2)
    for name, config in configs.items():
        shown = {
            key: "<bytes>" if isinstance(value, bytes) else value for key, value in config.items()
        }
        log.info("\t├── ConfigRecord (%s): %s", name, shown or "(empty!)")


def _log_options(title: str, options: Mapping[str, Any]) -> None:
    shown = [f"{name} = {value!r}" for name, value in options.items()]
    log.info("\t├──> %s: %s", title, ", ".join(shown))


def log_replies(hook: str, replies: Collection[Message]) -> None:
    """Log how many replies came, as Flower's strategies do.

    `Refusals` logs the errors.
    """
    if replies:
        failures = sum(reply.has_error() for reply in replies)
        log.info("%s: Received %s results and %s failures", hook, len(replies) - failures, failures)


def log_result(result: Result, seconds: float) -> None:
    """Log the result of a run, as Flower's strategies do."""
    finished = f"Strategy execution finished in {seconds:.2f}s"
    values = (f"\t{line}" for line in str(result).splitlines())
    for line in ("", finished, "", "Final results:", "", *values, ""):
        log.info("%s", line)


def _split_config(config: ConfigRecord) -> tuple[list[str], dict[str, Any]]:
    """Return the metrics that a config requests, and its other values."""
    measure = config.get("measure")
    others = {key: value for key, value in config.items() if key != "measure"}
    if not isinstance(measure, list):
        return [], others
    return list(map(str, measure)), others
