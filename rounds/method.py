"""A method: what it asks of the clients, and how it weighs their updates.

It knows neither Flower nor messages.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Unpack

from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import ARRAYS_DISPARITY, BETWEEN_GROUPS, SNAPSHOT
from fairbloom.protocol.terms import Terms

from . import compatibility
from .arrays import FloatArray as FloatArray
from .arrays import Model
from .average import Average
from .cohort import LARGEST_COEFFICIENT as LARGEST_COEFFICIENT
from .cohort import Cohort as Cohort
from .cohort import Kept as Kept
from .cohort import MethodError as MethodError
from .cohort import Probed as Probed
from .compatibility import REQUIREMENTS
from .defences import NONE, WEIGHING, Defence
from .layout import Layout
from .options import OPTIONS, checking
from .options import Options as Options
from .progress import SERVER_OPTIMIZER, NormHistory, Progress
from .ranges import names_in, one_of, pairs_in, whole
from .sampling import sample
from .server_optimizer import AVGM, LR, ServerOptimizer, moments_of, state_of
from .states import States
from .vectors import Vectors

WEIGHTS_PAIR = ("fixed_weights", "weigh")
"""What says whether weights are the prior, and what computes them."""

NEGATIVE_WEIGHTS = "negative-weights"
"""A method that declares this in `reports` reports how many of its coefficients are negative."""


class DeclarationError(FairbloomError, TypeError):
    """A class of a method declares what no method knows; the message names class and attribute."""


class Method:
    """A federated method: it maps a cohort of updates to one coefficient per update.

    Subclasses implement `weigh`; they name the metrics they need in `needs`, their prior in
    `default_weighting` (None: the method has none), and what they keep between rounds in `remember`
    and `memory`.

    Parameters
    ----------
    fraction_train
        Share of the clients online that train in a round: ⌈fraction · N⌉, counted exactly.
    fraction_evaluate
        The same for evaluation; 0 switches it off.
    min_train_nodes
        Fewest clients to draw for training.
    min_evaluate_nodes
        Fewest clients to draw for evaluation.
    min_available_nodes
        Clients to wait for before a round starts.
    evaluate_every
        Clients evaluate each time this many rounds are over, and after the last; 0: only after the
        last.
    seed
        Clients are drawn by name from (seed, round) alone.
    weighting
        The prior p_k: n_k / Σ n or 1/m. Methods without a prior refuse it.
    proximal_mu
        Clients add (mu/2)‖x − w‖² to their loss.
    personal_lambda
        Above 0, clients also train a personal model that is pulled to w with this strength.
    server_optimizer
        "avgm", "adagrad", "adam" or "yogi": the server takes the method's step as a gradient, and
        steps by momentum or adaptively, as `rounds.server_optimizer` has it. A skipped round, or a
        method that takes no step, leaves its momentum as it is. "none": the method's step is taken.
    server_optimizer_lr : float above 0 or None, default None
        Its step size; None: 1 for "avgm". The others need one.
    server_optimizer_beta1
        Share of the momentum that is kept from round to round.
    server_optimizer_beta2
        Share of the mean squared step that "adam" and "yogi" keep.
    server_optimizer_tau
        What "adagrad", "adam" and "yogi" add to the root of the squared steps.
    control_variates
        Whether clients correct their steps by control variates, which they and the server keep, as
        in SCAFFOLD. Methods whose weights change from round to round refuse it: the correction
        presumes the weights that it was made with.
    client_rule : import string, default none
        Names a class of the user's, as my_module:MyRule, that corrects clients' local steps by what
        they keep between rounds. The run's setting of the same name must say the same.
    max_growth
        A reply is refused if its num-examples (or what `weighted_by_key` names) is more than this
        many times that of the client's first usable reply in this run. It may shrink.
    loss_limit
        A reply is refused if the absolute value of a needed loss is more than this many times the
        larger of 1 and the lower median of the round's otherwise usable replies. The limit is wide,
        because a badly served client does have a high loss; and it refuses, because a liar with a
        capped loss would keep the largest weight. The same limit applies to reported learning rates
        and their sums, relative to the median of at least three clients.
    update_limit
        A reply is refused if its update is longer than the received model and longer than this many
        times the usual length, which is r of `rounds.screening`, times the client's examples over
        the round's lower median of these (at least 1 and at most 1000). A step is not taken if it
        is longer than this many times the largest of the received model, the round's longest used
        update and the longest step so far. With a server optimizer, this applies to the method's
        step and not to the optimizer's, which follows from its step size. inf allows any.
    defence
        "clip" or "nnm": updates are changed before the method sees them; "krum", "trimmed-mean" or
        "geometric-median": FedAvg's weights are replaced. See `rounds.defences`. "none": neither.
    defence_tolerance
        How many hostile clients of a round the defence tolerates, less than half of them; 0: a
        quarter, and at least one.
    enrolled_sizes : mapping of client names to int at least 1, default none
        A reply is refused if its num-examples is more than the client's entry here; clients without
        an entry are not limited.
    unused_rounds
        The run stops with an error after this many rounds in a row without a step, because no reply
        could be used or each step was beyond the model's range; 0: it never does.
    training_clients : names, default none
        Only these train: clients are drawn among them alone, and fractions are shares of them. All
        clients evaluate. A round in which none of them is online is skipped. None: all train.
    average_models
        Whether the mean of the global models after each round up to now, which a skipped round
        leaves as it is, is evaluated and saved in place of the last one. Training goes on from the
        last one.
    buffers : names of float arrays or None, default None
        BatchNorm statistics: averaged by p_k and no part of the update. None: the float arrays
        whose names end in running_mean or running_var; an empty sequence: none.
    shared : mapping of names of arrays to names of arrays, default none
        Arrays that are the same parameter as another one (tied weights), which counts once.
    frozen : names of arrays, default none
        Parameters that no client trains: they stay as they are, and are no part of the update. A
        reply may leave them out, and is refused if it has other values of them.
    weighted_by_key, arrayrecord_key, configrecord_key
        As in Flower's FedAvg, with its defaults.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : function or None, default None
        As in Flower's FedAvg: called with the contents of the used replies, in the order of client
        names, and `weighted_by_key`. What it returns takes the place of the means; None: the means
        of what all replies report.

    Raises
    ------
    ValueError
        When a parameter is outside its range.
    """

    needs: frozenset[str] = frozenset()
    default_weighting: ClassVar[str | None] = "examples"
    own_terms: ClassVar[frozenset[str]] = frozenset()
    """Common options that the method sets by another parameter and therefore refuses."""
    lost_to_server_optimizers: ClassVar[str] = ""
    """What the method says of its step, and no longer holds where a server optimizer turns or
    stretches it."""
    serves: ClassVar[str] = "global"
    """The model that serves the clients: "global", or "personal" where the global one is not
    trained."""
    reports: ClassVar[tuple[str, ...]] = ()
    """The names of the metrics that the method itself reports."""
    requires: frozenset[str] = frozenset()
    """What it needs of a round: some of `compatibility.REQUIREMENTS`, which say what each means."""
    second: ClassVar[str] = ""
    """The name of the ArrayRecord with a second model that each reply has: "snapshot", the model in
    the midst of local work, of which `probe` makes one; or another, whose update is a row too. The
    rows are then m updates, the m second updates and the r kept ones, and `weigh` returns 2m + r
    numbers. The record holds at least the trainable arrays."""

    def __init__(self, **options: Unpack[Options]) -> None:
        for name in options:
            if name not in Options.__optional_keys__:
                raise TypeError(f"{type(self).__name__} takes no parameter {name!r}")
            if name in self.own_terms:
                raise ValueError(
                    f"{type(self).__name__} sets {name} by its own parameter, got"
                    f" {options.get(name)!r}"
                )
        plain: dict[str, Any] = {
            name: option.checked(options.get(name, option.default), called=name)
            for name, option in OPTIONS.items()
        }
        self.fraction_train: float = plain["fraction_train"]
        self.fraction_evaluate: float = plain["fraction_evaluate"]
        self.min_train_nodes: int = plain["min_train_nodes"]
        self.min_evaluate_nodes: int = plain["min_evaluate_nodes"]
        self.min_available_nodes: int = plain["min_available_nodes"]
        self.evaluate_every: int = plain["evaluate_every"]
        self.seed: int = plain["seed"]
        self.weighting = self._checked_weighting(options.get("weighting"))
        self.proximal_mu: float = plain["proximal_mu"]
        self.personal_lambda: float = plain["personal_lambda"]
        self.server_optimizer = ServerOptimizer.of({**plain, LR: options.get(LR)})
        if self.server_optimizer is not None and self.server_optimizer.name == AVGM:
            self.check_fit(compatibility.SERVER_MOMENTUM, "server_optimizer", AVGM)
        self.control_variates: bool = plain["control_variates"]
        if self.control_variates:
            self.check_fit(compatibility.CONTROL_VARIATES, "control_variates", True)
        self.client_rule: str = plain["client_rule"]
        self.max_growth: float = plain["max_growth"]
        self.loss_limit: float = plain["loss_limit"]
        self.update_limit: float = plain["update_limit"]
        self.defence = self._checked_defence(plain)
        self.unused_rounds: int = plain["unused_rounds"]
        self.enrolled_sizes = {
            name: whole(1, **{f"enrolled_sizes[{name!r}]": size})
            for name, size in (pairs_in(enrolled_sizes=options.get("enrolled_sizes")) or {}).items()
        }
        self.training_clients = names_in(training_clients=options.get("training_clients", ()))
        self.average_models: bool = plain["average_models"]
        buffers = options.get("buffers")
        self.buffers = None if buffers is None else names_in(buffers=buffers)
        self.shared: dict[str, str] = pairs_in(shared=options.get("shared")) or {}
        self.frozen = names_in(frozen=options.get("frozen", ()))
        self.weighted_by_key: str = plain["weighted_by_key"]
        self.arrayrecord_key: str = plain["arrayrecord_key"]
        self.configrecord_key: str = plain["configrecord_key"]
        self.train_metrics_aggr_fn = options.get("train_metrics_aggr_fn")
        self.evaluate_metrics_aggr_fn = options.get("evaluate_metrics_aggr_fn")

        self.memory: dict[str, Any] = {}
        """The method's memory, without old updates: str, numbers, None, NumPy arrays, lists and
        dicts only."""
        self.progress = Progress()

    def __init_subclass__(cls, **others: Any) -> None:
        """Refuse options and unknown needs as declarations.

        Let the constructor check parameters by annotations.
        """
        super().__init_subclass__(**others)
        if option := next((name for name in vars(cls) if name in Options.__optional_keys__), None):
            raise DeclarationError(
                f"{cls.__name__}.{option} = {vars(cls)[option]!r}: this is an option, whose value"
                " comes from the constructor: give it there, as in"
                f" super().__init__({option}={vars(cls)[option]!r})"
            )
        if unknown := sorted(cls.requires - REQUIREMENTS):
            raise DeclarationError(
                f"{cls.__name__}.requires has {unknown[0]!r}, which is none of"
                f" {', '.join(sorted(REQUIREMENTS))}"
            )
        if "__init__" in vars(cls):
            cls.__init__ = checking(cls.__init__)  # type: ignore[method-assign]

    def _checked_weighting(self, weighting: str | None) -> str:
        if weighting is not None:
            self.check_fit(compatibility.WEIGHTING, "weighting", weighting)
        default = self.default_weighting or "uniform"
        return one_of(
            ("examples", "uniform"), weighting=default if weighting is None else weighting
        )

    def _checked_defence(self, plain: Mapping[str, Any]) -> Defence | None:
        name = plain["defence"]
        if name != NONE:
            self.check_fit(
                compatibility.OTHER_WEIGHTS if name in WEIGHING else compatibility.MIXED_UPDATES,
                "defence",
                name,
            )
        if name == NONE and plain["defence_tolerance"]:
            raise ValueError(
                f"defence_tolerance = {plain['defence_tolerance']} has no effect: name a defence by"
                " defence, as in nnm"
            )
        return None if name == NONE else Defence(name, plain["defence_tolerance"])

    def check_fit(self, option: compatibility.Option, name: str, value: object) -> None:
        """Raise ValueError where an option, given under this name with this value, changes what the method needs."""
        needs = {need for need in option.changes if compatibility.NEEDS[need].applies_to(self)}
        if (need := compatibility.find_conflict(needs, option)) is not None:
            raise ValueError(
                need.refusal.format(method=type(self).__name__, option=name, value=value)
            )

    @property
    def all_needs(self) -> frozenset[str]:
        """What it needs of a round: what it requires, and what follows from what it is."""
        return self.requires | {
            name for name, need in compatibility.NEEDS.items() if need.applies_to(self)
        }

    @property
    def corrects_clients(self) -> bool:
        """Whether its clients correct their steps by what they keep of whole updates."""
        terms = self.terms(1)
        return terms.control_variates or terms.dynamic_alpha is not None

    @property
    def has_second_rows(self) -> bool:
        """Whether the update of each reply's second model is a row."""
        return self.second not in ("", SNAPSHOT)

    @property
    def fixed_weights(self) -> bool:
        """Whether its weights are the prior in every round, so that clients may use control variates."""
        return False

    @property
    def weighs_by_prior(self) -> bool:
        """Whether `fixed_weights` is True of `weigh` as it is: a subclass that weighs otherwise has to say so again."""
        order = type(self).__mro__
        says, weighs = (
            next(n for n, each in enumerate(order) if name in vars(each)) for name in WEIGHTS_PAIR
        )
        return self.fixed_weights and says <= weighs

    @property
    def keeps_states(self) -> bool:
        """Whether clients keep a state between rounds, from which a rule of theirs goes on."""
        terms = self.terms(1)
        return terms.control_variates or terms.dynamic_alpha is not None or bool(terms.client_rule)

    @property
    def paced(self) -> bool:
        """Whether its steps depend on how many rounds there are in all, so that a finished run cannot be extended."""
        return False

    @property
    def compares_groups(self) -> bool:
        """Whether clients compare two groups of their training examples for it: their task must have groups."""
        return self.second == ARRAYS_DISPARITY or bool(BETWEEN_GROUPS.intersection(self.needs))

    def layout_of(self, arrays: Model) -> Layout:
        """Return which of a model's arrays are updates, which buffers, and which stay as they are."""
        return Layout(arrays, self.buffers, self.shared, self.frozen)

    # What a method says ---------------------------------------------------------------------------

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the coefficients c: one per update, then one per kept row, shape (m + r,).

        Changes nothing.

        A method that weighs layer by layer returns such a row for each array, shape (L, m + r).
        """
        raise NotImplementedError(f"{type(self).__name__} has no weigh, which a method needs")

    def probe(self, cohort: Cohort, coefficients: FloatArray) -> FloatArray | None:
        """Return how the snapshots are combined to the model at which others measure their loss.

        None: no probe.

        The sample is drawn uniformly of the clients that are free, as many as were drawn for
        training.
        """
        return None

    def remember(
        self, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> Mapping[Kept, FloatArray | None]:
        """Update `memory` after the step.

        Return the rows to keep, each as a combination of shape (m + r,).

        None in its place keeps a row of `progress.kept` as it is, also one that this round did not
        recall. `coefficients` are those that `weigh` has returned; `probed` holds the losses at the
        probe's model by client, of those that could be used.
        """
        return {}

    def recalls(self, kept: Kept, names: Collection[str], server_round: int) -> bool:
        """Return whether `weigh` needs a kept row in a round with the replies of `names`.

        Others are dropped.
        """
        return True

    def sends(self) -> Mapping[str, tuple[Kept, float]]:
        """Return which kept rows go to a round's clients with the model, by record: the row, and its factor there."""
        return {}

    def own_metrics(self, cohort: Cohort, coefficients: FloatArray) -> dict[str, float]:
        """Return the metrics that the method itself reports of the round.

        NEGATIVE_WEIGHTS is counted here.
        """
        return (
            {NEGATIVE_WEIGHTS: float((coefficients < 0.0).sum())}
            if NEGATIVE_WEIGHTS in self.reports
            else {}
        )

    def terms(self, server_round: int) -> Terms:
        """Return the terms of the clients' local work."""
        personal = self.personal_lambda > 0.0
        return Terms(
            server_round=server_round,
            proximal_mu=self.proximal_mu,
            personal_lambda=self.personal_lambda if personal else None,
            personal_epochs=1 if personal else None,
            control_variates=self.control_variates,
            client_rule=self.client_rule,
        )

    def choose(self, names: Sequence[str], wanted: int, server_round: int) -> list[str]:
        """Draw the clients that train, of those that are free, in ascending order.

        A name may come more than once.
        """
        return sample(names, wanted, self.seed, "train", server_round)

    # State ----------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget every round."""
        self.memory = {}
        self.progress = Progress()

    def forget(self) -> None:
        """Clear the method's memory in the midst of a run."""
        self.memory = {}
        self.progress.kept = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the last finished round, how many took a step, the method's memory and each client's first count.

        How many rounds in a row took none is there, too.

        The lengths of the last rounds' updates, and of the longest step, are there too. Where
        models are averaged, so is their sum; where the method uses it, the roster; what a server
        optimizer keeps; and where clients keep states, from which rounds these are. All is made of
        str, numbers, None, arrays, lists and dicts.
        """
        rows = [
            {
                "key": kept.key,
                "round": kept.round,
                "extreme": row.needs_float64,
                "values": row.blocks[0][0].copy(),
            }
            for kept, row in self.progress.kept.items()
        ]
        state = {
            "method": type(self).__name__,
            "round": self.progress.finished_rounds,
            "steps": self.progress.steps,
            "skipped": self.progress.skipped,
            "rows": rows,
            "memory": copy.deepcopy(self.memory),
            "first-counts": dict(self.progress.first_counts),
            "lengths": self.progress.norms.state_dict(),
        }
        state |= {"average": dict(vars(self.progress.average))} if self.average_models else {}
        state |= (
            {"roster": dict(self.progress.roster)} if compatibility.ROSTER in self.requires else {}
        )
        if self.server_optimizer is not None:
            state[SERVER_OPTIMIZER] = state_of(self.server_optimizer, self.progress.moments)
        state |= {"states": dict(vars(self.progress.states))} if self.keeps_states else {}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned.

        Raises
        ------
        ValueError
            When the state is another method's, of a run with another server optimizer, or of one
            whose models were not averaged, and these are to be.
        """
        if state["method"] != type(self).__name__:
            raise ValueError(f"the state is of {state['method']}, not of {type(self).__name__}")
        if self.average_models and state["round"] and "average" not in state:
            raise ValueError(
                "the state is of a run without average_models, whose earlier models are lost: leave"
                " it out"
            )
        self.progress = Progress(
            finished_rounds=whole(0, round=state["round"]),
            steps=state["steps"],
            skipped=state["skipped"],
            kept={
                Kept(row["key"], row["round"]): Vectors.of(row["values"], needs_float64=row["extreme"])
                for row in state["rows"]
            },
            first_counts=dict(state["first-counts"]),
            norms=NormHistory.of_state(state["lengths"]),
            average=(
                Average(**state["average"])
                if self.average_models and "average" in state
                else Average()
            ),
            roster=dict(state.get("roster", {})),
            moments=moments_of(state.get(SERVER_OPTIMIZER), self.server_optimizer),
            states=States(**state["states"]) if "states" in state else States(),
        )
        self.memory = copy.deepcopy(state["memory"])
