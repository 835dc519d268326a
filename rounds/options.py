"""The options that every method takes in addition to its parameters."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, TypedDict, get_type_hints

from fairbloom.errors import FairbloomError
from fairbloom.protocol import options as of_runs
from fairbloom.protocol.names import ARRAYS, CONFIG, NUM_EXAMPLES
from fairbloom.protocol.parameters import Default, Parameter, Range, annotated, arguments_of

# (Flower's RecordDicts of the used replies, the name of their weight) → a MetricRecord.
Aggregate = Callable[[list[Any], str], Any]


class OptionsWithoutPrior(TypedDict, total=False):
    """The options of every method, which Method describes.

    The options that `protocol.options` declares are also settings of runs.
    """

    fraction_train: Annotated[float, Range("(0, 1]"), Default(1.0)]
    fraction_evaluate: Annotated[float, Range("[0, 1]"), Default(1.0)]
    min_train_nodes: Annotated[int, Range("[1, inf)"), Default(1)]
    min_evaluate_nodes: Annotated[int, Range("[0, inf)"), Default(1)]
    min_available_nodes: Annotated[int, Range("[1, inf)"), Default(1)]
    evaluate_every: of_runs.EvaluateEvery
    seed: Annotated[int, Range("[0, inf)"), Default(0)]
    proximal_mu: of_runs.ProximalMu
    personal_lambda: of_runs.PersonalLambda
    personal_parameters: of_runs.PersonalParameters
    personal_steps: of_runs.PersonalSteps
    head_epochs: of_runs.HeadEpochs
    fine_tune_epochs: of_runs.FineTuneEpochs
    draw: of_runs.Draw
    prior: of_runs.Prior
    server_optimizer: of_runs.ServerOptimizerName
    server_optimizer_lr: float | None
    server_optimizer_beta1: of_runs.Beta1
    server_optimizer_beta2: of_runs.Beta2
    server_optimizer_tau: of_runs.Tau
    control_variates: of_runs.ControlVariates
    client_rule: of_runs.ClientRule
    wire_dtype: of_runs.WireDtype
    max_growth: of_runs.MaxGrowth
    loss_limit: of_runs.LossLimit
    update_limit: of_runs.UpdateLimit
    defence: of_runs.DefenceName
    defence_tolerance: of_runs.DefenceTolerance
    unused_rounds: of_runs.UnusedRounds
    enrolled_sizes: Mapping[str, int]
    training_clients: Sequence[str]
    average_models: of_runs.AverageModels
    buffers: Sequence[str] | None
    shared: Mapping[str, str]
    frozen: Sequence[str]
    weighted_by_key: Annotated[str, Default(NUM_EXAMPLES)]
    arrayrecord_key: Annotated[str, Default(ARRAYS)]
    configrecord_key: Annotated[str, Default(CONFIG)]
    train_metrics_aggr_fn: Aggregate | None
    evaluate_metrics_aggr_fn: Aggregate | None


class Options(OptionsWithoutPrior, total=False):
    """The options of every method that has a prior."""

    weighting: str | None


# The common options that are numbers, strings or flags, by their names in Python.
OPTIONS: Mapping[str, Parameter] = {
    name: option
    for name, annotation in get_type_hints(OptionsWithoutPrior, include_extras=True).items()
    if (option := annotated(name, annotation, None))
}


def checking(construct: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that gets its parameters checked and in their types: 1.0 for a float 1.

    Raises
    ------
    FairbloomError
        If the constructor does not call that of its base.
    """

    @wraps(construct)
    def checked(self: object, *values: Any, **named: Any) -> None:
        declared = arguments_of(construct)
        # Raises TypeError for positional values of keyword-only parameters, before any check.
        inspect.signature(construct).bind_partial(self, *values)

        def check(name: str, value: Any) -> Any:
            parameter = declared.get(name)
            return value if parameter is None else parameter.checked(value, called=name)

        _, *names = declared or ("self",)
        first = [check(name, value) for name, value in zip(names, values, strict=False)]
        others = {name: check(name, value) for name, value in named.items()}
        construct(self, *first, *values[len(first) :], **others)
        if not hasattr(self, "progress"):
            raise FairbloomError(
                f"{type(self).__name__} is no method yet, since a constructor of it does not call "
                "super().__init__(**options): call it first"
            )

    return checked
