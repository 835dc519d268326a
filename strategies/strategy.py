"""The round as Flower sees it: the one file of this package that knows Flower.

A method is a subclass with a `weigh`. Sampling by client name, screening of replies, flat updates, the step and the
memory of old updates are here, once for all methods.
"""

import copy
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict, Unpack

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from .cohort import Cohort, FloatArray, Kept
from .ranges import at_least, one_of, whole, within
from .roster import Roster, sample, share
from .round import Exchange, Round, decides, expired
from .screening import (
    check_counts,
    out_of_proportion,
    usable_arrays,
    usable_evaluation,
    usable_metrics,
    usable_snapshot,
    view,
)
from .updates import Arrays, Layout, Row, Updates, combine, gram_matrix, squared_norms

log = logging.getLogger("flwr").getChild("fairbloom")

WAIT_SECONDS = 0.5
"""How often the roster is looked at again while too few clients are online."""


class CommonOptions(TypedDict, total=False):
    """What every method takes beside its own parameters; see FairStrategy."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    evaluate_every: int
    seed: int
    proximal_mu: float
    personal_lambda: float
    max_growth: float
    loss_limit: float
    enrolled_sizes: Mapping[str, int]
    buffers: Sequence[str]
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str


class Options(CommonOptions, total=False):
    """What every method takes that has a prior."""

    weighting: str | None


class FairStrategy(Strategy):
    """A federated method that maps a cohort of updates to one coefficient per update.

    Subclasses implement `weigh`; they name the metrics they need in `needs`, their prior in `default_weighting`
    (None: the method has none), and what they keep between rounds in `remember` and `memory`.

    Parameters
    ----------
    fraction_train : float in (0, 1], default 1.0
        Share of the clients online that train in a round: ⌈fraction · N⌉, counted exactly.
    fraction_evaluate : float in [0, 1], default 1.0
        The same for evaluation; 0 switches it off.
    min_train_nodes : int at least 1, default 1
        Fewest clients to draw for training.
    min_evaluate_nodes : int at least 0, default 1
        Fewest clients to draw for evaluation.
    min_available_nodes : int at least 1, default 1
        Clients to wait for before a round starts.
    evaluate_every : int at least 0, default 1
        Clients evaluate after every so many rounds and after the last; 0: only after the last.
    seed : int at least 0, default 0
        Clients are drawn by name from (seed, round) alone.
    weighting : examples or uniform
        The prior p_k: n_k / Σ n or 1/m. Methods without a prior refuse it.
    proximal_mu : float at least 0, default 0.0
        Clients add (mu/2)‖x − w‖² to their loss.
    personal_lambda : float at least 0, default 0.0
        Above 0, clients also train a personal model that is pulled to w with this strength.
    max_growth : float in [1, inf], default 10.0
        A reply is refused whose num-examples (or what `weighted_by_key` names) is more than so many times that of the
        client's first usable reply in this run. It may shrink.
    loss_limit : float in [1, inf], default 1000.0
        A reply is refused with a needed loss whose absolute value is more than so many times the larger of 1 and the
        lower median of the round's otherwise usable replies. The limit is wide, because a badly served client does
        have a high loss; and it refuses, because a liar whose loss is capped keeps the most weight that there is.
        Where a method needs the learning rate, one that is so many times off the median of three or more is refused.
    enrolled_sizes : mapping of client names to int at least 1, default none
        A reply is refused whose num-examples is more than the client's entry here; one without an entry is not
        bound by this.
    buffers : names of float arrays, default none
        BatchNorm statistics: averaged by p_k and no part of the update.
    weighted_by_key, arrayrecord_key, configrecord_key : str
        As in Flower's FedAvg, with its defaults.

    Raises
    ------
    ValueError
        When a parameter is outside its range.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    default_weighting: ClassVar[str | None] = "examples"
    own_terms: ClassVar[frozenset[str]] = frozenset()
    """Common options that the method sets by a parameter of its own and therefore refuses."""
    reports: ClassVar[tuple[str, ...]] = ()
    """The names of the method's own metrics."""
    exact_gram: ClassVar[bool] = False
    """Whether inner products must be float64 however large the work."""
    snapshots: ClassVar[bool] = False
    """Whether each client also replies its model in the midst of its local work, as the ArrayRecord `snapshot`."""

    def __init__(self, **options: Unpack[Options]) -> None:
        for name in options:
            if name not in Options.__optional_keys__:
                raise TypeError(f"{type(self).__name__} takes no parameter {name!r}")
            if name in self.own_terms:
                raise ValueError(f"{type(self).__name__} sets {name} by its own parameter, got {options.get(name)!r}")
        self.fraction_train = within("(0, 1]", fraction_train=options.get("fraction_train", 1.0))
        self.fraction_evaluate = within("[0, 1]", fraction_evaluate=options.get("fraction_evaluate", 1.0))
        self.min_train_nodes = whole(1, min_train_nodes=options.get("min_train_nodes", 1))
        self.min_evaluate_nodes = whole(0, min_evaluate_nodes=options.get("min_evaluate_nodes", 1))
        self.min_available_nodes = whole(1, min_available_nodes=options.get("min_available_nodes", 1))
        self.evaluate_every = whole(0, evaluate_every=options.get("evaluate_every", 1))
        self.seed = whole(0, seed=options.get("seed", 0))
        self.weighting = self._checked_weighting(options.get("weighting"))
        self.proximal_mu = at_least(0.0, proximal_mu=options.get("proximal_mu", 0.0))
        self.personal_lambda = at_least(0.0, personal_lambda=options.get("personal_lambda", 0.0))
        self.max_growth = within("[1, inf]", max_growth=options.get("max_growth", 10.0))
        self.loss_limit = within("[1, inf]", loss_limit=options.get("loss_limit", 1000.0))
        self.enrolled_sizes = {
            name: whole(1, **{f"enrolled_sizes[{name!r}]": size})
            for name, size in options.get("enrolled_sizes", {}).items()
        }
        self.buffers = tuple(options.get("buffers", ()))
        self.weighted_by_key = options.get("weighted_by_key", "num-examples")
        self.arrayrecord_key = options.get("arrayrecord_key", "arrays")
        self.configrecord_key = options.get("configrecord_key", "config")

        self.memory: dict[str, Any] = {}
        """The method's memory beside old updates: str, numbers, None, NumPy arrays, lists and dicts only."""
        self._rows: dict[Kept, Row] = {}
        self._first_counts: dict[str, float] = {}
        self._finished_rounds = 0
        self._num_rounds: int | None = None
        self._timeout: float | None = None
        self._roster = Roster()
        self._layout = Layout({})
        self._train, self._second, self._evaluate = Exchange(), Exchange(), Exchange()
        self._draws: Counter[str] = Counter()
        self._snapshots: dict[str, Arrays] = {}
        self._grid: Grid | None = None
        self._coefficients: dict[str, float] = {}
        self._decided_by = ""

    def _checked_weighting(self, weighting: str | None) -> str:
        if self.default_weighting is None and weighting is not None:
            raise ValueError(f"{type(self).__name__} has no prior: leave weighting out, got {weighting!r}")
        return one_of(("examples", "uniform"), weighting=weighting or self.default_weighting or "uniform")

    # What a method says ---------------------------------------------------------------------------------------------

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the coefficients c: one per update, then one per kept row, shape (m + r,). Changes nothing."""
        raise NotImplementedError

    def remember(self, cohort: Cohort, coefficients: FloatArray) -> Mapping[Kept, FloatArray]:
        """Update `memory` after the step; return the rows to keep, each as a combination of shape (m + r,)."""
        return {}

    def recalls(self, kept: Kept, names: Collection[str]) -> bool:
        """Return whether `weigh` needs a kept row in a round with the replies of `names`; others are dropped."""
        return True

    def own_metrics(self, cohort: Cohort, coefficients: FloatArray) -> dict[str, float]:
        """Return the method's own metrics of the round."""
        return {}

    def objective(self, server_round: int) -> dict[str, bool | float | int | str]:
        """Return what the clients are told of their local work."""
        told: dict[str, bool | float | int | str] = {}
        if self.proximal_mu > 0.0:
            told["proximal-mu"] = self.proximal_mu
        if self.personal_lambda > 0.0:
            told |= {"personal-lambda": self.personal_lambda, "personal-epochs": 1}
        return told

    def choose(self, names: Collection[str], wanted: int, server_round: int) -> list[str]:
        """Draw the clients that train, of those that are free; a name may come more than once."""
        return sample(names, wanted, self.seed, "train", server_round)

    # State ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the last finished round, the method's memory and each client's first count.

        It is made of str, numbers, None, arrays, lists and dicts only.
        """
        rows = [
            {"key": kept.key, "round": kept.round, "scale": row.scale, "values": row.values.copy()}
            for kept, row in self._rows.items()
        ]
        return {
            "method": type(self).__name__,
            "round": self._finished_rounds,
            "rows": rows,
            "memory": copy.deepcopy(self.memory),
            "first-counts": dict(self._first_counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned; one of an older version has no first counts.

        Raises
        ------
        ValueError
            When the state is another method's.
        """
        if state["method"] != type(self).__name__:
            raise ValueError(f"the state is of {state['method']}, not of {type(self).__name__}")
        self._finished_rounds = whole(0, round=state["round"])
        self._rows = {Kept(row["key"], row["round"]): Row(row["values"], row["scale"]) for row in state["rows"]}
        self.memory = copy.deepcopy(state["memory"])
        self._first_counts = dict(state.get("first-counts", {}))

    # The run --------------------------------------------------------------------------------------------------------

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
        """
        self._finished_rounds, self._rows, self.memory, self._roster = 0, {}, {}, Roster()
        self._first_counts = {}
        self._num_rounds, self._timeout = whole(0, num_rounds=num_rounds), timeout
        if resume is not None:
            self.load_state_dict(resume)
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        self.summary()
        result = Result(arrays=initial_arrays)
        if evaluate_fn and self._finished_rounds == 0 and (central := evaluate_fn(0, initial_arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = central
        for number in range(self._finished_rounds + 1, num_rounds + 1):
            messages = self.configure_train(number, result.arrays, train_config, grid)
            arrays, trained = self.aggregate_train(number, self._deliver(grid, messages))
            result.arrays = result.arrays if arrays is None else arrays
            messages = self.configure_evaluate(number, result.arrays, evaluate_config, grid)
            evaluated = self.aggregate_evaluate(number, self._deliver(grid, messages))
            if trained is not None:
                result.train_metrics_clientapp[number] = trained
            if evaluated is not None:
                result.evaluate_metrics_clientapp[number] = evaluated
            if evaluate_fn and (central := evaluate_fn(number, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[number] = central
            if on_round is not None:
                on_round(self._as_round(number, result.arrays, trained or MetricRecord()))
        return result

    def summary(self) -> None:
        """Log the method with its options."""
        shown = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "memory"}
        log.info("%s(%s)", type(self).__name__, ", ".join(f"{k}={v!r}" for k, v in shown.items()))

    def _deliver(self, grid: Grid, messages: Iterable[Message]) -> list[Message]:
        messages = list(messages)
        return list(grid.send_and_receive(messages, timeout=self._timeout)) if messages else []

    def _as_round(self, number: int, arrays: ArrayRecord, metrics: MetricRecord) -> Round:
        train, evaluate = self._train, self._evaluate
        reasons = {name: list(train_reasons) for name, train_reasons in train.refused.items()}
        for name, more in evaluate.refused.items():
            reasons.setdefault(name, []).extend(f"evaluation: {reason}" for reason in more)
        size = sum(len(array.data) for array in arrays.values())
        return Round(
            number=number,
            participants=tuple(sorted(train.messages)),
            refused={name: "; ".join(given) for name, given in sorted(reasons.items())},
            missing=tuple(train.missing),
            coefficients=self._coefficients,
            decided_by=self._decided_by,
            arrays=arrays,
            metrics=dict(metrics),
            train_metrics=train.metrics,
            evaluations=evaluate.metrics,
            bytes_sent=size * (len(train.messages) + len(self._second.messages) + len(evaluate.messages)),
            bytes_received=size * len(train.metrics) * (2 if self.snapshots else 1),
        )

    # One round, as Flower's hooks -----------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients from (seed, round) and write a message to each."""
        self._grid, self._layout = grid, Layout({n: view(a) for n, a in arrays.items()}, self.buffers)
        self._train, self._second, self._evaluate = (Exchange(server_round) for _ in range(3))
        self._coefficients, self._decided_by = {}, ""
        free = self._free(grid, self.min_train_nodes)
        wanted = share(self.fraction_train, len(free), self.min_train_nodes)
        self._draws = Counter(self.choose(free, wanted, server_round) if free else [])
        asked = config.get("measure")
        measure = sorted(self.needs.union(map(str, asked if isinstance(asked, list) else [])))
        told = {**config, **self.objective(server_round), "server-round": server_round, "measure": measure}
        for name in sorted(self._draws):
            self._train.messages[name] = self._message(MessageType.TRAIN, self.online[name], arrays, told)
        return list(self._train.messages.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Screen the replies, weigh the updates and take the step; no arrays (the model stays) in a skipped round."""
        contents = self._train.sort(replies, self._roster.online)
        updates = Updates(self._layout, capacity=len(contents))
        self._snapshots = {}
        for name, content in contents:
            try:
                metrics = usable_metrics(content, self.weighted_by_key, self.needs)
                check_counts(
                    metrics,
                    self.weighted_by_key,
                    enrolled=self.enrolled_sizes.get(name, math.inf),
                    first=self._first_counts.get(name, math.inf),
                    max_growth=self.max_growth,
                )
                snapshot = usable_snapshot(content, self._layout) if self.snapshots else {}
                updates.add(usable_arrays(content, self.arrayrecord_key, self._layout))
                self._train.metrics[name], self._snapshots[name] = metrics, snapshot
            except ValueError as reason:
                self._train.refuse(name, str(reason))
        for name, why in out_of_proportion(self._train.metrics, self.needs, self.loss_limit).items():
            updates.remove(list(self._train.metrics).index(name))
            del self._train.metrics[name], self._snapshots[name]
            self._train.refuse(name, why)
        self._first_counts = {n: m[self.weighted_by_key] for n, m in self._train.metrics.items()} | self._first_counts
        self._note_debts(self._train)
        self._finished_rounds = server_round
        arrays, own = self._step(server_round, updates) if self._train.metrics else (None, {})
        if arrays is None:
            log.warning("round %d is skipped: the model stays as it is", server_round)
        return arrays, self._summed_up(self._train, own)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients that evaluate, where the round is evaluated, and write a message to each."""
        self._evaluate = Exchange(server_round)
        last = server_round == self._num_rounds
        due = last or (self.evaluate_every > 0 and server_round % self.evaluate_every == 0)
        if self.fraction_evaluate == 0.0 or not due:
            return []
        personal = {key: value for key, value in self.objective(server_round).items() if key == "personal-lambda"}
        told = {**config, **personal, "server-round": server_round}
        plain = {key: value for key, value in told.items() if key != "measure"}
        free = self._free(grid, self.min_evaluate_nodes)
        wanted = share(self.fraction_evaluate, len(free), self.min_evaluate_nodes)
        for name in sample(free, wanted, self.seed, "evaluate", server_round):
            config_of = told if name in self._train.metrics else plain
            message = self._message(MessageType.EVALUATE, self.online[name], arrays, config_of)
            self._evaluate.messages[name] = message
        return list(self._evaluate.messages.values())

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Keep every client's row; return the means weighted by examples, None where no client was asked."""
        for name, content in self._evaluate.sort(replies, self._roster.online):
            try:
                self._evaluate.metrics[name] = usable_evaluation(content, self.weighted_by_key)
            except ValueError as reason:
                self._evaluate.refuse(name, str(reason))
        self._note_debts(self._evaluate)
        return self._summed_up(self._evaluate, {}) if self._evaluate.messages else None

    def _step(self, server_round: int, updates: Updates) -> tuple[ArrayRecord | None, dict[str, float]]:
        """Return the model after the round, None where it would not be finite, and the method's own metrics."""
        names = tuple(self._train.metrics)
        memory = {kept: row for kept, row in self._rows.items() if self.recalls(kept, names)}
        rows = [*updates.rows, *memory.values()]
        counts = np.array([m[self.weighted_by_key] for m in self._train.metrics.values()], np.float64)
        prior = counts / counts.sum() if self.weighting == "examples" else np.full(len(names), 1.0 / len(names))
        cohort = Cohort(
            round=server_round,
            num_rounds=self._num_rounds,
            names=names,
            counts=counts,
            prior=prior,
            draws=np.array([self._draws[name] for name in names], np.float64),
            metrics={key: np.array([m[key] for m in self._train.metrics.values()], np.float64) for key in self.needs},
            memory=tuple(memory),
            gram_of=lambda: gram_matrix(rows, exact=self.exact_gram),
            squared_norms_of=lambda: squared_norms(updates.rows),
        )
        coefficients = self.weigh(cohort)
        try:
            after = updates.model_after(coefficients, rows, prior, counts)
        except ValueError as reason:
            log.warning("no step in round %d: %s", server_round, reason)
            return None, {}
        self._rows = {kept: combine(mix, rows) for kept, mix in self.remember(cohort, coefficients).items()}
        self._coefficients = dict(zip(names, map(float, coefficients[: len(names)]), strict=True))
        self._decided_by, part = decides(self._coefficients)
        if self._decided_by:
            words = f"client %s decides round %d: {100.0 * part:.0f} %% of all coefficients"
            about = {"client": self._decided_by, "round": server_round}
            log.warning(words, self._decided_by, server_round, extra=about)
        own = self.own_metrics(cohort, coefficients)
        return ArrayRecord({name: Array(array) for name, array in after.items()}), own

    def _summed_up(self, exchange: Exchange, own: Mapping[str, float]) -> MetricRecord:
        """Return the means of what the used replies report, how many replies there were, and the method's own."""
        numbers = {
            "participants": len(exchange.messages),
            "replies-used": len(exchange.metrics),
            "replies-refused": sum(map(len, exchange.refused.values())),
            "replies-missing": len(exchange.missing),
        }
        return MetricRecord({**exchange.means(self.weighted_by_key), **numbers, **own})

    # Messages and roster --------------------------------------------------------------------------------------------

    def losses_at_snapshot(self, cohort: Cohort, coefficients: FloatArray) -> dict[str, float]:
        """Average the snapshots by `coefficients`; return the loss there of a uniform sample of as many clients.

        This is a second exchange within the round; a client whose answer cannot be used is left out.
        """
        snapshots = Updates(self._layout, capacity=len(self._snapshots))
        for snapshot in self._snapshots.values():
            snapshots.add(snapshot)
        mean = snapshots.model_after(coefficients, snapshots.rows, cohort.prior, cohort.counts)
        arrays = ArrayRecord({name: Array(array) for name, array in mean.items()})
        told = {"server-round": cohort.round, "measure": ["train-loss"]}
        wanted = min(sum(self._draws.values()), len(self._roster.free))
        self._second = asked = Exchange(cohort.round)
        for name in sample(self._roster.free, wanted, self.seed, "losses", cohort.round):
            asked.messages[name] = self._message(MessageType.EVALUATE, self.online[name], arrays, told)
        if self._grid is None:
            raise RuntimeError("configure_train has not been called")
        for name, content in asked.sort(self._deliver(self._grid, asked.messages.values()), self.online):
            try:
                asked.metrics[name] = usable_metrics(content, self.weighted_by_key, {"train-loss"})
            except ValueError as reason:
                asked.refuse(name, str(reason))
        for name, why in out_of_proportion(asked.metrics, {"train-loss"}, self.loss_limit).items():
            del asked.metrics[name]
            asked.refuse(name, why)
        for name, reasons in asked.refused.items():
            self._train.refused.setdefault(name, []).extend(f"loss at the snapshot: {reason}" for reason in reasons)
        self._note_debts(asked)
        return {name: metrics["train-loss"] for name, metrics in asked.metrics.items()}

    def _message(self, message_type: str, node_id: int, arrays: ArrayRecord, told: Mapping[str, Any]) -> Message:
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: ConfigRecord(dict(told))})
        return Message(content, dst_node_id=node_id, message_type=message_type, ttl=self._timeout)

    @property
    def online(self) -> Mapping[str, int]:
        """The node of each client that is online, by name."""
        return self._roster.online

    def _free(self, grid: Grid, minimum: int) -> list[str]:
        """Wait for enough clients; return those that owe no reply, in the order of names."""
        if not self._wait_for_clients(grid, max(self.min_available_nodes, minimum)):
            return []
        if self._roster.debts:
            try:
                late = grid.pull_messages(self._roster.debts)
            except NotImplementedError:  # a grid that answers by send_and_receive alone
                late = []
            self._roster.settle(reply.metadata.reply_to_message_id for reply in late)
        return self._roster.free

    def _wait_for_clients(self, grid: Grid, minimum: int) -> bool:
        """Refresh the roster until `minimum` clients are online; return whether they came before the deadline."""
        deadline = time.monotonic() + (math.inf if self._timeout is None else self._timeout)
        self._roster.refresh(_online(grid), lambda nodes: self._ask_names(grid, nodes))
        while (online := len(self._roster.online)) < minimum:
            if time.monotonic() >= deadline:
                return False
            log.info("waiting for clients: %d of %d are online", online, minimum)
            time.sleep(WAIT_SECONDS)
            self._roster.refresh(_online(grid), lambda nodes: self._ask_names(grid, nodes))
        return True

    def _ask_names(self, grid: Grid, node_ids: list[int]) -> dict[int, str]:
        """Ask new nodes for their client name; one that answers with an error, or without, is named by its node id."""
        asked = Exchange()
        for node_id in node_ids:
            message = Message(RecordDict(), dst_node_id=node_id, message_type=MessageType.QUERY, ttl=self._timeout)
            asked.messages[str(node_id)] = message
        names = {}
        replies = self._deliver(grid, asked.messages.values())
        sender = asked.senders()
        for reply in replies:
            node = sender(reply)
            if node is not None and node not in names and not expired(reply):
                client = reply.content.config_records.get("client") if reply.has_content() else None
                names[node] = str(client["name"]) if client and client.get("name") else node
        asked.answered = set(names)
        self._note_debts(asked)
        return {int(node): name for node, name in names.items()}

    def _note_debts(self, exchange: Exchange) -> None:
        for name in exchange.missing:
            asked = exchange.messages[name].metadata
            if asked.message_id:
                self._roster.owe(asked.message_id, asked.dst_node_id)
        self._roster.settle(exchange.strays)


def _online(grid: Grid) -> dict[int, str]:
    return {node.node_id: node.name for node in grid.get_nodes()}
