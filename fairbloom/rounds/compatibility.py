"""Which options are compatible with which methods.

A method declares its needs in `Method.requires`; others follow from its attributes. An option that
changes something a method needs is refused, with the reason. docs/compatibility.py writes the table
in docs/training.md from both lists.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

# Inputs of `weigh`: the inner products of all rows, those within each array, those in float64 for
# any number of rows, and all training clients that the server has known. No option changes these.
GRAM = "gram"
GRAM_BY_ARRAY = "gram by array"
EXACT_GRAM = "exact gram"
ROSTER = "roster"

# Each of these has the inner products of the updates, so that conflicts can be counted.
INNER_PRODUCTS = frozenset({GRAM, GRAM_BY_ARRAY, EXACT_GRAM})

# Needs that concern the steps of clients and server, and the updates: see `NEEDS`.
PLAIN_SGD = "plain sgd"
ONE_MOMENTUM = "one momentum"
WHOLE_UPDATES = "whole updates"

# The values that `requires` may contain.
REQUIREMENTS = frozenset(
    {GRAM, GRAM_BY_ARRAY, EXACT_GRAM, ROSTER, PLAIN_SGD, ONE_MOMENTUM, WHOLE_UPDATES}
)

# Needs that follow from a method's attributes: see `Method.all_needs`.
PRIOR_FREE = "no prior"
VARYING_WEIGHTS = "varying weights"
CORRECTED_SGD = "corrected sgd"
PLAIN_LOSS = "plain loss"
CLIENT_MOMENTUM = "client momentum"
PERSONAL_MODELS = "personal models"
OWN_DRAW = "own draw"


@dataclass(frozen=True)
class Requirement:
    """Something that methods need of a round.

    Attributes
    ----------
    why
        The reason in the table of docs/training.md, after "it".
    refusal
        The error's text, a Fault's, with {method}, the name of the class.
    applies_to
        Whether a Method has this need.
    """

    why: str
    refusal: str
    applies_to: Callable[[Any], bool]


# The needs that an option can change, by name.
NEEDS: Mapping[str, Requirement] = {
    PRIOR_FREE: Requirement(
        "has no prior",
        "{method} has no prior: leave {setting} out, got {value!r}",
        lambda method: method.default_weighting is None,
    ),
    VARYING_WEIGHTS: Requirement(
        "computes new weights in each round",
        "{setting} = {value}: control variates need the same weights in every round, but {method}"
        " computes new ones: leave {setting} out, or choose FedAvg, FedProx, Ditto or PropFair",
        lambda method: not method.weighs_by_prior,
    ),
    WHOLE_UPDATES: Requirement(
        "keeps state on the clients that follows from their whole updates",
        "{setting} = {value!r}: with {method}, clients keep state that follows from their whole"
        " updates: leave {setting} out",
        lambda method: WHOLE_UPDATES in method.requires or method.control_variates,
    ),
    ONE_MOMENTUM: Requirement(
        "has a momentum of its own on the server",
        "{method} has a momentum of its own on the server, and refuses {setting} = {value!r}: leave"
        " it out, or choose another one (adagrad, adam, yogi)",
        lambda method: ONE_MOMENTUM in method.requires,
    ),
    PLAIN_SGD: Requirement(
        "computes gradients from the distance that plain SGD moves the model",
        "{setting} = {value}: {method} computes gradients from the distance that plain SGD moves"
        " the model: leave {setting} out, or choose another method",
        lambda method: PLAIN_SGD in method.requires,
    ),
    PLAIN_LOSS: Requirement(
        "uses gradients of the plain loss",
        "{setting} = {value!r}: {method} uses gradients of the plain loss and of a disparity: leave"
        " {setting} out, or choose another method",
        lambda method: bool(method.terms(1).disparity),
    ),
    CORRECTED_SGD: Requirement(
        "corrects the steps of plain SGD",
        "{setting} = {value}: {method} corrects the steps of plain SGD: leave {setting} out",
        lambda method: method.corrects_clients,
    ),
    CLIENT_MOMENTUM: Requirement(
        "asks clients for a momentum, which not every optimizer has",
        "{setting} = {value!r} has no momentum, and {method} asks clients for one: choose an"
        " optimizer with momentum, such as sgd, leave {setting} out, or set the method's momentum"
        " to 0",
        lambda method: bool(method.terms(1).client_momentum),
    ),
    PERSONAL_MODELS: Requirement(
        "has personal models already",
        "{setting} = {value!r}: with {method} and its other options, clients have personal models"
        " already: leave {setting} out, or choose other ones",
        lambda method: "personal_lambda" in method.own_terms or method.personal_lambda > 0.0,
    ),
    OWN_DRAW: Requirement(
        "has no prior, which such a draw replaces",
        "{setting} = {value!r} replaces the prior, and {method} has none: leave {setting} out",
        lambda method: method.default_weighting is None and not method.drawn_by_examples,
    ),
}


@dataclass(frozen=True)
class Option:
    """An option of every method, or a setting of local work, and the needs that it changes."""

    name: str
    changes: frozenset[str] = frozenset()


WEIGHTING = Option("weighting", frozenset({PRIOR_FREE}))
SERVER_MOMENTUM = Option('server_optimizer="avgm"', frozenset({ONE_MOMENTUM}))
DRAW = Option('draw="examples"', frozenset({WHOLE_UPDATES, OWN_DRAW}))
OTHER_STEPS = Option(
    "other client optimizer", frozenset({PLAIN_SGD, CORRECTED_SGD, CLIENT_MOMENTUM})
)
WEIGHT_DECAY = Option("weight-decay", frozenset({PLAIN_LOSS}))


def find_conflict(needs: Collection[str], option: Option) -> Requirement | None:
    """Return the first of a method's needs that an option changes, or None."""
    changed = option.changes.intersection(needs)
    return next((need for name, need in NEEDS.items() if name in changed), None)
