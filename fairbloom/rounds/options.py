"""The options that every method takes in addition to its parameters."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any, TypedDict, cast, get_args, get_type_hints, is_typeddict

from fairbloom.errors import FairbloomError
from fairbloom.protocol.conditions import Condition, IdleIf
from fairbloom.protocol.names import ARRAYS, CONFIG, NUM_EXAMPLES
from fairbloom.protocol.options import RunOptions, SharedOptions
from fairbloom.protocol.parameters import (
    Default,
    Parameter,
    Range,
    annotated,
    arguments_of,
)

from .compatibility import PERSONAL_MODELS, VARYING_WEIGHTS, WHOLE_UPDATES, Option

# (Flower's RecordDicts of the used replies, the name of their weight) → a MetricRecord.
Aggregate = Callable[[list[Any], str], Any]


class OptionsWithoutPrior(TypedDict, total=False):
    """The options of every method, also those without a prior.

    Their names and types, in the order in which a run folder records them; `CommonOptions` and
    `protocol.options` declare the rest. An annotation adds what an option changes that a method may
    need.
    """

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    evaluate_every: int
    seed: int
    proximal_mu: float
    personal_lambda: float
    control_variates: Annotated[bool, Option("control_variates", frozenset({VARYING_WEIGHTS}))]
    personal_parameters: Annotated[
        str, Option("personal_parameters", frozenset({WHOLE_UPDATES, PERSONAL_MODELS}))
    ]
    personal_steps: str
    head_epochs: int
    fine_tune_epochs: Annotated[int, Option("fine_tune_epochs", frozenset({PERSONAL_MODELS}))]
    client_rule: str
    wire_dtype: Annotated[str, Option('wire_dtype="bfloat16"', frozenset({WHOLE_UPDATES}))]
    draw: str
    max_growth: float
    loss_limit: float
    update_limit: float
    prior: str
    server_optimizer: str
    server_optimizer_lr: float | None
    server_optimizer_beta1: float
    server_optimizer_beta2: float
    server_optimizer_tau: float
    unused_rounds: int
    enrolled_sizes: Mapping[str, int] | str
    training_clients: Sequence[str]
    average_models: bool
    buffers: Sequence[str] | None
    shared: Mapping[str, str]
    frozen: Sequence[str]
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: Aggregate | None
    evaluate_metrics_aggr_fn: Aggregate | None


class Options(OptionsWithoutPrior, total=False):
    """The options of every method that has a prior.

    Parameters
    ----------
    fraction_train
        Share of the clients online that train in a round: ⌈fraction · N⌉, counted exactly.
    fraction_evaluate
        The same for evaluation; 0 switches it off.
    min_train_nodes
        Minimum number of clients to draw for training.
    min_evaluate_nodes
        Minimum number of clients to draw for evaluation.
    min_available_nodes
        Number of clients to wait for before a round starts.
    evaluate_every
        Clients evaluate after every round that is a multiple of this, and after the last; 0: only
        after the last.
    seed
        Clients are drawn by name, from (seed, round) only.
    weighting
        The prior p_k: n_k / Σ n or 1/m. Methods without a prior refuse it.
    proximal_mu
        Clients add (mu/2)‖x − w‖² to their loss.
    personal_lambda
        Above 0, clients also train a personal model, which is pulled towards w with this strength.
    personal_parameters
        Parameters that each client trains with the others and keeps for itself: `head` (the last
        layer that is trained), `body` (all others), `norm` (parameters and statistics of
        normalization layers), or patterns of names such as `fc2.*`, separated by spaces. Updates do
        not have them.
    personal_steps
        "together", or "head-first": first the personal parameters with the others fixed, then the
        others with the personal ones fixed (FedRep).
    head_epochs
        Passes over the local data for the personal parameters with "head-first".
    fine_tune_epochs
        Above 0, each client trains the model that it evaluates by this many passes over its local
        data, is scored as with a personal model, and forgets it.
    draw
        "uniform", without replacement, or "examples": K draws with replacement by the clients'
        numbers of examples (Wang et al., FedFV, Algorithm 1). A client that is drawn twice trains
        once, and the prior p_k is its share of the draws.
    prior
        Weights of clients, as "a=2 b=1"; all others have 1. The prior p_k is a client's share of
        the round's weights, in place of `weighting`.
    server_optimizer
        "avgm", "adagrad", "adam" or "yogi": the server uses the method's step as the gradient of a
        momentum or adaptive step (see `rounds.server_optimizer`). A skipped round, or a round
        without a step, leaves the momentum unchanged. "none": no server optimizer.
    server_optimizer_lr : float above 0 or None, default None
        Step size of the server optimizer. None: 1 for "avgm"; the others need a value.
    server_optimizer_beta1
        Share of the momentum that is kept from round to round.
    server_optimizer_beta2
        Share of the mean squared step that "adam" and "yogi" keep.
    server_optimizer_tau
        Number that "adagrad", "adam" and "yogi" add to the root of the squared steps.
    control_variates
        Whether clients correct their steps by control variates, which they and the server keep, as
        in SCAFFOLD. Methods with weights that change from round to round refuse it: the correction
        assumes the weights that it was computed with.
    client_rule : import string, default none
        A class of your own, such as my_module:MyRule, that corrects clients' local steps by a state
        that they keep between rounds. The run's setting of the same name must have the same value.
    wire_dtype
        "bfloat16-updates": clients reply their updates rounded to bfloat16, and carry the rounding
        error to their next update; "bfloat16": they get the model rounded, too. The server's own
        model stays in float32. Methods with client state that follows from whole updates refuse it.
    max_growth
        A reply is refused if its num-examples (or the metric that `weighted_by_key` names) is more
        than this many times that of the client's first usable reply in this run. It may shrink.
    loss_limit
        A reply is refused if the absolute value of a needed loss is more than this many times the
        larger of 1 and the lower median of the round's otherwise usable replies. The limit is wide,
        because a badly served client does have a high loss. The reply is refused and the loss not
        capped, because a liar with a capped loss would keep the largest weight. The same limit
        applies to reported learning rates and their sums, relative to the median of at least three
        clients.
    update_limit
        A reply is refused if the norm of its update exceeds that of the received model, and this
        many times the usual norm. The usual norm is r of `rounds.screening`, times the client's
        examples over the round's lower median of these (at least 1 and at most 1000). A step is not
        taken if its norm exceeds this many times the largest of the received model, the round's
        longest used update and the longest step so far. With a server optimizer, this applies to
        the method's step and not to the optimizer's, which follows from its step size. inf: no
        limit.
    enrolled_sizes : mapping of client names to int at least 1 or its text, default none
        A reply is refused if its num-examples is more than the client's entry here; clients without
        an entry are not limited.
    unused_rounds
        The run stops with an error after this many rounds in a row without a step, because no reply
        could be used or each step was beyond the model's range; after this many rounds from the
        first one on in which all replies are the model that was sent; or after this many evaluated
        rounds in a row without a usable evaluation. 0: it never stops for this.
    training_clients : names, default none
        Only these clients train: they are drawn among these, and fractions are shares of them. All
        clients evaluate. A round with none of them online is skipped. Without names, all train.
    average_models
        Whether the mean of the global models after each round so far is evaluated and saved instead
        of the last one. A skipped round leaves it unchanged. Training continues from the last
        model.
    buffers : names of float arrays or None, default None
        BatchNorm statistics: averaged by p_k and not part of the update. None: the float arrays
        with names that end in running_mean or running_var; an empty sequence: no buffers.
    shared : mapping of names of arrays to names of arrays, default none
        Arrays that are the same parameter as another one (tied weights), which counts once.
    frozen : names of arrays, default none
        Parameters that no client trains: they stay unchanged, and are not part of the update. A
        reply may omit them, and is refused if it has other values of them.
    weighted_by_key, arrayrecord_key, configrecord_key
        As in Flower's FedAvg, with its defaults.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : function or None, default None
        As in Flower's FedAvg: called with the contents of the used replies, in the order of client
        names, and `weighted_by_key`. Its result replaces the means of the metrics; None: the means
        of the metrics of all replies.
    """

    weighting: Annotated[
        str | None,
        IdleIf(
            "draw",
            "examples",
            "leave one of them out",
            " with {draw} = 'examples': a client's prior is its share of the draws",
        ),
    ]


class CommonOptions(SharedOptions):
    """The attributes of a method that hold common options as they were given."""

    fraction_train: Annotated[float, Range("(0, 1]")] = 1.0
    fraction_evaluate: Annotated[float, Range("[0, 1]")] = 1.0
    min_train_nodes: Annotated[int, Range("[1, inf)")] = 1
    min_evaluate_nodes: Annotated[int, Range("[0, inf)")] = 1
    min_available_nodes: Annotated[int, Range("[1, inf)")] = 1
    seed: Annotated[int, Range("[0, inf)")] = 0
    weighted_by_key: str = NUM_EXAMPLES
    arrayrecord_key: str = ARRAYS
    configrecord_key: str = CONFIG


class _All(CommonOptions, RunOptions):
    """The declarations of all common options that are numbers, strings or flags."""


_ANNOTATIONS = get_type_hints(OptionsWithoutPrior, include_extras=True)
_DECLARED = get_type_hints(_All, include_extras=True)

# The common options that are numbers, strings or flags, by their names in Python.
OPTIONS: Mapping[str, Parameter] = {
    name: option
    for name in _ANNOTATIONS
    if name in _DECLARED and (option := annotated(name, _DECLARED[name], getattr(_All, name)))
}

_WEIGHTING = get_args(get_type_hints(Options, include_extras=True)["weighting"])

# What options need of each other; None, a weighting's default, stands for no parameter.
CONDITIONS: Mapping[str, tuple[Condition, ...]] = {
    **{name: option.conditions for name, option in OPTIONS.items()},
    "weighting": tuple(mark for mark in _WEIGHTING if isinstance(mark, Condition)),
}

# The options that change something which a method may need, unless they have their default.
CHANGING: Mapping[str, Option] = {
    name: each
    for name, annotation in _ANNOTATIONS.items()
    for each in get_args(annotation)
    if isinstance(each, Option)
}


# The usual names of the parameters with which methods set common options themselves.
OWN_NAMES = {"proximal_mu": "mu", "personal_lambda": "lam"}


# The attribute of a constructor that `checking` returned.
CHECKING = "checks_parameters"


def checking(construct: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that gets its parameters checked and in their types: 1.0 for a float 1.

    The outermost one completes the method: from then on its attributes do not change.

    Raises
    ------
    FairbloomError
        If the constructor does not call that of its base.
    """

    @wraps(construct)
    def checked(self: Any, *values: Any, **named: Any) -> None:
        declared = arguments_of(checked)
        # Raises TypeError for positional values of keyword-only parameters, before any check.
        inspect.signature(construct).bind_partial(self, *values)

        def check(name: str, value: Any) -> Any:
            parameter = declared.get(name)
            return value if parameter is None else parameter.checked(value, called=name)

        _, *names = declared or ("self",)
        first = [check(name, value) for name, value in zip(names, values, strict=False)]
        others = {name: check(name, value) for name, value in named.items()}
        construct(self, *first, *values[len(first) :], **others)
        if "_run" not in vars(self):
            raise FairbloomError(
                f"{type(self).__name__} is not complete: its constructor never calls"
                " super().__init__(**options): call it first"
            )
        if type(self).__init__ is checked:  # the outermost constructor
            vars(self)["_is_complete"] = True

    setattr(checked, CHECKING, True)
    # A signature with names that only a type checker imports stays as it is.
    with suppress(NameError):
        checked.__signature__ = expand_signature(construct)  # type: ignore[attr-defined]
    return checked


