"""The run folder of a user's ServerApp: a fair strategy records and continues its rounds."""

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.own_code import digest_own_code
from fairbloom.protocol.names import CONTEXTS, LOSS, PERSONAL, RUN_FOLDER, SEEDS
from fairbloom.protocol.scores import ACCURACY, Score, find_direction
from fairbloom.protocol.settings import Mark, Value
from fairbloom.rounds.courier import Courier, courier_of
from fairbloom.rounds.options import OPTIONS
from fairbloom.rounds.ranges import one_of, whole
from fairbloom.rounds.records import record_of
from fairbloom.rounds.refusals import one_line
from fairbloom.rounds.round import Round, StopRun
from fairbloom.strategies import FairStrategy
from fairbloom.strategies.strategy import (
    EvaluateFn,
    LoopOfOwnError,
    Recording,
    ShouldStop,
    Timeout,
    layers,
    plain_values,
)
from fairbloom.text import text_if

from ..log_lines import summarize_row
from ..polling import PollingGrid
from ..progress import announce
from .contexts import KeptContexts
from .csv_rows import Validation
from .errors import explain_other_state, explain_read_errors, name_app_option
from .files import (
    CHECKPOINTS,
    CONFIG,
    CONTEXTS as CONTEXTS_FOLDER,
    EXAMPLES,
    METRICS,
    MODEL,
    log_finished,
)
from .lock import locked_folder
from .recorder import RunRecorder
from .run_tables import Records
from .stopping import NEVER, EarlyStopping

# Options of a strategy that a continued run may change.
FREE = {name for name, option in OPTIONS.items() if option.marks & {Mark.FREE, Mark.LIMIT}}


