"""A method as Flower's users know it: a `Strategy` with its hooks.

The one file of this package that knows Flower.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fairbloom.errors import FairbloomError
from fairbloom.flower import log_start
from fairbloom.logs import log
from fairbloom.protocol.names import FROZEN, PROTOCOL
from fairbloom.protocol.parameters import Value
from fairbloom.protocol.terms import RULES
from fairbloom.rounds.clients import Replies
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Metrics, Rounds, means
from fairbloom.rounds.method import Method
from fairbloom.rounds.options import Aggregate, Options
from fairbloom.rounds.ranges import whole
from fairbloom.rounds.records import model_of, record_of
from fairbloom.rounds.round import Round, StopRun
from fairbloom.rounds.screening import check_model
from fairbloom.strategies.message_configs import ChangingConfig

Tries = Sequence[Mapping[str, Value]]
"""Values of parameters that are tried, by their names in Python."""


class FairStrategy(Method, Strategy):
    """A method as a Flower strategy; parameters are those of Method.

    Flower's hooks take the steps of a round one by one, for wrappers such as Flower's for
    differential privacy; `start` calls them in turn. A user-defined method is a subclass with a
    `weigh`.
    """

    tries: ClassVar[Tries] = ({},)
    """The parameters with which `fairbloom search` tries a method that is named without some: by
    default as they are. () leaves it out of `--methods all`. A subclass does not inherit it."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self._flower = FlowerClients(self)
        self._loop = Rounds(self, self._flower)
        self._outer: Strategy = self
        self._configs: Mapping[str, ChangingConfig] = {}
        self._recording: Recording | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
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
            Seconds that clients have to reply in a round; its messages live no longer.
        train_config, evaluate_config
            Sent with each message and read again in every round: what `configure_train` changes in
            one stays changed, and is part of the state. A list `measure` asks for metrics beside
            what the method needs; in evaluation, of the round's participants.
        on_round
            Called with every finished Round before the next one starts. StopRun, raised there or by
            `evaluate_fn`, ends the run as finished after that round; what else it raises ends the
            run.
        resume
            A state from `state_dict()`; `initial_arrays` are then the `arrays` of that Round.
        wrapper
            A strategy around this one, such as Flower's for differential privacy: its hooks are
            called, which call those of this one.
        all_evaluate_last
            Whether all clients evaluate the last round's model, whatever `fraction_evaluate` above
            0 says.

        Returns
        -------
        Flower's Result; where models are averaged (`average_models`), its arrays are the mean,
        which `evaluate_fn` gets after each round as well.

        Raises
        ------
        NothingLearnedError, MethodError
            When the rounds take no step, or the method returns what cannot be coefficients: see
            Rounds.train.
        BrokenModelError
            When what is trained of `initial_arrays` is not finite, or nothing could be trained.
        """
        check_keys({"train_config": train_config, "evaluate_config": evaluate_config})
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        recording = self._recording
        self._recording = None
        if recording is not None:
            on_round = recording.on_round
            resume = recording.resume
            wrapper = recording.outer
            initial_arrays = recording.arrays or initial_arrays
            all_evaluate_last = True
        self.reset()
        self._outer = outer = self if wrapper is None else wrapper
        self._configs = {
            "train": ChangingConfig(train_config),
            "evaluate": ChangingConfig(evaluate_config),
        }
        if resume is not None:
            self.load_state_dict(resume)
        self._flower = FlowerClients(self, grid, timeout)
        rounds = whole(0, num_rounds=num_rounds)
        self._loop = Rounds(self, self._flower, rounds, all_evaluate_last=all_evaluate_last)
        check_model(self, model_of(initial_arrays))
        log.info("Starting %s strategy:", type(outer).__name__)
        log_start(num_rounds, initial_arrays, train_config, evaluate_config)
        outer.summary()
        began = time.monotonic()
        result = Result(arrays=self._averaged(initial_arrays))
        first = self.progress.finished_rounds + 1
        stopped: StopRun | None = None
        if evaluate_fn and first == 1:
            stopped = evaluate_centrally(evaluate_fn, 0, initial_arrays, result)
            log.info(
                "Initial global evaluation results: %s", result.evaluate_metrics_serverapp.get(0)
            )
        arrays = initial_arrays
        for number in range(first, num_rounds + 1) if stopped is None else ():
            log.info("")
            log.info("[ROUND %s/%s]", number, num_rounds)
            after, trained = self._train_round(number, arrays, train_config, grid)
            arrays = arrays if after is None else after
            evaluated = self._evaluate_round(number, arrays, evaluate_config, grid)
            result.arrays = self._averaged(arrays)
            if trained is not None:
                result.train_metrics_clientapp[number] = trained
            if evaluated is not None:
                result.evaluate_metrics_clientapp[number] = evaluated
            if evaluate_fn:
                log.info("Global evaluation")
                stopped = evaluate_centrally(evaluate_fn, number, result.arrays, result)
                log.info("\t└──> MetricRecord: %s", result.evaluate_metrics_serverapp.get(number))
            if on_round is not None:
                finished = self._loop.finished_round(
                    number,
                    model_of(arrays),
                    arrays,
                    dict(trained or {}),
                    result.arrays if self.average_models else None,
                    evaluation_metrics=evaluated,
                    server_metrics=result.evaluate_metrics_serverapp.get(number),
                )
                try:
                    on_round(finished)
                except StopRun as stop:
                    stopped = stop
            if stopped is not None:
                break
        if stopped is None:
            self._loop.check_learned()
        log_result(result, time.monotonic() - began)
        if recording is not None:
            recording.result = result
        return result

    def record_by(self, recording: "Recording") -> None:
        """Let the next `start` be recorded so."""
        self._recording = recording

    def _train_round(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Call the hooks of training.

        Return the model, None where it stays as it is, and the means of metrics.
        """
        replies = self._flower.deliver(self._outer.configure_train(number, arrays, config, grid))
        after, metrics = self._outer.aggregate_train(number, replies)
        self._note_skipped(number, replies)
        if metrics is not None:
            log.info(AGGREGATED, metrics)
        return after, metrics

    def _evaluate_round(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> MetricRecord | None:
        """Call the hooks of evaluation; return the means of metrics."""
        replies = self._flower.deliver(self._outer.configure_evaluate(number, arrays, config, grid))
        metrics = self._outer.aggregate_evaluate(number, replies)
        if metrics is not None:
            log.info(AGGREGATED, metrics)
        return metrics

    def _note_skipped(self, number: int, replies: Collection[Message]) -> None:
        """Count a round as skipped in which a wrapper, as Flower's do after an error, has passed no replies on."""
        if self.progress.finished_rounds < number:
            trained = self._flower.trained(replies)
            by = type(self._outer).__name__
            passed_on = f"{by} has passed no replies on, as wrappers do where one is an error"
            trained.refuse(dict.fromkeys(trained.names, passed_on))
            self._loop.train(number, trained)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the method, what hooks have changed in the configs of messages, and wrappers' numbers."""
        configs = {
            name: changes
            for name, config in self._configs.items()
            if (changes := config.state_dict())
        }
        wrappers = [plain_values(each) for each in layers(self._outer)[:-1]]
        added = {"configs": configs, "wrappers": wrappers}
        return super().state_dict() | {name: value for name, value in added.items() if value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state)
        for name, config in self._configs.items():
            config.load_state_dict(state.get("configs", {}).get(name, {}))
        for layer, values in zip(layers(self._outer)[:-1], state.get("wrappers", ()), strict=False):
            vars(layer).update(values)

    def summary(self) -> None:
        """Log the options that Flower's strategies log too, and the method with what else is not at its default."""
        usual = {**vars(Method()), "weighting": self.default_weighting or "uniform"}
        found = {
            # a large model has hundreds
            name: f"{len(self.frozen)} arrays" if name == "frozen" else each
            for name, each in vars(self).items()
            if not name.startswith("_") and name not in ("memory", "progress", *AS_FLOWERS)
            if name not in usual or each != usual[name]
        }
        for head, options in (
            ("Sampling and keys", {n: getattr(self, n) for n in AS_FLOWERS}),
            (type(self).__name__, found),
        ):
            log.info(
                "\t├──> %s: %s",
                head,
                ", ".join(f"{name} = {each!r}" for name, each in options.items()),
            )

    # One round, as Flower's hooks -----------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients from (seed, round) and write a message to each."""
        self._flower.grid = grid
        if self._recording is not None:
            raise LoopOfOwnError(self._recording.outer)
        names, terms, sent = self._loop.ask(server_round, model_of(arrays), *_asked(config))
        log.info(
            "configure_train: Sampled %s nodes (out of %s)", len(names), len(self._loop.online)
        )
        return self._flower.ask_to_train(names, arrays, terms, sent)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Screen the replies, weigh the updates and take the step.

        No arrays (the model stays) in a skipped round.
        """
        replies = list(replies)
        log_replies("aggregate_train", replies)
        trained = self._flower.trained(replies)
        model, metrics = self._loop.train(server_round, trained)
        if self.train_metrics_aggr_fn is not None and trained.names:
            metrics = self._with_own(self.train_metrics_aggr_fn, metrics, trained, replies)
        after = None if model is None else record_of(model)
        return after, MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients that evaluate, where the round is evaluated, and write a message to each.

        Where models are averaged, `arrays` are taken into the mean, which is what the clients get.
        """
        self._flower.grid = grid
        names, terms, _ = self._loop.ask_to_evaluate(
            server_round, model_of(arrays), *_asked(config)
        )
        if names:
            log.info(
                "configure_evaluate: Sampled %s nodes (out of %s)",
                len(names),
                len(self._loop.online),
            )
            arrays = self._averaged(arrays)
        return self._flower.ask_to_evaluate(names, arrays, terms, self._loop.participants)

    def _averaged(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return what is evaluated and saved where `arrays` are the last global model: these, or the mean of all."""
        return record_of(self._loop.averaged(model_of(arrays))) if self.average_models else arrays

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the means of the clients' metrics, weighted by examples, None where no client was asked."""
        replies = list(replies)
        log_replies("aggregate_evaluate", replies)
        evaluated = self._flower.evaluated(replies)
        metrics: Metrics | None = self._loop.evaluate(evaluated)
        if metrics is not None and self.evaluate_metrics_aggr_fn is not None and evaluated.names:
            metrics = self._with_own(self.evaluate_metrics_aggr_fn, metrics, evaluated, replies)
        return None if metrics is None else MetricRecord(metrics)

    def _with_own(
        self, aggregate: Aggregate, metrics: Metrics, used: Replies, replies: Collection[Message]
    ) -> Metrics:
        """Return a round's metrics with those that the user's function makes in place of the means."""
        averaged = means(used.metrics, self.weighted_by_key)
        others = {name: value for name, value in metrics.items() if name not in averaged}
        return {
            **aggregate(self._flower.contents(replies, used.names), self.weighted_by_key),
            **others,
        }


@dataclass
class Recording:
    """How a `start` is recorded that a user's own may call with Flower's arguments alone.

    Attributes
    ----------
    outer
        The strategy that is started, which is or wraps the one of ours.
    on_round, resume
        As in `FairStrategy.start`.
    arrays
        The model of a run that is continued.
    result
        What `FairStrategy.start` returned; None where it was not called.
    """

    outer: Strategy
    on_round: Callable[[Round], None]
    resume: Mapping[str, Any] | None = None
    arrays: ArrayRecord | None = None
    result: Result | None = None


class LoopOfOwnError(FairbloomError):
    """A `start` that calls the hooks itself: its rounds could be neither recorded nor continued."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(
            f"{type(strategy).__name__}.start is a loop of its own, whose rounds a run folder"
            " cannot record: change the hooks (configure_train, aggregate_train, …), and call"
            " super().start(…), which is FairStrategy.start"
        )


def layers(strategy: Strategy) -> list[Strategy]:
    """Return a strategy, the one that it wraps, and so on; the last one wraps none."""
    found = [strategy]
    while not isinstance(found[-1], FairStrategy):
        inside = [
            each
            for each in vars(found[-1]).values()
            if isinstance(each, Strategy) and each not in found
        ]
        if not inside:
            break
        found.append(inside[0])
    return found


def plain_values(strategy: Strategy) -> dict[str, bool | int | float | str]:
    """Return the public attributes of a strategy that are numbers, words or flags."""
    return {
        name: value
        for name, value in vars(strategy).items()
        if isinstance(value, bool | int | float | str) and not name.startswith("_")
    }


OUR_KEYS = frozenset({"server-round", "state-round", "seed", FROZEN, PROTOCOL}).union(
    *(rule.keys for rule in RULES)
)
"""The keys of a config by which the strategy itself tells clients what to do."""


def check_keys(configs: Mapping[str, ConfigRecord | None]) -> None:
    """Raise FairbloomError where a user's config has a key of ours, by which clients would do other work.

    `measure` is for users, too: a list of names.
    """
    for name, config in configs.items():
        if config is None:
            continue
        if taken := sorted(OUR_KEYS.intersection(config)):
            raise FairbloomError(
                f"{name} has the key {taken[0]!r}, by which the strategy itself tells clients what"
                " to do: rename it, or set the strategy's own parameter"
            )
        if not isinstance(measure := config.get("measure", []), list):
            raise FairbloomError(
                f"{name} has measure = {measure!r}: give a list of names, as in ['loss-before']"
            )


def evaluate_centrally(
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None],
    number: int,
    arrays: ArrayRecord,
    result: Result,
) -> StopRun | None:
    """Enter what the user's function makes of the model into the result.

    Return its request that the run stop.
    """
    stopped: StopRun | None = None
    try:
        central = evaluate_fn(number, arrays)
    except StopRun as stop:
        stopped = stop
        central = None if stop.metrics is None else MetricRecord({**stop.metrics})
    if central is not None:
        result.evaluate_metrics_serverapp[number] = central
    return stopped


AGGREGATED = "\t└──> Aggregated MetricRecord: %s"

AS_FLOWERS = (
    *(
        "fraction_train",
        "fraction_evaluate",
        "min_train_nodes",
        "min_evaluate_nodes",
        "min_available_nodes",
    ),
    *("weighted_by_key", "arrayrecord_key", "configrecord_key"),
)
"""The options that Flower's strategies have too."""


def log_replies(what: str, replies: Collection[Message]) -> None:
    """Log how many replies came, as Flower's strategies do.

    What is wrong with one is logged where it is refused.
    """
    if replies:
        failures = sum(reply.has_error() for reply in replies)
        log.info("%s: Received %s results and %s failures", what, len(replies) - failures, failures)


def log_result(result: Result, seconds: float) -> None:
    """Log the result of a run, as Flower's strategies do."""
    log.info("")
    log.info("Strategy execution finished in %.2fs", seconds)
    log.info("")
    log.info("Final results:")
    log.info("")
    for line in str(result).splitlines():
        log.info("\t%s", line)
    log.info("")


def _asked(config: ConfigRecord) -> tuple[list[str], dict[str, Any]]:
    """Return the metrics that a config asks for, and what else it holds for the clients."""
    measure = config.get("measure")
    others = {key: value for key, value in config.items() if key != "measure"}
    return list(map(str, measure)) if isinstance(measure, list) else [], others
