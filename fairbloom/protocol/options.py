"""The options that methods share with a run's settings.

Each is declared here once: type, range, default, marks and meaning. The options of methods, the
settings of runs and the terms of the clients' work repeat only its name and type.

They are in their own module so that a ServerApp that imports a method does not load pydantic.
"""

from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

from .conditions import IdleIf, Under, Where
from .parameters import Choices, Mark, Meaning, Pairs, Range

NO_TESTS = IdleIf(
    "test_share",
    0.0,
    "leave it out, or set {test_share}, as in 0.2",
    " with {test_share} = 0, which measures no score",
)


class SharedOptions:
    """The options that a method has as attributes, as they were given."""

    evaluate_every: Annotated[
        int,
        Range("[0, inf)"),
        NO_TESTS,
        Meaning(
            "Number of rounds from one evaluation to the next; 0 evaluates after the last round "
            "only"
        ),
    ] = 1
    proximal_mu: Annotated[
        float,
        Range("[0, inf)"),
        Mark.VARIANT,
        Meaning(
            "Strength of the proximal term that keeps local models near the global one; 0 "
            "disables it"
        ),
    ] = 0.0
    personal_lambda: Annotated[
        float,
        Range("[0, inf)"),
        Mark.VARIANT,
        Meaning(
            "Strength that pulls personal models to the global one; 0 trains no personal models"
        ),
    ] = 0.0
    personal_parameters: Annotated[
        str,
        Mark.VARIANT,
        Meaning("Parameters that stay with each client: head, body, norm, or patterns of names"),
    ] = ""
    fine_tune_epochs: Annotated[
        int,
        Range("[0, inf)"),
        Mark.VARIANT,
        Meaning(
            "Passes over the local data with which each client adapts the model that it evaluates"
        ),
    ] = 0
    draw: Annotated[
        str,
        Choices("uniform", "examples"),
        Mark.VARIANT,
        Under(Where.SUMS, "uniform"),
        Meaning(
            "How clients of a round are drawn: uniformly, or with replacement by their "
            "numbers of examples"
        ),
    ] = "uniform"
    prior: Annotated[
        str,
        Mark.VARIANT,
        Pairs('"site a"=2 site-b=1'),
        Meaning(
            "Prior weights of clients, as a=2 b=1, in place of weighting; a client without one "
            "has 1"
        ),
    ] = ""
    control_variates: Annotated[
        bool,
        Mark.VARIANT,
        Meaning(
            "Whether clients correct their steps by control variates, as in scaffold; "
            "weights must be fixed"
        ),
    ] = False
    wire_dtype: Annotated[
        str,
        Choices("float32", "bfloat16-updates", "bfloat16"),
        Mark.VARIANT,
        Under(Where.SUMS, "float32"),
        Meaning(
            "Numbers in messages: clients may reply updates in bfloat16, and may get the model in "
            "it"
        ),
    ] = "float32"
    client_rule: Annotated[
        str,
        Mark.SENT_TO_CLIENTS,
        Mark.VARIANT,
        Mark.CHANGES_STEP,
        Under(Where.ACCOUNT, ""),
        Meaning("Your own rule that corrects the clients' local steps, as my_module:MyRule"),
    ] = ""
    max_growth: Annotated[
        float,
        Range("[1, inf]"),
        Mark.LIMIT,
        Meaning(
            "Factor by which a client's number of examples may exceed that of its first "
            "reply; inf allows any"
        ),
    ] = 10.0
    loss_limit: Annotated[
        float,
        Range("[1, inf]"),
        Mark.LIMIT,
        Meaning(
            "Factor by which a reply's loss may exceed the round's median, or 1; inf allows any"
        ),
    ] = 1000.0
    update_limit: Annotated[
        float,
        Range("[1, inf]"),
        Mark.LIMIT,
        Meaning(
            "Factor by which an update, or a step, may exceed its usual length; inf allows any"
        ),
    ] = 100.0
    unused_rounds: Annotated[
        int,
        Range("[0, inf)"),
        Mark.FREE,
        Meaning(
            "Number of rounds in a row without a step that stop the run with an error; 0 never "
            "stops it"
        ),
    ] = 3
    average_models: Annotated[
        bool,
        Mark.VARIANT,
        Meaning(
            "Whether the mean of the global models of all rounds is evaluated and saved "
            "instead of the last"
        ),
    ] = False


class RunOptions(SharedOptions):
    """These, and the options that a method keeps in another form."""

    personal_steps: Annotated[
        str,
        Choices("together", "head-first"),
        Mark.VARIANT,
        IdleIf("personal_parameters", "", "name parameters by {personal_parameters}, as in head"),
        Meaning(
            "Whether personal parameters are trained together with the others, or first, "
            "with the others fixed"
        ),
    ] = "together"
    head_epochs: Annotated[
        int,
        Range("[1, inf)"),
        Mark.VARIANT,
        IdleIf("personal_steps", "together", "set {personal_steps} to 'head-first'"),
        Meaning(
            "Passes over the local data for personal parameters with personal-steps = head-first"
        ),
    ] = 1
    server_optimizer: Annotated[
        str,
        Choices("none", "avgm", "adagrad", "adam", "yogi"),
        Mark.VARIANT,
        Meaning(
            "Optimizer that uses the method's step as its gradient on the server; none: no "
            "server optimizer"
        ),
    ] = "none"
    server_optimizer_beta1: Annotated[
        float,
        Range("[0, 1)"),
        Mark.VARIANT,
        Meaning("Share of its momentum that the server's optimizer keeps from round to round"),
    ] = 0.9
    server_optimizer_beta2: Annotated[
        float,
        Range("[0, 1)"),
        Mark.VARIANT,
        Meaning(
            "Share of the mean squared step that the server's adam or yogi keeps from round to "
            "round"
        ),
    ] = 0.99
    server_optimizer_tau: Annotated[
        float,
        Range("(0, inf)"),
        Mark.VARIANT,
        Meaning(
            "Number that the server's adagrad, adam or yogi adds to the root of the squared steps"
        ),
    ] = 0.001


# What each option is declared as, by its name.
DECLARED: Mapping[str, Any] = get_type_hints(RunOptions, include_extras=True)
