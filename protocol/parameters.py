"""The parameters of methods and tasks, as the signatures and docstrings of functions and classes declare them."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from .settings import SettingsError, Value, key_of, of_kind

KINDS = (int, float, bool, str)
"""The types of parameters: all that a run config can carry."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method, or a setting of a task's own.

    Attributes
    ----------
    key
        Its name in a run config: `fedfv.alpha`.
    kind
        Its type: int, float, bool or str.
    default
        Its value where none is given; None: one must be given.
    range, description
        What it may be and what it means, in words.
    """

    key: str
    kind: type
    default: Value | None
    range: str
    description: str

    @property
    def owner(self) -> str:
        """The method or task that it belongs to."""
        return self.key.partition(".")[0]

    @property
    def argument(self) -> str:
        """Its name in Python."""
        return self.key.partition(".")[2].replace("-", "_")

    def checked(self, value: Value) -> Value:
        """Return `value`, a whole number as the float that is meant.

        Raises
        ------
        SettingsError
            When it is of another type.
        """
        if not of_kind(value, self.kind):
            raise SettingsError(f"{self.key} = {value!r}: it must be of type {self.kind.__name__} ({self.range})")
        chosen: Value = self.kind(value)
        return chosen


@cache
def parameters_of(owner: str, declared: Callable[..., Any], *, skipped: int = 0) -> tuple[Parameter, ...]:
    """Return the parameters of a method or task: types and defaults from its signature, words from its docstring.

    Parameters
    ----------
    owner
        What their keys begin with.
    declared
        The class or function.
    skipped
        How many of its first parameters are none of its own.

    Raises
    ------
    SettingsError
        When one is not annotated as int, float, bool or str, which is all that a run config can carry.
    """
    words, found = described(inspect.getdoc(declared) or ""), []
    for parameter in list(inspect.signature(declared, eval_str=True).parameters.values())[skipped:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:  # the options that all methods have
            continue
        if parameter.annotation not in KINDS:
            raise SettingsError(
                f"{declared.__name__}'s parameter {parameter.name} must be annotated: int, float, bool or str"
            )
        what, meaning = words.get(parameter.name, (parameter.annotation.__name__, ""))
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        key, what = f"{owner}.{key_of(parameter.name)}", what.partition(", default ")[0]
        found.append(Parameter(key, parameter.annotation, default, what, meaning))
    return tuple(found)


def described(docstring: str) -> dict[str, tuple[str, str]]:
    """Return what is written after the colon, and the meaning, of each entry of a docstring's Parameters section."""
    section = re.search(r"^Parameters\n-+\n((?:\S+ : .+\n(?: {4}.+\n?)+)+)", docstring, re.MULTILINE)
    entries = re.findall(r"(\S+) : (.+)\n((?: {4}.+\n?)+)", section[1]) if section else []
    return {name: (what, " ".join(meaning.split())) for name, what, meaning in entries}
