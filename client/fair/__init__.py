"""A user's own ClientApp, which answers methods by the user's training and test functions."""

from .decorator import fair as fair