class RunFolder:
    """A folder with the records of a run, from which the run continues if its process was lost.

    It has the same files as the run folder of Fairbloom's own app: a row per round, a row per
    client, the last checkpoints, the best and the final model. `fairbloom show` and
    `fairbloom.load` read it.

    Parameters
    ----------
    path
        The folder; made if it is not there. A relative path begins at the process's current
        directory.
    score
        The score that fairness is measured in: the name of a metric that clients reply when they
        evaluate, or a Score, which declares whether lower is better and whether the score is a
        share, shown in percent. A plain name must be a known one, such as accuracy, AUC, F1, R²,
        loss, RMSE or a scorer of scikit-learn; words such as `eval` may stand before it, and `neg`
        turns its direction round. In a list, fairness is measured in the first score; the others
        are in clients.csv, too. The default is `accuracy`.
    loss
        The name of the metric that is the loss on the test examples, `loss` by default.
    best_model
        The metric of validation examples that clients reply when they evaluate, as a name or a
        Score: the best model is that of the round with its best mean. By default the first score
        chooses it.
    early_stopping
        Number of rounds without a better mean of `best_model` that end the run as finished; 0 never
        ends it early. A finished run with a larger number continues. `early-stopping` of the run
        config sets it, too, if `from_config` makes the strategy.
    best_by
        Whether the best model and early stopping go by the mean over the clients or by that of the
        worst 10 %: "mean" or "worst-10". `best-model` of the run config sets it, too.
    seeds
        What the app's seed does to the clients' data: "draw", each seed has other clients, or
        "split", it splits the data of the same clients. "": unknown.
    wait
        Whether to wait, for up to a minute, for another process that writes the same folder.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        score: str | Score | Sequence[str | Score] = ACCURACY,
        loss: str = "",
        best_model: str | Score = "",
        early_stopping: int = 0,
        best_by: str = "mean",
        seeds: str = "",
        wait: bool = True,
    ) -> None:
        self.path = Path(path).absolute()
        self.scores = scores_in([score] if isinstance(score, str | Score) else score, loss)
        self.loss = loss
        self.early_stopping = whole(0, early_stopping=early_stopping)
        self.best_by = one_of(("mean", "worst-10"), best_by=best_by)
        self.seeds = one_of(("", *SEEDS), seeds=seeds)
        # The metric that chooses the best model and stops the run early; None: the first score.
        self.validation = find_validation(best_model, self.scores, loss) if best_model else None
        self._wait = wait

    @property
    def score(self) -> Score:
        """The score that fairness is measured in."""
        return self.scores[0]

    def start(
        self,
        strategy: Strategy,
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
    ) -> Result:
        """Run, continue or extend the strategy's run.

        Arguments and result are those of `FairStrategy.start`.

        The strategy is one of ours, or a wrapper around one, such as Flower's for differential
        privacy. An overridden `start` is called, and must call `super().start`; a loop of its own
        is refused.

        Replies are collected more often than every three seconds, and the run survives a restart of
        the SuperLink.

        All clients evaluate the last round's model, for any `fraction_evaluate` above 0.

        StopRun, raised by `on_round`, `evaluate_fn` or a hook, and True from `should_stop` end the
        run as finished after that round; more rounds extend it.

        The result has the metrics of all rounds, and the arrays after the last one. Those of rounds
        that another process ran are read from the folder, without lists. A finished run is not run
        again.

        Raises
        ------
        FairbloomError
            If the strategy is not a FairStrategy, its `start` has its own loop, the folder belongs
            to a run with another strategy, other options or other code of the strategy, or clients
            that evaluate do not reply the scores, the loss or `best_model`.
        """
        courier = courier_of(grid)
        with name_app_option("RunFolder(path)", at_once=courier.simulated):
            optional = {
                "train_config": train_config,
                "evaluate_config": evaluate_config,
                "evaluate_fn": evaluate_fn,
                "should_stop": should_stop,
            }
            arguments = {
                "grid": PollingGrid(courier),
                "initial_arrays": initial_arrays,
                "num_rounds": num_rounds,
                "timeout": timeout,
                **{name: value for name, value in optional.items() if value is not None},
            }
            return self._start(strategy, courier, arguments, on_round)

    def _start(
        self,
        strategy: Strategy,
        courier: Courier,
        arguments: dict[str, Any],
        on_round: Callable[[Round], None] | None,
    ) -> Result:
        """Start the run with these `arguments` for the strategy's own `start`."""
        inner = find_fair_strategy(strategy)
        early_stopping = int(inner.run_folder_options.get("early-stopping", self.early_stopping))
        best_by = str(inner.run_folder_options.get("best-model", self.best_by))
        self._check_evaluation(inner, early_stopping)
        announce(self.path)
        measure = best_by.replace("-", "_")
        validation = self.validation and replace(self.validation, measure=measure)
        stopping = NEVER
        if validation and early_stopping:
            stopping = EarlyStopping(early_stopping, validation)
        with locked_folder(self.path, wait=self._wait):
            records = Records(
                config=self._collect_config(strategy, arguments, early_stopping, best_by),
                scores=self.scores,
                loss=self.loss or LOSS,
                app_metrics=True,
                validation=validation,
                best_by=measure,
                stopping=stopping,
                code=digest_own_code(
                    f"{cls.__module__}:{cls.__qualname__.partition('.')[0]}"
                    for layer in layers(strategy)
                    for cls in type(layer).__mro__
                ),
            )
            recorder = RunRecorder(self.path, inner, records)
            if recorder.finished:
                log_finished(self.path)
                return complete_result(Result(arrays=record_of(MODEL.read(self.path))), self.path)
            EXAMPLES.write(self.path, {**EXAMPLES.read(self.path), "seeds": self.seeds})
            log.info("run folder: %s", self.path)
            contexts = KeptContexts(self.path, courier)
            state = self._resume(recorder, inner, contexts, arguments)
            if recorder.stopped:  # the process was lost between the last round and the final model
                arguments["num_rounds"] = recorder.saved
            named = [*filter(None, (self.loss, getattr(self.validation, "metric", "")))]
            courier.save(0)
            writer = RoundWriter(
                recorder, self.scores, named, on_round, before=contexts.save, after=courier.save
            )
            if "evaluate_fn" in arguments:
                arguments["evaluate_fn"] = writer.watch(arguments["evaluate_fn"])
            recording = Recording(
                strategy,
                writer,
                state,
                None if state is None else arguments["initial_arrays"],
                (*self.scores, Score(self.loss or LOSS, higher_is_better=False)),
                self._describe(recorder, courier, in_process=bool(contexts)),
                loses_states=not (contexts or courier.keeps_replies),
            )
            inner.record_by(recording)
            if type(strategy).start in (FairStrategy.start, Strategy.start):
                recorder.begin()
                result = FairStrategy.start(inner, **arguments)
            else:
                result = strategy.start(**arguments)
            if recording.result is None:
                raise LoopOfOwnError(strategy)
            recorder.stopped = recording.stopped or recorder.stopped
            recorder.finish(
                {name: array.numpy() for name, array in recording.result.arrays.items()}
            )
            if state is not None:
                result = complete_result(result, self.path)
        return result

    def _resume(
        self,
        recorder: RunRecorder,
        inner: FairStrategy,
        contexts: KeptContexts,
        arguments: dict[str, Any],
    ) -> Mapping[str, Any] | None:
        """Return the state of a run that continues, with its model among the arguments; or None."""
        continued = recorder.resume()
        if continued is None:
            return None
        contexts.load(recorder.saved)
        arrays, state = continued
        arguments["initial_arrays"] = record_of(arrays)
        with explain_other_state(CHECKPOINTS.path_in(self.path)):
            inner.load_state_dict(state)
        return state

    def _collect_config(
        self, strategy: Strategy, arguments: Mapping[str, Any], early_stopping: int, best_by: str
    ) -> dict[str, Any]:
        """Return what identifies the run, as in config.toml."""
        given = {
            f"train.{key}": value
            for key, value in (arguments.get("train_config") or {}).items()
            if isinstance(value, bool | int | float | str)
        }
        config = {"num-rounds": arguments["num_rounds"], **collect_options(strategy), **given}
        if early_stopping or "early-stopping" in CONFIG.read(self.path).settings:
            config["early-stopping"] = early_stopping  # 0 extends a run that stopped early
        optional = {
            "loss": self.loss,
            "best-model": text_if(best_by != "mean", best_by),
            "validation-metric": getattr(self.validation, "metric", ""),
        }
        return config | {key: value for key, value in optional.items() if value}

    def _describe(
        self, recorder: RunRecorder, courier: Courier, *, in_process: bool
    ) -> Mapping[str, str]:
        """Return the keys of messages by which clients elsewhere keep the states of contexts."""
        if in_process or not recorder.id:
            return {}
        if not courier.simulated:
            return {RUN_FOLDER: recorder.id}
        folder = CONTEXTS_FOLDER.path_in(self.path)
        folder.mkdir(exist_ok=True)
        return {RUN_FOLDER: recorder.id, CONTEXTS: str(folder)}

    def _check_evaluation(self, strategy: FairStrategy, early_stopping: int) -> None:
        """Raise FairbloomError if clients never evaluate for `best_model` or early stopping."""
        if self.validation is None:
            if early_stopping:
                raise FairbloomError(
                    f"early_stopping = {early_stopping} uses a metric of validation examples: name"
                    " the one that your clients reply, as in RunFolder(path, best_model='val_acc')"
                )
            return
        if not strategy.fraction_evaluate:
            raise FairbloomError(
                f"best_model = {self.validation.metric!r} has no effect with fraction_evaluate = 0,"
                " as no client evaluates: raise fraction_evaluate, or leave best_model out"
            )
        if early_stopping and not strategy.evaluate_every:
            raise FairbloomError(
                f"early_stopping = {early_stopping} has no effect with evaluate_every = 0,"
                " which evaluates the last round only: set evaluate_every, as in 1"
            )


