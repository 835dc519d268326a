"""Conditions that stand at a setting's declaration: the values that it may have with others.

Whoever asks goes through the settings in the order of their declaration, and says the first fault:
a server of deployed clients, a device with a privacy account, clients that share noise, or a method
of its options. A fault is written for its reader, who calls a setting by its key or its name in
Python.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


class Where(Enum):
    """Runs in which some values of a setting are refused."""

    ACCOUNT = auto()
    """Some clients have privacy accounts, on devices or simulated."""
    SUMS = auto()
    """Clients share the noise of their accounts."""


@dataclass(frozen=True, init=False)
class Under:
    """The only values that a setting may have in some runs, the usual one first: Under(SUMS, 1).

    Without values, it may have any.
    """

    where: Where
    values: tuple[bool | int | float | str | None, ...]

    def __init__(self, where: Where, *values: bool | int | float | str | None) -> None:
        object.__setattr__(self, "where", where)
        object.__setattr__(self, "values", values)

    def allows(self, value: object) -> bool:
        """Return whether a setting may have this value."""
        return not self.values or value in self.values


@dataclass(frozen=True)
class OnlyInProcess:
    """A mark of a setting that deployed clients cannot have but at its default, with the reason.

    `remedy` follows "leave it out with deployed clients".
    """

    why: str
    remedy: str = ""


# A setting may have any value with privacy accounts: it does not change what a row contributes, or
# acts on the released numbers.
WITH_ACCOUNTS = Under(Where.ACCOUNT)


# Conditions on several settings -------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A wrong setting, whoever reads of it.

    Attributes
    ----------
    setting
        Its name in Python.
    value
        Its value.
    text
        The sentence. In braces, it has {setting}, {value}, the `facts` by their names, and the
        names of other settings in Python.
    facts
        Texts in the sentence that are not ours, as they are.
    """

    setting: str
    value: object
    text: str
    facts: Mapping[str, str] = field(default_factory=dict)

    def written(self, spell: Callable[[str], str]) -> str:
        """Return the sentence with all names of settings as `spell` writes them."""
        known = {**self.facts, "setting": spell(self.setting), "value": self.value}
        return self.text.format_map(_Spelled(spell, known))

    def __str__(self) -> str:
        return self.written(str)


class _Spelled(dict[str, object]):
    """What a sentence has in braces; a name that it does not know is a setting's."""

    def __init__(self, spell: Callable[[str], str], known: Mapping[str, object]) -> None:
        super().__init__(known)
        self.spell = spell

    def __missing__(self, name: str) -> str:
        return self.spell(name)


@dataclass(frozen=True)
class Condition(ABC):
    """A mark of a setting: what its values, but for its default, need of another setting."""

    other: str
    """The other setting's name in Python."""

    @abstractmethod
    def explain(self, value: Any, other: Any) -> str:
        """Return why the value does not go with the other's, as a text of Fault, or ""."""


@dataclass(frozen=True)
class IdleIf(Condition):
    """It has no effect while the other one has this value; `reason` follows these words."""

    value: bool | int | float | str
    remedy: str
    reason: str = ""

    def explain(self, value: Any, other: Any) -> str:
        """Return that it has no effect, and the remedy."""
        if other != self.value:
            return ""
        return f"{{setting}} = {{value!r}} has no effect{self.reason}: {self.remedy}"


@dataclass(frozen=True)
class NotWith(Condition):
    """It does not go with these values of the other one; `why` ends with the remedy."""

    values: tuple[bool | int | float | str, ...]
    why: str

    def explain(self, value: Any, other: Any) -> str:
        """Return why not."""
        return f"{{setting}} = {{value!r}}: {self.why}" if other in self.values else ""


@dataclass(frozen=True)
class AtMost(Condition):
    """It is at most the other one, a number or a list of names; 0 and no names set no limit."""

    def explain(self, value: Any, other: Any) -> str:
        """Return the limit, if it is exceeded."""
        limit, called = other, f"{{{self.other}}}"
        if isinstance(other, tuple):
            limit, called = len(other), f"the number of {called}"
        if not 0 < limit < value:
            return ""
        return f"{{setting}} = {{value}} is more than {called} = {limit}: lower it"


@dataclass(frozen=True)
class Below(Condition):
    """It is less than the other one; of a single round, it may be the whole."""

    def explain(self, value: Any, other: Any) -> str:
        """Return the number that it must be less than."""
        if value < max(2, other):
            return ""
        return f"{{setting}} = {{value}} must be less than {{{self.other}}} = {other}: lower it"


def find_fault(
    conditions: Mapping[str, tuple[Condition, ...]],
    changed: Mapping[str, Any],
    values: Mapping[str, Any],
) -> Fault | None:
    """Return the first fault among settings that do not have their defaults, or None.

    `changed` has these by name, and `values` all. A condition on a setting that is not there, as
    methods do not have all of a run's, is for others to check.
    """
    for name, marks in conditions.items():
        if name not in changed:
            continue
        for mark in marks:
            if mark.other not in values:
                continue
            text = mark.explain(changed[name], values[mark.other])
            if text:
                return Fault(name, changed[name], text)
    return None
