"""Fair federated methods as Flower strategies; each is one file that reads like its paper."""

from .registry import *  # noqa: F403
from .registry import __all__ as __all__
from .registry import published_name as published_name
from .registry import served_model as served_model
