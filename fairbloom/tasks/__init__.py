"""Tasks: data split into clients, a model and a loss. Each data set has a file in datasets/."""

from .loading import *  # noqa: F403
from .loading import __all__ as __all__
