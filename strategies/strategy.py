"""A method as Flower's users know it: a `Strategy` with its hooks. The one file of this package that knows Flower."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fairbloom.rounds.flower import FlowerClients, model_of, record_of
from fairbloom.rounds.loop import Metrics, Rounds, in_turn
from fairbloom.rounds.method import Method, Options
from fairbloom.rounds.ranges import whole
from fairbloom.rounds.round import Round

log = logging.getLogger("flwr").getChild("fairbloom")


class FairStrategy(Method, Strategy):
    """A method as a Flower strategy; parameters are those of Method.

    Flower's hooks take the steps of a round one by one, for wrappers such as Flower's for differential privacy; `start`
    calls them in turn. A method of your own is a subclass with a `weigh`.
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
            Seconds until a round's replies are due; its messages live no longer.
        train_config, evaluate_config
            Sent with each message and read anew in every round. A list `measure` asks for metrics beside what the
            method needs; in evaluation, of the round's participants.
        on_round
            Called with every finished Round before the next one starts. What it raises ends the run.
        resume
            A state from `state_dict()`; `initial_arrays` are then the arrays after that round.

        Raises
        ------
        NothingLearnedError, MethodError
            When the rounds take no step, or the method returns what cannot be coefficients: see Rounds.step.
        """
        self.reset()
        if resume is not None:
            self.load_state_dict(resume)
        self._flower = FlowerClients(self, grid, timeout)
        self._loop = Rounds(self, self._flower, whole(0, num_rounds=num_rounds))
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config

        def train(number: int, arrays: ArrayRecord) -> tuple[ArrayRecord | None, MetricRecord | None]:
            messages = self.configure_train(number, arrays, train_config, grid)
            return self.aggregate_train(number, self._flower.deliver(messages))

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            messages = self.configure_evaluate(number, arrays, evaluate_config, grid)
            return self.aggregate_evaluate(number, self._flower.deliver(messages))

        self.summary()
        result = Result(arrays=initial_arrays)
        first = self.progress.finished_rounds + 1
        if evaluate_fn and first == 1 and (central := evaluate_fn(0, initial_arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = central
        rounds = in_turn(train, evaluate, initial_arrays, range(first, num_rounds + 1))
        for number, arrays, trained, evaluated in rounds:
            result.arrays = arrays
            if trained is not None:
                result.train_metrics_clientapp[number] = trained
            if evaluated is not None:
                result.evaluate_metrics_clientapp[number] = evaluated
            if evaluate_fn and (central := evaluate_fn(number, arrays)) is not None:
                result.evaluate_metrics_serverapp[number] = central
            if on_round is not None:
                on_round(self._loop.as_round(number, model_of(arrays), arrays, dict(trained or {})))
        self._loop.check_learned()
        return result

    def summary(self) -> None:
        """Log the method with its options."""
        shown = {k: v for k, v in vars(self).items() if not k.startswith("_") and k not in ("memory", "progress")}
        log.info("%s(%s)", type(self).__name__, ", ".join(f"{k}={v!r}" for k, v in shown.items()))

    # One round, as Flower's hooks -----------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients from (seed, round) and write a message to each."""
        self._flower.grid = grid
        names, terms = self._loop.draw(server_round, *_asked(config))
        return self._flower.ask_to_train(names, arrays, terms)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Screen the replies, weigh the updates and take the step; no arrays (the model stays) in a skipped round."""
        model, metrics = self._loop.step(server_round, self._flower.trained(replies))
        return None if model is None else record_of(model), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients that evaluate, where the round is evaluated, and write a message to each."""
        self._flower.grid = grid
        names, terms = self._loop.draw_evaluation(server_round, *_asked(config))
        return self._flower.ask_to_evaluate(names, arrays, terms, self._loop.participants)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the means of the clients' metrics, weighted by examples, None where no client was asked."""
        metrics: Metrics | None = self._loop.evaluated(self._flower.evaluated(replies))
        return None if metrics is None else MetricRecord(metrics)


def _asked(config: ConfigRecord) -> tuple[list[str], dict[str, Any]]:
    """Return the metrics that a config asks for, and what else it tells the clients."""
    measure = config.get("measure")
    others = {key: value for key, value in config.items() if key != "measure"}
    return list(map(str, measure)) if isinstance(measure, list) else [], others
