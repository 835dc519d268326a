"""Fair federated methods as Flower strategies; each is one file that reads like its paper."""

from .named import from_config as from_config
from .registry import *  # noqa: F403
from .registry import (
    __all__ as __all__,
    published_name as published_name,
    served_model as served_model,
)
