"""The options that methods share with a run's settings.

Each is declared here once: type, range, default, marks and meaning. Those with a Neutral are also
terms of the clients' work. The options of methods, the settings of runs and the terms repeat only
their names.

They are in their own module so that a ServerApp that imports a method does not load pydantic.
"""

from typing import Annotated, Any, get_args

from .parameters import Choices, Default, Mark, Meaning, Neutral, Range

EvaluateEvery = Annotated[
    int,
    Range("[0, inf)"),
    Default(1),
    Meaning(
        "Number of rounds from one evaluation to the next; 0 evaluates after the last round only"
    ),
]
ProximalMu = Annotated[
    float,
    Range("[0, inf)"),
    Default(0.0),
    Neutral(0.0),
    Mark.VARIANT,
    Meaning(
        "Strength of the proximal term that keeps local models near the global one; 0 disables it"
    ),
]
PersonalLambda = Annotated[
    float,
    Range("[0, inf)"),
    Default(0.0),
    Neutral(None),
    Mark.VARIANT,
    Meaning("Strength that pulls personal models to the global one; 0 trains no personal models"),
]
PersonalParameters = Annotated[
    str,
    Default(""),
    Neutral(""),
    Mark.VARIANT,
    Meaning("Parameters that stay with each client: head, body, norm, or patterns of names"),
]
PersonalSteps = Annotated[
    str,
    Choices("together", "head-first"),
    Default("together"),
    Mark.VARIANT,
    Meaning(
        "Whether personal parameters are trained together with the others, or first, "
        "with the others fixed"
    ),
]
HeadEpochs = Annotated[
    int,
    Range("[1, inf)"),
    Default(1),
    Neutral(None),
    Mark.VARIANT,
    Meaning("Passes over the local data for personal parameters with personal-steps = head-first"),
]
FineTuneEpochs = Annotated[
    int,
    Range("[0, inf)"),
    Default(0),
    Neutral(0),
    Mark.VARIANT,
    Meaning("Passes over the local data with which each client adapts the model that it evaluates"),
]
Draw = Annotated[
    str,
    Choices("uniform", "examples"),
    Default("uniform"),
    Mark.VARIANT,
    Meaning(
        "How clients of a round are drawn: uniformly, or with replacement by their "
        "numbers of examples"
    ),
]
Prior = Annotated[
    str,
    Default(""),
    Mark.VARIANT,
    Meaning(
        "Prior weights of clients, as a=2 b=1, in place of weighting; a client without one has 1"
    ),
]
ServerOptimizerName = Annotated[
    str,
    Choices("none", "avgm", "adagrad", "adam", "yogi"),
    Default("none"),
    Mark.VARIANT,
    Meaning(
        "Optimizer that uses the method's step as its gradient on the server; none: no "
        "server optimizer"
    ),
]
Beta1 = Annotated[
    float,
    Range("[0, 1)"),
    Default(0.9),
    Mark.VARIANT,
    Meaning("Share of its momentum that the server's optimizer keeps from round to round"),
]
Beta2 = Annotated[
    float,
    Range("[0, 1)"),
    Default(0.99),
    Mark.VARIANT,
    Meaning(
        "Share of the mean squared step that the server's adam or yogi keeps from round to round"
    ),
]
Tau = Annotated[
    float,
    Range("(0, inf)"),
    Default(0.001),
    Mark.VARIANT,
    Meaning("Number that the server's adagrad, adam or yogi adds to the root of the squared steps"),
]
ControlVariates = Annotated[
    bool,
    Default(False),
    Neutral(False),
    Mark.VARIANT,
    Meaning(
        "Whether clients correct their steps by control variates, as in scaffold; "
        "weights must be fixed"
    ),
]
WireDtype = Annotated[
    str,
    Choices("float32", "bfloat16-updates", "bfloat16"),
    Default("float32"),
    Neutral("float32"),
    Mark.VARIANT,
    Meaning(
        "Numbers in messages: clients may reply updates in bfloat16, and may get the model in it"
    ),
]
ClientRule = Annotated[
    str,
    Default(""),
    Neutral(""),
    Mark.SENT_TO_CLIENTS,
    Mark.VARIANT,
    Mark.CHANGES_STEP,
    Meaning("Your own rule that corrects the clients' local steps, as my_module:MyRule"),
]
MaxGrowth = Annotated[
    float,
    Range("[1, inf]"),
    Default(10.0),
    Mark.LIMIT,
    Meaning(
        "Factor by which a client's number of examples may exceed that of its first "
        "reply; inf allows any"
    ),
]
LossLimit = Annotated[
    float,
    Range("[1, inf]"),
    Default(1000.0),
    Mark.LIMIT,
    Meaning("Factor by which a reply's loss may exceed the round's median, or 1; inf allows any"),
]
UpdateLimit = Annotated[
    float,
    Range("[1, inf]"),
    Default(100.0),
    Mark.LIMIT,
    Meaning("Factor by which an update, or a step, may exceed its usual length; inf allows any"),
]
DefenceName = Annotated[
    str,
    Choices("none", "clip", "nnm", "krum", "trimmed-mean", "geometric-median"),
    Default("none"),
    Mark.VARIANT,
    Meaning(
        "Defence against hostile updates: clip and nnm mix updates, the others replace "
        "FedAvg's weights"
    ),
]
DefenceTolerance = Annotated[
    int,
    Range("[0, inf)"),
    Default(0),
    Mark.VARIANT,
    Meaning(
        "Number of a round's clients that may be hostile; 0: a quarter of them, and at least one"
    ),
]
UnusedRounds = Annotated[
    int,
    Range("[0, inf)"),
    Default(3),
    Mark.FREE,
    Meaning(
        "Number of rounds in a row without a step that stop the run with an error; 0 never stops it"
    ),
]
AverageModels = Annotated[
    bool,
    Default(False),
    Mark.VARIANT,
    Meaning(
        "Whether the mean of the global models of all rounds is evaluated and saved "
        "instead of the last"
    ),
]


def default_of(declared: Any) -> Any:
    """Return the default that one of these annotations declares."""
    return next(each.value for each in get_args(declared) if isinstance(each, Default))


def neutral_of(declared: Any) -> Any:
    """Return the value of the term with which clients work as without the option."""
    return next(each.value for each in get_args(declared) if isinstance(each, Neutral))
