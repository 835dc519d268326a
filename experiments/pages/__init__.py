"""The page of each result, registered with `page_of`: importing this package makes results show themselves."""

from . import comparison, evaluation, reproduction, run, search

__all__ = ["comparison", "evaluation", "reproduction", "run", "search"]
