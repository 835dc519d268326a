"""The options that methods share with a run's settings: type, range, default and marks of each.

They are in their own module so that a ServerApp that imports a method does not load pydantic.
"""

from typing import Annotated, Any, get_args

from .parameters import Choices, Default, Mark, Range

EvaluateEvery = Annotated[int, Range("[0, inf)"), Default(1)]
ProximalMu = Annotated[float, Range("[0, inf)"), Default(0.0), Mark.VARIANT]
PersonalLambda = Annotated[float, Range("[0, inf)"), Default(0.0), Mark.VARIANT]
PersonalParameters = Annotated[str, Default(""), Mark.VARIANT]
PersonalSteps = Annotated[str, Choices("together", "head-first"), Default("together"), Mark.VARIANT]
HeadEpochs = Annotated[int, Range("[1, inf)"), Default(1), Mark.VARIANT]
FineTuneEpochs = Annotated[int, Range("[0, inf)"), Default(0), Mark.VARIANT]
Draw = Annotated[str, Choices("uniform", "examples"), Default("uniform"), Mark.VARIANT]
Prior = Annotated[str, Default(""), Mark.VARIANT]
ServerOptimizerName = Annotated[
    str, Choices("none", "avgm", "adagrad", "adam", "yogi"), Default("none"), Mark.VARIANT
]
Beta1 = Annotated[float, Range("[0, 1)"), Default(0.9), Mark.VARIANT]
Beta2 = Annotated[float, Range("[0, 1)"), Default(0.99), Mark.VARIANT]
Tau = Annotated[float, Range("(0, inf)"), Default(1e-3), Mark.VARIANT]
ControlVariates = Annotated[bool, Default(False), Mark.VARIANT]
WireDtype = Annotated[
    str, Choices("float32", "bfloat16-updates", "bfloat16"), Default("float32"), Mark.VARIANT
]
ClientRule = Annotated[str, Default(""), Mark.SENT_TO_CLIENTS, Mark.VARIANT, Mark.CHANGES_STEP]
MaxGrowth = Annotated[float, Range("[1, inf]"), Default(10.0), Mark.LIMIT]
LossLimit = Annotated[float, Range("[1, inf]"), Default(1000.0), Mark.LIMIT]
UpdateLimit = Annotated[float, Range("[1, inf]"), Default(100.0), Mark.LIMIT]
DefenceName = Annotated[
    str,
    Choices("none", "clip", "nnm", "krum", "trimmed-mean", "geometric-median"),
    Default("none"),
    Mark.VARIANT,
]
DefenceTolerance = Annotated[int, Range("[0, inf)"), Default(0), Mark.VARIANT]
UnusedRounds = Annotated[int, Range("[0, inf)"), Default(3), Mark.FREE]
AverageModels = Annotated[bool, Default(False), Mark.VARIANT]


def default_of(declared: Any) -> Any:
    """Return the default that one of these annotations declares."""
    return next(each.value for each in get_args(declared) if isinstance(each, Default))
