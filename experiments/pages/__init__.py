"""The page of each result, registered with `page_of`: importing this package makes results show themselves."""

from . import comparison, evaluation, recommendation, reproduction, run, sweep

__all__ = ["comparison", "evaluation", "recommendation", "reproduction", "run", "sweep"]
