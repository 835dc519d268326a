"""What users of Flower change in their client app; messages of server and client say it."""

from collections.abc import Collection

from .names import BETWEEN_GROUPS, LOSS_BASELINE, STATE_ROUND
from .terms import STATEFUL, BaselineTerms, keys_of

HELPER = "app = fair(train_fn, test_fn)"
"""This line stands in place of `app = ClientApp()`; `train_fn = app.train_fn` follows it."""

ADVICE = f"write {HELPER} in the client app, or answer it there without PyTorch as docs/flower.md shows"
"""What to do where a client does not answer it."""

OF_GROUPS = (
    "let the client be Fairbloom's own, with a task that has groups (docs/subgroups.md), which functions of fair() "
    "lack, or answer it in the client app as docs/flower.md shows"
)
"""What to do where a client does not compare groups of examples."""

OF_BASELINE = (
    "let the client be Fairbloom's own, since functions of fair() train for a round and do not say what an "
    "epoch alone is, or answer it in the client app as docs/flower.md shows"
)
"""What to do where a client does not train alone."""

OF_STATES = (
    "let the client be Fairbloom's own, since functions of fair() keep no state between rounds, or answer it in the "
    "client app as docs/flower.md shows"
)
"""What to do where a client does not correct its steps by what it keeps."""


def advice_on(lacking: Collection[str], otherwise: str = ADVICE) -> str:
    """Return what to do where a client does not answer these terms, metrics or records; `otherwise`: usual ones."""
    for names, advice in (
        (BETWEEN_GROUPS, OF_GROUPS),
        ({STATE_ROUND, *(key for rule in STATEFUL for key in keys_of(rule))}, OF_STATES),
        ({LOSS_BASELINE, *keys_of(BaselineTerms)}, OF_BASELINE),
    ):
        if any(name in each for each in lacking for name in names):
            return advice
    return otherwise
