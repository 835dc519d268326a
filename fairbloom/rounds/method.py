"""A federated method: the clients' work, and the weights of their updates.

It knows neither Flower nor messages.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Unpack

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.protocol.conditions import Fault, find_fault
from fairbloom.protocol.names import ARRAYS_DISPARITY, BETWEEN_GROUPS, SNAPSHOT
from fairbloom.protocol.parameters import OptionError, arguments_of
from fairbloom.protocol.patterns import match_names
from fairbloom.protocol.streams import generator
from fairbloom.protocol.terms import Terms
from fairbloom.system.values import decode, encode

from . import compatibility
from .accounts import NO_ACCOUNT
from .arrays import FloatArray as FloatArray, Model
from .cohort import (
    LARGEST_COEFFICIENT as LARGEST_COEFFICIENT,
    Cohort as Cohort,
    Decision as Decision,
    Kept as Kept,
    MethodError as MethodError,
    Past as Past,
    Probed as Probed,
)
from .compatibility import REQUIREMENTS
from .hooks import explain_misspelt
from .layout import Layout
from .options import (
    CHANGING,
    CHECKING,
    CONDITIONS,
    OPTIONS,
    OWN_NAMES,
    CommonOptions,
    Options as Options,
    checking,
)
from .ranges import amounts_in, counts_in, names_in, one_of, pairs_in, whole
from .run_state import RunState
from .sampling import sample, sample_by
from .server_optimizer import AVGM, LR, ServerOptimizer, name_of

# The value of draw without repeated clients and without regard to their examples.
UNIFORM = "uniform"

# The value of personal_steps with which personal parameters are trained first.
HEAD_FIRST = "head-first"

# The number of negative coefficients: a metric of methods that declare it in `reports`.
NEGATIVE_WEIGHTS = "negative-weights"

# The share of pairs of updates with a negative inner product, from 0 to 1: Definition 1 of Wang et
# al. (FedFV). It is a metric of methods that require inner products.
CONFLICTS = "conflicts"

# The keys of a written state that name the method and its server optimizer.
METHOD = "method"
SERVER_OPTIMIZER = "server-optimizer"
OWNER = (METHOD, SERVER_OPTIMIZER)


class FrozenMethodError(FairbloomError, AttributeError):
    """An attribute of a method is set after its constructor."""


class DeclarationError(FairbloomError, TypeError):
    """A class declares an unknown value, or misspells a hook; the message names both."""


class Method(CommonOptions):
    """A federated method: it maps a cohort of updates to one coefficient per update.

    Subclasses implement `weigh`. They name the metrics that they need in `needs`, and their prior
    in `default_weighting` (None: the method has none). What they keep between rounds is in the
    `Decision` that `weigh` returns; later rounds find it in `past`.

    Its parameters are those of `Options`. They do not change after the outermost constructor: what
    changes in a run is its state, one frozen value.

    Raises
    ------
    ValueError
        When a parameter is outside its range.
    FrozenMethodError
        When an attribute is set after the constructor.
    """

    _run: RunState
    needs: frozenset[str] = frozenset()
    default_weighting: ClassVar[str | None] = "examples"
    drawn_by_examples: ClassVar[bool] = False
    """Whether the method may draw clients by their examples although it has no prior."""
    fixed_weights: ClassVar[bool] = False
    """Whether the weights are the prior in every round: control variates are then possible."""
    own_terms: ClassVar[frozenset[str]] = frozenset()
    """Common options that the method sets by another parameter and therefore refuses."""
    lost_to_server_optimizers: ClassVar[str] = ""
    """A property of the method's step that a server optimizer breaks, as it turns or stretches the
    step."""
    serves: ClassVar[str] = "global"
    """The model that clients use: "global", or "personal" if the global one is not trained."""
    sums: ClassVar[bool] = False
    """Whether its weights are at least 0 and follow only from rows and reported losses, so that
    clients may share their noise, and the server sees only the sum of their gradients."""
    reports: tuple[str, ...] = ()
    """The names of the metrics that the method itself reports."""
    requires: frozenset[str] = frozenset()
    """The method's needs of a round, from `compatibility.REQUIREMENTS`."""
    largest_loss: float = math.inf
    """The largest mean loss that a client with a privacy account can have."""
    second: ClassVar[str] = ""
    """The name of the ArrayRecord with a second model in each reply: "snapshot", the model in the
    midst of local work, from which `probe` combines a model; or another name. The update of another
    one is a row too: the rows are then m updates, m second updates and r kept rows, and `weigh`
    returns 2m + r numbers. The record has at least the trainable arrays."""

    def __init__(self, **options: Unpack[Options]) -> None:
        for name in options:
            if name not in Options.__optional_keys__:
                fault = f"{type(self).__name__} takes no parameter {name!r}"
                advice = self._advise_on(name, options.get(name))
                if advice:
                    fault += f": {advice}"
                raise TypeError(fault)
            if name in self.own_terms:
                text = "{method} sets {setting} by its own parameter, got {value!r}"
                own = OWN_NAMES.get(name)
                if own in self.own_parameters():
                    text += f": write {own}={{value!r}}"
                facts = {"method": type(self).__name__}
                raise OptionError(Fault(name, options.get(name), text, facts))
        plain: dict[str, Any] = {
            name: option.checked(options.get(name, option.default), called=name)
            for name, option in OPTIONS.items()
        }
        # A run folder records these attributes in this order.
        vars(self).update(
            {name: value for name, value in plain.items() if hasattr(CommonOptions, name)}
        )
        self.weighting = self._checked_weighting(options.get("weighting"))
        self.server_optimizer = ServerOptimizer.of({**plain, LR: options.get(LR)})
        if self.server_optimizer is not None and self.server_optimizer.name == AVGM:
            self.check_fit(compatibility.SERVER_MOMENTUM, "server_optimizer", AVGM)
        # Checked first, so that the error names this option and not `draw`.
        for name, option in CHANGING.items():
            if plain[name] != OPTIONS[name].default:
                self.check_fit(option, name, plain[name])
        self.head_epochs: int | None = None
        if plain["personal_steps"] == HEAD_FIRST:
            self.head_epochs = plain["head_epochs"]
        if self.draw != UNIFORM:
            self.check_fit(compatibility.DRAW, "draw", self.draw)
            self.requires = self.requires | {compatibility.ROSTER}
        self.prior_weights = self._checked_prior(options.get("weighting"))
        self._check_effects({**plain, "weighting": options.get("weighting")})
        self.enrolled_sizes = counts_in(enrolled_sizes=options.get("enrolled_sizes"))
        self.training_clients = names_in(training_clients=options.get("training_clients", ()))
        buffers = options.get("buffers")
        self.buffers = None if buffers is None else names_in(buffers=buffers)
        self.shared: dict[str, str] = pairs_in(shared=options.get("shared")) or {}
        self.frozen = names_in(frozen=options.get("frozen", ()))
        self.train_metrics_aggr_fn = options.get("train_metrics_aggr_fn")
        self.evaluate_metrics_aggr_fn = options.get("evaluate_metrics_aggr_fn")

        self.reset()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute in the constructor; later raise FrozenMethodError."""
        if "_is_complete" in vars(self):
            raise FrozenMethodError(
                f"{type(self).__name__}.{name} = {value!r}: a method does not change after its"
                " constructor, as a run that is continued would not know of it. What weigh needs in"
                " later rounds is its memory: return Decision(coefficients, memory), and read"
                " cohort.past.memory. What a hook of Flower's changes belongs in its config"
            )
        super().__setattr__(name, value)

    def adapt(self, **values: object) -> None:
        """Set attributes that follow from a run's model and clients, before its first round."""
        vars(self).update(values)

    def _advise_on(self, name: str, value: object) -> str:
        """Return what to write in place of an option that there is not, or ""."""
        return ""

    @classmethod
    def own_parameters(cls) -> frozenset[str]:
        """Return the names of the parameters that the class's own constructor declares."""
        return frozenset(arguments_of(cls.__init__))

    def __init_subclass__(cls, **others: Any) -> None:
        """Refuse unknown declarations and misspelt hooks; check the constructor's parameters."""
        super().__init_subclass__(**others)
        for option, value in vars(cls).items():
            if option in Options.__optional_keys__:
                raise DeclarationError(
                    f"{cls.__name__}.{option} = {value!r}: this is an option: give its value to"
                    " the constructor, as in"
                    f" super().__init__({option}={value!r})"
                )
        unknown = sorted(cls.requires - REQUIREMENTS)
        if unknown:
            raise DeclarationError(
                f"{cls.__name__}.requires has {unknown[0]!r}: choose among"
                f" {', '.join(sorted(REQUIREMENTS))}"
            )
        misspelt = explain_misspelt(cls)
        if misspelt:
            raise DeclarationError(misspelt)
        if not hasattr(cls.__init__, CHECKING):
            cls.__init__ = checking(cls.__init__)  # type: ignore[method-assign]

    def _checked_weighting(self, weighting: str | None) -> str:
        if weighting is not None:
            self.check_fit(compatibility.WEIGHTING, "weighting", weighting)
        else:
            weighting = self.default_weighting or "uniform"
        return one_of(("examples", "uniform"), weighting=weighting)

    def _checked_prior(self, weighting: str | None) -> dict[str, float]:
        """Return the user's weights of clients, empty without any."""
        weights = amounts_in("(0, inf)", prior=self.prior)
        if not weights:
            return weights
        self.check_fit(compatibility.WEIGHTING, "prior", self.prior)
        rivals = {
            "weighting": bool(weighting),
            "draw": self.draw != UNIFORM,
        }
        given = [rival for rival, is_given in rivals.items() if is_given]
        if given:
            text = (
                f"{{setting}} = {{value!r}}: {{{given[0]}}} sets the clients' weights, too: leave"
                " one of them out"
            )
            raise OptionError(Fault("prior", self.prior, text))
        return weights

    def prior_weights_of(self, names: Sequence[str], examples: Sequence[float]) -> FloatArray:
        """Return the prior weights of clients, of which the prior is their shares.

        Examples of a client with a privacy account count for less, by the noise of its steps.
        """
        if self.prior_weights:
            return np.array([self.prior_weights.get(name, 1.0) for name in names])
        weights = np.array(examples if self.weighting == "examples" else [1.0] * len(names))
        if self._run.accounts and self.weighting == "examples":
            return weights * [self._run.accounts.get(name, NO_ACCOUNT).signal for name in names]
        return weights

    def _check_effects(self, given: Mapping[str, Any]) -> None:
        """Raise OptionError if an option has no effect with the others."""
        changed = {
            name: value
            for name, value in given.items()
            if value != (OPTIONS[name].default if name in OPTIONS else None)
        }
        fault = find_fault(CONDITIONS, changed, given)
        if fault is not None:
            raise OptionError(fault)

    def check_fit(self, option: compatibility.Option, name: str, value: object) -> None:
        """Raise OptionError if an option changes something that the method needs.

        The error has this name and value of the option.
        """
        needs = {need for need in option.changes if compatibility.NEEDS[need].applies_to(self)}
        need = compatibility.find_conflict(needs, option)
        if need is not None:
            raise OptionError(Fault(name, value, need.refusal, {"method": type(self).__name__}))

    @property
    def all_needs(self) -> frozenset[str]:
        """The method's needs of a round: those in `requires`, and those that follow from it."""
        return self.requires | {
            name for name, need in compatibility.NEEDS.items() if need.applies_to(self)
        }

    @property
    def all_reports(self) -> tuple[str, ...]:
        """The metrics in `reports`, and CONFLICTS if the method requires inner products."""
        if self.requires.isdisjoint(compatibility.INNER_PRODUCTS):
            return self.reports
        return tuple(dict.fromkeys((*self.reports, CONFLICTS)))

    @property
    def corrects_clients(self) -> bool:
        """Whether clients correct their steps by a state that follows from their whole updates."""
        terms = self.terms(1)
        return terms.control_variates or terms.dynamic_alpha is not None

    @property
    def has_second_rows(self) -> bool:
        """Whether the update of each reply's second model is a row."""
        return self.second not in ("", SNAPSHOT)

    @property
    def weighs_by_prior(self) -> bool:
        """Whether `fixed_weights` is True for this `weigh`.

        A subclass that overrides only `weigh` does not inherit the declaration: it must repeat it.
        """
        order = type(self).__mro__
        declared = next(n for n, base in enumerate(order) if "fixed_weights" in vars(base))
        weighing = next(n for n, base in enumerate(order) if "weigh" in vars(base))
        return self.fixed_weights and declared <= weighing

    @property
    def keeps_states(self) -> bool:
        """Whether clients keep a state between rounds, from which their rule continues."""
        return self.corrects_clients or bool(self.terms(1).client_rule)

    @property
    def paced(self) -> bool:
        """Whether steps depend on the number of rounds; a finished run then cannot be extended."""
        return False

    @property
    def compares_groups(self) -> bool:
        """Whether clients compare two groups of their examples; the task must then have groups."""
        return self.second == ARRAYS_DISPARITY or bool(BETWEEN_GROUPS.intersection(self.needs))

    def layout_of(self, arrays: Model) -> Layout:
        """Return which of a model's arrays are updates, which are buffers, and which are frozen."""
        return Layout(arrays, self.buffers, self.shared, self.frozen_in(arrays))

    def frozen_in(self, arrays: Model) -> Sequence[str]:
        """Return which of a model's arrays are frozen: those named so, or those clients keep."""
        return self.frozen or match_names(arrays, self.personal_parameters)

    def find_idle(self, num_rounds: int) -> str:
        """Return the parameter that changes nothing in `num_rounds`, with the remedy, or ""."""
        return ""

    # The hooks of a method ------------------------------------------------------------------------

    def weigh(self, cohort: Cohort) -> FloatArray | Decision:
        """Return the coefficients c: one per update, then one per kept row, shape (m + r,).

        A method that weighs layer by layer returns a row for each array, shape (L, m + r). One with
        memory, or with rows to keep, returns a `Decision`; with coefficients alone, the memory
        stays as it is, and no row is kept. `weigh` changes nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no weigh, which a method needs")

    def probe(self, cohort: Cohort, coefficients: FloatArray) -> FloatArray | None:
        """Return the coefficients that combine the snapshots to a model, or None for no probe.

        A second sample of clients reports its loss at that model. It is drawn uniformly from the
        free clients, and is as large as the sample that trained.
        """
        return None

    def learn(self, past: Past, cohort: Cohort, probed: Probed) -> Mapping[str, Any]:
        """Return the memory after the step; by default that of the decision.

        `past` has the memory and the rows of the decision on this `cohort`, and `probed` the usable
        losses at the probe's model.
        """
        return past.memory

    def recalls(
        self, kept: Collection[Kept], names: Collection[str], server_round: int
    ) -> Collection[Kept]:
        """Return which kept rows `weigh` needs in a round with replies of `names`, in their order.

        Rows that are not needed are dropped.
        """
        return kept

    def sends(self) -> Mapping[str, tuple[Kept, float]]:
        """Return the kept rows that clients get with the model, and their factors, by record."""
        return {}

    def own_metrics(self, cohort: Cohort, coefficients: FloatArray) -> dict[str, float]:
        """Return the method's own metrics of the round.

        NEGATIVE_WEIGHTS is counted here.
        """
        if NEGATIVE_WEIGHTS not in self.reports:
            return {}
        return {NEGATIVE_WEIGHTS: float((coefficients < 0.0).sum())}

    def terms(self, server_round: int) -> Terms:
        """Return the terms of the clients' local work."""
        return Terms.of_options(server_round, vars(self))

    def choose(self, names: Sequence[str], wanted: int, server_round: int) -> list[str]:
        """Return the clients that train, drawn from the free ones, in ascending order.

        A name may occur more than once.
        """
        if self.draw != UNIFORM:
            examples = np.array([self.past.roster.get(name, 0.0) for name in names])
            if not examples.any():
                raise ValueError(
                    "draw = 'examples': no client has said how many examples it has: leave draw out"
                )
            # a client that holds its number back, or is not believed, must still be drawn sometimes
            examples[examples == 0.0] = np.median(examples[examples > 0.0])
            return sample_by(
                examples, names, wanted, generator(self.seed, "draw by examples", server_round)
            )
        return sample(names, wanted, self.seed, "train", server_round)

    # State ----------------------------------------------------------------------------------------

    @property
    def run_state(self) -> RunState:
        """The state of the run so far."""
        return self._run

    @property
    def past(self) -> Past:
        """What the method knows of earlier rounds, as its hooks and `cohort.past` see it."""
        state = self._run
        roster = state.roster if compatibility.ROSTER in self.requires else None
        return Past(MappingProxyType({**state.memory}), tuple(state.kept), roster)

    def enter(self, state: RunState) -> None:
        """Go on from a state of the run, which a transition of `rounds.run_state` returned."""
        self.__dict__["_run"] = state

    def reset(self) -> None:
        """Forget every round."""
        self.enter(RunState())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run for a checkpoint, and whose it is.

        It consists of str, numbers, None, arrays, lists and dicts.
        """
        return {
            METHOD: type(self).__name__,
            SERVER_OPTIMIZER: name_of(self.server_optimizer),
            **encode(self._run.in_memory()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned.

        Raises
        ------
        ValueError
            If it is the state of another method, or of a run with another server optimizer, or if
            models must be averaged and it has no mean.
        """
        if state[METHOD] != type(self).__name__:
            raise ValueError(f"the state is of {state[METHOD]}, not of {type(self).__name__}")
        current = name_of(self.server_optimizer)
        if state[SERVER_OPTIMIZER] != current:
            raise ValueError(
                f"the state is of a run with server_optimizer = {state[SERVER_OPTIMIZER]!r}, got"
                f" {current!r}: continue with that, or begin again"
            )
        written = {key: value for key, value in state.items() if key not in OWNER}
        run = decode(RunState, written)
        if self.average_models and run.finished_rounds and not run.average.rounds:
            raise ValueError(
                "the state is of a run without average_models, and its earlier models are lost:"
                " leave average_models out"
            )
        whole(0, finished_rounds=run.finished_rounds)
        self.enter(run)
