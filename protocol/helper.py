"""What users of Flower change in their client app; messages of server and client say it."""

from collections.abc import Collection

from .names import BETWEEN_GROUPS

HELPER = "app = fair(train_fn, test_fn)"
"""This line stands in place of `app = ClientApp()`; `train_fn = app.train_fn` follows it."""

ADVICE = f"write {HELPER} in the client app, or answer it there without PyTorch as docs/flower.md shows"
"""What to do where a client does not answer it."""

OF_GROUPS = (
    "let the client be Fairbloom's own, with a task that has groups (docs/subgroups.md), which functions of fair() "
    "lack, or answer it in the client app as docs/flower.md shows"
)
"""What to do where a client does not compare groups of examples."""


def advice_on(lacking: Collection[str], otherwise: str = ADVICE) -> str:
    """Return what to do where a client does not answer these terms, metrics or records; `otherwise`: not of groups."""
    return OF_GROUPS if any(name in each for each in lacking for name in BETWEEN_GROUPS) else otherwise
