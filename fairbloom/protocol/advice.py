"""The changes to a user's client app that errors of server and client recommend."""

from collections.abc import Collection

from .names import (
    ARRAYS_DISPARITY,
    BETWEEN_GROUPS,
    LOSS_BASELINE,
    SNAPSHOT,
    STATE_ROUND,
    TRAIN_LOSS,
)
from .terms import CLIENT_MOMENTUM, PROXIMAL, RULES

# This line replaces `app = ClientApp()`; `train_fn = app.train_fn` follows it.
HELPER = "app = fair(train_fn, test_fn)"

# The remedy if a client does not answer a term.
ADVICE = (
    f"write {HELPER} in the client app, or answer it there without PyTorch as docs/flower.md shows"
)

# Why Flower's mods for secure aggregation are refused.
SECURE_AGGREGATION = (
    "secure aggregation (SecAgg+) shows the server only a sum of the clients' models, and a fair"
    " method needs each of them: leave secaggplus_mod out of the client app; what an update may"
    " show is bounded by a device's privacy account (docs/private.md)"
)

# Why apps and strategies of Flower's older interface are refused.
OLDER_APP = (
    "client_fn, NumPyClient, server_fn and workflows are Flower's older interface, whose messages"
    " have other records: write @app.train() and @app.evaluate() in a client app, and start the"
    " strategy in @app.main() of a ServerApp (docs/flower.md)"
)

# The remedy if a training function cannot answer a term.
OF_A_TASK = (
    "take Fairbloom's own client with a task of yours (docs/your-data.md), which has all methods,"
    " or answer it in the client app as docs/flower.md shows"
)

_BEYOND_FUNCTIONS = frozenset(
    {
        *BETWEEN_GROUPS,
        ARRAYS_DISPARITY,
        LOSS_BASELINE,
        STATE_ROUND,
        SNAPSHOT,
        TRAIN_LOSS,
    }
    | {key for rule in RULES if rule not in (PROXIMAL, CLIENT_MOMENTUM) for key in rule.keys}
)


def advice_on(lacking: Collection[str], otherwise: str = ADVICE) -> str:
    """Return the remedy if a client does not answer these terms, metrics or records.

    `otherwise` is the remedy for terms that a training function can answer.
    """
    words = {word for each in lacking for word in each.replace("=", " ").split()}
    return OF_A_TASK if words & _BEYOND_FUNCTIONS else otherwise
