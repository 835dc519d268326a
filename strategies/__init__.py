"""Fair federated methods as Flower strategies; each is one file that reads like its paper."""

from typing import NoReturn

if __name__ != "fairbloom.strategies":
    raise ImportError(
        "import fairbloom.strategies: as strategies its classes would be second copies"
    )

from .flowers import advise_on_name
from .named import from_config as from_config
from .registry import *  # noqa: F403
from .registry import (
    __all__ as __all__,
    published_name as published_name,
    served_model as served_model,
)


def __getattr__(name: str) -> NoReturn:
    """Raise ImportError with what to write for one of Flower's strategies."""
    advice = advise_on_name(name)
    if advice:
        raise ImportError(f"cannot import name {name!r} from {__name__!r}: {advice}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
