"""What is learned: data split into clients, a model and a loss. One file a data set."""

from .loading import *  # noqa: F403
from .loading import __all__ as __all__