class RoundWriter:
    """Writes each finished round into a run folder, then hands it on.

    `named` are the metrics besides the scores that clients must reply. `before` and `after` are
    called with the round's number around the writing. It raises StopRun when the run is to stop
    early.
    """

    def __init__(
        self,
        recorder: RunRecorder,
        scores: Sequence[Score],
        named: Sequence[str],
        on_round: Callable[[Round], None] | None,
        *,
        before: Callable[[int], None],
        after: Callable[[int], None],
    ) -> None:
        self._before = before
        self._after = after
        self._recorder = recorder
        self._scores = scores
        self._on_round = on_round
        self._unseen = [] if recorder.saved else [*(score.name for score in scores), *named]
        self._central: dict[int, MetricRecord] = {}
        self._started = time.perf_counter()

    def __call__(self, finished: Round) -> None:
        """Write the round; raise FairbloomError if no evaluation has a metric that is needed."""
        reported = sorted(
            {metric for metrics in finished.evaluations.values() for metric in metrics}
        )
        if finished.evaluations and (
            missing := [name for name in self._unseen if name not in reported]
        ):
            use = "which is named"
            if missing[0] == self._scores[0].name:
                use = "in which fairness is to be measured"
            if (value := finished.not_finite.get(missing[0])) is not None:
                what = "NaN" if math.isnan(value) else "infinite"
                raise FairbloomError(
                    f"{missing[0]!r}, {use}, is {what} at all clients: correct the evaluate handler"
                    " of the client app, or name another metric"
                )
            raise FairbloomError(
                f"clients that evaluate reply {one_line(', '.join(reported)) or 'no metric'}, and"
                f" not {missing[0]!r}, {use}: name one of those, as in RunFolder(path,"
                " score=Score('eval_acc', percent=True), loss='eval_loss')"
            )
        if reported:
            self._unseen = []  # checked once: a metric that is missing later does not end the run
        if not finished.server_metrics and finished.number in self._central:
            finished = replace(finished, server_metrics=dict(self._central[finished.number]))
        serves = self._recorder.method.serves
        recorded = finished
        if self._recorder.method.personal_parameters:  # each client evaluates with its own
            serves = PERSONAL
            scores = {score.name for score in self._scores}
            recorded = replace(
                finished,
                evaluations={
                    client: {
                        f"{name}-{PERSONAL}" if name in scores else name: value
                        for name, value in metrics.items()
                    }
                    for client, metrics in finished.evaluations.items()
                },
            )
        if finished.number == 1 and 0 in self._central:
            self._recorder.record_initial(self._central[0])
        self._central = {}
        self._before(finished.number)
        row = self._recorder.record(recorded, seconds=time.perf_counter() - self._started)
        self._after(finished.number)
        log.info(
            "round %d is recorded%s", finished.number, summarize_row(row, self._scores[0], serves)
        )
        if self._on_round is not None:
            self._on_round(finished)
        if self._recorder.stopped:
            raise StopRun(self._recorder.stopped)
        self._started = time.perf_counter()

    def watch(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """Return the user's function, wrapped to keep its metrics."""

        def watched(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            try:
                metrics = evaluate_fn(number, arrays)
            except StopRun as stop:
                if stop.metrics is not None:
                    self._central[number] = MetricRecord({**stop.metrics})
                raise
            if metrics is not None:
                self._central[number] = metrics
            return metrics

        return watched


def complete_result(result: Result, path: Path) -> Result:
    """Return a result with the metrics of a run folder's other rounds."""
    tables = {
        "train": result.train_metrics_clientapp,
        "evaluate": result.evaluate_metrics_clientapp,
        "server": result.evaluate_metrics_serverapp,
    }
    recorded: dict[str, dict[int, dict[str, int | float]]] = {phase: {} for phase in tables}
    rows = METRICS.read(path)
    with explain_read_errors(METRICS.path_in(path), "Restore it from a copy"):
        for row in rows:
            if not row["client"]:
                value = row["value"]
                metrics = recorded[row["phase"]].setdefault(int(row["round"]), {})
                is_whole = value.lstrip("-").isdecimal()
                metrics[row["metric"]] = int(value) if is_whole else float(value)
    for phase, table in tables.items():
        earlier = {number: MetricRecord({**each}) for number, each in recorded[phase].items()}
        tables[phase] = dict(sorted((earlier | table).items()))
    return Result(
        arrays=result.arrays,
        train_metrics_clientapp=tables["train"],
        evaluate_metrics_clientapp=tables["evaluate"],
        evaluate_metrics_serverapp=tables["server"],
    )


def find_fair_strategy(strategy: Strategy) -> FairStrategy:
    """Return the FairStrategy that this strategy is or wraps; raise FairbloomError for others."""
    innermost = layers(strategy)[-1] if isinstance(strategy, Strategy) else strategy
    if not isinstance(innermost, FairStrategy):
        around = text_if(innermost is not strategy, f" inside {type(strategy).__name__}")
        raise FairbloomError(
            f"strategy is Flower's {type(innermost).__name__}{around}, which reports nothing of"
            " single clients: take the one of fairbloom.strategies, which has FedAvg too"
        )
    return innermost


def score_called(name: str, loss: str) -> Score:
    """Return the score that a name means; `loss` is the name of the loss.

    Raise FairbloomError if the name does not show whether higher or lower is better.
    """
    if name == ACCURACY.name:
        return ACCURACY  # in percent
    higher_is_better = find_direction(name)
    if higher_is_better is not None or name == loss:
        return Score(name, higher_is_better=bool(higher_is_better))
    raise FairbloomError(
        f"the name {name!r} does not say whether higher is better: write Score({name!r},"
        " higher_is_better=True), or False"
    )


def find_validation(best_model: str | Score, scores: Sequence[Score], loss: str) -> Validation:
    """Return the metric that chooses the best model; a name may be that of one of the scores."""
    known = {score.name: score for score in scores}
    if isinstance(best_model, str):
        best_model = known.get(best_model) or score_called(best_model, loss)
    return Validation(best_model, best_model.name)


def scores_in(given: Sequence[str | Score], loss: str = "") -> tuple[Score, ...]:
    """Return scores that are given by their names or as Score.

    Raise FairbloomError if there are none, or two of them have the same column.
    """
    scores = tuple(each if isinstance(each, Score) else score_called(each, loss) for each in given)
    columns = [score.column() for score in scores]
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise FairbloomError(
            f"score names two metrics of the column {twice[0]}: rename one of them in your client"
        )
    if not scores:
        raise FairbloomError(
            "score = []: name the metric that fairness is measured in, as in score='eval_acc'"
        )
    return scores


def collect_options(strategy: Strategy) -> dict[str, Value]:
    """Return a strategy's identity: class, parameters, options, and wrappers from outside in."""
    *wrappers, _ = layers(strategy)
    inner = find_fair_strategy(strategy)
    # Recorded are the parameters of its constructor and its bases' (without object's), and the
    # common options.
    signatures = [
        inspect.signature(vars(each)["__init__"])
        for each in type(inner).__mro__
        if "__init__" in vars(each)
    ]
    own = set(OPTIONS).union(*(signature.parameters for signature in signatures[:-1]))
    named = {
        name.replace("_", "-"): value
        for name, value in plain_values(inner).items()
        if name in own and name not in FREE
    }
    around = []
    for wrapper in wrappers:
        values = [f"{name}={value!r}" for name, value in plain_values(wrapper).items()]
        around.append(f"{type(wrapper).__name__}({', '.join(values)})")
    options = inner.server_optimizer.options() if inner.server_optimizer else {}
    return {
        "method": inner.recorded_name,
        **named,
        "training-clients": ",".join(inner.training_clients),
        **{name.replace("_", "-"): value for name, value in options.items()},
        **({"wrapped-in": ", ".join(around)} if around else {}),
    }
