"""The page of each result, registered with `page_of` when this package is imported."""

from . import comparison, evaluation, reproduction, run, search

__all__ = ["comparison", "evaluation", "reproduction", "run", "search"]
