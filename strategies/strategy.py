"""A method as Flower's users know it: a `Strategy` with its hooks. The one file of this package that knows Flower."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fairbloom.flower import log_start
from fairbloom.logs import log
from fairbloom.rounds.clients import Replies
from fairbloom.rounds.flower import FlowerClients, model_of, record_of
from fairbloom.rounds.limits import check_model
from fairbloom.rounds.loop import Metrics, Rounds, iterate_rounds, means
from fairbloom.rounds.method import Aggregate, Method, Options
from fairbloom.rounds.ranges import whole
from fairbloom.rounds.round import Round


class FairStrategy(Method, Strategy):
    """A method as a Flower strategy; parameters are those of Method.

    Flower's hooks take the steps of a round one by one, for wrappers such as Flower's for differential privacy; `start`
    calls them in turn. A user-defined method is a subclass with a `weigh`.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self._flower = FlowerClients(self)
        self._loop = Rounds(self, self._flower)

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
    ) -> Result:
        """Run rounds up to `num_rounds`; arguments and result are those of Flower's `Strategy.start`.

        Parameters
        ----------
        grid, initial_arrays, num_rounds, evaluate_fn
            As in Flower.
        timeout
            Seconds that clients have to reply in a round; its messages live no longer.
        train_config, evaluate_config
            Sent with each message and read again in every round. A list `measure` asks for metrics beside what the
            method needs; in evaluation, of the round's participants.
        on_round
            Called with every finished Round before the next one starts. What it raises ends the run.
        resume
            A state from `state_dict()`; `initial_arrays` are then the `arrays` of that Round.

        Returns
        -------
        Flower's Result; where models are averaged (`average_models`), its arrays are the mean, which `evaluate_fn` gets
        after each round as well.

        Raises
        ------
        NothingLearnedError, MethodError
            When the rounds take no step, or the method returns what cannot be coefficients: see Rounds.step.
        BrokenModelError
            When `initial_arrays` are not finite.
        """
        self.reset()
        if resume is not None:
            self.load_state_dict(resume)
        self._flower = FlowerClients(self, grid, timeout)
        self._loop = Rounds(self, self._flower, whole(0, num_rounds=num_rounds))
        check_model(model_of(initial_arrays), self.progress.lengths.longest)
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config

        def train(number: int, arrays: ArrayRecord) -> tuple[ArrayRecord | None, MetricRecord | None]:
            log.info("")
            log.info("[ROUND %s/%s]", number, num_rounds)
            messages = self.configure_train(number, arrays, train_config, grid)
            after, metrics = self.aggregate_train(number, self._flower.deliver(messages))
            if metrics is not None:
                log.info(AGGREGATED, metrics)
            return after, metrics

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            messages = self.configure_evaluate(number, arrays, evaluate_config, grid)
            metrics = self.aggregate_evaluate(number, self._flower.deliver(messages))
            if metrics is not None:
                log.info(AGGREGATED, metrics)
            return metrics

        log.info("Starting %s strategy:", type(self).__name__)
        log_start(num_rounds, initial_arrays, train_config, evaluate_config)
        self.summary()
        began = time.monotonic()
        result = Result(arrays=self._averaged(initial_arrays))
        first = self.progress.finished_rounds + 1
        if evaluate_fn and first == 1:
            central = evaluate_fn(0, initial_arrays)
            log.info("Initial global evaluation results: %s", central)
            if central is not None:
                result.evaluate_metrics_serverapp[0] = central
        rounds = iterate_rounds(train, evaluate, initial_arrays, range(first, num_rounds + 1))
        for number, arrays, trained, evaluated in rounds:
            result.arrays = self._averaged(arrays)
            if trained is not None:
                result.train_metrics_clientapp[number] = trained
            if evaluated is not None:
                result.evaluate_metrics_clientapp[number] = evaluated
            if evaluate_fn:
                log.info("Global evaluation")
                central = evaluate_fn(number, result.arrays)
                log.info("\t└──> MetricRecord: %s", central)
                if central is not None:
                    result.evaluate_metrics_serverapp[number] = central
            if on_round is not None:
                average = result.arrays if self.average_models else None
                on_round(self._loop.finished_round(number, model_of(arrays), arrays, dict(trained or {}), average))
        self._loop.check_learned()
        log_result(result, time.monotonic() - began)
        return result

    def summary(self) -> None:
        """Log the method with its options."""
        shown = {k: v for k, v in vars(self).items() if not k.startswith("_") and k not in ("memory", "progress")}
        log.info("\t└──> %s(%s)", type(self).__name__, ", ".join(f"{k}={v!r}" for k, v in shown.items()))

    # One round, as Flower's hooks -----------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients from (seed, round) and write a message to each."""
        self._flower.grid = grid
        names, terms = self._loop.draw(server_round, *_asked(config))
        log.info("configure_train: Sampled %s nodes (out of %s)", len(names), len(self._loop.online))
        return self._flower.ask_to_train(names, arrays, terms)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Screen the replies, weigh the updates and take the step; no arrays (the model stays) in a skipped round."""
        replies = list(replies)
        log_replies("aggregate_train", replies)
        trained = self._flower.trained(replies)
        model, metrics = self._loop.step(server_round, trained)
        if self.train_metrics_aggr_fn is not None and trained.names:
            metrics = self._with_own(self.train_metrics_aggr_fn, metrics, trained, replies)
        return None if model is None else record_of(model), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients that evaluate, where the round is evaluated, and write a message to each.

        Where models are averaged, `arrays` are taken into the mean, which is what the clients get.
        """
        self._flower.grid = grid
        self._loop.add_to_average(model_of(arrays))
        names, terms = self._loop.draw_evaluation(server_round, *_asked(config))
        if names:
            log.info("configure_evaluate: Sampled %s nodes (out of %s)", len(names), len(self._loop.online))
            arrays = self._averaged(arrays)
        return self._flower.ask_to_evaluate(names, arrays, terms, self._loop.participants)

    def _averaged(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return what is evaluated and saved where `arrays` are the last global model: these, or the mean of all."""
        return record_of(self._loop.averaged(model_of(arrays))) if self.average_models else arrays

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the means of the clients' metrics, weighted by examples, None where no client was asked."""
        replies = list(replies)
        log_replies("aggregate_evaluate", replies)
        evaluated = self._flower.evaluated(replies)
        metrics: Metrics | None = self._loop.evaluated(evaluated)
        if metrics is not None and self.evaluate_metrics_aggr_fn is not None and evaluated.names:
            metrics = self._with_own(self.evaluate_metrics_aggr_fn, metrics, evaluated, replies)
        return None if metrics is None else MetricRecord(metrics)

    def _with_own(self, aggregate: Aggregate, metrics: Metrics, used: Replies, replies: Collection[Message]) -> Metrics:
        """Return a round's metrics with those that the user's function makes in place of the means."""
        averaged = means(used.metrics, self.weighted_by_key)
        others = {name: value for name, value in metrics.items() if name not in averaged}
        return {**aggregate(self._flower.contents(replies, used.names), self.weighted_by_key), **others}


AGGREGATED = "\t└──> Aggregated MetricRecord: %s"


def log_replies(what: str, replies: Collection[Message]) -> None:
    """Log how many replies came, as Flower's strategies do; what is wrong with one is logged where it is refused."""
    if replies:
        failures = sum(reply.has_error() for reply in replies)
        log.info("%s: Received %s results and %s failures", what, len(replies) - failures, failures)


def log_result(result: Result, seconds: float) -> None:
    """Log what came of a run, as Flower's strategies do."""
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