def added_options(extended: Any) -> dict[str, inspect.Parameter]:
    """Return the options that a TypedDict adds to Options as keyword-only parameters, by name."""
    added: dict[str, inspect.Parameter] = {}
    for name, annotation in get_type_hints(extended, include_extras=True).items():
        if name in Options.__optional_keys__:
            continue
        defaults = (each.value for each in get_args(annotation) if isinstance(each, Default))
        default = next(defaults, inspect.Parameter.empty)
        added[name] = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
    return added


def split_options(extended: Any, given: Mapping[str, Any]) -> tuple[dict[str, Any], Options]:
    """Return the values of the options that a TypedDict adds, or their defaults, and the others."""
    common = {**given}
    added = {
        name: common.pop(name, option.default) for name, option in added_options(extended).items()
    }
    return added, cast(Options, common)


def expand_signature(construct: Callable[..., None]) -> inspect.Signature:
    """Return a constructor's signature, with the options that its TypedDict adds as parameters.

    Options without a Default stay in the TypedDict, and so do names that are parameters already.
    """
    signature = inspect.signature(construct, eval_str=True)
    *others, last = signature.parameters.values()
    added: dict[str, inspect.Parameter] = {}
    if last.kind is last.VAR_KEYWORD:
        unpacked = get_args(last.annotation)
        if unpacked and is_typeddict(unpacked[0]):
            added = added_options(unpacked[0])
    parameters = [
        option
        for name, option in added.items()
        if option.default is not option.empty and name not in signature.parameters
    ]
    return signature.replace(parameters=[*others, *parameters, last])
