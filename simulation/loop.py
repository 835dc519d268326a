"""The engine `loop`: one client after the other, as each would compute by itself."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from .clients import LocalClients

P = ParamSpec("P")
T = TypeVar("T")


class LoopClients(LocalClients):
    """All clients of a run, one after the other."""


class DebuggedClients(LoopClients):
    """The same, where the first error of a client ends the run with its traceback, and a debugger works."""

    def _answer(self, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | str:
        return compute(*args, **kwargs)
